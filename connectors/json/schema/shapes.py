"""What a JSON Schema says of a value, one level at a time: references followed, ``allOf`` merged, unions as choices.

Only what says which values there are is read. Limits such as ``minimum`` or ``pattern`` are not checked, as Confluent's
deserializer does not check them unless asked to.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Final

from connectors.json.schema.parser import Documents, Part, not_supported, schema_error

_MOST_SHAPES: Final = 50_000  # that one schema may lead to: a few references can stand for any number of them
_MOST_STEPS: Final = 2_000_000  # of merging: names and schemas that are copied, beside the values themselves
_MOST_HOPS: Final = 100  # references, allOf and anyOf within each other before a value is described
_REFERENCES: Final = ("$ref", "$recursiveRef", "$dynamicRef")
_CONNECT: Final = "org.apache.kafka.connect.data."
_INTEGERS: Final = {"int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint"}
_NUMBERS: Final = {**_INTEGERS, "float32": "float", "float64": "double"}
_FORMATS: Final = {"date": "date", "date-time": "timestamp"}
_OF_OBJECTS: Final = ("properties", "patternProperties", "additionalProperties", "required", "propertyNames")
_OF_ARRAYS: Final = ("items", "prefixItems", "additionalItems", "contains")
_NARROWER: Final = {
    "string": {"date", "timestamp", "binary"},
    "double": {"float", "decimal", *_INTEGERS.values()},
    "bigint": {"int", "smallint", "tinyint"},
}
"""Of kinds, those whose values are some of theirs."""
_MOST_PRECISION: Final = 38
_MOST_DIGITS: Final = 9999  # that an error shows
_DIGITS: Final = re.compile("[+-]?[0-9]{1,4}")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")

Whole = tuple[Part, ...]
"""Schemas that a value satisfies at once."""
Choice = tuple[Whole, ...]
"""Alternatives."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a schema says of a value, of whose parts it names the schemas.

    Attributes:
        kind: ``any``, ``null``, ``object``, ``array``, ``string``, ``choice``, or the name of a type of Spark's.
        meaning: how the text of a value is to be understood, where its kind alone does not say that.
        scale: digits after the point of a decimal, and `precision` all of them.
        properties: the properties of an object.
        items: the items of an array, the other properties of an object, or the alternatives of a choice.
        schemas: the identities of the schemas that say so, to find a schema that holds itself.
    """

    kind: str
    meaning: str = ""
    precision: int = 0
    scale: int = 0
    properties: Mapping[str, Choice] = field(default_factory=dict)
    items: Choice = ()
    schemas: frozenset[int] = frozenset()


class Shapes:
    """Describes the values of one schema's parts, up to a bound."""

    def __init__(self, documents: Documents) -> None:
        self._documents, self._count, self._steps = documents, 0, 0
        self._typed = dict[int, tuple[Part, Shape]]()  # by the identity of a schema, which stays with it
        self.root: Choice = ((documents.own,),)

    def spend(self, steps: int) -> None:
        """Count steps that a schema asks for beyond its size.

        Raises:
            JsonAnalysisError: CANNOT_PARSE_JSON_SCHEMA, as they are too many.
        """
        self._steps += steps
        if self._steps > _MOST_STEPS:
            raise schema_error(f"its parts have to be merged in more than {_MOST_STEPS:,} steps")

    def of(self, whole: Whole) -> Shape:
        """Return what several schemas say of a value that satisfies them all.

        Raises:
            JsonAnalysisError: CANNOT_PARSE_JSON_SCHEMA, JSON_REFERENCE_NOT_FOUND or JSON_TYPE_NOT_SUPPORTED.
        """
        return self._merged(whole, 0)

    def _merged(self, whole: Whole, hops: int) -> Shape:
        merged = Shape("any")
        for part in whole:
            merged = self._both(merged, self._one(part, hops))
        return merged

    def _one(self, part: Part, hops: int) -> Shape:
        self._count += 1
        if self._count > _MOST_SHAPES:
            raise schema_error(f"it describes more than {_MOST_SHAPES:,} values")
        if hops > _MOST_HOPS:
            raise schema_error("its references go round in a circle, or lead from one to another too often")
        value = part.value
        if isinstance(value, bool):
            return Shape("any" if value else "null")
        if not isinstance(value, dict):
            raise schema_error(f"{_shown(value)} stands in the place of a schema")
        reference = next((value[key] for key in _REFERENCES if key in value), None)
        shape = Shape("any")
        if reference is not None:
            shape = self._one(self._documents.find(part, reference), hops + 1)
        if reference is None or part.siblings:
            shape = self._both(shape, self._stated(part, hops))
        return replace(shape, schemas=shape.schemas | {id(value)})

    def _stated(self, part: Part, hops: int) -> Shape:
        """Return what a schema says apart from its reference."""
        value = part.value
        if id(value) not in self._typed:
            self._typed[id(value)] = (part, _typed(part))
        shape = self._typed[id(value)][1]
        for inner in _schemas(value, "allOf"):
            shape = self._both(shape, self._one(part.inner(inner), hops + 1))
        for key in ("anyOf", "oneOf"):
            alternatives = tuple((part.inner(inner),) for inner in _schemas(value, key))
            if alternatives:
                shape = self._both(shape, self._chosen(alternatives, hops + 1))
        return shape

    def _chosen(self, alternatives: Choice, hops: int) -> Shape:
        """Return the one alternative beside null, or the choice between several."""
        others = [(whole, self._merged(whole, hops)) for whole in alternatives]
        others = [(whole, shape) for whole, shape in others if shape.kind != "null"]
        if not others:
            return Shape("null")
        if len(others) == 1:
            return others[0][1]
        self.spend(len(others) + sum(len(shape.schemas) for _, shape in others if shape.kind == "choice"))
        schemas = frozenset[int]().union(*(shape.schemas for _, shape in others if shape.kind == "choice"))
        return Shape("choice", items=tuple(whole for whole, _ in others), schemas=schemas)

    def _both(self, one: Shape, other: Shape) -> Shape:
        """Return what two schemas say together."""
        self.spend(len(one.schemas) + len(other.schemas))
        schemas = one.schemas | other.schemas
        if "any" in (one.kind, other.kind):
            return replace(other if one.kind == "any" else one, schemas=schemas)
        if one.kind == other.kind == "choice":
            return Shape("any", schemas=schemas)
        if "choice" in (one.kind, other.kind):
            choice, plain = (one, other) if one.kind == "choice" else (other, one)
            return replace(self._with_branches(plain, choice), schemas=schemas)
        one, other = _narrower_first(one, other)
        self.spend(len(one.properties) + len(other.properties))
        properties = {**one.properties}
        for name, choice_of in other.properties.items():
            properties[name] = self._all_of(properties[name], choice_of) if name in properties else choice_of
        items = self._all_of(one.items, other.items) if one.items and other.items else one.items or other.items
        return replace(one, properties=properties, items=items, schemas=schemas)

    def _with_branches(self, plain: Shape, choice: Shape) -> Shape:
        """Return an object with the properties of all branches of a choice; else they only limit the values."""
        if plain.kind != "object":
            return plain
        properties = dict(plain.properties)
        for whole in choice.items:
            branch = self._merged(whole, 1).properties
            self.spend(len(branch))
            for name, more in branch.items():
                if name not in plain.properties:
                    self.spend(len(properties.get(name, ())) + len(more))
                    properties[name] = tuple(dict.fromkeys((*properties.get(name, ()), *more)))
        return replace(plain, properties=properties)

    def _all_of(self, one: Choice, other: Choice) -> Choice:
        """Return the alternatives of a value that is one of the first and one of the second."""
        if len(one) * len(other) > _MOST_HOPS:
            raise not_supported("has too many alternatives within allOf", "Give the columns a schema of their own.")
        self.spend(len(other) * sum(map(len, one)) + len(one) * sum(map(len, other)))
        return tuple((*first, *second) for first, second in product(one, other))


