"""Consumers that a worker retains from task to task, with the records they fetched beyond the end of the last range.

A consumer that is not acquired soon is paused: it would send 200 requests a second for records that this worker may
never read. With many workers, consecutive ranges of a partition go to different workers, and all of them would fetch
all of it: a consumer whose prefetched records are never used is paused at once.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import numpy as np

from connectors.kafka.native import NativeSource, native_reason
from connectors.kafka.offsets import TopicPartition
from connectors.kafka.options.client import warn_once
from connectors.kafka.options.source import KafkaReadOptions
from connectors.kafka.schema import Event, Fetched
from connectors.kafka.source.planning import OffsetRange
from connectors.kafka.source.records import PlainSource

RecordSource = PlainSource | NativeSource

_END: Final = "_PARTITION_EOF"
_DEFAULTS: Final = {
    # By default the client holds few records, and pauses for a second whenever it holds enough.
    "fetch.queue.backoff.ms": "5",
    "queued.min.messages": "200000",
    # Records fetched beyond the end of a range are wasted if another worker reads the next one. Measured: as fast as
    # with 64 MB, and a fifth faster for a stream's rows of 1 KB.
    "queued.max.messages.kbytes": "16384",
    "fetch.message.max.bytes": "4194304",
    # A consumer that turns to another partition waits up to this long for the pending response. Measured for ranges of
    # 5 records in 50 partitions: 6.5 ms each, with 10 ms 12. The price: 185 empty requests a second, not 92.
    "fetch.wait.max.ms": "5",
    # Between two batches a broker need not respond for each small record. Measured at 1,000 records a second, with
    # 64 KB and 10 ms: 0.26 of a processor instead of 0.40. With so few bytes a small range waits 5 ms at most.
    "fetch.min.bytes": "1024",
    "fetch.error.backoff.ms": "20",
    "reconnect.backoff.max.ms": "1000",
}


def own_defaults(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the defaults of this pack that go with the user's settings of librdkafka."""
    own = {name: value for name, value in _DEFAULTS.items() if name not in settings}
    if "reconnect.backoff.ms" in settings:
        own.pop("reconnect.backoff.max.ms", None)  # the client refuses a maximum below the user's value
    if "fetch.wait.max.ms" in settings:
        own.pop("fetch.min.bytes", None)  # else a small range would wait as long as that
    return own


def open_source(options: KafkaReadOptions) -> RecordSource:
    """Open a consumer: on the fast path where that is available and supports the settings, else on the plain path."""
    client = options.client
    if (variable := client.rack_variable) is not None and not os.environ.get(variable, "").strip():
        # No error: a rack saves traffic between zones, and a host without one reads the same records.
        warn_once(
            "[KAFKA_RACK_UNKNOWN] kafka.client.rack names the environment variable %s, which is not set on this host, "
            "or empty: records come from the leaders of their partitions, perhaps from another zone. Set it on each "
            "host before its executor starts.",
            variable,
        )
    own = own_defaults(dict(client.plain)) | {"group.id": options.group, "enable.partition.eof": "true"}
    return (PlainSource if client.uses_tokens or native_reason() else NativeSource)(client, own)


BATCH_BYTES: Final = 16 << 20  # of keys and values in one Arrow batch, about
MOST_RECORDS: Final = 10_000  # in one Arrow batch
_PAUSE_SECONDS: Final = 2.0
"""An idle consumer is paused after so long; the batches of a busy stream come sooner."""
_IDLE_SECONDS: Final = 30.0  # an idle consumer is closed after so long
_MOST_JUMPS: Final = 3
"""After that many ranges in a row that don't start where the last one ended, a consumer fetches for its range only."""
_CONSUMERS: Final = 2  # idle consumers of a query, each of which may hold queued.max.messages.kbytes
_QUERIES: Final = 4
"""Queries (by their client and group) with idle consumers: those of a session take turns in a worker."""
_MOST_SKIPPED: Final = 20_000
"""The most offsets that are skipped to go on in what was fetched ahead; about 5 ms. Of large records, fewer."""
_FETCH_SECONDS: Final = 0.01
"""How long one fetch gathers records: it ends early only when it has all it asked for."""


class Match(IntEnum):
    """How well an idle consumer suits a range; the lowest wins."""

    CONTINUES = 0
    """Its last range ended where this one starts."""
    SAME_PARTITION = 1
    """It stands elsewhere in the partition: other workers have read the ranges in between."""
    PAUSED = 2
    OTHER = 3
    """Only if the query has as many consumers as it may."""


