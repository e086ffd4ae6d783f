"""Writes the rows of a task, and raises every error of a record.

The plain path, with transactions, is here: one call of the client for each record. The fast path is
`connectors.kafka.native.writer`.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Final, Self

import pyarrow as pa

from connectors.core import datasource
from connectors.core.datasource import StreamTask
from connectors.core.errors import ConnectorError, CredentialsError, ServiceUnavailableError, one_line
from connectors.core.processes.pool import Pool
from connectors.core.retry import Outage
from connectors.kafka.client.errors import (
    ENDED,
    LATE,
    ConnectionErrors,
    RefusedRows,
    connector_error,
    named_error,
    record_place,
    size_of,
    unconfirmed,
)
from connectors.kafka.client.factory import client_exception, open_producer, why_late
from connectors.kafka.client.group_offsets import CALL_SECONDS
from connectors.kafka.native import MOST_ROUNDS, NativeSink, UnsentLog, log_written_again, native_reason
from connectors.kafka.options.client import ClientSettings
from connectors.kafka.schema import MOST_TOPIC_BYTES, Columns
from connectors.kafka.sink.rows import ProducerRecord, records, time_range

_log = logging.getLogger(__name__)

_POLL_RECORDS: Final = 1000
_SLICE_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 0.1
_FENCED: Final = frozenset({"KAFKA_FENCED", "KAFKA_PRODUCER_FAILED"})


def stream_task() -> StreamTask:
    """Return the task that runs now; raises if it belongs to no stream, or Spark does not name it."""
    return datasource.stream_task("KAFKA_NO_BATCH_ID", "deliveryGuarantee, dedupHeaders")


class RecordSink:
    """A producer with a queue of records; ``own`` settings win over the user's."""

    def __init__(self, settings: ClientSettings, own: Mapping[str, Any] | None = None) -> None:
        self._error: ConnectorError | None = None
        self._refused: RefusedRows | None = None
        """The rows that share the first error of a record, until it is raised."""
        self._times = (0, 0)
        """The first and the last timestamp of the task's records so far, in milliseconds; 0 where they have none."""
        self.late: str | None = None
        """The topic of the first record that failed, if it was not delivered in time."""
        self._connection_errors = ConnectionErrors()
        self._unsent, self._produced = UnsentLog(), 0
        self._is_transactional = "transactional.id" in (own or {})
        self._is_idempotent = self._is_transactional or settings.is_idempotent
        self._unconfirmed: list[ProducerRecord] = []
        """Records that were reported as written without an offset, and later ones of their keys, in their order: see
        `connectors.kafka.native.writer`."""
        self._unconfirmed_keys: set[tuple[str, int, bytes]] = set()
        # A callback for each record takes a quarter of the time of sending it: others have one for errors only.
        fixed = {
            "delivery.report.only.error": not self._is_idempotent,
            "on_delivery": self._delivered,
            "error_cb": self._note,
            "log.connection.close": False,
        }
        self.producer = open_producer(settings, {**fixed, **(own or {})})

    def _delivered(self, error: Any, message: Any, headers: Any = None) -> None:
        is_confirmed = error is None and message.offset() is not None
        if is_confirmed and not self._unconfirmed:
            return
        topic, partition, key = message.topic(), message.partition(), message.key()
        if is_confirmed and (topic, partition, key) not in self._unconfirmed_keys:
            return
        if error is not None:
            self._note_refused(error, message)
        elif self._is_transactional:
            self._error = self._first_error() or unconfirmed(record_place(topic, partition))
        else:
            self._unconfirmed.append((topic, key, message.value(), partition, message.timestamp()[1], headers))
            if key is not None:
                self._unconfirmed_keys.add((topic, partition, key))

    def _note_refused(self, error: Any, message: Any) -> None:
        """Keep the first error of a record, with all records that are reported with it."""
        name, topic, partition = error.name(), message.topic(), message.partition()
        refused = self._refused
        if self._error is None and (refused is None or refused.replaced_by(name)):
            self.late = topic if name == LATE else None
            refused = self._refused = RefusedRows(name, str(error.str()), topic, partition)
        if refused is not None and refused.accepts(name, topic, partition):
            refused.add(size_of(message.key()), size_of(message.value()))

    def _first_error(self) -> ConnectorError | None:
        if self._error is None and self._refused is not None:
            self._error = self._connection_errors.explain(self._refused.error(self._times))
        return self._error

    def _note(self, error: Any) -> None:
        """Keep a failed authentication: the client goes on trying, and would only report that records timed out."""
        self._connection_errors.receive_error(error)
        self._error = self._error or self._connection_errors.refusal

    def begin(self) -> None:
        """Start another task: an authentication that failed since the last one may succeed by now."""
        try:
            self.check()
        except CredentialsError:
            self._error = self._refused = None
        self._times = (0, 0)
        self._connection_errors.begin()

    def check(self) -> None:
        """Process the client's reports; raises the first error."""
        self._serve(0)

    def send(self, records: Iterable[ProducerRecord], times: tuple[int, int] = (0, 0)) -> None:
        """Put records into the queue; wait while it is full. Raises the first error of any record so far.

        `times` are their first and last timestamp: reports of errors have none, and a callback for each record would
        double the time of sending it.
        """
        self._times = min(filter(None, (self._times[0], times[0])), default=0), max(self._times[1], times[1])
        if self._unconfirmed:
            self.finish()  # soon, because what has to be written again, with later records of its keys, is held
        refused = client_exception()
        produce = self.producer.produce
        repeats = self._is_idempotent and not self._is_transactional
        before, number = self._produced, 0
        for number, record in enumerate(records, 1):
            topic, key, value, partition, timestamp, headers = record
            report = partial(self._delivered, headers=headers) if repeats and headers else None  # it does not say them
            looked_up = False
            while True:
                try:
                    produce(topic, value, key, partition, report, None, timestamp, headers)
                except BufferError:
                    self._produced = before + number - 1
                    self._serve(0.1)
                except refused as error:
                    if looked_up or not self._was_added(error.args[0], topic, partition):
                        raise self._refused_call(error.args[0], record) from None
                    looked_up = True
                else:
                    break
            if number % _POLL_RECORDS == 0:
                self._produced = before + number
                self._serve(0)
        self._produced = before + number

    def _refused_call(self, problem: Any, record: ProducerRecord) -> ConnectorError:
        topic, key, value, partition, timestamp, _ = record
        name = problem.name()
        if name in ENDED:
            return self.refusal(problem, record_place(topic, partition))
        if name == "_INVALID_ARG" and len(topic.encode()) > MOST_TOPIC_BYTES:
            name = "TOPIC_EXCEPTION"  # as a broker has it of a name that the client takes
        refused = RefusedRows(name, str(problem.str()), topic, partition)
        refused.add(size_of(key), size_of(value))
        return refused.error((timestamp, timestamp))

    def _was_added(self, problem: Any, topic: str, partition: int) -> bool:
        """Return whether a record was refused for a partition that was added since the client asked for the topic."""
        if problem.name() != "_UNKNOWN_PARTITION":
            return False
        try:
            response = self.producer.list_topics(topic, timeout=CALL_SECONDS).topics[topic]  # the client learns it too
        except client_exception() as error:
            raise self.refusal(error.args[0], f"{topic}-{partition}") from None
        return response.error is None and partition in response.partitions

    def refusal(self, problem: Any, where: str) -> ConnectorError:
        """Return our error for a ``KafkaError`` of a call: once the producer has ended, the next poll reports why."""
        if problem.name() in ENDED:
            try:
                self.check()
            except ConnectorError as cause:
                return cause
        return connector_error(problem, where)

    def _serve(self, seconds: float, *, until_empty: bool = False) -> int:
        """Process the client's reports; return how many records are in the queue or in flight."""
        try:
            if until_empty:
                self.producer.flush(seconds)
            else:
                self.producer.poll(seconds)
        except client_exception() as error:
            raise connector_error(error.args[0], "producer") from None
        except SystemError as error:
            # A fatal error becomes an exception, and reports that are called beside it stumble over that; now and then
            # the client names no cause. The producer has failed in both cases.
            if isinstance(error.__cause__, client_exception()):
                raise connector_error(error.__cause__.args[0], "producer") from None
            raise self._first_error() or named_error("_FATAL", str(error), "producer", retriable=False) from error
        if (first := self._first_error()) is not None:
            raise first
        left = len(self.producer)
        self._unsent.note(self._produced, left)
        return left

    def finish(self) -> None:
        """Wait until every record is acknowledged; raises if one was not."""
        self._drain()
        for _ in range(MOST_ROUNDS):
            if not self._unconfirmed:
                break
            records, self._unconfirmed = self._unconfirmed, []
            self._unconfirmed_keys.clear()
            for (topic, partition), number in Counter((record[0], record[3]) for record in records).items():
                log_written_again(topic, partition, number)
            self.send(records)
            self._drain()
        if self._unconfirmed:
            topic, partition = self._unconfirmed[0][0], self._unconfirmed[0][3]
            raise unconfirmed(record_place(topic, partition))
        self._connection_errors.forget()

    def _drain(self) -> None:
        while self._serve(_SLICE_SECONDS, until_empty=True):
            pass

    def purge(self) -> None:
        self._error = self._refused = None
        self.producer.purge()
        with contextlib.suppress(ConnectorError):
            self._drain()
        self._unconfirmed.clear()
        self._unconfirmed_keys.clear()

    def discard(self) -> None:
        """Drop what is still in the queue, and close the connections."""
        self.purge()
        # The client closes with the last reference to it. It holds this object, for its reports, so that otherwise
        # its threads would stay until the garbage collector happens to run.
        del self.producer


