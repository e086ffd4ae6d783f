"""What a task does once in its process."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from connectors.core.worker import settle_worker
settle_worker()
first = gc.get_freeze_count()
class Ring: pass
ring = Ring(); ring.itself = ring; del ring
settle_worker()
print(first > 0, gc.get_freeze_count() == first, gc.collect() > 0)
"""


def test_a_worker_is_settled_once_and_what_its_tasks_leave_is_still_collected() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.split() == ["True", "True", "True"]
