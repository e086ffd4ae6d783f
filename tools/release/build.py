"""Builds of both distributions from committed files, and what is in them."""

from __future__ import annotations

import re
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

from tools.release.commands import ROOT, ReleaseError, run

__all__ = ["FOLDERS", "Built", "build", "build_twice", "files_of_sdist", "files_of_wheel"]

FOLDERS = {"pyspark_stream_connectors": ".", "pyspark_stream_connectors_autoload": "autoload"}
# What two machines differ in; none of it may change a byte.
_ONE = {"umask": 0o022, "TZ": "UTC", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"}
_OTHER = {"umask": 0o077, "TZ": "Asia/Kathmandu", "LC_ALL": "C", "PYTHONHASHSEED": "1"}


@dataclass(frozen=True)
class Built:
    """The files that one build has given, by project, and the clone that they were built from."""

    tree: Path
    wheels: dict[str, Path]
    sdists: dict[str, Path]

    @property
    def files(self) -> list[Path]:
        """All files, by name."""
        return sorted([*self.wheels.values(), *self.sdists.values()])


def build(folder: Path, commit: str = "HEAD", *, root: Path = ROOT, umask: int = 0o022, **environ: str) -> Built:
    """Build wheel and sdist of both projects from a fresh clone: what is not committed is in none of them.

    Args:
        folder: where the clone and the files go.
        commit: what to build; its date is that of the files in the archives.
        root: the repository.
        umask: of the build.
        environ: variables of the build.

    Raises:
        ReleaseError: a build failed.
    """
    tree, dist = folder / "tree", folder / "dist"
    date = run("git", "show", "--no-patch", "--format=%ct", commit, cwd=root).strip()
    found = run("git", "rev-parse", f"{commit}^{{commit}}", cwd=root).strip()
    run("git", "clone", "--quiet", "--shared", "--no-checkout", root, tree, umask=umask)
    run("git", "checkout", "--quiet", "--detach", found, cwd=tree, umask=umask)
    environ = {**environ, "SOURCE_DATE_EPOCH": date}
    for inside in FOLDERS.values():
        run(sys.executable, "-m", "hatchling", "build", "--directory", dist, cwd=tree / inside, umask=umask, **environ)
    text = (tree / "connectors/__init__.py").read_text(encoding="utf-8")
    [version] = re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    return Built(
        tree,
        {name: dist / f"{name}-{version}-py3-none-any.whl" for name in FOLDERS},
        {name: dist / f"{name}-{version}.tar.gz" for name in FOLDERS},
    )


def build_twice(folder: Path, commit: str, *, root: Path = ROOT) -> Built:
    """Build in two copies that differ in path, umask, time zone, locale and hash seed; return the first.

    Raises:
        ReleaseError: a build failed, or the bytes differ.
    """
    first, second = (
        build(folder / name, commit, root=root, **kind)  # type: ignore[arg-type]
        for name, kind in (("one", _ONE), ("another/copy", _OTHER))
    )
    for path, again in zip(first.files, second.files, strict=True):
        if path.read_bytes() != again.read_bytes():
            raise ReleaseError(f"{path.name} has other bytes when it is built again: compare {path} and {again}")
    return first


def files_of_wheel(wheel: Path) -> dict[str, bytes]:
    """Return the files of a wheel, without its record of hashes."""
    with ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}


def files_of_sdist(sdist: Path) -> dict[str, bytes]:
    """Return the files of an sdist, by their paths in its one folder."""
    root = sdist.name.removesuffix(".tar.gz")
    with tarfile.open(sdist) as archive:
        members = [each for each in archive.getmembers() if not each.isdir()]
        if odd := [each.name for each in members if not each.isfile() or not each.name.startswith(f"{root}/")]:
            raise ReleaseError(f"{sdist.name} holds links, or files outside of {root}: {odd}")
        return {
            each.name.removeprefix(f"{root}/"): file.read() for each in members if (file := archive.extractfile(each))
        }
