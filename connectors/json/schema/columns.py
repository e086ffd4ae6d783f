"""The columns for a JSON Schema, and whether what another schema's writers wrote can be read into them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from connectors.json.errors import JsonAnalysisError
from connectors.json.schema.parser import Documents, schema_error
from connectors.json.schema.shapes import Choice, Shape, Shapes, Whole

MOST_DEPTH: Final = 15  # of a schema in itself, as for Avro
_MOST_LEVELS: Final = 100
_MOST_COLUMNS: Final = 10_000
_WIDER: Final = {"tinyint": 1, "smallint": 2, "int": 3, "bigint": 4, "float": 5, "double": 6}
_NUMBERS: Final = {*_WIDER, "decimal"}
_CODED: Final = ("days", "millis", "time", "base64", "decimal", "number")
"""Meanings that only the same one has: what Kafka Connect writes."""


@dataclass(frozen=True, slots=True)
class JsonColumn:
    """A column: small enough to travel with each task.

    Attributes:
        kind: the name of Spark's type.
        meaning: how the JSON of a value is to be understood: ``date``, ``timestamp``, ``base64``, ``days`` and
            ``millis`` (since 1970), ``time`` (milliseconds of a day), ``decimal`` (an unscaled number in base64),
            ``number`` (a decimal as a number), or empty.
        fields: those of a struct.
        items: the element of an array, or the values of a map.
    """

    kind: str
    meaning: str = ""
    precision: int = 0
    scale: int = 0
    fields: tuple[tuple[str, JsonColumn], ...] = ()
    items: JsonColumn | None = None

    def coded(self) -> int:
        """Return how deep values are that stand in JSON in another way than Spark writes them; 0 if there are none."""
        return _depth(self, lambda column: column.meaning in ("days", "millis", "decimal"))

    def checked(self) -> int:
        """Return how deep values are for which Spark's ``from_json`` alone does not do; 0 if there are none."""
        return _depth(
            self,
            lambda column: column.kind in ("tinyint", "float", "double", "map") or column.meaning not in ("", "time"),
        )


def _depth(column: JsonColumn, counts: Callable[[JsonColumn], bool]) -> int:
    inner = [field for _, field in column.fields] + ([] if column.items is None else [column.items])
    deepest = max((_depth(column_inside, counts) for column_inside in inner), default=0)
    return deepest + 1 if deepest else int(counts(column))


def json_column(documents: Documents, max_depth: int = -1, *, case_sensitive: bool = False) -> JsonColumn:
    """Return the column for a schema.

    Args:
        documents: the schema.
        max_depth: how deep a schema that holds itself is followed; 0 or less: not at all.
        case_sensitive: whether names that differ in case alone are different.

    Raises:
        JsonAnalysisError: as `Shapes.of`; RECURSIVE_JSON_SCHEMA, JSON_FIELD_AMBIGUOUS.
    """
    shapes = Shapes(documents)
    column = _Columns(shapes, max_depth, case_sensitive=case_sensitive).choice(shapes.root, {}, 0)
    if column is None:
        raise _recursive()
    return column


class _Columns:
    def __init__(self, shapes: Shapes, max_depth: int, *, case_sensitive: bool) -> None:
        self._shapes, self._max_depth, self._case_sensitive = shapes, max_depth, case_sensitive
        self._count = 0

    def choice(self, choice: Choice, around: Mapping[int, int], level: int) -> JsonColumn | None:
        """Return the column of a value that is one of several; None for what is dropped, as too deep in itself."""
        columns: dict[JsonColumn, None] = {}
        for whole in choice:
            shape = self._shapes.of(whole)
            if shape.kind == "null":
                continue
            column = self._column(shape, around, level)
            if column is None:
                return None
            columns[column] = None
        return _one_of(columns)

    def _column(self, shape: Shape, around: Mapping[int, int], level: int) -> JsonColumn | None:
        self._count += 1
        if self._count > _MOST_COLUMNS:
            raise schema_error(f"it has more than {_MOST_COLUMNS:,} columns")
        if level > _MOST_LEVELS:
            raise schema_error(f"it is nested more than {_MOST_LEVELS} levels deep")
        depth = max((around.get(schema, 0) for schema in shape.schemas), default=0)
        if depth > 0 and self._max_depth <= 0:
            raise _recursive()
        if depth > 0 and depth >= self._max_depth:
            return None
        self._shapes.spend(len(around) + len(shape.schemas))
        inside = {**around, **{schema: around.get(schema, 0) + 1 for schema in shape.schemas}}
        if shape.kind == "choice":
            return self.choice(shape.items, inside, level + 1)
        if shape.kind == "array":
            items = self.choice(shape.items, inside, level + 1)
            return None if items is None else JsonColumn("array", items=items)
        if shape.kind == "object":
            return self._object(shape, inside, level + 1)
        if shape.kind == "any":
            return JsonColumn("variant")
        kind = "decimal" if shape.meaning == "decimal" else {"days": "date", "millis": "timestamp"}.get(shape.meaning)
        return JsonColumn(kind or shape.kind, shape.meaning, shape.precision, shape.scale)

    def _object(self, shape: Shape, inside: Mapping[int, int], level: int) -> JsonColumn | None:
        if not shape.properties:
            items = self.choice(shape.items, inside, level)
            return None if items is None else JsonColumn("map", items=items)
        fields, names = [], set[str]()
        for name, choice in shape.properties.items():
            key = name if self._case_sensitive else name.lower()
            if key in names:
                raise JsonAnalysisError(
                    "JSON_FIELD_AMBIGUOUS",
                    f"An object has several properties named {name!r:.100}, apart from case",
                    "schema",
                )
            names.add(key)
            column = self.choice(choice, inside, level)
            if column is not None:
                fields.append((name, column))
        return JsonColumn("struct", fields=tuple(fields))


