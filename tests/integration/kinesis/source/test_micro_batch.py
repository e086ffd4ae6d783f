"""The Kinesis source as a stream, by polling, on our own server; numbered as in ``docs/explanation/kinesis.md``."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from connectors.core.errors import ConnectorError, DataLossError, ServiceUnavailableError
from connectors.core.offsets import SENTINEL, START_KEY
from connectors.kinesis.client.client import KinesisClient
from connectors.kinesis.datasource import KinesisDataSource, open_stream, read_settings
from connectors.kinesis.offsets import END, TRIM, read_offset
from connectors.kinesis.options.source import KinesisReadOptions, parse_read_options
from connectors.kinesis.shards import ShardRange
from connectors.kinesis.source.reader import read_range
from connectors.testing.kinesis import KinesisServerProcess, start_server_process
from tests.support.kinesis_rig import PATIENCE, KinesisRig, wait_until
from tests.support.spark_protocol.driver import (
    STEPS,
    DriverCrashedError,
    ReaderFailedError,
    Step,
    TaskFailedError,
)

HOUR = 3600.0


@pytest.fixture(scope="module")
def server() -> Iterator[KinesisServerProcess]:
    made = start_server_process()
    yield made
    made.close()


@pytest.fixture
def kinesis(server: KinesisServerProcess, tmp_path: Path) -> Iterator[KinesisRig]:
    yield KinesisRig(server, tmp_path)
    server.clear_faults()


@pytest.fixture
def two(server: KinesisServerProcess, tmp_path: Path) -> Iterator[KinesisRig]:
    """A stream of two shards."""
    yield KinesisRig(server, tmp_path, shards=2)
    server.clear_faults()


# Ranges


def test_01_a_number_with_more_digits_is_newer(kinesis: KinesisRig) -> None:
    (shard,) = kinesis.server.shards(kinesis.stream)
    first = kinesis.server.records(kinesis.stream)
    assert first == []
    values = kinesis.put(1)
    number = kinesis.server.records(kinesis.stream)[0].sequence_number
    kinesis.server.number_from(kinesis.stream, shard, 10 ** len(str(number)) - 1)
    with kinesis.query() as query:
        kinesis.drain(query, values)
        values += kinesis.put(1)
        kinesis.drain(query, values)
        values += kinesis.put(1)
        kinesis.drain(query, values)


def test_02_a_range_read_by_other_pages_has_the_same_rows(kinesis: KinesisRig) -> None:
    values = kinesis.put(205)
    reads = [kinesis.read(maxRecordsPerFetch=page) for page in ("10000", "37", "1")]
    assert [row["data"] for row in reads[0]] == values
    assert reads[0] == reads[1] == reads[2]


@pytest.mark.guarantee
def test_03_a_driver_that_dies_before_the_commit_loses_and_doubles_nothing(two: KinesisRig) -> None:
    values = two.put(20)
    with two.query() as query:
        query.crash_at("sink_written")
        with pytest.raises(DriverCrashedError):
            query.run_until(lambda _batches: False, PATIENCE)
        values += two.put(20)
        query.restart()
        two.drain(query, values)


@pytest.mark.guarantee
@pytest.mark.long
def test_03_random_crashes_across_splits_and_merges_lose_and_double_nothing(two: KinesisRig, seed: int) -> None:
    choose = random.Random(seed)
    values = two.put(30)
    with two.query(maxRecordsPerTrigger="25") as query:
        for _ in range(5):
            query.crash_at(choose.choice(STEPS))
            values += two.put(choose.randrange(40))
            left = two.server.shards(two.stream, only_open=True)
            if choose.random() < 0.5:
                two.server.split(two.stream, choose.choice(left))
            elif choose.random() < 0.5 and len(left) > 2:
                two.server.merge(two.stream, *left[-2:])
            values += two.put(choose.randrange(1, 40))
            with pytest.raises(DriverCrashedError):
                query.run_until(lambda _batches: False, PATIENCE)
            query.restart()
        two.drain(query, values)
    _parents_came_before_children(two)


def test_04_05_attempts_and_actions_of_one_batch_read_the_same(two: KinesisRig) -> None:
    values = two.put(50)
    with two.query(attempts=3) as query:  # raises if the rows differ
        two.drain(query, values)


# Starts


def test_06_latest_reads_all_that_comes_after_its_first_batch_was_planned(kinesis: KinesisRig) -> None:
    kinesis.put(5)
    kinesis.server.jump(5)
    with kinesis.query(initialPosition="latest") as query:
        query.crash_at("offsets_logged")
        with pytest.raises(DriverCrashedError):
            query.run_batch(PATIENCE)
        began = query.checkpoint.offsets(0)[0]
        kinesis.server.jump(60)
        values = kinesis.put(5)
        query.restart()
        kinesis.drain(query, values)
        assert query.checkpoint.offsets(0)[0] == began


@pytest.mark.guarantee
@pytest.mark.parametrize("step", STEPS)
def test_06_latest_loses_nothing_of_a_shard_that_was_empty_when_the_query_was_killed(
    two: KinesisRig, step: Step
) -> None:
    first, second = two.server.shards(two.stream)
    two.put(5)
    two.server.jump(5)
    with two.query(initialPosition="latest") as query:
        query.crash_at(step)
        with contextlib.suppress(DriverCrashedError):
            query.run_until(lambda _batches: query.checkpoint.latest_commit is not None, PATIENCE)
        two.server.jump(60)
        values = two.put_to(first, 3)
        query.restart()
        two.drain(query, values)
        query.stop()
        two.server.jump(60)
        values += two.put_to(first, 3) + two.put_to(second, 3)
        query.start()
        two.drain(query, values)


def test_07_12_what_two_levels_of_splits_wrote_while_the_query_was_down_is_all_read(kinesis: KinesisRig) -> None:
    kinesis.server.jump(5)
    with kinesis.query(initialPosition="latest") as query:
        query.run_batch(PATIENCE)
        values = kinesis.put(20)
        kinesis.drain(query, values)
        query.stop()
        values += kinesis.put(20)
        (shard,) = kinesis.server.shards(kinesis.stream)
        children = kinesis.server.split(kinesis.stream, shard)
        values += kinesis.put(40)
        for child in children:
            kinesis.server.split(kinesis.stream, child)
            values += kinesis.put(40)
        query.start()
        kinesis.drain(query, values)
    _parents_came_before_children(kinesis)


def _parents_came_before_children(kinesis: KinesisRig) -> None:
    """Whether every row of a parent is in an earlier batch than those of its children."""
    listing = KinesisClient(parse_read_options(kinesis.options(), {})).listing(kinesis.stream)
    batches: dict[str, list[int]] = {}
    for row in kinesis.rows():
        batches.setdefault(row["shardId"], []).append(row["batch"])
    checked = 0
    for shard in listing.shards.values():
        for parent in shard.parents:
            if shard.shard_id in batches and parent in batches:
                assert max(batches[parent]) < min(batches[shard.shard_id])
                checked += 1
    assert checked > 0 or not any(shard.parents for shard in listing.shards.values())


@pytest.mark.parametrize("limit", ["1000", "20"])
def test_08_09_splits_and_merges_under_load_give_every_record_once_in_order(two: KinesisRig, limit: str) -> None:
    values = two.put(30)
    resharded: list[int] = []

    def sink(batch: int, tables: Sequence[pa.Table]) -> None:
        """Between two batches more records come, and now and then other shards, some with a backlog."""
        two.sink(batch, tables)
        if len(resharded) == 6 or not sum(table.num_rows for table in tables):
            return
        values.extend(two.put(30))
        if batch % 2 == 0:
            left = two.server.shards(two.stream, only_open=True)
            if len(resharded) % 2 == 0:
                two.server.split(two.stream, left[0])
            else:
                two.server.merge(two.stream, *left[-2:])
            resharded.append(batch)
            values.extend(two.put(30))

    with two.query(sink=sink, maxRecordsPerTrigger=limit) as query:
        query.run_until(lambda _batches: len(resharded) == 6 and two.sink.rows() >= len(values), PATIENCE)
    two.all_once(values)
    _parents_came_before_children(two)


def test_09_an_empty_parent_holds_its_child_up_no_longer_than_it_takes_to_see_it(two: KinesisRig) -> None:
    first, second = two.server.shards(two.stream)
    values = two.put_to(first, 3)
    two.server.merge(two.stream, first, second)
    values += two.put(5)
    with two.query() as query:
        two.drain(query, values)


def test_10_a_closed_parent_is_drained(kinesis: KinesisRig) -> None:
    values = kinesis.put(3)
    with kinesis.query(maxRecordsPerTrigger="2") as query:
        query.run_batch(PATIENCE)
        query.stop()
        values += kinesis.put(10)
        kinesis.server.split(kinesis.stream, kinesis.server.shards(kinesis.stream)[0])
        values += kinesis.put(10)
        query.start()
        kinesis.drain(query, values)


def test_11_trim_horizon_begins_with_the_backlog_of_closed_shards(kinesis: KinesisRig) -> None:
    values = kinesis.put(10)
    kinesis.server.split(kinesis.stream, kinesis.server.shards(kinesis.stream)[0])
    values += kinesis.put(10)
    with kinesis.query() as query:
        kinesis.drain(query, values)
    _parents_came_before_children(kinesis)


# Reading


def test_13_empty_answers_end_nothing(kinesis: KinesisRig) -> None:
    (shard,) = kinesis.server.shards(kinesis.stream)
    values = kinesis.put(10)
    kinesis.server.empty_answers(kinesis.stream, shard, 25)
    with kinesis.query() as query:
        kinesis.drain(query, values)
        kinesis.server.empty_answers(kinesis.stream, shard, 25)
        values += kinesis.put(10)
        kinesis.drain(query, values)


def test_13_a_backlog_of_hours_with_gaps_is_read(kinesis: KinesisRig) -> None:
    kinesis.server.walk(600)
    values = kinesis.put(5)
    kinesis.server.jump(3 * HOUR)
    values += kinesis.put(5)
    kinesis.server.jump(3 * HOUR)
    with kinesis.query() as query:
        kinesis.drain(query, values)


def test_14_an_idle_shard_gives_no_offset_and_no_batch(kinesis: KinesisRig) -> None:
    values = kinesis.put(3)
    with kinesis.query() as query:
        kinesis.drain(query, values)
        query.idle(50)


def test_14_an_idle_shard_costs_few_calls(kinesis: KinesisRig) -> None:
    values = kinesis.put(3)
    with kinesis.query(minFetchPeriod="10ms", idleFetchPeriod="200ms") as query:
        kinesis.drain(query, values)
        wait_until(lambda: kinesis.calls("GetRecords", lambda: time.sleep(0.5)) <= 3)
        iterators = kinesis.server.call_counts(kinesis.stream)["GetShardIterator"]
        began = time.monotonic()
        count = kinesis.calls("GetRecords", lambda: query.idle(100))
        most = (time.monotonic() - began) / 0.2 + 12
        assert count <= most, "about one call each 200 ms while Spark asks each 10 ms"
        assert kinesis.server.call_counts(kinesis.stream)["GetShardIterator"] == iterators


def test_14_18_driver_and_tasks_together_keep_the_pace(kinesis: KinesisRig) -> None:
    values = kinesis.put(5)
    since = kinesis.server.next_call()
    period = 0.1

    def sink(batch: int, tables: Sequence[pa.Table]) -> None:
        kinesis.sink(batch, tables)
        if batch < 12:
            values.extend(kinesis.put(30))

    with kinesis.query(sink=sink, minFetchPeriod=f"{period}s", maxRecordsPerFetch="20") as query:
        query.run_until(lambda _batches: query.batch_id > 12 and kinesis.sink.rows() >= len(values), PATIENCE)
    kinesis.all_once(values)
    times = [call.monotonic_ns / 1e9 for call in kinesis.server.calls("GetRecords", kinesis.stream, since=since)]
    assert len(times) > 12
    assert len(times) <= (times[-1] - times[0]) / period * 1.15 + 4


def test_14_18_the_search_for_the_newest_record_is_quicker_than_the_pace_and_keeps_the_limits(tmp_path: Path) -> None:
    with start_server_process() as server:
        rig = KinesisRig(server, tmp_path)
        for _ in range(40):  # a search by time halves these seconds
            server.fill(rig.stream, 1000, 100, keys=10)
            server.jump(1)
        server.jump(20)
        server.enforce_limits()
        pace = {"minFetchPeriod": "400ms", "idleFetchPeriod": "400ms"}
        stream = open_stream(parse_read_options(rig.options(**pace), {}, streaming=True))
        try:
            stream.latest_offset(dict(SENTINEL), everything=True)
            found_after = server.next_call()
            wait_until(lambda: len(server.calls("GetRecords", rig.stream, since=found_after)) >= 6)
        finally:
            stream.stop()
        calls = server.calls("GetRecords", rig.stream)
        times = [call.monotonic_ns / 1e9 for call in calls]
        search = [time for time, call in zip(times, calls, strict=True) if call.index < found_after]
        assert len(search) > 6
        assert (search[-1] - search[0]) / (len(search) - 1) < 0.32, "0.4 s is the pace of what follows"
        assert not any(call.error for call in calls)
        assert max(sum(each <= time < each + 1 for time in times) for each in times) <= 5


def test_a_batch_that_takes_long_waits_for_the_ends_of_other_shards(two: KinesisRig) -> None:
    slow, quick = two.server.shards(two.stream)
    for _ in range(30):
        for shard in (slow, quick):
            two.put_to(shard, 100)
        two.server.jump(1)
    two.server.jump(20)
    stream = open_stream(parse_read_options(two.options(minFetchPeriod="50ms"), {}, streaming=True))
    try:
        first = stream.latest_offset(dict(SENTINEL), everything=False)
        stream.partitions(dict(SENTINEL), first)
        begin = {key: value for key, value in first.items() if key != START_KEY}
        two.server.fail("GetRecords", "ProvisionedThroughputExceededException", 3, stream=two.stream, shard=slow)
        ends: list[dict[str, object]] = []

        def is_long() -> bool:
            """Whether the end lies far ahead in one shard; the shorter batches before it are taken too."""
            ends.append(stream.latest_offset(ends[-1] if ends else begin, everything=False))
            return any(ahead(shard) > 5000 for shard in (slow, quick))

        def ahead(shard: str) -> int:
            """Milliseconds of arrivals that the last batch has of a shard."""
            (before,), (end,) = (read_offset(each).values() for each in ([begin, *ends][-2], ends[-1]))
            return (end.shards[shard].arrival_ms or 0) - (before.shards[shard].arrival_ms or 0)

        wait_until(is_long)
    finally:
        stream.stop()
    assert min(ahead(slow), ahead(quick)) > 10_000


def test_15_new_data_on_one_of_many_shards_is_one_task(server: KinesisServerProcess, tmp_path: Path) -> None:
    many = KinesisRig(server, tmp_path, shards=50)
    with many.query() as query:
        query.run_batch(PATIENCE)
        values = many.put_to(many.server.shards(many.stream)[17], 3)
        batches = query.run_until(lambda batches: any(each.rows for each in batches), PATIENCE)
        assert [len(each.tables) for each in batches if each.rows][:1] == [1]
        many.drain(query, values)


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        ({}, 1),
        ({"minPartitions": "3"}, 3),
        ({"minPartitions": "9"}, 5),
        ({"maxFetchRate": "10"}, 2),
        ({"maxFetchRate": "1000"}, 5),
    ],
)
def test_15_shards_share_a_task_as_far_as_their_rate_is_that_of_a_core(
    server: KinesisServerProcess, tmp_path: Path, options: dict[str, str], tasks: int
) -> None:
    some = KinesisRig(server, tmp_path, shards=5)
    values = [value for shard in server.shards(some.stream) for value in some.put_to(shard, 2)]
    with some.query(trigger="once", **{"maxFetchRate": "2", **options}) as query:
        batch = query.run_trigger()
    assert batch is not None
    assert len(batch.tables) == tasks
    assert sorted(batch.values("data")) == sorted(values)


def test_2_4_a_task_of_several_shards_gives_the_same_rows_in_the_same_order_whatever_the_pages(
    server: KinesisServerProcess, tmp_path: Path
) -> None:
    some = KinesisRig(server, tmp_path, shards=5)
    values = [some.put(700, size=3000) for _ in range(3)]
    reads = [some.read(maxFetchRate="2", maxRecordsPerFetch=limit) for limit in ("10000", "97", "400")]
    assert reads[0] == reads[1] == reads[2]
    assert sorted(row["data"] for row in reads[0]) == sorted(data for each in values for data in each)
    for shard in server.shards(some.stream):
        own = [row["data"] for row in reads[0] if row["shardId"] == shard]
        assert own == [record.data for record in server.records(some.stream, shard)]


def test_a_task_of_several_shards_that_ends_early_does_not_wait_for_their_turns(
    server: KinesisServerProcess, tmp_path: Path
) -> None:
    some = KinesisRig(server, tmp_path, shards=3)
    for shard in server.shards(some.stream):
        some.put_to(shard, 4)
    planned, slow = (
        KinesisDataSource(some.options(maxFetchRate="2", maxRecordsPerFetch="2", minFetchPeriod=period))
        for period in ("1ms", "1d")
    )
    (part,) = planned.reader(planned.schema()).partitions()
    rows = slow.reader(slow.schema()).read(part)
    assert next(rows).num_rows == 2
    rows.close()


def test_16_an_iterator_that_expires_gives_no_row_twice(kinesis: KinesisRig) -> None:
    values = kinesis.put(60)
    with kinesis.query(maxRecordsPerFetch="7") as query:
        kinesis.server.fail("GetRecords", "ExpiredIteratorException", 1)
        kinesis.drain(query, values)
        for _ in range(5):
            kinesis.server.fail("GetRecords", "ExpiredIteratorException", 1)
            values += kinesis.put(20)
            kinesis.drain(query, values)


def read_since(kinesis: KinesisRig, since: int) -> set[str]:
    """The shards of which GetRecords was answered since a call."""
    return {call.shard for call in kinesis.server.calls("GetRecords", kinesis.stream, since=since) if not call.error}


def test_16_an_idle_query_outlives_its_iterators(kinesis: KinesisRig) -> None:
    values, shards = kinesis.put(3), kinesis.server.shards(kinesis.stream)
    with kinesis.query(numRetries="0") as query:
        kinesis.drain(query, values)
        for _ in range(3):
            kinesis.server.jump(400)
            jump = kinesis.server.next_call()
            query.idle(5)
            # Before each new iterator is used, another jump would let two in a row expire, as nothing does in life.
            wait_until(lambda since=jump: query.idle(1) or read_since(kinesis, since) == set(shards))
        values += kinesis.put(3)
        kinesis.drain(query, values)


@pytest.mark.parametrize("operation", ["GetRecords", "GetShardIterator", "ListShards", "DescribeStreamSummary"])
def test_17_throttled_and_failed_calls_are_made_again(kinesis: KinesisRig, operation: str) -> None:
    values = kinesis.put(10)
    with kinesis.query() as query:
        kinesis.server.throttle(operation, 3)
        kinesis.server.fail(operation, "InternalFailure", 2, status=500)
        kinesis.server.cut(operation, 2)
        kinesis.drain(query, values)
        kinesis.server.throttle(operation, 4)
        values += kinesis.put(10)
        kinesis.drain(query, values)


def test_17_a_service_that_stays_throttled_fails_the_query_by_name(kinesis: KinesisRig) -> None:
    kinesis.put(3)
    with kinesis.query(numRetries="2") as query:
        kinesis.server.throttle("GetRecords", None)
        with pytest.raises(ReaderFailedError, match="KINESIS_THROTTLED"):
            query.run_until(lambda _batches: False, PATIENCE)


def test_17_a_neighbour_keeps_half_of_a_shard_whose_limits_are_kept(tmp_path: Path) -> None:
    with start_server_process(speed=4) as server:  # a shard takes 20 GetRecords a real second
        rig = KinesisRig(server, tmp_path)
        server.enforce_limits()
        neighbour = KinesisClient(parse_read_options(rig.options(), {}))
        refused: list[bool] = []

        def sink(batch: int, tables: Sequence[pa.Table]) -> None:
            """Between two batches the neighbour makes its half of the calls, and more records come."""
            rig.sink(batch, tables)
            (shard,) = server.shards(rig.stream)
            iterator = neighbour.iterator(rig.stream, shard, TRIM)
            for _ in range(6):
                time.sleep(0.1)
                try:
                    neighbour.records(iterator, 1, rig.stream, shard)
                except ServiceUnavailableError:
                    refused.append(True)
                else:
                    refused.append(False)
            if batch < 4:
                values.extend(rig.put(20))

        values = rig.put(20)
        with rig.query(sink=sink, minFetchPeriod="125ms") as query:
            query.run_until(lambda _batches: query.batch_id > 4 and rig.sink.rows() >= len(values), PATIENCE)
        rig.all_once(values)
        assert len(refused) >= 24
        assert sum(refused) <= len(refused) / 10


# Losses


@pytest.mark.parametrize("refuses", [False, True])
def test_19_records_trimmed_before_they_were_read_stop_the_query(
    server: KinesisServerProcess, tmp_path: Path, refuses: bool
) -> None:
    rig = KinesisRig(server, tmp_path)
    server.refuse_trimmed(on=refuses)
    values = rig.put(5)
    with rig.query() as query:
        rig.drain(query, values)
        query.stop()
        rig.put(5)
        server.jump(25 * HOUR)
        late = rig.put(5)
        query.start()
        with pytest.raises(ReaderFailedError, match=r"KINESIS_DATA_LOSS.TRIMMED.*shardId-000000000000"):
            query.run_until(lambda _batches: False, PATIENCE)
    with rig.query(failOnDataLoss="false") as query:
        rig.drain(query, values + late)


def test_19_a_child_that_was_trimmed_before_its_first_read_stops_the_query(
    server: KinesisServerProcess, tmp_path: Path
) -> None:
    rig = KinesisRig(server, tmp_path)
    values = rig.put(3)
    server.split(rig.stream, server.shards(rig.stream)[0])
    with rig.query() as query:
        query.run_batch(PATIENCE)
        (planned,) = query.checkpoint.offsets(0)
        (stream,) = read_offset(planned).values()
        assert [state.position for _, state in sorted(stream.shards.items())] == [END, TRIM, TRIM]
        query.stop()
        rig.put(20)
        server.jump(40 * HOUR)
        late = rig.put(20)
        query.start()
        with pytest.raises(ReaderFailedError, match=r"KINESIS_DATA_LOSS\.TRIMMED.*shardId-00000000000[12]"):
            query.run_until(lambda _batches: False, PATIENCE)
    with rig.query(failOnDataLoss="false") as query:
        rig.drain(query, values + late)


def test_19_a_batch_of_a_child_that_was_trimmed_since_it_was_planned_stops_the_query(
    server: KinesisServerProcess, tmp_path: Path
) -> None:
    rig = KinesisRig(server, tmp_path)
    rig.put(3)
    server.split(rig.stream, server.shards(rig.stream)[0])
    with rig.query() as query:
        query.run_batch(PATIENCE)
        rig.put(20)
        server.jump(20 * HOUR)
        rig.put(20)
        query.crash_at("planned")
        with pytest.raises(DriverCrashedError):
            query.run_until(lambda _batches: False, PATIENCE)
        server.jump(10 * HOUR)
        query.restart()
        with pytest.raises(TaskFailedError, match=r"KINESIS_DATA_LOSS\.TRIMMED"):
            query.run_batch(PATIENCE)


def test_19_a_child_that_was_idle_all_the_time_raises_no_alarm(server: KinesisServerProcess, tmp_path: Path) -> None:
    rig = KinesisRig(server, tmp_path)
    values = rig.put(3)
    server.split(rig.stream, server.shards(rig.stream)[0])
    with rig.query() as query:
        query.run_batch(PATIENCE)
        query.stop()
        server.jump(72 * HOUR)
        query.start()
        query.process_available(PATIENCE)
        values += rig.put(20)
        rig.drain(query, values)


def test_19_a_batch_whose_end_was_trimmed_stops_the_query(kinesis: KinesisRig) -> None:
    (shard,) = kinesis.server.shards(kinesis.stream)
    kinesis.put(5)
    with kinesis.query() as query:
        query.crash_at("planned")
        with pytest.raises(DriverCrashedError):
            query.run_until(lambda _batches: False, PATIENCE)
        kinesis.server.trim(kinesis.stream, shard, 5)
        query.restart()
        with pytest.raises(TaskFailedError, match=r"KINESIS_DATA_LOSS\.END_MISSING"):
            query.run_batch(PATIENCE)
        values = kinesis.put(5)
    with kinesis.query(failOnDataLoss="false") as query:
        kinesis.drain(query, values)


def _plan(options: KinesisReadOptions) -> ShardRange:
    """The range of all that the only shard of a stream has."""
    others = set(threading.enumerate())
    stream = open_stream(options)
    try:
        (part,) = stream.partitions(dict(SENTINEL), stream.latest_offset(dict(SENTINEL), everything=True))
    finally:
        stream.stop()
    for thread in set(threading.enumerate()) - others:
        if thread.name == "kinesis":
            thread.join(PATIENCE)  # a call that it is making would be counted among those of a task
    return part


def _rows_of(pages: Iterator[pa.RecordBatch]) -> Iterator[list[bytes]]:
    """What a task reads of a range, page by page."""
    for page in pages:
        yield page.column("data").to_pylist()


def test_a_task_asks_for_the_next_page_while_spark_takes_the_one_before_and_for_none_after_its_last(
    kinesis: KinesisRig,
) -> None:
    values = kinesis.put(6)
    options = parse_read_options(kinesis.options(maxRecordsPerFetch="2", minFetchPeriod="1ms"), {}, streaming=True)
    part, before = _plan(options), kinesis.server.call_counts(kinesis.stream)["GetRecords"]
    rows = _rows_of(read_range(part, read_settings(options, 1.0)))
    assert next(rows) == values[:2]
    wait_until(lambda: kinesis.server.call_counts(kinesis.stream)["GetRecords"] == before + 2)
    assert [*rows] == [values[2:4], values[4:]]
    assert kinesis.server.call_counts(kinesis.stream)["GetRecords"] == before + 3


def test_a_task_that_ends_early_does_not_wait_for_its_turn_to_ask(kinesis: KinesisRig) -> None:
    values = kinesis.put(4)
    options = parse_read_options(kinesis.options(maxRecordsPerFetch="2"), {}, streaming=True)
    pages = read_range(_plan(options), replace(read_settings(options, 1.0), period=86_400.0))
    assert next(pages).column("data").to_pylist() == values[:2]
    assert isinstance(pages, Generator)
    pages.close()


def test_19_records_trimmed_while_a_task_reads_stop_the_query(server: KinesisServerProcess, tmp_path: Path) -> None:
    rig = KinesisRig(server, tmp_path)
    options = parse_read_options(rig.options(maxRecordsPerFetch="2"), {}, streaming=True)
    values: list[bytes] = []
    for _ in range(4):
        values += rig.put(2)
        server.jump(5 * HOUR)
    part, trimmed = _plan(options), threading.Event()

    def wait(_seconds: float) -> None:
        trimmed.wait(PATIENCE)

    # With a period of a day the read ahead waits before each page, however slow the machine is.
    paced = replace(read_settings(options, 1.0), period=86_400.0)
    settings = [replace(paced, fail_on_data_loss=failing) for failing in (True, False)]
    fails, goes_on = (_rows_of(read_range(part, setting, sleep=wait)) for setting in settings)
    assert next(fails) == next(goes_on) == values[:2]
    server.jump(13 * HOUR)  # a slow sink; the next two are gone then
    trimmed.set()
    with pytest.raises(DataLossError, match=r"KINESIS_DATA_LOSS\.TRIMMED.*shardId-000000000000"):
        next(fails)
    assert list(goes_on) == [values[4:6], values[6:]]


def test_19_children_that_wait_for_their_parent_raise_no_alarm(server: KinesisServerProcess, tmp_path: Path) -> None:
    """A start by time is that of all shards; what came of a split since is younger than the retention."""
    rig = KinesisRig(server, tmp_path)
    begin = round(server.now() * 1000)
    server.jump(60)
    values = rig.put(6)
    server.jump(20 * HOUR)
    values += rig.put(6)
    server.split(rig.stream, server.shards(rig.stream)[0])
    values += rig.put(20)
    server.jump(3.5 * HOUR)
    options = {"initialPosition": f"at_timestamp {begin}", "maxRecordsPerTrigger": "8"}
    with rig.query(**options) as query:
        query.run_batch(PATIENCE)
        server.jump(0.6 * HOUR)
        query.restart()
        rig.drain(query, values)


def test_19_an_idle_shard_raises_no_alarm_however_long(server: KinesisServerProcess, tmp_path: Path) -> None:
    rig = KinesisRig(server, tmp_path)
    values = rig.put(5)
    with rig.query() as query:
        rig.drain(query, values)
        for _ in range(20):
            server.jump(4 * HOUR)
            time.sleep(0.1)
            query.process_available(PATIENCE)
        query.stop()
        server.jump(10 * HOUR)
        query.start()
        query.process_available(PATIENCE)
        values += rig.put(5)
        rig.drain(query, values)
        query.stop()
        server.jump(72 * HOUR)
        query.start()
        query.process_available(PATIENCE)
        values += rig.put(5)
        rig.drain(query, values)


def test_20_a_shard_that_vanished_unread_stops_the_query(server: KinesisServerProcess, tmp_path: Path) -> None:
    rig = KinesisRig(server, tmp_path)
    values = rig.put(5)
    with rig.query() as query:
        rig.drain(query, values)
        query.stop()
        rig.put(5)
        server.split(rig.stream, server.shards(rig.stream)[0])
        server.jump(49 * HOUR)
        late = rig.put(5)
        assert len(server.shards(rig.stream)) == 2
        query.start()
        with pytest.raises(ReaderFailedError, match=r"KINESIS_DATA_LOSS.SHARD_VANISHED.*shardId-000000000000"):
            query.run_until(lambda _batches: False, PATIENCE)
    with rig.query(failOnDataLoss="false") as query:
        rig.drain(query, values + late)


def test_20_a_shard_that_was_read_to_its_end_leaves_in_silence(server: KinesisServerProcess, tmp_path: Path) -> None:
    rig = KinesisRig(server, tmp_path)
    values = rig.put(5)
    with rig.query() as query:
        server.split(rig.stream, server.shards(rig.stream)[0])
        values += rig.put(5)
        rig.drain(query, values)
        for _ in range(13):
            server.jump(4 * HOUR)
            time.sleep(0.1)
            query.process_available(PATIENCE)
        values += rig.put(5)
        rig.drain(query, values)
        assert "shardId-000000000000" not in str(query.checkpoint.offsets(query.batch_id - 1)[0])


def test_21_a_stream_made_anew_under_its_name_is_refused(kinesis: KinesisRig) -> None:
    values = kinesis.put(5)
    with kinesis.query(failOnDataLoss="false") as query:
        kinesis.drain(query, values)
        kinesis.server.recreate_stream(kinesis.stream)
        kinesis.put(5)
        with pytest.raises(ReaderFailedError, match=r"KINESIS_STREAM_RECREATED|KINESIS_NOT_FOUND"):
            query.run_until(lambda _batches: False, PATIENCE)
        query.restart()
        with pytest.raises(ReaderFailedError, match="KINESIS_STREAM_RECREATED"):
            query.run_until(lambda _batches: False, PATIENCE)
    kinesis.all_once(values)


def test_a_stream_that_is_not_there_is_named(kinesis: KinesisRig) -> None:
    with (
        kinesis.query(streamName="nowhere") as query,
        pytest.raises(ReaderFailedError, match=r"KINESIS_NOT_FOUND.*nowhere"),
    ):
        query.run_batch(PATIENCE)


# Starts by shards


def test_22_a_start_by_shards_and_numbers(two: KinesisRig) -> None:
    first, second = two.server.shards(two.stream)
    values = two.put_to(first, 5)
    rest = two.put_to(second, 2)
    number = two.server.records(two.stream, first)[2].sequence_number
    for kind, expected in (("AFTER", values[3:]), ("AT", values[2:])):
        start = {first: {"iteratorType": f"{kind}_SEQUENCE_NUMBER", "iteratorPosition": str(number)}}
        assert [row["data"] for row in two.read(initialPosition=json.dumps(start))] == expected + rest


def test_22_numbers_that_are_none_of_the_shard_are_refused_at_the_start(two: KinesisRig) -> None:
    first, second = two.server.shards(two.stream)
    two.put_to(first, 5)
    two.put_to(second, 5)
    number = two.server.records(two.stream, second)[2].sequence_number
    for said, code in (
        ({first: str(number)}, "KINESIS_FOREIGN_SEQUENCE_NUMBER"),
        ({"shardId-000000000009": "TRIM_HORIZON"}, "KINESIS_UNKNOWN_SHARD"),
    ):
        with two.query(initialPosition=json.dumps(said)) as query, pytest.raises(ReaderFailedError, match=code):
            query.run_batch(PATIENCE)


# Triggers and limits


def test_23_available_now_reads_what_was_there_across_a_split_in_bounded_batches(two: KinesisRig) -> None:
    values = two.put(30)
    two.server.split(two.stream, two.server.shards(two.stream)[0])
    values += two.put(30)
    late: list[bytes] = []

    def sink(batch: int, tables: Sequence[pa.Table]) -> None:
        two.sink(batch, tables)
        late.extend(two.put(3))

    with two.query(trigger="available_now", sink=sink, maxRecordsPerTrigger="8") as query:
        batches = query.process_available(PATIENCE)
        assert not query.is_running
    assert max(each.rows for each in batches) <= 8
    assert len([each for each in batches if each.rows]) >= 60 / 8
    two.all_once(values)
    with two.query(trigger="available_now") as query:
        query.process_available(PATIENCE)
    two.all_once(values + late)


def test_24_a_backlog_of_an_hour_comes_in_bounded_batches(kinesis: KinesisRig) -> None:
    values: list[bytes] = []
    for _ in range(20):
        values += kinesis.put(10, size=100_000)
        kinesis.server.jump(180)
    with kinesis.query(maxBytesPerTrigger="6mb") as query:
        batches = query.run_until(lambda _batches: kinesis.sink.rows() >= len(values), PATIENCE)
    assert max(sum(len(row) for row in each.values("data")) for each in batches) <= 6 << 20
    kinesis.all_once(values)


def test_24_a_small_limit_of_bytes_is_counted_and_a_large_record_passes_alone(kinesis: KinesisRig) -> None:
    values = kinesis.put(6, size=1000) + kinesis.put(1, size=50_000) + kinesis.put(2, size=1000)
    with kinesis.query(maxBytesPerTrigger="2500") as query:
        batches = query.run_until(lambda _batches: kinesis.sink.rows() >= len(values), PATIENCE)
    sizes = [[len(data) for data in each.values("data")] for each in batches if each.rows]
    assert all(sum(each) <= 2500 or len(each) == 1 for each in sizes)
    kinesis.all_once(values)


@pytest.mark.parametrize(
    ("limit", "size", "most"),
    [
        ({"maxRecordsPerTrigger": "4000"}, 10, 4000),
        ({"maxRecordsPerTrigger": "24000"}, 10, 24_000),
        ({"maxBytesPerTrigger": "400000"}, 100, 4000),
        ({"maxBytesPerTrigger": "9mb"}, 500, (9 << 20) // 500),
    ],
    ids=["few", "many", "small", "large"],
)
def test_24_a_service_that_takes_more_than_aws_gets_batches_within_the_limit(
    two: KinesisRig, limit: dict[str, str], size: int, most: int
) -> None:
    values = two.put(30_000, size=size)
    with two.query("available_now", maxRecordsPerFetch="10000", **limit) as query:
        batches = query.process_available(PATIENCE)
    assert max(each.rows for each in batches) <= most
    assert sum(1 for each in batches if each.rows) >= len(values) // most
    two.all_once(values)


@pytest.mark.parametrize("limit", [{"maxRecordsPerTrigger": "1000000"}, {"maxBytesPerTrigger": "1g"}])
def test_24_a_closed_shard_that_a_large_limit_takes_whole_is_read_to_its_end(
    kinesis: KinesisRig, limit: dict[str, str]
) -> None:
    values = kinesis.put(10)
    kinesis.server.split(kinesis.stream, kinesis.server.shards(kinesis.stream)[0])
    values += kinesis.put(10)
    with kinesis.query(**limit) as query:
        kinesis.drain(query, values)


# Several streams, records, rows


def test_several_streams_are_one_source(server: KinesisServerProcess, tmp_path: Path) -> None:
    one, other = KinesisRig(server, tmp_path / "one"), KinesisRig(server, tmp_path, shards=2)
    values, more = one.put(5), other.put(5, key="k")
    with other.query(streamName=f"{one.stream},{other.stream}") as query:
        query.run_until(lambda _batches: other.sink.rows() >= 10, PATIENCE)
    rows = other.rows()
    assert sorted(row["data"] for row in rows if row["stream"] == one.stream) == sorted(values)
    assert sorted(row["data"] for row in rows if row["stream"] == other.stream) == sorted(more)


def test_a_stream_by_its_arn_and_a_checkpoint_that_knew_it_by_name(kinesis: KinesisRig) -> None:
    values = kinesis.put(5)
    with kinesis.query() as query:
        kinesis.drain(query, values)
        (arn,) = json.loads(str(query.checkpoint.offsets(0)[0]))["streams"]
    values += kinesis.put(5)
    options = {key: value for key, value in kinesis.options().items() if key != "streamName"}
    kinesis.options = lambda **_more: options | {"streamARN": arn}  # type: ignore[method-assign]
    with kinesis.query() as query:
        kinesis.drain(query, values)


def test_columns_are_filled(kinesis: KinesisRig) -> None:
    (value,) = kinesis.put(1, key="the-key")
    (row,) = kinesis.read()
    (stored,) = kinesis.server.records(kinesis.stream)
    arrival = row.pop("approximateArrivalTimestamp").timestamp()
    assert arrival == pytest.approx(stored.arrival, abs=0.001)
    assert row == {
        "partitionKey": "the-key",
        "data": value,
        "stream": kinesis.stream,
        "shardId": "shardId-000000000000",
        "sequenceNumber": str(stored.sequence_number),
        "subSequenceNumber": 0,
        "explicitHashKey": None,
    }


def test_28_aggregates_of_the_kpl_are_taken_apart(kinesis: KinesisRig) -> None:
    # AggregatedRecord{partition_key_table: ["a"], records: [{0, "x"}, {0, "y"}]}
    message = bytes.fromhex("0a0161" + "1a050800" + "1a0178" + "1a050800" + "1a0179")
    aggregate = b"\xf3\x89\x9a\xc2" + message + hashlib.md5(message).digest()
    kinesis.server.put(kinesis.stream, [("k", aggregate), ("k", aggregate[:-1] + b"?"), ("k", b"plain")])
    with kinesis.query() as query:
        query.run_until(lambda _batches: kinesis.sink.rows() >= 4, PATIENCE)
    rows = [(row["data"], row["partitionKey"], row["subSequenceNumber"]) for row in kinesis.rows()]
    assert rows == [(b"x", "a", 0), (b"y", "a", 1), (aggregate[:-1] + b"?", "k", 0), (b"plain", "k", 0)]
    assert len(kinesis.read(deaggregate="false")) == 3


def test_large_records_are_read(kinesis: KinesisRig) -> None:
    values = kinesis.put(3, size=10_000_000)
    with kinesis.query() as query:
        kinesis.drain(query, values)


def test_21_an_error_of_the_background_is_kept_for_who_plans_the_next_batch(
    server: KinesisServerProcess, tmp_path: Path
) -> None:
    rig = KinesisRig(server, tmp_path)
    rig.put(1)
    stream = open_stream(parse_read_options(rig.options(), {}, streaming=True))
    try:
        first = stream.latest_offset(dict(SENTINEL), everything=False)
        server.fail("GetRecords", "AccessDeniedException", None, stream=rig.stream)
        wait_until(lambda: stream._monitor._error is not None)
        assert stream.report_latest_offset() is not None
        assert len(stream.partitions(dict(SENTINEL), first)) == 1
        with pytest.raises(ConnectorError, match="KINESIS_ACCESS_DENIED"):
            stream.latest_offset(first, everything=False)
    finally:
        stream.stop()
        server.clear_faults()


# Secrets


def test_29_no_secret_is_in_offsets_or_errors(kinesis: KinesisRig) -> None:
    secrets = {"awsAccessKey": "AKIASECRETSECRET", "awsSecretKey": "very-secret", "awsSessionToken": "token-secret"}
    values = kinesis.put(3)
    with kinesis.query(**secrets) as query:
        kinesis.drain(query, values)
        offsets = str(query.checkpoint.offsets(0))
        kinesis.server.fail(None, "AccessDeniedException", None, message="AKIASECRETSECRET is not allowed")
        with pytest.raises(ReaderFailedError, match="KINESIS_ACCESS_DENIED") as caught:
            query.run_until(lambda _batches: False, PATIENCE)
    for text in (offsets, str(caught.value)):
        assert not any(secret in text for secret in secrets.values())
