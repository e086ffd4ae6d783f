"""Requests of the sink keep the limits of the service, and what fails is sent again."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from connectors.core.errors import ConnectorError
from connectors.kinesis.datasource import KinesisDataSource
from connectors.testing.kinesis import KinesisServer
from tests.support.kinesis_sink import ROWS, batch, numbered, options, stored, write

MIB = 1 << 20


class TestRequests:
    def test_rows_arrive_with_their_keys(self, server: KinesisServer) -> None:
        rows = [("a", bytes(range(256))), ("\N{SNOWMAN}", b""), ("a", b"again")]
        assert write(server, batch(rows)) == 3
        assert stored(server) == rows

    def test_text_is_written_as_utf8(self, server: KinesisServer) -> None:
        texts = StructType([StructField("partitionKey", StringType()), StructField("data", StringType())])
        writer = KinesisDataSource(options(server)).stream_writer(texts)
        rows = pa.RecordBatch.from_pydict({"partitionKey": ["a"], "data": ["\N{SNOWMAN}"]})
        writer.write(iter([rows]))
        assert stored(server) == [("a", "\N{SNOWMAN}".encode())]

    def test_30_request_has_at_most_five_hundred_records(self, server: KinesisServer) -> None:
        rows = numbered(1201)
        assert write(server, batch(rows[:700]), batch(rows[700:])) == 1201
        assert sorted(stored(server)) == sorted(rows)
        assert server.call_counts("orders")["PutRecords"] == 3

    def test_30_request_has_at_most_its_bytes(self, server: KinesisServer) -> None:
        assert write(server, batch(numbered(12, size=MIB - 10))) == 12
        assert len(stored(server)) == 12
        assert server.call_counts("orders")["PutRecords"] == 3  # 5 MiB each, less than the service takes

    def test_streams_of_a_column_have_requests_of_their_own(self, server: KinesisServer) -> None:
        server.create_stream("refunds")
        rows = numbered(1200)
        streams = ["orders" if number % 3 else "refunds" for number in range(1200)]
        write(server, batch(rows, stream=streams), columns=("stream",), streamName=None)
        found = stored(server), stored(server, "refunds")
        server.delete_stream("refunds")
        assert sorted(found[0]) == sorted(row for row, stream in zip(rows, streams, strict=True) if stream == "orders")
        assert found[1] == rows[::3]

    def test_stream_with_larger_records_takes_them(self, server: KinesisServer) -> None:
        server.set_max_record_size("orders", 10 << 10)
        rows = [("small", b"1"), ("large", b"x" * (10 * MIB - 5)), ("small", b"2")]
        assert write(server, batch(rows)) == 3
        assert sorted(stored(server)) == sorted(rows)

    def test_30_explicit_hash_key_decides_the_shard(self, server: KinesisServer) -> None:
        server.create_stream("wide", shards=4)
        hash_keys = ["0", str((1 << 128) - 1), None, str(1 << 126)]
        rows = batch([("same", b"%d" % number) for number in range(4)], explicitHashKey=hash_keys)
        write(server, rows, columns=("explicitHashKey",), streamName="wide")
        found = {record.data: record.shard for record in server.records("wide")}
        server.delete_stream("wide")
        assert [found[b"0"][-1], found[b"1"][-1], found[b"3"][-1]] == ["0", "3", "1"]

    def test_column_names_the_stream_of_each_row(self, server: KinesisServer) -> None:
        server.create_stream("refunds")
        rows = batch([("a", b"1"), ("b", b"2"), ("c", b"3")], stream=["orders", "refunds", "orders"])
        write(server, rows, columns=("stream",), streamName=None)
        found = stored(server), stored(server, "refunds")
        server.delete_stream("refunds")
        assert found == ([("a", b"1"), ("c", b"3")], [("b", b"2")])

    def test_option_wins_over_the_column_and_may_be_an_arn(self, server: KinesisServer) -> None:
        arn = "arn:aws:kinesis:us-east-1:000000000000:stream/orders"
        rows = batch([("a", b"1")], stream=["elsewhere"])
        write(server, rows, columns=("stream",), streamName=None, streamARN=arn)
        assert stored(server) == [("a", b"1")]

    def test_task_without_rows_calls_nothing(self, server: KinesisServer) -> None:
        assert write(server) == 0
        assert server.call_counts("orders") == {"DescribeStreamSummary": 1}

    def test_a_stream_is_asked_for_once_and_not_for_every_batch(self, server: KinesisServer) -> None:
        """Spark makes a writer to plan each micro-batch, and one to commit it."""
        for _ in range(5):
            KinesisDataSource(options(server)).stream_writer(ROWS)
        assert server.call_counts("orders") == {"DescribeStreamSummary": 1}

    def test_several_requests_are_on_their_way_at_a_time(self, server: KinesisServer) -> None:
        server.delay_calls("PutRecords", 1)
        rows = numbered(2000)
        assert write(server, batch(rows)) == 2000
        times = [call.server_ns for call in server.calls("PutRecords")]
        assert len(times) == 4
        assert max(times) - min(times) < 3e9  # one after the other, each would wait its second
        assert sorted(stored(server)) == sorted(rows)


class TestFailures:
    def test_request_that_fails_for_good_ends_those_that_wait_for_another_attempt(self, server: KinesisServer) -> None:
        server.throttle("PutRecords", 3)
        server.fail("PutRecords", "AccessDeniedException", 1)
        server.throttle("PutRecords", 1000)
        with pytest.raises(ConnectorError) as raised:
            write(server, batch(numbered(2000)), numRetries=1000, maxRetryInterval="1h")
        assert not raised.value.transient
        assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("kinesis-put")]

    def test_30_only_failed_entries_are_sent_again(self, server: KinesisServer) -> None:
        server.fail_entries(count=100, every=3)
        server.fail_entries("InternalFailure", 20, every=7)
        rows = numbered(900)
        assert write(server, batch(rows)) == 900
        assert sorted(stored(server)) == sorted(rows)

    @pytest.mark.parametrize("kind", ["ProvisionedThroughputExceededException", "InternalFailureException"])
    def test_failed_request_is_sent_again(self, server: KinesisServer, kind: str) -> None:
        server.fail("PutRecords", kind, 3, status=400 if kind.startswith("P") else 500)
        assert write(server, batch(numbered(10))) == 10
        assert stored(server) == numbered(10)

    @pytest.mark.guarantee
    @pytest.mark.parametrize("after_bytes", [0, 30])
    def test_cut_connection_loses_nothing(self, server: KinesisServer, after_bytes: int) -> None:
        server.cut("PutRecords")
        server.cut("PutRecords", after_effect=True, after_bytes=after_bytes)
        assert write(server, batch(numbered(10))) == 10
        assert set(stored(server)) == set(numbered(10))
        assert len(stored(server)) == 20  # at least once: the second request had taken effect

    def test_limits_of_a_shard_only_slow_it_down(self, server: KinesisServer) -> None:
        server.enforce_limits()
        # The first request alone has more than a shard takes in a second, however slow this machine is.
        rows = numbered(600, size=3000)
        assert write(server, batch(rows)) == 600
        assert sorted(stored(server)) == sorted(rows)
        assert server.call_counts("orders")["PutRecords"] > 2

    def test_30_no_row_is_dropped_by_age(self, server: KinesisServer) -> None:
        waits: list[float] = []
        server.throttle("PutRecords", 40)

        from connectors.kinesis.sink.writer import put_batches  # noqa: PLC0415 - with a sleep of its own

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            server.jump(60)

        writer = KinesisDataSource(options(server, numRetries=100)).batch_writer(ROWS)
        rows = put_batches([batch(numbered(3))], writer.columns, writer.settings, sleep)
        assert (rows, len(waits)) == (3, 40)
        assert stored(server) == numbered(3)

    def test_task_fails_when_retries_bring_nothing(self, server: KinesisServer) -> None:
        server.fail_entries(count=None, partition_key="key-1")
        with pytest.raises(ConnectorError, match="A row was not written") as raised:
            write(server, batch(numbered(3)), numRetries=2)
        assert raised.value.transient
        assert "key-1" in raised.value.where
        assert "more shards" in raised.value.action
        assert "not-shown" not in str(raised.value)
        assert len(stored(server)) == 2
        assert server.call_counts("orders")["PutRecords"] == 4  # the first put the others, then three in vain

    def test_progress_starts_the_count_of_retries_anew(self, server: KinesisServer) -> None:
        # Of each request one entry in two fails, so about nine rounds in a row bring something each.
        server.fail_entries(count=None, every=2)
        assert write(server, batch(numbered(300)), numRetries=1) == 300
        assert sorted(stored(server)) == sorted(numbered(300))

    def test_error_that_waiting_does_not_help_ends_at_once(self, server: KinesisServer) -> None:
        server.fail("PutRecords", "AccessDeniedException", None)
        with pytest.raises(ConnectorError, match="KINESIS"):
            write(server, batch(numbered(3)))
        assert server.call_counts("orders")["PutRecords"] == 1
