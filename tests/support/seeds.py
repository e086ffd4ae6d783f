"""One seed for a run of tests: from the commit under CI, else from the clock; ``--seed`` repeats it."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BITS = 32


def default_seed() -> int:
    """Return the seed of a run that names none, below 2**32."""
    if os.environ.get("CI") != "true":
        return time.time_ns() // 1_000_000 % 2**_BITS
    command = ("git", "rev-parse", "HEAD")
    commit = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True).stdout
    return int(commit[: _BITS // 4] or "0", 16)  # 0 in a copy of the tree, which is no clone
