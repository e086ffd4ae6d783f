"""How messages of one schema become columns of another: Avro's schema resolution, as a tree of nodes.

A node says how a value is read and what is made of it. The rules are those of Java's ``org.apache.avro.Resolver``,
which Spark uses: names are compared without their namespaces, aliases are the reader's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyspark.sql.types as spark

from connectors.avro.errors import AvroAnalysisError
from connectors.avro.options import AvroOptions
from connectors.avro.schema.leaf import converter
from connectors.avro.schema.parser import NO_DEFAULT, AvroField, AvroType
from connectors.avro.schema.types import arrow_type, member_name, non_null, too_deep, too_many_columns
from connectors.functions.bad_rows import BadRowError
from connectors.functions.columns import MAX_COLUMNS

__all__ = ["Node", "Output", "compile_plan"]

_PROMOTIONS: Final = {
    ("int", "long"),
    ("int", "float"),
    ("int", "double"),
    ("long", "float"),
    ("long", "double"),
    ("float", "double"),
    ("string", "bytes"),
    ("bytes", "string"),
}
_MOST_NODES: Final = 4 * MAX_COLUMNS
_WIDTHS: Final = {"null": 0, "float": 4, "double": 8, "boolean": 1}
_LEAST: Final = {"null": 0, "float": 4, "double": 8}


@dataclass(slots=True, eq=False)
class Output:
    """A column of a record: the place of the field that it is read from, or -1 and a default value."""

    source: int
    default: Any = None


@dataclass(slots=True, eq=False)
class Node:
    """How a value is read.

    Attributes:
        kind: the writer's type; ``error`` for what the reader cannot take, ``member`` for one branch of its union.
        arrow: the type of what is made; None where a value is read and dropped.
        reader: the reader's type, for conversions.
        reason: of an error.
        size: of a fixed, in bytes.
        symbols: what each index of an enum becomes; None for what the reader does not know.
        item: of an array; of a map the record of key and value.
        children: the fields of a record in the writer's order; the branches of a union.
        outputs: of a record.
        members: of a union, which field each branch becomes, -1 for none; None where all are one value.
    """

    kind: str
    arrow: pa.DataType | None = None
    reader: AvroType | None = None
    reason: str = ""
    size: int = 0
    symbols: tuple[str | None, ...] = ()
    item: Node | None = None
    children: list[Node] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    members: list[int] | None = None
    _width: int | None = -1
    _least: int = -1

    @property
    def width(self) -> int | None:
        """How many bytes each value has; None where they differ."""
        if self._width == -1:
            self._width = None  # of a recursive one
            if self.kind == "record":
                widths = [child.width for child in self.children]
                self._width = None if None in widths else sum(width for width in widths if width is not None)
            else:
                self._width = self.size if self.kind == "fixed" else _WIDTHS.get(self.kind)
        return self._width

    @property
    def least(self) -> int:
        """How many bytes each value has at least."""
        if self._least == -1:
            self._least = 0  # of a recursive one
            if self.kind == "record":
                self._least = sum(child.least for child in self.children)
            elif self.kind == "member":
                self._least = self.children[0].least
            else:
                self._least = self.size if self.kind == "fixed" else _LEAST.get(self.kind, 1)
        return self._least


def compile_plan(writer: AvroType, reader: AvroType, kind: spark.DataType, options: AvroOptions) -> Node:
    """Return how messages of a writer become a column of this type, which is the reader's by `spark_type`.

    Raises:
        AvroAnalysisError: AVRO_SCHEMA_INCOMPATIBLE where no message of the writer can be read; AVRO_TOO_MANY_COLUMNS or
            AVRO_TOO_DEEP where the writer's schema expands too far.
    """
    try:
        made = _Compiler(reader, options).node(writer, reader, arrow_type(kind))
        reason = _error_in(made)
    except RecursionError:
        raise too_deep() from None
    if reason:
        raise AvroAnalysisError(
            "AVRO_SCHEMA_INCOMPATIBLE",
            f"Messages of the writer's schema cannot be read with the reader's: {reason}",
            "from_avro",
            "See Avro's rules of schema resolution: give defaults to new fields, and aliases to renamed ones.",
        )
    return made


def _error_in(node: Node) -> str:
    """Return why no message can be read; empty if some can: what is in a union, array or map may never come."""
    if node.kind == "error":
        return node.reason
    if node.kind == "union":
        return node.children[0].reason if len(node.children) == 1 and node.children[0].kind == "error" else ""
    return next(filter(None, map(_error_in, node.children)), "") if node.kind in {"record", "member"} else ""


class _Compiler:
    def __init__(self, reader: AvroType, options: AvroOptions) -> None:
        self._options = options
        self._count = 0
        self._skips: dict[int, Node] = {}
        self._names: dict[str, str] = {}
        """The reader's full names by their aliases."""
        self._fields: dict[str, dict[str, str]] = {}
        """The reader's names of fields by their aliases, for each record."""
        self._find_aliases(reader, set())

    def _find_aliases(self, schema: AvroType, seen: set[int]) -> None:
        if id(schema) in seen:
            return
        seen.add(id(schema))
        self._names |= dict.fromkeys(schema.aliases, schema.name)
        for each in schema.fields:
            self._fields.setdefault(schema.name, {}).update(dict.fromkeys(each.aliases, each.name))
        inner = [*(each.type for each in schema.fields), *schema.branches, *([schema.items] if schema.items else [])]
        for each_type in inner:
            self._find_aliases(each_type, seen)

    def _name(self, writer: AvroType) -> str:
        return self._names.get(writer.name, writer.name)

    def _short_name(self, writer: AvroType) -> str:
        return self._name(writer).rpartition(".")[2]

    def _field_name(self, writer: AvroType, name: str) -> str:
        return self._fields.get(self._name(writer), {}).get(name, name)

    # --- resolution ---------------------------------------------------------------------------------------------

    def node(self, writer: AvroType, reader: AvroType, arrow: pa.DataType) -> Node:
        """Return how a writer's value becomes the reader's, in a column of this type."""
        self._count += 1
        if self._count > _MOST_NODES:  # a union may hold several records, each of which holds the next union
            raise too_many_columns("The writer's schema", "Write by one without as many unions of records.")
        if writer.kind == "union":
            return self._writer_union(writer, reader, arrow)
        if reader.kind == "union":
            return self._reader_union(writer, reader, arrow)
        if writer.kind != reader.kind and (writer.kind, reader.kind) not in _PROMOTIONS:
            return self._error(writer, reader, arrow)
        makers = {
            "fixed": self._fixed,
            "enum": self._enum,
            "array": self._array,
            "map": self._map,
            "record": self._record,
        }
        make = makers.get(writer.kind)
        return Node(writer.kind, arrow, reader) if make is None else make(writer, reader, arrow)

    def _fixed(self, writer: AvroType, reader: AvroType, arrow: pa.DataType) -> Node:
        if self._short_name(writer) != reader.short_name or writer.size != reader.size:
            return self._error(writer, reader, arrow)
        return Node("fixed", arrow, reader, size=writer.size)

    def _array(self, writer: AvroType, reader: AvroType, arrow: pa.DataType) -> Node:
        return Node("array", arrow, reader, item=self.node(_items(writer), _items(reader), arrow.value_type))

    def _map(self, writer: AvroType, reader: AvroType, arrow: pa.DataType) -> Node:
        key = Node("string", pa.string(), AvroType("string"))
        value = self.node(_items(writer), _items(reader), arrow.item_type)
        entry = Node("record", pa.struct([arrow.key_field, arrow.item_field]), children=[key, value])
        entry.outputs = [Output(0), Output(1)]
        return Node("map", arrow, reader, item=entry)

    def _error(self, writer: AvroType, reader: AvroType, arrow: pa.DataType, reason: str = "") -> Node:
        found, wanted = (each.name or each.kind for each in (writer, reader))
        return Node("error", arrow, reason=reason or f"found {found}, expecting {wanted}")

    def _enum(self, writer: AvroType, reader: AvroType, arrow: pa.DataType) -> Node:
        if self._short_name(writer) != reader.short_name:
            return self._error(writer, reader, arrow)
        default = reader.default_symbol if reader.default_symbol in reader.symbols else None
        symbols = tuple(symbol if symbol in reader.symbols else default for symbol in writer.symbols)
        return Node("enum", arrow, reader, symbols=symbols)

    def _record(self, writer: AvroType, reader: AvroType, arrow: pa.DataType) -> Node:
        made = Node("record", arrow, reader)
        columns = {field.name: field.type for field in arrow}
        places: dict[str, int] = {}
        by_name = {each.name: each for each in reader.fields}
        for place, each in enumerate(writer.fields):
            name = self._field_name(writer, each.name)
            ours = by_name.get(name)
            kept = ours is not None and name in columns
            made.children.append(
                self.node(each.type, ours.type, columns[name]) if ours and kept else self._skip(each.type)
            )
            places[name] = place
        for each in reader.fields:
            if each.name not in places and each.default is NO_DEFAULT:
                why = f"found {writer.name}, expecting {reader.name}, missing required field {each.name}"
                return self._error(writer, reader, arrow, why)
            if each.name in columns:
                source = places.get(each.name, -1)
                default = None if source >= 0 else self._default(each, columns[each.name])
                made.outputs.append(Output(source, default))
        return made

    def _writer_union(self, writer: AvroType, reader: AvroType, arrow: pa.DataType) -> Node:
        same = _equivalent(writer, reader, set())
        if reader.kind != "union":
            children = [self.node(branch, reader, arrow) for branch in writer.branches]
            return Node("union", arrow, reader, children=children)
        made = Node("union", arrow, reader, members=None if self._is_single(reader) else [])
        for place, branch in enumerate(writer.branches):
            matched = place if same else self._match(branch, reader)
            if matched < 0:
                child, member = self._error(branch, reader, arrow), -1
            else:
                child, member = self._branch(branch, reader, matched, arrow)
            made.children.append(child)
            if made.members is not None:
                made.members.append(member)
        return made

    def _reader_union(self, writer: AvroType, reader: AvroType, arrow: pa.DataType) -> Node:
        matched = self._match(writer, reader)
        if matched < 0:
            return self._error(writer, reader, arrow)
        child, member = self._branch(writer, reader, matched, arrow)
        if self._is_single(reader):
            return child
        return Node("member", arrow, reader, children=[child], members=[member])

    @staticmethod
    def _is_single(union: AvroType) -> bool:
        """Return whether a union is one value in Spark, not a struct of members."""
        kinds = sorted(branch.kind for branch in non_null(union))
        return len(kinds) == 1 or kinds in (["int", "long"], ["double", "float"])

    def _branch(self, writer: AvroType, reader: AvroType, matched: int, arrow: pa.DataType) -> tuple[Node, int]:
        """Return how a value becomes the branch of the reader's union, and which member that is."""
        branch = reader.branches[matched]
        if branch.kind == "null":
            return Node("null", None), -1
        if self._is_single(reader):
            plain = AvroType(branch.kind) if len(non_null(reader)) > 1 else branch  # int of int and long, say
            return self.node(writer, plain, arrow), 0
        place = non_null(reader).index(branch)
        name = member_name(branch, place, self._options)
        index = arrow.get_field_index(name)
        if index < 0:
            return self._skip(writer), -2
        return self.node(writer, branch, arrow.field(index).type), index

    def _match(self, writer: AvroType, reader: AvroType) -> int:
        """Return the branch of a reader's union that takes a writer's type; -1 where none does."""
        structure = -1
        for place, branch in enumerate(reader.branches):
            if branch.kind != writer.kind:
                continue
            if not branch.name or self._name(writer) == branch.name:
                return place
            better = structure < 0 or self._short_name(writer) == branch.short_name
            if branch.kind == "record" and better and self._fits(writer, branch):
                structure = place
        if structure >= 0:
            return structure
        kinds = [branch.kind for branch in reader.branches]
        return next((place for place, kind in enumerate(kinds) if (writer.kind, kind) in _PROMOTIONS), -1)

    def _fits(self, writer: AvroType, reader: AvroType) -> bool:
        """Return whether the fields of a record can be the reader's, as far as their own types say."""
        theirs = {self._field_name(writer, each.name): each.type for each in writer.fields}
        for each in reader.fields:
            if each.name not in theirs:
                if each.default is NO_DEFAULT:
                    return False
                continue
            pair = theirs[each.name].kind, each.type.kind
            if "union" not in pair and pair[0] != pair[1] and pair not in _PROMOTIONS:
                return False
        return True

    def _skip(self, writer: AvroType) -> Node:
        """Return how a value is read that nobody wants; one node for a recursive record."""
        if writer.kind == "record" and id(writer) in self._skips:
            return self._skips[id(writer)]
        made = Node(writer.kind, size=writer.size, symbols=writer.symbols)
        if writer.kind == "record":
            self._skips[id(writer)] = made
        if writer.items is not None:
            made.item = self._skip(writer.items)
            if writer.kind == "map":
                made.item = Node("record", children=[Node("string"), made.item])
        made.children = [self._skip(each.type) for each in writer.fields] or [
            self._skip(branch) for branch in writer.branches
        ]
        return made

    # --- defaults -----------------------------------------------------------------------------------------------

    def _default(self, each: AvroField, arrow: pa.DataType) -> Any:
        try:
            return self._value(each.type, each.default, arrow)
        except (TypeError, ValueError, KeyError, AttributeError, BadRowError) as error:
            raise AvroAnalysisError(
                "AVRO_SCHEMA_INCOMPATIBLE",
                f"The default of the field {each.name!r} is no value of its type ({type(error).__name__})",
                "from_avro",
                "Correct the default in the reader's schema.",
            ) from None

    def _value(self, schema: AvroType, value: Any, arrow: pa.DataType) -> Any:
        """Return a default as the row decoder gives values: see `decoder.rows`."""
        makers = {"union": self._union_default, "record": self._record_default, "map": self._map_default}
        if schema.kind in makers:
            return makers[schema.kind](schema, value, arrow)
        if schema.kind == "array":
            return [self._value(_items(schema), item, arrow.value_type) for item in value]
        return _scalar_default(schema, value, arrow)

    def _record_default(self, schema: AvroType, value: Any, arrow: pa.DataType) -> dict[str, Any]:
        fields = {each.name: each for each in schema.fields}
        given = {name: value.get(name, each.default) for name, each in fields.items()}
        return {part.name: self._value(fields[part.name].type, given[part.name], part.type) for part in arrow}

    def _map_default(self, schema: AvroType, value: Any, arrow: pa.DataType) -> list[tuple[bytes, Any]]:
        return [(key.encode(), self._value(_items(schema), item, arrow.item_type)) for key, item in value.items()]

    def _union_default(self, schema: AvroType, value: Any, arrow: pa.DataType) -> Any:
        """Return a default of a union: its first branch that takes it."""
        for branch in schema.branches:
            if (branch.kind == "null") != (value is None):
                continue
            try:
                if branch.kind == "null":
                    return None
                if self._is_single(schema):
                    return self._value(branch, value, arrow)
                name = member_name(branch, non_null(schema).index(branch), self._options)
                return {part.name: self._value(branch, value, part.type) for part in arrow if part.name == name}
            except (TypeError, ValueError, KeyError, AttributeError, BadRowError):
                continue
        raise ValueError


