"""The columns that Spark gets, by schema mode."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from connectors.core.arrow import arrow_schema
from connectors.pubsub.datasource import PubSubConnector
from connectors.pubsub.options.kinds import SchemaMode
from connectors.pubsub.schema import DATABRICKS_SCHEMA, STREAM_SCHEMA
from connectors.pubsub.source.stored_rows import ROWS_SCHEMA
from connectors.spool.segments.segment import SpoolRows

AWKWARD = {
    "key": "välue",
    'quote"': "back\\slash",
    "empty": "",
    "": "no key",
    "line\nend": "\u2028\x00\x1f",
    "😀": "\U0001d7cf",
}


def spool_rows(*rows: tuple[str, bytes, dict[str, str], datetime | None]) -> SpoolRows:
    columns = [
        [row[0] for row in rows],
        [row[1] for row in rows],
        [list(row[2].items()) for row in rows],
        ["" for _ in rows],
        [row[3] for row in rows],
        [None for _ in rows],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, ROWS_SCHEMA, strict=True)]
    return SpoolRows(pa.RecordBatch.from_arrays(arrays, schema=ROWS_SCHEMA), 7, 0)


@pytest.mark.parametrize("mode", SchemaMode)
@pytest.mark.parametrize("rows", [0, 3])
def test_a_batch_has_exactly_the_schema_that_spark_was_promised(mode: SchemaMode, rows: int) -> None:
    batch = PubSubConnector().columns(spool_rows(*[("1", b"", {}, None)] * rows), ("s",), mode)
    assert batch.num_rows == rows
    promised = arrow_schema(STREAM_SCHEMA if mode is SchemaMode.NATIVE else DATABRICKS_SCHEMA)
    assert batch.schema.names == promised.names
    assert batch.schema.types == promised.types


def test_databricks_columns_are_named_and_typed_as_there() -> None:
    assert DATABRICKS_SCHEMA.simpleString() == (
        "struct<messageId:string,payload:binary,attributes:string,publishTimestampInMillis:bigint>"
    )


def test_attributes_become_json_text_that_reads_back_as_they_were() -> None:
    rows = spool_rows(("1", b"x", AWKWARD, None), ("2", b"", {}, None), ("3", b"", {"a": "1", "b": "2"}, None))
    texts = PubSubConnector().columns(rows, ("s",), SchemaMode.DATABRICKS).column("attributes").to_pylist()
    assert [json.loads(text) for text in texts] == [AWKWARD, {}, {"a": "1", "b": "2"}]
    assert texts[1:] == ["{}", '{"a":"1","b":"2"}']


def test_times_become_milliseconds_cut_towards_the_past_and_none_stays_none() -> None:
    times = [
        datetime(1970, 1, 1, 0, 0, 1, 999_999, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        None,
        datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    ]
    batch = PubSubConnector().columns(
        spool_rows(*[("1", b"", {}, time) for time in times]), ("s",), SchemaMode.DATABRICKS
    )
    assert batch.column("publishTimestampInMillis").to_pylist() == [1999, -1, None, 253402300799999]


def test_native_columns_carry_subscription_and_position() -> None:
    batch = PubSubConnector().columns(
        spool_rows(("1", b"", {}, None), ("2", b"", {}, None)), ("a", "b"), SchemaMode.NATIVE
    )
    assert batch.column("subscription").to_pylist() == ["a", "a"]
    assert batch.column("offset").to_pylist() == [7, 8]
