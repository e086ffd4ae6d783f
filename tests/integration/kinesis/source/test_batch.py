"""Batch reads of Kinesis, on our own server; numbered as in ``docs/explanation/kinesis.md``."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from connectors.core.errors import DataLossError
from connectors.core.processes.spark import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from connectors.kinesis.datasource import KinesisBatchReader, KinesisPartition, read_settings
from connectors.kinesis.options.source import parse_read_options
from connectors.kinesis.source.batch import plan_batch
from connectors.kinesis.source.reader import read_range
from connectors.testing.kinesis import KinesisServerProcess, start_server_process
from tests.support.kinesis_rig import KinesisRig

HOUR_MS = 3_600_000


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


@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize("closed", [False, True])
def test_19_a_batch_read_whose_end_was_trimmed_fails(kinesis: KinesisRig, newer: bool, closed: bool) -> None:
    kinesis.put(3)
    kinesis.server.jump(60)
    middle = round(kinesis.server.now() * 1000)
    kinesis.server.jump(60)
    kinesis.put(1)
    (shard,) = kinesis.server.shards(kinesis.stream)
    options = parse_read_options(kinesis.options(endingPosition=f"at_timestamp {middle}"), {}, streaming=False)
    (part,) = plan_batch(options)
    assert sum(page.num_rows for page in read_range(part, read_settings(options, 1.0))) == 3
    kinesis.server.trim(kinesis.stream, shard, 4)
    kinesis.put(2 * newer)
    if closed:
        kinesis.server.split(kinesis.stream, shard)
    with pytest.raises(DataLossError, match=r"KINESIS_DATA_LOSS\.END_MISSING"):
        list(read_range(part, read_settings(options, 1.0)))


# Batch reads


def test_a_batch_read_ends_at_its_end_option(kinesis: KinesisRig) -> None:
    values = kinesis.put(4)
    kinesis.server.jump(100)
    middle = round(kinesis.server.now() * 1000)
    kinesis.server.jump(100)
    values += kinesis.put(4)
    stored = kinesis.server.records(kinesis.stream)
    (shard,) = kinesis.server.shards(kinesis.stream)

    def data(**options: str) -> list[bytes]:
        return [row["data"] for row in kinesis.read(**options)]

    assert data() == values
    assert data(endingPosition=f"at_timestamp {middle}") == values[:4]
    assert data(initialPosition=f"at_timestamp {middle}") == values[4:]
    assert data(endingPosition=json.dumps({shard: str(stored[5].sequence_number)})) == values[:6]
    assert data(initialPosition=f"at_timestamp {middle}", endingPosition=f"at_timestamp {middle}") == []
    kinesis.server.jump(100)  # the service tells its time in whole seconds, and `latest` takes no record too few
    assert (
        data(initialPosition="latest") == data(initialPosition="latest", endingPosition=f"at_timestamp {middle}") == []
    )


def test_a_batch_read_whose_end_lies_ahead_ends_at_the_newest_record(kinesis: KinesisRig) -> None:
    values = kinesis.put(4)
    newest = kinesis.server.records(kinesis.stream)[-1].sequence_number
    (shard,) = kinesis.server.shards(kinesis.stream)
    soon = round(kinesis.server.now() * 1000) + HOUR_MS
    for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
        end = {shard: {"iteratorType": kind, "iteratorPosition": str(newest + 10**6)}}
        assert [row["data"] for row in kinesis.read(endingPosition=json.dumps(end))] == values
    assert [row["data"] for row in kinesis.read(endingPosition=f"at_timestamp {soon}")] == values
    kinesis.server.jump(5)  # the latest is that of a second ago
    assert kinesis.read(endingPosition=f"at_timestamp {soon}", initialPosition="latest") == []


def test_a_batch_read_takes_all_shards_of_a_stream_that_was_split(two: KinesisRig) -> None:
    values = two.put(10)
    two.server.split(two.stream, two.server.shards(two.stream)[1])
    values += two.put(20)
    assert sorted(row["data"] for row in two.read()) == sorted(values)


# Filters

HOURS = 30
AWS_NUMBERS = 1 << 185
"""From here on: AWS's numbers all have 56 digits, and so the same order as texts."""


def planned(rig: KinesisRig, *filters: Filter, **options: str) -> list[KinesisPartition]:
    reader = KinesisBatchReader(rig.options(pushDownPredicate="true", **options))
    assert list(reader.pushFilters(list(filters))) == list(filters), "Spark applies them too"
    return [part for part in reader.partitions() if isinstance(part, KinesisPartition)]


def read(parts: Sequence[KinesisPartition]) -> list[dict[str, Any]]:
    return [row for part in parts for page in part.read() for row in page.to_pylist()]


def hourly(rig: KinesisRig) -> list[dict[str, Any]]:
    """Put a record an hour for more than a day, which is the retention; return those that are left, as rows."""
    for _ in range(HOURS):
        rig.put(1)
        rig.server.jump(3600)
    rows = read(planned(rig))
    assert 20 < len(rows) < HOURS
    return rows


