"""``./dev chaos connect``: the test of Spark Connect, with an environment of its own for the client."""

from __future__ import annotations

import subprocess
import sys

if __name__ == "__main__":
    command = [sys.executable, "-m", "pytest", "--long", "tests/spark/test_connect.py", *sys.argv[1:]]
    sys.exit(subprocess.run(command, check=False).returncode)
