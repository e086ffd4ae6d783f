"""The code of another version of this repository, beside the present one: one query is run by both, in turn."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.support.record import ROOT
from tests.chaos.support.spark import SparkJob

_NEEDED = ("connectors", "tests")


class VersionMissingError(Exception):
    """Raised when the commit of a version is not in this clone."""


@dataclass(frozen=True)
class Version:
    """One version of the code.

    Attributes:
        root: the folder with `connectors` and `tests`.
    """

    root: Path

    def start(self, folder: Path, environment: Mapping[str, str] | None = None) -> SparkJob:
        """Start a Spark process that runs this version and no other."""
        [program] = (self.root / "tests" / "chaos").rglob("*spark_job.py")
        module = ".".join(program.relative_to(self.root).with_suffix("").parts)
        return SparkJob(folder, {}, {"PYTHONPATH": str(self.root), **(environment or {})}, module)

    def imported_from(self, folder: Path) -> Path:
        """Return the folder of the `connectors` that a process of this version imports."""
        done = subprocess.run(
            [sys.executable, "-c", "import connectors; print(connectors.__path__[0])"],
            cwd=folder,
            env={"PYTHONPATH": str(self.root)},
            capture_output=True,
            text=True,
            check=True,
        )
        return Path(done.stdout.strip())


PRESENT = Version(ROOT)


def check_out(commit: str, folder: Path, repository: Path = ROOT) -> Version:
    """Put the code of a commit into a folder.

    Raises:
        VersionMissingError: a clone with a short history does not have the commit; says how to get it.
    """
    done = subprocess.run(
        ["git", "archive", "--format=tar", commit, *_NEEDED], cwd=repository, capture_output=True, check=False
    )
    if done.returncode:
        raise VersionMissingError(
            f"commit {commit} is not in this clone, so the code that wrote the older state cannot be run; "
            "get it with: git fetch --unshallow"
        )
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return Version(folder)