def test_filters_on_shard_and_stream_leave_tasks_out(two: KinesisRig) -> None:
    two.put(20)
    rows = read(planned(two))
    first, second = two.server.shards(two.stream)
    for condition, shards in (
        (EqualTo(("shardId",), second), {second}),
        (In(("shardId",), (first, None)), {first}),
        (StringStartsWith(("shardId",), "shardId-"), {first, second}),
        (EqualTo(("stream",), "another"), set()),
        (GreaterThan(("shardId",), second), set()),
    ):
        found = read(planned(two, condition))
        assert found == [row for row in rows if row["shardId"] in shards]


@pytest.mark.parametrize("option", [{}, {"initialPosition": "at_timestamp"}, {"endingPosition": "at_timestamp"}])
def test_filters_on_the_time_of_arrival_cut_ranges(kinesis: KinesisRig, option: dict[str, str]) -> None:
    rows = hourly(kinesis)
    for name in option:
        at = 5 if name == "initialPosition" else 15
        option[name] = f"at_timestamp {rows[at]['approximateArrivalTimestamp'].isoformat()}"
    rows = read(planned(kinesis, **option))
    column = ("approximateArrivalTimestamp",)
    times = [row["approximateArrivalTimestamp"] for row in rows]
    for least in (*times[::4], times[0] - dt.timedelta(days=2), times[-1] + dt.timedelta(hours=3)):
        until = least + dt.timedelta(hours=4)
        found = read(planned(kinesis, GreaterThanOrEqual(column, least), LessThan(column, until), **option))
        wanted = [row for row in rows if least <= row["approximateArrivalTimestamp"] < until]
        assert [row for row in found if row in wanted] == wanted
        assert len(found) <= len(wanted) + 1, "no more than a minute before and after"
        alone = read(planned(kinesis, GreaterThan(column, least), **option))
        assert [row for row in alone if row["approximateArrivalTimestamp"] > least] == [
            row for row in rows if row["approximateArrivalTimestamp"] > least
        ]
        assert len(alone) <= sum(row["approximateArrivalTimestamp"] >= least for row in rows)


def test_a_minute_more_is_read_as_aws_does_not_promise_that_times_of_arrival_are_in_order(kinesis: KinesisRig) -> None:
    for _ in range(10):
        kinesis.put(1)
        kinesis.server.jump(30)
    rows = read(planned(kinesis))
    column, middle = ("approximateArrivalTimestamp",), rows[5]["approximateArrivalTimestamp"]
    assert read(planned(kinesis, GreaterThanOrEqual(column, middle))) == rows[4:]
    assert read(planned(kinesis, LessThanOrEqual(column, middle))) == rows[:7]


@pytest.mark.parametrize("first", [AWS_NUMBERS + 3, 7], ids=["as AWS", "of another server"])
def test_filters_on_sequence_numbers_cut_ranges_at_records(two: KinesisRig, first: int) -> None:
    for shard in two.server.shards(two.stream):
        two.server.number_from(two.stream, shard, first)
        two.put_to(shard, 12)
        first += 100
    rows = read(planned(two))
    column, numbers = ("sequenceNumber",), [row["sequenceNumber"] for row in rows]
    absent = str(int(numbers[0]) + 50)
    for number in (*numbers[::3], absent, "none", ""):
        found = read(planned(two, EqualTo(column, number)))
        assert found == ([row for row in rows if row["sequenceNumber"] == number] if number.isdigit() else rows)
        for condition, matches in (
            (GreaterThanOrEqual(column, number), lambda own, number=number: own >= number),
            (LessThan(column, number), lambda own, number=number: own < number),
            (In(column, (number, numbers[5])), lambda own, number=number: own in (number, numbers[5])),
        ):
            found = read(planned(two, condition))
            wanted = [row for row in rows if matches(row["sequenceNumber"])]
            assert [row for row in found if row in wanted] == wanted, condition
    cut = read(planned(two, GreaterThanOrEqual(column, numbers[6]), LessThanOrEqual(column, numbers[8])))
    assert len(cut) == (3 + 12 if len(numbers[0]) == 56 else 24), "only a shard that has the record is cut"


def test_filters_and_the_options_of_a_read_hold_together(kinesis: KinesisRig) -> None:
    kinesis.put(10)
    (shard,) = kinesis.server.shards(kinesis.stream)
    numbers = [row["sequenceNumber"] for row in read(planned(kinesis))]
    ends = {
        "initialPosition": json.dumps({shard: {"iteratorType": "AT_SEQUENCE_NUMBER", "iteratorPosition": numbers[3]}}),
        "endingPosition": json.dumps({shard: numbers[6]}),
    }
    for number, left in zip(numbers, [0, 0, 0, 1, 1, 1, 1, 0, 0, 0], strict=True):
        assert len(read(planned(kinesis, EqualTo(("sequenceNumber",), number), **ends))) == left
