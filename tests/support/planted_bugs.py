"""Bugs that are planted on purpose, to see that the check that should catch them does.

Each file in ``tests/planted`` is a patch with a head: what the bug is, and the one test that must fail with it. The
patch is applied to a copy of the tree; a patch that does not apply any more is a failure too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "PlantedBug", "copy_tree", "plant", "planted_bugs"]

ROOT = Path(__file__).parents[2]
_FOLDER = ROOT / "tests" / "planted"
_HEAD = "Caught-by: "
_COPIED = ("connectors", "tests", "pyproject.toml")
_TEST_FAILED = 1
"""The exit code of pytest when tests ran and some of them failed; others mean that it could not run them."""


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """A bug and its check.

    Attributes:
        name: of its file, without the ending.
        what: a sentence about it.
        check: the test that must fail, as pytest names it.
        patch: its file.
    """

    name: str
    what: str
    check: str
    patch: Path

    @classmethod
    def read(cls, path: Path) -> PlantedBug:
        """Read a patch file.

        Raises:
            ValueError: its head does not say what it is, or names no check.
        """
        lines = path.read_text().splitlines()
        checks = [line.removeprefix(_HEAD) for line in lines if line.startswith(_HEAD)]
        if len(checks) != 1 or not lines[0]:
            raise ValueError(f"{path.name} must begin with a sentence and name one check by {_HEAD!r}")
        return cls(path.stem, lines[0], checks[0], path)

    def plant(self, folder: Path) -> None:
        """Apply the patch in a copy of the tree.

        Raises:
            subprocess.CalledProcessError: it does not apply any more.
        """
        plant(self.patch, folder)

    def run_check(self, folder: Path) -> subprocess.CompletedProcess[str]:
        """Run its check in a copy of the tree."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", self.check]
        environment = {**os.environ, "PYTHONPATH": str(folder), "PYTEST_ADDOPTS": ""}
        return subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)

    def caught(self, folder: Path) -> str:
        """Plant it in an empty folder and run its check; what is wrong, or nothing if that has failed as it should."""
        copy_tree(folder)
        self.plant(folder)
        done = self.run_check(folder)
        if done.returncode == _TEST_FAILED and f"FAILED {self.check}" in done.stdout:
            return ""
        shown = (done.stdout + done.stderr)[-2000:]
        return f"{self.check} ended with {done.returncode} on {self.name}: {shown}"


def plant(patch: Path, folder: Path) -> None:
    """Apply a patch in a copy of the tree; `subprocess.CalledProcessError` if it does not apply any more."""
    command = ["git", "apply", "--whitespace=nowarn", str(patch)]
    # Outside of a repository; else git would look for the files in that one.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True)


def copy_tree(folder: Path) -> None:
    """Copy what the checks need to a folder."""
    for name in _COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder)


def planted_bugs() -> list[PlantedBug]:
    """All of them, by name."""
    return [PlantedBug.read(path) for path in sorted(_FOLDER.glob("*.patch"))]
