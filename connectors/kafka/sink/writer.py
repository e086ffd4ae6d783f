"""Producing the rows of a task: into the client's queue, out of it, and no error left unseen.

A producer whose errors are all raised: the plain path, with one call of the client for each record.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from connectors.core.errors import ConnectorError, CredentialsError
from connectors.core.pool import Pool
from connectors.kafka.client.errors import ENDED, LastWord, connector_error, error_name, named_error, record_place
from connectors.kafka.client.factory import client_exception, open_producer
from connectors.kafka.client.fast_path import native_reason
from connectors.kafka.sink.native_writer import NativeSink
from connectors.kafka.sink.rows import Columns, Record, records

if TYPE_CHECKING:
    import pyarrow as pa

    from connectors.kafka.options.client import ClientSettings
    from connectors.kafka.sink.rows import Record
    from connectors.kafka.sink.task import StreamTask

__all__ = ["RecordSink", "close_sinks", "produce_batches", "with_dedup_headers"]


_POLL_RECORDS: Final = 1000
_SLICE_SECONDS: Final = 1.0
_CALL_SECONDS: Final = 10.0


class RecordSink:
    """A queue of records on their way to Kafka.

    Args:
        settings: of the producer.
        own: settings that win over these.
    """

    def __init__(self, settings: ClientSettings, own: Mapping[str, Any] | None = None) -> None:
        self._error: ConnectorError | None = None
        self._last_word = LastWord()
        # Reports come for what failed only: a callback for each record costs as much as sending it.
        fixed = {
            "delivery.report.only.error": True,
            "on_delivery": self._delivered,
            "error_cb": self._note,
            "log.connection.close": False,
        }
        self.producer = open_producer(settings, {**fixed, **(own or {})})

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None and self._error is None:
            place = record_place(message.topic(), message.partition())
            self._error = self._last_word.explain(connector_error(error, place))

    def _note(self, error: Any) -> None:
        """Keep a refused log-in: the client goes on trying, and would say no more than that records timed out."""
        self._last_word.hear(error_name(error), error.str())
        self._error = self._error or self._last_word.refusal

    def begin(self) -> None:
        """A task begins, after another one: a log-in that was refused between them may be accepted by now.

        Raises:
            ConnectorError: the producer as a whole is of no more use.
        """
        try:
            self._serve(0)
        except CredentialsError:
            self._error = None
        self._last_word.begin()

    def check(self) -> None:
        """Take what the client has to say.

        Raises:
            ConnectorError: a record could not be written, or the log-in was refused.
        """
        self._serve(0)

    def send(self, records: Iterable[Record]) -> None:
        """Put records into the queue; waits while it is full.

        Raises:
            ConnectorError: one of these, or of those before, could not be written.
        """
        refused = client_exception()
        produce = self.producer.produce
        for number, (topic, key, value, partition, time, headers) in enumerate(records):
            looked = False
            while True:
                try:
                    produce(topic, value, key, partition, None, None, time, headers)
                except BufferError:
                    self._serve(0.1)
                except refused as error:
                    if looked or not self._has_come(error.args[0], topic, partition):
                        raise self.refusal(error.args[0], record_place(topic, partition)) from None
                    looked = True
                else:
                    break
            if number % _POLL_RECORDS == 0:
                self._serve(0)

    def _has_come(self, problem: Any, topic: str, partition: int) -> bool:
        """Whether a record was refused for its partition, which was added since the client looked at the topic."""
        if error_name(problem) != "_UNKNOWN_PARTITION":
            return False
        try:
            found = self.producer.list_topics(topic, timeout=_CALL_SECONDS).topics[topic]  # the client learns it too
        except client_exception() as error:
            raise self.refusal(error.args[0], f"{topic}-{partition}") from None
        return found.error is None and partition in found.partitions

    def refusal(self, problem: Any, where: str) -> ConnectorError:
        """Our error for a call that the client refused.

        Once the producer has ended, calls say no more than that it has; why is what the next poll tells.

        Args:
            problem: a ``KafkaError``.
            where: what the call was about.
        """
        if error_name(problem) not in ENDED:
            return connector_error(problem, where)
        try:
            self._serve(0)
        except ConnectorError as cause:
            return cause
        return connector_error(problem, where)

    def _serve(self, seconds: float, *, until_empty: bool = False) -> int:
        """Take reports from the client; how many records are on their way.

        Raises:
            ConnectorError: a record could not be written, or the producer as a whole is of no more use.
        """
        try:
            left: int = self.producer.flush(seconds) if until_empty else self.producer.poll(seconds)
        except client_exception() as error:
            raise connector_error(error.args[0], "producer") from None
        except SystemError as error:
            # A fatal error becomes an exception, and reports that are called beside it stumble over that; now and then
            # the client says nothing at all. The producer is of no more use in both cases.
            if isinstance(error.__cause__, client_exception()):
                raise connector_error(error.__cause__.args[0], "producer") from None
            raise self._error or named_error("_FATAL", str(error), "producer", retriable=False) from error
        if self._error is not None:
            raise self._error
        return left

    def finish(self) -> None:
        """Wait until every record is acknowledged.

        Raises:
            ConnectorError: one was not.
        """
        while self._serve(_SLICE_SECONDS, until_empty=True):
            pass
        self._last_word.forget()

    def purge(self) -> None:
        """Throw away what is still in the queue."""
        self._error = None
        self.producer.purge()
        with contextlib.suppress(ConnectorError):
            self.finish()

    def discard(self) -> None:
        """Throw away what is still in the queue, and close the connections."""
        self.purge()
        # The client closes with the last reference to it. It holds this object, for its reports, so that otherwise
        # its threads would stay until the garbage collector happens to look.
        del self.producer


def _discard(sink: RecordSink | NativeSink) -> None:
    sink.discard()


_sinks: Final[Pool[tuple[ClientSettings, bool], RecordSink | NativeSink]] = Pool(_discard)
"""The producers that this worker keeps, by their settings and whether they are fast ones; their queues are empty."""


def produce_batches(
    batches: Iterable[pa.RecordBatch],
    columns: Columns,
    settings: ClientSettings,
    task: StreamTask | None = None,
    *,
    native: bool = True,
) -> int:
    """Write all rows of some batches, and wait until each is acknowledged.

    Args:
        batches: rows.
        columns: what is read of them.
        settings: of the producer.
        task: adds headers that name it, query, batch and row.
        native: take the fast way where it can do what is asked.

    Returns:
        The number of rows.

    Raises:
        ConnectorError: a row could not be written; others may have been.
    """
    plain = task is not None or columns.headers or columns.timestamp or settings.token_provider is not None
    fast = native and not plain and not native_reason()
    kept = _sinks.acquire((settings, fast))
    sink = kept or (NativeSink(settings) if fast else RecordSink(settings))
    numbers = count()
    rows = 0
    try:
        if kept is not None:
            kept.begin()
        for batch in batches:
            if isinstance(sink, NativeSink):
                sink.send(batch, columns)
            else:
                found: Iterable[Record] = records(batch, columns)
                sink.send(found if task is None else with_dedup_headers(found, task, numbers))
            rows += batch.num_rows
        sink.finish()
    except BaseException:
        sink.discard()
        raise
    _sinks.release((settings, fast), sink)
    return rows


def with_dedup_headers(found: Iterable[Record], task: StreamTask, numbers: Iterator[int]) -> Iterator[Record]:
    """Records with the headers of ``dedupHeaders``."""
    fixed = [
        ("spark.query", task.query.encode()),
        ("spark.batch", str(task.batch).encode()),
        ("spark.partition", str(task.partition).encode()),
    ]
    for topic, key, value, partition, time, headers in found:
        own = [*(headers or ()), *fixed, ("spark.row", str(next(numbers)).encode())]
        yield topic, key, value, partition, time, own


def close_sinks() -> None:
    """Close the producers that this worker keeps."""
    _sinks.close()