def _one_of(columns: Iterable[JsonColumn]) -> JsonColumn:
    """Return the column for several alternatives: the widest of numbers, for others a VARIANT."""
    several = list(columns)
    if len(several) == 1:
        return several[0]
    if several and all(column.kind in _WIDER and not column.meaning for column in several):
        widest = max(several, key=lambda column: _WIDER[column.kind])
        return JsonColumn("double") if widest.kind == "float" else widest
    return JsonColumn("variant")


def _recursive() -> JsonAnalysisError:
    return JsonAnalysisError(
        "RECURSIVE_JSON_SCHEMA",
        "The JSON Schema is recursive: one of its values can contain another",
        "schema",
        f"Set the option recursiveFieldMaxDepth to a number from 1 to {MOST_DEPTH}.",
    )


def difference(reader: JsonColumn, writer: Documents) -> str:
    """Return why what a writer wrote by its schema would be taken for something else; empty if it would not.

    JSON says itself what is a text, a number or an object: Spark makes NULL or a bad row of what does not fit. It does
    not say what a text or a number means.

    Raises:
        JsonAnalysisError: the writer's schema has an error on the way to the reader's columns.
    """
    shapes = Shapes(writer)
    pending = [("", reader, shapes.root, 0)]
    seen = set[tuple[int, Whole, int]]()
    while pending:
        path, column, choice, level = pending.pop()
        for whole in choice:
            place = (id(column), whole, level)
            if place in seen:
                continue
            seen.add(place)
            shape = shapes.of(whole)
            if shape.kind == "choice":
                if level > _MOST_LEVELS:
                    raise schema_error("its alternatives are within each other too often")
                pending.append((path, column, shape.items, level + 1))
            elif column.kind == "struct" and shape.kind == "object":
                others = () if shape.properties else shape.items  # as of a map
                shapes.spend(len(column.fields))
                inside = [(name, inner, shape.properties.get(name, others)) for name, inner in column.fields]
                pending += [(f"{path}.{name}", inner, inner_choice, 0) for name, inner, inner_choice in inside]
            elif column.items is not None and shape.kind == ("array" if column.kind == "array" else "object"):
                shapes.spend(len(shape.properties))
                pending += [
                    (f"{path}[]", column.items, inner, 0) for inner in (*shape.properties.values(), shape.items)
                ]
            elif column.kind != "struct" and _differs(column, shape):
                where, kind = path.removeprefix(".") or "it", _read_as(column, shape)
                return f"{where} was written as {_named(shape)} and is read as {kind}"
    return ""


def _differs(column: JsonColumn, shape: Shape) -> bool:
    if shape.kind in ("any", "null", "object", "array", "boolean") or _same(column, shape):
        return False
    if column.kind == "string" or not column.meaning:  # plain: as it is in JSON, but for bytes, which have another text
        return shape.kind == "binary" and column.kind in ("string", *_NUMBERS)
    if shape.meaning in _CODED:
        return True
    if column.meaning == "number":  # a number means itself; a text is not a number
        return shape.kind == "string"
    if column.meaning in ("days", "millis", "time") or column.meaning == "timestamp":
        return shape.kind in _NUMBERS
    return column.meaning in ("base64", "decimal") and shape.kind in ("string", "date", "timestamp")


def _same(column: JsonColumn, shape: Shape) -> bool:
    return column.meaning == shape.meaning and (column.kind != "decimal" or column.scale == shape.scale)


def _named(shape: Shape) -> str:
    return shape.kind if shape.meaning in ("", shape.kind) else f"{shape.kind} ({shape.meaning})"


def _read_as(column: JsonColumn, shape: Shape) -> str:
    if column.kind == "decimal" and column.meaning == shape.meaning:
        return f"decimal of the scale {column.scale}, not {shape.scale}"
    return column.kind if column.meaning in ("", column.kind) else f"{column.kind} ({column.meaning})"
