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
from connectors.avro.options import AvroOptions, LogicalMismatch
from connectors.avro.schema.aliases import apply_aliases
from connectors.avro.schema.defaults import Defaults
from connectors.avro.schema.parser import NO_DEFAULT, AvroType, alike
from connectors.avro.schema.types import (
    arrow_type,
    is_single,
    items_of,
    member_name,
    non_null,
    too_deep,
    too_many_columns,
)
from connectors.core.functions.columns import MAX_COLUMNS

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
_MOST_COMPARED: Final = 1_000_000  # fields of records that are compared without a common name
_LONGEST: Final = 2**40  # no message is so long
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
        names: of the fields of a record in the writer's order.
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
    names: tuple[str, ...] = ()
    _width: int | None = -1
    _least: int = -1

    @property
    def width(self) -> int | None:
        """How many bytes each value has; None where they differ."""
        if self._width == -1:
            self._width = None  # of a recursive one
            if self.kind == "record":
                widths = [child.width for child in self.children]
                total = sum(width for width in widths if width is not None)
                self._width = None if None in widths else min(total, _LONGEST)
            else:
                self._width = self.size if self.kind == "fixed" else _WIDTHS.get(self.kind)
        return self._width

    @property
    def least(self) -> int:
        """How many bytes each value has at least."""
        if self._least == -1:
            self._least = 0  # of a recursive one
            if self.kind == "record":
                self._least = min(sum(child.least for child in self.children), _LONGEST)
            elif self.kind == "member":
                self._least = self.children[0].least
            else:
                self._least = self.size if self.kind == "fixed" else _LEAST.get(self.kind, 1)
        return self._least


def compile_plan(writer: AvroType, reader: AvroType, kind: spark.DataType, options: AvroOptions) -> Node:
    """Return how messages of a writer become a column of this type, which is the reader's by `spark_type`.

    Raises AvroAnalysisError where no message of the writer can be read, or its schema expands too far.
    """
    try:
        compiler = _Compiler(options)
        made = compiler.node(apply_aliases(writer, reader), reader, arrow_type(kind))
        reason = _error_in(made, set())
    except RecursionError:
        raise too_deep() from None
    action = "Give defaults to new fields, and aliases to renamed ones. See Avro's rules of schema resolution."
    if compiler.mismatch and not reason:
        reason = compiler.mismatch
        action = "Declare the writer's logical type and convert the column, or set on.logical.mismatch to ignore."
    if reason:
        what = f"Messages of the writer's schema cannot be read with the reader's schema: {reason}"
        raise AvroAnalysisError("AVRO_SCHEMA_INCOMPATIBLE", what, "from_avro", action)
    return made


def _error_in(node: Node, seen: set[int]) -> str:
    """Return why no message can be read; empty if some can: what is in a union, array or map may never come."""
    if id(node) in seen:
        return ""  # a node that several places share
    seen.add(id(node))
    if node.kind == "error":
        return node.reason
    if node.kind == "union":
        return node.children[0].reason if len(node.children) == 1 and node.children[0].kind == "error" else ""
    inner = node.children if node.kind in {"record", "member"} else []
    return next(filter(None, (_error_in(child, seen) for child in inner)), "")


