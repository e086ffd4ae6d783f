"""The Kinesis source with enhanced fan-out, on our own server; numbered as in ``docs/explanation/kinesis.md``."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from connectors.cli.main import app
from connectors.core.datasource import PlannedStartReader
from connectors.core.errors import ConnectorError, OptionError, SpoolError
from connectors.core.retry import OutageRule, wait_out
from connectors.kinesis.client.client import KinesisClient
from connectors.kinesis.datasource import KinesisDataSource, read_settings
from connectors.kinesis.fan_out.cached_ranges import SpoolIndex
from connectors.kinesis.fan_out.consumers import StreamConsumers, active_consumer
from connectors.kinesis.fan_out.monitor import FanOut
from connectors.kinesis.fan_out.reader import read_part
from connectors.kinesis.offsets import after, read_offset
from connectors.kinesis.options.source import parse_read_options
from connectors.kinesis.schema import ARROW_SCHEMA
from connectors.kinesis.shards import ShardRange
from connectors.kinesis.source.micro_batch import KinesisStream
from connectors.kinesis.source.records import MAX_ROWS
from connectors.kinesis.source.shard_monitor import Job, Scheduler, ShardMonitor
from connectors.spool import stats
from connectors.spool.admin.doctor import check_spool
from connectors.spool.fetching.pipeline import FetcherFolder
from connectors.spool.segments.segment import SEGMENT, SealedReader, SegmentReader, SegmentWriter
from connectors.spool.store import open_store
from connectors.testing.kinesis import KinesisServerProcess, start_server_process
from tests.support.kinesis_rig import HASTY_SOURCE, PATIENCE, SOURCE, KinesisRig, kpl_aggregate, wait_until
from tests.support.spark_protocol.driver import (
    DriverCrashedError,
    ReaderFailedError,
    StreamingQuery,
    TaskFailedError,
    descendants,
    is_running,
)

HOUR = 3600.0
_ARN = "arn:aws:kinesis:us-east-1:{1:012}:stream/{0}"


@pytest.fixture(scope="module")
def server() -> Iterator[KinesisServerProcess]:
    made = start_server_process()
    yield made
    while _monitors:
        _monitors.popitem()[1].stop()  # else they would ask a server that is gone, for as long as an outage may last
    made.close()


_PROBED_SECONDS = 0.6
"""A shard without a subscription is looked at within this time."""
_LOOK_SECONDS = 0.05
"""What passes at most between two triggers of a query that runs undisturbed."""


@dataclass
class Efo:
    """A stream, and a query on it by subscriptions."""

    rig: KinesisRig
    spool: Path

    def options(self, **options: str) -> dict[str, str]:
        named = {"consumerMode": "efo", "consumerName": f"of-{self.rig.stream}", "spoolLocation": str(self.spool)}
        return named | options

    def query(self, **options: Any) -> StreamingQuery:
        return self.rig.query(**self.options(**options))

    def until_live(self, query: StreamingQuery, count: int = 1) -> None:
        """Run a query until it has as many subscriptions, and then has nothing to poll."""
        server = self.rig.server
        query.run_until(lambda _batches: len(server.subscriptions(self.rig.stream)) >= count, PATIENCE)
        calls, alone, looked = -1, 0.0, time.monotonic()

        def is_left_alone(_batches: object) -> bool:
            nonlocal calls, alone, looked
            before, calls = calls, server.call_counts(self.rig.stream).get("GetRecords", 0)
            passed, looked = time.monotonic() - looked, time.monotonic()
            # A process that stalls asks for nothing either, and this look had to wait for it.
            alone = alone + min(passed, _LOOK_SECONDS) if calls == before else 0.0
            return alone >= _PROBED_SECONDS

        query.run_until(is_left_alone, PATIENCE)

    def polls(self, work: Callable[[], object]) -> int:
        """How many calls of GetRecords there are while something is done."""
        return self.rig.calls("GetRecords", work)

    def segments(self) -> list[Path]:
        return sorted(self.spool.glob("inbox/*/*.arrow"), key=lambda path: path.stat().st_mtime_ns)

    def spooled_rows(self) -> int:
        """How many rows the segments have."""
        store = open_store(str(self.spool), "look")
        names = (path.relative_to(self.spool).as_posix() for path in self.segments())
        return sum(SegmentReader(store, name).info.rows for name in names)


@pytest.fixture
def efo(server: KinesisServerProcess, tmp_path: Path) -> Iterator[Efo]:
    server.set_takeover(0)
    yield Efo(KinesisRig(server, tmp_path), tmp_path / "spool")
    server.clear_faults()
    server.set_transition(0)


@pytest.fixture
def two(server: KinesisServerProcess, tmp_path: Path) -> Iterator[Efo]:
    """A stream of two shards."""
    server.set_takeover(0)
    yield Efo(KinesisRig(server, tmp_path, shards=2), tmp_path / "spool")
    server.clear_faults()


# What is pushed is read from the spool


def test_records_are_pushed_and_nothing_is_polled(two: Efo) -> None:
    values = two.rig.put(20)
    with two.query(attempts=2) as query:
        two.rig.drain(query, values)
        two.until_live(query, 2)

        def work() -> None:
            for _ in range(3):
                values.extend(two.rig.put(30))
                two.rig.drain(query, values)

        assert two.polls(work) == 0
    # A batch frees what the one before it has read.
    assert len(two.segments()) <= 4


def test_a_subscription_is_left_alone_when_its_segments_are_freed(two: Efo) -> None:
    first, second = two.rig.server.shards(two.rig.stream)
    with two.query() as query:
        two.until_live(query, 2)
        since = two.rig.server.next_call()
        values: list[bytes] = []
        for shard in (first, second, second):  # a batch frees what the one before has read
            values += two.rig.put_to(shard)
            two.rig.drain(query, values)
        checked = time.monotonic() + 3
        query.run_until(lambda _batches: time.monotonic() > checked, PATIENCE)
        assert two.rig.server.calls("SubscribeToShard", two.rig.stream, since=since) == []


def test_rows_are_those_of_polling(two: Efo) -> None:
    with two.query() as query:
        two.until_live(query, 2)
        values = two.rig.put(40, size=200)
        two.rig.drain(query, values)
    polled = sorted(two.rig.read(), key=lambda row: row["sequenceNumber"])
    pushed = sorted(two.rig.rows(), key=lambda row: row["sequenceNumber"])
    assert [{key: row[key] for key in polled[0]} for row in pushed] == polled


def test_latest_begins_where_the_first_batch_was_planned(efo: Efo) -> None:
    efo.rig.put(5)
    efo.rig.server.jump(5)
    with efo.query(initialPosition="latest") as query:
        query.run_batch(PATIENCE)
        values = efo.rig.put(5)
        efo.rig.drain(query, values)
        efo.until_live(query)
        values += efo.rig.put(5)
        assert efo.polls(lambda: efo.rig.drain(query, values)) == 0


def test_a_limit_cuts_batches(efo: Efo) -> None:
    with efo.query(maxRecordsPerTrigger="7") as query:
        efo.until_live(query)
        values = efo.rig.put(50)
        efo.rig.drain(query, values)
        sizes = [sum(table.num_rows for table in efo.rig.sink.partitions(each)) for each in efo.rig.sink.batch_ids()]
    assert max(sizes) == 7


def test_a_full_spool_holds_the_subscriptions_back_and_the_query_goes_on(efo: Efo) -> None:
    with efo.query(maxSpoolBytes="1000") as query:
        efo.until_live(query)
        values: list[bytes] = []
        for _ in range(6):
            values += efo.rig.put(100, size=100)
            efo.rig.drain(query, values)


def test_several_fetchers_share_the_shards(server: KinesisServerProcess, tmp_path: Path) -> None:
    server.set_takeover(0)
    many = Efo(KinesisRig(server, tmp_path, shards=6), tmp_path / "spool")
    with many.query(fetchers="2") as query:
        many.until_live(query, 6)
        values = many.rig.put(60)
        assert many.polls(lambda: many.rig.drain(query, values)) == 0
        assert len(list(many.spool.glob("inbox/*"))) == 2


def test_a_spark_that_does_not_say_whether_a_run_ends_has_subscriptions_too(efo: Efo) -> None:
    efo.rig.put(20)
    reader = PlannedStartReader(KinesisDataSource.stream_reader(efo.rig.options() | efo.options()))
    try:
        reader.partitions(reader.initialOffset(), reader.latestOffset())
        wait_until(lambda: bool(reader.latestOffset() and efo.rig.server.subscriptions(efo.rig.stream)))
    finally:
        reader.stop()


# Consumers


def _client(efo: Efo) -> tuple[KinesisClient, str]:
    client = KinesisClient(parse_read_options(efo.rig.options(), {}))
    return client, client.describe(efo.rig.stream)["StreamARN"]


def _consumer(efo: Efo, name: str = "consumer", *, register: bool = True, timeout: float = PATIENCE) -> str:
    """The ARN of a consumer, once it is ACTIVE."""
    client, arn = _client(efo)
    return wait_out(lambda: active_consumer(client, arn, name, register=register), OutageRule(timeout, cap_seconds=2.0))


def test_25_a_consumer_is_registered_where_it_is_missing_and_then_reused(efo: Efo) -> None:
    found = _consumer(efo)
    assert _consumer(efo) == found == _consumer(efo, found, register=False)
    assert efo.rig.server.call_counts(efo.rig.stream)["RegisterStreamConsumer"] == 1


def test_25_a_consumer_in_creation_is_waited_for(efo: Efo) -> None:
    efo.rig.server.set_transition(0.5)
    begin = time.monotonic()
    found = _consumer(efo)
    assert time.monotonic() - begin >= 0.5
    client, _ = _client(efo)
    described = client.call("describe_stream_consumer", "", ConsumerARN=found)["ConsumerDescription"]
    assert described["ConsumerStatus"] == "ACTIVE"


def test_25_a_consumer_that_is_being_removed_is_made_anew(efo: Efo) -> None:
    before = _consumer(efo)
    efo.rig.server.set_transition(0.5)
    client, _ = _client(efo)
    client.call("deregister_stream_consumer", "", ConsumerARN=before)
    assert _consumer(efo) != before


def test_25_a_sixth_consumer_in_creation_is_tried_again(efo: Efo) -> None:
    client, arn = _client(efo)
    efo.rig.server.set_transition(1)
    for number in range(5):
        client.call("register_stream_consumer", "", StreamARN=arn, ConsumerName=f"other-{number}")
    assert "/consumer:" in _consumer(efo).replace("/consumer/", "/").replace("consumer:", "/consumer:")


def _others(efo: Efo, number: int) -> tuple[KinesisClient, list[str]]:
    """Register other consumers of the stream; their ARNs."""
    client, arn = _client(efo)
    made = [
        client.call("register_stream_consumer", "", StreamARN=arn, ConsumerName=f"other-{number}")
        for number in range(number)
    ]
    return client, [each["Consumer"]["ConsumerARN"] for each in made]


def test_a_stream_with_twenty_consumers_stops_the_query_at_once_by_name(efo: Efo) -> None:
    _others(efo, 20)
    begin = time.monotonic()
    with (
        efo.query() as query,
        pytest.raises(ReaderFailedError, match=r"KINESIS_CONSUMER_LIMIT.*20 registered") as raised,
    ):
        query.run_until(lambda _batches: False, PATIENCE)
    assert time.monotonic() - begin < PATIENCE / 2
    assert "minFetchPeriod" not in str(raised.value)
    assert "consumerARN" in str(raised.value)
    assert efo.rig.server.call_counts(efo.rig.stream)["RegisterStreamConsumer"] == 20 + 1


def test_a_place_that_becomes_free_is_waited_for(efo: Efo) -> None:
    client, arns = _others(efo, 20)
    efo.rig.server.set_transition(0.5)
    client.call("deregister_stream_consumer", "", ConsumerARN=arns[3])
    assert _consumer(efo, timeout=PATIENCE) not in arns


def test_a_full_stream_whose_consumers_may_not_be_listed_fails_by_name_after_a_while(efo: Efo) -> None:
    _others(efo, 20)
    efo.rig.server.fail("ListStreamConsumers", "AccessDeniedException", None)
    with (
        efo.query(source=HASTY_SOURCE) as query,
        pytest.raises(ReaderFailedError, match=r"KINESIS_CONSUMER_LIMIT.*20 registered consumers"),
    ):
        query.run_until(lambda _batches: False, PATIENCE)


def test_registering_too_often_is_throttling_and_is_tried_again(efo: Efo) -> None:
    efo.rig.server.fail("RegisterStreamConsumer", "LimitExceededException", 2, message="Rate exceeded for account 1.")
    client, arn = _client(efo)
    for _ in range(2):
        with pytest.raises(ConnectorError, match="KINESIS_THROTTLED") as raised:
            active_consumer(client, arn, "consumer", register=True)
        assert raised.value.transient
        assert "minFetchPeriod" not in str(raised.value)
    assert _consumer(efo)


def test_25_a_consumer_that_does_not_come_fails_by_name(efo: Efo) -> None:
    efo.rig.server.set_transition(600)
    with pytest.raises(ConnectorError, match="KINESIS_CONSUMER_NOT_ACTIVE"):
        _consumer(efo, timeout=0.5)
    with pytest.raises(OptionError, match="KINESIS_NO_CONSUMER"):
        _consumer(efo, "nobody", register=False)


def test_25_many_consumers_that_do_not_come_keep_no_thread_from_the_shards(efo: Efo) -> None:
    """There are sixteen threads for all that a source process asks; here is one."""
    efo.rig.server.set_transition(600)
    client, arn = _client(efo)
    options = replace(parse_read_options(efo.rig.options(**efo.options()), {}), register_seconds=5.0)
    failed: list[BaseException] = []
    found: list[str] = []
    looked = threading.Event()
    jobs = Scheduler(1, failed.append)
    consumers = StreamConsumers(options, client, jobs, found.append)
    try:
        consumers.want(arn, efo.rig.stream)
        wait_until(lambda: "RegisterStreamConsumer" in efo.rig.server.call_counts(efo.rig.stream))
        jobs.add(Job(looked.set))
        assert looked.wait(PATIENCE)
        assert failed == [], "it is waited for, and not done yet"
        wait_until(lambda: failed != [])
        assert [getattr(error, "code", None) for error in failed] == ["KINESIS_CONSUMER_NOT_ACTIVE"]
        efo.rig.server.jump(601)
        consumers.want(arn, efo.rig.stream)
        wait_until(lambda: found == [arn])
        assert consumers.arn(arn) == _consumer(efo, options.consumers[0])
    finally:
        jobs.stop()


def test_25_the_query_polls_until_its_consumer_is_active(efo: Efo) -> None:
    efo.rig.server.set_transition(600)
    values = efo.rig.put(10)
    with efo.query() as query:
        efo.rig.drain(query, values)
        assert efo.rig.server.subscriptions(efo.rig.stream) == []
        efo.rig.server.jump(601)
        efo.until_live(query)
        values += efo.rig.put(10)
        efo.rig.drain(query, values)


@pytest.mark.parametrize("asked", [False, True])
def test_25_a_consumer_is_deregistered_only_when_that_is_asked(efo: Efo, asked: bool) -> None:
    with efo.query(requireConsumerDeregistration=str(asked).lower()) as query:
        efo.until_live(query)
        children = descendants(query.reader.pid)
        query.kill()
        wait_until(lambda: not any(is_running(each) for each in children))

    def calls() -> int:
        return efo.rig.server.call_counts(efo.rig.stream).get("DeregisterStreamConsumer", 0)

    wait_until(lambda: calls() > 0 or not asked)  # the service may come to it when the processes have ended
    assert calls() == (1 if asked else 0)


def test_25_a_consumer_that_somebody_removes_is_made_anew(efo: Efo) -> None:
    with efo.query() as query:
        efo.until_live(query)
        (before,) = efo.rig.server.subscriptions(efo.rig.stream)
        client, _ = _client(efo)
        client.call("deregister_stream_consumer", "", ConsumerARN=before.consumer)
        values = efo.rig.put(10)
        efo.rig.drain(query, values)
        efo.until_live(query)
        (now,) = efo.rig.server.subscriptions(efo.rig.stream)
        assert now.consumer != before.consumer
        values += efo.rig.put(10)
        efo.rig.drain(query, values)


# Subscriptions end all the time


def _end_subscriptions(two: Efo, end: str) -> None:
    server, stream = two.rig.server, two.rig.stream
    if end == "expiry":
        server.jump(301)
    elif end == "silence":
        before = server.call_counts(stream)["SubscribeToShard"]
        server.silence_subscriptions()
        wait_until(lambda: server.call_counts(stream)["SubscribeToShard"] >= before + 2)
        server.silence_subscriptions(on=False)
    else:
        kinds = {"taken over": "ResourceInUseException", "error": "InternalFailureException", "cut": None}
        server.end_subscriptions(stream, kind=kinds[end])


def test_26_a_subscription_that_ends_loses_and_doubles_nothing(two: Efo) -> None:
    """Whatever its end is: one query has them all, since to start one takes longer than all its rounds."""
    with two.query(source=HASTY_SOURCE) as query:
        two.rig.server.set_heartbeat(0.05)
        values = two.rig.put(20)
        two.rig.drain(query, values)
        for end in ("expiry", "taken over", "error", "cut", "silence"):
            two.until_live(query, 2)
            for _ in range(3):
                values += two.rig.put(20)
                _end_subscriptions(two, end)
                values += two.rig.put(20)
                two.rig.drain(query, values)
            two.until_live(query, 2)
            values += two.rig.put(20)
            assert two.polls(lambda: two.rig.drain(query, values)) == 0, end  # noqa: B023 - called at once


@pytest.mark.parametrize("kind", ["ResourceInUseException", "InternalFailure", "LimitExceededException"])
def test_26_a_subscription_that_is_refused_is_tried_again_and_polled_meanwhile(efo: Efo, kind: str) -> None:
    efo.rig.server.fail("SubscribeToShard", kind, 3, status=500 if kind == "InternalFailure" else 400)
    values = efo.rig.put(10)
    with efo.query() as query:
        efo.rig.drain(query, values)
        efo.until_live(query)
        values += efo.rig.put(10)
        assert efo.polls(lambda: efo.rig.drain(query, values)) == 0


def test_26_a_role_that_must_not_subscribe_stops_the_query_by_name(efo: Efo) -> None:
    efo.rig.server.fail("SubscribeToShard", "AccessDeniedException", None)
    with efo.query() as query, pytest.raises(ReaderFailedError, match="KINESIS_ACCESS_DENIED"):
        query.run_until(lambda _batches: False, PATIENCE)


@pytest.mark.parametrize("changed", [True, False])
def test_29_a_subscription_whose_keys_have_expired_is_opened_with_those_that_a_shared_file_has_now(
    efo: Efo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    shared = tmp_path / "credentials"
    shared.write_text("[shop]\naws_access_key_id = AKIAOLD\naws_secret_access_key = x\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(shared))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    server, stream = efo.rig.server, efo.rig.stream
    options = efo.rig.options(**efo.options(profile="shop", region="us-east-1"))
    del options["awsAccessKey"], options["awsSecretKey"]
    with StreamingQuery(
        SOURCE, options, checkpoint=tmp_path / "checkpoint", sink=efo.rig.sink, workers=efo.rig.workers
    ) as query:
        efo.until_live(query)
        server.fail("SubscribeToShard", "ExpiredTokenException", 1 if changed else None)
        if changed:
            shared.write_text(shared.read_text().replace("AKIAOLD", "AKIANEW"))
        since = server.next_call()
        server.end_subscriptions(stream)
        if changed:
            values = efo.rig.put(10)
            efo.until_live(query)
            efo.rig.drain(query, values)
        else:
            with pytest.raises(ReaderFailedError, match="KINESIS_CREDENTIALS"):
                query.run_until(lambda _batches: False, PATIENCE)
    keys = [call.access_key for call in server.calls("SubscribeToShard", stream, since=since)]
    assert keys[:2] == ["AKIAOLD", "AKIANEW" if changed else "AKIAOLD"]


def test_26_two_queries_on_one_consumer_take_it_from_each_other_and_both_read_all(
    server: KinesisServerProcess, tmp_path: Path
) -> None:
    server.set_takeover(0)
    first = Efo(KinesisRig(server, tmp_path / "a"), tmp_path / "a-spool")
    second = Efo(KinesisRig(server, tmp_path / "b"), tmp_path / "b-spool")
    second.rig.stream = first.rig.stream
    with first.query(consumerName="same") as one, second.query(consumerName="same") as other:
        values: list[bytes] = []
        for _ in range(3):
            values += first.rig.put(10)
            first.rig.drain(one, values)
            second.rig.drain(other, values)


def test_27_a_closed_shard_is_not_subscribed_to_again(efo: Efo) -> None:
    stream = efo.rig.stream
    (shard,) = efo.rig.server.shards(stream)
    with efo.query() as query:
        efo.until_live(query)
        values = efo.rig.put(10)
        efo.rig.drain(query, values)
        since = efo.rig.server.next_call()
        efo.rig.server.split(stream, shard)
        values += efo.rig.put(20)
        efo.rig.drain(query, values)
        efo.until_live(query, 2)
        values += efo.rig.put(20)
        efo.rig.drain(query, values)
    assert efo.rig.server.calls("SubscribeToShard", stream, shard, since=since) == []


# Resharding


def _reshard_twice(efo: Efo, values: list[bytes]) -> None:
    """Two levels: a split, splits of its children, and a merge."""
    server, stream = efo.rig.server, efo.rig.stream
    for child in server.split(stream, server.shards(stream, only_open=True)[0]):
        values += efo.rig.put(30)
        server.split(stream, child)
        values += efo.rig.put(30)
    server.merge(stream, *server.shards(stream, only_open=True)[-2:])
    values += efo.rig.put(30)


def _parents_came_first(efo: Efo) -> None:
    client, _ = _client(efo)
    batches: dict[str, list[int]] = {}
    for row in efo.rig.rows():
        batches.setdefault(row["shardId"], []).append(row["batch"])
    pairs = [
        (parent, shard.shard_id)
        for shard in client.listing(efo.rig.stream).shards.values()
        for parent in shard.parents
        if parent in batches and shard.shard_id in batches
    ]
    assert pairs
    for parent, child in pairs:
        assert max(batches[parent]) < min(batches[child])


@pytest.mark.guarantee
@pytest.mark.parametrize("start", ["trim_horizon", "latest"])
@pytest.mark.parametrize("stopped", [False, True])
def test_07_12_two_levels_of_resharding_lose_and_double_nothing(efo: Efo, start: str, stopped: bool) -> None:
    efo.rig.server.jump(5)
    with efo.query(initialPosition=start) as query:
        query.run_batch(PATIENCE) if start == "latest" else None
        efo.until_live(query)
        values = efo.rig.put(20)
        efo.rig.drain(query, values)
        if stopped:
            query.stop()
        _reshard_twice(efo, values)
        if stopped:
            query.start()
        efo.rig.drain(query, values)
        values += efo.rig.put(20)
        efo.rig.drain(query, values)
    _parents_came_first(efo)


def test_08_resharding_under_load_gives_every_record_once_in_order(two: Efo) -> None:
    values = two.rig.put(30)
    resharded: list[int] = []

    def sink(batch: int, tables: Sequence[pa.Table]) -> None:
        two.rig.sink(batch, tables)
        if len(resharded) == 4 or not sum(table.num_rows for table in tables):
            return
        values.extend(two.rig.put(30))
        left = two.rig.server.shards(two.rig.stream, only_open=True)
        if len(resharded) % 2 == 0:
            two.rig.server.split(two.rig.stream, left[0])
        else:
            two.rig.server.merge(two.rig.stream, *left[-2:])
        resharded.append(batch)
        values.extend(two.rig.put(30))

    with two.query(sink=sink) as query:
        query.run_until(lambda _batches: len(resharded) == 4 and two.rig.sink.rows() >= len(values), PATIENCE)
    two.rig.all_once(values)
    _parents_came_first(two)


# The mode changes, the spool goes


def test_the_mode_may_change_from_start_to_start(two: Efo) -> None:
    values: list[bytes] = []
    for mode in ("polling", "efo", "polling", "efo"):
        with two.query(consumerMode=mode) as query:
            values += two.rig.put(20)
            two.rig.drain(query, values)
            if mode == "efo":
                two.until_live(query, 2)
                values += two.rig.put(20)
                assert two.polls(lambda: two.rig.drain(query, values)) == 0  # noqa: B023 - called at once
                _reshard_twice(two, values)
                two.rig.drain(query, values)
                values += two.rig.put(5)
        values += two.rig.put(20)


def test_the_mode_may_change_over_a_batch_that_was_not_finished(two: Efo) -> None:
    values: list[bytes] = []
    for modes in (("efo", "polling"), ("polling", "efo")):
        with two.query(consumerMode=modes[0]) as query:
            if modes[0] == "efo":
                two.until_live(query, 2)
            values += two.rig.put(30)
            query.crash_at("tasks_done")
            with pytest.raises(DriverCrashedError):
                query.run_until(lambda _batches: False, PATIENCE)
        with two.query(consumerMode=modes[1]) as query:  # raises if the batch has other rows
            two.rig.drain(query, values)


def delete(spool: Path) -> None:
    """Delete a spool, also while a fetcher puts segments into its folders."""
    while spool.exists():
        shutil.rmtree(spool, ignore_errors=True)


@pytest.mark.parametrize("running", [False, True])
def test_the_spool_may_be_deleted_at_any_time(two: Efo, running: bool) -> None:
    with two.query() as query:
        two.until_live(query, 2)
        values = two.rig.put(20)
        two.rig.drain(query, values)
        for _ in range(2):
            if not running:
                query.stop()
            values += two.rig.put(20)
            wait_until(lambda: running is False or two.segments() != [])
            delete(two.spool)
            values += two.rig.put(20)
            if not running:
                query.start()
            two.rig.drain(query, values)
        two.until_live(query, 2)
        values += two.rig.put(20)
        assert two.polls(lambda: two.rig.drain(query, values)) == 0


def test_a_new_checkpoint_reads_nothing_that_an_earlier_query_left_in_the_spool(efo: Efo) -> None:
    with efo.query() as query:
        efo.until_live(query)
        values = efo.rig.put(10)
        efo.rig.drain(query, values)
        assert efo.segments() != []
    for each in ("checkpoint", "sink"):
        shutil.rmtree(efo.rig.folder / each)
    efo.rig.server.trim(efo.rig.stream, efo.rig.server.shards(efo.rig.stream)[0], 10)
    with efo.query() as query:
        values = efo.rig.put(5)
        efo.rig.drain(query, values)


_monitors: dict[str, ShardMonitor] = {}
"""One for a stream: to make a client takes longer than to plan a batch."""


def _rows(efo: Efo, ranges: Sequence[ShardRange], **more: str) -> list[dict[str, Any]]:
    """The rows that tasks read of these ranges."""
    options = parse_read_options(efo.rig.options(**efo.options(**more)), {}, streaming=True)
    settings = read_settings(options, 1.0)
    return [row for part in ranges for batch in read_part(part, settings) for row in batch.to_pylist()]


def _planned(efo: Efo, start: dict[str, Any], end: dict[str, Any], **more: str) -> list[ShardRange]:
    """The ranges of a batch as a new source process plans them, from what is in the spool."""
    options = parse_read_options(efo.rig.options(**efo.options(**more)), {}, streaming=True)
    if efo.rig.stream not in _monitors:
        _monitors[efo.rig.stream] = ShardMonitor(options)
    monitor = _monitors[efo.rig.stream]
    monitor.push_source = FanOut(options, monitor)
    return KinesisStream(options, monitor).partitions(start, end)


def _all_is_known(efo: Efo, query: StreamingQuery) -> bool:
    """Whether the source process knows of the newest record of each shard."""
    newest = {record.shard: after(record.sequence_number) for record in efo.rig.server.records(efo.rig.stream)}
    (state,) = read_offset(json.loads(str(query.reader.report_latest_offset()))).values()
    return newest == {shard: state.shards[shard].position for shard in newest}


def _put_three_times(efo: Efo) -> None:
    kept = efo.spooled_rows()
    for number in range(1, 4):
        efo.rig.put(40, size=50)
        wait_until(lambda number=number: efo.spooled_rows() == kept + 40 * number)


def _batch_of_segments(
    efo: Efo, fill: Callable[[Efo], None] = _put_three_times, shards: int = 2
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The offsets of a batch of many segments, which was planned and not read."""
    with efo.query() as query:
        efo.until_live(query, shards)
        values = efo.rig.put(10)
        efo.rig.drain(query, values)
        fill(efo)
        wait_until(lambda: _all_is_known(efo, query))  # it is told of a segment when that is there
        children = descendants(query.reader.pid)
        query.crash_at("offsets_logged")
        with pytest.raises(DriverCrashedError):
            query.run_until(lambda _batches: False, PATIENCE)
        number = query.checkpoint.latest_offsets or 0
        start, end = query.checkpoint.offsets(number - 1)[0], query.checkpoint.offsets(number)[0]
    wait_until(lambda: not any(is_running(each) for each in children))
    return json.loads(str(start)), json.loads(str(end))


