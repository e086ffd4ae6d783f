"""The read loop on a source of our own: what becomes of records when a fetch brings an error beside them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pytest

from connectors.core.errors import AccessDeniedError, CredentialsError, DataLossError, ServiceUnavailableError
from connectors.kafka.client.errors import ConnectionErrors
from connectors.kafka.offsets import EARLIEST, TopicPartition
from connectors.kafka.options.client import ClientSettings
from connectors.kafka.options.source import KafkaReadOptions
from connectors.kafka.schema import Event, Fetched
from connectors.kafka.source import consumer_pool
from connectors.kafka.source.consumer_pool import ConsumerPool, PooledConsumer
from connectors.kafka.source.planning import OffsetRange
from connectors.kafka.source.reader import PartitionReader, read_range

SETTINGS = KafkaReadOptions(client=ClientSettings(), group="check", poll_timeout_ms=10_000)
CONSUMERS = ConsumerPool(pause_seconds=600.0)  # else it pauses on a machine that stalls for 2 s


class Held(Fetched):
    """Records by their offsets alone; the source notes which it has got back."""

    def __init__(
        self, offsets: Any, given_back: list[int], events: Sequence[Event] = (), record_bytes: int = 1
    ) -> None:
        super().__init__(offsets, events)
        self._given_back = given_back
        self._record_bytes = record_bytes

    @property
    def size(self) -> int:
        return len(self) * self._record_bytes

    def cut(self, first: int, last: int) -> Self:
        return type(self)(self.offsets[first:last], self._given_back, record_bytes=self._record_bytes)

    @classmethod
    def batch(cls, parts: Sequence[Self], *_: Any, **__: Any) -> pa.RecordBatch:
        offsets = np.concatenate([part.offsets for part in parts])
        times = pa.array(offsets, pa.timestamp("us", tz="UTC"))
        return pa.RecordBatch.from_pydict({"offset": pa.array(offsets, pa.int64()), "timestamp": times})

    def free(self) -> None:
        self._given_back += self.offsets.tolist()


class RefusingSource:
    """Gives ten records and, in the same fetch, an error; like the client, it cannot close while records are out."""

    def __init__(self) -> None:
        self.connection_errors = ConnectionErrors()
        self.given_back: list[int] = []
        self.out_when_closed: set[int] | None = None

    def assign(self, *_: Any) -> None:
        pass

    def fetch(self, *_: Any) -> Held:
        return Held(np.arange(10), self.given_back, [Event("TOPIC_AUTHORIZATION_FAILED", "no", -1)])

    def position(self, *_: Any) -> int:
        raise AssertionError

    def offset_of(self, *_: Any) -> int:
        raise AssertionError

    def close(self) -> None:
        self.out_when_closed = set(range(10)) - set(self.given_back)


@pytest.mark.parametrize("part", [OffsetRange("t", 0, 0, 20), OffsetRange("t", 0, 3, 7)], ids=["inside", "cut"])
def test_an_error_beside_records_fails_the_task_with_every_record_given_back(
    part: OffsetRange, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = RefusingSource()
    monkeypatch.setattr(consumer_pool, "open_source", lambda _: source)
    with pytest.raises(AccessDeniedError):
        list(read_range(part, SETTINGS))
    assert source.out_when_closed == set()
    assert len(source.given_back) == 10, "and none twice"


class ScriptedSource:
    """Gives some fetches, one after the other, and then nothing; notes where it was sent.

    Args:
        fetches: the offsets of the records and the events of each.
        ends: the first and the last offset of the partition.
        seconds: what a fetch takes.
        positions: what the client says, each time it is asked; then always the last of them.
        record_bytes: how large records are.
    """

    def __init__(
        self,
        fetches: Sequence[tuple[Sequence[int], Sequence[Event]]],
        *,
        ends: tuple[int, int] = (0, 10),
        seconds: float = 0.0,
        positions: Sequence[int] = (-1001,),
        record_bytes: int = 1,
    ) -> None:
        self.connection_errors = ConnectionErrors()
        self._fetches = list(fetches)
        self._ends = ends
        self._seconds = seconds
        self._positions = list(positions)
        self._record_bytes = record_bytes
        self.assigned: list[tuple[TopicPartition, int]] = []
        self.rests = 0

    def assign(self, where: TopicPartition, position: int) -> None:
        self.assigned.append((where, position))

    def unassign(self) -> None:
        self.rests += 1

    def fetch(self, *_: Any) -> Held:
        time.sleep(self._seconds)
        offsets, events = self._fetches.pop(0) if self._fetches else ((), ())
        return Held(np.array(offsets, np.int64), [], events, self._record_bytes)

    def position(self, _where: TopicPartition) -> int:
        return self._positions.pop(0) if len(self._positions) > 1 else self._positions[0]

    def offset_of(self, _where: TopicPartition, word: int, _seconds: float) -> int:
        return self._ends[0] if word == EARLIEST else self._ends[1]

    def close(self) -> None:
        pass


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ScriptedSource]]:
    """Makes the source that the next read has."""

    def make(*fetches: tuple[Sequence[int], Sequence[Event]], **more: Any) -> ScriptedSource:
        source = ScriptedSource(fetches, **more)
        monkeypatch.setattr(consumer_pool, "open_source", lambda _: source)
        return source

    yield make
    CONSUMERS.close()


def offsets(start: int, end: int, settings: KafkaReadOptions = SETTINGS) -> list[int]:
    return [
        offset
        for batch in read_range(OffsetRange("t", 0, start, end), settings, consumers=CONSUMERS)
        for offset in batch.column("offset").to_pylist()
    ]


def test_the_end_of_a_partition_that_was_reported_in_one_range_also_ends_the_next(
    scripted: Callable[..., ScriptedSource],
) -> None:
    scripted((range(0, 8, 2), [Event("_PARTITION_EOF", "", 10)]))  # every second offset is a control record
    short = replace(SETTINGS, poll_timeout_ms=200)
    assert [offsets(0, 3, short), offsets(3, 7, short), offsets(7, 10, short)] == [[0, 2], [4, 6], []]


def test_the_end_of_a_partition_is_forgotten_when_the_consumer_goes_elsewhere(
    scripted: Callable[..., ScriptedSource],
) -> None:
    source = scripted((range(5), [Event("_PARTITION_EOF", "", 10)]), (range(2, 4), []))
    assert [offsets(0, 5), offsets(2, 4)] == [list(range(5)), [2, 3]]
    assert [position for _, position in source.assigned] == [0, 2]


OLD = TopicPartition("old", 0)
HERE = TopicPartition("t", 0)


@pytest.mark.parametrize("name", ["_AUTO_OFFSET_RESET", "UNKNOWN_TOPIC_OR_PART", "TOPIC_AUTHORIZATION_FAILED"])
def test_what_is_said_of_a_partition_that_was_read_before_is_passed_over(
    scripted: Callable[..., ScriptedSource], name: str
) -> None:
    source = scripted(((), [Event(name, "", -1, partition=OLD)]), (range(10), []))
    assert offsets(0, 10) == list(range(10))
    assert source.assigned == [(HERE, 0)]


def test_the_end_of_another_partition_ends_nothing(scripted: Callable[..., ScriptedSource]) -> None:
    scripted(((), [Event("_PARTITION_EOF", "", 10, partition=OLD)]), (range(10), []))
    assert offsets(0, 10) == list(range(10))


@pytest.mark.parametrize("name", ["_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE", "UNKNOWN_TOPIC_OR_PART"])
def test_a_position_that_is_there_is_fetched_again_whatever_the_client_says(
    scripted: Callable[..., ScriptedSource], name: str
) -> None:
    source = scripted((range(4), [Event(name, "", -1, partition=HERE)]), (range(4, 10), []))
    assert offsets(0, 10) == list(range(10))
    assert source.assigned == [(HERE, 0), (HERE, 4)]


def test_a_position_that_is_refused_again_and_again_is_lost(scripted: Callable[..., ScriptedSource]) -> None:
    scripted(*[((), [Event("_AUTO_OFFSET_RESET", "", -1, partition=HERE)])] * 5)
    with pytest.raises(DataLossError, match=r"Cannot fetch offsets \[0, 10\) of t-0"):
        offsets(0, 10)


def test_a_position_that_is_gone_is_lost_at_once(scripted: Callable[..., ScriptedSource]) -> None:
    scripted(((), [Event("_AUTO_OFFSET_RESET", "", -1, partition=HERE)]), ends=(6, 10))
    with pytest.raises(DataLossError, match="the earliest available offset is 6"):
        offsets(0, 10)


@pytest.mark.parametrize(("record_bytes", "jumps"), [(100, 0), (1 << 20, 1)])
def test_few_bytes_are_passed_over_and_not_many(
    scripted: Callable[..., ScriptedSource], record_bytes: int, jumps: int
) -> None:
    source = scripted((range(2), []), (range(100, 102), []), record_bytes=record_bytes)
    assert offsets(0, 2) + offsets(100, 102) == [0, 1, 100, 101]
    assert len(source.assigned) == 1 + jumps


def test_a_consumer_whose_records_are_never_wanted_next_fetches_for_its_ranges_only(
    scripted: Callable[..., ScriptedSource],
) -> None:
    starts = [0, 20, 40, 60, 80]  # other workers read what is between
    source = scripted(*[(range(start, start + 10), []) for start in (*starts, 90, 100)])
    rests = []
    for start in starts:
        assert offsets(start, start + 10) == [*range(start, start + 10)]
        rests.append(source.rests)
    assert rests == [0, 0, 0, 1, 2]
    assert [at for _, at in source.assigned] == [0, 80]  # before it rested, little was passed over
    # The next ranges go on where the last one ended: it fetches ahead again.
    assert offsets(90, 100) + offsets(100, 110) == [*range(90, 110)]
    assert source.rests == 2
    assert [at for _, at in source.assigned] == [0, 80, 90]


def test_records_that_are_passed_over_are_progress(scripted: Callable[..., ScriptedSource]) -> None:
    passed = [([each], []) for each in range(1, 30)]
    scripted(([0], []), *passed, ([30], []), seconds=0.02)
    assert [offsets(0, 1), offsets(30, 31, replace(SETTINGS, poll_timeout_ms=100))] == [[0], [30]]


def test_a_client_that_goes_on_without_records_makes_progress(scripted: Callable[..., ScriptedSource]) -> None:
    scripted(*[((), [])] * 30, (range(30, 31), []), seconds=0.02, positions=range(31))
    assert offsets(0, 31, replace(SETTINGS, poll_timeout_ms=100)) == [30]


def test_a_client_that_stands_still_is_given_up(scripted: Callable[..., ScriptedSource]) -> None:
    scripted(seconds=0.01)
    with pytest.raises(ServiceUnavailableError, match=r"No record arrived for 0\.1 s at offset 0"):
        offsets(0, 10, replace(SETTINGS, poll_timeout_ms=100))


NOBODY_ASKED = Event("_AUTHENTICATION", "FindCoordinator response error: Local: Authentication failure", -1)


def test_a_coordinator_that_cannot_be_found_is_passed_over(scripted: Callable[..., ScriptedSource]) -> None:
    scripted(((), [NOBODY_ASKED]), (range(10), []))
    assert offsets(0, 10) == list(range(10))


def test_rows_that_come_after_a_log_in_was_refused_are_read(scripted: Callable[..., ScriptedSource]) -> None:
    source = scripted(*[((), [])] * 5, (range(10), []))
    source.connection_errors.receive(
        "SASL_AUTHENTICATION_FAILED", 'SASL authentication error: {"status":"invalid_token"}'
    )
    assert offsets(0, 10) == list(range(10))
    assert source.connection_errors.refusal is None


def test_a_log_in_that_is_refused_ends_a_read_long_before_the_poll_timeout(
    scripted: Callable[..., ScriptedSource],
) -> None:
    source = scripted(seconds=0.01)
    source.connection_errors.receive("SASL_AUTHENTICATION_FAILED", "SASL authentication error: no")
    read = PartitionReader(PooledConsumer(SETTINGS, ""), OffsetRange("t", 0, 0, 10), SETTINGS, refused_seconds=0.1)
    with pytest.raises(CredentialsError, match=r"\[KAFKA_LOG_IN\].*SASL authentication error: no"):
        next(read.batches())


def test_a_client_that_is_given_up_tells_what_it_said_last(scripted: Callable[..., ScriptedSource]) -> None:
    source = scripted(seconds=0.01)
    source.connection_errors.receive(
        "_AUTHENTICATION", "Failed to acquire SASL OAUTHBEARER token: Could not connect to server"
    )
    with pytest.raises(ServiceUnavailableError, match=r"KAFKA_POLL_TIMEOUT.*last reported: Failed to acquire SASL"):
        offsets(0, 10, replace(SETTINGS, poll_timeout_ms=100))