def _narrower_first(one: Shape, other: Shape) -> tuple[Shape, Shape]:
    """Return the two, first the one that says more of the same value."""
    if one.kind == other.kind and one.meaning == other.meaning and one.scale != other.scale:
        what = f"asks that one decimal have {one.scale} and {other.scale} digits after the point"
        raise not_supported(what, "Give the columns a schema of their own.")
    if one.precision > other.precision > 0:
        one, other = other, one
    for first, second in ((one, other), (other, one)):
        if first.kind == "null" or (first.kind == second.kind and second.meaning in ("", first.meaning)):
            return first, second
        if not second.meaning and first.kind in _NARROWER.get(second.kind, ()):
            return first, second
    raise not_supported(
        f"asks that one value be {one.meaning or one.kind} and {other.meaning or other.kind}",
        "Give the columns a schema of their own.",
    )


def _schemas(value: Mapping[str, Any], key: str) -> list[Any]:
    required = value.get(key, [])
    if not isinstance(required, list):
        raise schema_error(f"{key} is not a list")
    return required


def _typed(part: Part) -> Shape:
    """Return what the keywords of a schema itself say, without those that hold other schemas for the whole value."""
    value = part.value
    kinds = value.get("type")
    if kinds is None:
        return _untyped(part)
    names = [kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind != "null"]
    if not all(isinstance(kind, str) for kind in names):
        raise schema_error("type is neither a text nor a list of texts")
    if not names:
        return Shape("null")
    if set(names) == {"integer", "number"}:
        names = ["number"]
    if len(names) > 1:
        alone = {
            key: keyword_value
            for key, keyword_value in value.items()
            if key not in ("allOf", "anyOf", "oneOf", *_REFERENCES)
        }
        return Shape("choice", items=tuple((part.inner({**alone, "type": kind}),) for kind in names))
    return _of_type(part, names[0])


