"""What a task does first in the Python process that Spark gives it.

Spark uses its Python workers again for the next task, and after each task the worker collects all garbage
(``pyspark.daemon``), which looks at every object of every module that was imported. Those objects stay for ever, so
they are taken out of the garbage collector's sight once: a collection then looks at what the tasks made. Measured for
a stream of small batches: 9 ms of processor time a task instead of 30.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import socket
from functools import cache
from pathlib import Path
from typing import Any, Final

_log = logging.getLogger(__name__)

NO_FAST_PATH: Final = "CONNECTORS_NO_FAST_PATH"
"""The environment variable that has a process take the plain paths only."""

_ACK_AT_ONCE: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)

# Of malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 128 << 20
_LARGEST_BYTES: Final = 32 << 20
"""The largest threshold that every glibc takes."""


def fast_path_is_off() -> bool:
    """Return whether this process takes the plain paths only: no native code gets addresses or settings."""
    return os.environ.get(NO_FAST_PATH, "") not in {"", "0"}


@cache
def settle_worker() -> None:
    """Exclude what is loaded now from later garbage collections; the second call in a process does nothing."""
    gc.collect()
    gc.freeze()


class SentToTasks:
    """A reader that Spark sends to each task as a pickle, before the partition that the task reads.

    Unpickling it is the only code of a source that runs before the partition arrives; so it removes a pause of 40 ms,
    see `_lose_no_time`.
    """

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _lose_no_time()


def settle_sink() -> None:
    """Prepare the worker of a sink, before its first row: as `settle_worker`, and rows arrive sooner."""
    _lose_no_time()
    settle_worker()
    _keep_memory()


@cache
def _keep_memory() -> None:
    """Keep up to 128 MiB of freed memory for later allocations; the second call in a process does nothing.

    Each Arrow batch from Spark is some megabytes, which the C library otherwise returns to the system and gets again
    page by page, filled with zeros. Measured for a sink of rows of 1 KB: half of what the kernel does for the
    worker. Does nothing where the C library has no such setting. See mallopt(3).
    """
    if fast_path_is_off():
        return
    try:
        set_option = getattr(_own_process(), "mallopt", None)
        if set_option is not None:
            set_option(_M_TRIM_THRESHOLD, _KEPT_BYTES)
            set_option(_M_MMAP_THRESHOLD, _LARGEST_BYTES)
    except Exception:  # noqa: BLE001 - it only saves time
        _log.warning("[WORKER_NOT_TUNED] Memory goes back to the system after each batch.", exc_info=True)


def _lose_no_time() -> None:
    """Let the JVM send the rows of a task, or its partition, without a pause, and get the last rows without one.

    Whoever sends holds small data back until what went before is acknowledged (Nagle's algorithm), which the kernel
    delays by 40 ms while nothing is sent back. The JVM does so after the function or the schema, and this process with
    the end of a task after its rows. Measured for a batch read of 100 partitions of 100 records, a task each: 2.0 s
    instead of 3.4 by the latter alone. Does nothing without TCP_QUICKACK or without TCP (see
    spark.python.unix.domain.socket.enabled). It only saves time, so no error of it fails a task.
    """
    if fast_path_is_off():
        return
    try:
        for descriptor in _connections():
            _set(descriptor, _ACK_AT_ONCE)
    except Exception:  # noqa: BLE001 - while Spark unpickles a reader, any error would end the query
        _log.warning("[WORKER_NOT_TUNED] Tasks begin up to 40 ms later.", exc_info=True)


@cache
def _connections() -> tuple[int, ...]:
    """Return the TCP descriptors of this process before it opens its own; the one to the JVM is among them.

    All of them, although some are the same connection: Spark closes all but one after each task. They send at once
    from now on; to acknowledge at once is a state that passes.
    """
    try:
        descriptors = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
    except OSError:  # no /proc
        return ()
    return tuple(
        descriptor
        for descriptor in descriptors
        if _set(descriptor, _ACK_AT_ONCE) and _set(descriptor, socket.TCP_NODELAY)
    )


def _set(descriptor: int, option: int | None) -> bool:
    """Switch an option of TCP on; False if the descriptor is no TCP connection, or the kernel has no such option.

    Not by a `socket.socket`: with a ``socket.setdefaulttimeout`` it would make the JVM's connection non-blocking.
    """
    if option is None:
        return False
    on = ctypes.c_int(1)
    failed: int = _own_process().setsockopt(descriptor, socket.IPPROTO_TCP, option, ctypes.byref(on), ctypes.sizeof(on))
    return not failed


@cache
def _own_process() -> ctypes.CDLL:
    return ctypes.CDLL(None)
