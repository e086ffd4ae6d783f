"""Run the commands of a release; a failed one ends it with a sentence."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

__all__ = ["ROOT", "ReleaseError", "run"]

ROOT = Path(__file__).resolve().parents[2]


class ReleaseError(Exception):
    """Say what stands in the way of the release, and what to do."""


def run(*command: str | Path, cwd: Path = ROOT, umask: int = -1, **environ: str) -> str:
    """Return the standard output of a command.

    Raises:
        ReleaseError: it failed; with the end of what it printed.
    """
    words = [str(word) for word in command]
    environment = {**os.environ, **environ}
    done = subprocess.run(
        words, cwd=cwd, env=environment, umask=umask, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        raise ReleaseError(f"failed: {' '.join(words[:6])}\n{(done.stdout + done.stderr)[-3000:].strip()}")
    return done.stdout
