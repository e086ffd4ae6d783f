"""PutRecords, several in flight, and PutRecord in order; of a PutRecords only the refused records are sent again."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import msgspec

from connectors.core.errors import ConnectorError
from connectors.core.retry import Outage
from connectors.kinesis.client.client import decoded, malformed
from connectors.kinesis.client.errors import THROTTLED, service_error
from connectors.kinesis.options.client import stream_named

if TYPE_CHECKING:
    from connectors.kinesis.client.client import KinesisClient
    from connectors.kinesis.options.client import KinesisClientOptions

_IN_FLIGHT: Final = 4
"""Requests of a task on their way at a time, of up to 5 MB each: with one, a task would wait for most of its time."""
LANES: Final = 10
"""Keys, or shards, whose records a task puts at a time with ``ordered``."""
_MOST_RECORDS: Final = 500
"""The service's limit for one PutRecords."""
_LEAST_BYTES: Final = 5 << 20
"""Of data and keys that one PutRecords may have; more where the stream takes larger records."""
_SHOWN_CHARACTERS: Final = 100
_MORE_SHARDS: Final = (
    "Give the stream more shards, or write from fewer tasks; a shard takes 1,000 records and 1 MB a second."
)

Sleep = Callable[[float], object]


@dataclass(frozen=True, slots=True)
class WriteSettings:
    """How the tasks of a sink write; ``aggregate_bytes`` is None without aggregation.

    ``record_limits`` are the most bytes of a record by stream, as far as the driver knows them.
    """

    client: KinesisClientOptions
    ordered: bool
    aggregate_bytes: int | None
    record_limits: tuple[tuple[str, int], ...] = ()


class RequestEntry(msgspec.Struct, gc=False):
    """A record of a request, under the names of the service; its data become base64."""

    Data: bytes
    PartitionKey: str
    ExplicitHashKey: str | msgspec.UnsetType = msgspec.UNSET


class _Request(msgspec.Struct):
    Records: Sequence[RequestEntry]
    StreamName: str | msgspec.UnsetType = msgspec.UNSET
    StreamARN: str | msgspec.UnsetType = msgspec.UNSET


class _OrderedRequest(RequestEntry):
    SequenceNumberForOrdering: str | msgspec.UnsetType = msgspec.UNSET
    StreamName: str | msgspec.UnsetType = msgspec.UNSET
    StreamARN: str | msgspec.UnsetType = msgspec.UNSET


class Result(msgspec.Struct, gc=False):
    """What became of a record: the shard that has it, or why it was refused."""

    ErrorCode: str | None = None
    ErrorMessage: str | None = None
    ShardId: str | None = None


class _Response(msgspec.Struct):
    Records: list[Result]


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(_Response)


def key_name(key: str) -> str:
    return f"partitionKey {key[:_SHOWN_CHARACTERS]!r}" + ("..." if len(key) > _SHOWN_CHARACTERS else "")


def put_results(body: bytes, count: int, stream: str) -> list[Result]:
    """Return the result of each of ``count`` records; a body without one for each is malformed."""
    results = decoded(_DECODER, body, "PutRecords", stream).Records
    if len(results) != count or not all(result.ErrorCode or result.ShardId for result in results):
        settled = sum(bool(result.ErrorCode or result.ShardId) for result in results)
        reason = ValueError(f"it has results for {settled} records, but {count} were sent")
        raise malformed(f"The response of PutRecords ({len(body)} bytes)", reason, stream)
    return results


class Attempts:
    """Waits between attempts of a request; gives up after an outage, or when ``sleep`` returns True."""

    def __init__(self, options: KinesisClientOptions, sleep: Sleep) -> None:
        self._outage = Outage(options.outage_rule)
        self._sleep = sleep

    def wait(self, error: ConnectorError, left: Sequence[RequestEntry], *, progress: bool = False) -> None:
        """Wait after an attempt that left rows, or raise its error; with ``progress`` it has put others."""
        what = f"{len(left)} rows were not written" if len(left) > 1 else "A row was not written"
        action = _MORE_SHARDS if error.code == THROTTLED else error.action
        where = f"{error.where}, {key_name(left[0].PartitionKey)}"
        unput = type(error)(error.code, f"{what}: {error.what}", where, action)
        if self._sleep(self._outage.next_delay_seconds(unput, progress=progress)) is True:
            raise unput


@dataclass(frozen=True, slots=True)
class Answered:
    """A request whose records are all put, with the result of each."""

    stream: str
    records: Sequence[RequestEntry]
    results: Sequence[Result]


@dataclass(slots=True)
class _Waiting:
    records: list[RequestEntry] = field(default_factory=list)
    size: int = 0


