"""How the driver finds a shard's newest record, on a shard that is a list in memory."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.kinesis.client.client import Page, Record
from connectors.kinesis.offsets import TRIM, Position, PositionKind, ShardState, after
from connectors.kinesis.source.latest_record import LatestRecord, probe_times

START = 1_700_000_000_000


class ListedShard:
    """A shard whose records are the times of their arrival; an iterator is the place of the next record.

    Args:
        arrivals: in milliseconds after `START`, sorted.
        walk_ms: how much time an answer looks over at most.
        size: the bytes of each record's data.
    """

    def __init__(self, arrivals: list[int], walk_ms: int = 10**9, size: int = 0) -> None:
        self.data = b"." * size
        self.arrivals = [START + each for each in arrivals]
        self.now_ms = max(self.arrivals, default=START)
        self.walk_ms = walk_ms
        self.closed = False
        self.calls = 0
        self.sent = 0

    def put(self, count: int, arrival: int) -> None:
        self.now_ms = max(self.now_ms, START + arrival)
        self.arrivals += [START + arrival] * count

    def iterator(self, _stream: str, _shard: str, position: Position) -> str:
        if position.kind is PositionKind.TIME:
            return f"{bisect_left(self.arrivals, position.number)} {position.number}"
        place = position.number if position.kind is PositionKind.AFTER else 0
        return f"{place} {self.arrivals[place - 1] if place else START - 10**7}"

    def records(self, iterator: str, limit: int, _stream: str, _shard: str) -> Page:
        self.calls += 1
        place, time_ms = (int(part) for part in iterator.split())
        until = min(time_ms + self.walk_ms, self.now_ms)
        found = [each for each in self.arrivals[place : place + limit] if each <= until]
        self.sent += len(found)
        end = place + len(found)
        made = [Record(str(place + n + 1), self.data, "k", each / 1000) for n, each in enumerate(found)]
        reached = found[-1] if found else until
        at_end = end == len(self.arrivals) and (bool(found) or until == self.now_ms)
        newest = self.arrivals[-1] if self.arrivals else reached
        behind = 0 if at_end else max(0, newest - reached) if found else max(1, newest - reached)
        following = None if self.closed and at_end else f"{end} {reached}"
        return Page(made, following, behind, self.now_ms // 1000 * 1000)


def tail_of(shard: ListedShard, state: ShardState | None = None) -> LatestRecord:
    begin = state or ShardState(TRIM)
    return LatestRecord(shard, "orders", "a", begin, window_ms=1000, oldest_ms=START - 10**7)  # type: ignore[arg-type]


def round_of(tail: LatestRecord, *, exact: bool = False) -> int:
    """Do one round, and return how many calls it took."""
    calls = tail.step(exact=exact)
    while not tail.settled:
        calls += tail.step(exact=exact)
        assert calls < 3000
    return calls


@given(st.lists(st.integers(0, 200_000), max_size=300), st.sampled_from([10**9, 20_000]), st.integers(0, 300))
def test_an_exact_round_ends_at_the_newest_record(times: list[int], walk_ms: int, read: int) -> None:
    shard = ListedShard(sorted(times), walk_ms)
    read = min(read, len(times))
    state = ShardState(after(read), shard.arrivals[read - 1]) if read else None
    tail = tail_of(shard, state)
    round_of(tail, exact=True)
    assert tail.seen.number == (len(times) if len(times) > read else None)


@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=300))
def test_rounds_reach_the_newest_record_however_it_came(times: list[int]) -> None:
    shard = ListedShard(sorted(times))
    tail = tail_of(shard)
    for _ in range(20):
        round_of(tail)
    assert tail.seen.number == len(times)
    assert tail.seen.clean_ms is not None


def test_a_burst_in_one_millisecond_is_seen_in_few_rounds() -> None:
    shard = ListedShard([5] * 5000)
    tail = tail_of(shard)
    assert sum(round_of(tail) for _ in range(2)) < 8
    assert tail.seen.number == 5000


def test_a_first_round_ends_at_the_first_answer_of_a_shard_that_is_not_behind() -> None:
    shard = ListedShard([5])
    tail = tail_of(shard)
    assert round_of(tail) == 1
    assert tail.seen.number == 1


@pytest.mark.parametrize(("exact", "calls"), [(False, 2), (True, 3)])
def test_a_first_round_sees_the_few_records_of_an_idle_shard_in_few_calls(exact: bool, calls: int) -> None:
    shard = ListedShard([1, 50, 900, 20_000, 20_001, 500_000])
    shard.now_ms = START + 3_600_000
    tail = tail_of(shard)
    assert round_of(tail, exact=exact) == calls
    assert tail.seen.number == 6


@pytest.mark.parametrize("size", [0, 100, 10_000, 10**6])
def test_a_first_round_of_a_backlog_reads_one_page_of_bounded_size_and_the_next_goes_on(size: int) -> None:
    shard = ListedShard(list(range(0, 600_000, 10)), size=size)
    tail = tail_of(shard)
    assert round_of(tail) <= 2
    assert shard.sent <= 1001
    assert shard.sent * size <= max(2 * size, 300_000)
    first = tail.seen.number
    assert first
    round_of(tail)
    assert tail.seen.number is not None
    assert tail.seen.number > first
    assert shard.arrivals[-1] - shard.arrivals[tail.seen.number - 1] <= 2000
    assert shard.sent <= 1020


def test_a_first_round_ends_at_the_first_record_that_a_search_finds() -> None:
    times = [10**6 + each for each in range(0, 3_600_000, 100)]
    shard = ListedShard(times, walk_ms=10_000)
    shard.now_ms = START + times[-1] + 3_600_000
    tail = tail_of(shard)
    calls = round_of(tail)
    assert tail.seen.number
    more = round_of(tail)
    assert calls + more > calls + 2
    assert tail.seen.number == len(times)


def test_a_busy_shard_costs_two_calls_and_two_records_a_round() -> None:
    shard = ListedShard(list(range(60_000)))
    tail = tail_of(shard)
    for _ in range(2):  # the first one ends with the first page
        round_of(tail)
    for second in range(60, 90):
        for number in range(1000):
            shard.put(1, second * 1000 + number)
        calls, sent = shard.calls, shard.sent
        round_of(tail)
        assert shard.calls - calls == 2
        assert shard.sent - sent == 2
        assert tail.seen.number is not None
        assert shard.arrivals[-1] - shard.arrivals[tail.seen.number - 1] <= 2000


def test_14_an_idle_shard_costs_one_call_a_round_and_no_record() -> None:
    shard = ListedShard([1, 2, 3])
    tail = tail_of(shard)
    round_of(tail, exact=True)
    for minute in range(1, 10):
        shard.now_ms = START + minute * 60_000
        assert round_of(tail) == 1
        assert tail.seen.clean_ms == shard.now_ms - 1000
    assert tail.seen.number == 3


def test_a_closed_shard_ends() -> None:
    shard = ListedShard([1, 2, 3])
    shard.closed = True
    tail = tail_of(shard)
    for _ in range(3):
        if not tail.seen.ended:
            round_of(tail)
    assert tail.seen.ended


@pytest.mark.parametrize("clean", [None, START + 500_000])
def test_13_a_long_silence_is_passed_over(clean: int | None) -> None:
    shard = ListedShard([0], walk_ms=10_000)
    shard.now_ms = START + 600_000
    tail = tail_of(shard, ShardState(after(1), START, clean))
    calls = round_of(tail)
    assert tail.seen.number is None
    assert tail.seen.clean_ms == shard.now_ms - 1000
    assert calls < (40 if clean else 1000)
    shard.put(1, 601_000)
    round_of(tail)
    assert tail.seen.number == 2


# The search for the newest record


def searched(arrivals: list[int], low: int, now: int, window: int) -> tuple[int | None, int]:
    """The newest arrival that the search has found among sorted ones, and how often it looked."""
    search = probe_times(low, now, window)
    best: int | None = None
    looks = 0
    moment: int | None = next(search)
    while moment is not None:
        looks += 1
        assert moment >= low
        found = next((each for each in arrivals if each >= moment), None)
        best = max((each for each in (best, found) if each is not None), default=None)
        try:
            moment = search.send(found)
        except StopIteration:
            moment = None
    return best, looks


@given(st.lists(st.integers(0, 1_000_000), max_size=40), st.integers(0, 1_000_000), st.integers(1, 5000))
def test_the_search_ends_near_the_newest_record_in_few_looks(times: list[int], low: int, window: int) -> None:
    arrivals = sorted(times)
    best, looks = searched(arrivals, low, 1_000_000, window)
    newest = max((each for each in arrivals if each >= low), default=None)
    assert looks <= 40
    assert (best is None) == (newest is None)
    if best is not None and newest is not None:
        assert newest - best <= window


def test_a_busy_shard_needs_one_look() -> None:
    search = probe_times(0, 100_000, 1000)
    assert next(search) == 99_000
    with pytest.raises(StopIteration):
        search.send(99_010)


def test_a_busy_time_long_ago_is_halved_down_to_the_window() -> None:
    arrivals = list(range(50_000, 60_000, 10))
    best, looks = searched(arrivals, 0, 100_000, 1000)
    assert best is not None
    assert best >= arrivals[-1] - 1000
    assert looks < 12
