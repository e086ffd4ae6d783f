"""Consumers that a worker keeps from task to task, with what they have fetched beyond the range of the last one.

A consumer that is not wanted soon rests: else it would go on asking the brokers, 200 times a second, for records
that this worker may never be asked for. So does at once one whose records are never the ones that are wanted next: with
many workers a partition comes to another one each time, and all of them would fetch all of it. One that is not wanted
for long is closed.

What a task needs to read, and the consumer that is made from it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from connectors.kafka.client.fast_path import native_reason
from connectors.kafka.offsets import TopicPartition
from connectors.kafka.options.client import ClientSettings
from connectors.kafka.source.native_records import NativeSource
from connectors.kafka.source.records import Fetched, PlainSource, RecordSource

__all__ = [
    "BATCH_BYTES",
    "MOST_RECORDS",
    "KeptConsumer",
    "ReadSettings",
    "borrow",
    "close_readers",
    "give_back",
    "open_source",
]


_DEFAULTS: Final = {
    # With its own defaults the client holds few records, and rests for a second whenever it holds enough.
    "fetch.queue.backoff.ms": "5",
    "queued.min.messages": "200000",
    # What is fetched beyond the end of a range is wasted if another worker reads the next one: no more than an Arrow
    # batch of it. Measured: as fast as with 64 MB, and of the rows of 1 KB of a stream a fifth faster.
    "queued.max.messages.kbytes": "16384",
    "fetch.message.max.bytes": "4194304",
    # A consumer that turns to another partition waits for the answer that is under way, as long as this. Measured for
    # ranges of 5 records in 50 partitions: 6.5 ms each instead of 12 with 10. Until it rests it asks for nothing 185
    # times a second then, instead of 92.
    "fetch.wait.max.ms": "5",
    # Between two batches a broker need not answer for each small record that comes: 0.26 of a processor instead of
    # 0.40, at 1,000 records a second, with 64 KB and 10 ms. With so little a small range waits 5 ms at most.
    "fetch.min.bytes": "1024",
    "fetch.error.backoff.ms": "20",
    "reconnect.backoff.max.ms": "1000",
}


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """What a task needs to read; pickles.

    Attributes:
        client: the settings of librdkafka.
        group: the consumer group, which is never joined.
        headers: with the column ``headers``.
        fail_on_data_loss: as the option.
        poll_timeout: seconds without any progress after which a task fails.
        native: take the fast path where it can do what is asked.
        run: names the run of the stream, or the action that reads a batch. What was fetched for one is not for another:
            the topic may have been made anew since.
    """

    client: ClientSettings
    group: str
    headers: bool
    fail_on_data_loss: bool
    poll_timeout: float
    native: bool = True
    run: str = field(default="", compare=False)


def own_defaults(given: Mapping[str, str]) -> dict[str, str]:
    """What a consumer gets where the user gives nothing, beside settings in the words of librdkafka."""
    own = {name: value for name, value in _DEFAULTS.items() if name not in given}
    if "reconnect.backoff.ms" in given:
        own.pop("reconnect.backoff.max.ms", None)  # the client refuses one that is below that
    if "fetch.wait.max.ms" in given:
        own.pop("fetch.min.bytes", None)  # else a small range waits as long as the user allows for no record at all
    return own


def open_source(settings: ReadSettings) -> RecordSource:
    """A consumer: the fast one where it can be had and can do what is asked, else the plain one."""
    given = dict(settings.client.plain)
    own = own_defaults(given) | {"group.id": settings.group, "enable.partition.eof": "true"}
    tokens = settings.client.token_provider is not None or given.get("sasl.mechanism", "").upper() == "OAUTHBEARER"
    if not settings.native or tokens or native_reason():
        return PlainSource(settings.client, own)
    fixed = {"enable.auto.commit": "false", "enable.auto.offset.store": "false", "auto.offset.reset": "error"}
    return NativeSource({**settings.client.revealed(), "log.connection.close": "false", **fixed, **own})


BATCH_BYTES: Final = 16 << 20
"""Of keys and values in one Arrow batch, about."""
MOST_RECORDS: Final = 10_000
"""In one Arrow batch."""
_REST_SECONDS: Final = 2.0
"""After so long a consumer that nobody wanted stops fetching; the batches of a busy stream come sooner."""
_MISSES: Final = 3
"""After so many ranges in a row that did not go on where the last one ended, a consumer fetches for its range only."""
_IDLE_SECONDS: Final = 30.0
"""After so long it is closed."""
_KEPT: Final = 2
"""Consumers that a worker keeps for a query; each may hold queued.max.messages.kbytes."""
_QUERIES: Final = 4
"""Queries, by their settings, that a worker keeps consumers for: those of a session take turns."""
_PASSED_OVER: Final = 20_000
"""The most offsets that are passed over to go on in what was fetched ahead; about 5 ms. Of large records, fewer."""
_FETCH_SECONDS: Final = 0.01
"""How long one fetch gathers records: it ends early only when it has all it asked for."""


class KeptConsumer:
    """A consumer, where it stands, and what it has fetched beyond the range it was asked for."""

    def __init__(self, settings: ReadSettings) -> None:
        self.settings = settings
        self.run = settings.run
        self.source = open_source(settings)
        self.where: TopicPartition | None = None
        self.position = -1
        self.end_of_partition = -1
        """Where the partition was said to end; said once, and of a range that is read later too."""
        self.ahead: Fetched | None = None
        self.idle_since = 0.0
        self._record_bytes = 1000
        self._client_position = -1
        self._fetches = False
        self._left: tuple[TopicPartition | None, int] = None, -1
        self._misses = -1  # its first range goes on from none

    def stood_at(self, where: TopicPartition, position: int) -> bool:
        """Whether its last range ended at a position."""
        return self._left == (where, position)

    def go(self, where: TopicPartition, position: int) -> None:
        """Stand at a position, or a little before it; what was fetched ahead is kept.

        Records that another worker has read meanwhile are here too: to pass over some is faster than to fetch anew.
        """
        over = position - self.position
        if self.where != where or not 0 <= over <= min(_PASSED_OVER, BATCH_BYTES // self._record_bytes):
            self.jump(where, position)

    def jump(self, where: TopicPartition, position: int) -> None:
        """Stand at a position, and fetch from there."""
        self._drop_ahead()
        self.where, self.position, self.end_of_partition = where, position, -1
        self._fetches = True
        self.source.assign(where, position)

    def _drop_ahead(self) -> None:
        if self.ahead is not None:
            self.ahead.free()
        self.ahead = None

    def fetch(self, end: int) -> Fetched:
        """The next records before an offset, and events; they were fetched ahead, or come now."""
        if self.ahead is not None:
            found, self.ahead = self.ahead, None
            self.position = int(found.offsets[-1]) + 1
            return found
        # Bytes are what memory is made of: few large records at a time.
        most = min(max(1, end - self.position), MOST_RECORDS, max(1, BATCH_BYTES // self._record_bytes))
        found = self.source.fetch(most, _FETCH_SECONDS)
        if len(found):
            self._record_bytes = max(1, found.size // len(found))
            self.position = int(found.offsets[-1]) + 1
        return found

    def has_moved(self) -> bool:
        """Whether the client has gone on since it was asked last, also without a record."""
        position = -1 if self.where is None else self.source.position(self.where)
        before, self._client_position = self._client_position, position
        return position > before

    def begin(self, where: TopicPartition, position: int, run: str) -> None:
        """Take note of a range that begins; what was fetched ahead in another run is of no use."""
        if self.run != run:
            self.rest()
            self.run = run
        self._misses = 0 if self._left == (where, position) else self._misses + 1

    def end(self) -> None:
        """Take note that the range has ended."""
        self._left = self.where, self.position
        self.idle_since = time.monotonic()
        if self._misses >= _MISSES:
            self.rest()

    def rest(self) -> None:
        """Fetch nothing until it is wanted again; what was fetched ahead is given back."""
        if self._fetches:
            self._drop_ahead()
            self.where, self._fetches = None, False
            self.source.unassign()

    def close(self) -> None:
        """Give back what was fetched ahead, and close the connections."""
        self._drop_ahead()
        self.source.close()


_readers: dict[ReadSettings, list[KeptConsumer]] = {}
"""The consumers that this worker keeps, by their settings; what was used last stands last, in both."""
_lock = threading.Lock()
_reapers: list[threading.Thread] = []


def borrow(settings: ReadSettings, where: TopicPartition, position: int) -> KeptConsumer:
    """A consumer: one that stands or stood there, or elsewhere in the partition, or rests; a new one; or the oldest.

    Tasks of a partition go from worker to worker: a consumer that stands elsewhere in it was passed by another one.
    """
    with _lock:
        kept = _readers[settings] = _readers.pop(settings, [])
        others = [reader for other in [*_readers][:-_QUERIES] for reader in _readers.pop(other)]
        own = [reader for reader in kept if reader.run == settings.run]
        fitting = [reader for reader in own if reader.stood_at(where, position)]
        fitting += [reader for reader in own if reader.where == where]
        fitting += [reader for reader in kept if reader.where is None]
        fitting += kept[:1] if len(kept) >= _KEPT else []
        if fitting:
            kept.remove(fitting[0])
    for reader in others:
        reader.close()
    reader = fitting[0] if fitting else KeptConsumer(settings)
    reader.begin(where, position, settings.run)
    return reader


def give_back(reader: KeptConsumer) -> None:
    """Keep a consumer for the next range, for a while."""
    reader.end()
    with _lock:
        _readers.setdefault(reader.settings, []).append(reader)
        if not _reapers:
            _reapers.append(threading.Thread(target=_reap, name="kafka-idle", daemon=True))
            _reapers[0].start()


def _reap() -> None:
    """Let consumers rest that nobody wants, and close them later; ends with the last one."""
    while True:
        time.sleep(min(_REST_SECONDS, _IDLE_SECONDS) / 4)
        now = time.monotonic()
        with _lock:
            kept = [reader for readers in _readers.values() for reader in readers]
            for reader in kept:
                if reader.idle_since < now - _REST_SECONDS:
                    reader.rest()
            idle = [reader for reader in kept if reader.idle_since < now - _IDLE_SECONDS]
            for reader in idle:
                _readers[reader.settings].remove(reader)
            if last := not any(_readers.values()):
                _reapers.clear()
        for reader in idle:
            reader.close()
        if last:
            return


def close_readers() -> None:
    """Close the consumers that this worker keeps."""
    with _lock:
        kept = [reader for readers in _readers.values() for reader in readers]
        _readers.clear()
    for reader in kept:
        reader.close()
