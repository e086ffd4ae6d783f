"""Columns that the Kafka source makes have the types that Spark wants."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from connectors.core.arrow import arrow_schema
from connectors.core.errors import ConnectorError
from connectors.kafka.decode import SCHEMA, SCHEMA_WITH_HEADERS, header_column, record_batch, time_column
from connectors.kafka.schema import source_schema


def test_27_columns_have_the_types_of_the_schema() -> None:
    assert arrow_schema(source_schema(headers=False)) == SCHEMA
    assert arrow_schema(source_schema(headers=True)) == SCHEMA_WITH_HEADERS


def test_no_records_are_an_empty_batch() -> None:
    assert record_batch([], "t", 0, headers=True).schema == SCHEMA_WITH_HEADERS


def test_27_headers_keep_order_and_duplicates_and_are_null_where_there_are_none() -> None:
    rows = [None, [("b", b"1"), ("a", None), ("b", b"")], []]
    assert header_column(rows).to_pylist() == [
        None,
        [{"key": "b", "value": b"1"}, {"key": "a", "value": None}, {"key": "b", "value": b""}],
        None,
    ]


def test_times_are_microseconds_and_none_passes_through_as_minus_one_millisecond() -> None:
    column = time_column(np.array([-1, 0, 1_700_000_000_123]), np.arange(3), "t", 0)
    assert column.cast(pa.int64()).to_pylist() == [-1000, 0, 1_700_000_000_123_000]


def test_25_a_time_in_nanoseconds_is_an_error_that_names_the_record() -> None:
    with pytest.raises(ConnectorError, match=r"\[KAFKA_MALFORMED_RECORD_TIMESTAMP\].*offset 8 .*\(t-3\).*nanoseconds"):
        time_column(np.array([5, 2**62]), np.array([7, 8]), "t", 3)
