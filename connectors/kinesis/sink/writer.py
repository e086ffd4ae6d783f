"""Puts rows into streams. A row is done once the service has acknowledged it; none is dropped, whatever its age.

PutRecords resends what was refused, so records of one key can change places. With ``ordered`` each record is a
PutRecord that names the one before it of its key: the only order that the service keeps.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Protocol
from zlib import crc32

from connectors.core.errors import ConnectorError, OptionError
from connectors.core.retry import wait_out
from connectors.kinesis.client.client import shared_client
from connectors.kinesis.sink.aggregating import AggregateWriter, OrderedAggregateWriter
from connectors.kinesis.sink.requests import (
    LANES,
    Attempts,
    RequestEntry,
    Requests,
    Sleep,
    WriteSettings,
    key_name,
    put_in_order,
)
from connectors.kinesis.sink.rows import BAD_ROW, Columns, Rows, rows_by_stream

if TYPE_CHECKING:
    import pyarrow as pa

    from connectors.kinesis.client.client import KinesisClient
    from connectors.kinesis.options.client import KinesisClientOptions

_log = logging.getLogger(__name__)
_DEFAULT_RECORD_KIB: Final = 1024
_IGNORES_KEYS: Final = "AUTO"


def record_limit(client: KinesisClient, options: KinesisClientOptions, stream: str, *, needs_keys: str) -> int:
    """Return the most bytes of a record; warn of a stream that ignores keys.

    Raises an `OptionError` for such a stream if ``needs_keys`` names an option that depends on keys.
    """
    summary = wait_out(lambda: client.describe(stream), options.outage_rule)
    if summary.get("RecordDistributionStrategy") == _IGNORES_KEYS:
        if needs_keys:
            what = f"The stream ignores partition keys, so {needs_keys}=true cannot work"
            raise OptionError("KINESIS_KEYS_IGNORED", what, stream)
        _log.warning(
            "[KINESIS_KEYS_IGNORED] The stream %s ignores partitionKey and explicitHashKey: its record distribution "
            "strategy is AUTO. Records with the same key go to any shard, in no order.",
            stream,
        )
    return int(summary.get("MaxRecordSizeInKiB") or _DEFAULT_RECORD_KIB) << 10


class _Writer(Protocol):
    def __init__(self, client: KinesisClient, settings: WriteSettings, sleep: Sleep | None) -> None: ...

    def put(self, rows: Rows, limit: int) -> None: ...

    def finish(self) -> None: ...

    def close(self) -> None: ...


def needs_keys(settings: WriteSettings) -> str:
    """Return the option of these settings that a stream that ignores keys cannot keep; empty when there is none."""
    return "ordered" if settings.ordered else "aggregation" if settings.aggregate_bytes is not None else ""


def put_batches(
    batches: Iterable[pa.RecordBatch], columns: Columns, settings: WriteSettings, sleep: Sleep | None = None
) -> int:
    """Put all rows of a task; return how many, once the service has them all.

    Raises a `ConnectorError` that names the key of a row that was not put; others may be there.
    """
    client = shared_client(settings.client)
    writer = _writer(settings)(client, settings, sleep)
    limits = dict(settings.record_limits)
    count = 0
    try:
        for batch in batches:
            for rows in rows_by_stream(batch, columns, count):
                limit = limits.get(rows.stream)
                if limit is None:
                    limit = record_limit(client, settings.client, rows.stream, needs_keys=needs_keys(settings))
                    limits[rows.stream] = limit
                _refuse_larger(rows, limit)
                writer.put(rows, limit)
            count += batch.num_rows
        writer.finish()
    finally:
        writer.close()
    return count


def _writer(settings: WriteSettings) -> type[_Writer]:
    if settings.aggregate_bytes is None:
        return _OrderedWriter if settings.ordered else _RecordWriter
    return OrderedAggregateWriter if settings.ordered else AggregateWriter


def _refuse_larger(rows: Rows, limit: int) -> None:
    if max(rows.sizes) <= limit:
        return
    size, record = next((size, one) for size, one in zip(rows.sizes, rows.records, strict=True) if size > limit)
    what = f"A row has {size} bytes of data and partitionKey, but the stream {rows.stream} accepts {limit}"
    raise ConnectorError(BAD_ROW, what, key_name(record.PartitionKey))


class _RecordWriter:
    """A record for each row."""

    def __init__(self, client: KinesisClient, settings: WriteSettings, sleep: Sleep | None) -> None:
        self._requests = Requests(client, settings, sleep)

    def put(self, rows: Rows, limit: int) -> None:
        self._requests.add(rows.stream, rows.records, rows.sizes, limit)

    def finish(self) -> None:
        self._requests.flush()

    def close(self) -> None:
        self._requests.close()


class _OrderedWriter:
    """One call for each row; rows of one key one after the other, some keys at a time."""

    def __init__(self, client: KinesisClient, settings: WriteSettings, sleep: Sleep | None) -> None:
        self._client = client
        self._options = settings.client
        self._failed = threading.Event()
        self._sleep = sleep or self._failed.wait
        self._numbers: list[dict[tuple[str, str], str]] = [{} for _ in range(LANES)]

    def put(self, rows: Rows, limit: int) -> None:
        del limit
        lanes: dict[int, list[RequestEntry]] = defaultdict(list)
        for record in rows.records:
            lanes[crc32(f"{rows.stream}/{record.PartitionKey}".encode()) % LANES].append(record)
        with ThreadPoolExecutor(LANES, thread_name_prefix="kinesis-put") as pool:
            numbers = [self._numbers[number] for number in lanes]
            list(pool.map(self._run, [rows.stream] * len(lanes), lanes.values(), numbers))

    def finish(self) -> None:
        pass

    def close(self) -> None:
        self._failed.set()

    def _run(self, stream: str, lane: Sequence[RequestEntry], numbers: dict[tuple[str, str], str]) -> None:
        for record in lane:
            if self._failed.is_set():
                return
            key = stream, record.PartitionKey
            try:
                attempts = Attempts(self._options, self._sleep)
                _, numbers[key] = put_in_order(self._client, stream, record, numbers.get(key), attempts)
            except BaseException:
                self._failed.set()
                raise
