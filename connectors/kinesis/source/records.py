"""Records as Arrow columns.

An aggregate of the Kinesis Producer Library is many records of a user in one record of a shard. Its format is in
``proto/kpl/messages.proto``: four magic bytes, an AggregatedRecord in protobuf, and its MD5. What only looks like one
(a wrong checksum, a message that cannot be read) is a record like any other.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from connectors.core.arrow import cut_batches
from connectors.kinesis.schema import ARROW_SCHEMA

if TYPE_CHECKING:
    from connectors.kinesis.client.responses import Record

MAGIC: Final = b"\xf3\x89\x9a\xc2"
_DIGEST_BYTES: Final = 16
_VARINT: Final = 0
_FIXED64: Final = 1
_LENGTH: Final = 2
_FIXED32: Final = 5
_SIZES: Final = {_FIXED64: 8, _FIXED32: 4}
_MORE: Final = 0x80
"""The bit of a varint that says that more bytes follow."""
_LAST_SHIFT: Final = 63
_LARGEST_INDEX: Final = (1 << 31) - 1
_PARTITION_KEYS: Final = 1
_HASH_KEYS: Final = 2
_RECORDS: Final = 3
_PARTITION_KEY_INDEX: Final = 1
_HASH_KEY_INDEX: Final = 2
_DATA: Final = 3
_LONGEST_KEY: Final = 256
_LARGEST_HASH_KEY: Final = (1 << 128) - 1
_HASH_KEY: Final = re.compile(r"0|[1-9][0-9]{0,38}")


class Aggregate:
    """The records of an AggregatedRecord in protobuf, of which some are taken apart at a time.

    A record may take seven bytes of an aggregate of ten million, so of each only the place is noted, in 24 bytes.
    Raises an `IndexError` or a `ValueError` when it is malformed.
    """

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._keys: list[str] = []
        self._hash_keys: list[str | None] = []
        self._begins, self._ends, self._key, self._hash_key = (array("i") for _ in range(4))
        for number, begin, end in _fields(message, 0, len(message)):
            if number == _RECORDS:
                self._note(*_bytes(begin, end))
            elif number in {_PARTITION_KEYS, _HASH_KEYS}:
                keys: list[Any] = self._keys if number == _PARTITION_KEYS else self._hash_keys
                keys.append(_legal_key(message[slice(*_bytes(begin, end))].decode(), number))
        if max(self._key, default=-1) >= len(self._keys) or max(self._hash_key, default=-1) >= len(self._hash_keys):
            raise IndexError("there is no such key")
        self._hash_keys.append(None)  # the last one, at which the index -1 of no hash key points
        key_sizes = [len(key.encode()) for key in self._keys]
        hash_key_sizes = [len(key or "") for key in self._hash_keys]
        places = zip(self._begins, self._ends, self._key, self._hash_key, strict=True)
        sizes = (end - begin + key_sizes[key] + hash_key_sizes[hash_key] for begin, end, key, hash_key in places)
        self._sizes = array("q", accumulate(sizes, initial=0))

    def _note(self, at: int, end: int) -> None:
        named, hash_key, begin, to = -1, -1, -1, -1
        for number, first, value in _fields(self._message, at, end):
            if number == _DATA:
                begin, to = _bytes(first, value)
            elif number == _PARTITION_KEY_INDEX:
                named = _number(first, value)
            elif number == _HASH_KEY_INDEX:
                hash_key = _number(first, value)
        if named < 0 or begin < 0:
            raise ValueError("a required field is missing")
        self._begins.append(begin)
        self._ends.append(to)
        self._key.append(named)
        self._hash_key.append(hash_key)

    def __len__(self) -> int:
        return len(self._begins)

    def size(self, first: int, end: int) -> int:
        """Return the bytes of the records from ``first`` to before ``end``: of their data and keys."""
        return self._sizes[end] - self._sizes[first]

    def within(self, first: int, rows: int, size: int, more: int) -> int:
        """Return the end of so many rows and bytes from ``first`` on; a record takes ``more`` bytes beside its own."""
        sizes, before = self._sizes, self._sizes[first]
        fits = range(first + 1, min(first + rows, len(self)) + 1)
        return first + bisect_right(fits, size, key=lambda end: sizes[end] - before + (end - first) * more)

    def rows(self, first: int, end: int) -> tuple[list[bytes], list[str], list[str | None]]:
        """Return data, partition keys and explicit hash keys of the records from ``first`` to before ``end``."""
        message, keys, hash_keys = self._message, self._keys, self._hash_keys
        places = zip(self._begins[first:end], self._ends[first:end], strict=True)
        return (
            [message[at:to] for at, to in places],
            [keys[index] for index in self._key[first:end]],
            [hash_keys[index] for index in self._hash_key[first:end]],
        )


def open_aggregate(data: bytes) -> Aggregate | None:
    """Return the aggregate in the data of a record; None when it is not one."""
    if len(data) <= len(MAGIC) + _DIGEST_BYTES or not data.startswith(MAGIC):
        return None
    message = data[len(MAGIC) : -_DIGEST_BYTES]
    if hashlib.md5(message, usedforsecurity=False).digest() != data[-_DIGEST_BYTES:]:
        return None
    try:
        return Aggregate(message)
    except (IndexError, ValueError):
        return None


def _fields(message: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the fields of a part of a message: the number of each, and where its bytes begin and end.

    A field that is a number begins at -1, and its end is the number.
    """
    while at < end:
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            size = 0
        else:
            size, at = _varint(message, at) if kind == _LENGTH else (_SIZES.get(kind, -1), at)
            if size < 0:
                raise ValueError("a field has a type that is not used any more")
        if at + size > end:
            raise IndexError("a field is cut short")
        yield (tag >> 3, -1, value) if kind == _VARINT else (tag >> 3, at, at + size)
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return a number of one to ten bytes, and where the next field is."""
    byte = message[at]
    if byte < _MORE:
        return byte, at + 1
    value, shift = 0, 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < _MORE:
            return value, at
        shift += 7
        if shift > _LAST_SHIFT:
            raise ValueError("a number is too long")


def _bytes(begin: int, end: int) -> tuple[int, int]:
    if begin < 0:
        raise ValueError("a number stands where bytes belong")
    return begin, end


def _legal_key(key: str, table: int) -> str:
    """Return a key that PutRecord takes as a PartitionKey or ExplicitHashKey; any other raises a `ValueError`.

    Every record of an aggregate can name the same key: with keys of any length a small one would fill a worker's
    memory. A key that the service refuses would also end a query that writes the rows to a stream again.
    """
    if table == _PARTITION_KEYS:
        is_legal = 1 <= len(key) <= _LONGEST_KEY
    else:
        is_legal = _HASH_KEY.fullmatch(key) is not None and int(key) <= _LARGEST_HASH_KEY
    if not is_legal:
        raise ValueError("the service refuses this key")
    return key


def _number(begin: int, value: int) -> int:
    if begin >= 0 or value > _LARGEST_INDEX:
        raise ValueError("bytes, or a number without sense, stand where an index belongs")
    return value


MAX_ROWS: Final = 10_000
"""The most rows of a batch: as many as a response of GetRecords has records, and as Spark puts into one."""
MAX_BYTES: Final = 16 << 20
"""The most bytes of a batch with more than one row."""
_FIXED_BYTES: Final = 48
"""Of a row, what Arrow keeps of each column beside its bytes."""

_Span: TypeAlias = "tuple[Record, Aggregate | None, int, int]"
"""A record, and of its aggregate the first row and the end."""


def aggregates(records: Sequence[Record]) -> Iterator[Aggregate | None] | None:
    """Return the aggregate that each record is, opened on demand; None when there are none."""
    if MAGIC in [record.Data[: len(MAGIC)] for record in records]:  # twice as fast as startswith
        return (open_aggregate(record.Data) for record in records)
    return None


def batches(
    records: Sequence[Record], opened: Iterable[Aggregate | None] | None, stream: str, shard: str
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some records of a shard, in batches of at most `MAX_ROWS` and `MAX_BYTES`, or of one row.

    Of aggregates, only the rows of one batch are in memory at a time. ``opened`` is that of `aggregates`.
    """
    if opened is None:
        rows = _batch(
            (stream, shard),
            [record.Data for record in records],
            [record.PartitionKey for record in records],
            pa.nulls(len(records), pa.string()),
            [0] * len(records),
            records,
        )
        yield from cut_batches([rows], MAX_ROWS, MAX_BYTES)
        return
    for spans in _cut(zip(records, opened, strict=True), len(stream) + len(shard) + _FIXED_BYTES):
        parts = [_rows(*span) for span in spans]
        data, keys, hash_keys, numbers, owners = (
            list(chain.from_iterable(column)) for column in zip(*parts, strict=True)
        )
        yield _batch((stream, shard), data, keys, pa.array(hash_keys, pa.string()), numbers, owners)