def _truncated(path: Path, _other: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _emptied(path: Path, _other: Path) -> None:
    os.truncate(path, 0)


def _deleted(path: Path, _other: Path) -> None:
    path.unlink()


def _changed(path: Path, _other: Path) -> None:
    """A byte of its rows is another one."""
    data = bytearray(path.read_bytes())
    data[len(data) // 4] ^= 1
    path.write_bytes(data)


def _replaced(path: Path, other: Path) -> None:
    path.write_bytes(other.read_bytes())


def _swapped(path: Path, other: Path) -> None:
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)


def test_each_segment_of_a_batch_may_be_lost_or_damaged_and_the_rows_are_the_same(two: Efo) -> None:
    start, end = _batch_of_segments(two)
    ranges = _planned(two, start, end)
    wanted = _rows(two, ranges)
    assert len(wanted) == 120
    assert two.polls(lambda: _rows(two, ranges)) == 0
    named = {piece.segment for part in ranges for piece in part.pieces}
    paths = [two.spool / name for name in sorted(named)]
    assert len(paths) >= 3
    saved = {path: path.read_bytes() for path in paths}
    for path in paths:
        other = next(each for each in paths if each != path)
        for harm in (_deleted, _truncated, _emptied, _changed, _replaced, _swapped):
            harm(path, other)
            found: list[dict[str, Any]] = []
            assert two.polls(lambda found=found: found.extend(_rows(two, ranges))) > 0, "what is lost is polled"
            assert found == wanted, (harm, path)
            assert _rows(two, _planned(two, start, end)) == wanted, (harm, path)
            for each, data in saved.items():
                each.write_bytes(data)


def _rewritten(path: Path, spool: Path, elsewhere: Path, version: str, *columns: str) -> None:
    """The segment as a version of the pack would have it whose rows have these columns; an empty one states none."""
    reader = SegmentReader(open_store(str(spool), "look"), path.relative_to(spool).as_posix())
    (keys, sizes), info = reader.index(), reader.info
    stored = pa.Table.from_batches([batch for _, batch in reader.batches(0, info.rows)])
    table = stored.append_column("region", pa.nulls(info.rows, pa.string())).select(columns)
    (rows,) = table.combine_chunks().to_batches()
    schema = rows.schema.with_metadata({"spool.rows.version": version} if version else None)
    store = open_store(str(elsewhere), "look")
    store.make_root()
    writer = SegmentWriter(store, reader.spool, info.fetcher, info.number, schema, info.source)
    writer.append(rows, keys, sizes, info.published, notes=reader.notes)
    path.write_bytes((elsewhere / writer.publish().name).read_bytes())


def test_segments_of_other_versions_are_used_or_absent_and_the_rows_are_the_same(two: Efo, tmp_path: Path) -> None:
    start, end = _batch_of_segments(two)
    saved = {path: path.read_bytes() for path in two.segments()}
    assert all(_version_of(data) == b"1" for data in saved.values())
    wanted = _rows(two, _planned(two, start, end))
    assert len(wanted) == 120
    columns = ARROW_SCHEMA.names
    for number, (version, names, is_used) in enumerate(
        [
            ("", columns, True),
            ("1", columns[::-1], True),
            ("", columns[:-1], False),
            ("1", columns[:-1], False),
            ("2", columns, False),
            ("2", [*columns, "region"], False),
            ("", [*columns, "region"], False),
        ]
    ):
        for path in saved:
            _rewritten(path, two.spool, tmp_path / f"rewritten-{number}", version, *names)
        found: list[dict[str, Any]] = []
        ranges = _planned(two, start, end)
        assert bool([piece for part in ranges for piece in part.pieces]) == is_used, (version, names)
        polls = two.polls(lambda found=found, ranges=ranges: found.extend(_rows(two, ranges)))
        assert (polls == 0) == is_used, (version, names)
        assert found == wanted, (version, names)
        for path, data in saved.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def _version_of(segment: bytes) -> bytes:
    with pa.ipc.open_stream(segment) as stream:
        return dict(stream.schema.metadata)[b"spool.rows.version"]


def test_28_an_aggregate_is_spooled_in_parts_and_the_rows_are_the_same_when_any_part_is_damaged(efo: Efo) -> None:
    data = [b"%d" % number for number in range(2 * MAX_ROWS + 5)]

    def fill(efo: Efo) -> None:
        kept = efo.spooled_rows()
        aggregate = kpl_aggregate(data)
        efo.rig.server.put(efo.rig.stream, [("k", b"before"), ("k", aggregate), ("k", b"after")])
        wait_until(lambda: efo.spooled_rows() == kept + len(data) + 2)

    ranges = _planned(efo, *_batch_of_segments(efo, fill, 1))
    wanted = _rows(efo, ranges)
    assert [row["data"] for row in wanted] == [b"before", *data, b"after"]
    options = parse_read_options(efo.rig.options(**efo.options()), {}, streaming=True)
    sizes = [len(batch) for part in ranges for batch in read_part(part, read_settings(options, 1.0))]
    assert max(sizes) <= MAX_ROWS
    polled = _rows(efo, ranges, spoolLocation=str(efo.spool / "elsewhere"))
    assert polled == wanted, "rows are those of polling"
    (path,) = {efo.spool / piece.segment for part in ranges for piece in part.pieces if piece.end_row > MAX_ROWS}
    whole = path.read_bytes()
    blocks = SealedReader(open_store(str(efo.spool), "look"), path.relative_to(efo.spool).as_posix(), SEGMENT, None)
    places = [section["offset"] + section["length"] // 2 for section in blocks.of_kind("block")]
    assert len(places) >= 3
    for place in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        found: list[dict[str, Any]] = []
        assert efo.polls(lambda found=found: found.extend(_rows(efo, ranges))) > 0
        assert found == wanted, place
    path.write_bytes(whole)


def _empty_aggregate() -> bytes:
    """A KPL aggregate with a key and no record."""
    body = b"\x0a\x01k"
    return b"\xf3\x89\x9a\xc2" + body + hashlib.md5(body).digest()


def test_26_what_a_segment_held_that_is_lost_before_it_was_looked_at_is_polled(efo: Efo) -> None:
    """The subscription lives on, so nothing else would ever look at the shard."""
    with efo.query() as query:
        efo.until_live(query)
        values = efo.rig.put(5)
        efo.rig.drain(query, values)
        for harm, later in ((_deleted, 5), (_truncated, 0)):
            before = set(efo.segments())
            os.kill(query.reader.pid, signal.SIGSTOP)
            try:
                values += efo.rig.put(5)
                wait_until(lambda before=before: set(efo.segments()) > before)
                for path in set(efo.segments()) - before:
                    harm(path, path)
                values += efo.rig.put(later)
            finally:
                os.kill(query.reader.pid, signal.SIGCONT)
            efo.rig.drain(query, values)
        efo.until_live(query)
        efo.rig.server.put(efo.rig.stream, [("k", _empty_aggregate())])  # no row, so no segment says that it was there
        values += efo.rig.put(5)
        efo.rig.drain(query, values)


def test_an_executor_that_cannot_see_the_spool_polls_a_range_in_one_go(two: Efo, tmp_path: Path) -> None:
    start, end = _batch_of_segments(two)
    ranges = _planned(two, start, end)
    wanted = _rows(two, ranges)
    assert sum(len(part.pieces) for part in ranges) >= 5
    found: list[dict[str, Any]] = []
    calls = two.rig.calls(
        "GetShardIterator", lambda: found.extend(_rows(two, ranges, spoolLocation=str(tmp_path / "elsewhere")))
    )
    assert found == wanted
    assert calls == len(ranges)


def test_segments_of_another_service_or_of_other_options_are_foreign(two: Efo) -> None:
    start, end = _batch_of_segments(two)
    ranges = _planned(two, start, end)
    wanted = _rows(two, ranges)
    foreign = _planned(two, start, end, deaggregate="false")
    assert not any(part.pieces for part in foreign)
    assert _rows(two, foreign) == wanted


@pytest.mark.guarantee
def test_what_a_killed_fetcher_has_half_written_is_removed_at_the_next_start(tmp_path: Path) -> None:
    """A container that is killed takes the source process with it, so nobody else is there to do it."""
    root = str(tmp_path / "spool")
    open_store(root, "test").make_root()
    killed, lives = FetcherFolder(root), FetcherFolder(root)
    for each in (killed, lives):
        each.store.writer(f"{each.name}/0.arrow").write(b"half")
    killed.release()
    SpoolIndex(root, "spool", deaggregate=True).open()
    assert [path.name.partition("-")[0] for path in (tmp_path / "spool" / "tmp").iterdir()] == [lives.fetcher]
    assert SpoolIndex(root, "spool", deaggregate=True).fetchers() == [lives.fetcher]
    lives.release()


def test_a_spool_of_another_connector_is_refused(efo: Efo) -> None:
    (efo.spool / "ledger" / "0").mkdir(parents=True)
    (efo.spool / "inbox" / "a").mkdir(parents=True)
    precious = efo.spool / "inbox" / "a" / "0.arrow"
    precious.write_bytes(b"rows")
    with efo.query() as query, pytest.raises(ReaderFailedError, match="SPOOL_OTHER_SOURCE"):
        query.run_until(lambda _batches: False, PATIENCE)
    assert precious.read_bytes() == b"rows"


# Processes


@pytest.mark.guarantee
@pytest.mark.parametrize(
    "point",
    [
        pytest.param("fetch.after_folder", marks=pytest.mark.long),
        pytest.param("fetch.before_decode", marks=pytest.mark.long),
        pytest.param("segment.before_append", marks=pytest.mark.long),
        "fetch.before_publish",
        pytest.param("store.before_link", marks=pytest.mark.long),
        pytest.param("store.before_folder_sync", marks=pytest.mark.long),
        "fetch.after_publish_before_ack",
        pytest.param("fetch.after_ack", marks=pytest.mark.long),
    ],
)
def test_03_a_fetcher_that_dies_anywhere_loses_and_doubles_nothing(two: Efo, tmp_path: Path, point: str) -> None:
    query = two.query()
    query.reader_environment = {"CONNECTORS_FAILPOINTS": f"fetcher/{point}=kill_once:{tmp_path / 'died'}"}
    with query:
        values = two.rig.put(20)
        two.rig.drain(query, values)
        while not (tmp_path / "died").exists():
            values += two.rig.put(5)
            two.rig.drain(query, values)
        two.until_live(query, 2)
        values += two.rig.put(20)
        assert two.polls(lambda: two.rig.drain(query, values)) == 0


@pytest.mark.guarantee
@pytest.mark.parametrize("point", ["kinesis.before_free", "kinesis.after_free"])
def test_03_a_source_that_dies_while_it_frees_loses_and_doubles_nothing(two: Efo, tmp_path: Path, point: str) -> None:
    from tests.support.spark_protocol.driver import ReaderDiedError  # noqa: PLC0415 - only here

    query = two.query()
    query.reader_environment = {"CONNECTORS_FAILPOINTS": f"reader/{point}=kill_once:{tmp_path / 'died'}"}
    values: list[bytes] = []
    with query:

        def until_it_dies() -> None:
            while True:
                values.extend(two.rig.put(10))
                two.rig.drain(query, values)

        with pytest.raises(ReaderDiedError):
            until_it_dies()
        query.restart()
        two.rig.drain(query, values)


@pytest.mark.guarantee
def test_03_a_source_that_is_killed_leaves_no_fetcher_and_a_new_one_goes_on(two: Efo) -> None:
    values: list[bytes] = []
    with two.query() as query:
        for _ in range(2):
            two.until_live(query, 2)
            values += two.rig.put(20)
            two.rig.drain(query, values)
            children = descendants(query.reader.pid)
            assert children
            query.kill()
            begin = time.monotonic()
            wait_until(lambda children=children: not any(is_running(each) for each in children))
            assert time.monotonic() - begin < 5.5
            values += two.rig.put(20)
            query.start()
            two.rig.drain(query, values)


def test_26_the_shards_of_a_fetcher_that_hangs_are_polled_until_it_goes_on(efo: Efo) -> None:
    with efo.query(source=HASTY_SOURCE) as query:
        efo.until_live(query)
        values = efo.rig.put(5)
        efo.rig.drain(query, values)
        (fetcher,) = (
            each
            for each in descendants(query.reader.pid)
            if b"fetching.process" in Path(f"/proc/{each}/cmdline").read_bytes()
        )
        os.kill(fetcher, signal.SIGSTOP)
        try:
            values += efo.rig.put(5)
            efo.rig.drain(query, values)
        finally:
            os.kill(fetcher, signal.SIGCONT)
        efo.until_live(query)


@pytest.mark.guarantee
def test_26_a_fetcher_that_hangs_is_killed_with_its_source(efo: Efo) -> None:
    with efo.query() as query:
        efo.until_live(query)
        with efo.rig.server.process.stalled():
            children = descendants(query.reader.pid)
            query.stop()
            wait_until(lambda: not any(is_running(each) for each in children))


# Idle shards, bounded runs, options


def test_19_a_shard_that_is_idle_for_longer_than_the_retention_raises_no_alarm(
    server: KinesisServerProcess, tmp_path: Path
) -> None:
    server.set_takeover(0)
    efo = Efo(KinesisRig(server, tmp_path), tmp_path / "spool")
    values = efo.rig.put(5)
    for mode in ("efo", "polling", "efo"):
        with efo.query(consumerMode=mode) as query:
            efo.rig.drain(query, values)
            if mode == "efo":
                efo.until_live(query)
            for _ in range(3):
                clean = query.checkpoint.latest_offsets
                server.jump(24 * HOUR)
                query.run_until(lambda _batches, clean=clean: query.checkpoint.latest_offsets != clean, PATIENCE)
            values += efo.rig.put(5)
            efo.rig.drain(query, values)


def test_23_a_bounded_run_reads_what_was_there_and_opens_no_subscription(two: Efo) -> None:
    values = two.rig.put(30)
    _reshard_twice(two, values)
    with two.query(trigger="available_now", maxRecordsPerTrigger="40") as query:
        query.process_available(PATIENCE)
    two.rig.all_once(values)
    assert "RegisterStreamConsumer" not in two.rig.server.call_counts(two.rig.stream)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"consumerMode": "efo"}, "consumerMode=efo needs consumerName"),
        ({"consumerMode": "efo", "consumerName": "a b"}, "OPTION_ILLEGAL.*consumerName"),
        ({"consumerMode": "efo", "consumerName": "a", "consumerARN": "b"}, "OPTION_CONFLICT"),
        ({"consumerMode": "efo", "consumerARN": "a b"}, "OPTION_ILLEGAL.*consumerARN"),
        ({"consumerMode": "efo", "consumerARN": "b,c"}, "2 consumers for 1 streams"),
        (
            {"consumerMode": "efo", "consumerARN": _ARN.format("payments", 1) + "/consumer/mine:1"},
            "OPTION_CONFLICT.*stream/payments for the stream orders",
        ),
        (
            {
                "consumerMode": "efo",
                "streamName": "orders,payments",
                "consumerARN": ",".join(_ARN.format(each, 1) + "/consumer/mine:1" for each in ("payments", "orders")),
            },
            "OPTION_CONFLICT.*stream/payments for the stream orders",
        ),
        ({"consumerMode": "pull"}, "OPTION_ILLEGAL.*consumerMode"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, str], expected: str) -> None:
    with pytest.raises(OptionError, match=expected):
        parse_read_options({"streamName": "orders", "region": "us-east-1"} | options, {})


