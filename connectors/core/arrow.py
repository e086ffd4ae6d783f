"""Arrow as Spark takes it: the schema of a StructType, and batches cut to a size.

Spark refuses any schema but its own translation of the declared StructType. That is internal to PySpark and changed its
arguments between 4.2 and 4.3, so the types that connectors use are translated here; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

# By the type's own name, so that nothing of PySpark is imported here.
_ATOMS: Final[dict[str, pa.DataType]] = {
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "date": pa.date32(),
    "double": pa.float64(),
    "float": pa.float32(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "short": pa.int16(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


def arrow_schema(struct: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of a reader; needs no session.

    Spark's TIMESTAMP is ``timestamp[us, tz=UTC]``, whatever the session's time zone.

    Raises:
        TypeError: a field has a type that no connector uses.
    """
    return pa.schema([_field(field.name, field.dataType, nullable=field.nullable) for field in struct])


def _field(name: str, spark_type: DataType, *, nullable: bool) -> pa.Field:
    return pa.field(name, _arrow_type(spark_type), nullable=nullable)


def _arrow_type(spark_type: DataType) -> pa.DataType:
    # Not needed to cut batches, and takes 200 ms.
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType  # noqa: PLC0415

    if isinstance(spark_type, StructType):
        return pa.struct([_field(field.name, field.dataType, nullable=field.nullable) for field in spark_type])
    if isinstance(spark_type, ArrayType):
        return pa.list_(_field("element", spark_type.elementType, nullable=spark_type.containsNull))
    if isinstance(spark_type, MapType):
        key = _field("key", spark_type.keyType, nullable=False)
        return pa.map_(key, _field("value", spark_type.valueType, nullable=spark_type.valueContainsNull))
    if isinstance(spark_type, DecimalType):
        return pa.decimal128(spark_type.precision, spark_type.scale)
    try:
        return _ATOMS[spark_type.typeName()]
    except KeyError:
        raise TypeError(f"no connector has columns of the type {spark_type.simpleString()}") from None


def cut_batches(batches: Iterable[pa.RecordBatch], max_rows: int, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield batches in order and without copies, none larger than the limits; drop empty ones.

    Bytes are those of ``RecordBatch.nbytes``; a row that has more passes alone.
    """
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            rows = _rows_within(batch, start, min(batch.num_rows - start, max_rows), max_bytes)
            yield batch.slice(start, rows)
            start += rows


def _rows_within(batch: pa.RecordBatch, start: int, rows: int, max_bytes: int) -> int:
    """Return the most rows from ``start`` on, at least 1, that stay within ``max_bytes``."""
    if batch.slice(start, rows).nbytes <= max_bytes:
        return rows
    fits, too_many = 1, rows
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if batch.slice(start, middle).nbytes <= max_bytes:
            fits = middle
        else:
            too_many = middle
    return fits


def not_utf8(texts: pa.Array) -> list[int]:
    """Return the rows of a column whose bytes are not UTF-8, as ``CAST(binary AS STRING)`` of Spark makes them.

    Arrow and Spark do not check that; Python and protobuf then refuse the text, without naming a row.
    """
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        values = enumerate(texts.cast(pa.large_binary()).to_pylist())
        return [row for row, value in values if value is not None and not _is_utf8(value)]
    return []


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
