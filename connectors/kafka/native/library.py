"""Call the public functions of librdkafka directly: those of the library that confluent-kafka is linked with.

Messages are destroyed by thousands in one call, which librdkafka has for the lists that share consumers fetch. It has
no function to make such a list: that is a number and as many pointers, in memory of `malloc`. The layout is not public,
so lists are made for the versions that were checked, if the two public functions that read a list return what was put
there. Otherwise messages are destroyed one by one.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from connectors.core.errors import OptionError
from connectors.kafka.client.errors import setting_refused
from connectors.kafka.client.log import LOGGER
from connectors.kafka.offsets import refuse_nul

_LEVELS: Final = (*[logging.CRITICAL] * 3, logging.ERROR, logging.WARNING, logging.INFO, logging.INFO, logging.DEBUG)
"""By the level of syslog, as confluent-kafka translates it."""
_TEXT_BYTES: Final = 512
_RELEASED: Final = 0xFF
_POINTER, _TEXT, _INT, _SIZE = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_size_t
_FUNCTIONS: Final[tuple[tuple[str, Any, tuple[Any, ...]], ...]] = (
    ("rd_kafka_conf_new", _POINTER, ()),
    ("rd_kafka_conf_destroy", None, (_POINTER,)),
    ("rd_kafka_conf_set", _INT, (_POINTER, _TEXT, _TEXT, _TEXT, _SIZE)),
    ("rd_kafka_new", _POINTER, (_INT, _POINTER, _TEXT, _SIZE)),
    ("rd_kafka_destroy_flags", None, (_POINTER, _INT)),
    ("rd_kafka_poll_set_consumer", _INT, (_POINTER,)),
    ("rd_kafka_queue_get_consumer", _POINTER, (_POINTER,)),
    ("rd_kafka_queue_destroy", None, (_POINTER,)),
    ("rd_kafka_consume_batch_queue", ctypes.c_ssize_t, (_POINTER, _INT, _POINTER, _SIZE)),
    ("rd_kafka_topic_partition_list_new", _POINTER, (_INT,)),
    ("rd_kafka_topic_partition_list_add", _POINTER, (_POINTER, _TEXT, ctypes.c_int32)),
    ("rd_kafka_topic_partition_list_set_offset", _INT, (_POINTER, _TEXT, ctypes.c_int32, ctypes.c_int64)),
    ("rd_kafka_topic_partition_list_destroy", None, (_POINTER,)),
    ("rd_kafka_assign", _INT, (_POINTER, _POINTER)),
    ("rd_kafka_err2name", _TEXT, (_INT,)),
    ("rd_kafka_err2str", _TEXT, (_INT,)),
    ("rd_kafka_position", _INT, (_POINTER, _POINTER)),
    ("rd_kafka_offsets_for_times", _INT, (_POINTER, _POINTER, _INT)),
    ("rd_kafka_conf_set_events", None, (_POINTER, _INT)),
    ("rd_kafka_conf_set_error_cb", None, (_POINTER, _POINTER)),
    ("rd_kafka_conf_set_log_cb", None, (_POINTER, _POINTER)),
    ("rd_kafka_set_log_queue", _INT, (_POINTER, _POINTER)),
    ("rd_kafka_name", _TEXT, (_POINTER,)),
    ("rd_kafka_topic_new", _POINTER, (_POINTER, _TEXT, _POINTER)),
    ("rd_kafka_topic_destroy", None, (_POINTER,)),
    ("rd_kafka_topic_name", _TEXT, (_POINTER,)),
    ("rd_kafka_metadata", _INT, (_POINTER, _INT, _POINTER, _POINTER, _INT)),
    ("rd_kafka_metadata_destroy", None, (_POINTER,)),
    ("rd_kafka_produce_batch", _INT, (_POINTER, ctypes.c_int32, _INT, _POINTER, _INT)),
    ("rd_kafka_queue_get_main", _POINTER, (_POINTER,)),
    ("rd_kafka_queue_poll", _POINTER, (_POINTER, _INT)),
    ("rd_kafka_event_type", _INT, (_POINTER,)),
    ("rd_kafka_event_message_next", _POINTER, (_POINTER,)),
    ("rd_kafka_event_error", _INT, (_POINTER,)),
    ("rd_kafka_event_error_string", _TEXT, (_POINTER,)),
    ("rd_kafka_event_log", _INT, (_POINTER, _POINTER, _POINTER, _POINTER)),
    ("rd_kafka_event_destroy", None, (_POINTER,)),
    ("rd_kafka_flush", _INT, (_POINTER, _INT)),
    ("rd_kafka_purge", _INT, (_POINTER, _INT)),
    ("rd_kafka_destroy", None, (_POINTER,)),
    ("rd_kafka_version", _INT, ()),
)
# Short, so these calls do not release the interpreter's lock.
_SHORT_FUNCTIONS: Final[tuple[tuple[str, Any, tuple[Any, ...]], ...]] = (
    ("rd_kafka_outq_len", _INT, (_POINTER,)),
    ("rd_kafka_message_destroy", None, (_POINTER,)),
    ("rd_kafka_message_timestamp", ctypes.c_int64, (_POINTER, _POINTER)),
    ("rd_kafka_message_headers", _INT, (_POINTER, _POINTER)),
    ("rd_kafka_header_get_all", _INT, (_POINTER, _SIZE, _POINTER, _POINTER, _POINTER)),
)
# Of librdkafka since it has share consumers; None where they are missing.
_NEW_FUNCTIONS: Final[tuple[tuple[str, Any, tuple[Any, ...]], ...]] = (
    ("rd_kafka_messages_count", _SIZE, (_POINTER,)),
    ("rd_kafka_messages_get", _POINTER, (_POINTER, _SIZE)),
    ("rd_kafka_messages_destroy", None, (_POINTER,)),
)


class _Partition(ctypes.Structure):
    """rd_kafka_topic_partition_t."""

    _fields_ = (
        ("topic", _TEXT),
        ("partition", ctypes.c_int32),
        ("offset", ctypes.c_int64),
        ("metadata", _POINTER),
        ("metadata_size", _SIZE),
        ("opaque", _POINTER),
        ("error", _INT),
        ("private", _POINTER),
    )


class _Partitions(ctypes.Structure):
    """rd_kafka_topic_partition_list_t."""

    _fields_ = (("count", _INT), ("size", _INT), ("elements", ctypes.POINTER(_Partition)))


def partition_at(partitions: int) -> _Partition:
    """Return the first partition of a list of librdkafka; it lives as long as the list."""
    first: _Partition = _Partitions.from_address(partitions).elements[0]
    return first


def client_extension() -> Path:
    """Return the path of the extension module of confluent-kafka, without importing it; raises if there is none.

    A handle of it has the functions of the librdkafka that it is linked with, which Linux maps once for both.
    """
    package = importlib.util.find_spec("confluent_kafka")
    folders = None if package is None else package.submodule_search_locations
    module = None if folders is None else importlib.machinery.PathFinder.find_spec("cimpl", [*folders])
    if module is None or not module.has_location or module.origin is None:
        raise FileNotFoundError("confluent_kafka.cimpl")
    return Path(module.origin)


@cache
def library() -> Any:
    """Return the functions of librdkafka, with their types."""
    path = str(client_extension())
    functions, short = ctypes.CDLL(path), ctypes.PyDLL(path)
    for table, handle in ((_FUNCTIONS, functions), (_NEW_FUNCTIONS, functions), (_SHORT_FUNCTIONS, short)):
        for name, result, arguments in table:
            function = getattr(handle, name, None) if table is _NEW_FUNCTIONS else getattr(handle, name)
            if function is not None:
                function.restype, function.argtypes = result, arguments
            setattr(functions, name, function)
    return functions


def library_version() -> str:
    """Return the version of librdkafka, as in "2.16.0"; one before its release has a number more."""
    *parts, release = library().rd_kafka_version().to_bytes(4, "big")
    return ".".join(map(str, parts if release == _RELEASED else [*parts, release]))


_PROBLEM: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


def problem_callback(receive: Callable[[str, str], None]) -> Any:
    """Return what C calls for an error of a client: it passes name and text on. It must live as long as the client."""

    def called(_client: int, error: int, text: bytes, _opaque: int) -> None:
        receive(library().rd_kafka_err2name(error).decode(), text.decode(errors="replace"))

    return _PROBLEM(called)


def _log(client: int, level: int, facility: bytes, text: bytes) -> None:
    name = library().rd_kafka_name(client)
    line = (part.decode(errors="replace") for part in (facility, name, text))
    LOGGER.log(_LEVELS[min(max(level, 0), len(_LEVELS) - 1)], "%s [%s] %s", *line)


def log_event(client: int, event: int) -> None:
    facility, text, level = ctypes.c_char_p(), ctypes.c_char_p(), ctypes.c_int()
    places = (ctypes.addressof(part) for part in (facility, text, level))
    if not library().rd_kafka_event_log(event, *places):
        _log(client, level.value, facility.value or b"", text.value or b"")


_LOG: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p)(_log)


def new_client(kind: int, settings: Mapping[str, str], *, events: int = 0, problem: Any = None) -> int:
    """Make a producer, of the kind 0, or a consumer, 1; raises an `OptionError` if librdkafka refuses a setting.

    ``problem`` is called for errors of the client's connections. With ``events``, the kinds that `rd_kafka_queue_poll`
    returns, that returns its log lines too, for `log_event`, and calls nothing.
    """
    functions = library()
    configuration = functions.rd_kafka_conf_new()
    # Lines wait in a queue, so that no thread of librdkafka waits for Python's lock.
    for name, value in {**settings, "log.queue": "true"}.items():
        refuse_nul(f"kafka.{name}", name, value)
        if (refusal := _set(configuration, name, value)) is not None:
            raise refusal
    functions.rd_kafka_conf_set_events(configuration, events)
    if problem is not None:
        functions.rd_kafka_conf_set_error_cb(configuration, ctypes.cast(problem, ctypes.c_void_p))
    functions.rd_kafka_conf_set_log_cb(configuration, ctypes.cast(_LOG, ctypes.c_void_p))
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    client = functions.rd_kafka_new(kind, configuration, text, _TEXT_BYTES)
    if not client:
        raise setting_refused(text.value.decode(errors="replace"))
    functions.rd_kafka_set_log_queue(client, None)
    return int(client)


def _set(configuration: int, name: str, value: str) -> OptionError | None:
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    if library().rd_kafka_conf_set(configuration, name.encode(), value.encode(), text, _TEXT_BYTES):
        return setting_refused(text.value.decode(errors="replace"))
    return None


def unknown_settings(settings: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return what is wrong with the settings that librdkafka refuses one by one, and what to do; makes no client."""
    try:
        configuration = library().rd_kafka_conf_new()
    except (OSError, AttributeError):
        return []  # librdkafka cannot be called directly
    refusals = [_set(configuration, name, value) for name, value in settings.items()]
    library().rd_kafka_conf_destroy(configuration)
    return [(refusal.what, refusal.action) for refusal in refusals if refusal is not None]


