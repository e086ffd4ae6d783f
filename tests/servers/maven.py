"""Jars through Maven: a pom of this package names artifacts, Maven finds them wherever it is set up to look.

    resolved = class_path("kafka-broker")
    if resolved.reason:
        ...                                   # one sentence: why they cannot be had
    subprocess.run(["java", "-cp", resolved.path, ...])

The result is kept beside Maven's own local repository, so that only the first call starts Maven.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ClassPath", "class_path"]

_POMS = Path(__file__).parent / "poms"
_SECONDS = 600


@dataclass(frozen=True)
class ClassPath:
    """The result of `class_path`: either ``path`` is set, or ``reason`` says why not."""

    path: str = ""
    reason: str = ""

    @property
    def jars(self) -> list[str]:
        """The single jars."""
        return self.path.split(os.pathsep)


def class_path(name: str, properties: Mapping[str, str] | None = None) -> ClassPath:
    """The class path of the pom in ``poms/NAME``, with properties of its own, resolved now or at an earlier call."""
    pom = _POMS / name / "pom.xml"
    changes = "".join(f"{key}={value}\n" for key, value in sorted((properties or {}).items()))
    version = hashlib.blake2b(pom.read_bytes() + changes.encode(), digest_size=8).hexdigest()
    folder = Path("~/.cache/pyspark-stream-connectors").expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"{name}-{version}.classpath"
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one Maven at a time, the others take its result
        if not _is_complete(kept) and (reason := _resolve(pom, kept, properties or {})):
            return ClassPath(reason=reason)
    return ClassPath(kept.read_text().strip())


def _is_complete(kept: Path) -> bool:
    return kept.is_file() and all(Path(jar).is_file() for jar in kept.read_text().strip().split(os.pathsep))


def _resolve(pom: Path, kept: Path, properties: Mapping[str, str]) -> str:
    """Let Maven write the class path; returns why it could not."""
    maven = shutil.which("mvn")
    if maven is None:
        return "Maven was not found on the PATH: install the package maven"
    new = kept.with_suffix(".new")
    command = [maven, "-B", "-q", "-f", str(pom), "dependency:build-classpath", f"-Dmdep.outputFile={new}"]
    command += [f"-D{key}={value}" for key, value in properties.items()]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return f"Maven did not resolve {pom.parent.name} in {_SECONDS} s"
    if done.returncode or not new.is_file():
        errors = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line]
        return f"Maven cannot resolve {pom.parent.name}: {errors[0][:400] if errors else done.returncode}"
    new.replace(kept)
    return ""
