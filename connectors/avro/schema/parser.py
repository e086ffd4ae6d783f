"""Avro schemas as trees: read from their JSON by the rules of Avro's specification.

As in Spark, a logical type that does not fit its type is ignored. `schema.defaults` validates default values.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from connectors.avro.errors import AvroAnalysisError

PRIMITIVES: Final = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
NAMED: Final = {"record", "enum", "fixed"}
NAME: Final = re.compile(r"[^\W\d]\w*")
_LOGICAL: Final = {
    "date": {"int"},
    "time-millis": {"int"},
    "time-micros": {"long"},
    "timestamp-millis": {"long"},
    "timestamp-micros": {"long"},
    "timestamp-nanos": {"long"},
    "local-timestamp-millis": {"long"},
    "local-timestamp-micros": {"long"},
    "local-timestamp-nanos": {"long"},
    "uuid": {"string", "fixed"},
    "duration": {"fixed"},
    "big-decimal": {"bytes"},
}
_COLUMNS: Final = {name for name in _LOGICAL if name == "date" or name.endswith(("p-millis", "p-micros"))}
_SIZES: Final = {"uuid": 16, "duration": 12}  # of a fixed
NO_DEFAULT: Final = object()
_CATALYST_TYPE: Final = "spark.sql.catalyst.type"
_OF_TYPES: Final = frozenset(
    ("doc", "fields", "items", "name", "namespace", "size", "symbols", "values", "type", "aliases")
)
_OF_ENUMS: Final = _OF_TYPES | {"default"}
_OF_FIELDS: Final = frozenset(("default", "doc", "name", "type", "aliases"))
_LARGEST_SIZE: Final = 2**31 - 1  # of a fixed, as in Java
_NUMBER: Final = re.compile(r"[+-]?(NaN|Infinity|(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)", re.ASCII)
_SHOWN: Final = 200
_MOST_LEVELS: Final = 150  # of types in types: Python's own limit is 1,000 calls
_TOO_DEEP: Final = "it is nested too deeply"


@dataclass(slots=True, eq=False)
class AvroField:
    """A field of a record; the default is JSON, or `NO_DEFAULT`; `attributes` as those of a type."""

    name: str
    type: AvroType
    default: Any
    aliases: tuple[str, ...]
    attributes: str = ""


@dataclass(slots=True, eq=False)
class AvroType:
    """A type of a schema; a recursive one holds itself.

    Attributes:
        kind: such as ``int``, ``record`` or ``union``.
        name: the full name of a record, enum or fixed.
        items: of an array, or the values of a map.
        logical: the logical type, if it fits; ``decimal`` has a precision and a scale.
        catalyst: the type of Spark that Spark's own writer has put into the schema.
        attributes: what the schema says beyond Avro's own words, as JSON; schemas are equal only if these are.
    """

    kind: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    fields: list[AvroField] = field(default_factory=list)
    symbols: tuple[str, ...] = ()
    default_symbol: str | None = None
    size: int = 0
    items: AvroType | None = None
    branches: tuple[AvroType, ...] = ()
    logical: str = ""
    precision: int = 0
    scale: int = 0
    catalyst: str = ""
    attributes: str = ""

    def inner(self) -> list[AvroType]:
        """Return the types that it holds: of fields, branches, items."""
        items = [] if self.items is None else [self.items]
        return [*(field.type for field in self.fields), *self.branches, *items]

    @property
    def short_name(self) -> str:
        """The name without a namespace; of a type without a name, its kind."""
        return self.name.rpartition(".")[2] or self.kind


def alike(one: AvroType, other: AvroType, own: Callable[[AvroType], object], seen: dict[tuple[int, int], bool]) -> bool:
    """Return whether two schemas are the same in what `own` returns of each type; `seen` holds the results so far."""
    pair = id(one), id(other)
    if pair not in seen:
        seen[pair] = True  # while it is looked into
        seen[pair] = one is other or (
            own(one) == own(other)
            and all(alike(*inner, own, seen) for inner in zip(one.inner(), other.inner(), strict=True))
        )
    return seen[pair]


def parse_schema(text: str, where: str, references: Sequence[str] = ()) -> AvroType:
    """Return the schema that a JSON text describes; `references` are schemas of types that it has by name.

    A reference stands after those that it needs itself.

    Raises:
        AvroAnalysisError: CANNOT_PARSE_AVRO_SCHEMA, which says what is wrong.
    """
    try:
        return _Parser().parse_all([*references, text])
    except RecursionError:
        why = _TOO_DEEP
    except (ValueError, TypeError, AttributeError) as error:
        why = str(error)
    raise AvroAnalysisError("CANNOT_PARSE_AVRO_SCHEMA", f"The Avro schema cannot be parsed: {why}", where)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


class _Parser:
    def __init__(self) -> None:
        self._names: dict[str, AvroType] = {}
        self._level = 0

    def parse_all(self, texts: Sequence[str]) -> AvroType:
        *_, last = (self.parse(json.loads(text, parse_constant=_refuse), "") for text in texts)
        self._check_records()
        return last

    def parse(self, schema: Any, namespace: str) -> AvroType:
        self._level += 1
        if self._level > _MOST_LEVELS:
            raise ValueError(_TOO_DEEP)
        made = self._parse(schema, namespace)
        self._level -= 1
        return made

    def _parse(self, schema: Any, namespace: str) -> AvroType:
        if isinstance(schema, str):
            return self._reference(schema, namespace)
        if isinstance(schema, list):
            return self._union(schema, namespace)
        if isinstance(schema, dict):
            return self._object(schema, namespace)
        raise ValueError(f"{_shown(schema)} is not a type")

    def _object(self, schema: dict[str, Any], namespace: str) -> AvroType:
        kind = schema.get("type")
        if not isinstance(kind, str):
            return self.parse(kind, namespace)
        if kind in PRIMITIVES:
            return _with_logical(AvroType(kind), schema)
        if kind in {"array", "map"}:
            items = self.parse(schema.get("items" if kind == "array" else "values"), namespace)
            return AvroType(kind, items=items, attributes=_attributes(schema, _OF_TYPES))
        if kind in NAMED or kind == "error":
            return self._named("record" if kind == "error" else kind, schema, namespace)
        return self._reference(kind, namespace)

    def _reference(self, name: str, namespace: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        named = self._names.get(full) or self._names.get(name)
        if named is None:
            raise ValueError(f"{name!r} is neither a type nor the name of a type defined before it")
        return named

    def _union(self, schema: Sequence[Any], namespace: str) -> AvroType:
        branches = tuple(self.parse(branch, namespace) for branch in schema)
        seen = set()
        for branch in branches:
            if branch.kind == "union":
                raise ValueError("a union holds another union")
            key = branch.name or branch.kind
            if key in seen:
                raise ValueError(f"a union holds {key!r} twice")
            seen.add(key)
        return AvroType("union", branches=branches)

    def _named(self, kind: str, schema: dict[str, Any], namespace: str) -> AvroType:
        name, space = _full_name(schema.get("name"), schema.get("namespace"), namespace)
        if name in self._names:
            raise ValueError(f"the name {name!r} is defined twice")
        aliases = tuple(_full_name(alias, None, space)[0] for alias in _aliases(schema))
        attributes = _attributes(schema, _OF_ENUMS if kind == "enum" else _OF_TYPES)
        made = self._names[name] = AvroType(kind, name, aliases, attributes=attributes)
        if kind == "fixed":
            size = schema.get("size")
            if type(size) is not int or not 0 <= size <= _LARGEST_SIZE:
                raise ValueError(f"the fixed {name!r} has no size from 0 to {_LARGEST_SIZE}")
            made.size = size
            return _with_logical(made, schema)
        if kind == "enum":
            symbols = schema.get("symbols")
            if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
                raise ValueError(f"the enum {name!r} has no list of symbols")
            if len(set(symbols)) < len(symbols):
                raise ValueError(f"the enum {name!r} has a symbol twice")
            for symbol in symbols:
                symbol.encode()  # UnicodeEncodeError for half of a surrogate pair
            made.symbols, made.default_symbol = tuple(symbols), schema.get("default")
            return made
        for entry in _entries(schema.get("fields"), name):
            aliases = _aliases(entry)
            attributes = _attributes({"order": "ascending", **entry}, _OF_FIELDS)
            kind_of = self.parse(entry.get("type"), space)
            default = _default(kind_of.kind, entry.get("default", NO_DEFAULT))
            made.fields.append(AvroField(entry["name"], kind_of, default, aliases, attributes))
        return made

    def _check_records(self) -> None:
        """Raise ValueError for a record of which each value needs another one: no union, array or map is in between."""
        is_open: dict[int, bool] = {}
        for record in self._names.values():
            path = [] if id(record) in is_open else [(record, iter(record.fields))]
            while path:
                current, fields = path[-1]
                is_open[id(current)] = True
                inner = next((entry.type for entry in fields if entry.type.kind == "record"), None)
                if inner is None:
                    is_open[id(current)] = False
                    path.pop()
                elif is_open.get(id(inner)):
                    raise ValueError(f"the record {inner.name!r} holds itself without an end")
                elif id(inner) not in is_open:
                    path.append((inner, iter(inner.fields)))


def _entries(fields: Any, record: str) -> list[dict[str, Any]]:
    if not isinstance(fields, list) or not all(isinstance(entry, dict) for entry in fields):
        raise ValueError(f"the record {record!r} has no list of fields")
    names = set[str]()
    for name in (entry.get("name") for entry in fields):
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ValueError(f"{_shown(name)} is not a name of a field of the record {record!r}")
        if name in names:
            raise ValueError(f"the record {record!r} has the field {name!r} twice")
        names.add(name)
    return fields


def _default(kind: str, default: Any) -> Any:
    """Return the default of a field; that of a float may be a text, as in Java."""
    is_number = kind in {"float", "double"} and isinstance(default, str) and _NUMBER.fullmatch(default)
    return float(default) if is_number else default


def _aliases(schema: Mapping[str, Any]) -> tuple[str, ...]:
    aliases = schema.get("aliases") or []
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise ValueError(f"the aliases of {schema.get('name')!r} are not a list of names")
    return tuple(aliases)


def _full_name(name: Any, namespace: Any, inherited: str) -> tuple[str, str]:
    if not isinstance(name, str) or not all(NAME.fullmatch(part) for part in name.split(".")):
        raise ValueError(f"{_shown(name)} is not a name of a type")
    if "." in name:
        return name, name.rpartition(".")[0]
    space = namespace if isinstance(namespace, str) else inherited
    return (f"{space}.{name}" if space else name), space


def _attributes(schema: Mapping[str, Any], own: frozenset[str]) -> str:
    others = {key: value for key, value in schema.items() if key not in own}
    return json.dumps(others, sort_keys=True) if others else ""


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _with_logical(made: AvroType, schema: dict[str, Any]) -> AvroType:
    made.attributes = made.attributes or _attributes(schema, _OF_TYPES)
    logical = schema.get("logicalType")
    if logical == "decimal" and made.kind in {"bytes", "fixed"}:
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if not (type(precision) is int and type(scale) is int and 0 <= scale <= precision and precision > 0):
            return made
        if made.kind == "bytes" or precision <= _most_digits(made.size):
            made.logical, made.precision, made.scale = "decimal", precision, scale
    elif isinstance(logical, str) and made.kind in _LOGICAL.get(logical, ()):
        made.logical = logical if made.kind != "fixed" or made.size == _SIZES[logical] else ""
    if made.kind in {"int", "long"} and made.logical not in _COLUMNS:
        made.catalyst = str(schema.get(_CATALYST_TYPE) or "")
    return made


def _most_digits(size: int) -> int:
    """Return how many digits each number of that many bytes has room for, as Java computes it."""
    return math.floor(math.log10(2) * (8 * size - 1)) if size else 0
