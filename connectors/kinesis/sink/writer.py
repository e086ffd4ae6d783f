"""Puts rows into streams. A row is done when the service has said so; nothing is dropped, whatever its age.

PutRecords takes many records and may refuse some of them: only those are sent again, so records of one key can change
places. With ``ordered`` each row is a PutRecord that names the number of the one before it of the same key, which is
the only order that the service keeps.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from connectors.core.errors import ConnectorError, OptionError
from connectors.core.retry import Backoff, RetryPolicy
from connectors.kinesis.client.errors import THROTTLED, service_error
from connectors.kinesis.client.shared import patiently, shared_client
from connectors.kinesis.options.client import stream_named
from connectors.kinesis.sink.requests import Result, put_body, put_results
from connectors.kinesis.sink.rows import BAD_ROW, Columns, Entry, entries, key_name

if TYPE_CHECKING:
    import pyarrow as pa

    from connectors.kinesis.client.client import KinesisClient
    from connectors.kinesis.options.client import KinesisClientOptions

__all__ = ["StreamLimits", "WriteSettings", "put_batches", "stream_limits"]

_log = logging.getLogger(__name__)
_LANES: Final = 10
"""Keys that are put at a time with ``ordered``; what a client has connections for."""
_DEFAULT_RECORD_KIB: Final = 1024
_DEFAULT_REQUEST_BYTES: Final = 5 << 20
_IGNORES_KEYS: Final = "AUTO"
_MORE_SHARDS: Final = (
    "Give the stream more shards, or write from fewer tasks; a shard takes 1,000 records and 1 MB a second."
)

Sleep = Callable[[float], object]


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """What a stream says about itself.

    Attributes:
        record_bytes: the most bytes of data and key of one record.
        ignores_keys: whether records go to any shard, whatever their keys.
    """

    record_bytes: int
    ignores_keys: bool


@dataclass(frozen=True, slots=True)
class WriteSettings:
    """How the tasks of a sink write; pickles.

    Attributes:
        client: where, and by which credentials.
        ordered: whether the rows of a key keep their order.
        records: the most records of a request.
        request_bytes: the most bytes of a request; None for the default.
        known: what is known of streams before a task begins, by name or ARN.
    """

    client: KinesisClientOptions
    ordered: bool
    records: int
    request_bytes: int | None
    known: tuple[tuple[str, StreamLimits], ...] = ()


def stream_limits(client: KinesisClient, options: KinesisClientOptions, stream: str, *, ordered: bool) -> StreamLimits:
    """Ask for the limits of a stream, and warn when it ignores keys.

    Raises:
        OptionError: it ignores keys, and rows are to be ordered by them.
        ConnectorError: it is not there, or a call failed.
    """
    summary = patiently(lambda: client.describe(stream), options)
    limits = StreamLimits(
        (summary.get("MaxRecordSizeInKiB") or _DEFAULT_RECORD_KIB) << 10,
        summary.get("RecordDistributionStrategy") == _IGNORES_KEYS,
    )
    if limits.ignores_keys and ordered:
        raise OptionError(
            "KINESIS_KEYS_IGNORED",
            "The stream ignores partition keys, so ordered=true cannot be kept",
            stream,
            "Leave ordered out, or change the stream's record distribution strategy.",
        )
    if limits.ignores_keys:
        _log.warning(
            "[KINESIS_KEYS_IGNORED] The stream %s ignores partitionKey and explicitHashKey: its record distribution "
            "strategy is AUTO. Records of one key go to any shard, and have no order.",
            stream,
        )
    return limits


def put_batches(
    batches: Iterable[pa.RecordBatch], columns: Columns, settings: WriteSettings, sleep: Sleep = time.sleep
) -> int:
    """Put all rows of a task; gives how many, when the service has them all.

    Raises:
        ConnectorError: a row cannot be a record, or could not be put; names its key. Rows before and after it may have
            been put.
    """
    put = (_OrderedPut if settings.ordered else _ChunkedPut)(settings, sleep)
    rows = 0
    for batch in batches:
        put.put(entries(batch, columns, rows))
        rows += batch.num_rows
    put.finish()
    return rows


class _Put:
    """What both ways of putting share."""

    def __init__(self, settings: WriteSettings, sleep: Sleep) -> None:
        self.settings = settings
        self.client = shared_client(settings.client)
        self.sleep = sleep
        self._limits = dict(settings.known)

    def checked(self, rows: Iterable[Entry]) -> Iterator[tuple[Entry, StreamLimits]]:
        """The rows with the limits of their streams.

        Raises:
            ConnectorError: a row is larger than its stream takes.
        """
        for entry in rows:
            limits = self._limits.get(entry.stream)
            if limits is None:
                ordered = self.settings.ordered
                limits = stream_limits(self.client, self.settings.client, entry.stream, ordered=ordered)
                self._limits[entry.stream] = limits
            if entry.size > limits.record_bytes:
                raise ConnectorError(
                    BAD_ROW,
                    f"A row has {entry.size} bytes of data and partitionKey, and the stream {entry.stream} takes "
                    f"{limits.record_bytes}",
                    key_name(entry.key),
                    "Make the row smaller, or raise the stream's largest record (UpdateMaxRecordSize, up to 10 MiB).",
                )
            yield entry, limits

    def rounds(self) -> _Rounds:
        """A count of attempts for one request."""
        return _Rounds(self.settings.client, self.sleep)


class _Rounds:
    """Waits between attempts, and gives up after more than ``numRetries`` in a row that have brought nothing."""

    def __init__(self, options: KinesisClientOptions, sleep: Sleep) -> None:
        self._most = options.num_retries
        self._backoff = Backoff(RetryPolicy(cap_seconds=options.max_retry_interval, deadline_seconds=None))
        self._sleep = sleep
        self._in_vain = 0

    def wait(self, error: ConnectorError, left: Sequence[Entry], *, progress: bool = False) -> None:
        """Wait before the next attempt.

        Args:
            error: what the last one has ended with.
            left: the rows that are not put.
            progress: whether it has put others.

        Raises:
            ConnectorError: the error, when another attempt cannot help, or there were enough; names a row's key.
        """
        if progress:
            self._backoff.reset()
        self._in_vain = 0 if progress else self._in_vain + 1
        if not error.transient or self._in_vain > self._most:
            what = f"{len(left)} rows are not put" if len(left) > 1 else "A row is not put"
            action = _MORE_SHARDS if error.code == THROTTLED else error.action
            raise type(error)(error.code, f"{what}: {error.what}", f"{error.where}, {key_name(left[0].key)}", action)
        self._sleep(self._backoff.next_delay_seconds(error))


class _ChunkedPut(_Put):
    """Requests of many records, for one stream each."""

    def __init__(self, settings: WriteSettings, sleep: Sleep) -> None:
        super().__init__(settings, sleep)
        self._chunks: dict[str, list[Entry]] = {}
        self._sizes: dict[str, int] = {}

    def put(self, rows: Iterable[Entry]) -> None:
        """Take rows, and send what fills a request."""
        for entry, limits in self.checked(rows):
            most_bytes = self.settings.request_bytes or max(_DEFAULT_REQUEST_BYTES, limits.record_bytes)
            chunk = self._chunks.setdefault(entry.stream, [])
            size = self._sizes.get(entry.stream, 0) + entry.size
            if chunk and (len(chunk) >= self.settings.records or size > most_bytes):
                self._send(entry.stream)
                chunk, size = self._chunks.setdefault(entry.stream, []), entry.size
            chunk.append(entry)
            self._sizes[entry.stream] = size

    def finish(self) -> None:
        """Send the rest."""
        for stream in list(self._chunks):
            self._send(stream)

    def _send(self, stream: str) -> None:
        """Send the chunk of a stream until every record of it is put."""
        waiting: Sequence[Entry] = self._chunks.pop(stream)
        self._sizes.pop(stream)
        rounds = self.rounds()
        while True:
            error: ConnectorError | None
            try:
                answer = self.client.put_records(stream, put_body(stream, waiting))
                error, failed = _refused(stream, waiting, put_results(answer, len(waiting), stream))
            except ConnectorError as raised:
                error, failed = raised, waiting
            if error is None:
                return
            rounds.wait(error, failed, progress=len(failed) < len(waiting))
            waiting = failed


def _refused(
    stream: str, sent: Sequence[Entry], results: Sequence[Result]
) -> tuple[ConnectorError | None, Sequence[Entry]]:
    """The records of a request that are to be sent again, and why; None when there are none."""
    refused = [(entry, result) for entry, result in zip(sent, results, strict=True) if result.ErrorCode is not None]
    if not refused:
        return None, ()
    return _worst(stream, [result for _, result in refused]), [entry for entry, _ in refused]


def _worst(stream: str, results: Sequence[Result]) -> ConnectorError:
    """The error of refused records: one that waiting does not help, if there is one."""
    errors = [
        service_error("PutRecords", stream, {"Error": {"Code": each.ErrorCode, "Message": each.ErrorMessage}})
        for each in results
    ]
    return next((error for error in errors if not error.transient), errors[0])


class _OrderedPut(_Put):
    """One call for each row; rows of one key one after the other, some keys at a time."""

    def __init__(self, settings: WriteSettings, sleep: Sleep) -> None:
        super().__init__(settings, sleep)
        self._failed = threading.Event()
        self._numbers: list[dict[tuple[str, str], str]] = [{} for _ in range(_LANES)]

    def put(self, rows: Iterable[Entry]) -> None:
        """Put rows, and wait for them all."""
        lanes: list[list[Entry]] = [[] for _ in range(_LANES)]
        for entry, _ in self.checked(rows):
            lanes[crc32(f"{entry.stream}/{entry.key}".encode()) % _LANES].append(entry)
        with ThreadPoolExecutor(_LANES, thread_name_prefix="kinesis-put") as pool:
            running = [
                pool.submit(self._run, lane, numbers)
                for lane, numbers in zip(lanes, self._numbers, strict=True)
                if lane
            ]
        for each in running:
            each.result()

    def finish(self) -> None:
        """Nothing is left to send."""

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
        """Put a row until it is there; gives its sequence number."""
        order = {} if before is None else {"SequenceNumberForOrdering": before}
        rounds = self.rounds()
        while True:
            try:
                answer = self.client.call(
                    "put_record", entry.stream, **stream_named(entry.stream), **_record(entry), **order
                )
            except ConnectorError as error:
                rounds.wait(error, [entry])
            else:
                return str(answer["SequenceNumber"])


def _record(entry: Entry) -> dict[str, Any]:
    record: dict[str, Any] = {"Data": entry.data, "PartitionKey": entry.key}
    if entry.explicit_hash_key is not None:
        record["ExplicitHashKey"] = entry.explicit_hash_key
    return record