_CHECKED: Final = frozenset({0x021000FF})
"""The versions of librdkafka with which lists were checked, as it writes them."""
_SAMPLE: Final = np.array([8, 1 << 40, 24], np.uint64)
"""No addresses: nobody reads what is there."""


def destroy_messages(pointers: npt.NDArray[np.uint64]) -> None:
    """Return the memory of messages to the client that they are from."""
    if len(pointers) == 0:
        return
    if destroys_lists():
        library().rd_kafka_messages_destroy(_list_of(pointers))
    else:
        deque(map(library().rd_kafka_message_destroy, pointers.tolist()), maxlen=0)


@cache
def destroys_lists() -> bool:
    """Return whether the client can destroy a list of messages, and reads one that is made here as it is meant."""
    functions = library()
    if functions.rd_kafka_version() not in _CHECKED or functions.rd_kafka_messages_destroy is None:
        return False
    sample = _list_of(_SAMPLE)
    try:
        if functions.rd_kafka_messages_count(sample) != len(_SAMPLE):
            return False
        pointers = [functions.rd_kafka_messages_get(sample, index) for index in range(len(_SAMPLE))]
        return bool(pointers == _SAMPLE.tolist())
    finally:
        _libc().free(sample)


def _list_of(pointers: npt.NDArray[np.uint64]) -> int:
    """Make a list of messages; the client frees it with them."""
    content = np.concatenate((np.array([len(pointers)], np.uint64), pointers))
    address = _libc().malloc(content.nbytes)
    if not address:
        raise MemoryError(f"no {content.nbytes} bytes for a list of messages")
    ctypes.memmove(address, content.ctypes.data, content.nbytes)
    return int(address)


@cache
def _libc() -> Any:
    functions = ctypes.PyDLL(None)
    functions.malloc.restype, functions.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    functions.free.restype, functions.free.argtypes = None, (ctypes.c_void_p,)
    return functions
