"""Lets the Python workers of Spark in tests start in a third of the time: from Spark's installed package.

Spark puts its own `pyspark.zip` first on the path of each worker, and Python keeps no compiled files of a zip. So each
worker compiles what it imports: 1.4 s of processor time for the reader of a stream, 0.4 s from the installed package,
which is the same. Where many tests shared two cores, that took longer than the 10 s after which Spark gives up with
"Python worker failed to connect back". Users have the zip as it comes, and so do benchmarks that are not about it.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

from tests.support.processes import RUN_MARK

_LINE = (
    "import os, sys; "
    f"sys.path[:] = [p for p in sys.path if {RUN_MARK!r} not in os.environ or not p.endswith('pyspark.zip')]\n"
)
"""Runs when a Python of this environment starts; it has an effect in processes of a test run."""


def leave_out_zip() -> str:
    """Have each Python of this environment leave the zip out in tests; return an empty text, as nothing is missing."""
    Path(sysconfig.get_path("purelib"), "quick_pyspark_in_tests.pth").write_text(_LINE)
    return ""
