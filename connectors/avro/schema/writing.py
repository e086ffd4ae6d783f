"""The Avro schema that a column is written by where none is given: Spark's ``SchemaConverters.toAvroType``."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as kinds

from connectors.avro.errors import AvroDataError
from connectors.avro.schema.parser import NAME, NO_DEFAULT, AvroField, AvroType

_NULL = AvroType("null")
_ATOMS = {
    "bool": AvroType("boolean"),
    "int8": AvroType("int"),
    "int16": AvroType("int"),
    "int32": AvroType("int"),
    "int64": AvroType("long"),
    "float": AvroType("float"),
    "double": AvroType("double"),
    "string": AvroType("string"),
    "large_string": AvroType("string"),
    "binary": AvroType("bytes"),
    "large_binary": AvroType("bytes"),
    "null": _NULL,
    "date32[day]": AvroType("int", logical="date"),
    "duration[us]": AvroType("long"),
    "time64[ns]": AvroType("long", logical="time-micros"),
}


def avro_type(kind: pa.DataType, *, nullable: bool, name: str = "topLevelRecord", namespace: str = "") -> AvroType:
    """Return the schema of a type of Arrow; records have the name, or those of the columns that they are in."""
    made = _plain(kind, name, namespace)
    return AvroType("union", branches=(made, _NULL)) if nullable and made.kind != "null" else made


def _plain(kind: pa.DataType, name: str, namespace: str) -> AvroType:
    full = f"{namespace}.{name}" if namespace else name
    if kinds.is_struct(kind):
        wrong = next((part.name for part in kind if not NAME.fullmatch(part.name)), None)
        if wrong is not None:
            what = f"A column has the name {wrong!r}, which no field of Avro can have"
            raise AvroDataError("AVRO_SCHEMA_INCOMPATIBLE", what, "to_avro", "Rename it.")
        fields = []
        for part in kind:
            inner = avro_type(part.type, nullable=part.nullable, name=part.name, namespace=full)
            fields.append(AvroField(part.name, inner, NO_DEFAULT, ()))
        return AvroType("record", full, fields=fields)
    if kinds.is_map(kind):
        nullable = kind.item_field.nullable
        return AvroType("map", items=avro_type(kind.item_type, nullable=nullable, name=name, namespace=namespace))
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        nullable = kind.value_field.nullable
        return AvroType("array", items=avro_type(kind.value_type, nullable=nullable, name=name, namespace=namespace))
    if kinds.is_decimal(kind):
        size = next(size for size in range(1, 17) if 2 ** (8 * size - 1) >= 10**kind.precision)
        decimal = {"logical": "decimal", "precision": kind.precision, "scale": kind.scale}
        return AvroType("fixed", f"{full}.fixed", size=size, **decimal)
    if kinds.is_timestamp(kind):
        return AvroType("long", logical="timestamp-micros" if kind.tz else "local-timestamp-micros")
    if str(kind) not in _ATOMS:
        raise AvroDataError(
            "AVRO_TYPE_NOT_SUPPORTED", f"The column has the type {kind}", "to_avro", "Cast it, or leave it out."
        )
    return _ATOMS[str(kind)]
