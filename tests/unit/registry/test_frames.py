"""Kafka's headers, where newer clients put the ids of schemas: which columns are headers."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from connectors.core.functions.bad_rows import ColumnTypeError
from connectors.core.functions.pandas_columns import kafka_headers
from connectors.registry.frames import headers_by_name

HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
ROWS = [[{"key": "a", "value": b"1"}, {"key": "b", "value": None}, {"key": "a", "value": b"2"}], [], None]
BY_NAME = [{"a": b"2", "b": None}, {}, None]


def entries(row: Any) -> Any:
    return row and list({header["key"]: header["value"] for header in row}.items())


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(HEADER),
        pa.large_list(pa.struct([("value", pa.large_binary()), ("key", pa.large_string())])),
        pa.map_(pa.string(), pa.binary()),
        pa.map_(pa.large_string(), pa.large_binary()),
    ],
    ids=str,
)
def test_headers_are_read_by_name_from_an_array_or_a_map(kind: pa.DataType) -> None:
    rows = [entries(row) for row in ROWS] if pa.types.is_map(kind) else ROWS
    assert headers_by_name(pa.array(rows, kind)) == BY_NAME
    assert headers_by_name(pa.nulls(2)) == [None, None]


def test_a_null_among_headers_is_no_header_wherever_it_stands() -> None:
    header = {"key": "a", "value": b"1"}
    rows = [[None, header], [header, None], [None], [None, None, header]]
    expected = [{"a": b"1"}, {"a": b"1"}, {}, {"a": b"1"}]
    assert headers_by_name(pa.array(rows, pa.list_(HEADER))) == expected
    assert headers_by_name(pa.array([kafka_headers(row) for row in rows], pa.list_(HEADER))) == expected


@pytest.mark.parametrize(
    "kind",
    [
        pa.map_(pa.string(), pa.string()),
        pa.map_(pa.binary(), pa.binary()),
        pa.list_(pa.string()),
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])),
        pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())])),
        pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])),
        HEADER,
        pa.string(),
        pa.binary(),
        pa.int64(),
    ],
    ids=str,
)
def test_columns_that_are_no_headers_are_refused_by_their_type(kind: pa.DataType) -> None:
    for column in (pa.array([], kind), pa.nulls(2, kind)):
        with pytest.raises(ColumnTypeError, match=r"DATATYPE_MISMATCH.*MAP<STRING, BINARY>.*includeHeaders"):
            headers_by_name(column)
