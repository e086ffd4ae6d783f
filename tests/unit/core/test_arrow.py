from __future__ import annotations

import inspect

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from connectors.core.arrow import arrow_schema, cut_batches
from connectors.pubsub.schema import STREAM_SCHEMA

ATOMS: list[spark.DataType] = [
    spark.StringType(),
    spark.BinaryType(),
    spark.BooleanType(),
    spark.ByteType(),
    spark.ShortType(),
    spark.IntegerType(),
    spark.LongType(),
    spark.FloatType(),
    spark.DoubleType(),
    spark.DateType(),
    spark.TimestampType(),
    spark.TimestampNTZType(),
    spark.DecimalType(20, 3),
]


def translated_by_spark(struct: spark.StructType) -> pa.Schema:
    # The argument came between Spark 4.2 and 4.3; before, UTC was the default.
    arguments = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(struct, **arguments)


def types() -> st.SearchStrategy[spark.DataType]:
    def nested(inner: st.SearchStrategy[spark.DataType]) -> st.SearchStrategy[spark.DataType]:
        fields = st.builds(spark.StructField, st.sampled_from("abc"), inner, st.booleans())
        return st.one_of(
            st.builds(spark.ArrayType, inner, st.booleans()),
            st.builds(spark.MapType, inner, inner, st.booleans()),
            st.builds(spark.StructType, st.lists(fields, min_size=1, max_size=3, unique_by=lambda field: field.name)),
        )

    return st.recursive(st.sampled_from(ATOMS), nested, max_leaves=4)


@given(types(), st.booleans())
def test_schema_is_the_one_that_spark_compares_with(spark_type: spark.DataType, nullable: bool) -> None:
    struct = spark.StructType([spark.StructField("column", spark_type, nullable)])
    assert arrow_schema(struct).equals(translated_by_spark(struct), check_metadata=True)


def test_schema_of_the_stream_is_the_one_that_spark_compares_with() -> None:
    assert arrow_schema(STREAM_SCHEMA).equals(translated_by_spark(STREAM_SCHEMA), check_metadata=True)


def test_type_that_no_connector_uses_is_refused_by_name() -> None:
    struct = spark.StructType([spark.StructField("column", spark.VariantType())])
    with pytest.raises(TypeError, match="variant"):
        arrow_schema(struct)


def batch(values: list[bytes]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "payload": pa.array(values, pa.binary()),
            "number": pa.array(range(len(values)), pa.int64()),
            "attributes": pa.array(
                [{"k": "v" * (len(value) % 3)} for value in values], pa.map_(pa.string(), pa.string())
            ),
        }
    )


@given(
    st.lists(st.lists(st.binary(max_size=300), max_size=40), max_size=4),
    st.integers(1, 50),
    st.integers(1, 2000),
)
def test_cut_batches_keep_all_rows_in_order_within_both_limits(
    values: list[list[bytes]], max_rows: int, max_bytes: int
) -> None:
    batches = [batch(each) for each in values]
    cut = list(cut_batches(batches, max_rows, max_bytes))
    assert [row for each in cut for row in each.to_pylist()] == [row for each in batches for row in each.to_pylist()]
    for each in cut:
        assert 1 <= each.num_rows <= max_rows
        assert each.num_rows == 1 or each.nbytes <= max_bytes


def test_batch_within_the_limits_stays_whole() -> None:
    whole = batch([b"a", b"b"])
    assert list(cut_batches([whole], 2, whole.nbytes)) == [whole]


def test_batches_are_cut_as_late_as_the_bytes_allow() -> None:
    rows = batch([b"x" * 100] * 10)
    three = rows.slice(0, 3).nbytes
    assert [each.num_rows for each in cut_batches([rows], 10, three)] == [3, 3, 3, 1]


def test_row_larger_than_the_limit_passes_alone() -> None:
    rows = batch([b"", b"x" * 5000, b""])
    assert [each.num_rows for each in cut_batches([rows], 10, 200)] == [1, 1, 1]
