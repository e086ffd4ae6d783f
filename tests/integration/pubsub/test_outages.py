"""Outages of Pub/Sub: source and sink wait for as long as ``retryTimeout`` says, then names the error."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from connectors.core.errors import ServiceUnavailableError
from connectors.pubsub.options.sink import parse_write_options
from connectors.pubsub.options.source import parse_read_options
from connectors.pubsub.sink.rows import RowStamp, check_columns
from connectors.pubsub.sink.writer import close_clients, publish_batches
from connectors.testing.pubsub import PubSubServer
from tests.support.pubsub_calls import PubSubCalls
from tests.support.pubsub_rig import SUBSCRIPTION, TOPIC, PubSubRig
from tests.support.pubsub_task import ARROW, SCHEMA, TaskPlan, run_task
from tests.support.spark_protocol.driver import ReaderFailedError, TaskWorkers

PATIENCE = 60.0
UNAVAILABLE = r"PUBSUB_UNAVAILABLE.*It was retried for {} s: raise the option retryTimeout"


@pytest.fixture
def rig(tmp_path: Path, workers: TaskWorkers) -> Iterator[PubSubRig]:
    with PubSubServer() as server:
        yield PubSubRig(server, server.endpoint, tmp_path, workers)


def begin_outage(server: PubSubServer, method: str = "*", times: int | None = None) -> None:
    """Fail all calls, and end the open streams."""
    server.fail(method, times=times)
    server.close_streams()


def test_a_start_in_an_outage_is_waited_out(rig: PubSubRig) -> None:
    rig.publish(10)
    begin_outage(rig.server, "GetSubscription", times=5)
    with rig.query() as query:
        rig.run_until_all(query)
    rig.assert_each_once()


def test_a_start_stops_with_the_error_of_the_service_after_retry_timeout(rig: PubSubRig) -> None:
    begin_outage(rig.server, "GetSubscription")
    with (
        rig.query({"retryTimeout": "1s"}) as query,
        pytest.raises(ReaderFailedError, match=UNAVAILABLE.format(1)),
    ):
        query.run_until(lambda _batches: False, PATIENCE)


def test_fetchers_outlive_an_outage_and_read_each_message_once(rig: PubSubRig) -> None:
    rig.publish(10)
    with rig.query({"retryTimeout": "60s"}) as query:
        rig.run_until_all(query)
        begin_outage(rig.server)
        query.run_until(lambda _: "[SPOOL_FETCHING_INTERRUPTED]" in "\n".join(query.reader.log), PATIENCE)
        rig.server.clear_faults()
        rig.publish(10)
        rig.run_until_all(query)
    rig.assert_each_once()


def test_fetchers_that_get_nothing_for_retry_timeout_stop_the_query_which_loses_nothing(rig: PubSubRig) -> None:
    rig.publish(10)
    with rig.query({"retryTimeout": "1s"}) as query:
        rig.run_until_all(query)
        begin_outage(rig.server)
        with pytest.raises(ReaderFailedError, match=UNAVAILABLE.format(1)):
            query.run_until(lambda _batches: False, PATIENCE)
    rig.server.clear_faults()
    rig.publish(10)
    rig.server.jump(600)
    with rig.query() as query:
        rig.run_until_all(query)
    rig.assert_each_once()


def test_what_was_fetched_is_read_before_an_outage_stops_the_query(rig: PubSubRig) -> None:
    rig.publish(40)
    with rig.query({"retryTimeout": "100ms", "maxRecordsPerTrigger": "1"}) as query:
        query.run_batch()
        rig.wait_for(lambda: len(rig.acked()) == 40)
        begin_outage(rig.server)
        with pytest.raises(ReaderFailedError, match=UNAVAILABLE.format("0.1")):
            query.run_until(lambda _batches: False, PATIENCE)
    rig.assert_each_once()


def test_available_now_in_an_outage_does_not_end_as_if_all_had_come(rig: PubSubRig) -> None:
    rig.publish(10)
    begin_outage(rig.server)
    options = {"retryTimeout": "2s", "availableNowQuiet": "0s"}
    with (
        rig.query(options, trigger="available_now") as query,
        pytest.raises(ReaderFailedError, match=UNAVAILABLE.format(2)),
    ):
        query.process_available(PATIENCE)
    rig.server.clear_faults()
    with rig.query(options, trigger="available_now") as query:
        query.process_available(PATIENCE)
    rig.assert_each_once()


def test_available_now_max_wait_ends_a_run_in_an_outage_where_it_is_given(rig: PubSubRig) -> None:
    rig.publish(10)
    begin_outage(rig.server)
    with rig.query({"availableNowMaxWait": "1s"}, trigger="available_now") as query:
        query.process_available(PATIENCE)
    assert rig.sink.table() is None


def test_what_does_not_pass_stops_the_start_at_once(rig: PubSubRig) -> None:
    rig.server.fail("GetSubscription", "NOT_FOUND", times=None)
    with rig.query() as query, pytest.raises(ReaderFailedError, match="PUBSUB_SUBSCRIPTION_NOT_FOUND"):
        query.run_until(lambda _batches: False, PATIENCE)


def test_a_query_that_is_stopped_in_an_outage_ends_its_processes(rig: PubSubRig) -> None:
    begin_outage(rig.server)
    with rig.query() as query:
        query.run_until(lambda _: "[RETRYING]" in "\n".join(query.reader.log), PATIENCE)
        stopping = threading.Thread(target=query.stop)
        stopping.start()
        stopping.join(PATIENCE)
        assert not stopping.is_alive()


# The sink


@pytest.fixture(scope="module")
def shared() -> Iterator[PubSubServer]:
    with PubSubServer() as running:
        yield running
    close_clients()


@pytest.fixture
def server(shared: PubSubServer) -> Iterator[PubSubServer]:
    yield shared
    shared.clear_faults()


def task(server: PubSubServer, rows: int = 3, **options: str) -> TaskPlan:
    name = f"orders-{uuid4().hex[:8]}"
    server.create_subscription(f"projects/shop/subscriptions/{name}", f"projects/shop/topics/{name}", ordering=True)
    place = {"endpoint": server.endpoint, "topicId": f"projects/shop/topics/{name}"}
    return TaskPlan(place | options, "query", 4, 2, [(str(number), f"k{number % 2}") for number in range(rows)])


def test_a_sink_outlives_an_outage_and_publishes_each_row_once(server: PubSubServer) -> None:
    server.fail("Publish", times=8)
    plan = task(server, 20)
    assert run_task(plan) == "20"
    name = plan.options["topicId"].rpartition("/")[2]
    assert server.backlog(f"projects/shop/subscriptions/{name}") == 20


@pytest.mark.guarantee
@pytest.mark.parametrize("handed_over", [10, 20])
def test_an_outage_that_begins_within_a_batch_fails_the_task_and_its_next_attempt_publishes_all(
    server: PubSubServer, handed_over: int
) -> None:
    plan = task(server, 20, retryTimeout="1s")
    options = parse_write_options(plan.options, {})
    stamp = RowStamp(options.id_attribute, "query/4/2/", 2)

    def with_outage() -> Iterator[pa.RecordBatch]:
        table = pa.Table.from_pylist([{"payload": text, "orderingKey": key} for text, key in plan.rows], ARROW)
        yield from table.slice(0, handed_over).to_batches()
        server.fail("Publish", times=None)
        yield from table.slice(handed_over).to_batches()

    with pytest.raises(ServiceUnavailableError, match="PUBSUB_UNAVAILABLE"):
        publish_batches(with_outage(), check_columns(SCHEMA, options), options, stamp)
    server.clear_faults()
    assert run_task(plan) == "20"
    name = plan.options["topicId"].rpartition("/")[2]
    subscription = f"projects/shop/subscriptions/{name}"
    with PubSubCalls(server.endpoint) as calls:
        messages = [received.message for received in calls.pull(subscription, server.backlog(subscription))]
    assert {message.data for message in messages} == {text.encode() for text, _ in plan.rows}


def test_a_sink_stops_with_the_error_of_the_service_after_retry_timeout(
    server: PubSubServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.fail("Publish", times=None)
    assert run_task(task(server, retryTimeout="6s")) == "PUBSUB_UNAVAILABLE"
    warnings = [line for line in caplog.messages if line.startswith("[PUBSUB_PUBLISH_INTERRUPTED]")]
    assert len(warnings) == 1
    assert "each request is retried for retryTimeout, 6 s. [PUBSUB_UNAVAILABLE]" in warnings[0]


def test_the_defaults_are_ten_minutes() -> None:
    sink = {"topicId": TOPIC}
    assert parse_write_options(sink, {}).outage_rule.seconds == 600
    assert parse_write_options({**sink, "retryTimeout": "1m"}, {}).outage_rule.seconds == 60
    source = {"subscriptionId": SUBSCRIPTION, "spoolLocation": "/spool"}
    assert parse_read_options(source, {}, streaming=True).retry_timeout == 600