def _untyped(part: Part) -> Shape:
    value = part.value
    if any(key in value for key in _OF_OBJECTS):
        return _object(part)
    if any(key in value for key in _OF_ARRAYS):
        return _array(part)
    values = [value["const"]] if "const" in value else value.get("enum")
    if isinstance(values, list):
        kinds = {kind for kind in map(_kind_of_value, values) if kind != "null"}
        if kinds == {"bigint", "double"}:
            kinds = {"double"}
        return Shape(kinds.pop() if len(kinds) == 1 else "any" if kinds else "null")
    return Shape("any")


def _kind_of_value(value: object) -> str:
    """Return the kind of a value that an enum lists; an object or an array of it is not described further."""
    if value is None:
        return "null"
    kinds: dict[type, str] = {bool: "boolean", int: "bigint", float: "double", str: "string"}
    return kinds.get(type(value), "any")


def _of_type(part: Part, kind: str) -> Shape:
    match kind:
        case "integer" | "number":
            return _number(part.value, "bigint" if kind == "integer" else "double")
        case "string":
            return _text(part.value)
        case "object":
            return _object(part)
        case "array":
            return _array(part)
        case "boolean":
            return Shape("boolean")
    raise schema_error(f"{kind!r:.50} is not a type of JSON Schema")


def _logical(value: Mapping[str, Any]) -> str:
    """Return the name of Kafka Connect's logical type; empty if there is none."""
    title = value.get("title")
    return title.removeprefix(_CONNECT) if isinstance(title, str) and title.startswith(_CONNECT) else ""


def _number(value: Mapping[str, Any], widest: str) -> Shape:
    match _logical(value):
        case "Decimal":
            return _decimal(value, "decimal", "number")
        case "Date":
            return Shape("int", "days")
        case "Time":
            return Shape("int", "time")
        case "Timestamp":
            return Shape("bigint", "millis")
    connect = value.get("connect.type")
    return Shape(_NUMBERS.get(connect, widest) if isinstance(connect, str) else widest)


def _text(value: Mapping[str, Any]) -> Shape:
    if value.get("connect.type") == "bytes":
        return _decimal(value, "binary", "decimal") if _logical(value) == "Decimal" else Shape("binary", "base64")
    format_name = value.get("format")
    kind = _FORMATS.get(format_name) if isinstance(format_name, str) else None
    return Shape("string") if kind is None else Shape(kind, kind)


def _decimal(value: Mapping[str, Any], kind: str, meaning: str) -> Shape:
    """Return Kafka Connect's decimal: a number, or the bytes of an unscaled one in base64."""
    parameters = value.get("connect.parameters")
    parameters = parameters if isinstance(parameters, dict) else {}
    scale = _digits(parameters, "scale", 0)
    precision = _digits(parameters, "connect.decimal.precision", _MOST_PRECISION)
    if not 0 <= scale <= precision <= _MOST_PRECISION:
        what = f"has a decimal of {precision} digits, {scale} of them after the point"
        raise not_supported(what, "Spark's have at most 38. Give the columns a schema of their own.")
    return Shape(kind, meaning, precision, scale)


def _digits(parameters: Mapping[str, Any], name: str, default: int) -> int:
    """Return a number of digits, which Kafka Connect writes as a text."""
    text = parameters.get(name, default)
    if isinstance(text, str) and _DIGITS.fullmatch(text):
        return int(text)
    if type(text) is not int or abs(text) > _MOST_DIGITS:
        raise schema_error(f"{name} of a decimal of Kafka Connect is {_shown(text)}, and no number of digits")
    return text


def _shown(value: object) -> str:
    """Return a value of a schema for an error: what may be large, or nested, by its type alone."""
    return f"{value!r:.50}" if isinstance(value, str | int | float | None) else type(value).__name__


def _object(part: Part) -> Shape:
    value = part.value
    properties = value.get("properties", {})
    patterns = value.get("patternProperties", {})
    if not isinstance(properties, dict) or not isinstance(patterns, dict):
        raise schema_error("properties is not an object")
    others = [*patterns.values()]
    if value.get("additionalProperties", not patterns) is not False:
        others.append(value.get("additionalProperties", True))
    unwritable = next((name for name in properties if _SURROGATE.search(name)), None)
    if unwritable is not None:
        raise schema_error(f"the property {unwritable!r:.100} is not text in UTF-8")
    names = sorted(properties, key=lambda name: _place(properties[name]))
    return Shape(
        "object",
        properties={name: ((part.inner(properties[name]),),) for name in names},
        items=tuple((part.inner(inner),) for inner in others),
    )


def _place(schema: object) -> float:
    """Return the place that Kafka Connect gives to a property; those without one keep their order after these."""
    index = schema.get("connect.index") if isinstance(schema, dict) else None
    return index if type(index) is int else math.inf


def _array(part: Part) -> Shape:
    value = part.value
    first = value.get("prefixItems", [])
    items, rest = value.get("items", True), value.get("additionalItems", True)
    if isinstance(items, list):  # before draft 2020-12, the first ones
        first, items = items, rest
    if not isinstance(first, list):
        raise schema_error("prefixItems is not a list")
    every = [*first, *([] if items is False else [items])]
    return Shape("array", items=tuple((part.inner(inner),) for inner in every))
