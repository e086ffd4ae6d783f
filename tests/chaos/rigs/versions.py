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
    """One version of the code, on one version of Spark.

    Attributes:
        root: the folder with `connectors` and `tests`.
        python: the interpreter, whose environment has the Spark.
    """

    root: Path
    python: str = sys.executable

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables by which a process has this code and this Spark, and no other."""
        python = {"PYSPARK_PYTHON": self.python, "PYSPARK_DRIVER_PYTHON": self.python}
        return {"PYTHONPATH": str(self.root), **python}

    def start(self, folder: Path, environment: Mapping[str, str] | None = None) -> SparkJob:
        """Start a Spark process that runs this version and no other."""
        [program] = (self.root / "tests" / "chaos").rglob("*spark_job.py")
        module = ".".join(program.relative_to(self.root).with_suffix("").parts)
        return SparkJob(folder, {}, environment={**self.environment, **(environment or {})}, module=module)

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
SPARKS = ("4.0", "4.1", "4.2", "4.3")


def on_spark(version: str) -> Version:
    """Return the present code on the newest Spark of a line such as 4.0; its environment is made if need be."""
    command = [str(ROOT / "dev"), "--spark", version, "venv"]
    python = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return Version(ROOT, python.strip())


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
