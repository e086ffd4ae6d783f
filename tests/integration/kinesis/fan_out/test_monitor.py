"""The Kinesis source with enhanced fan-out, on our own server; numbered as in ``docs/explanation/kinesis.md``."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from connectors.cli.main import app
from connectors.core.datasource import PlannedStartReader
from connectors.core.errors import OptionError, SpoolError
from connectors.kinesis.client.client import KinesisClient
from connectors.kinesis.datasource import KinesisDataSource
from connectors.kinesis.options.source import parse_read_options
from connectors.spool import stats
from connectors.spool.admin.doctor import check_spool
from connectors.testing.kinesis import KinesisServerProcess
from tests.support.kinesis_efo import Efo
from tests.support.kinesis_rig import HASTY_SOURCE, PATIENCE, SOURCE, KinesisRig, wait_until
from tests.support.spark_protocol.driver import (
    DriverCrashedError,
    ReaderFailedError,
    StreamingQuery,
    descendants,
)

HOUR = 3600.0
_ARN = "arn:aws:kinesis:us-east-1:{1:012}:stream/{0}"


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


"""One for a stream: to make a client takes longer than to plan a batch."""


def test_a_spool_of_another_connector_is_refused(efo: Efo) -> None:
    (efo.spool / "ledger" / "0").mkdir(parents=True)
    (efo.spool / "inbox" / "a").mkdir(parents=True)
    precious = efo.spool / "inbox" / "a" / "0.arrow"
    precious.write_bytes(b"rows")
    with efo.query() as query, pytest.raises(ReaderFailedError, match="SPOOL_OTHER_SOURCE"):
        query.run_until(lambda _batches: False, PATIENCE)
    assert precious.read_bytes() == b"rows"


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
    assert "its own spoolLocation" in findings["content"].fix
    with pytest.raises(SpoolError, match="SPOOL_IS_CACHE"):
        stats(efo.spool)