class PooledConsumer:
    """A consumer, its position, and the records that it fetched beyond the end of a range.

    Attributes:
        run: the run of the stream, up to the recreation of a topic, or the action that reads a batch. Records that were
            fetched for one run are never used in another: they may be those of a topic that was deleted since.
        partition: None if it is paused, or its position is gone.
        position: the offset after the last record that was taken from the client.
    """

    def __init__(self, options: KafkaReadOptions, run: str) -> None:
        self.query = options.client, options.group
        self.run = run
        self.source = open_source(options)
        self.partition: TopicPartition | None = None
        self.position = -1
        self.idle_since = 0.0
        self._ahead: Fetched | None = None
        self._end_of_partition = -1
        """Reported once, perhaps while an earlier range was read."""
        self._record_bytes = 1000
        self._client_position = -1
        self._fetches = False
        self._last_end: tuple[TopicPartition | None, int] = None, -1
        self._jumps = -1  # its first range continues none

    def match(self, part: OffsetRange, run: str) -> Match:
        if self.run == run and self._last_end == (part.topic_partition, part.start):
            return Match.CONTINUES
        if self.run == run and self.partition == part.topic_partition:
            return Match.SAME_PARTITION
        return Match.PAUSED if self.partition is None else Match.OTHER

    def begin(self, part: OffsetRange, run: str) -> None:
        """Prepare for a range; drops what was fetched ahead in another run."""
        if self.run != run:
            self.pause()
            self.run = run
        self._jumps = 0 if self._last_end == (part.topic_partition, part.start) else self._jumps + 1

    def end(self) -> None:
        self._last_end = self.partition, self.position
        self.idle_since = time.monotonic()
        if self._jumps >= _MOST_JUMPS:
            self.pause()

    def go(self, partition: TopicPartition, position: int) -> None:
        """Stand at a position or a little before it: to skip a few fetched records is faster than to fetch again."""
        skipped = position - self.position
        most = min(_MOST_SKIPPED, BATCH_BYTES // self._record_bytes)
        if self.partition != partition or not 0 <= skipped <= most:
            self.jump(partition, position)

    def jump(self, partition: TopicPartition, position: int) -> None:
        """Drop what was fetched ahead, and fetch from a position."""
        self._drop_ahead()
        self.partition, self.position, self._end_of_partition = partition, position, -1
        self._fetches = True
        self.source.assign(partition, position)

    def fetch(self, start: int, end: int) -> tuple[Fetched, list[Event]]:
        """Return the next records of a range, and errors; keeps the records after the range, drops those before it."""
        if self._ahead is not None:
            fetched, self._ahead = self._ahead, None
        else:
            # Bytes are what memory is made of: few large records at a time.
            most = min(max(1, end - self.position), MOST_RECORDS, max(1, BATCH_BYTES // self._record_bytes))
            fetched = self.source.fetch(most, _FETCH_SECONDS)
            if len(fetched):
                self._record_bytes = max(1, fetched.size // len(fetched))
        events = [event for event in fetched.events if event.partition in {None, self.partition}]
        if len(fetched):
            self.position = int(fetched.offsets[-1]) + 1
            first, last = map(int, np.searchsorted(fetched.offsets, [start, end]))
            if last < len(fetched):
                self._ahead = fetched.cut(last, len(fetched))
            if first:
                fetched.cut(0, first).free()
            fetched = fetched.cut(first, last)
        ends = [event.offset for event in events if event.name == _END]
        self._end_of_partition = max(self._end_of_partition, *ends, -1)
        return fetched, [event for event in events if event.name != _END]

    def next_offset(self, position: int, end: int) -> int:
        """Return the first offset, from a position to the end of its range, that may still have a record to fetch."""
        reached = max(self._end_of_partition, self.position) if self._ahead is None else int(self._ahead.offsets[0])
        return min(max(position, reached), end)

    def has_moved(self) -> bool:
        """Return whether the client has moved on since the last call, even without a record."""
        position = -1 if self.partition is None else self.source.position(self.partition)
        before, self._client_position = self._client_position, position
        return position > before

    def pause(self) -> None:
        """Fetch nothing until the next `jump`, and drop what was fetched ahead."""
        if self._fetches:
            self._drop_ahead()
            self.partition, self._fetches = None, False
            self.source.unassign()

    def close(self) -> None:
        self._drop_ahead()
        self.source.close()

    def _drop_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead.free()
        self._ahead = None


class ConsumerPool:
    """Idle consumers of the last few queries; a thread pauses them, and closes them later."""

    def __init__(self, pause_seconds: float = _PAUSE_SECONDS, idle_seconds: float = _IDLE_SECONDS) -> None:
        self._pause_seconds, self._idle_seconds = pause_seconds, idle_seconds
        self._lock = threading.Lock()
        self._idle: list[PooledConsumer] = []
        """The one released last stands last."""
        self._thread: threading.Thread | None = None

    def acquire(self, part: OffsetRange, options: KafkaReadOptions, run: str) -> PooledConsumer:
        """Return the idle consumer that suits a range best, or a new one."""
        query = options.client, options.group
        with self._lock:
            others = dict.fromkeys(idle.query for idle in reversed(self._idle) if idle.query != query)
            surplus = [consumer for consumer in self._idle if consumer.query in [*others][_QUERIES - 1 :]]
            own = [consumer for consumer in self._idle if consumer.query == query]
            best = min(own, key=lambda consumer: consumer.match(part, run), default=None)
            if best is not None and best.match(part, run) is Match.OTHER and len(own) < _CONSUMERS:
                best = None
            self._idle = [consumer for consumer in self._idle if consumer not in {best, *surplus}]
        for consumer in surplus:
            consumer.close()
        consumer = best or PooledConsumer(options, run)
        consumer.begin(part, run)
        return consumer

    def release(self, consumer: PooledConsumer) -> None:
        consumer.end()
        with self._lock:
            self._idle.append(consumer)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="kafka-idle", daemon=True)
                self._thread.start()

    def _watch(self) -> None:
        last = False
        while not last:
            time.sleep(min(self._pause_seconds, self._idle_seconds) / 4)
            now = time.monotonic()
            with self._lock:
                for consumer in self._idle:
                    if consumer.idle_since < now - self._pause_seconds:
                        consumer.pause()
                expired = [consumer for consumer in self._idle if consumer.idle_since < now - self._idle_seconds]
                self._idle = [consumer for consumer in self._idle if consumer not in expired]
                if last := not self._idle:
                    self._thread = None
            for consumer in expired:
                consumer.close()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for consumer in idle:
            consumer.close()


CONSUMERS: Final = ConsumerPool()  # the consumers of this worker
