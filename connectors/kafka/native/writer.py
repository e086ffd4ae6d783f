"""The fast path of the sink: keys and values of Arrow batches go to librdkafka by address, without Python objects.

`rd_kafka_produce_batch` takes them where they stand, so batches are kept until all records are acknowledged. It knows
neither headers nor times; these take the plain path (`connectors.kafka.sink.writer`), which is the reference.

While rows wait for longer than ``linger.ms`` behind the five requests that an idempotent producer has in flight to a
partition, its thread looks for work without a pause (``rd_kafka_toppar_producer_serve``), which doubles its use of the
processor. So the client never gets more than a few batches for each partition, and batches wait until they are full:
for up to 200 ms, or until the task ends. Measured with slow brokers in 6 s of bench/kafka_write.py: 0.2 million looks
for work, and with 50 ms 0.5 to 1.4 million.

An idempotent producer of librdkafka reports a record as written when a later one of its partition is: what a broker
has refused, because it does not lead the partition yet, is then lost (confluent-kafka-go, issue 921). Such reports have
no offset. These records are written again, and with them the later ones of their keys, so that the newest value of a
key stays the last one. Reports come as events, one for many records; one record of an event is looked at.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from connectors.core.errors import ConnectorError, CredentialsError
from connectors.core.retry import WaitLog
from connectors.kafka.client.errors import (
    LATE,
    ConnectionErrors,
    RefusedRows,
    gone,
    named_error,
    record_place,
    unconfirmed,
)
from connectors.kafka.native.library import library, log_event, new_client
from connectors.kafka.offsets import refuse_nul
from connectors.kafka.options.client import ClientSettings, number_of
from connectors.kafka.options.jvm_compat import LINGER_SETTINGS, TIMEOUT_SETTINGS
from connectors.kafka.schema import Columns, binary_column, partition_column, topic_names

_log = logging.getLogger(__name__)

MOST_ROUNDS: Final = 3
"""How many times to write records that no broker confirms."""
_PRODUCER: Final = 0
_BLOCK, _PARTITION = 4, 8
_ANY_PARTITION: Final = -1
_TIMED_OUT, _TRANSPORT = -185, -195
_PURGE_ALL, _PURGE_WITHOUT_WAITING = 3, 4
_SLICE_MS: Final = 1000
_METADATA_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 0.002
_PAUSES: Final = 10  # after that many, batches that are not full are sent too
_PUSH_MS: Final = 5
_HELD_BYTES: Final = 64 << 20
"""Batches of that many bytes are kept; then they have to be acknowledged before the next one."""
_WORDS: Final = 9
"""Of ``rd_kafka_message_t``; these are among them, and a length follows a value and a key."""
_TOPIC_WORD, _PARTITION_WORD, _VALUE_WORD, _KEY_WORD, _OFFSET_WORD = 1, 2, 3, 5, 7
_TEXT_BYTES: Final = 512
_EMPTY: Final = ctypes.create_string_buffer(1)  # where empty keys and values stand: not at 0, which is null
_LINGER_MS: Final = 200.0
_BATCHES: Final = 3
_LEAST_BYTES: Final = 4 << 20
# The defaults of librdkafka.
_BATCH_BYTES: Final = 1_000_000
_QUEUE_KILOBYTES: Final = 1_048_576
_QUEUE_RECORDS: Final = 100_000


class _Event(IntEnum):
    """The kinds of events that are used, as librdkafka numbers them."""

    REPORTS = 1
    LOG_LINE = 4
    PROBLEM = 8


@dataclass(frozen=True, slots=True)
class Batching:
    """How long rows wait for a full batch of ``batch_bytes``, and what the client's queue takes."""

    linger_ms: float
    batch_bytes: int
    queue_bytes: int
    queue_records: int

    def room(self, partitions: int, row_bytes: int) -> int:
        """Return how many records may be in the client's queue, for 0 partitions if their number is unknown."""
        wanted = max(_LEAST_BYTES, partitions * _BATCHES * self.batch_bytes)
        return max(1, min(wanted // row_bytes, self._half_of_queue(row_bytes)))

    def portion(self, row_bytes: int) -> int:
        """Return how many records the client is given in one call."""
        return max(1, min(self.batch_bytes // row_bytes, self._half_of_queue(row_bytes)))

    def _half_of_queue(self, row_bytes: int) -> int:
        # A call waits for a place in a full queue, and nobody can interrupt it: it gets half of one at most, when no
        # more than the other half is taken.
        return min(self.queue_bytes // 2 // row_bytes, self.queue_records // 2)


def batching_of(settings: Mapping[str, str]) -> Batching:
    linger = max(number_of(settings, name, 0) for name in LINGER_SETTINGS)
    timeouts = (number_of(settings, name, 0) for name in TIMEOUT_SETTINGS)
    timeout = min((value for value in timeouts if value > 0), default=math.inf)
    # The client refuses to wait longer than a record may take; what it refuses of the user's stays as it is.
    least = _LINGER_MS if timeout > _LINGER_MS else timeout / 2
    return Batching(
        linger_ms=max(linger, least),
        batch_bytes=int(number_of(settings, "batch.size", _BATCH_BYTES)),
        queue_bytes=int(number_of(settings, "queue.buffering.max.kbytes", _QUEUE_KILOBYTES)) * 1024,
        queue_records=int(number_of(settings, "queue.buffering.max.messages", _QUEUE_RECORDS)),
    )


class UnsentLog:
    """Says in the log that nothing is acknowledged, when that takes long."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._produced = self._done = 0
        self._log = WaitLog(lambda: f"brokers to acknowledge {self._produced - self._done} records", clock)

    def note(self, produced: int, queued: int) -> None:
        """Note how many records the client has taken since it was made, and the length of its queue.

        More taken, or more done with, is progress. The length is none: what the client has to report, as a connection
        that broke, is in the queue too until it is polled.
        """
        progress = produced, max(self._done, produced - queued)
        if progress != (self._produced, self._done) or not queued:
            self._log.restart()
        self._produced, self._done = progress
        self._log.tick()


class NativeSink:
    """A producer with a queue of records; raises an `OptionError` for a setting that librdkafka refuses."""

    def __init__(self, settings: ClientSettings, most_held_bytes: int = _HELD_BYTES) -> None:
        self._library = library()
        self._error: ConnectorError | None = None
        self.late: str | None = None
        """The topic of the first record that failed, if it was not delivered in time."""
        self._connection_errors = ConnectionErrors()
        self._unsent, self._produced = UnsentLog(), 0
        revealed = settings.revealed()
        # Without it each report is of its own records; with acks=0, which rules it out, none has an offset.
        self._is_idempotent = settings.is_idempotent
        self._unconfirmed: dict[tuple[str, int], list[tuple[int, int, bytes | None]]] = {}
        """By topic and partition: records that were reported as written without an offset, and later ones with their
        keys, in order, each as place and length of its value, and key."""
        self._unconfirmed_keys: set[tuple[str, int, bytes]] = set()
        self._batching = batching_of(revealed)
        own = {
            "delivery.report.only.error": "false" if self._is_idempotent else "true",
            "log.connection.close": "false",
            "linger.ms": str(self._batching.linger_ms),
        }
        others = {name: value for name, value in revealed.items() if name not in LINGER_SETTINGS}
        self._client = new_client(_PRODUCER, others | own, events=sum(_Event))
        self._topics: dict[str, int] = {}
        self._partitions: dict[str, int] = {}
        self._held: list[pa.Array] = []
        """Columns whose memory the client may read until their records are acknowledged."""
        self._held_bytes, self._most_held_bytes = 0, most_held_bytes
        self._stopped = threading.Event()
        self._purging = threading.Lock()
        """So that no record of a task is purged for what was refused before it."""
        # Reports of errors keep their place in the queue until they are polled, and sending waits for a place.
        self._thread = threading.Thread(target=self._poll, name="kafka-reports", daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        queue = self._library.rd_kafka_queue_get_main(self._client)
        while not self._stopped.is_set():
            event = self._library.rd_kafka_queue_poll(queue, 100)
            try:
                if event:
                    self._receive(event)
                self._unsent.note(self._produced, self._library.rd_kafka_outq_len(self._client))
                with self._purging:
                    if isinstance(self._error, CredentialsError):
                        # Nothing will be sent, and a call may wait for a place in the queue.
                        self._library.rd_kafka_purge(self._client, _PURGE_ALL | _PURGE_WITHOUT_WAITING)
            except Exception as error:  # noqa: BLE001 - it is raised to the task, which waits for what this thread takes
                self._error = self._error or named_error(
                    "_FATAL", f"{type(error).__name__}: {error}", "producer", retriable=False
                )
            finally:
                if event:
                    # The last step: the task then finds the queue empty, and what was noted of its records.
                    self._library.rd_kafka_event_destroy(event)
        self._library.rd_kafka_queue_destroy(queue)

    def _receive(self, event: int) -> None:
        match self._library.rd_kafka_event_type(event):
            case _Event.REPORTS:
                self._delivered(event)
            case _Event.LOG_LINE:
                log_event(self._client, event)
            case _Event.PROBLEM:
                self._note(event)

    def _delivered(self, event: int) -> None:
        """Note what is reported of some records of a partition, which have one outcome."""
        message = self._library.rd_kafka_event_message_next(event)
        error, words = _number_at(message), _words_at(message)
        is_confirmed = words[_OFFSET_WORD] >= 0 or not self._is_idempotent
        if not error and is_confirmed and not self._unconfirmed:
            return
        topic = self._library.rd_kafka_topic_name(words[_TOPIC_WORD]).decode()
        partition = _number_at(message + 8 * _PARTITION_WORD)
        if error:
            if self._error is None:
                self._error = self._connection_errors.explain(self._refused(event, message, topic, partition).error())
            return
        records = []
        while message:
            # The memory of a value is held until `finish`; a key is the client's, and goes with the event.
            value, length, key, key_length = _words_at(message)[_VALUE_WORD:_OFFSET_WORD]
            own_key = ctypes.string_at(key, key_length) if key else None
            if not is_confirmed or (topic, partition, own_key) in self._unconfirmed_keys:
                records.append((value, length, own_key))
            message = self._library.rd_kafka_event_message_next(event)
        if records:
            self._unconfirmed.setdefault((topic, partition), []).extend(records)
            self._unconfirmed_keys.update((topic, partition, key) for _, _, key in records if key is not None)

    def _refused(self, event: int, message: int, topic: str, partition: int) -> RefusedRows:
        refused = RefusedRows(*self._named(_number_at(message)), topic, partition)
        while message:
            name, text = self._named(_number_at(message))
            value, length, key, key_length = _words_at(message)[_VALUE_WORD:_OFFSET_WORD]
            if refused.replaced_by(name):
                refused = RefusedRows(name, text, topic, partition)
            if refused.accepts(name, topic, partition):
                refused.add(key_length if key else None, length if value else None)
            message = self._library.rd_kafka_event_message_next(event)
        self.late = topic if refused.name == LATE else None
        return refused

    def _note(self, event: int) -> None:
        """Keep a failed authentication: the client goes on trying, and would only report that records timed out."""
        name = self._library.rd_kafka_err2name(self._library.rd_kafka_event_error(event)).decode()
        self._connection_errors.receive(name, self._library.rd_kafka_event_error_string(event).decode(errors="replace"))
        self._error = self._error or self._connection_errors.refusal

    def begin(self) -> None:
        """Start another task: an authentication that failed since the last one may succeed by now."""
        self._connection_errors.begin()
        with self._purging:
            if isinstance(self._error, CredentialsError):
                self._error = None

    def _named(self, error: int) -> tuple[str, str]:
        return self._library.rd_kafka_err2name(error).decode(), self._library.rd_kafka_err2str(error).decode()

    def send(self, batch: pa.RecordBatch, columns: Columns) -> None:
        """Put the rows of a batch into the queue; wait while it is full. Raises the first error of any row so far."""
        if not batch.num_rows:
            return  # its columns may have no buffers
        if self._held_bytes >= self._most_held_bytes:
            self.finish()
        # All of it: a column keeps the memory of its whole batch.
        self._held_bytes += batch.get_total_buffer_size()
        for topic, part in _by_topic(batch, columns):
            self._send(topic, part, columns)
        self._check()

    def _send(self, topic: str, batch: pa.RecordBatch, columns: Columns) -> None:
        messages = np.empty((batch.num_rows, _WORDS), np.int64)
        value = binary_column(batch, "value")
        key = binary_column(batch, "key") if columns.key else None
        for column, word in ((value, _VALUE_WORD), (key, _KEY_WORD)):
            messages[:, word], messages[:, word + 1] = (0, 0) if column is None else _addresses(column)
        self._held += [value] if key is None else [value, key]
        partitions = np.full(batch.num_rows, _ANY_PARTITION, np.int64)
        if columns.partition:
            partitions = partition_column(batch).to_numpy().astype(np.int64)
            self._check_partition(topic, int(partitions.max(initial=_ANY_PARTITION)))
        messages[:, _PARTITION_WORD] = partitions & 0xFFFFFFFF
        self._produce_all(topic, messages)

    def _produce_all(self, topic: str, messages: npt.NDArray[np.int64]) -> None:
        """Put messages into the queue, in portions, as there is room for them."""
        row_bytes = max(1, int(messages[:, [_VALUE_WORD + 1, _KEY_WORD + 1]].sum()) // max(1, len(messages)))
        portion = self._batching.portion(row_bytes)
        for first in range(0, len(messages), portion):
            self._wait_for_room(topic, row_bytes)
            self._produce(topic, messages[first : first + portion])

    def _produce(self, topic: str, messages: npt.NDArray[np.int64]) -> None:
        queued = self._library.rd_kafka_produce_batch(
            self._topic(topic), _ANY_PARTITION, _BLOCK | _PARTITION, messages.ctypes.data, len(messages)
        )
        if queued < len(messages):
            first = messages[np.flatnonzero(messages[:, 0] & 0xFFFFFFFF)[0]]
            error, partition = (
                int(number) for number in (first[[0, _PARTITION_WORD]] & 0xFFFFFFFF).astype(np.uint32).astype(np.int32)
            )
            refused = RefusedRows(*self._named(error), topic, partition)
            value, length, key, key_length = map(int, first[_VALUE_WORD:_OFFSET_WORD])
            refused.add(key_length if key else None, length if value else None)
            raise refused.error()
        self._produced += queued

    def _wait_for_room(self, topic: str, row_bytes: int) -> None:
        """Wait while the client has so much in its queue that more would only wait there."""
        if self._library.rd_kafka_outq_len(self._client) < self._batching.room(0, row_bytes):
            return  # less than for any number of partitions
        if topic not in self._partitions:
            self._partitions[topic] = self._ask_partitions(topic) or 0
        room = self._batching.room(self._partitions[topic], row_bytes)
        pauses = _PAUSES if room > self._batching.portion(row_bytes) else 1  # a small queue never has a full batch
        for pause in itertools.count(1):
            if self._library.rd_kafka_outq_len(self._client) < room:
                return
            self._check()
            if pause % pauses:
                time.sleep(_PAUSE_SECONDS)
            else:
                self._library.rd_kafka_flush(self._client, _PUSH_MS)

    def _topic(self, name: str) -> int:
        if name not in self._topics:
            refuse_nul("topic", name)
            handle = self._library.rd_kafka_topic_new(self._client, name.encode(), None)
            if not handle:  # a call with it would end the process
                raise named_error("TOPIC_EXCEPTION", "Invalid topic", name[:_TEXT_BYTES], retriable=False)
            self._topics[name] = handle
        return self._topics[name]

    def _check_partition(self, topic: str, partition: int) -> None:
        """Raise if a partition does not exist, also none that was added since the client asked for the topic.

        The client would refuse it, and count its records as in flight for ever (`discard`).
        """
        if partition < self._partitions.get(topic, 0):
            return
        count = self._ask_partitions(topic)
        # Without a response, records wait for one as long as kafka.delivery.timeout.ms allows.
        if count is not None and partition >= count:
            raise gone(f"{topic}-{partition}", of_rows=True)

    def _ask_partitions(self, topic: str) -> int | None:
        """Ask how many partitions a topic has, and have the client learn it; return None without a response."""
        handle, response = self._topic(topic), ctypes.c_void_p()
        give_up_at = time.monotonic() + _METADATA_SECONDS
        while error := self._library.rd_kafka_metadata(self._client, 0, handle, ctypes.byref(response), _SLICE_MS):
            self._check()
            if error not in {_TIMED_OUT, _TRANSPORT} or time.monotonic() > give_up_at:
                return None
        place = response.value or 0
        # rd_kafka_metadata_t: number of brokers, brokers, number of topics, topics; rd_kafka_metadata_topic_t: name,
        # number of partitions, partitions, error.
        topics = ctypes.c_void_p.from_address(place + 24).value if _number_at(place + 16) else None
        count = None if topics is None or _number_at(topics + 24) else _number_at(topics + 8)
        self._library.rd_kafka_metadata_destroy(response)
        if count is not None:
            self._partitions[topic] = count
        return count

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        """Wait until every record is acknowledged; raises if one was not."""
        self._drain()
        for _ in range(MOST_ROUNDS):
            if self._error is not None or not self._unconfirmed:
                break
            self._write_again()
            self._drain()
        if self._unconfirmed:
            self._error = self._error or unconfirmed(record_place(*next(iter(self._unconfirmed))))
        self._held, self._held_bytes = [], 0
        self._check()
        self._connection_errors.forget()

    def _drain(self) -> None:
        wait = 1
        while self._library.rd_kafka_flush(self._client, wait) == _TIMED_OUT:
            self._check()
            wait = min(2 * wait, _SLICE_MS)

    def _write_again(self) -> None:
        """Write the records that no broker has confirmed, and later ones of their keys, with their partitions."""
        # All are reported on, so no report changes this list now.
        again, self._unconfirmed = self._unconfirmed, {}
        self._unconfirmed_keys.clear()
        for (topic, partition), records in again.items():
            log_written_again(topic, partition, len(records))
            keys = pa.array([key for _, _, key in records], pa.binary())
            messages = np.zeros((len(records), _WORDS), np.int64)
            messages[:, _PARTITION_WORD] = partition
            messages[:, _VALUE_WORD : _VALUE_WORD + 2] = [(value, length) for value, length, _ in records]
            messages[:, _KEY_WORD], messages[:, _KEY_WORD + 1] = _addresses(keys)
            self._produce_all(topic, messages)

    def discard(self) -> None:
        """Drop what is still in the queue, and close the connections."""
        self._library.rd_kafka_purge(self._client, _PURGE_ALL)
        # Only once: the client counts records that rd_kafka_produce_batch has refused as in flight for ever.
        self._library.rd_kafka_flush(self._client, _SLICE_MS)
        self._stopped.set()
        self._thread.join()
        for handle in self._topics.values():
            self._library.rd_kafka_topic_destroy(handle)
        self._library.rd_kafka_destroy(self._client)


def log_written_again(topic: str, partition: int, records: int) -> None:
    """Log that records which the client considers written are written again; they may have been written before."""
    _log.warning(
        "[KAFKA_WRITTEN_AGAIN] Writing %d record(s) again, behind others of the partition. The client considers them "
        "written, but no broker has confirmed them, or an earlier one with their key (%s)",
        records,
        record_place(topic, partition),
    )


def _words_at(place: int) -> Any:
    return (ctypes.c_int64 * _WORDS).from_address(place)


def _number_at(place: int) -> int:
    return ctypes.c_int.from_address(place).value


def _by_topic(batch: pa.RecordBatch, columns: Columns) -> Iterable[tuple[str, pa.RecordBatch]]:
    if columns.topic is not None:
        return [(columns.topic, batch)]
    names = topic_names(batch)
    if len(names) == 1:
        return [(names[0], batch)]
    import pyarrow.compute as pc  # noqa: PLC0415 - readers import this module too, and do without

    return [(name, batch.filter(pc.equal(batch.column("topic"), name))) for name in names]


def _addresses(column: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the addresses of the values of a binary column, 0 for null, and their lengths."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4).astype(np.int64)
    lengths = np.diff(ends)
    addresses = ends[:-1] + (data.address if data is not None and data.size else ctypes.addressof(_EMPTY))
    if column.null_count:
        missing = column.is_null().to_numpy(zero_copy_only=False)
        addresses[missing], lengths[missing] = 0, 0
    return addresses, lengths
