"""Environments with the wheels of both distributions and what these bring, for each Python there is."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.chaos.rigs import first_job
from tools.lock import pins
from tools.release.trial import Environment

LOCKS = {"newest": "requirements.lock", "lowest": "requirements-lowest.lock"}
_OLDEST_PYTHON = (3, 11)


def pythons() -> dict[str, str]:
    """The usable interpreters of the PATH and of pyenv by their versions, ``3.11`` and newer."""
    found: dict[str, str] = {}
    code = "import sys; print(sys.implementation.name, *sys.version_info[:2]); print(sys.executable)"
    managed = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for minor in range(_OLDEST_PYTHON[1], 20):
        name = f"python3.{minor}"
        for candidate in (name, *sorted(map(str, managed.glob(f"3.{minor}.*/bin/{name}")))):
            try:
                done = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
            except OSError:
                continue
            first, _, executable = done.stdout.strip().partition("\n")
            if done.returncode == 0 and first == f"cpython 3 {minor}":
                found.setdefault(f"3.{minor}", executable)
    return found


def job_of(environment: Environment) -> dict[str, Any]:
    """What came of the first job in an environment."""
    script = environment.folder / "first_job.py"
    script.write_text(Path(first_job.__file__).read_text())
    found = json.loads(environment.run(script).splitlines()[-1])
    assert Path(found["pack"]).is_relative_to(environment.folder)
    return dict(found)


def constraints_of(lock: str) -> list[str]:
    """The versions of a lock."""
    return pins(LOCKS[lock])
