"""The columns that the Kafka sink takes and refuses."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructField, StructType

from connectors.core.errors import OptionError
from connectors.kafka.schema import check_columns
from connectors.kafka.sink.rows import records


def schema(*names: str) -> StructType:
    return StructType([StructField(name, StringType() if name == "topic" else BinaryType()) for name in names])


@pytest.mark.parametrize("name", ["value", "key", "topic"])
def test_a_column_that_is_there_twice_is_refused_by_name(name: str) -> None:
    with pytest.raises(OptionError, match=rf"\[KAFKA_SINK_COLUMNS\] Reference '{name}' is ambiguous"):
        check_columns(schema("topic", "key", "value", name), None, timestamps=False)


@pytest.mark.parametrize("name", ["topic", "timestamp", "other"])
def test_a_column_that_is_not_read_may_be_there_twice(name: str) -> None:
    assert check_columns(schema("value", name, name), "t", timestamps=False).topic == "t"


def with_headers(first: str, second: str, value: DataType | None = None) -> StructType:
    """The columns value and headers, with fields of these names."""
    fields = [StructField(first, StringType()), StructField(second, value or BinaryType())]
    return schema("value").add("headers", ArrayType(StructType(fields)))


def test_the_fields_of_headers_may_be_named_in_any_case() -> None:
    columns = check_columns(with_headers("KEY", "Value"), "t", timestamps=False)
    kind = pa.list_(pa.struct([("KEY", pa.string()), ("Value", pa.binary())]))
    headers = pa.array([[{"KEY": "k", "Value": b"v"}, {"KEY": "k", "Value": None}], [], None], kind)
    batch = pa.RecordBatch.from_pydict({"value": pa.array([b"x"] * 3), "headers": headers})
    assert [found for *_, found in records(batch, columns)] == [[("k", b"v"), ("k", None)], [], None]


@pytest.mark.parametrize(
    "wrong", [with_headers("value", "key"), with_headers("k", "value"), with_headers("key", "value", StringType())]
)
def test_headers_with_other_fields_are_refused(wrong: StructType) -> None:
    with pytest.raises(OptionError, match=r"\[KAFKA_SINK_COLUMNS\] headers attribute unsupported type array<struct<"):
        check_columns(wrong, "t", timestamps=False)


def test_a_topic_option_with_a_nul_is_refused_before_a_task_begins() -> None:
    schema = StructType([StructField("value", StringType())])
    with pytest.raises(OptionError, match=r"\[KAFKA_NUL\] .*\(topic\)"):
        check_columns(schema, "orders\0x", timestamps=False)
