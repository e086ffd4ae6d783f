"""A producer that takes whole Arrow batches: their keys and values go to librdkafka by address, without Python objects.

`rd_kafka_produce_batch` takes them where they stand, so that batches are kept until all that was sent is acknowledged.
It knows neither headers nor times; these go the plain way (`connectors.kafka.sink.writer`), which is the reference.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from connectors.core.errors import ConnectorError, CredentialsError
from connectors.kafka.client.errors import LastWord, gone, named_error, record_place
from connectors.kafka.client.librdkafka import library, new_client, problem_callback
from connectors.kafka.offsets import refuse_nul
from connectors.kafka.options.jvm_compat import LINGER_SETTINGS
from connectors.kafka.sink.batching import pace_of
from connectors.kafka.sink.rows import Columns, binary_column, partition_column, topic_names

if TYPE_CHECKING:
    from connectors.kafka.options.client import ClientSettings

__all__ = ["NativeSink"]

_PRODUCER: Final = 0
_BLOCK, _PARTITION = 4, 8
_ANY_PARTITION: Final = -1
_TIMED_OUT, _TRANSPORT = -185, -195
_PURGE_ALL, _PURGE_WITHOUT_WAITING = 3, 4
_SLICE_MS: Final = 1000
_LOOK_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 0.002
_PAUSES: Final = 10
"""After so many, batches that are not full are sent too."""
_PUSH_MS: Final = 5
_HELD_BYTES: Final = 64 << 20
"""Batches of so many bytes are kept; then they have to be acknowledged before the next one."""
_WORDS: Final = 9
"""Of ``rd_kafka_message_t``."""
# Words of it.
_TOPIC_WORD, _PARTITION_WORD, _VALUE_WORD, _KEY_WORD = 1, 2, 3, 5
_TEXT_BYTES: Final = 512
_EMPTY: Final = ctypes.create_string_buffer(1)
"""Where empty keys and values stand: not at 0, which is null."""


class NativeSink:
    """A queue of records on their way to Kafka.

    Args:
        settings: of the producer.

    Raises:
        OptionError: librdkafka refuses a setting.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._library = library()
        self._error: ConnectorError | None = None
        self._last_word = LastWord()
        # Kept alive as long as the client.
        self._report, self._problem = _REPORT(self._delivered), problem_callback(self._note)
        given = settings.revealed()
        self._pace = pace_of(given)
        own = {
            "delivery.report.only.error": "true",
            "log.connection.close": "false",
            "linger.ms": str(self._pace.linger_ms),
        }
        others = {name: value for name, value in given.items() if name not in LINGER_SETTINGS}
        self._client = new_client(_PRODUCER, others | own, self._report, self._problem)
        self._topics: dict[str, int] = {}
        self._partitions: dict[str, int] = {}
        self._held: list[pa.Array] = []
        """Whose memory the client may read: that of a record until it is no more under way."""
        self._held_bytes = 0
        self._stopped = threading.Event()
        self._purging = threading.Lock()
        """So that nothing of a task is thrown away for what was refused before it."""
        # Reports of errors keep their place in the queue until they are taken, and sending waits for a place.
        self._thread = threading.Thread(target=self._poll, name="kafka-reports", daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        while not self._stopped.is_set():
            self._library.rd_kafka_poll(self._client, 100)
            with self._purging:
                if isinstance(self._error, CredentialsError):
                    # Nothing will be sent, and sending may wait for a place in the queue.
                    self._library.rd_kafka_purge(self._client, _PURGE_ALL | _PURGE_WITHOUT_WAITING)

    def _delivered(self, _client: int, message: int, _opaque: int) -> None:
        """A record could not be written."""
        error, topic, partition = (
            ctypes.c_int32.from_address(message).value,
            ctypes.c_void_p.from_address(message + 8).value,
            ctypes.c_int32.from_address(message + 16).value,
        )
        if error and self._error is None:
            name = self._library.rd_kafka_topic_name(topic).decode()
            self._error = self._last_word.explain(self._named(error, record_place(name, partition)))

    def _note(self, name: str, text: str) -> None:
        """Keep a refused log-in: the client goes on trying, and would say no more than that records timed out."""
        self._last_word.hear(name, text)
        self._error = self._error or self._last_word.refusal

    def begin(self) -> None:
        """A task begins, after another one: a log-in that was refused between them may be accepted by now."""
        self._last_word.begin()
        with self._purging:
            if isinstance(self._error, CredentialsError):
                self._error = None

    def _named(self, error: int, where: str) -> ConnectorError:
        name = self._library.rd_kafka_err2name(error).decode()
        return named_error(name, self._library.rd_kafka_err2str(error).decode(), where, retriable=False)

    def send(self, batch: pa.RecordBatch, columns: Columns) -> None:
        """Put the rows of a batch into the queue; waits while it is full.

        Raises:
            ConnectorError: one of these, or of those before, could not be written, or has no topic.
        """
        if not batch.num_rows:
            return  # its columns may have no memory to look into
        if self._held_bytes >= _HELD_BYTES:
            self.finish()
        # All of it: a column keeps the memory of the batch that it came with.
        self._held_bytes += batch.get_total_buffer_size()
        for topic, part in _by_topic(batch, columns):
            self._send(topic, part, columns)
        self._check()

    def _send(self, topic: str, batch: pa.RecordBatch, columns: Columns) -> None:
        messages = np.empty((batch.num_rows, _WORDS), np.int64)
        value = binary_column(batch, "value")
        key = binary_column(batch, "key") if columns.key else None
        for column, word in ((value, _VALUE_WORD), (key, _KEY_WORD)):
            messages[:, word], messages[:, word + 1] = (0, 0) if column is None else _places(column)
        self._held += [value] if key is None else [value, key]
        partitions = np.full(batch.num_rows, _ANY_PARTITION, np.int64)
        if columns.partition:
            partitions = partition_column(batch).to_numpy().astype(np.int64)
            self._look_for(topic, int(partitions.max(initial=_ANY_PARTITION)))
        messages[:, _PARTITION_WORD] = partitions & 0xFFFFFFFF
        row_bytes = max(1, int(messages[:, [_VALUE_WORD + 1, _KEY_WORD + 1]].sum()) // max(1, len(messages)))
        portion = max(1, self._pace.batch_bytes // row_bytes)
        for first in range(0, len(messages), portion):
            self._wait_for_room(topic, row_bytes)
            self._produce(topic, messages[first : first + portion])

    def _produce(self, topic: str, messages: npt.NDArray[np.int64]) -> None:
        """Hand messages to the client."""
        queued = self._library.rd_kafka_produce_batch(
            self._topic(topic), _ANY_PARTITION, _BLOCK | _PARTITION, messages.ctypes.data, len(messages)
        )
        if queued < len(messages):
            errors, partitions = (
                (messages[:, word] & 0xFFFFFFFF).astype(np.uint32).astype(np.int32) for word in (0, _PARTITION_WORD)
            )
            first = int(np.flatnonzero(errors)[0])
            raise self._named(int(errors[first]), record_place(topic, int(partitions[first])))

    def _wait_for_room(self, topic: str, row_bytes: int) -> None:
        """Wait while so much is under way that more would only wait in the client."""
        if self._library.rd_kafka_outq_len(self._client) < self._pace.room(0, row_bytes):
            return  # the least; how many partitions there are does not matter yet
        room = self._pace.room(self._partition_count(topic), row_bytes)
        for pause in itertools.count(1):
            if self._library.rd_kafka_outq_len(self._client) < room:
                return
            self._check()
            if pause % _PAUSES:
                time.sleep(_PAUSE_SECONDS)
            else:
                self._library.rd_kafka_flush(self._client, _PUSH_MS)

    def _topic(self, name: str) -> int:
        """The handle of a topic."""
        if name not in self._topics:
            refuse_nul("topic", name)
            handle = self._library.rd_kafka_topic_new(self._client, name.encode(), None)
            if not handle:  # a call with it would end the process
                raise named_error("_INVALID_ARG", "Invalid topic", name[:_TEXT_BYTES], retriable=False)
            self._topics[name] = handle
        return self._topics[name]

    def _look_for(self, topic: str, partition: int) -> None:
        """See that a topic has a partition, which may have been added since the client looked at it.

        The client would refuse it, and count its records as being on their way for ever (`discard`).

        Raises:
            ConnectorError: it has not.
        """
        if partition < self._partitions.get(topic, 0):
            return
        found = self._ask_partitions(topic)
        # No answer yet: records wait for one, as long as kafka.delivery.timeout.ms allows.
        if found is not None and partition >= found:
            raise gone(f"{topic}-{partition}")

    def _partition_count(self, topic: str) -> int:
        """How many partitions a topic has; 0 if that is not known. Asked for once."""
        if topic not in self._partitions:
            self._ask_partitions(topic)
        return self._partitions.setdefault(topic, 0)

    def _ask_partitions(self, topic: str) -> int | None:
        """How many partitions a topic has; the client learns it too. None if that is not known."""
        handle, answer = self._topic(topic), ctypes.c_void_p()
        give_up_at = time.monotonic() + _LOOK_SECONDS
        while error := self._library.rd_kafka_metadata(self._client, 0, handle, ctypes.byref(answer), _SLICE_MS):
            self._check()
            if error not in {_TIMED_OUT, _TRANSPORT} or time.monotonic() > give_up_at:
                return None
        place = answer.value or 0
        # rd_kafka_metadata_t: two of the brokers, number of topics, topics; rd_kafka_metadata_topic_t: name, number of
        # partitions, these, error.
        topics = ctypes.c_void_p.from_address(place + 24).value if _number_at(place + 16) else None
        found = None if topics is None or _number_at(topics + 24) else _number_at(topics + 8)
        self._library.rd_kafka_metadata_destroy(answer)
        if found is not None:
            self._partitions[topic] = found
        return found

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        """Wait until every record is acknowledged.

        Raises:
            ConnectorError: one was not.
        """
        # The client looks every 10 ms only whether it has finished.
        wait = 1
        while self._library.rd_kafka_flush(self._client, wait) == _TIMED_OUT:
            self._check()
            wait = min(2 * wait, _SLICE_MS)
        self._held, self._held_bytes = [], 0
        self._check()
        self._last_word.forget()

    def discard(self) -> None:
        """Throw away what is still in the queue, and close the connections."""
        self._library.rd_kafka_purge(self._client, _PURGE_ALL)
        # Once and no more: records that rd_kafka_produce_batch has refused are counted as being on their way for ever.
        self._library.rd_kafka_flush(self._client, _SLICE_MS)
        self._stopped.set()
        self._thread.join()
        for handle in self._topics.values():
            self._library.rd_kafka_topic_destroy(handle)
        self._library.rd_kafka_destroy(self._client)


_REPORT: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


def _number_at(place: int) -> int:
    """The whole number of C that stands there."""
    return ctypes.c_int.from_address(place).value


def _by_topic(batch: pa.RecordBatch, columns: Columns) -> Iterable[tuple[str, pa.RecordBatch]]:
    """The rows of each topic, in their order."""
    if columns.topic is not None:
        return [(columns.topic, batch)]
    names = topic_names(batch)
    if len(names) == 1:
        return [(names[0], batch)]
    return [(name, batch.filter(pc.equal(batch.column("topic"), name))) for name in names]


def _places(column: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where the values of a column of bytes stand in memory, and how long they are; 0 for null."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4).astype(np.int64)
    lengths = np.diff(ends)
    places = ends[:-1] + (data.address if data is not None and data.size else ctypes.addressof(_EMPTY))
    if column.null_count:
        missing = column.is_null().to_numpy(zero_copy_only=False)
        places[missing], lengths[missing] = 0, 0
    return places, lengths
