"""Look up when the records at some offsets were written, in a thread beside the planning of batches.

Kafka counts what is unread, and only a record says how old it is. So the first unread record of a partition that lags
is fetched, at most once a second, and only its timestamp is used.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from connectors.core.errors import ConnectorError
from connectors.kafka.client.factory import client_exception, open_consumer, sdk
from connectors.kafka.offsets import Offsets, TopicPartition
from connectors.kafka.options.client import ClientSettings

_log = logging.getLogger(__name__)
_PATIENCE_SECONDS: Final = 0.25
"""How long planning waits for the timestamps; it goes on without them, and uses them with the next batch."""
_FIRST_PATIENCE_SECONDS: Final = 3.0
"""The same for the first ones, before which there is a connection to make: a run may end with its first batch."""
_PAUSE_SECONDS: Final = 1.0
_LOOKUP_SECONDS: Final = 5.0
_MOST_PARTITIONS: Final = 100
_SMALL: Final = {
    "group.id": "kafka_py",
    "enable.partition.eof": True,
    "fetch.message.max.bytes": 65_536,
    "fetch.wait.max.ms": 100,
    "fetch.queue.backoff.ms": 10,
    "queued.min.messages": 1,
    "queued.max.messages.kbytes": 1_024,
}


class TimeReader:
    """Fetches records for their timestamps, by a consumer of its own, from one thread."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._consumer: Any = None

    def __call__(self, offsets: Mapping[TopicPartition, int]) -> Offsets:
        """Return the timestamps of the first records at or after offsets, in milliseconds since 1970.

        A partition that sends nothing within some seconds, or a record without a timestamp, is left out.

        Raises:
            ConnectorError: no consumer can be made with these settings.
        """
        if self._consumer is None:
            self._consumer = open_consumer(self._settings, _SMALL)
        self._consumer.assign([sdk().TopicPartition(*partition, offset) for partition, offset in offsets.items()])
        try:
            return self._receive(set(offsets))
        finally:
            self._consumer.unassign()

    def _receive(self, left: set[TopicPartition]) -> Offsets:
        times: Offsets = {}
        deadline = time.monotonic() + _LOOKUP_SECONDS
        while left and (seconds := deadline - time.monotonic()) > 0:
            message = self._consumer.poll(seconds)
            if message is None or message.topic() is None:
                continue
            partition = TopicPartition(message.topic(), message.partition())
            if partition not in left:
                continue
            left.remove(partition)
            # Else its further records would be polled, up to the end of their record batch, before those of others.
            self._consumer.incremental_unassign([sdk().TopicPartition(*partition)])
            kind, time_ms = message.timestamp() if message.error() is None else (sdk().TIMESTAMP_NOT_AVAILABLE, 0)
            if kind != sdk().TIMESTAMP_NOT_AVAILABLE and time_ms >= 0:
                times[partition] = time_ms
        return times

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None


class RecordTimes:
    """Remembers the timestamps of first unread records; ``read`` fetches those at some offsets."""

    def __init__(self, read: Callable[[Offsets], Offsets], close: Callable[[], object] = lambda: None) -> None:
        self._read = read
        self._close = close
        self._changed = threading.Condition()
        self._last_times: dict[TopicPartition, tuple[int, int]] = {}
        self._wanted: Offsets = {}
        self._next_at = 0.0
        self._thread: threading.Thread | None = None
        self._stopped = False

    def of(self, unread: Mapping[TopicPartition, int]) -> Offsets:
        """Return the timestamps of the first records at or after offsets, as far as they come in a moment.

        Of a partition that was looked up at an offset before, that time stands in: the record is no older.
        """
        with self._changed:
            self._last_times = {
                partition: entry for partition, entry in self._last_times.items() if partition in unread
            }
            missing = {
                part: offset for part, offset in unread.items() if self._last_times.get(part, (-1, 0))[0] != offset
            }
            if missing and not self._wanted and time.monotonic() >= self._next_at:
                self._wanted = dict(sorted(missing.items())[:_MOST_PARTITIONS])
                self._start()
                self._changed.notify_all()
                self._changed.wait_for(
                    lambda: not self._wanted, _PATIENCE_SECONDS if self._next_at else _FIRST_PATIENCE_SECONDS
                )
            return {partition: time_ms for partition, (_, time_ms) in self._last_times.items()}

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="kafka-record-times", daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._wanted)
                if self._stopped:
                    break
                wanted = self._wanted
            times = self._look(wanted)
            with self._changed:
                for partition, offset in wanted.items():
                    self._last_times.pop(partition, None)
                    if partition in times:
                        self._last_times[partition] = (offset, times[partition])
                self._wanted, self._next_at = {}, time.monotonic() + _PAUSE_SECONDS
                self._changed.notify_all()
        self._close()

    def _look(self, wanted: Offsets) -> Offsets:
        try:
            return self._read(wanted)
        except (ConnectorError, client_exception()) as error:
            _log.warning(
                "[KAFKA_RECORD_TIMES] The age of unread records is unknown: the lag in time may be too low. %s",
                error,
            )
            return {}
