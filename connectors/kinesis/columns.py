"""Records as Arrow columns, in the order and types of `connectors.kinesis.schema.SOURCE_SCHEMA`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from connectors.core.arrow import cut_batches
from connectors.kinesis.aggregation import MAGIC, Aggregate, open_aggregate

if TYPE_CHECKING:
    from connectors.kinesis.records import Record

__all__ = ["ARROW_SCHEMA", "MAX_BYTES", "MAX_ROWS", "aggregates", "batches", "row_bytes"]

MAX_ROWS: Final = 10_000
"""The most rows of a batch: as many as an answer of GetRecords has records, and as Spark puts into one."""
MAX_BYTES: Final = 16 << 20
"""The most bytes of a batch with more than one row."""
_FIXED_BYTES: Final = 48
"""Of a row, what Arrow keeps of each column beside its bytes."""

_Span: TypeAlias = "tuple[Record, Aggregate | None, int, int]"
"""A record, and of its aggregate the first row and the end."""


ARROW_SCHEMA: Final = pa.schema(
    [
        ("partitionKey", pa.string()),
        ("data", pa.binary()),
        ("stream", pa.string()),
        ("shardId", pa.string()),
        ("sequenceNumber", pa.string()),
        ("approximateArrivalTimestamp", pa.timestamp("us", tz="UTC")),
        ("subSequenceNumber", pa.int64()),
        ("explicitHashKey", pa.string()),
    ]
)
"""A test holds it to the declared schema; that is PySpark's, which tasks need not import."""


def aggregates(records: Sequence[Record]) -> Iterator[Aggregate | None] | None:
    """Return the aggregate of the KPL that each record is, opened when it is asked for; None when there are none."""
    if any(each.Data.startswith(MAGIC) for each in records):
        return (open_aggregate(each.Data) for each in records)
    return None


def batches(
    records: Sequence[Record], opened: Iterable[Aggregate | None] | None, stream: str, shard: str
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some records, in batches of at most `MAX_ROWS` and `MAX_BYTES`.

    A row that is larger stands alone. Of aggregates, only the rows of one batch are in memory at a time.

    Args:
        records: of one shard, in their order.
        opened: the aggregate that each of them is, as `aggregates` gives them; None to take none apart.
        stream: the name of the stream.
        shard: the id of the shard.
    """
    if opened is None:
        rows = _batch(
            (stream, shard),
            [each.Data for each in records],
            [each.PartitionKey for each in records],
            pa.nulls(len(records), pa.string()),
            [0] * len(records),
            records,
        )
        yield from cut_batches([rows], MAX_ROWS, MAX_BYTES)
        return
    for spans in _cut(zip(records, opened, strict=True), len(stream) + len(shard) + _FIXED_BYTES):
        parts = [_rows(*each) for each in spans]
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
    return pa.RecordBatch.from_arrays(
        [
            pa.array(keys, pa.string()),
            pa.array(data, pa.binary()),
            pa.repeat(pa.scalar(place[0], pa.string()), len(data)),
            pa.repeat(pa.scalar(place[1], pa.string()), len(data)),
            pa.array([each.SequenceNumber for each in owners], pa.string()),
            _times(owners),
            pa.array(numbers, pa.int64()),
            hash_keys,
        ],
        schema=ARROW_SCHEMA,
    )


def _cut(contents: Iterable[tuple[Record, Aggregate | None]], fixed: int) -> Iterator[list[_Span]]:
    """The records and parts of aggregates that make up each batch; ``fixed`` bytes are the same for each row."""
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
    """Data, keys, hash keys, numbers and records of the rows of a span."""
    if aggregate is None:
        return (record.Data,), (record.PartitionKey,), (None,), (0,), (record,)
    return *aggregate.rows(first, end), range(first, end), (record,) * (end - first)


def _times(records: Sequence[Record]) -> pa.Array:
    """When records arrived; the service says it in seconds, exact to the millisecond."""
    seconds = [each.ApproximateArrivalTimestamp for each in records]
    micros = [None if each is None else round(each * 1000) * 1000 for each in seconds]
    return pa.array(micros, pa.int64()).cast(ARROW_SCHEMA.field("approximateArrivalTimestamp").type)
