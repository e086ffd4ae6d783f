"""Puts rows into streams. A row is done when the service has acknowledged it; none is dropped, whatever its age.

PutRecords takes many records and may refuse some of them: only those are sent again, so records of one key can change
places. With ``ordered`` each row is a PutRecord that names the number of the one before it of the same key, which is
the only order that the service keeps.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import msgspec

from connectors.core.errors import ConnectorError, OptionError
from connectors.core.retry import Backoff, RetryPolicy
from connectors.kinesis.client.errors import THROTTLED, service_error
from connectors.kinesis.client.responses import decoded, malformed
from connectors.kinesis.client.shared import patiently, shared_client
from connectors.kinesis.options.client import stream_named
from connectors.kinesis.sink.rows import BAD_ROW, Columns, Entry, entries, key_name

if TYPE_CHECKING:
    import pyarrow as pa

    from connectors.kinesis.client.client import KinesisClient
    from connectors.kinesis.options.client import KinesisClientOptions

__all__ = ["WriteSettings", "put_batches", "put_results", "record_limit"]

_log = logging.getLogger(__name__)
_LANES: Final = 10
"""Keys that are put at a time with ``ordered``: as many as a client has connections."""
_DEFAULT_RECORD_KIB: Final = 1024
_DEFAULT_REQUEST_BYTES: Final = 5 << 20
_IGNORES_KEYS: Final = "AUTO"
_MORE_SHARDS: Final = (
    "Give the stream more shards, or write from fewer tasks; a shard takes 1,000 records and 1 MB a second."
)

Sleep = Callable[[float], object]


@dataclass(frozen=True, slots=True)
class WriteSettings:
    """How the tasks of a sink write; pickles.

    ``max_records_per_request`` and ``max_bytes_per_request`` are those of the options; None is the default. ``known``
    are the most bytes of a record, by stream (its name or ARN), that the driver asked for.
    """

    client: KinesisClientOptions
    ordered: bool
    max_records_per_request: int
    max_bytes_per_request: int | None
    known: tuple[tuple[str, int], ...] = ()


def record_limit(client: KinesisClient, options: KinesisClientOptions, stream: str, *, ordered: bool) -> int:
    """Return the most bytes of a record; warn of a stream that ignores keys, or with ``ordered`` refuse it."""
    summary = patiently(lambda: client.describe(stream), options)
    if summary.get("RecordDistributionStrategy") == _IGNORES_KEYS:
        if ordered:
            what = "The stream ignores partition keys, so ordered=true cannot be kept"
            action = "Leave ordered out, or change the stream's record distribution strategy."
            raise OptionError("KINESIS_KEYS_IGNORED", what, stream, action)
        _log.warning(
            "[KINESIS_KEYS_IGNORED] The stream %s ignores partitionKey and explicitHashKey: its record distribution "
            "strategy is AUTO. Records of one key go to any shard, and have no order.",
            stream,
        )
    return int(summary.get("MaxRecordSizeInKiB") or _DEFAULT_RECORD_KIB) << 10


def put_batches(
    batches: Iterable[pa.RecordBatch], columns: Columns, settings: WriteSettings, sleep: Sleep = time.sleep
) -> int:
    """Put all rows of a task; return how many, when the service has them all.

    Raises a `ConnectorError` that names the key of a row that could not be put; rows before and after it may be there.
    """
    writer = (_OrderedWriter if settings.ordered else _ChunkWriter)(settings, sleep)
    rows = 0
    for batch in batches:
        writer.put(entries(batch, columns, rows))
        rows += batch.num_rows
    writer.finish()
    return rows


class _Writer:
    def __init__(self, settings: WriteSettings, sleep: Sleep) -> None:
        self.settings = settings
        self.client = shared_client(settings.client)
        self.sleep = sleep
        self._limits = dict(settings.known)

    def checked(self, rows: Iterable[Entry]) -> Iterator[tuple[Entry, int]]:
        for entry in rows:
            limit = self._limits.get(entry.stream)
            if limit is None:
                ordered = self.settings.ordered
                limit = record_limit(self.client, self.settings.client, entry.stream, ordered=ordered)
                self._limits[entry.stream] = limit
            if entry.size > limit:
                what = f"A row has {entry.size} bytes of data and partitionKey; the stream {entry.stream} takes {limit}"
                action = (
                    "Make the row smaller, or raise the stream's largest record (UpdateMaxRecordSize, up to 10 MiB)."
                )
                raise ConnectorError(BAD_ROW, what, key_name(entry.key), action)
            yield entry, limit


class _Attempts:
    """Waits between attempts of a request, and gives up after more than ``numRetries`` in a row without progress."""

    def __init__(self, options: KinesisClientOptions, sleep: Sleep) -> None:
        self._most = options.num_retries
        self._backoff = Backoff(RetryPolicy(cap_seconds=options.max_retry_interval, deadline_seconds=None))
        self._sleep = sleep
        self._failures = 0

    def wait(self, error: ConnectorError, left: Sequence[Entry], *, progress: bool = False) -> None:
        """Wait after an attempt that left rows, or raise its error; with ``progress`` it has put others."""
        if progress:
            self._backoff.reset()
        self._failures = 0 if progress else self._failures + 1
        if not error.transient or self._failures > self._most:
            what = f"{len(left)} rows are not put" if len(left) > 1 else "A row is not put"
            action = _MORE_SHARDS if error.code == THROTTLED else error.action
            raise type(error)(error.code, f"{what}: {error.what}", f"{error.where}, {key_name(left[0].key)}", action)
        self._sleep(self._backoff.next_delay_seconds(error))


class _ChunkWriter(_Writer):
    def __init__(self, settings: WriteSettings, sleep: Sleep) -> None:
        super().__init__(settings, sleep)
        self._chunks: dict[str, list[Entry]] = {}
        self._sizes: dict[str, int] = {}

    def put(self, rows: Iterable[Entry]) -> None:
        for entry, limit in self.checked(rows):
            most_bytes = self.settings.max_bytes_per_request or max(_DEFAULT_REQUEST_BYTES, limit)
            chunk = self._chunks.setdefault(entry.stream, [])
            size = self._sizes.get(entry.stream, 0) + entry.size
            if chunk and (len(chunk) >= self.settings.max_records_per_request or size > most_bytes):
                self._send(entry.stream)
                chunk, size = self._chunks.setdefault(entry.stream, []), entry.size
            chunk.append(entry)
            self._sizes[entry.stream] = size

    def finish(self) -> None:
        for stream in list(self._chunks):
            self._send(stream)

    def _send(self, stream: str) -> None:
        waiting: Sequence[Entry] = self._chunks.pop(stream)
        self._sizes.pop(stream)
        attempts = _Attempts(self.settings.client, self.sleep)
        while True:
            error: ConnectorError | None
            try:
                body = self.client.put_records(stream, _request_body(stream, waiting))
                error, failed = _refused(stream, waiting, put_results(body, len(waiting), stream))
            except ConnectorError as raised:
                error, failed = raised, waiting
            if error is None:
                return
            attempts.wait(error, failed, progress=len(failed) < len(waiting))
            waiting = failed


def _refused(
    stream: str, sent: Sequence[Entry], results: Sequence[_Result]
) -> tuple[ConnectorError | None, Sequence[Entry]]:
    """Return the error of a request, a permanent one if there is any, and the records that must be sent again."""
    refused = [(entry, result) for entry, result in zip(sent, results, strict=True) if result.ErrorCode is not None]
    if not refused:
        return None, ()
    errors = [
        service_error("PutRecords", stream, {"Error": {"Code": result.ErrorCode, "Message": result.ErrorMessage}})
        for _, result in refused
    ]
    worst = next((error for error in errors if not error.transient), errors[0])
    return worst, [entry for entry, _ in refused]


class _OrderedWriter(_Writer):
    """One call for each row; rows of one key one after the other, some keys at a time."""

    def __init__(self, settings: WriteSettings, sleep: Sleep) -> None:
        super().__init__(settings, sleep)
        self._failed = threading.Event()
        self._numbers: list[dict[tuple[str, str], str]] = [{} for _ in range(_LANES)]

    def put(self, rows: Iterable[Entry]) -> None:
        lanes: dict[int, list[Entry]] = defaultdict(list)
        for entry, _ in self.checked(rows):
            lanes[crc32(f"{entry.stream}/{entry.key}".encode()) % _LANES].append(entry)
        with ThreadPoolExecutor(_LANES, thread_name_prefix="kinesis-put") as pool:
            list(pool.map(self._run, lanes.values(), [self._numbers[number] for number in lanes]))

    def finish(self) -> None:
        pass

    def _run(self, lane: Sequence[Entry], numbers: dict[tuple[str, str], str]) -> None:
        for entry in lane:
            if self._failed.is_set():
                return
            try:
                numbers[entry.stream, entry.key] = self._put_one(entry, numbers.get((entry.stream, entry.key)))
            except BaseException:
                self._failed.set()
                raise

    def _put_one(self, entry: Entry, before: str | None) -> str:
        record: dict[str, Any] = {"Data": entry.data, "PartitionKey": entry.key, **stream_named(entry.stream)}
        if entry.explicit_hash_key is not None:
            record["ExplicitHashKey"] = entry.explicit_hash_key
        if before is not None:
            record["SequenceNumberForOrdering"] = before
        attempts = _Attempts(self.settings.client, self.sleep)
        while True:
            try:
                response = self.client.call("put_record", entry.stream, **record)
            except ConnectorError as error:
                attempts.wait(error, [entry])
            else:
                return str(response["SequenceNumber"])


# Requests and responses of PutRecords, by msgspec: botocore would visit each record twice, to check and to write it.


class _Record(msgspec.Struct, gc=False):
    """A record of a request, under the names of the service; its data become base64."""

    Data: bytes
    PartitionKey: str
    ExplicitHashKey: str | msgspec.UnsetType = msgspec.UNSET


class _Request(msgspec.Struct):
    Records: list[_Record]
    StreamName: str | msgspec.UnsetType = msgspec.UNSET
    StreamARN: str | msgspec.UnsetType = msgspec.UNSET


class _Result(msgspec.Struct, gc=False):
    ErrorCode: str | None = None
    ErrorMessage: str | None = None


class _Response(msgspec.Struct):
    Records: list[_Result]


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(_Response)


def _request_body(stream: str, records: Sequence[Entry]) -> bytes:
    # Two arguments where two will do: most records have no hash key, and this is done for each.
    written = [
        _Record(entry.data, entry.key)
        if entry.explicit_hash_key is None
        else _Record(entry.data, entry.key, entry.explicit_hash_key)
        for entry in records
    ]
    return _ENCODER.encode(_Request(written, **stream_named(stream)))


def put_results(body: bytes, count: int, stream: str) -> list[_Result]:
    """Return the result of each of ``count`` records of a request; a body of another length is malformed."""
    results = decoded(_DECODER, body, "PutRecords", stream).Records
    if len(results) != count:
        reason = ValueError(f"it has {len(results)} results, and {count} records were sent")
        raise malformed(f"The response of PutRecords ({len(body)} bytes)", reason, stream)
    return results
