"""One value as each implementation of Avro has it: ours in a column of Spark, fastavro's, and Java's.

The common form is that of `Values` in ``avro_schemas``; `spark_form` says what it is in a column, by Spark's rules.
"""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from tests.chaos.rigs.avro_schemas import FULL, kind_of

__all__ = ["NotInSparkError", "from_fastavro", "from_java", "normal", "plain_type", "spark_form", "to_fastavro"]

_LARGEST = 2**63 - 1
_PYTHON = {
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "string": str,
    "bytes": bytes,
    "array": list,
    "map": dict,
}


class NotInSparkError(Exception):
    """Raised for a value that Avro can have and a column of Spark cannot: the row is a bad one."""


def to_fastavro(schema: Any, value: Any) -> Any:
    """Return what fastavro writes; a value of a union says its branch."""
    kind = kind_of(schema)
    if kind == "union":
        branch = schema[value[0]]
        named = branch[FULL] if isinstance(branch, dict) and FULL in branch else kind_of(branch)
        return None if branch == "null" else (named, to_fastavro(branch, value[1]))
    if kind == "array":
        return [to_fastavro(schema["items"], item) for item in value]
    if kind == "map":
        return {key: to_fastavro(schema["values"], item) for key, item in value.items()}
    if kind == "record":
        return {field["name"]: to_fastavro(field["type"], value[field["name"]]) for field in schema["fields"]}
    return value


def from_fastavro(schema: Any, value: Any) -> Any:
    """Return what fastavro has read in the common form; its defaults are as they are in the schema."""
    kind = kind_of(schema)
    if kind == "union":
        branch = _branch_of(schema, value)
        inner = value[1] if isinstance(value, tuple) else value
        return branch, from_fastavro(schema[branch], inner)
    if isinstance(value, tuple):
        return from_fastavro(schema, value[1])  # the writer has a union there
    if kind == "array":
        return [from_fastavro(schema["items"], item) for item in value]
    if kind == "map":
        return {key: from_fastavro(schema["values"], item) for key, item in value.items()}
    if kind == "record":
        return {field["name"]: from_fastavro(field["type"], value[field["name"]]) for field in schema["fields"]}
    return value.encode("latin-1") if kind in {"bytes", "fixed"} and isinstance(value, str) else value


def _branch_of(schema: list[Any], value: Any) -> int:
    """Return the branch of a value; a named type is only said where the writer has a union, too."""
    if isinstance(value, tuple):
        return next(n for n, branch in enumerate(schema) if isinstance(branch, dict) and branch.get(FULL) == value[0])
    fits = [n for n, branch in enumerate(schema) if _fits(branch, value)]
    fits.sort(key=lambda n: kind_of(schema[n]) == "fixed")  # beside bytes, a fixed says that it is one
    return fits[0] if fits else 0  # bytes in a default, which are text and of the first branch


def _fits(schema: Any, value: Any) -> bool:
    """Return whether a value is of this branch; no text of `Values` is a symbol, and no key the name of a field."""
    kind = kind_of(schema)
    if kind == "record":
        return isinstance(value, dict) and value.keys() == {field["name"] for field in schema["fields"]}
    if kind == "enum":
        return value in schema["symbols"] if isinstance(value, str) else False
    if kind == "fixed":
        return isinstance(value, bytes) and len(value) == schema["size"]
    if kind == "map":
        return isinstance(value, dict) and not any(key[0] in "fF_ar" for key in value)
    return value is None if kind == "null" else type(value) is _PYTHON[kind]


def from_java(schema: Any, value: Any) -> Any:
    """Return what ``AvroClient.java`` prints in the common form; text stays bytes, which may be no UTF-8."""
    kind = kind_of(schema)
    if kind == "union":
        return value[0], from_java(schema[value[0]], value[1])
    if kind == "array":
        return [from_java(schema["items"], item) for item in value]
    if kind == "map":
        return {bytes.fromhex(key): from_java(schema["values"], item) for key, item in value}
    if kind == "record":
        return {
            field["name"]: from_java(field["type"], item) for field, item in zip(schema["fields"], value, strict=True)
        }
    if kind in {"float", "double"}:
        read, written = ("<f", "<i") if kind == "float" else ("<d", "<q")
        return struct.unpack(read, struct.pack(written, value))[0]
    return bytes.fromhex(value) if isinstance(value, str) else value


def spark_form(schema: Any, value: Any) -> Any:
    """Return a value of the common form as it is in a column of a `plain_type`.

    Raises:
        NotInSparkError: garbage has made a decimal or a time that Spark cannot hold.
    """
    kind = kind_of(schema)
    if kind == "union":
        return _union(schema, *value)
    if kind == "array":
        return [spark_form(schema["items"], item) for item in value]
    if kind == "map":
        return [(_bytes(key), spark_form(schema["values"], item)) for key, item in value.items()]
    if kind == "record":
        return {field["name"]: spark_form(field["type"], value[field["name"]]) for field in schema["fields"]}
    if isinstance(schema, dict) and "logicalType" in schema:
        return _logical(schema, value)
    return _float(kind, value) if kind in {"float", "double"} else _bytes(value)


def _bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def _float(kind: str, value: Any) -> float:
    return float(value) if kind == "double" else float(struct.unpack("<f", struct.pack("<f", value))[0])


def _union(schema: list[Any], branch: int, value: Any) -> Any:
    others = [each for each in schema if each != "null"]
    if schema[branch] == "null":
        return None
    if sorted(map(kind_of, others)) in (["int", "long"], ["double", "float"]):
        return value  # fastavro does not say of which of the two it is
    inner = spark_form(schema[branch], value)
    if len(others) == 1:
        return inner
    place = branch - ("null" in schema[:branch])
    return {f"member{number}": inner if number == place else None for number in range(len(others))}


def _logical(schema: Any, value: Any) -> Any:
    name = schema["logicalType"]
    if name == "decimal":
        precision = schema["precision"]
        number = int.from_bytes(value, "big", signed=True)
        if not value or abs(number) >= 10**precision:
            raise NotInSparkError
        return Decimal((number < 0, tuple(map(int, str(abs(number)))), -schema["scale"]))
    if not name.endswith("timestamp-millis"):
        return _bytes(value)
    if abs(value) > _LARGEST // 1000:
        raise NotInSparkError
    return value * 1000


def normal(value: Any) -> Any:
    """Return a value that is the same as another one if their texts are: maps in the order of their keys."""
    if isinstance(value, dict):
        return {key: normal(item) for key, item in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return sorted((key, normal(item)) for key, item in dict(value).items())
    return [normal(item) for item in value] if isinstance(value, list) else value


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type with bytes for text and numbers for times, all nullable: garbage may be no UTF-8, and no time."""
    if kinds.is_string(kind):
        return pa.binary()
    if kinds.is_temporal(kind):
        return pa.int32() if kinds.is_date(kind) else pa.int64()
    if kinds.is_struct(kind):
        return pa.struct([pa.field(part.name, plain_type(part.type)) for part in kind])
    if kinds.is_map(kind):
        return pa.map_(pa.binary(), plain_type(kind.item_type))
    return pa.list_(plain_type(kind.value_type)) if kinds.is_list(kind) else kind