class _Compiler:
    def __init__(self, options: AvroOptions) -> None:
        self._options = options
        self._count = 0
        self._skips: dict[int, Node] = {}
        self._same: dict[tuple[int, int], bool] = {}
        self._fitting: dict[tuple[int, int], bool] = {}
        self._compared = 0
        self._branches: dict[int, _Branches] = {}
        self._defaults = Defaults(options)
        self._path: list[str] = []
        self.mismatch = ""
        """Of values whose number or bytes mean one thing to the writer and another one to the reader, the first."""

    # --- resolution ---------------------------------------------------------------------------------------------

    def node(self, writer: AvroType, reader: AvroType, arrow: pa.DataType) -> Node:
        """Return how a writer's value becomes the reader's, in a column of this type."""
        self._add(1)
        if writer.kind == "union":
            return self._writer_union(writer, reader, arrow)
        if reader.kind == "union":
            return self._reader_union(writer, reader, arrow)
        if not _can_be(writer.kind, reader.kind):
            return self._error(writer, reader, arrow)
        self._check_meaning(writer, reader)
        makers = {
            "fixed": self._fixed,
            "enum": self._enum,
            "array": self._array,
            "map": self._map,
            "record": self._record,
        }
        make = makers.get(writer.kind)
        return Node(writer.kind, arrow, reader) if make is None else make(writer, reader, arrow)

    def _add(self, count: int) -> None:
        self._count += count
        if self._count > _MOST_NODES:  # a union may hold several records, each of which holds the next union
            raise too_many_columns("The writer's schema")

    def _fixed(self, writer: AvroType, reader: AvroType, arrow: pa.DataType) -> Node:
        if writer.short_name != reader.short_name or writer.size != reader.size:
            return self._error(writer, reader, arrow)
        return Node("fixed", arrow, reader, size=writer.size)

    def _array(self, writer: AvroType, reader: AvroType, arrow: pa.DataType) -> Node:
        return Node("array", arrow, reader, item=self.node(items_of(writer), items_of(reader), arrow.value_type))

    def _map(self, writer: AvroType, reader: AvroType, arrow: pa.DataType) -> Node:
        key = Node("string", pa.string(), AvroType("string"))
        value = self.node(items_of(writer), items_of(reader), arrow.item_type)
        entry = Node("record", pa.struct([arrow.key_field, arrow.item_field]), children=[key, value])
        entry.outputs = [Output(0), Output(1)]
        return Node("map", arrow, reader, item=entry)

    def _error(self, writer: AvroType, reader: AvroType, arrow: pa.DataType, reason: str = "") -> Node:
        reason = reason or f"found {writer.name or writer.kind}, expecting {reader.name or reader.kind}"
        return Node("error", arrow, reason=reason)

    def _enum(self, writer: AvroType, reader: AvroType, arrow: pa.DataType) -> Node:
        if writer.short_name != reader.short_name:
            return self._error(writer, reader, arrow)
        ours = set(reader.symbols)
        default = reader.default_symbol if reader.default_symbol in ours else None
        symbols = tuple(symbol if symbol in ours else default for symbol in writer.symbols)
        return Node("enum", arrow, reader, symbols=symbols)

    def _record(self, writer: AvroType, reader: AvroType, arrow: pa.DataType) -> Node:
        made = Node("record", arrow, reader, names=tuple(written.name for written in writer.fields))
        columns = {column.name: column.type for column in arrow}
        places = {written.name: place for place, written in enumerate(writer.fields)}
        by_name = {wanted.name: wanted for wanted in reader.fields}
        for written in writer.fields:
            self._path.append(written.name)
            if written.name in by_name and written.name in columns:
                made.children.append(self.node(written.type, by_name[written.name].type, columns[written.name]))
            else:
                made.children.append(self._skip(written.type))
            self._path.pop()
        for wanted in reader.fields:
            if wanted.name not in places and wanted.default is NO_DEFAULT:
                why = f"found {writer.name}, expecting {reader.name}, missing required field {wanted.name}"
                return self._error(writer, reader, arrow, why)
            if wanted.name in columns:
                source = places.get(wanted.name, -1)
                default = None if source >= 0 else self._defaults.of(wanted, reader.name, columns[wanted.name])
                made.outputs.append(Output(source, default))
        return made

    def _writer_union(self, writer: AvroType, reader: AvroType, arrow: pa.DataType) -> Node:
        same = self._equivalent(writer, reader)
        if reader.kind != "union":
            children = [self.node(branch, reader, arrow) for branch in writer.branches]
            return Node("union", arrow, reader, children=children)
        made = Node("union", arrow, reader, members=None if is_single(reader) else [])
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
        if is_single(reader):
            return child
        return Node("member", arrow, reader, children=[child], members=[member])

    def _branch(self, writer: AvroType, reader: AvroType, matched: int, arrow: pa.DataType) -> tuple[Node, int]:
        """Return how a value becomes the branch of the reader's union, and which member that is."""
        branch = reader.branches[matched]
        if branch.kind == "null":
            return Node("null", None), -1
        if is_single(reader):
            plain = AvroType(branch.kind) if len(non_null(reader)) > 1 else branch  # int of int and long, say
            return self.node(writer, plain, arrow), 0
        name = member_name(branch, self._branches_of(reader).places[id(branch)], self._options)
        index = arrow.get_field_index(name)
        if index < 0:
            return self._skip(writer), -2
        return self.node(writer, branch, arrow.field(index).type), index

    def _match(self, writer: AvroType, reader: AvroType) -> int:
        """Return the branch of a reader's union that takes a writer's type; -1 where none does."""
        branches = self._branches_of(reader)
        if writer.name:
            place = branches.by_name.get((writer.kind, writer.name), -1)
            return self._by_structure(writer, reader) if place < 0 and writer.kind == "record" else place
        place = branches.by_kind.get(writer.kind, -1)
        if place >= 0:
            return place
        return min(
            (place for kind, place in branches.by_kind.items() if (writer.kind, kind) in _PROMOTIONS), default=-1
        )

    def _branches_of(self, union: AvroType) -> _Branches:
        if id(union) not in self._branches:
            self._branches[id(union)] = _Branches(union)
        return self._branches[id(union)]

    def _by_structure(self, writer: AvroType, reader: AvroType) -> int:
        """Return the first record of a reader's union that a record fits, or the last one of its short name."""
        match = -1
        for place, branch in enumerate(reader.branches):
            if branch.kind != "record" or not (match < 0 or writer.short_name == branch.short_name):
                continue
            if self._fits(writer, branch):
                match = place
        return match

    def _fits(self, writer: AvroType, reader: AvroType) -> bool:
        """Return whether a record can be read as another one, as far as Java's ``hasMatchError`` looks."""
        pair = id(writer), id(reader)
        if pair not in self._fitting:
            self._compared += 1 + len(writer.fields) + len(reader.fields)
            if self._compared > _MOST_COMPARED:
                what = "Two unions have too many records with different names to compare field by field"
                raise AvroAnalysisError("AVRO_SCHEMA_INCOMPATIBLE", what, "from_avro", "Give them the same names.")
            theirs = {written.name: written.type for written in writer.fields}
            self._fitting[pair] = all(
                not self._mismatches(theirs[wanted.name], wanted.type)
                if wanted.name in theirs
                else wanted.default is not NO_DEFAULT
                for wanted in reader.fields
            )
        return self._fitting[pair]

    def _mismatches(self, writer: AvroType, reader: AvroType) -> bool:
        """Return whether no value of a field can be read, without a look at what is in it."""
        if writer.kind == "union":
            return False
        if reader.kind == "union":
            return self._match(writer, reader) < 0
        if not _can_be(writer.kind, reader.kind):
            return True
        if writer.kind == "record":
            theirs = {written.name for written in writer.fields}
            return any(wanted.name not in theirs and wanted.default is NO_DEFAULT for wanted in reader.fields)
        named = writer.kind in {"enum", "fixed"}
        return named and (writer.short_name != reader.short_name or writer.size != reader.size)

    def _equivalent(self, writer: AvroType, reader: AvroType) -> bool:
        """Return whether two schemas are the same but for namespaces and logical types: Java's ``unionEquiv``."""
        pair = id(writer), id(reader)
        if pair not in self._same:
            self._same[pair] = alike(writer, reader, _own, {})
        return self._same[pair]

    def _check_meaning(self, writer: AvroType, reader: AvroType) -> None:
        """Note where a reader takes a number, bytes or a text of one logical type for a value of another one."""
        theirs, ours = _meaning(writer), _meaning(reader)
        is_text = "string" in {writer.kind, reader.kind} and writer.kind != reader.kind
        differ = theirs != ours if theirs and ours else is_text and "decimal" in {writer.logical, reader.logical}
        ignored = self._options.on_logical_mismatch is LogicalMismatch.IGNORE
        if differ and not (self.mismatch or ignored):
            where = f"the field {'.'.join(self._path)}: " if self._path else ""
            self.mismatch = f"{where}found {_described(writer)}, expecting {_described(reader)}"

    def _skip(self, writer: AvroType) -> Node:
        """Return how a value is read that nobody wants; one node for a recursive record."""
        if writer.kind == "record" and id(writer) in self._skips:
            return self._skips[id(writer)]
        names = tuple(part.name for part in writer.fields)
        made = Node(writer.kind, size=writer.size, symbols=writer.symbols, names=names)
        if writer.kind == "record":
            self._skips[id(writer)] = made
        if writer.items is not None:
            made.item = self._skip(writer.items)
            if writer.kind == "map":
                made.item = Node("record", children=[Node("string"), made.item])
        made.children = [self._skip(part.type) for part in writer.fields] or [
            self._skip(branch) for branch in writer.branches
        ]
        made.width, made.least  # noqa: B018 - from the leaves up, which needs no deep stack
        return made


def _can_be(writer: str, reader: str) -> bool:
    return writer == reader or (writer, reader) in _PROMOTIONS


class _Branches:
    """The branches of a reader's union, by what they are looked for."""

    def __init__(self, union: AvroType) -> None:
        self.places = {id(branch): place for place, branch in enumerate(non_null(union))}
        self.by_kind = {branch.kind: place for place, branch in enumerate(union.branches) if not branch.name}
        self.by_name = {(branch.kind, branch.name): place for place, branch in enumerate(union.branches) if branch.name}


def _own(schema: AvroType) -> tuple[Any, ...]:
    short = schema.short_name if schema.name else ""
    return schema.kind, short, schema.size, schema.symbols, len(schema.branches), [part.name for part in schema.fields]


def _meaning(schema: AvroType) -> tuple[str, int] | None:
    """Return what a number, bytes or a text stand for; None where the schema does not say."""
    if schema.logical:
        return schema.logical, schema.scale
    if schema.catalyst.startswith("interval"):
        return ("interval", 0)
    return None


def _described(schema: AvroType) -> str:
    if schema.logical == "decimal":
        return f"decimal({schema.precision}, {schema.scale})"
    return schema.logical or schema.catalyst or schema.kind
