"""Watching and supervising queries in a real Spark session."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from connectors import register
from connectors.core.errors import SourceGoneError
from connectors.observe import summarize_failure, supervise, watch
from connectors.observe.console import LineViews
from connectors.pubsub.client.client import PubSubClient
from connectors.pubsub.options.client import Transport
from connectors.testing.pubsub import PubSubServer
from tests.support.hostile_answers import samples_of
from tests.support.spark_protocol.driver import descendants
from tests.support.spark_session import quick_session

TOPIC = "projects/shop/topics/orders"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = quick_session({"spark.sql.streaming.noDataProgressEventInterval": "200", "spark.log.level": "OFF"})
    register(session)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def server() -> Iterator[PubSubServer]:
    with PubSubServer() as running:
        yield running


def start(spark: SparkSession, server: PubSubServer, folder: Path, write: Callable[[DataFrame, int], None]) -> Any:
    """A query on a subscription named after the folder."""
    server.create_subscription(f"projects/shop/subscriptions/{folder.name}", TOPIC)
    return restart(spark, server, folder, write)


def restart(spark: SparkSession, server: PubSubServer, folder: Path, write: Callable[[DataFrame, int], None]) -> Any:
    """The same query, from its checkpoint."""
    rows = (
        spark.readStream.format("pubsub")
        .option("subscriptionId", f"projects/shop/subscriptions/{folder.name}")
        .option("endpoint", server.endpoint)
        .option("spoolLocation", str(folder / "spool"))
        .load()
    )
    writer = rows.writeStream.foreachBatch(write).queryName(folder.name.replace("-", "_"))
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start()


def wait_for(condition: Callable[[], bool], query: StreamingQuery | None = None) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        if query is not None and (error := query.exception()) is not None:
            raise error
        assert time.monotonic() < deadline, "what was waited for did not come"
        time.sleep(0.05)


def exists(server: PubSubServer, name: str) -> bool:
    with PubSubClient(Transport(server.endpoint, secure=False, local=True)) as client:
        try:
            client.get_subscription(f"projects/shop/subscriptions/{name}")
        except SourceGoneError:
            return False
    return True


def observed(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "lines.jsonl").read_text().splitlines()]


def progress(folder: Path) -> list[dict[str, Any]]:
    return [line for line in observed(folder) if line["event"] == "progress"]


def options(server: PubSubServer, folder: Path) -> dict[str, Any]:
    """What both queries are watched with."""
    return {
        "spools": [folder / "spool"],
        "file": folder / "lines.jsonl",
        "deleteSubscriptions": [f"projects/shop/subscriptions/{folder.name}"],
        "subscriptionOptions": {"endpoint": server.endpoint},
    }


def test_a_query_is_measured_and_its_subscription_goes_after_a_stop_without_error(
    spark: SparkSession, server: PubSubServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows: list[int] = []
    with (
        caplog.at_level("INFO", "connectors.observe.watch"),
        watch(spark, port=0, **options(server, tmp_path)) as observer,
    ):
        server.create_subscription(f"projects/shop/subscriptions/{tmp_path.name}", TOPIC)
        server.publish(TOPIC, [b"x"] * 40)
        query = restart(spark, server, tmp_path, lambda batch, _: rows.append(batch.count()))
        wait_for(lambda: sum(rows) >= 40, query)
        # A stop before that would cut off the batch after its sink and before its end.
        wait_for(lambda: sum(batch["rows"] for batch in progress(tmp_path)) >= 40, query)
        assert str(query.id) in observer.latest
        assert exists(server, tmp_path.name)
        query.stop()
    lines = observed(tmp_path)
    assert [lines[0]["event"], lines[-2]["event"], lines[-1]["event"]] == [
        "started",
        "terminated",
        "subscription_deleted",
    ]
    batches = progress(tmp_path)
    assert sum(line["rows"] for line in batches) == 40
    [source] = batches[-1]["sources"]
    assert source["kind"] == "spool"
    assert source["records"] == 0
    assert source["spool"]["delivered"] == 40
    assert any("records and" in message and "behind" in message for message in caplog.messages)
    assert not exists(server, tmp_path.name)


def test_a_query_that_waits_for_data_is_idle_by_what_spark_reports(
    spark: SparkSession, server: PubSubServer, tmp_path: Path
) -> None:
    rows: list[int] = []
    with watch(spark, spools=[tmp_path / "spool"], file=tmp_path / "lines.jsonl", port=0) as observer:
        query = start(spark, server, tmp_path, lambda batch, _: rows.append(batch.count()))
        for total in (5, 10):
            server.publish(TOPIC, [b"x"] * 5)
            wait_for(lambda total=total: sum(batch["rows"] for batch in progress(tmp_path)) >= total, query)  # type: ignore[misc]
            wait_for(lambda: [line["event"] for line in observed(tmp_path)][-2:] == ["idle", "idle"], query)
            wait_for(lambda: observer.latest[str(query.id)].rows_per_second == 0, query)
            [view] = LineViews(tmp_path / "lines.jsonl").refresh()
            assert (view.state, view.newest.rows_per_second) == ("idle", 0)
            assert [(source.kind, source.records, source.milliseconds) for source in view.newest.sources] == [
                ("spool", 0, 0)
            ]
            assert observer.exporter is not None
            request = urllib.request.Request(observer.exporter.url, headers={"Accept": "application/openmetrics-text"})
            with urllib.request.urlopen(request) as response:
                values = {name: value for name, _, value in samples_of(response.read().decode())}
            assert (values["connectors_running"], values["connectors_rows_per_second"]) == (1, 0)
            assert values["connectors_batch"] == view.newest.batch
        query.stop()
    assert sum(rows) == 10


def test_a_query_that_fails_keeps_its_subscription(spark: SparkSession, server: PubSubServer, tmp_path: Path) -> None:
    batches: list[int] = []

    def write(batch: DataFrame, batch_id: int) -> None:
        if batches and batch.count():
            raise RuntimeError("the sink is broken")
        batches.append(batch_id)

    with watch(spark, **options(server, tmp_path)):
        query = start(spark, server, tmp_path, write)
        server.publish(TOPIC, [b"x"] * 5)
        wait_for(lambda: bool(batches), query)
        server.publish(TOPIC, [b"x"] * 5)
        # Not for the end of the query: Spark tells its listeners of that a moment later.
        wait_for(lambda: [line["event"] for line in observed(tmp_path)][-1:] == ["terminated"])
        assert not query.isActive
    last = observed(tmp_path)[-1]
    assert "the sink is broken" in last["exception"]
    assert exists(server, tmp_path.name)


def test_a_supervised_query_outlives_its_source_process(
    spark: SparkSession, server: PubSubServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows: dict[int, list[str]] = {}
    queries: list[StreamingQuery] = []

    def write(batch: DataFrame, batch_id: int) -> None:
        rows[batch_id] = [row["messageId"] for row in batch.collect()]

    def found() -> list[str]:
        return sorted(name for names in rows.values() for name in names)

    def start_again() -> StreamingQuery:
        queries.append(
            start(spark, server, tmp_path, write) if not queries else restart(spark, server, tmp_path, write)
        )
        return queries[-1]

    ended: list[StreamingQuery] = []
    waits: list[float] = []
    thread = threading.Thread(target=lambda: ended.append(supervise(start_again, sleep=waits.append)))
    thread.start()
    wait_for(lambda: bool(queries))
    published = server.publish(TOPIC, [b"x"] * 20)
    wait_for(lambda: len(found()) >= 20)
    [reader] = {parent(pid) for pid in descendants(os.getpid()) if b"fetching.process" in command(pid)}
    os.kill(reader, signal.SIGKILL)
    wait_for(lambda: len(queries) == 2)
    published += server.publish(TOPIC, [b"x"] * 20)
    wait_for(lambda: len(found()) >= 40, queries[-1])
    queries[-1].stop()
    thread.join(30)
    assert ended == queries[1:]
    assert len(waits) == 1
    assert found() == sorted(published)
    assert "SUPERVISE_RESTART" in caplog.text


def test_a_supervised_query_with_a_broken_sink_is_not_restarted(
    spark: SparkSession, server: PubSubServer, tmp_path: Path
) -> None:
    def write(batch: DataFrame, _: int) -> None:
        if batch.count():
            raise RuntimeError("the sink is broken")

    def start_it() -> StreamingQuery:
        query = start(spark, server, tmp_path, write)
        server.publish(TOPIC, [b"x"])
        return query

    with pytest.raises(StreamingQueryException, match="the sink is broken") as error:
        supervise(start_it, sleep=pytest.fail)
    assert "Not restarted" in error.value.__notes__[0]
    assert printed(error.value)[-1] == "RuntimeError: the sink is broken"


def printed(error: BaseException) -> list[str]:
    """The lines that Python prints of an error that ends a program."""
    return "".join(traceback.format_exception(error)).splitlines()


def test_of_a_failed_query_our_error_is_the_last_line_that_a_script_prints(
    spark: SparkSession, server: PubSubServer, tmp_path: Path
) -> None:
    """By `supervise` and without it; also of a batch, whose error is py4j's."""

    def write(batch: DataFrame, _: int) -> None:
        """Never called: there is no such subscription."""

    def read(path: str) -> DataFrame:
        rows = spark.read.format("pubsub").option("subscriptionId", "projects/shop/subscriptions/nobody")
        return rows.option("endpoint", server.endpoint).option("spoolLocation", path).load()

    ours = re.compile(r"\[(PUBSUB|SPOOL)_[A-Z_]+\] .{20,}")
    for run in (
        lambda: restart(spark, server, tmp_path, write).awaitTermination(),
        lambda: read(str(tmp_path / "batch")).collect(),
        lambda: supervise(lambda: restart(spark, server, tmp_path, write), sleep=pytest.fail),
    ):
        with pytest.raises(Exception, match=r"PUBSUB_|SPOOL_") as error, summarize_failure():
            run()
        lines = printed(error.value)
        assert ours.fullmatch(lines[-1]), lines[-1]
        assert len(lines) > 20
        assert lines.count(lines[-1]) == 1


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
