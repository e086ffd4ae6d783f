"""Default values of a reader's schema: whether each is a value of its type, and what it becomes in a column.

The rules are those of Java's ``Schema.isValidDefault``. In addition, an enum must have the symbol, and a fixed the
size. The default of a union belongs to the first branch that it fits; Java takes the first of a similar type, which may
then fail or cut a number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as kinds

from connectors.avro.errors import AvroAnalysisError
from connectors.avro.options import AvroOptions
from connectors.avro.schema.leaf import MICROS, decimal_of, is_millis
from connectors.avro.schema.parser import NO_DEFAULT, AvroField, AvroType
from connectors.avro.schema.types import is_single, items_of, member_name, non_null, too_deep
from connectors.core.functions.bad_rows import BadRowError

_MOST_BYTES: Final = 16 << 10  # of the texts and items of all defaults: each row has them
_ITEM_BYTES: Final = 8
_MOST_SHOWN: Final = 100
_BITS: Final = {"int": 32, "long": 64}


def check_defaults(reader: AvroType) -> None:
    """Raise AVRO_SCHEMA_INCOMPATIBLE for a default that its type does not have, AVRO_TOO_DEEP for an endless one."""
    checker = _Checker()
    pending, seen = [reader], set[int]()
    try:
        while pending:
            schema = pending.pop()
            if id(schema) in seen:
                continue
            seen.add(id(schema))
            for field in schema.fields:
                if field.default is not NO_DEFAULT and not checker.fits(field.type, field.default):
                    raise _wrong(f"{schema.name}.{field.name}", field)
            if schema.default_symbol is not None and schema.default_symbol not in schema.symbols:
                raise _wrong(schema.name, AvroField("", schema, schema.default_symbol, ()))
            pending += schema.inner()
    except RecursionError:
        raise too_deep() from None


def _wrong(where: str, field: AvroField) -> AvroAnalysisError:
    shown = json.dumps(field.default)
    shown = shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}..."
    branches = [branch.name or branch.kind for branch in field.type.branches]
    kind = f"union of {', '.join(branches)}" if branches else field.type.name or field.type.kind
    return _incompatible(f"The default of {where} is {shown}, which is not a value of its type ({kind:.{_MOST_SHOWN}})")


def _incompatible(what: str) -> AvroAnalysisError:
    action = "Correct the default in the reader's schema."
    return AvroAnalysisError("AVRO_SCHEMA_INCOMPATIBLE", what, "from_avro", action)


class _Checker:
    """Says whether JSON is a value of a type, and remembers it, so that a schema takes linear time."""

    def __init__(self) -> None:
        self._fits: dict[tuple[int, int], bool] = {}

    def fits(self, schema: AvroType, value: Any) -> bool:
        if not isinstance(value, dict | list):
            return self._made(schema, value)
        pair = id(schema), id(value)
        if pair not in self._fits:
            self._fits[pair] = self._made(schema, value)
        return self._fits[pair]

    def _made(self, schema: AvroType, value: Any) -> bool:
        match schema.kind:
            case "union":
                return any(self.fits(branch, value) for branch in schema.branches)
            case "record":
                return isinstance(value, dict) and all(self._has(field, value) for field in schema.fields)
            case "array":
                return isinstance(value, list) and all(self.fits(items_of(schema), item) for item in value)
            case "map":
                return isinstance(value, dict) and all(
                    _is_text(key) and self.fits(items_of(schema), item) for key, item in value.items()
                )
        return _is_scalar(schema, value)

    def _has(self, field: AvroField, value: Mapping[str, Any]) -> bool:
        inner = value.get(field.name, field.default)
        return inner is not NO_DEFAULT and self.fits(field.type, inner)


def _is_scalar(schema: AvroType, value: Any) -> bool:
    if schema.kind in _BITS:
        most = 2 ** (_BITS[schema.kind] - 1)
        return type(value) is int and -most <= value < most
    checks: dict[str, Callable[[], bool]] = {
        "null": lambda: value is None,
        "boolean": lambda: isinstance(value, bool),
        "float": lambda: type(value) in (int, float),
        "double": lambda: type(value) in (int, float),
        "enum": lambda: value in schema.symbols,
        "string": lambda: _is_text(value),
        "fixed": lambda: _is_latin(value) and len(value) == schema.size,
        "bytes": lambda: _is_latin(value),
    }
    return checks[schema.kind]()


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def _is_latin(value: Any) -> bool:
    """Return whether a text can stand for bytes, each letter for one."""
    return isinstance(value, str) and all(letter <= "\xff" for letter in value)


class Defaults:
    """Makes the values of columns that a writer does not have."""

    def __init__(self, options: AvroOptions) -> None:
        self._options, self._checker = options, _Checker()
        self._bytes = 0

    def of(self, field: AvroField, record: str, arrow: pa.DataType) -> Any:
        """Return the default of a field in a column of this type: a dictionary for a struct, and pairs for a map.

        Raises AVRO_SCHEMA_INCOMPATIBLE where it is not a value of the column, or all are too large.
        """
        try:
            if self._checker.fits(field.type, field.default):
                return self._value(field.type, field.default, arrow)
        except BadRowError as error:
            raise _incompatible(f"The default of {record}.{field.name} {error}") from None
        raise _wrong(f"{record}.{field.name}", field)

    def _value(self, schema: AvroType, value: Any, arrow: pa.DataType) -> Any:
        match schema.kind:
            case "union":
                return self._union(schema, value, arrow)
            case "record":
                fields = {field.name: field for field in schema.fields}
                values = {name: value.get(name, field.default) for name, field in fields.items()}
                return {part.name: self._value(fields[part.name].type, values[part.name], part.type) for part in arrow}
            case "array":
                self._add(_ITEM_BYTES * len(value))
                return [self._value(items_of(schema), item, arrow.value_type) for item in value]
            case "map":
                self._add(sum(_ITEM_BYTES + len(key) for key in value))
                items = items_of(schema)
                return [(key.encode(), self._value(items, item, arrow.item_type)) for key, item in value.items()]
        return self._scalar(schema, value, arrow)

    def _union(self, schema: AvroType, value: Any, arrow: pa.DataType) -> Any:
        branch = next(branch for branch in schema.branches if self._checker.fits(branch, value))
        if branch.kind == "null":
            return None
        if is_single(schema):
            return self._value(branch, value, arrow)
        name = member_name(branch, non_null(schema).index(branch), self._options)
        return {part.name: self._value(branch, value, part.type) for part in arrow if part.name == name}

    def _scalar(self, schema: AvroType, value: Any, arrow: pa.DataType) -> Any:
        if schema.kind == "null":
            return None
        if isinstance(value, str):
            value = value.encode("latin-1" if schema.kind in {"bytes", "fixed"} else "utf-8")
            self._add(len(value))
        elif schema.kind in {"float", "double"}:
            value = _as_float(value)
        if kinds.is_decimal(arrow):
            return decimal_of(value, schema.precision, schema.scale)
        return _micros(value) if is_millis(schema) else value

    def _add(self, count: int) -> None:
        self._bytes += count
        if self._bytes > _MOST_BYTES:
            raise _incompatible(f"The defaults of fields that a writer's schema lacks exceed {_MOST_BYTES >> 10} KB")


def _micros(millis: int) -> int:
    micros = millis * MICROS
    if not -(2**63) <= micros < 2**63:
        raise BadRowError(f"long overflow: a timestamp of {millis} milliseconds")
    return micros


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # of an integer, which is infinite in Java
        return float("inf") if value > 0 else float("-inf")