class TransactionalSink:
    """A producer of records that become visible all together or not at all: ``sink`` takes them. A context manager."""

    def __init__(self, settings: ClientSettings, transactional_id: str) -> None:
        self._id, self._settings = transactional_id, settings
        self._limit = float(settings.get("transaction.timeout.ms") or math.inf) / 1000
        self._began_at: float | None = None
        self.sink = RecordSink(settings, {"transactional.id": transactional_id})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        timeout, late = self._timeout(error), self.sink.late
        try:
            if kind is not None:
                self._abort()
        finally:
            self.sink.discard()
        if timeout is not None:
            raise timeout from None
        if late is not None and isinstance(error, ServiceUnavailableError):
            raise why_late(self._settings, late, error) from None

    def _timeout(self, error: BaseException | None) -> ConnectorError | None:
        """Return the error if the broker fenced the producer because its transaction was open too long."""
        fenced = isinstance(error, ConnectorError) and error.code in _FENCED
        open_for = 0.0 if self._began_at is None else time.monotonic() - self._began_at
        if not fenced or open_for < self._limit:
            return None
        # Brokers check only every 10 s, so a little more than the limit may pass.
        what = f"A transaction was open for {open_for:.1f} s, and the broker ends one after {self._limit:g} s"
        return ConnectorError("KAFKA_TRANSACTION_TIMEOUT", what, self._id)

    def fence(self) -> None:
        """End the open transaction of earlier holders of the id, and make all their further calls fail."""
        self.call(lambda: self.sink.producer.init_transactions(CALL_SECONDS))

    def begin(self) -> None:
        """Begin the transaction, with the first row: its time limit runs from here."""
        if self._began_at is None:
            self.call(self.sink.producer.begin_transaction)
            self._began_at = time.monotonic()

    def add_offset(self, offset: Any, group: Any) -> None:
        self.call(lambda: self.sink.producer.send_offsets_to_transaction([offset], group, CALL_SECONDS))

    def commit(self) -> None:
        self.call(lambda: self.sink.producer.commit_transaction(CALL_SECONDS))
        self._began_at = None

    def call(self, step: Callable[[], Any], *, read_only: bool = False) -> Any:
        """Do a step, and repeat it while the client says that this is safe; a read-only one for any transient error.

        After ``retryTimeout`` the task fails, and its next attempt begins by asking what happened.
        """
        outage = Outage(replace(self._settings.outage_rule, cap_seconds=_PAUSE_SECONDS))
        while True:
            try:
                return step()
            except client_exception() as error:
                problem = error.args[0]
                refusal = self.sink.refusal(problem, self._id)
                retriable = problem.retriable() or (read_only and refusal.transient)
                if not retriable or problem.txn_requires_abort():
                    raise refusal from None
                self.sink.check()
                time.sleep(outage.next_delay_seconds(refusal))

    def _abort(self) -> None:
        """End the transaction if that is possible; else the first step of the next attempt does."""
        self.sink.purge()
        if self._began_at is not None:
            try:
                self.sink.producer.abort_transaction(CALL_SECONDS)
            except client_exception() as error:
                _log.warning("[KAFKA_NOT_ABORTED] %s (%s)", one_line(error.args[0].str()), self._id)


