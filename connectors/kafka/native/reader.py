"""The fast path: librdkafka is called directly, and records become Arrow columns without a Python object for each.

A fetched batch is an array of pointers to messages. numpy gathers a field of all of them at once, from this process's
memory as one array; keys and values become an Arrow array of views into the client's own buffers, which Arrow copies
together. Then the messages are released to the client.

One thing is not public: the place of a record's time. It is used with checked versions of librdkafka, and compared with
the public function on the first and the last record of every batch. Otherwise the function is called for each record.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from connectors.core.errors import ConnectorError
from connectors.kafka.client.errors import ConnectionErrors, named_error
from connectors.kafka.client.factory import OWN_CONSUMER_SETTINGS
from connectors.kafka.native.library import (
    destroy_messages,
    library,
    library_version,
    new_client,
    partition_at,
    problem_callback,
)
from connectors.kafka.offsets import LATEST, TopicPartition, refuse_nul
from connectors.kafka.options.client import ClientSettings
from connectors.kafka.schema import Event, Fetched, RecordHeaders, malformed_headers, record_batch

_log = logging.getLogger(__name__)

TIME_CHECKED: Final = frozenset(
    {
        "2.10.0",
        "2.10.1",
        "2.11.0",
        "2.11.1",
        "2.12.0",
        "2.12.1",
        "2.13.0",
        "2.13.2",
        "2.14.0",
        "2.14.2",
        "2.15.0",
        "2.15.1",
        "2.16.0",
    }
)
"""Checked by `tests.golden.librdkafka_record`."""

_CONSUMER: Final = 1
_ADDRESS_BITS: Final = 47  # of a Linux process on x86-64
_WORD: Final = 8
_WINDOW_BITS: Final = 30
_NO_CONSUMER_CLOSE: Final = 8
_NO_HEADERS: Final = -156
_LOOKUP_SECONDS: Final = 1.0
_MOST_MS: Final = (1 << 31) - 1  # the client takes a time to wait as a C int
_ALL: Final = np.uint64((1 << 64) - 1)
_INLINE_BYTES: Final = 12  # a view holds that many bytes itself, and of longer values where they are

# Fields of rd_kafka_message_t, and after it: flags, type of time, time.
_ERROR, _TOPIC, _PARTITION, _PAYLOAD, _LENGTH, _KEY, _KEY_LENGTH, _OFFSET = 0, 8, 16, 24, 32, 40, 48, 56
_TIME_TYPE, _TIME = 88, 96

Pointers = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]


@cache
def _memory(kind: Any) -> Any:
    """Return this process's memory as one array, which begins at its second word."""
    size = np.dtype(kind).itemsize
    words: Any = (ctypes.c_uint8 * ((1 << _ADDRESS_BITS) - _WORD)).from_address(_WORD)
    return np.frombuffer(words, dtype=kind, count=((1 << _ADDRESS_BITS) - _WORD) // size)


def _index(addresses: Pointers) -> Numbers:
    """Return the indexes in `_memory` of the words that hold some bytes."""
    indexes: Numbers = (addresses >> np.uint64(3)).view(np.int64) - 1
    return indexes


def _field(pointers: Pointers, offset: int) -> Numbers:
    """Return the word at an offset after each pointer; both are multiples of eight."""
    values: Numbers = _memory(np.int64)[_index(pointers) + offset // _WORD]
    return values


def _half(pointers: Pointers, offset: int) -> npt.NDArray[np.int32]:
    return (_field(pointers, offset) & 0xFFFFFFFF).astype(np.uint32).astype(np.int32)


def _binary(addresses: Pointers, lengths: Numbers) -> pa.Array:
    """Return bytes from anywhere in memory as one column; an address of 0 is null."""
    views = np.zeros((len(addresses), 4), np.int32)
    views[:, 0] = lengths
    short = lengths <= _INLINE_BYTES
    if short.any():
        _fill_inline(views, addresses, lengths, short)
    buffers = [] if short.all() else _fill_far(views, addresses, lengths, ~short)
    missing = addresses == 0
    valid = pa.py_buffer(np.packbits(~missing, bitorder="little")) if missing.any() else None
    column = pa.Array.from_buffers(pa.binary_view(), len(addresses), [valid, pa.py_buffer(views), *buffers])
    return column.cast(pa.binary())


def _fill_inline(views: npt.NDArray[np.int32], addresses: Pointers, lengths: Numbers, short: Any) -> None:
    """Copy short values into their views, where Arrow expects them.

    Only words that hold a byte of the value are read: these are mapped, whatever is around them.
    """
    short = short & (lengths > 0)
    rows: Any = slice(None) if short.all() else np.flatnonzero(short)
    places, sizes = addresses[rows], lengths[rows].view(np.uint64)
    if not len(places):
        return
    memory, eight = _memory(np.uint64), np.uint64(8)
    first, last = _index(places), _index(places + sizes - np.uint64(1))
    shift = (places & np.uint64(7)) * eight
    back = np.uint64(64) - shift  # a shift by all 64 bits is 0 in numpy
    second = memory[np.minimum(first + 1, last)]
    low = (memory[first] >> shift) | (second << back)
    views[rows, 1:] = 0
    if sizes.max() > _WORD:
        third = memory[np.minimum(first + 2, last)]
        high = ((second >> shift) | (third << back)) & ~(_ALL << (np.maximum(sizes, eight) - eight) * eight)
        views[rows, 3] = high.astype(np.uint32).view(np.int32)
    low &= ~(_ALL << sizes * eight)
    views[rows, 1] = low.astype(np.uint32).view(np.int32)
    views[rows, 2] = (low >> np.uint64(32)).astype(np.uint32).view(np.int32)


def _fill_far(views: npt.NDArray[np.int32], addresses: Pointers, lengths: Numbers, far: Any) -> list[pa.Buffer]:
    """Point the views of longer values to their bytes.

    A view holds an offset of 31 bits, so values far apart need several windows of memory. A window ends with the last
    byte of a value: the memory after it may not be mapped.
    """
    chosen, sizes = addresses[far], lengths[far]
    base = int(chosen.min())
    distance = (chosen - np.uint64(base)).astype(np.int64)
    windows = distance >> _WINDOW_BITS
    # One window nearly always holds all values, and sorting takes as long as the rest of this function.
    numbers, index = np.unique(windows, return_inverse=True) if windows.any() else (windows[:1], windows)
    offsets = distance & ((1 << _WINDOW_BITS) - 1)
    views[far, 2] = index
    views[far, 3] = offsets
    return [
        pa.foreign_buffer(base + (window << _WINDOW_BITS), int((offsets + sizes)[index == number].max()))
        for number, window in enumerate(numbers.tolist())
    ]


class NativeRecords(Fetched):
    """Records that the client still holds; `free` releases them."""

    def __init__(self, pointers: Pointers, events: Sequence[Event] = ()) -> None:
        super().__init__(_field(pointers, _OFFSET), events)
        self.pointers = pointers
        self.lengths = _field(pointers, _LENGTH)
        self.key_lengths = _field(pointers, _KEY_LENGTH)

    @property
    def size(self) -> int:
        return int(self.lengths.sum() + self.key_lengths.sum())

    def cut(self, first: int, last: int) -> Self:
        """Return some of the records; the caller releases the others."""
        if last - first == len(self) and not self.events:
            return self
        return type(self)(self.pointers[first:last])

    @classmethod
    def batch(cls, parts: Sequence[Self], partition: TopicPartition, *, headers: bool) -> pa.RecordBatch:
        pointers = np.concatenate([part.pointers for part in parts])
        lengths = np.concatenate([part.lengths for part in parts])
        key_lengths = np.concatenate([part.key_lengths for part in parts])
        return record_batch(
            _binary(_field(pointers, _KEY).view(np.uint64), key_lengths),
            _binary(_field(pointers, _PAYLOAD).view(np.uint64), lengths),
            partition,
            np.concatenate([part.offsets for part in parts]),
            _times(pointers),
            _headers(pointers, partition) if headers else None,
        )

    def free(self) -> None:
        destroy_messages(self.pointers)
        self.pointers = self.pointers[:0]


@cache
def _time_is_checked() -> bool:
    """Return whether the place of the time was checked with this librdkafka; logs once if it was not."""
    version = library_version()
    if version in TIME_CHECKED:
        return True
    _log.warning(
        "[KAFKA_CLIENT_NOT_CHECKED] librdkafka %s was not checked for where it stores a record's time, so a function "
        "is called for each record. Reads take more processor time, with the same result.",
        version,
    )
    return False


def _times(pointers: Pointers) -> tuple[Numbers, npt.NDArray[np.int32]]:
    """Return times in milliseconds, and their types as the client counts them."""
    if len(pointers) and _time_is_checked():
        ends = pointers[[0, -1]]
        if np.array_equal(_private_times(ends), _public_times(ends)):
            return _private_times(pointers)
    return _public_times(pointers)


def _private_times(pointers: Pointers) -> tuple[Numbers, npt.NDArray[np.int32]]:
    return _field(pointers, _TIME), (_field(pointers, _TIME_TYPE) >> 32).astype(np.int32)


def _public_times(pointers: Pointers) -> tuple[Numbers, npt.NDArray[np.int32]]:
    kinds = np.zeros(len(pointers), np.int32)
    first, size = kinds.ctypes.data, kinds.itemsize
    places = range(first, first + size * len(kinds), size)
    times = map(library().rd_kafka_message_timestamp, pointers.tolist(), places)
    return np.fromiter(times, np.int64, len(pointers)), kinds


def _headers(pointers: Pointers, partition: TopicPartition) -> list[RecordHeaders]:
    """Return the headers of each record; what is not UTF-8 in a key is replaced, as Java does it."""
    read_headers, read_header = library().rd_kafka_message_headers, library().rd_kafka_header_get_all
    handle, key, value, size = ctypes.c_void_p(), ctypes.c_char_p(), ctypes.c_void_p(), ctypes.c_size_t()
    into, parts = ctypes.addressof(handle), [ctypes.addressof(part) for part in (key, value, size)]
    copy = ctypes.string_at
    headers: list[RecordHeaders] = []
    for pointer, offset in zip(pointers.tolist(), _field(pointers, _OFFSET).tolist(), strict=True):
        if error := read_headers(pointer, into):
            if error != _NO_HEADERS:
                raise malformed_headers(partition, offset)
            headers.append(None)
            continue
        pairs: list[tuple[str, bytes | None]] = []
        place = handle.value
        while not read_header(place, len(pairs), *parts):
            start = value.value
            pairs.append(
                (str(key.value or b"", "utf-8", "replace"), None if start is None else copy(start, size.value))
            )
        headers.append(pairs)
    return headers


class NativeSource:
    """`PlainSource` on the fast path; raises an `OptionError` for a setting that librdkafka refuses."""

    def __init__(self, settings: ClientSettings, own: Mapping[str, str]) -> None:
        self._library = library()
        self.connection_errors = ConnectionErrors()
        self._problem = problem_callback(self.connection_errors.receive)  # kept alive as long as the client
        used = {**settings.revealed(), **OWN_CONSUMER_SETTINGS, **own}
        self._client = new_client(_CONSUMER, used, problem=self._problem)
        self._library.rd_kafka_poll_set_consumer(self._client)
        self._queue = self._library.rd_kafka_queue_get_consumer(self._client)
        self._pointers = np.zeros(0, np.uint64)
        self._looked_up: set[TopicPartition] = set()

    def assign(self, partition: TopicPartition, position: int) -> None:
        if partition not in self._looked_up:
            # Asks for the topic's metadata; else the client notices a new partition only minutes later.
            with contextlib.suppress(ConnectorError):
                self.offset_of(partition, LATEST, _LOOKUP_SECONDS)
        with self._list_of(partition, position) as partitions:
            self._library.rd_kafka_assign(self._client, partitions)

    def unassign(self) -> None:
        self._library.rd_kafka_assign(self._client, None)

    @contextlib.contextmanager
    def _list_of(self, partition: TopicPartition, offset: int) -> Iterator[int]:
        refuse_nul("topic", partition.topic)
        topic, number = partition.topic.encode(), partition.partition
        partitions = self._library.rd_kafka_topic_partition_list_new(1)
        try:
            self._library.rd_kafka_topic_partition_list_add(partitions, topic, number)
            self._library.rd_kafka_topic_partition_list_set_offset(partitions, topic, number, offset)
            yield partitions
        finally:
            self._library.rd_kafka_topic_partition_list_destroy(partitions)

    def fetch(self, most: int, seconds: float) -> NativeRecords:
        if len(self._pointers) < most:
            self._pointers = np.zeros(most, np.uint64)
        count = self._library.rd_kafka_consume_batch_queue(
            self._queue, int(seconds * 1000), self._pointers.ctypes.data, most
        )
        pointers = self._pointers[: max(0, count)].copy()
        errors = _half(pointers, _ERROR)
        if not errors.any():
            return NativeRecords(pointers)
        failed = pointers[errors != 0]
        events = self._events(failed)
        destroy_messages(failed)
        return NativeRecords(pointers[errors == 0], events)

    def _events(self, failed: Pointers) -> list[Event]:
        words = [_field(failed, field).tolist() for field in (_OFFSET, _TOPIC, _PAYLOAD, _LENGTH)]
        halves = [_half(failed, field).tolist() for field in (_ERROR, _PARTITION)]
        events = []
        for offset, topic, text, length, error, number in zip(*words, *halves, strict=True):
            name = self._library.rd_kafka_topic_name(topic).decode() if topic else ""
            partition = TopicPartition(name, number) if topic else None
            described = ctypes.string_at(text, length).decode(errors="replace") if text else ""
            events.append(self._event(error, offset, partition, described))
        return events

    def _event(self, error: int, offset: int, partition: TopicPartition | None, text: str = "") -> Event:
        name = self._library.rd_kafka_err2name(error).decode()
        return Event(name, text or self._library.rd_kafka_err2str(error).decode(), offset, partition=partition)

    def position(self, partition: TopicPartition) -> int:
        with self._list_of(partition, -1) as partitions:
            self._library.rd_kafka_position(self._client, partitions)
            return int(partition_at(partitions).offset)

    def offset_of(self, partition: TopicPartition, sentinel: int, seconds: float) -> int:
        milliseconds = min(int(seconds * 1000), _MOST_MS)
        with self._list_of(partition, sentinel) as partitions:
            error = self._library.rd_kafka_offsets_for_times(self._client, partitions, milliseconds)
            response = partition_at(partitions)
            error, offset = error or response.error, response.offset
        if error:
            event = self._event(error, -1, partition)
            raise named_error(event.name, event.text, str(partition), retriable=False)
        self._looked_up.add(partition)
        return int(offset)

    def close(self) -> None:
        self._library.rd_kafka_queue_destroy(self._queue)
        self._library.rd_kafka_destroy_flags(self._client, _NO_CONSUMER_CLOSE)
