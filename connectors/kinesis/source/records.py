"""Records as Arrow columns, of an aggregate the records in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa

from connectors.core.arrow import cut_batches
from connectors.kinesis.aggregates import MAGIC, Aggregate, open_aggregate
from connectors.kinesis.schema import ARROW_SCHEMA

if TYPE_CHECKING:
    from connectors.kinesis.client.client import Record

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
    """Yield the rows of some records in batches of at most `MAX_ROWS` and `MAX_BYTES`, or of one row.

    Only one batch of an aggregate's rows is in memory at a time. ``opened`` comes from `aggregates`.
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
