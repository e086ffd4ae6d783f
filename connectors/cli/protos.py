"""The command line of .proto files: ``connectors protos build``."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.text import Text

from connectors.cli.errors import console, named_errors
from connectors.core.errors import ConnectorError
from connectors.core.processes.protoc import place_of, run_protoc

protos_commands = typer.Typer(no_args_is_help=True, help="Descriptor sets for from_protobuf and to_protobuf.")


@protos_commands.callback()
def commands() -> None:
    """Descriptor sets for from_protobuf and to_protobuf."""


@protos_commands.command("build")
def build_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder with the .proto files.")],
    *,
    output: Annotated[
        Path | None, typer.Option(help="The file to write. Default: FOLDER.desc in the current folder.")
    ] = None,
    root: Annotated[
        list[Path] | None,
        typer.Option("--root", help="A folder that imports are relative to, if not FOLDER. Repeatable."),
    ] = None,
    include: Annotated[
        list[Path] | None, typer.Option("--include", "-I", help="One more folder to find imports in. Repeatable.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", help="Files to leave out, such as 'v1/*'. Repeatable.")
    ] = None,
) -> None:
    """Compile all .proto files in a folder, with their imports, into one descriptor set.

    Files are imported by their path below a root: FOLDER, or the deepest --root that holds them, such as third_party.
    Of identical copies, one is used. Protobuf's own files, google/protobuf/..., are found without --include.
    """
    target = output or Path(f"{folder.resolve().name}.desc")
    with named_errors(extra="protos"):
        files, warnings = build_descriptor_set(folder, target, root or [], include or [], exclude or [])
    if warnings:
        console(stderr=True).print(Text(warnings))
    console(soft_wrap=True).print(Text(f"{target}: {files} files and what they import"))


def build_descriptor_set(
    folder: Path, target: Path, roots: Sequence[Path], includes: Sequence[Path], excludes: Sequence[str] = ()
) -> tuple[int, str]:
    """Write a descriptor set; return how many files it was made of, and what protoc warned of.

    Raises:
        ConnectorError: there is no .proto file, a name isn't valid, two files have one name, protoc refuses
            one, or the target cannot be written.
    """
    import grpc_tools  # type: ignore[import-untyped]  # noqa: F401, PLC0415 - needs the extra protos

    # Absolute: protoc takes a name that begins with - for an option, and one with @ for a file of options.
    absolute = {path: Path(os.path.abspath(path)) for path in (*includes, *roots, folder)}  # noqa: PTH100 - resolve() follows links
    shown, top = {full: path for path, full in absolute.items()}, absolute[folder]
    import_roots = {absolute[path] for path in roots}
    if not any(top.is_relative_to(path) for path in import_roots):
        import_roots.add(top)
    files = _named(_sources(folder, top, excludes), import_roots, shown)
    for name in files:
        _refuse_argument(name, folder)
    options = ["--include_imports", f"--descriptor_set_out={target.absolute()}"]
    deepest_first = sorted(import_roots, key=lambda path: (-len(path.parts), path))
    # Else protoc would take an excluded file of this name below another root.
    options += [
        f"-I{name}={path}"
        for name, path in files.items()
        if any((root / name).exists() for root in import_roots if root / name != path)
    ]
    options += [f"-I{path}" for path in (*deepest_first, *(absolute[path] for path in includes))]
    with TemporaryDirectory() as empty:  # there, protoc takes a name as that below a root
        accepted, printed = run_protoc([*options, *files], folder=empty)
    printed = _shown(_by_path(printed, files), shown)
    if not accepted:
        place, what, more = place_of(printed)
        raise ConnectorError(
            "PROTOS_REFUSED",
            f"protoc says: {what}{f' (and {more} more)' if more else ''}",
            place or str(target),
            _advice(place, what),
        )
    return len(files), printed


def _sources(folder: Path, top: Path, excludes: Sequence[str]) -> list[Path]:
    """Return the .proto files of a folder, by absolute path."""
    names = sorted(path.relative_to(folder) for path in folder.rglob("*.proto") if path.is_file())
    names = [name for name in names if not any(fnmatch(name.as_posix(), pattern) for pattern in excludes)]
    if not names:
        raise ConnectorError("PROTOS_NOT_FOUND", "There is no .proto file", str(folder))
    for name in names:
        _refuse_argument(str(name), folder)
    return [top / name for name in names]


def _named(paths: Sequence[Path], roots: Collection[Path], shown: Mapping[Path, Path]) -> dict[str, Path]:
    """Return the files by the name under which each is imported; of equal copies, the one nearest to the top."""
    files: dict[str, Path] = {}
    texts: set[bytes] = set()
    for path in sorted(paths, key=lambda path: (len(path.parts), path)):
        root = max((root for root in roots if path.is_relative_to(root)), key=lambda root: len(root.parts))
        name, text = path.relative_to(root).as_posix(), path.read_bytes()
        if text in texts:
            continue
        if name in files:
            raise ConnectorError(
                "PROTOS_COLLIDE",
                f"{_shown(str(files[name]), shown)} and {_shown(str(path), shown)} are imported under the same "
                f"name, but differ",
                name,
            )
        texts.add(text)
        files[name] = path
    return files


def _by_path(printed: str, files: Mapping[str, Path]) -> str:
    """Return messages of protoc with the paths of files where it gives the names of imports."""
    for name in sorted(files, key=len, reverse=True):
        printed = re.sub(
            rf'(?m)^{re.escape(name)}(?=:)|(?<=in file "){re.escape(name)}(?=")', str(files[name]), printed
        )
    return printed


def _shown(text: str, shown: Mapping[Path, Path]) -> str:
    """Return a text with the paths as the user gave them."""
    for absolute, path in shown.items():
        text = text.replace(f"{absolute}{os.sep}", "" if path == Path() else f"{path}{os.sep}")
    return text


def _advice(place: str, what: str) -> str:
    if not place:
        return "Let --output name a file that can be written."
    if "is already defined in file" in what:
        return "Both files define it: leave one out by --exclude, or name by --root where the names of imports begin."
    return "Correct the file. Name by --root where the names of imports begin, and by --include what lies elsewhere."


def _refuse_argument(name: str, folder: Path) -> None:
    """Refuse the name of a file that could be taken for an argument, or that no text can hold."""
    if name.startswith(("-", "@")) or not name.isprintable():
        raise ConnectorError(
            "PROTOS_NAME_REFUSED",
            f"The name {name!a} begins with - or @, or has characters that cannot be printed",
            str(folder),
        )
