"""A Python on another machine: PYTHONPATH names this folder, so that children are there too.

Its wall clock is CLOCK_AHEAD seconds before the true one (behind it if that is negative), and its kernel has the boot
id BOOT_ID, if there is one. The monotonic clock stays, as it does where only the time of day is wrong. Only what Python
itself asks is changed: libraries in C and Rust see this machine's clock, and so does grpc, which hands its deadlines to
its part in C.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

BOOT_FILE = "/proc/sys/kernel/random/boot_id"

_ahead = float(os.environ["CLOCK_AHEAD"])
_time, _time_ns, _read_text = time.time, time.time_ns, Path.read_text


def _read_text_there(self: Path, *arguments: Any, **named: Any) -> str:
    boot = os.environ.get("BOOT_ID")
    return boot if boot and str(self) == BOOT_FILE else _read_text(self, *arguments, **named)


def _of_caller() -> float:
    """How far the clock is ahead for the code that asks for the time."""
    return 0.0 if sys._getframe(2).f_globals.get("__name__", "").startswith("grpc.") else _ahead


time.time = lambda: _time() + _of_caller()
time.time_ns = lambda: _time_ns() + int(_of_caller() * 1e9)
Path.read_text = _read_text_there  # type: ignore[method-assign]
