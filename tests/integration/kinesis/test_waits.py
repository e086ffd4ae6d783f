"""Shards that never end, or say for ever that they are behind: planning and reading end, and say why."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from connectors.core.errors import ServiceUnavailableError
from connectors.core.offsets import SENTINEL
from connectors.core.retry import wait_out
from connectors.kinesis.datasource import open_stream, read_settings
from connectors.kinesis.offsets import END, TRIM, ShardState, read_offset
from connectors.kinesis.options.source import KinesisReadOptions, parse_read_options
from connectors.kinesis.shards import ShardRange
from connectors.kinesis.source.batch import plan_batch
from connectors.kinesis.source.micro_batch import KinesisStream, Share, counted_end
from connectors.kinesis.source.reader import read_range
from connectors.kinesis.source.shard_monitor import ShardMonitor
from connectors.testing.kinesis import KinesisServerProcess, start_server_process
from tests.support.kinesis_rig import PATIENCE, KinesisRig
from tests.support.spark_protocol.stream import Trigger

SHORT = 0.3


@pytest.fixture(scope="module")
def server() -> Iterator[KinesisServerProcess]:
    made = start_server_process()
    yield made
    made.close()


@pytest.fixture
def kinesis(server: KinesisServerProcess, tmp_path: Path) -> Iterator[KinesisRig]:
    yield KinesisRig(server, tmp_path)
    server.clear_faults()


def options_of(kinesis: KinesisRig, *, streaming: bool = True, **given: str) -> KinesisReadOptions:
    return parse_read_options(kinesis.options(**given), {}, streaming=streaming)


def split(kinesis: KinesisRig) -> list[bytes]:
    """Put records before and after a split, and hide the end of the closed shard."""
    values = kinesis.put(10)
    kinesis.server.split(kinesis.stream, kinesis.server.shards(kinesis.stream)[0])
    values += kinesis.put(10)
    kinesis.server.hide_ends()
    return values


def rows_of(parts: list[ShardRange], options: KinesisReadOptions, **changes: Any) -> list[bytes]:
    settings = replace(read_settings(options, 1.0), end_patience=SHORT, **changes)
    return [data for part in parts for batch in read_range(part, settings) for data in batch.column("data").to_pylist()]


def test_a_closed_shard_that_never_ends_ends_in_a_batch_read(
    kinesis: KinesisRig, caplog: pytest.LogCaptureFixture
) -> None:
    values, options = split(kinesis), options_of(kinesis, streaming=False)
    assert sorted(rows_of(plan_batch(options), options)) == sorted(values)
    assert "[KINESIS_SHARD_NOT_ENDED]" in caplog.text


def test_a_closed_shard_that_is_late_with_its_end_is_read_without_a_warning(
    kinesis: KinesisRig, caplog: pytest.LogCaptureFixture
) -> None:
    values, options = split(kinesis), options_of(kinesis, streaming=False)
    parts = plan_batch(options)
    kinesis.server.hide_ends(on=False)
    kinesis.server.empty_answers(kinesis.stream, kinesis.server.shards(kinesis.stream)[0], 20)
    assert sorted(rows_of(parts, options)) == sorted(values)
    assert "[KINESIS_SHARD_NOT_ENDED]" not in caplog.text


@pytest.mark.parametrize(
    ("trigger", "given"), [("default", {}), ("available_now", {"maxRecordsPerTrigger": "3"})], ids=str
)
def test_a_closed_shard_that_never_ends_does_not_keep_its_children_from_a_stream(
    kinesis: KinesisRig, trigger: Trigger, given: dict[str, str]
) -> None:
    values = split(kinesis)
    with kinesis.query(trigger, **given) as query:
        if trigger == "available_now":
            query.process_available(PATIENCE)
        else:
            kinesis.drain(query, values)
    kinesis.all_once(values)


def test_the_count_of_a_closed_shard_without_an_end_reaches_its_end(kinesis: KinesisRig) -> None:
    split(kinesis)
    monitor = ShardMonitor(options_of(kinesis))
    (listing,) = monitor.listings(fresh=True)
    shard = min(listing.shards)
    pages = monitor.pages((listing.arn, shard), listing.stream)
    end = counted_end(pages, ShardState(), ShardState(END), Share(100, None))
    monitor.stop()
    assert end == ShardState(END)


def test_a_stream_goes_on_without_what_a_shard_holds_back(
    server: KinesisServerProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kinesis = KinesisRig(server, tmp_path, shards=2)
    shards = server.shards(kinesis.stream)
    kinesis.put_to(shards[0], 5)
    server.claim_behind(60)
    options = options_of(kinesis)
    stream = KinesisStream(options, ShardMonitor(options, SHORT))
    end = stream.latest_offset(SENTINEL, everything=False)
    stream.stop()
    server.clear_faults()
    (state,) = read_offset(end).values()
    assert [state.shards[shard].position == TRIM for shard in shards] == [False, True]
    assert re.search(rf"\[KINESIS_SHARD_STALLED\].*{shards[1]}", caplog.text)


def test_a_shard_that_was_given_up_is_read_when_it_brings_records(kinesis: KinesisRig) -> None:
    kinesis.server.claim_behind(60)
    options = options_of(kinesis)
    stream = KinesisStream(options, ShardMonitor(options, SHORT))
    start = stream.latest_offset(SENTINEL, everything=False)
    values = kinesis.put(3)
    kinesis.server.claim_behind(0)
    parts: list[ShardRange] = []
    while not parts:
        parts = stream.partitions(start, stream.latest_offset(start, everything=False))
    stream.stop()
    rows = rows_of(parts, options)
    assert rows == values[: len(rows)]
    assert rows


@pytest.mark.parametrize("bound", ["once", "available_now"])
def test_a_run_with_an_end_stops_by_name_before_what_a_shard_holds_back(kinesis: KinesisRig, bound: str) -> None:
    kinesis.put(5)
    kinesis.server.claim_behind(60)
    options = options_of(kinesis)
    stream = KinesisStream(options, ShardMonitor(options, SHORT))
    if bound == "available_now":
        stream.prepare_for_available_now()
    with pytest.raises(ServiceUnavailableError, match=r"KINESIS_SHARD_STALLED.*60000 ms behind"):
        stream.latest_offset(SENTINEL, everything=bound == "once")
    stream.stop()


def test_a_batch_read_stops_by_name_before_what_a_shard_holds_back(kinesis: KinesisRig) -> None:
    kinesis.put(5)
    kinesis.server.claim_behind(60)
    with pytest.raises(ServiceUnavailableError, match="KINESIS_SHARD_STALLED"):
        plan_batch(options_of(kinesis, streaming=False), SHORT)


def test_a_task_stops_by_name_at_a_shard_that_is_behind_and_brings_nothing(kinesis: KinesisRig) -> None:
    split(kinesis)
    options = options_of(kinesis, streaming=False)
    parts = plan_batch(options)
    kinesis.server.claim_behind(60)
    with pytest.raises(ServiceUnavailableError, match="KINESIS_SHARD_STALLED"):
        rows_of(parts, options, patience=SHORT)


def test_a_long_walk_over_time_without_records_is_progress(tmp_path: Path) -> None:
    with start_server_process() as server:  # its clock is its own
        rig = KinesisRig(server, tmp_path)
        values = rig.put(1)
        server.walk(60)
        server.jump(20_000)
        values += rig.put(1)
        options = options_of(rig, streaming=False, minFetchPeriod="5ms")
        assert rows_of(plan_batch(options, SHORT), options) == values


def test_the_stream_of_a_query_has_the_limits_of_the_page(kinesis: KinesisRig) -> None:
    stream = open_stream(options_of(kinesis))
    stream.stop()
    settings = read_settings(options_of(kinesis), 1.0)
    assert (settings.patience, settings.end_patience) == (900.0, 10.0)


@pytest.mark.parametrize("kind", ["ExpiredNextTokenException", "SlowDown", "LimitExceededException"])
def test_a_list_of_shards_that_is_refused_halfway_is_listed_again(
    server: KinesisServerProcess, tmp_path: Path, kind: str
) -> None:
    kinesis = KinesisRig(server, tmp_path, shards=3)
    values = kinesis.put(30)
    server.fail("ListShards", "InternalFailureException", 1, status=500, stream=kinesis.stream)
    server.fail("ListShards", kind, 2, stream=kinesis.stream)
    options = options_of(kinesis, streaming=False)
    assert sorted(rows_of(plan_batch(options), options)) == sorted(values)
    server.clear_faults()


def test_the_next_page_of_a_list_that_has_expired_is_no_error_of_a_query(
    server: KinesisServerProcess, tmp_path: Path
) -> None:
    kinesis = KinesisRig(server, tmp_path, shards=3)
    client = ShardMonitor(options_of(kinesis)).client
    listed, call = [], client.call

    def expire_the_second(operation: str, where: str, **parameters: Any) -> dict[str, Any]:
        listed.append(operation)
        if listed.count("list_shards") == 2:
            server.fail("ListShards", "ExpiredNextTokenException")
        return call(operation, where, **parameters)

    client.call = expire_the_second  # type: ignore[method-assign]
    listing = wait_out(lambda: client.listing(kinesis.stream, 1), options_of(kinesis).outage_rule)
    assert len(listing.shards) == 3
    server.clear_faults()
