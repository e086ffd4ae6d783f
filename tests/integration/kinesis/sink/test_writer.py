"""The sink of the ``kinesis`` format against our own server, by its tasks alone: no Spark."""

from __future__ import annotations

import logging
import threading

import pytest
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from connectors.core.errors import ConnectorError, OptionError, SourceGoneError
from connectors.kinesis.datasource import KinesisDataSource
from connectors.testing.kinesis import KinesisServer
from tests.support.kinesis_sink import ROWS, batch, by_key, numbered, options, write

SHARD = "shardId-000000000000"


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
