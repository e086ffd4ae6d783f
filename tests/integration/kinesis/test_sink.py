"""The sink of the ``kinesis`` format against our own server, by its tasks alone: no Spark."""

from __future__ import annotations

import logging
import pickle
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from connectors.core.errors import ConnectorError, OptionError, SourceGoneError
from connectors.kinesis.datasource import KinesisBatchWriter, KinesisDataSource, _record_limit
from connectors.testing.kinesis import KinesisServer, StoredRecord

SHARD = "shardId-000000000000"
MIB = 1 << 20
ROWS = StructType(
    [StructField("partitionKey", StringType()), StructField("data", BinaryType()), StructField("other", IntegerType())]
)
Row = tuple[str | None, bytes | None]


@pytest.fixture(scope="module")
def shared() -> Iterator[KinesisServer]:
    with KinesisServer() as running:
        yield running


@pytest.fixture
def server(shared: KinesisServer) -> Iterator[KinesisServer]:
    shared.create_stream("orders")
    shared.reset_calls()
    _record_limit.cache_clear()
    yield shared
    shared.clear_faults()
    shared.delete_stream("orders")


def options(server: KinesisServer, **more: object) -> dict[str, str]:
    given: dict[str, object] = {"endpointUrl": server.url, "awsAccessKey": "AKIASINK", "awsSecretKey": "not-shown"}
    given |= {"streamName": "orders", "maxRetryInterval": "100ms", **more}
    return {name: str(value) for name, value in given.items() if value is not None}


def batch(rows: Iterable[Row], **columns: list[Any]) -> pa.RecordBatch:
    keys, data = zip(*rows, strict=True)
    named = {"partitionKey": pa.array(keys, pa.string()), "data": pa.array(data, pa.binary())}
    return pa.RecordBatch.from_pydict(named | {name: pa.array(column) for name, column in columns.items()})


def schema(*names: str) -> StructType:
    return StructType([*ROWS.fields, *(StructField(name, StringType()) for name in names)])


def write(server: KinesisServer, *batches: pa.RecordBatch, columns: tuple[str, ...] = (), **more: object) -> int:
    """Write batches as one task does: with a writer that came there by pickle."""
    planned = KinesisDataSource(options(server, **more)).batch_writer(schema(*columns))
    writer: KinesisBatchWriter = pickle.loads(pickle.dumps(planned))
    message = writer.write(iter(batches))
    return message.rows


def numbered(count: int, keys: int = 7, size: int = 0) -> list[Row]:
    return [(f"key-{number % keys}", str(number).encode().rjust(size, b".")) for number in range(count)]


def stored(server: KinesisServer, stream: str = "orders") -> list[tuple[str, bytes]]:
    return [(record.partition_key, record.data) for record in server.records(stream)]


def by_key(records: Iterable[StoredRecord]) -> dict[str, list[int]]:
    found = defaultdict(list)
    for record in sorted(records, key=lambda each: each.sequence_number):
        found[record.partition_key].append(int(record.data))
    return dict(found)


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
        with pytest.raises(ConnectorError, match="A row is not put") as raised:
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


