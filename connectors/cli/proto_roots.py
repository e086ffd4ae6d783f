"""Finds under which name each .proto file of a tree is imported, and so where its import roots are.

A tree often has more roots than its own folder: third_party, a vendored copy of somebody's files, a copy that a build
has made. protoc knows a file by its name below a root; one file under two names defines everything twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_COMMENTS: Final = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_IMPORT: Final = re.compile(r'(?:^|[;}])\s*import\s+(?:public\s+|weak\s+|option\s+)?"([^"\n]+)"\s*(?=;)')


@dataclass(frozen=True, slots=True)
class Plan:
    """What to compile.

    Attributes:
        files: the path of each file, by the name under which it is imported.
        roots: the import roots, with the deepest first.
        collisions: pairs of files that differ and have one name.
    """

    files: Mapping[str, Path]
    roots: Sequence[Path]
    collisions: Sequence[tuple[Path, Path]]


def find_roots(texts: Mapping[Path, str], roots: Sequence[Path], built_in: Iterable[str]) -> Plan:
    """Return under which names to compile files.

    Args:
        texts: of the files, by absolute path.
        roots: the folder that is compiled, then those that the user includes; absolute.
        built_in: names that protoc brings itself; files that are imported by these are left out.
    """
    imported = {name for text in texts.values() for name in _imports(text)}
    left_out = set(built_in)
    import_roots: set[Path] = set()
    files: dict[str, Path] = {}
    collisions: list[tuple[Path, Path]] = []
    # A file that is imported comes before its copies, and of these the one that is nearest to the root.
    named = [(_imported_as(path, imported | left_out, roots), path) for path in texts]
    for name, path in sorted(named, key=lambda each: (not each[0], len(each[1].parts), each[1])):
        if name in left_out:
            continue
        if name:
            import_roots.add(_root_of(path, name))
        own = name or _below(path, import_roots, roots[0])
        twin = files.get(own) or next((each for each in files.values() if texts[each] == texts[path]), None)
        if twin is None:
            files[own] = path
        elif texts[twin] != texts[path]:
            collisions.append((twin, path))
    found = {_root_of(path, name) for name, path in files.items()} | set(roots[1:])
    return Plan(files, sorted(found, key=lambda root: (-len(root.parts), root)), collisions)


def _imports(text: str) -> list[str]:
    return _IMPORT.findall(_COMMENTS.sub(lambda match: match[1] or " ", text))


def _imported_as(path: Path, imported: Iterable[str], roots: Sequence[Path]) -> str:
    """Return the name by which a file is imported: below a root, or else the longest that its path ends with."""
    parts = path.parts
    names = {"/".join(parts[first:]) for first in range(1, len(parts))} & set(imported)
    below = [name for root in roots for name in names if root / name == path]
    return max(below or names, key=len, default="")


def _below(path: Path, import_roots: Iterable[Path], folder: Path) -> str:
    """Return the name of a file that nothing imports: below the deepest root of others, else below the folder."""
    holding = [root for root in import_roots if path.is_relative_to(root)]
    return path.relative_to(max(holding, key=lambda root: len(root.parts), default=folder)).as_posix()


def _root_of(path: Path, name: str) -> Path:
    return Path(*path.parts[: len(path.parts) - len(Path(name).parts)])
