"""Outages of Kinesis: source and sink wait for as long as ``retryTimeout`` says, then names the error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from connectors.core.errors import AccessDeniedError, ServiceUnavailableError
from connectors.core.offsets import SENTINEL
from connectors.kinesis.datasource import KinesisDataSource, _record_limit, open_stream, read_settings
from connectors.kinesis.options.source import KinesisReadOptions, parse_read_options
from connectors.kinesis.source.batch import plan_batch
from connectors.kinesis.source.reader import read_range
from connectors.testing.kinesis import KinesisServerProcess, start_server_process
from tests.support.kinesis_rig import HASTY_SOURCE, PATIENCE, KinesisRig, wait_until
from tests.support.spark_protocol.driver import ReaderFailedError

MORE_THAN_TEN = 30
"""Failures in a row: before there was ``retryTimeout``, a query that names no limit stopped after 10."""
QUICK = {"maxRetryInterval": "100ms"}
ROWS = StructType([StructField("partitionKey", StringType()), StructField("data", BinaryType())])
PLANNING = ("ListShards", "DescribeStreamSummary", "GetShardIterator", "GetRecords")
SINKS = ({}, {"ordered": "true"}, {"aggregation": "true"}, {"aggregation": "true", "ordered": "true"})


@pytest.fixture(scope="module")
def server() -> Iterator[KinesisServerProcess]:
    made = start_server_process()
    yield made
    made.close()


@pytest.fixture
def kinesis(server: KinesisServerProcess, tmp_path: Path) -> Iterator[KinesisRig]:
    _record_limit.cache_clear()
    yield KinesisRig(server, tmp_path)
    server.clear_faults()


def begin_outage(kinesis: KinesisRig, operation: str | None = None, times: int | None = None) -> None:
    kinesis.server.fail(operation, "InternalFailure", times, status=500)


def write(kinesis: KinesisRig, count: int, **options: str) -> None:
    writer = KinesisDataSource(kinesis_sink(kinesis, **options)).batch_writer(ROWS)
    writer.write(iter([rows(range(count))]))


def rows(numbers: range) -> pa.RecordBatch:
    data = [b"%d" % each for each in numbers]
    return pa.RecordBatch.from_pydict({"partitionKey": ["k"] * len(data), "data": data})


def kinesis_sink(kinesis: KinesisRig, **options: str) -> dict[str, str]:
    place = {"streamName": kinesis.stream, "endpointUrl": kinesis.server.url}
    return {**place, "awsAccessKey": "AKIATEST", "awsSecretKey": "x", **QUICK, **options}


def read_all(kinesis: KinesisRig, meanwhile: Callable[[KinesisReadOptions], None], **options: str) -> list[bytes]:
    parsed = parse_read_options(kinesis.options(**QUICK, **options), {}, streaming=False)
    parts = plan_batch(parsed)
    meanwhile(parsed)
    return [
        value
        for part in parts
        for rows in read_range(part, read_settings(parsed, 1.0))
        for value in rows.column("data").to_pylist()
    ]


def test_calls_of_the_background_end_with_the_stream_in_an_outage(kinesis: KinesisRig) -> None:
    kinesis.put(1)
    options = kinesis.options(**QUICK, shardFetchInterval="1ms", retryTimeout="1h")
    before = {*threading.enumerate()}
    stream = open_stream(parse_read_options(options, {}, streaming=True))
    try:
        stream.latest_offset(dict(SENTINEL), everything=False)
        begin_outage(kinesis)
        calls = kinesis.server.call_counts(kinesis.stream)["DescribeStreamSummary"]
        wait_until(lambda: kinesis.server.call_counts(kinesis.stream)["DescribeStreamSummary"] > calls + 1)
    finally:
        stream.stop()
    wait_until(lambda: not {thread.name for thread in threading.enumerate() if thread not in before} & {"kinesis"})


@pytest.mark.parametrize("operation", PLANNING)
def test_a_stream_outlives_an_outage_that_is_longer_than_ten_failures(kinesis: KinesisRig, operation: str) -> None:
    values = kinesis.put(10)
    begin_outage(kinesis, operation, MORE_THAN_TEN)
    with kinesis.query(**QUICK) as query:
        kinesis.drain(query, values)
        begin_outage(kinesis, "GetRecords", MORE_THAN_TEN)
        values += kinesis.put(10)
        kinesis.drain(query, values)


@pytest.mark.parametrize("operation", PLANNING)
def test_a_stream_stops_with_the_error_of_the_service_after_retry_timeout(kinesis: KinesisRig, operation: str) -> None:
    kinesis.put(3)
    begin_outage(kinesis, operation)
    with (
        kinesis.query(**QUICK, retryTimeout="1s") as query,
        pytest.raises(ReaderFailedError, match=r"KINESIS_UNAVAILABLE.*retried for 1 s: raise the option retry"),
    ):
        query.run_until(lambda _batches: False, PATIENCE)


def test_an_outage_in_which_the_server_is_gone_is_one_too(tmp_path: Path) -> None:
    with start_server_process() as server:
        kinesis = KinesisRig(server, tmp_path)
        kinesis.put(3)
        options = kinesis.options(**QUICK, retryTimeout="1s")
    with pytest.raises(ServiceUnavailableError, match=r"KINESIS_UNAVAILABLE.*retryTimeout"):
        plan_batch(parse_read_options(options, {}, streaming=False))


@pytest.mark.parametrize("trigger", ["available_now", "once"])
def test_a_run_with_an_end_waits_as_long(kinesis: KinesisRig, trigger: str) -> None:
    values = kinesis.put(10)
    begin_outage(kinesis, None, MORE_THAN_TEN)
    with kinesis.query(trigger=trigger, **QUICK) as query:
        query.process_available(PATIENCE)
    kinesis.all_once(values)
    begin_outage(kinesis)
    kinesis.put(10)
    with (
        kinesis.query(trigger=trigger, **QUICK, retryTimeout="1s") as query,
        pytest.raises(ReaderFailedError, match=r"KINESIS_UNAVAILABLE.*retryTimeout"),
    ):
        query.process_available(PATIENCE)


def test_tasks_outlive_an_outage_and_read_each_record_once(kinesis: KinesisRig) -> None:
    values = kinesis.put(10)
    assert read_all(kinesis, lambda _: begin_outage(kinesis, None, MORE_THAN_TEN), maxRecordsPerFetch="3") == values


def test_a_task_stops_with_the_error_of_the_service_after_retry_timeout(kinesis: KinesisRig) -> None:
    kinesis.put(10)
    with pytest.raises(ServiceUnavailableError, match=r"KINESIS_UNAVAILABLE.*retryTimeout"):
        read_all(kinesis, lambda _: begin_outage(kinesis), retryTimeout="1s")


def test_a_task_that_is_stopped_in_an_outage_ends_at_once(kinesis: KinesisRig) -> None:
    kinesis.put(3)
    options = parse_read_options(kinesis.options(**QUICK), {}, streaming=False)
    (part,) = plan_batch(options)
    begin_outage(kinesis)
    stopped, raised = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            list(read_range(part, read_settings(options, 1.0), sleep=stopped.wait))
        except ServiceUnavailableError as error:
            raised.append(error)

    task = threading.Thread(target=run)
    task.start()
    stopped.set()
    task.join(PATIENCE)
    assert not task.is_alive()
    assert raised


@pytest.mark.parametrize("options", SINKS, ids=str)
def test_a_sink_outlives_an_outage_and_puts_each_row_once(kinesis: KinesisRig, options: dict[str, str]) -> None:
    begin_outage(kinesis, None, MORE_THAN_TEN)
    write(kinesis, 20, **options)
    if "aggregation" not in options:
        found = [record.data for record in kinesis.server.records(kinesis.stream)]
        assert sorted(found) == sorted(b"%d" % each for each in range(20))


@pytest.mark.guarantee
@pytest.mark.parametrize(
    ("options", "handed_over"),
    # In order and each for itself, a row is put before the next one is taken.
    [(options, count) for options in SINKS for count in (10, 20) if (options, count) != ({"ordered": "true"}, 20)],
    ids=str,
)
def test_an_outage_that_begins_within_a_batch_fails_the_task_and_its_next_attempt_puts_all(
    kinesis: KinesisRig, options: dict[str, str], handed_over: int
) -> None:
    def with_outage() -> Iterator[pa.RecordBatch]:
        yield rows(range(handed_over))
        begin_outage(kinesis, "PutRecord" if "ordered" in options else "PutRecords")
        if handed_over < 20:
            yield rows(range(handed_over, 20))

    sink = kinesis_sink(kinesis, **options, retryTimeout="1s")
    with pytest.raises(ServiceUnavailableError, match="KINESIS_UNAVAILABLE"):
        KinesisDataSource(sink).batch_writer(ROWS).write(with_outage())
    kinesis.server.clear_faults()
    before = len(kinesis.read())
    write(kinesis, 20, **options)
    assert [row["data"] for row in kinesis.read()][before:] == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("options", SINKS, ids=str)
@pytest.mark.parametrize("operation", ["DescribeStreamSummary", None])
def test_a_sink_stops_with_the_error_of_the_service_after_retry_timeout(
    kinesis: KinesisRig, options: dict[str, str], operation: str | None
) -> None:
    if operation is None:
        write(kinesis, 1, **options)  # the driver knows the stream, and the tasks are in the outage
        operation = "PutRecord" if "ordered" in options else "PutRecords"
    begin_outage(kinesis, operation)
    with pytest.raises(ServiceUnavailableError, match=r"KINESIS_UNAVAILABLE.*for 1 s: raise the option retryTimeout"):
        write(kinesis, 3, **options, retryTimeout="1s")


def test_an_outage_is_warned_of(kinesis: KinesisRig, caplog: pytest.LogCaptureFixture) -> None:
    begin_outage(kinesis, "DescribeStreamSummary")
    with pytest.raises(ServiceUnavailableError):
        write(kinesis, 3, retryTimeout="6s", maxRetryInterval="2s")
    warnings = [line for line in caplog.messages if line.startswith("[RETRYING]")]
    assert [warning.partition(" ")[2][:10] for warning in warnings] == ["A call has", "The driver", "A call has"]
    assert all("[KINESIS_UNAVAILABLE]" in warning for warning in warnings)


def test_what_does_not_pass_is_not_tried_again(kinesis: KinesisRig) -> None:
    kinesis.server.fail("DescribeStreamSummary", "AccessDeniedException", None)
    since = kinesis.server.next_call()
    with pytest.raises(AccessDeniedError):
        write(kinesis, 3)
    assert len(kinesis.server.calls("DescribeStreamSummary", since=since)) == 1


def test_fan_out_outlives_an_outage_and_stops_with_its_error(kinesis: KinesisRig) -> None:
    values = kinesis.put(10)
    own = {"consumerMode": "efo", "consumerName": "c", "spoolLocation": str(kinesis.folder / "spool"), **QUICK}
    with kinesis.query(**own, retryTimeout="30s") as query:
        kinesis.drain(query, values)
        for operation in ("SubscribeToShard", "GetRecords", "GetShardIterator"):
            begin_outage(kinesis, operation, MORE_THAN_TEN)
        kinesis.server.end_subscriptions(kinesis.stream)
        values += kinesis.put(10)
        kinesis.drain(query, values)
    begin_outage(kinesis)
    with (
        kinesis.query(**own, retryTimeout="1s") as query,
        pytest.raises(ReaderFailedError, match=r"KINESIS_UNAVAILABLE.*retryTimeout"),
    ):
        query.run_until(lambda _batches: False, PATIENCE)


def test_a_consumer_is_asked_for_as_long_as_an_outage_may_last(kinesis: KinesisRig) -> None:
    values = kinesis.put(10)
    begin_outage(kinesis, "DescribeStreamConsumer", MORE_THAN_TEN)
    own = {"consumerMode": "efo", "consumerName": "c", "spoolLocation": str(kinesis.folder / "spool"), **QUICK}
    since = kinesis.server.next_call()
    with kinesis.query(source=HASTY_SOURCE, **own) as query:
        kinesis.drain(query, values)
        query.run_until(lambda _: bool(kinesis.server.calls("SubscribeToShard", since=since)), PATIENCE)


@pytest.mark.parametrize("name", ["numRetries", "client.numRetries", "kinesis.client.numRetries"])
def test_the_peers_number_of_retries_keeps_its_meaning(kinesis: KinesisRig, name: str) -> None:
    begin_outage(kinesis, "DescribeStreamSummary")
    since = kinesis.server.next_call()
    with pytest.raises(ServiceUnavailableError, match="It was retried 3 times: raise the option numRetries"):
        write(kinesis, 3, **{name: "3"})
    assert len(kinesis.server.calls("DescribeStreamSummary", since=since)) == 4