class TestBadRows:
    @pytest.mark.parametrize(
        ("row", "shown"),
        [
            (("k" * 257, b"x"), "partitionKey of 257 characters"),
            (("", b"x"), "no partitionKey"),
            ((None, b"x"), "no partitionKey"),
            (("culprit", None), "'culprit'"),
            (("culprit", b"x" * (MIB - 6)), "'culprit'"),
        ],
        ids=["long key", "empty key", "no key", "no data", "above 1 MiB"],
    )
    def test_30_bad_row_fails_with_its_key(self, server: KinesisServer, row: Row, shown: str) -> None:
        with pytest.raises(ConnectorError, match="KINESIS_BAD_ROW") as raised:
            write(server, batch([("good", b"1"), row]))
        assert shown in str(raised.value)

    @pytest.mark.parametrize("hash_key", ["-1", "01", "x", str(1 << 128)])
    def test_bad_hash_key_fails_with_its_key(self, server: KinesisServer, hash_key: str) -> None:
        rows = batch([("culprit", b"1")], explicitHashKey=[hash_key])
        with pytest.raises(ConnectorError, match="'culprit'"):
            write(server, rows, columns=("explicitHashKey",))

    @pytest.mark.parametrize("stream", [None, "no/name"])
    def test_row_without_stream_fails_with_its_key(self, server: KinesisServer, stream: str | None) -> None:
        rows = batch([("culprit", b"1")], stream=pa.array([stream], pa.string()).to_pylist())
        rows = rows.set_column(2, "stream", pa.array([stream], pa.string()))
        with pytest.raises(ConnectorError, match="'culprit'"):
            write(server, rows, columns=("stream",), streamName=None)

    @pytest.mark.parametrize("column", ["partitionKey", "stream", "explicitHashKey"])
    def test_text_that_is_not_utf_8_fails_with_its_row(self, server: KinesisServer, column: str) -> None:
        keys = pa.array(["12", "13"])
        texts = {"partitionKey": keys, "stream": pa.array(["orders"] * 2), "explicitHashKey": keys}
        texts[column] = pa.array([b"12", b"k\xff"], pa.binary()).view(pa.string())
        rows = pa.RecordBatch.from_pydict(texts | {"data": pa.array([b"1", b"\xff"])})
        before = pa.RecordBatch.from_pydict({**dict.fromkeys(texts, keys), "stream": ["orders"] * 2, "data": [b""] * 2})
        with pytest.raises(ConnectorError, match=f"Row 3 of its partition has a {column} that is not UTF-8") as raised:
            write(server, before, rows, columns=("stream", "explicitHashKey"), streamName=None)
        assert raised.value.code == "KINESIS_BAD_ROW"
        assert repr("k\\xff" if column == "partitionKey" else "13") in str(raised.value)
        # A column that is not read may hold what it likes.
        if column != "partitionKey":
            assert write(server, rows, columns=()) == 2

    def test_largest_record_is_written(self, server: KinesisServer) -> None:
        assert write(server, batch([("12345678", b"x" * (MIB - 8))])) == 1


class TestOrder:
    def test_30_ordered_rows_of_a_key_keep_their_order_under_failures(self, server: KinesisServer) -> None:
        server.throttle("PutRecord", 30)
        server.fail("PutRecord", "InternalFailureException", 10, status=500)
        batches = [batch(numbered(200)), batch([(f"key-{n % 7}", str(n).encode()) for n in range(200, 300)])]
        assert write(server, *batches, ordered="true") == 300
        assert by_key(server.records("orders")) == {f"key-{key}": list(range(key, 300, 7)) for key in range(7)}
        assert "PutRecords" not in server.call_counts("orders")

    def test_each_row_names_the_number_of_the_one_before_it(self, server: KinesisServer) -> None:
        # Also from one batch of rows to the next: without that number the service keeps no order.
        server.require_order()
        assert write(server, batch(numbered(20)), batch(numbered(20)), ordered="true") == 40

    def test_lost_answer_repeats_a_row_and_keeps_the_order(self, server: KinesisServer) -> None:
        server.cut("PutRecord", 3, after_effect=True)
        server.cut("PutRecord", 3, after_effect=True, after_bytes=9)
        write(server, batch(numbered(60, keys=2)), ordered="true")
        for key, numbers in by_key(server.records("orders")).items():
            assert numbers == sorted(numbers)
            assert sorted(set(numbers)) == list(range(int(key[-1]), 60, 2))

    def test_order_is_kept_over_a_reshard(self, server: KinesisServer) -> None:
        resharding = threading.Timer(0.1, lambda: server.split("orders", SHARD))
        resharding.start()
        write(server, batch(numbered(400)), ordered="true")
        resharding.join()
        assert by_key(server.records("orders")) == {f"key-{key}": list(range(key, 400, 7)) for key in range(7)}

    def test_bad_row_ends_an_ordered_task(self, server: KinesisServer) -> None:
        server.fail("PutRecord", "AccessDeniedException", None)
        with pytest.raises(ConnectorError):
            write(server, batch(numbered(500)), ordered="true")
        assert server.call_counts("orders")["PutRecord"] <= 20


