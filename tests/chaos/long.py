"""``./dev chaos long``: the tests that take too long for ``./dev test``; further words go to pytest."""

from __future__ import annotations

import subprocess
import sys

if __name__ == "__main__":
    command = [sys.executable, "-m", "pytest", "-n", "2", "--long", *sys.argv[1:]]
    sys.exit(subprocess.run(command, check=False).returncode)
