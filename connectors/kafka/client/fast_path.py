"""Decide whether records pass between Arrow and librdkafka directly: another process tries that first.

The fast path passes addresses to librdkafka and to Arrow. A version of either that behaves differently could end a
worker; here it ends the process of the check (`connectors.kafka.fast_path_check`), and the worker takes the plain path.
The check takes about a second, so its success is stored for all processes of this user on this machine, by the versions
and files that it holds for.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import stat
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from connectors.core.processes.interpreter import python_command, python_environment, without_present_folder
from connectors.core.processes.worker import NO_FAST_PATH, fast_path_is_off
from connectors.kafka.client.librdkafka import client_extension, library

_log = logging.getLogger(__name__)

_PROGRAM: Final = "from connectors.kafka.fast_path_check import check_fast_path; check_fast_path()"
_CHECK_SECONDS: Final = 30.0
_MODULES: Final = ("client/librdkafka.py", "fast_path_check.py", "sink/native_writer.py", "source/native_records.py")
"""Those that pass addresses, as all that import ctypes."""


@cache
def native_reason() -> str:
    """Return why the fast path cannot be taken in this process; empty if it can."""
    if fast_path_is_off():
        return f"{NO_FAST_PATH} is set"
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return "it is checked on Linux on x86-64 only"
    try:
        verdict = verdict_file(_versions())
    except (OSError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    if verdict is not None and verdict.exists():
        return ""
    reason = run_check(python_command("-c", _PROGRAM))
    if reason:
        _log.warning("[KAFKA_FAST_PATH_OFF] The check of the fast path failed, so the plain one is taken: %s.", reason)
    elif verdict is not None:
        try:
            verdict.touch(0o600)
        except OSError as error:
            _log.debug("The result of the check cannot be stored: %s", error)
    return reason


def _versions() -> str:
    """Return all that a result holds for; raises if this librdkafka lacks what the fast path calls."""
    ours = (Path(__file__).parents[1] / name for name in _MODULES)
    files = (client_extension(), Path(pa.lib.__file__), *ours)
    states = [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in files if path.exists()]
    return repr((sys.version, np.__version__, pa.__version__, library().rd_kafka_version(), states))


def verdict_file(versions: str) -> Path | None:
    """Return the file that exists if the check passed for these versions; None without a folder of this user alone."""
    folder = Path(tempfile.gettempdir()) / f"pyspark-stream-connectors-{os.geteuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        state = folder.lstat()
    except OSError:
        return None
    private = stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid() and not state.st_mode & 0o077
    return folder / f"kafka-{hashlib.sha256(versions.encode()).hexdigest()[:32]}" if private else None


def run_check(command: list[str], seconds: float = _CHECK_SECONDS) -> str:
    """Run a check in another process; return why it failed, empty if it passed."""
    environment = python_environment(without_present_folder(sys.path))
    try:
        ended = subprocess.run(command, env=environment, capture_output=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}: the check did not end in time, or could not be started"
    if ended.returncode == 0:
        return ""
    lines = ended.stderr.decode(errors="replace").strip().splitlines()
    return f"the check ended with {ended.returncode}" + (f": {lines[-1][:200]}" if lines else "")
