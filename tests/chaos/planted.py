"""``./dev chaos planted``: every planted bug is caught by the check that it names; see `tests.support.planted_bugs`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.support.planted_bugs import planted_bugs


def main() -> int:
    """Run all; the exit code is 1 if one of them was not caught."""
    argparse.ArgumentParser(prog="./dev chaos planted", description=__doc__).parse_args()
    missed = 0
    for bug in planted_bugs():
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="planted-") as folder:
            problem = bug.caught(Path(folder))
        missed += bool(problem)
        sys.stdout.write(f"{bug.name}: {problem or f'caught by {bug.check}'} ({time.monotonic() - began:.0f} s)\n")
        sys.stdout.flush()
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
