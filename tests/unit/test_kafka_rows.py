"""Rows that the client would write as something else are refused, before one of them is sent."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from connectors.core.errors import ConnectorError
from connectors.kafka.decode import HEADERS
from connectors.kafka.produce import produce_batches
from connectors.kafka.rows import Columns
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
