"""Columns of pandas functions, as Arrow has them."""

from __future__ import annotations

from typing import Any

import pytest

from connectors.core.functions.bad_rows import ColumnTypeError
from connectors.core.functions.pandas_columns import kafka_headers


@pytest.mark.parametrize("row", [{"a": b"1", "b": None}, ({"key": "a", "value": b"1"}, {"key": "b", "value": None})])
def test_headers_that_pandas_gives_are_those_of_kafka(row: Any) -> None:
    assert kafka_headers(row) == [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]
    assert kafka_headers(None) is None


@pytest.mark.parametrize("row", [{"a": "1"}, ["a"], [{"key": "a"}], [{"key": "a", "value": "b"}], "text", 5])
def test_what_pandas_gives_for_other_columns_is_refused(row: Any) -> None:
    with pytest.raises(ColumnTypeError, match=r"DATATYPE_MISMATCH.*includeHeaders"):
        kafka_headers(row)
