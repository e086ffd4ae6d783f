"""Background jobs of the Kinesis source, and the pace of its calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from connectors.core.offsets import SENTINEL
from connectors.kinesis.client.client import Page, Record
from connectors.kinesis.datasource import open_stream
from connectors.kinesis.offsets import NEW, TRIM, ShardState, after
from connectors.kinesis.options.source import parse_read_options
from connectors.kinesis.source.micro_batch import Share, counted_end
from connectors.kinesis.source.pages import ShardPages, first_record, is_above_limits
from connectors.kinesis.source.shard_monitor import Job, Scheduler, ShardMonitor
from connectors.testing.kinesis import KinesisServer
from tests.support.waiting import wait_for

PATIENCE = 30.0


@pytest.fixture
def jobs() -> Iterator[Scheduler]:
    made = Scheduler(3, errors.append)
    errors.clear()
    yield made
    made.stop()


errors: list[BaseException] = []


LATEST = {"streamName": "orders", "awsAccessKey": "AKIATEST", "awsSecretKey": "secret"}
OPTIONS = LATEST | {"initialPosition": "trim_horizon"}


@pytest.fixture
def walked() -> Iterator[KinesisServer]:
    """A shard with a gap that takes a dozen answers to pass over."""
    with KinesisServer() as server:
        server.create_stream("orders")
        server.walk(60)
        server.put("orders", [("k", b"before")])
        server.jump(600)
        server.put("orders", [("k", b"after")])
        yield server


def test_18_a_limit_is_counted_at_the_pace_of_a_shard(walked: KinesisServer) -> None:
    options = OPTIONS | {"endpointUrl": walked.url, "minFetchPeriod": "60ms", "maxRecordsPerTrigger": "100"}
    stream = open_stream(parse_read_options(options, {}, streaming=True))
    stream.latest_offset(SENTINEL, everything=False)
    stream.stop()
    times = [call.monotonic_ns / 1e9 for call in walked.calls("GetRecords")]
    assert len(times) > 10
    # Three at once after a pause, and the first call is late by what it takes to connect.
    assert len(times) <= (times[-1] - times[0]) / 0.06 + 4


def test_18_what_reads_from_a_shard_beside_the_tail_waits_for_the_first_call_of_a_task_too(
    walked: KinesisServer,
) -> None:
    watch, look = _look(walked, "100ms")
    watch.set_busy([("arn", look.shard)])
    began = time.monotonic()
    watch.scheduler.all_of([partial(first_record, look, TRIM)])
    assert time.monotonic() - began >= 0.1
    watch.stop()


def test_17_a_count_goes_on_at_the_answer_that_was_refused(
    walked: KinesisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, look = _look(walked, "30ms")
    records, made = watch.client.records, 0

    def refuse_the_fifth(*asked: Any) -> Any:
        nonlocal made
        made += 1
        if made == 5:
            walked.throttle("GetRecords")
        return records(*asked)

    monkeypatch.setattr(watch.client, "records", refuse_the_fifth)
    limits = [partial(counted_end, look, ShardState(), ShardState(after(10**60)), Share(100, None))]
    (end,) = watch.scheduler.all_of(limits)
    watch.stop()
    (_, last) = walked.records("orders")
    assert end.position == after(last.sequence_number)
    assert sum(bool(call.error) for call in walked.calls("GetRecords")) == 1
    assert walked.call_counts("orders")["GetShardIterator"] == 1


def _look(server: KinesisServer, period: str) -> tuple[ShardMonitor, ShardPages]:
    """The shard of the stream, with no task beside."""
    watch = ShardMonitor(parse_read_options(OPTIONS | {"endpointUrl": server.url, "minFetchPeriod": period}, {}))
    (shard,) = server.shards("orders")
    return watch, watch.pages(("arn", shard), "orders")


def test_14_with_many_shards_looks_become_rarer_so_that_they_take_a_part_of_a_core() -> None:
    with _watching(40) as (server, watch):
        calls = server.call_counts("orders")["GetRecords"]
        watch.round_seconds = 3600.0  # as if a look took that long
        watch.refresh(exact=False)  # is hurried all the same
        asked = server.call_counts("orders")["GetRecords"]
        assert asked > calls
        time.sleep(0.2)  # no event shows that no further look follows; 40 shards would be looked at 40 times meanwhile
        assert server.call_counts("orders")["GetRecords"] <= asked + 40, "one round that was under way"


def test_14_with_many_shards_a_batch_that_ends_does_not_hurry_the_looks() -> None:
    with _watching(40) as (server, watch):
        shards = list(watch._tasks)
        watch.set_busy(shards)
        watch.round_seconds = 3600.0  # as if a look took that long
        watch.refresh(exact=False)
        wait_for(lambda: all(map(_waits, watch._jobs.values())))
        asked = server.call_counts("orders")["GetRecords"]
        for _ in range(5):
            watch.set_busy([])
            time.sleep(0.05)  # no event shows that no look follows
            watch.set_busy(shards)
        assert server.call_counts("orders")["GetRecords"] == asked
        watch.round_seconds = 0.0
        watch.set_busy([])  # few shards: what came during the batch is looked for at once
        wait_for(lambda: server.call_counts("orders")["GetRecords"] > asked)


def test_14_a_look_that_takes_several_calls_counts_with_the_processor_time_of_all() -> None:
    with _watching(1) as (_, watch):
        watch.stop()
        (followed,) = watch._tasks.values()
        wait_for(lambda: not watch._jobs[followed.key].running)  # the look that is under way counts too
        watch.round_seconds = followed.cpu_seconds = 0.0
        for settled in (False, False, True):
            followed.latest.settled = settled
            watch._add_cpu(followed, 1.0)
        three = watch.round_seconds
        watch.round_seconds = 0.0
        watch._add_cpu(followed, 1.0)
        assert three == pytest.approx(3 * watch.round_seconds)
        assert watch.round_seconds > 0


def _waits(job: Job) -> bool:
    """Return whether a poll is neither running nor due soon."""
    due = job.due
    return not job.running and due is not None and due > time.monotonic() + 60


@contextmanager
def _watching(shards: int) -> Iterator[tuple[KinesisServer, ShardMonitor]]:
    """All shards of a stream, looked at once and then every 5 ms."""
    with KinesisServer() as server:
        server.create_stream("orders", shards)
        quick = {"minFetchPeriod": "5ms", "idleFetchPeriod": "5ms"}
        watch = ShardMonitor(parse_read_options(OPTIONS | quick | {"endpointUrl": server.url}, {}))
        (listing,) = watch.listings(fresh=True)
        watch.follow({(listing.arn, shard): NEW for shard in listing.shards}, [listing])
        watch.refresh(exact=False)
        yield server, watch
        watch.stop()


def test_14_the_end_of_a_batch_is_found_as_often_as_takes_a_part_of_a_core() -> None:
    with KinesisServer() as server:
        server.create_stream("orders", 40)
        quick = {"endpointUrl": server.url, "idleFetchPeriod": "10ms", "minFetchPeriod": "5ms"}
        stream = open_stream(parse_read_options(LATEST | quick, {}))
        start = stream.latest_offset(SENTINEL, everything=False)
        start = {key: value for key, value in start.items() if key != "_start"}
        stream.latest_offset(start, everything=False)
        began, spent = time.monotonic(), time.thread_time()
        for _ in range(30):  # while each look at a shard tells something new
            assert stream.latest_offset(start, everything=False) == start
        assert time.monotonic() - began >= 8 * (time.thread_time() - spent)
        stream.stop()


def test_answers_come_in_the_order_of_their_questions_and_an_error_is_raised(jobs: Scheduler) -> None:
    assert jobs.all_of([lambda number=number: number for number in range(50)]) == list(range(50))  # type: ignore[misc]
    with pytest.raises(ZeroDivisionError):
        jobs.all_of([lambda: 1, lambda: 1 // 0])  # type: ignore[list-item]


def test_questions_are_asked_side_by_side_when_one_thread_is_idle(jobs: Scheduler) -> None:
    jobs.all_of([lambda: 1])
    together = threading.Barrier(3, timeout=PATIENCE)
    assert sorted(jobs.all_of([together.wait] * 3)) == [0, 1, 2]


def test_a_job_is_done_again_until_it_says_otherwise_and_never_twice_at_a_time(jobs: Scheduler) -> None:
    done = threading.Event()
    count = inside = 0

    def run() -> float | None:
        nonlocal count, inside
        inside += 1
        assert inside == 1
        count += 1
        time.sleep(0.001)
        inside -= 1
        if count < 20:
            return 0.0
        done.set()
        return None

    job = Job(run)
    jobs.add(job)
    for _ in range(10):
        jobs.hurry(job)
    assert done.wait(PATIENCE)
    assert errors == []


def test_a_job_that_is_hurried_while_it_runs_is_done_once_more(jobs: Scheduler) -> None:
    began, go, again = threading.Event(), threading.Event(), threading.Event()

    def run() -> float:
        if began.is_set():
            again.set()
        began.set()
        go.wait(PATIENCE)
        return 3600.0

    job = Job(run)
    jobs.add(job)
    assert began.wait(PATIENCE)
    jobs.hurry(job)
    go.set()
    assert again.wait(PATIENCE)


def test_a_job_that_was_dropped_is_not_done_and_one_that_fails_says_so(jobs: Scheduler) -> None:
    ran = threading.Event()
    dropped, failing = Job(ran.set), Job(lambda: 1 / 0)
    jobs.drop(dropped)
    jobs.add(dropped)
    jobs.add(failing)
    wait_for(lambda: errors)
    assert isinstance(errors[0], ZeroDivisionError)
    assert not ran.is_set()


def _page(*arrivals: int, size: int = 1) -> Page:
    return Page([Record("1", b"x" * size, "k", arrival / 1000) for arrival in arrivals], None, 0, 0)


@pytest.mark.parametrize(
    ("page", "above"),
    [
        (_page(), False),
        (_page(*[5000] * 1000), False),
        (_page(*[5000] * 1001), True),
        (_page(*range(5000, 6000), 6000), False),
        (_page(*[5000] * 2001, 6000), True),
        (_page(5000, size=1 << 20), True),  # with its key
        (_page(5000, size=(1 << 20) - 1), False),
        (_page(5000, 6000, size=(1 << 20) - 1), False),
        (_page(*[0] * 1001), True),  # the service does not say when they arrived
    ],
)
def test_a_page_that_a_shard_of_aws_does_not_take_in_its_time_is_above_its_limits(page: Page, above: bool) -> None:
    assert is_above_limits(page) == above


@pytest.mark.parametrize(
    ("url", "own"),
    [
        ({}, True),
        ({"endpointUrl": "https://kinesis.eu-west-1.amazonaws.com"}, True),
        ({"endpointUrl": "https://vpce-1.kinesis.eu-west-1.vpce.amazonaws.com"}, True),
        ({"endpointUrl": "https://kinesis.cn-north-1.amazonaws.com.cn"}, True),
        ({"endpointUrl": "https://kinesis.eu-west-1.api.aws:443/"}, True),
        ({"endpointUrl": "http://127.0.0.1:4566"}, False),
        ({"endpointUrl": "https://kinesis.eu-west-1.amazonaws.com.example.org"}, False),
        ({"endpointUrl": "https://amazonaws.com.internal"}, False),
    ],
)
def test_a_limit_is_estimated_only_of_aws_until_more_was_seen_than_its_shards_take(
    url: dict[str, str], own: bool
) -> None:
    monitor = ShardMonitor(parse_read_options(OPTIONS | {"region": "eu-west-1"} | url, {}, streaming=True))
    try:
        assert monitor.keeps_limits == own
        monitor.pacer.counted(("arn", "shard"), lambda: _page(1, 2, 3))
        assert monitor.keeps_limits == own
        monitor.pacer.counted(("arn", "shard"), lambda: _page(*[5000] * 1001))
        monitor.pacer.counted(("arn", "shard"), lambda: _page(6000))
        assert not monitor.keeps_limits
    finally:
        monitor.stop()