def row_bytes(record: Record, aggregate: Aggregate | None) -> int:
    """Return the bytes of data and keys of the rows of a record."""
    if aggregate is not None:
        return aggregate.size(0, len(aggregate))
    return len(record.Data) + len(record.PartitionKey.encode())


def _batch(
    place: tuple[str, str],
    data: Sequence[bytes],
    keys: Sequence[str],
    hash_keys: pa.Array,
    numbers: Sequence[int],
    owners: Sequence[Record],
) -> pa.RecordBatch:
    columns = {
        "partitionKey": keys,
        "data": data,
        "stream": pa.repeat(pa.scalar(place[0], pa.string()), len(data)),
        "shardId": pa.repeat(pa.scalar(place[1], pa.string()), len(data)),
        "sequenceNumber": [record.SequenceNumber for record in owners],
        "approximateArrivalTimestamp": _times(owners),
        "subSequenceNumber": numbers,
        "explicitHashKey": hash_keys,
    }
    return pa.RecordBatch.from_pydict(columns, ARROW_SCHEMA)


def _cut(contents: Iterable[tuple[Record, Aggregate | None]], fixed: int) -> Iterator[list[_Span]]:
    """Yield the records and parts of aggregates of each batch; every row takes ``fixed`` bytes more."""
    spans: list[_Span] = []
    rows = size = 0
    for record, aggregate in contents:
        at, count = 0, 1 if aggregate is None else len(aggregate)
        own = fixed + len(record.SequenceNumber)
        while at < count:
            if aggregate is not None:
                end = aggregate.within(at, MAX_ROWS - rows, MAX_BYTES - size, own)
            else:
                end = int(rows < MAX_ROWS and size + own + row_bytes(record, None) <= MAX_BYTES)
            if end == at and rows:
                yield spans
                spans, rows, size = [], 0, 0
                continue
            end = max(end, at + 1)  # a row that is too large stands alone
            more = (end - at) * own + (row_bytes(record, None) if aggregate is None else aggregate.size(at, end))
            spans.append((record, aggregate, at, end))
            rows, size, at = rows + end - at, size + more, end
    if spans:
        yield spans


def _rows(
    record: Record, aggregate: Aggregate | None, first: int, end: int
) -> tuple[Sequence[bytes], Sequence[str], Sequence[str | None], Sequence[int], Sequence[Record]]:
    if aggregate is None:
        return (record.Data,), (record.PartitionKey,), (None,), (0,), (record,)
    return *aggregate.rows(first, end), range(first, end), (record,) * (end - first)


def _times(records: Sequence[Record]) -> pa.Array:
    """Return when records arrived; the service says it in seconds, exact to the millisecond."""
    seconds = np.array([record.ApproximateArrivalTimestamp for record in records], np.float64)
    millis = np.rint(seconds * 1000)
    whole = pa.array(millis, mask=np.isnan(millis)).cast(pa.int64())
    return whole.cast(pa.timestamp("ms", "UTC")).cast(ARROW_SCHEMA.field("approximateArrivalTimestamp").type)
