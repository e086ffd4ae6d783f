"""Decodes a batch field by field: each field of all rows at once, by numpy.

Every row has a place, and what is read moves it on. A row that cannot be read stays at its end, where each further read
fails again, so that it needs no attention; and no row touches another one's bytes. Texts are taken out of the batch by
Arrow, as every second one of a column whose offsets are the beginnings and ends: places only grow within a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

from connectors.avro.decoder.arrays import Items, members, numpy_type, primitive, repeated, scattered, texts
from connectors.avro.decoder.places import (
    EARLY,
    EMPTY_ITEMS,
    INT_BYTES,
    LEVELS,
    LONG_BYTES,
    PADDING,
    Places,
    Walker,
    Words,
    read_varints,
    unzigzag,
)
from connectors.avro.schema.leaf import FIRST_DAY, FIRST_MICROS, MICROS, decimal_of, is_checked_time, is_millis
from connectors.avro.schema.parser import AvroType
from connectors.avro.schema.plan import Node
from connectors.core.functions.bad_rows import BadRowError
from connectors.core.functions.columns import struct_array

_FEW_ROWS: Final = 4  # with so few rows left in long lists, their items are found one by one, and read at once
_MANY_ITEMS: Final = 32
_MANY_BYTES: Final = 1000  # of records that are dropped: reading that many values of each row in turn takes longer
_MASK: Final = np.uint64(0xFFFFFFFF)
_LARGEST_MILLIS: Final = (2**63 - 1) // MICROS
Mask = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Batch:
    """The bytes of a batch, padded, which rows cannot be read, and how many items of no byte each has had so far.

    Errors have the reason, and the place of the value that is bad.
    """

    data: npt.NDArray[np.uint8]
    words: Words
    dead: Mask
    empty_items: Places
    errors: dict[int, tuple[str, int]] = field(default_factory=dict)


@dataclass(slots=True)
class Cursor:
    """Rows that are read together, in their order: their numbers in the batch, their places and their ends.

    `begin` is where the value begins that is read, for errors.
    """

    rows: Places
    place: Places
    end: Places
    begin: Places | None = None

    def pick(self, which: Places) -> Cursor:
        return Cursor(self.rows[which], self.place[which], self.end[which])


class ColumnDecoder:
    """Decodes by a plan. `strict` refuses dates and timestamps of before the calendars agree."""

    def __init__(self, plan: Node, *, strict: bool) -> None:
        self._plan, self._strict = plan, strict
        self.walker = Walker(plan)
        self._readers: dict[str, Callable[[Batch, Node, Cursor, int], pa.Array | None]] = {
            "null": self._null,
            "boolean": self._boolean,
            "int": self._number,
            "long": self._number,
            "float": self._float,
            "double": self._float,
            "bytes": self._bytes,
            "string": self._bytes,
            "fixed": self._bytes,
            "enum": self._enum,
            "array": self._list,
            "map": self._list,
            "record": self._record,
            "union": self._union,
            "member": self._member,
            "error": self._error,
        }

    def decode(self, messages: pa.BinaryArray) -> tuple[pa.Array, dict[int, tuple[str, int]]]:
        """Return a value for each message, which may not be NULL, and why some cannot be read: those have any value.

        The reason comes with a place in the message, which is in the value that is bad unless the message ends early.
        """
        bounds = np.frombuffer(messages.buffers()[1], np.int32)[messages.offset : messages.offset + len(messages) + 1]
        begin, end = int(bounds[0]), int(bounds[-1])
        data = np.zeros(end - begin + PADDING, np.uint8)
        if end > begin:
            data[: end - begin] = np.frombuffer(messages.buffers()[2], np.uint8)[begin:end]
        words = np.ndarray(len(data) - 7, np.dtype("<u8"), data, strides=(1,))
        places = bounds.astype(np.int64) - begin
        batch = Batch(data, words, np.zeros(len(messages), np.bool_), np.zeros(len(messages), np.int64))
        cursor = Cursor(np.arange(len(messages)), places[:-1].copy(), places[1:])
        values = self._read(batch, self._plan, cursor, 0)
        return values, {row: (why, place - int(places[row])) for row, (why, place) in batch.errors.items()}

    def _read(self, batch: Batch, node: Node, cursor: Cursor, level: int) -> pa.Array | None:
        """Read a value of each row of a cursor; None where nothing is made of it."""
        return self._readers[node.kind](batch, node, cursor, level)

    # --- numbers ------------------------------------------------------------------------------------------------

    def _raw(self, batch: Batch, cursor: Cursor, most_bytes: int = LONG_BYTES) -> Words:
        cursor.begin = cursor.place
        raw, after, endless = read_varints(batch.data, batch.words, cursor.place)
        bad = after > cursor.end
        if most_bytes == INT_BYTES:
            long = after - cursor.place > INT_BYTES
            if long.any():
                endless = long
        if endless is not None and endless.any():
            whole = cursor.place + most_bytes <= cursor.end
            self._fail(batch, cursor, endless & whole, f"has a number of more than {most_bytes} bytes")
            bad |= endless
        if bad.any():
            self._fail(batch, cursor, bad, EARLY)
            raw[bad] = 0
            after[bad] = cursor.end[bad]
        cursor.place = after
        return raw & _MASK if most_bytes == INT_BYTES and len(raw) and raw.max() > _MASK else raw

    @staticmethod
    def _fail(batch: Batch, cursor: Cursor, bad: Mask, reason: str, numbers: Any = None) -> None:
        """Note that rows cannot be read, unless that is known, and put them to their ends.

        The reason has the row's number where it has braces.
        """
        which = np.flatnonzero(bad)
        rows = cursor.rows[which]
        fresh = ~batch.dead[rows]
        if fresh.any():
            first = which[fresh][::-1]  # so that of several values of a row the first stays
            places = (cursor.place if cursor.begin is None else cursor.begin)[first].tolist()
            reasons = [reason] * len(first)
            if numbers is not None:
                reasons = [reason.format(number) for number in numbers[first].tolist()]
            batch.errors |= dict(zip(cursor.rows[first].tolist(), zip(reasons, places, strict=True), strict=True))
            batch.dead[rows] = True
        cursor.place[which] = cursor.end[which]

    def _number(self, batch: Batch, node: Node, cursor: Cursor, level: int) -> pa.Array | None:  # noqa: ARG002
        values = unzigzag(self._raw(batch, cursor, INT_BYTES if node.kind == "int" else LONG_BYTES))
        if node.arrow is None or node.reader is None:
            return None
        return self._number_column(batch, node.reader, node.arrow, cursor, values)

    def _number_column(
        self, batch: Batch, reader: AvroType, arrow: pa.DataType, cursor: Cursor, values: Places
    ) -> pa.Array:
        if is_millis(reader):
            bad = (values > _LARGEST_MILLIS) | (values < -_LARGEST_MILLIS - 1)
            if bad.any():
                self._fail(batch, cursor, bad, "long overflow: a timestamp of {} milliseconds", values)
                values[bad] = 0
            values = values * MICROS
        if self._strict and is_checked_time(reader):
            bad = values < (FIRST_DAY if reader.logical == "date" else FIRST_MICROS)
            why = (
                f"has a {reader.logical} from before the Julian and Gregorian calendars agree, and "
                f"datetimeRebaseMode=EXCEPTION"
            )
            self._fail(batch, cursor, bad, why)
        if reader.kind == "float":
            values = values.astype(np.float32)
        return primitive(values.astype(numpy_type(arrow)), arrow)

    def _float(self, batch: Batch, node: Node, cursor: Cursor, level: int) -> pa.Array | None:  # noqa: ARG002
        size = 4 if node.kind == "float" else 8
        place = cursor.place
        self._step(batch, cursor, size)
        if node.arrow is None:
            return None
        words = batch.words[np.minimum(place, len(batch.words) - 1)]
        values = words.astype(np.uint32).view(np.float32) if size == 4 else words.view(np.float64)  # noqa: PLR2004
        return primitive(values.astype(numpy_type(node.arrow), copy=False), node.arrow)

    def _boolean(self, batch: Batch, node: Node, cursor: Cursor, level: int) -> pa.Array | None:  # noqa: ARG002
        values = batch.data[cursor.place] == 1
        self._step(batch, cursor, 1)
        if node.arrow is None:
            return None
        bits = pa.py_buffer(np.packbits(values, bitorder="little").tobytes())
        return pa.Array.from_buffers(node.arrow, len(values), [None, bits])

    def _step(self, batch: Batch, cursor: Cursor, size: int | Places) -> None:
        cursor.begin = cursor.place
        after = cursor.place + size
        bad = after > cursor.end
        cursor.place = after
        if bad.any():
            self._fail(batch, cursor, bad, EARLY)

    @staticmethod
    def _null(batch: Batch, node: Node, cursor: Cursor, level: int) -> pa.Array | None:  # noqa: ARG004
        return None if node.arrow is None else pa.nulls(len(cursor.rows), node.arrow)

    def _error(self, batch: Batch, node: Node, cursor: Cursor, level: int) -> pa.Array | None:  # noqa: ARG002
        cursor.begin = None
        self._fail(batch, cursor, np.ones(len(cursor.rows), np.bool_), f"cannot be read: {node.reason}")
        return None if node.arrow is None else pa.nulls(len(cursor.rows), node.arrow)

    # --- texts --------------------------------------------------------------------------------------------------

    def _bytes(self, batch: Batch, node: Node, cursor: Cursor, level: int) -> pa.Array | None:  # noqa: ARG002
        if node.kind == "fixed":
            lengths = np.full(len(cursor.rows), node.size, np.int64)
            cursor.begin = cursor.place
        else:
            lengths = unzigzag(self._raw(batch, cursor))
            bad = lengths < 0
            if node.arrow is None:
                lengths[bad] = 0  # as in Java
            elif bad.any():
                self._fail(batch, cursor, bad, "has a length of {}", lengths)
                lengths[bad] = 0
        bad = lengths > cursor.end - cursor.place
        if bad.any():
            self._fail(batch, cursor, bad, EARLY)
            lengths[bad] = 0
        begin = cursor.place
        cursor.place = begin + lengths
        if node.arrow is None:
            return None
        values = texts(batch.data, begin, cursor.place, pa.string() if kinds.is_string(node.arrow) else pa.binary())
        return self._decimals(batch, node, cursor, values) if kinds.is_decimal(node.arrow) else values

    def _decimals(self, batch: Batch, node: Node, cursor: Cursor, numbers: pa.Array) -> pa.Array:
        assert node.reader is not None  # noqa: S101 - where there is a column
        values: list[Any] = []
        bad = np.zeros(len(numbers), np.bool_)
        reasons: dict[str, list[int]] = {}
        for place, data in enumerate(numbers.to_pylist()):
            try:
                values.append(decimal_of(data, node.reader.precision, node.reader.scale))
            except BadRowError as error:
                values.append(0)
                reasons.setdefault(str(error), []).append(place)
        for reason, which in reasons.items():
            bad[:] = False
            bad[which] = True
            self._fail(batch, cursor, bad, reason)
        return pa.array(values, node.arrow)

    def _enum(self, batch: Batch, node: Node, cursor: Cursor, level: int) -> pa.Array | None:  # noqa: ARG002
        index = unzigzag(self._raw(batch, cursor, INT_BYTES))
        if node.arrow is None:
            return None  # as in Java, which symbol it is does not matter
        bad = (index < 0) | (index >= len(node.symbols))
        if bad.any():
            self._fail(batch, cursor, bad, f"has the symbol {{}} of an enum of {len(node.symbols)}", index)
            index[bad] = 0
        unknown = np.array([symbol is None for symbol in node.symbols])
        if unknown.any():
            bad = unknown[index]
            self._fail(batch, cursor, bad, "has the symbol {} of an enum, which the reader's does not have", index)
        if not node.symbols:
            return pa.array([""] * len(index), pa.string())
        return pa.array([symbol or "" for symbol in node.symbols], pa.string()).take(pa.array(index))

    # --- what holds others --------------------------------------------------------------------------------------

    def _record(self, batch: Batch, node: Node, cursor: Cursor, level: int) -> pa.Array | None:
        if level > LEVELS:
            why = f"is nested more than {LEVELS} levels deep"
            cursor.begin = None
            self._fail(batch, cursor, np.ones(len(cursor.rows), np.bool_), why)
            return None if node.arrow is None else pa.nulls(len(cursor.rows), node.arrow)
        if node.arrow is None:
            self._skip(batch, node, cursor, level)
            return None
        children = [self._read(batch, child, cursor, level + 1) for child in node.children]
        columns = [
            children[output.source] if output.source >= 0 else repeated(output.default, part.type, len(cursor.rows))
            for part, output in zip(node.arrow, node.outputs, strict=True)
        ]
        return struct_array(node.arrow, columns, len(cursor.rows))

    def _skip(self, batch: Batch, node: Node, cursor: Cursor, level: int) -> None:
        """Pass over records. They can hold others without number, so that bytes bound the work, not the schema."""
        bad = node.least > cursor.end - cursor.place
        if bad.any():
            cursor.begin = cursor.end
            self._fail(batch, cursor, bad, EARLY)
        if node.width is not None:
            self._step(batch, cursor, node.width)
        elif node.least > _MANY_BYTES:
            alive = np.flatnonzero(~batch.dead[cursor.rows]).tolist()
            self._end(batch, cursor, {which: self._walk(batch, node, cursor, which, 1)[1] for which in alive})
        else:
            for child in node.children:
                self._read(batch, child, cursor, level + 1)

    def _union(self, batch: Batch, node: Node, cursor: Cursor, level: int) -> pa.Array | None:
        index = unzigzag(self._raw(batch, cursor, INT_BYTES))
        bad = (index < 0) | (index >= len(node.children))
        if bad.any():
            self._fail(batch, cursor, bad, f"has the branch {{}} of a union of {len(node.children)}", index)
        if batch.errors:
            index[batch.dead[cursor.rows]] = -1
        parts: list[tuple[int, Places, pa.Array]] = []
        for branch, child in enumerate(node.children):
            which = np.flatnonzero(index == branch)
            if len(which) == 0 or (child.kind == "null" and node.members is None):
                continue
            part = cursor.pick(which)
            column = self._read(batch, child, part, level)
            cursor.place[which] = part.place
            if node.arrow is not None:
                parts.append((branch, which, column))
        if node.arrow is None:
            return None
        if node.members is None:
            return scattered([(which, column) for _, which, column in parts], node.arrow, len(index))
        chosen = [(node.members[branch], which, column) for branch, which, column in parts]
        return members(node.arrow, chosen, len(index))

    def _member(self, batch: Batch, node: Node, cursor: Cursor, level: int) -> pa.Array | None:
        column = self._read(batch, node.children[0], cursor, level)
        assert node.members is not None  # noqa: S101 - that is what it is
        return members(node.arrow, [(node.members[0], np.arange(len(cursor.rows)), column)], len(cursor.rows))

    # --- lists --------------------------------------------------------------------------------------------------

    def _list(self, batch: Batch, node: Node, cursor: Cursor, level: int) -> pa.Array | None:
        """Read arrays and maps, block by block; in a block the first item of each row, then the second, and so on."""
        assert node.item is not None  # noqa: S101 - of an array or a map
        items = Items(node.item, [], [])
        pending = np.arange(len(cursor.rows))
        while len(pending):
            block = cursor.pick(pending)
            counts = self._counts(batch, node, block)
            cursor.place[pending] = block.place
            pending, counts = pending[counts > 0], counts[counts > 0]
            if node.arrow is None and not node.item.least:
                continue  # there is nothing to read, however many there are
            self._block(batch, items, cursor, (pending, counts.copy()), level + 1)
        return None if node.arrow is None else items.column(node, len(cursor.rows))

    def _counts(self, batch: Batch, node: Node, cursor: Cursor) -> Places:
        """Read how many items come next; 0 at the end, and where there is no room for them."""
        assert node.item is not None  # noqa: S101 - of an array or a map
        item, counts = node.item, unzigzag(self._raw(batch, cursor))
        while len(sized := np.flatnonzero(counts < 0)):
            part = cursor.pick(sized)
            sizes = np.maximum(unzigzag(self._raw(batch, part)), 0)  # how many bytes the items have
            if node.arrow is not None:
                cursor.place[sized], counts[sized] = part.place, -counts[sized]
                break
            bad = sizes > part.end - part.place
            part.place = part.place + np.where(bad, 0, sizes)
            self._fail(batch, part, bad, EARLY)
            counts[sized] = unzigzag(self._raw(batch, part))  # of the next block
            cursor.place[sized] = part.place
        if item.least:
            bad = (counts > (cursor.end - cursor.place) // item.least) | (counts < 0)
        else:
            np.add.at(batch.empty_items, cursor.rows, np.clip(counts, 0, EMPTY_ITEMS + 1))
            bad = (batch.empty_items[cursor.rows] > EMPTY_ITEMS) | (counts < 0)
        if bad.any():
            self._fail(batch, cursor, bad, "has a list of {} items, which do not fit", counts.view(np.uint64))
        if batch.errors:
            counts[batch.dead[cursor.rows]] = 0
        return counts

    def _block(self, batch: Batch, items: Items, cursor: Cursor, block: tuple[Places, Places], level: int) -> None:
        active, left = block
        if items.node.width and len(active):
            self._wide_block(batch, items, cursor, block, level)
            return
        while len(active):
            if len(active) <= _FEW_ROWS and left.max() > _MANY_ITEMS:
                self._few_rows(batch, items, cursor, block, level)
                return
            part = cursor.pick(active)
            items.add(active, self._read(batch, items.node, part, level))
            cursor.place[active] = part.place
            left -= 1
            more = left > 0
            if batch.errors:
                more &= ~batch.dead[cursor.rows[active]]
            active, left = block = active[more], left[more]

    def _wide_block(self, batch: Batch, items: Items, cursor: Cursor, block: tuple[Places, Places], level: int) -> None:
        active, counts = block
        owners = np.repeat(active, counts)
        width = items.node.width or 0
        ends = np.cumsum(counts)
        within = np.arange(len(owners)) - np.repeat(ends - counts, counts)
        part = Cursor(cursor.rows[owners], cursor.place[owners] + within * width, cursor.end[owners])
        items.add(owners, self._read(batch, items.node, part, level))
        cursor.place[active] += counts * width

    def _few_rows(self, batch: Batch, items: Items, cursor: Cursor, block: tuple[Places, Places], level: int) -> None:
        """Read a block whose items are found one by one, all at once."""
        places, owners, reasons = [], [], dict[int, str]()
        for which, count in zip(*(part.tolist() for part in block), strict=True):
            begins, reasons[which] = self._walk(batch, items.node, cursor, which, count)
            places.append(np.array(begins, np.int64))
            owners.append(np.full(len(begins), which))
        owner = np.concatenate(owners)
        if items.node.arrow is not None and len(owner):
            part = Cursor(cursor.rows[owner], np.concatenate(places), cursor.end[owner])
            items.add(owner, self._read(batch, items.node, part, level))
        self._end(batch, cursor, reasons)

    def _walk(self, batch: Batch, node: Node, cursor: Cursor, which: int, count: int) -> tuple[list[int], str]:
        """Pass over that many values of a row; return where each begins, and why one does not end."""
        row, data = cursor.rows[which], batch.data[: int(cursor.end[which])].data
        self.walker.empty_items = int(batch.empty_items[row])
        begins, cursor.place[which], reason = self.walker.begins(node, data, int(cursor.place[which]), count)
        if node.arrow is None:  # else those that are read next are counted
            batch.empty_items[row] = self.walker.empty_items
        return begins, reason

    def _end(self, batch: Batch, cursor: Cursor, reasons: dict[int, str]) -> None:
        for which, reason in reasons.items():
            if reason:
                bad = np.zeros(len(cursor.rows), np.bool_)
                bad[which] = True
                cursor.begin = cursor.end
                self._fail(batch, cursor, bad, reason)