def test_a_consumer_of_a_stream_of_another_account_is_refused_where_the_arn_of_the_stream_is_given() -> None:
    options = {"streamName": _ARN.format("orders", 1), "consumerMode": "efo"}
    assert parse_read_options(options | {"consumerARN": options["streamName"] + "/consumer/mine:1"}, {}).consumers
    with pytest.raises(OptionError, match=r"OPTION_CONFLICT.*000000000002:stream/orders for the stream .*000000000001"):
        parse_read_options(options | {"consumerARN": _ARN.format("orders", 2) + "/consumer/mine:1"}, {})


def test_a_consumer_of_another_stream_stops_the_query_before_it_brings_anything(efo: Efo) -> None:
    """By name the options do not say which account the stream is of."""
    options = efo.options(consumerARN=_consumer(efo, "mine"))
    del options["consumerName"]
    account = options["consumerARN"].split(":")[4]
    options["consumerARN"] = options["consumerARN"].replace(account, "999999999999")
    refused = pytest.raises(ReaderFailedError, match="OPTION_CONFLICT.*999999999999.*" + account)
    with efo.rig.query(**options) as query, refused:
        query.run_until(lambda _batches: False, PATIENCE)
    assert efo.rig.server.subscriptions(efo.rig.stream) == []


def test_a_consumer_that_was_registered_before_is_used_and_left(efo: Efo) -> None:
    arn = _consumer(efo, "before")
    options = efo.options(consumerARN=arn)
    del options["consumerName"]
    with efo.rig.query(**options) as query:
        efo.until_live(query)
        assert {each.consumer for each in efo.rig.server.subscriptions(efo.rig.stream)} == {arn}
        values = efo.rig.put(5)
        efo.rig.drain(query, values)


