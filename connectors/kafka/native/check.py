"""Decide whether records pass between Arrow and librdkafka directly: another process tries that first.

A version of either that behaves differently could end a worker; here it ends the process of the check. That takes about
a second, so success is stored for all processes of this user on this machine, by the versions and files it holds for.
"""

from __future__ import annotations

import ctypes
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
from connectors.kafka.native.library import client_extension, library, new_client
from connectors.kafka.native.reader import NativeSource
from connectors.kafka.native.writer import NativeSink
from connectors.kafka.offsets import TopicPartition
from connectors.kafka.options.client import ClientSettings
from connectors.kafka.schema import Columns

_log = logging.getLogger(__name__)

_PROGRAM: Final = "from connectors.kafka.native.check import check_fast_path; check_fast_path()"
_CHECK_SECONDS: Final = 30.0
_READ_SECONDS: Final = 10.0
_TOPIC: Final = "fast-path"
_VALUES: Final = (b"", None, b"short", b"x" * 12, b"y" * 13, bytes(range(256)) * 40)


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
        _log.warning(
            "[KAFKA_FAST_PATH_OFF] The fast path failed its check. The slower path is used, with the same result: %s.",
            reason,
        )
    elif verdict is not None:
        try:
            verdict.touch(0o600)
        except OSError as error:
            _log.debug("The result of the check cannot be stored: %s", error)
    return reason


def _versions() -> str:
    """Return all that a result holds for; raises if this librdkafka lacks what the fast path calls."""
    ours = Path(__file__).parent.glob("*.py")
    files = (client_extension(), Path(pa.lib.__file__), *sorted(ours))
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


def check_fast_path() -> None:
    """Write records to a mock cluster of librdkafka and read them, both on the fast path; raises if others come."""
    import resource  # noqa: PLC0415 - not on all systems

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    functions = library()
    mock = new_client(0, {"test.mock.num.brokers": "1", "log_level": "0"})
    cluster, servers = functions.rd_kafka_handle_mock_cluster, functions.rd_kafka_mock_cluster_bootstraps
    cluster.restype, cluster.argtypes = servers.restype, servers.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
    servers.restype = ctypes.c_char_p
    endpoint = servers(cluster(mock)).decode()
    settings = ClientSettings((("bootstrap.servers", endpoint), ("log_level", "0"), ("enable.idempotence", "true")))
    columns = {"key": [*reversed(_VALUES)], "value": [*_VALUES]}
    rows = len(_VALUES)
    batch = pa.RecordBatch.from_pydict(
        {name: pa.array(values, pa.binary()) for name, values in columns.items()}
        | {"partition": pa.array(np.zeros(rows, np.int32))}
    )
    sink = NativeSink(settings)
    sink.send(batch, Columns(_TOPIC, key=True, partition=True, headers=False, timestamp=False))
    sink.finish()
    sink.discard()
    source = NativeSource(settings, {"group.id": "check", "fetch.wait.max.ms": "5"})
    partition = TopicPartition(_TOPIC, 0)
    source.assign(partition, 0)
    fetched = source.fetch(rows, _READ_SECONDS)
    read = fetched.batch([fetched], partition, headers=True).to_pydict()
    fetched.free()
    source.close()
    functions.rd_kafka_destroy(mock)
    if {name: read[name] for name in columns} != columns or read["offset"] != [*range(rows)]:
        raise ValueError("other records came back")