_sinks: Final[Pool[tuple[ClientSettings, bool], RecordSink | NativeSink]] = Pool(lambda sink: sink.discard())
"""The idle producers of this worker, with empty queues, by their settings and whether they take the fast path."""
close_sinks: Final = _sinks.close


def produce_batches(
    batches: Iterable[pa.RecordBatch], columns: Columns, settings: ClientSettings, task: StreamTask | None = None
) -> int:
    """Write all rows of some batches, wait until all are acknowledged, and return their number.

    A ``task`` adds the headers of ``dedupHeaders``. After an error of one row, others may have been written.
    """
    plain = task is not None or columns.headers or columns.timestamp or settings.uses_tokens
    fast = not plain and not native_reason()
    idle = _sinks.acquire((settings, fast))
    sink = idle or (NativeSink(settings) if fast else RecordSink(settings))
    numbers = count()
    rows = 0
    try:
        if idle is not None:
            idle.begin()
        for batch in batches:
            if isinstance(sink, NativeSink):
                sink.send(batch, columns)
            else:
                converted: Iterable[ProducerRecord] = records(batch, columns)
                converted = converted if task is None else with_dedup_headers(converted, task, numbers)
                sink.send(converted, time_range(batch, columns))
            rows += batch.num_rows
        sink.finish()
    except ServiceUnavailableError as error:
        late = sink.late
        sink.discard()
        raise (error if late is None else why_late(settings, late, error)) from None
    except BaseException:
        sink.discard()
        raise
    _sinks.release((settings, fast), sink)
    return rows


def with_dedup_headers(
    records: Iterable[ProducerRecord], task: StreamTask, numbers: Iterator[int]
) -> Iterator[ProducerRecord]:
    """Add the headers of ``dedupHeaders``, which name query, batch, partition and row."""
    fixed = [
        ("spark.query", task.query.encode()),
        ("spark.batch", str(task.batch).encode()),
        ("spark.partition", str(task.partition).encode()),
    ]
    for topic, key, value, partition, timestamp, headers in records:
        own = [*(headers or ()), *fixed, ("spark.row", str(next(numbers)).encode())]
        yield topic, key, value, partition, timestamp, own