def test_29_no_secret_is_in_the_spool_or_in_what_processes_show(efo: Efo) -> None:
    with efo.query() as query:
        efo.until_live(query)
        values = efo.rig.put(5)
        efo.rig.drain(query, values)
        for pid in descendants(query.reader.pid):
            shown = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
            assert b"test-secret" not in shown
        for path in efo.spool.rglob("*"):
            assert path.is_dir() or b"test-secret" not in path.read_bytes()


def test_a_task_fails_when_neither_spool_nor_stream_has_the_records(efo: Efo) -> None:
    with efo.query() as query:
        efo.until_live(query)
        values = efo.rig.put(5)
        efo.rig.drain(query, values)
        efo.rig.put(5)
        query.crash_at("offsets_logged")
        with pytest.raises(DriverCrashedError):
            query.run_until(lambda _batches: False, PATIENCE)
        delete(efo.spool)
        efo.rig.server.trim(efo.rig.stream, efo.rig.server.shards(efo.rig.stream)[0], 10)
        query.start()
        with pytest.raises((ReaderFailedError, TaskFailedError), match="KINESIS_DATA_LOSS"):
            query.run_until(lambda _batches: False, PATIENCE)


@pytest.mark.parametrize(
    "command",
    ["inspect", "verify", "repair", "adopt", "wipe", "quarantine", "delete-subscriptions"],
)
def test_the_commands_for_spools_say_that_this_is_a_cache_and_leave_it(efo: Efo, command: str) -> None:
    values = efo.rig.put(10)
    with efo.query() as query:
        efo.until_live(query)
        values += efo.rig.put(10)
        efo.rig.drain(query, values)
        segments = efo.segments()
        assert segments, "or the folder is an empty one"
        arguments = [command, str(efo.spool), *(["x.arrow"] if command == "quarantine" else [])]
        result = CliRunner().invoke(app, ["spool", *arguments], env={"COLUMNS": "2000"}, input="n\n")
        assert result.exit_code == 2
        assert "SPOOL_IS_CACHE" in result.output
        assert "consumerMode=efo" in result.output
        assert "backup" not in result.output
        assert [path for path in segments if path.exists()] == efo.segments()
        values += efo.rig.put(10)
        efo.rig.drain(query, values)


def test_a_query_with_the_spool_of_a_cache_is_told_to_take_another_folder(efo: Efo) -> None:
    values = efo.rig.put(10)
    with efo.query() as query:
        efo.until_live(query)
        values += efo.rig.put(10)
        efo.rig.drain(query, values)
    findings = {each.check: each for each in check_spool(str(efo.spool), "pubsub", ("projects/p/subscriptions/s",), 1)}
    assert findings["content"].code == "SPOOL_IS_CACHE"
    assert "spoolLocation of its own" in findings["content"].fix
    with pytest.raises(SpoolError, match="SPOOL_IS_CACHE"):
        stats(efo.spool)