class TestPlanning:
    def test_stream_that_ignores_keys_is_warned_about(
        self, server: KinesisServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        server.ignore_keys("orders")
        with caplog.at_level(logging.WARNING):
            assert write(server, batch(numbered(3))) == 3
        assert "KINESIS_KEYS_IGNORED" in caplog.text
        with pytest.raises(OptionError, match="KINESIS_KEYS_IGNORED"):
            write(server, batch(numbered(3)), ordered="true")

    def test_missing_stream_is_an_error_before_any_task(self, server: KinesisServer) -> None:
        with pytest.raises(SourceGoneError, match="absent"):
            KinesisDataSource(options(server, streamName="absent")).batch_writer(ROWS)

    def test_stream_cannot_be_overwritten(self, server: KinesisServer) -> None:
        with pytest.raises(OptionError, match="KINESIS_SAVE_MODE"):
            KinesisDataSource(options(server)).writer(ROWS, overwrite=True)

    @pytest.mark.parametrize(
        ("more", "code"),
        [
            ({"streamARN": "arn:aws:kinesis:us-east-1:000000000000:stream/orders"}, "OPTION_CONFLICT"),
            ({"streamName": "two,streams"}, "OPTION_ILLEGAL"),
            ({"initialPosition": "latest"}, "OPTION_UNKNOWN"),
            ({"awsSecretKey": None}, "OPTION_MISSING"),
            ({"streamName": None}, "KINESIS_SINK_COLUMNS"),
        ],
    )
    def test_bad_option_is_an_error_before_any_call(
        self, server: KinesisServer, more: dict[str, object], code: str
    ) -> None:
        with pytest.raises(OptionError) as raised:
            KinesisDataSource(options(server, **more)).stream_writer(ROWS)
        assert raised.value.code == code
        assert server.calls() == []

    @pytest.mark.parametrize(
        "fields",
        [
            [StructField("data", BinaryType())],
            [StructField("partitionKey", StringType())],
            [StructField("partitionKey", IntegerType()), StructField("data", BinaryType())],
            [StructField("partitionKey", StringType()), StructField("data", IntegerType())],
            [*ROWS.fields, StructField("explicitHashKey", IntegerType())],
            [*ROWS.fields, StructField("data", BinaryType())],
            [*ROWS.fields, *[StructField("explicitHashKey", StringType())] * 2],
        ],
        ids=[
            "no key",
            "no data",
            "key of numbers",
            "data of numbers",
            "hash key of numbers",
            "data twice",
            "hash twice",
        ],
    )
    def test_bad_column_is_an_error_before_any_call(self, server: KinesisServer, fields: list[StructField]) -> None:
        with pytest.raises(OptionError, match="KINESIS_SINK_COLUMNS"):
            KinesisDataSource(options(server)).batch_writer(StructType(fields))
        assert server.calls() == []

    def test_columns_that_are_not_read_may_be_there_twice_and_strings_have_any_collation(
        self, server: KinesisServer
    ) -> None:
        fields = [StructField(name, StringType("UTF8_LCASE")) for name in ("partitionKey", "data", "explicitHashKey")]
        twice = [StructField("stream", StringType()), StructField("other", IntegerType())] * 2
        assert KinesisDataSource(options(server)).batch_writer(StructType(fields + twice))

    def test_secrets_are_in_no_text(self, server: KinesisServer) -> None:
        writer = KinesisDataSource(options(server, awsSessionToken="token-not-shown")).batch_writer(ROWS)
        assert "not-shown" not in repr(writer.settings)
