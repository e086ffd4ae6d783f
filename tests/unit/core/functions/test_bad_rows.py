"""What decoders share: the column that they take, and what a bad row becomes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException

from connectors.core.functions.bad_rows import (
    Decoded,
    binary_column,
    describe_bad_row,
    error_texts,
    text_column,
    with_errors,
)


def test_a_column_that_is_not_binary_is_refused() -> None:
    with pytest.raises(AnalysisException, match=r"^\[DATATYPE_MISMATCH\].*requires the BINARY type"):
        binary_column(pa.array(["text"]), "from_protobuf")
    assert binary_column(pa.chunked_array([pa.array([b"a"])]), "from_protobuf").to_pylist() == [b"a"]


def test_the_error_column_has_the_reason_and_the_hint_in_at_most_1000_bytes() -> None:
    messages = pa.array([b"good", b"bad", None])
    decoded = Decoded(pa.array([1, None, None]), {1: "\u00e4" * 1000})
    value, bad, null = with_errors(
        decoded, messages, text_column(error_texts(decoded, messages, lambda data: f" hint for {data!r}"), 3)
    ).to_pylist()
    assert (value, null) == ({"value": 1, "error": None}, None)
    assert bad["error"].endswith("... hint for b'bad'")
    assert 990 < len(bad["error"].encode()) <= 1000


def test_a_bad_row_is_described_by_its_first_bytes_only() -> None:
    text = describe_bad_row(3, "Order", "ends too early", bytes(range(20)))
    assert (
        text == f"row 3 of the batch as Order: ends too early; 20 bytes, which begin with {bytes(range(16)).hex(' ')}"
    )
    assert describe_bad_row(0, "Order", "ends", b"").endswith("0 bytes, which begin with no byte")
