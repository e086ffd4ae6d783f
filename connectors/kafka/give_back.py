"""Messages go back to librdkafka: thousands by one call where the client has such a call, else one by one.

The call is made for lists of messages that share consumers fetch, and there is no function to make such a list of other
messages. It is a number and as many pointers, in memory of `malloc`. That is not public, so it is done for exactly the
versions with which it was checked, and only if the two public functions that read a list find in one what was put
there. It saves a tenth of the time of a read: measured for records of 200 B, 80 of 260 ns of a task's processor time.
"""

from __future__ import annotations

import ctypes
from collections import deque
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from connectors.kafka.librdkafka import library

__all__ = ["give_back", "gives_back_lists"]

_CHECKED: Final = frozenset({0x021000FF})
"""The versions of librdkafka with which this was checked, as it writes them; any other gets them one by one."""

_TRIED: Final = np.array([8, 1 << 40, 24], np.uint64)
"""No addresses: nobody looks at what stands there."""


def give_back(pointers: npt.NDArray[np.uint64]) -> None:
    """Give messages back to the client that they are from; none may be looked at any more."""
    if len(pointers) == 0:
        return
    if gives_back_lists():
        library().rd_kafka_messages_destroy(_list_of(pointers))
    else:
        deque(map(library().rd_kafka_message_destroy, pointers.tolist()), maxlen=0)


@cache
def gives_back_lists() -> bool:
    """Whether the client takes back a list of messages, and reads one that is made here as it is meant."""
    functions = library()
    if functions.rd_kafka_version() not in _CHECKED:
        return False
    if functions.rd_kafka_messages_destroy is None:
        return False
    made = _list_of(_TRIED)
    try:
        if functions.rd_kafka_messages_count(made) != len(_TRIED):
            return False
        found = [functions.rd_kafka_messages_get(made, each) for each in range(len(_TRIED))]
        return bool(found == _TRIED.tolist())
    finally:
        _libc().free(made)


def _list_of(pointers: npt.NDArray[np.uint64]) -> int:
    """A list of messages; the client frees it with them."""
    words = np.concatenate((np.array([len(pointers)], np.uint64), pointers))
    made = _libc().malloc(words.nbytes)
    if not made:
        raise MemoryError(f"no {words.nbytes} bytes for a list of messages")
    ctypes.memmove(made, words.ctypes.data, words.nbytes)
    return int(made)


@cache
def _libc() -> Any:
    """The `malloc` and `free` of this process, which are the client's too."""
    functions = ctypes.PyDLL(None)
    functions.malloc.restype, functions.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    functions.free.restype, functions.free.argtypes = None, (ctypes.c_void_p,)
    return functions
