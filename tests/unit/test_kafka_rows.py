"""Rows that the client would write as something else are refused, before one of them is sent."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from connectors.core.errors import ConnectorError, OptionError
from connectors.kafka.decode import HEADERS
from connectors.kafka.produce import produce_batches
from connectors.kafka.rows import Columns, check_columns
from connectors.kafka.settings import ClientSettings

NOWHERE = ClientSettings((("bootstrap.servers", "127.0.0.1:1"), ("log_level", "0"), ("message.timeout.ms", "1000")))


def refused(name: str, column: Any, *, native: bool = True) -> str:
    """The error of a row with this column."""
    columns = Columns("t", False, name == "partition", name == "headers", name == "timestamp")
    batch = pa.RecordBatch.from_pydict({"value": pa.array([b"v"]), name: column})
    with pytest.raises(ConnectorError) as caught:
        produce_batches([batch], columns, NOWHERE, native=native)
    return str(caught.value)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("partition", [-1, -(2**31)])
def test_a_partition_below_0_is_refused_in_the_words_of_the_jvm_client(partition: int, native: bool) -> None:
    said = refused("partition", pa.array([partition], pa.int32()), native=native)
    assert f"Invalid partition: {partition}. Partition number should always be non-negative or null" in said


def test_a_header_without_a_key_is_refused() -> None:
    assert "[KAFKA_HEADER_KEY]" in refused("headers", pa.array([[{"key": None, "value": b"x"}]], HEADERS))


def test_the_one_time_that_means_now_to_the_client_is_refused() -> None:
    epoch = pa.array([dt.datetime(1970, 1, 1, tzinfo=dt.UTC)], pa.timestamp("us", "UTC"))
    assert "[KAFKA_TIMESTAMP]" in refused("timestamp", epoch)


def schema(*names: str) -> StructType:
    return StructType([StructField(name, StringType() if name == "topic" else BinaryType()) for name in names])


@pytest.mark.parametrize("name", ["value", "key", "topic"])
def test_a_column_that_is_there_twice_is_refused_by_name(name: str) -> None:
    with pytest.raises(OptionError, match=rf"\[KAFKA_SINK_COLUMNS\] Reference '{name}' is ambiguous"):
        check_columns(schema("topic", "key", "value", name), None, timestamps=False)


@pytest.mark.parametrize("name", ["topic", "timestamp", "other"])
def test_a_column_that_is_not_read_may_be_there_twice(name: str) -> None:
    assert check_columns(schema("value", name, name), "t", timestamps=False).topic == "t"
