"""librdkafka called directly, batch by batch: records become Arrow columns without a Python object for each.

The library is the one inside of confluent-kafka; only its public functions are called. A fetched batch is an array of
pointers to messages. numpy gathers a field of all of them at once, by looking at this process's memory as one array;
keys and values become an Arrow array of views into the client's own buffers, which Arrow copies together. Then the
messages go back to the client.

One thing is not public: the time of a record, for which there is only a function to be called for each. Its place
behind the public fields has not changed in years; it is compared with that function on the first and the last record
of every batch, and when it ever differs, the function is called for each from then on.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from connectors.core.errors import ConnectorError
from connectors.kafka.client.errors import LastWord, named_error
from connectors.kafka.client.librdkafka import destroy_messages, library, new_client, partition_at, problem_callback
from connectors.kafka.offsets import LATEST, TopicPartition, refuse_nul
from connectors.kafka.source.records import (
    SCHEMA,
    SCHEMA_WITH_HEADERS,
    Event,
    Fetched,
    header_column,
    malformed_headers,
    time_column,
)

__all__ = ["NativeRecords", "NativeSource"]

_CONSUMER: Final = 1
_ADDRESS_BITS: Final = 47
"""What a process of Linux on x86-64 can address."""
_WORD: Final = 8
_WINDOW_BITS: Final = 30
_NO_CONSUMER_CLOSE: Final = 8
_NO_HEADERS: Final = -156
_LOOK_SECONDS: Final = 1.0
_MOST_MS: Final = (1 << 31) - 1
"""A number of C, as which the client takes a time to wait."""
_ALL: Final = np.uint64((1 << 64) - 1)
_INLINE_BYTES: Final = 12
"""A view holds so many bytes by itself; longer ones are looked up in their buffer."""

# Fields of rd_kafka_message_t, and behind it: flags, type of time, time.
_ERROR, _TOPIC, _PARTITION, _PAYLOAD, _LENGTH, _KEY, _KEY_LENGTH, _OFFSET = 0, 8, 16, 24, 32, 40, 48, 56
_TIME_TYPE, _TIME = 88, 96

Pointers = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]


@cache
def _memory(kind: Any) -> Any:
    """This process's memory, as one array; its first element stands at the second word."""
    size = np.dtype(kind).itemsize
    words: Any = (ctypes.c_uint8 * ((1 << _ADDRESS_BITS) - _WORD)).from_address(_WORD)
    return np.frombuffer(words, dtype=kind, count=((1 << _ADDRESS_BITS) - _WORD) // size)


def _addresses(values: Sequence[bytes | None]) -> tuple[Pointers, Numbers]:
    """Where some bytes stand, and how long they are; they must be kept alive."""
    places = [0 if each is None else ctypes.cast(ctypes.c_char_p(each), ctypes.c_void_p).value or 0 for each in values]
    return np.array(places, np.uint64), np.array([len(each or b"") for each in values], np.int64)


def _index(addresses: Pointers) -> Numbers:
    """Where the words that hold some bytes stand in `_memory`."""
    found: Numbers = (addresses >> np.uint64(3)).view(np.int64) - 1
    return found


def _field(pointers: Pointers, offset: int) -> Numbers:
    """The word at an offset behind each pointer; both are multiples of eight."""
    found: Numbers = _memory(np.int64)[_index(pointers) + offset // _WORD]
    return found


def _half(pointers: Pointers, offset: int) -> npt.NDArray[np.int32]:
    """The lower half of such a word."""
    return (_field(pointers, offset) & 0xFFFFFFFF).astype(np.uint32).astype(np.int32)


def _binary(addresses: Pointers, lengths: Numbers) -> pa.Array:
    """Bytes from anywhere in memory as one column; an address of 0 is null."""
    views = np.zeros((len(addresses), 4), np.int32)
    views[:, 0] = lengths
    short = lengths <= _INLINE_BYTES
    if short.any():
        _fill_inline(views, addresses, lengths, short)
    buffers: list[pa.Buffer] = []
    if not short.all():
        buffers = _fill_far(views, addresses, lengths, ~short)
    missing = addresses == 0
    valid = pa.py_buffer(np.packbits(~missing, bitorder="little")) if missing.any() else None
    column = pa.Array.from_buffers(pa.binary_view(), len(addresses), [valid, pa.py_buffer(views), *buffers])
    return column.cast(pa.binary())


def _fill_inline(views: npt.NDArray[np.int32], addresses: Pointers, lengths: Numbers, short: Any) -> None:
    """Copy short values into their views: they must stand there.

    They are read by whole words, only such that hold a byte of the value: these are there, whatever is around them.
    """
    short = short & (lengths > 0)
    rows: Any = slice(None) if short.all() else np.flatnonzero(short)
    places, sizes = addresses[rows], lengths[rows].view(np.uint64)
    if not len(places):
        return
    memory, eight = _memory(np.uint64), np.uint64(8)
    first, last = _index(places), _index(places + sizes - np.uint64(1))
    shift = (places & np.uint64(7)) * eight
    back = np.uint64(64) - shift  # numpy makes 0 of what is shifted by all of its bits
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
    """Point the views of longer values to where these are.

    A view holds an offset of 31 bits, so that values far apart need several windows of memory. Each window ends with
    the last byte of a value: what lies behind may not be mapped.
    """
    chosen, sizes = addresses[far], lengths[far]
    base = int(chosen.min())
    distance = (chosen - np.uint64(base)).astype(np.int64)
    windows, index = np.unique(distance >> _WINDOW_BITS, return_inverse=True)
    offsets = distance & ((1 << _WINDOW_BITS) - 1)
    views[far, 2] = index
    views[far, 3] = offsets
    return [
        pa.foreign_buffer(base + (window << _WINDOW_BITS), int((offsets + sizes)[index == number].max()))
        for number, window in enumerate(windows.tolist())
    ]


class NativeRecords(Fetched):
    """Records that the client still holds; `free` gives them back."""

    def __init__(self, pointers: Pointers, events: Sequence[Event] = ()) -> None:
        super().__init__(_field(pointers, _OFFSET), events)
        self._pointers = pointers
        self._lengths = _field(pointers, _LENGTH)
        self._key_lengths = _field(pointers, _KEY_LENGTH)

    @property
    def size(self) -> int:
        """Bytes of keys and values."""
        return int(self._lengths.sum() + self._key_lengths.sum())

    def partitions(self) -> list[TopicPartition | None]:
        """Where each is from; an error may be from nowhere."""
        topics, numbers = _field(self._pointers, _TOPIC).tolist(), _half(self._pointers, _PARTITION).tolist()
        return [
            TopicPartition(library().rd_kafka_topic_name(topic).decode(), number) if topic else None
            for topic, number in zip(topics, numbers, strict=True)
        ]

    def texts(self) -> list[str]:
        """What stands as the value of each: for an error, the same in words; empty for none."""
        places, lengths = _field(self._pointers, _PAYLOAD).tolist(), self._lengths.tolist()
        return [
            ctypes.string_at(place, length).decode(errors="replace") if place else ""
            for place, length in zip(places, lengths, strict=True)
        ]

    def cut(self, first: int, last: int) -> Self:
        """Some of them; all of the others are given back by whoever has them."""
        if last - first == len(self) and not self.events:
            return self
        return type(self)(self._pointers[first:last])

    def batch(self, parts: Sequence[Self], where: TopicPartition, *, headers: bool) -> pa.RecordBatch:
        """The rows of several of these."""
        pointers = np.concatenate([part._pointers for part in parts])  # noqa: SLF001 - of this class
        lengths = np.concatenate([part._lengths for part in parts])  # noqa: SLF001
        key_lengths = np.concatenate([part._key_lengths for part in parts])  # noqa: SLF001
        offsets = np.concatenate([part.offsets for part in parts])
        times, kinds = _times(pointers)
        columns = [
            _binary(_field(pointers, _KEY).view(np.uint64), key_lengths),
            _binary(_field(pointers, _PAYLOAD).view(np.uint64), lengths),
            *_place(where, len(pointers)),
            pa.array(offsets),
            time_column(times, offsets, where.topic, where.partition),
            pa.array(kinds),
        ]
        if headers:
            columns.append(header_column(_headers(pointers, where)))
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA_WITH_HEADERS if headers else SCHEMA)

    def free(self) -> None:
        """Give them back to the client; none may be looked at any more."""
        destroy_messages(self._pointers)
        self._pointers = self._pointers[:0]


@lru_cache(maxsize=4)
def _place(where: TopicPartition, rows: int) -> tuple[pa.Array, pa.Array]:
    """The columns of topic and partition, which most batches of a range have in common."""
    return pa.repeat(pa.scalar(where.topic, pa.string()), rows), pa.array(np.full(rows, where.partition, np.int32))


def _times(pointers: Pointers) -> tuple[Numbers, npt.NDArray[np.int32]]:
    """Times in milliseconds, -1 for none, and their types as Spark counts them."""
    times = _field(pointers, _TIME)
    kinds = (_field(pointers, _TIME_TYPE) >> 32).astype(np.int32)
    ends = [0, -1] if len(times) else []
    if any((int(times[each]), int(kinds[each])) != _time_of(int(pointers[each])) for each in ends):
        pairs = [_time_of(pointer) for pointer in pointers.tolist()]
        times = np.array([time for time, _ in pairs], np.int64)
        kinds = np.array([kind for _, kind in pairs], np.int32)
    return np.where(kinds == 0, np.int64(-1), times), kinds - np.int32(1)


def _time_of(pointer: int) -> tuple[int, int]:
    kind = ctypes.c_int()
    time = library().rd_kafka_message_timestamp(pointer, ctypes.addressof(kind))
    return time, kind.value


def _headers(pointers: Pointers, where: TopicPartition) -> list[list[tuple[str, bytes | None]] | None]:
    """The headers of each record, None where there are none; what is not UTF-8 in a key is replaced, as Java does it.

    Raises:
        ConnectorError: they cannot be parsed.
    """
    of_message, of_header = library().rd_kafka_message_headers, library().rd_kafka_header_get_all
    headers, key, value, size = ctypes.c_void_p(), ctypes.c_char_p(), ctypes.c_void_p(), ctypes.c_size_t()
    into, parts = ctypes.addressof(headers), [ctypes.addressof(each) for each in (key, value, size)]
    copy = ctypes.string_at
    found: list[list[tuple[str, bytes | None]] | None] = []
    for pointer, offset in zip(pointers.tolist(), _field(pointers, _OFFSET).tolist(), strict=True):
        if error := of_message(pointer, into):
            if error != _NO_HEADERS:
                raise malformed_headers(where.topic, where.partition, offset)
            found.append(None)
            continue
        pairs: list[tuple[str, bytes | None]] = []
        place = headers.value
        while not of_header(place, len(pairs), *parts):
            start = value.value
            pairs.append(
                (str(key.value or b"", "utf-8", "replace"), None if start is None else copy(start, size.value))
            )
        found.append(pairs)
    return found


class NativeSource:
    """A consumer with at most one partition, for a task that reads.

    Args:
        settings: of librdkafka, all of them.

    Raises:
        OptionError: librdkafka refuses a setting.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._library = library()
        self.last_word = LastWord()
        self._problem = problem_callback(self.last_word.hear)  # kept alive as long as the client
        self._client = new_client(_CONSUMER, settings, problem=self._problem)
        self._library.rd_kafka_poll_set_consumer(self._client)
        self._queue = self._library.rd_kafka_queue_get_consumer(self._client)
        self._pointers = np.zeros(0, np.uint64)
        self._known: set[TopicPartition] = set()

    def assign(self, where: TopicPartition, position: int) -> None:
        """Read a partition from a position, and no other."""
        if where not in self._known:
            # Asks for the topic anew; else a partition that came since is looked for minutes later only.
            with contextlib.suppress(ConnectorError):
                self.offset_of(where, LATEST, _LOOK_SECONDS)
                self._known.add(where)
        partitions = self._partitions(where, position)
        self._library.rd_kafka_assign(self._client, partitions)
        self._library.rd_kafka_topic_partition_list_destroy(partitions)

    def unassign(self) -> None:
        """Read nothing."""
        self._library.rd_kafka_assign(self._client, None)

    def _partitions(self, where: TopicPartition, offset: int) -> int:
        """A list of one partition with an offset; whoever asked for it destroys it."""
        refuse_nul("topic", where.topic)
        functions, topic = self._library, where.topic.encode()
        made = functions.rd_kafka_topic_partition_list_new(1)
        functions.rd_kafka_topic_partition_list_add(made, topic, where.partition)
        functions.rd_kafka_topic_partition_list_set_offset(made, topic, where.partition, offset)
        return int(made)

    def fetch(self, most: int, seconds: float) -> NativeRecords:
        """The next records and events. Returns when there are ``most``, or late."""
        if len(self._pointers) < most:
            self._pointers = np.zeros(most, np.uint64)
        found = self._library.rd_kafka_consume_batch_queue(
            self._queue, int(seconds * 1000), self._pointers.ctypes.data, most
        )
        pointers = self._pointers[: max(0, found)].copy()
        errors = _half(pointers, _ERROR)
        if not errors.any():
            return NativeRecords(pointers)
        apart = NativeRecords(pointers[errors != 0])
        events = [
            self._event(int(error), int(offset), where, text)
            for error, offset, where, text in zip(
                errors[errors != 0], apart.offsets, apart.partitions(), apart.texts(), strict=True
            )
        ]
        apart.free()
        return NativeRecords(pointers[errors == 0], events)

    def position(self, where: TopicPartition) -> int:
        """Behind what the client gave or left out."""
        asked = self._partitions(where, -1)
        self._library.rd_kafka_position(self._client, asked)
        offset = int(partition_at(asked).offset)
        self._library.rd_kafka_topic_partition_list_destroy(asked)
        return offset

    def offset_of(self, where: TopicPartition, word: int, seconds: float) -> int:
        """The offset that a word stands for; Kafka takes the words where times stand."""
        asked = self._partitions(where, word)
        try:
            error = self._library.rd_kafka_offsets_for_times(self._client, asked, min(int(seconds * 1000), _MOST_MS))
            found = partition_at(asked)
            error, offset = error or found.error, found.offset
        finally:
            self._library.rd_kafka_topic_partition_list_destroy(asked)
        if error:
            event = self._event(error, -1, where)
            raise named_error(event.name, event.text, str(where), retriable=False)
        return int(offset)

    def _event(self, error: int, offset: int, where: TopicPartition | None, text: str = "") -> Event:
        name = self._library.rd_kafka_err2name(error).decode()
        return Event(name, text or self._library.rd_kafka_err2str(error).decode(), offset, where=where)

    def close(self) -> None:
        """Close the connections; every record must have been given back."""
        self._library.rd_kafka_queue_destroy(self._queue)
        self._library.rd_kafka_destroy_flags(self._client, _NO_CONSUMER_CLOSE)