def _scalar_default(schema: AvroType, value: Any, arrow: pa.DataType) -> Any:
    if schema.kind == "null":
        return None
    if schema.kind in {"string", "enum"}:
        return value.encode()
    if schema.kind in {"bytes", "fixed"}:
        value = value.encode("latin-1")
    elif isinstance(value, str) or value is None:
        raise TypeError
    elif schema.kind in {"float", "double"}:
        value = float(value)
    convert = converter(schema.kind, schema, arrow, strict=False)
    return value if convert is None else convert(value)


def _items(schema: AvroType) -> AvroType:
    assert schema.items is not None  # noqa: S101 - of an array or a map
    return schema.items


def _equivalent(writer: AvroType, reader: AvroType, seen: set[tuple[int, int]]) -> bool:
    """Return whether two schemas are the same but for what their names are in: Java's ``unionEquiv``."""
    if writer is reader or (id(writer), id(reader)) in seen:
        return True
    if writer.kind != reader.kind or (writer.name and writer.short_name != reader.short_name):
        return False
    seen.add((id(writer), id(reader)))
    if (writer.size, writer.symbols) != (reader.size, reader.symbols):
        return False
    if [each.name for each in writer.fields] != [each.name for each in reader.fields]:
        return False
    ours, theirs = ([*each.branches, *(inner.type for inner in each.fields)] for each in (writer, reader))
    if writer.items is not None and reader.items is not None:
        ours, theirs = [writer.items], [reader.items]
    return len(ours) == len(theirs) and all(_equivalent(*pair, seen) for pair in zip(ours, theirs, strict=True))