class Requests:
    """The requests of a task: collects records by stream and sends them from threads, in any order.

    ``rows_of`` returns the rows in a record, for errors.
    """

    def __init__(
        self,
        client: KinesisClient,
        settings: WriteSettings,
        sleep: Sleep | None,
        rows_of: Callable[[RequestEntry], Sequence[RequestEntry]] = lambda record: (record,),
    ) -> None:
        self._client = client
        self._settings = settings
        self._rows_of = rows_of
        self._closed = threading.Event()
        self._sleep = sleep or self._closed.wait
        self._waiting: dict[str, _Waiting] = {}
        self._pool = ThreadPoolExecutor(_IN_FLIGHT, thread_name_prefix="kinesis-put")
        self._sent: set[Future[Answered]] = set()

    def add(self, stream: str, records: Sequence[RequestEntry], sizes: Iterable[int], limit: int) -> list[Answered]:
        """Add records with their sizes, and send what fills a request; return requests that are done meanwhile.

        ``limit`` is the most bytes of a record of the stream.
        """
        most_bytes = max(_LEAST_BYTES, limit)
        waiting = self._waiting.setdefault(stream, _Waiting())
        ends = list(accumulate(sizes, initial=0))
        start, done = 0, []
        while start < len(records):
            room = _MOST_RECORDS - len(waiting.records)
            fitting = bisect_right(ends, most_bytes - waiting.size + ends[start]) - 1
            least = start if waiting.records else start + 1  # a record that is too large goes alone
            end = max(least, min(start + room, fitting))
            waiting.records += records[start:end]
            waiting.size += ends[end] - ends[start]
            start = end
            if start < len(records):
                done += self._send(stream)
                waiting = self._waiting.setdefault(stream, _Waiting())
        return done

    def flush(self) -> list[Answered]:
        """Send what has been added; return requests when all are done."""
        done = [answered for stream in list(self._waiting) for answered in self._send(stream)]
        while self._sent:
            done += self._collect()
        return done

    def attempts(self) -> Attempts:
        return Attempts(self._settings.client, self._sleep)

    def close(self) -> None:
        """End the threads; requests that wait for another attempt are given up."""
        self._closed.set()
        self._pool.shutdown(cancel_futures=True)

    def _send(self, stream: str) -> list[Answered]:
        waiting = self._waiting.pop(stream)
        if not waiting.records:
            return []
        done = []
        while len(self._sent) >= _IN_FLIGHT:
            done += self._collect()
        self._sent.add(self._pool.submit(self._put, stream, waiting.records))
        return done

    def _collect(self) -> list[Answered]:
        done, self._sent = wait(self._sent, return_when=FIRST_COMPLETED)
        return [future.result() for future in done]

    def _put(self, stream: str, records: Sequence[RequestEntry]) -> Answered:
        results = [Result()] * len(records)
        attempts = self.attempts()
        waiting: Sequence[int] = range(len(records))
        while True:
            sent = [records[number] for number in waiting]
            error: ConnectorError | None
            try:
                body = _ENCODER.encode(_Request(sent, **stream_named(stream)))
                answered = put_results(self._client.put_records(stream, body), len(sent), stream)
                for number, result in zip(waiting, answered, strict=True):
                    results[number] = result
                error, failed = _refused(stream, answered, waiting)
            except ConnectorError as raised:
                error, failed = raised, waiting
            if error is None:
                return Answered(stream, records, results)
            left = [row for number in failed for row in self._rows_of(records[number])]
            attempts.wait(error, left, progress=len(failed) < len(waiting))
            waiting = failed


def put_in_order(
    client: KinesisClient,
    stream: str,
    record: RequestEntry,
    before: str | None,
    attempts: Attempts,
    rows: Sequence[RequestEntry] = (),
) -> tuple[str, str]:
    """Put a record after the one numbered ``before``; return its shard and number. Errors name one of its ``rows``."""
    named = msgspec.UNSET if before is None else before
    body = _ENCODER.encode(
        _OrderedRequest(record.Data, record.PartitionKey, record.ExplicitHashKey, named, **stream_named(stream))
    )
    while True:
        try:
            return client.put_record(stream, body)
        except ConnectorError as error:
            attempts.wait(error, rows or (record,))


def _refused(
    stream: str, results: Sequence[Result], numbers: Sequence[int]
) -> tuple[ConnectorError | None, Sequence[int]]:
    """Return the error of a request, a permanent one if there is any, and the numbers of its records to send again."""
    refused = [(number, one) for number, one in zip(numbers, results, strict=True) if one.ErrorCode is not None]
    if not refused:
        return None, ()
    errors = [
        service_error("PutRecords", stream, {"Error": {"Code": one.ErrorCode, "Message": one.ErrorMessage}})
        for _, one in refused
    ]
    worst = next((error for error in errors if not error.transient), errors[0])
    return worst, [number for number, _ in refused]
