"""Decodes Avro messages one by one, in plain Python: the oracle that the decoder of columns is compared with."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as kinds

from connectors.avro.decoder.arrays import column_of
from connectors.avro.decoder.places import LEVELS
from connectors.avro.schema.leaf import FIRST_DAY, FIRST_MICROS, MICROS, decimal_of, is_checked_time, is_millis
from connectors.avro.schema.parser import AvroType
from connectors.avro.schema.plan import Node
from connectors.core.functions.bad_rows import BadRowError, Decoded

Read = Callable[[bytes, int], tuple[Any, int]]
"""Reads the value at a place; returns it and the place behind it. IndexError where the message ends before."""

EMPTY_ITEMS: Final = 1000
_INT_BYTES: Final = 5
_LONG_BYTES: Final = 10
_MORE: Final = 128
_EARLY: Final = "ends too early"
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")


def _converter(writer_kind: str, reader: AvroType, arrow: pa.DataType, *, strict: bool) -> Callable[[Any], Any] | None:
    """Return what a value becomes; None where it stays as it is. The function raises BadRowError.

    `strict` refuses dates and timestamps for which the calendars do not agree.
    """
    if kinds.is_decimal(arrow):
        return lambda data: decimal_of(data, reader.precision, reader.scale)
    if reader.kind == "float" and writer_kind in {"int", "long"}:
        return lambda value: struct.unpack("<f", struct.pack("<f", value))[0]
    if kinds.is_floating(arrow) and writer_kind in {"int", "long"}:
        return float
    if is_millis(reader):
        return lambda value: _checked(_micros(value), reader, strict=strict)
    if strict and is_checked_time(reader):
        return lambda value: _checked(value, reader, strict=True)
    return None


def _micros(millis: int) -> int:
    micros = millis * MICROS
    if not -(2**63) <= micros < 2**63:
        raise BadRowError(f"long overflow: a timestamp of {millis} milliseconds")
    return micros


def _checked(value: int, reader: AvroType, *, strict: bool) -> int:
    if strict and is_checked_time(reader) and value < (FIRST_DAY if reader.logical == "date" else FIRST_MICROS):
        raise BadRowError(
            f"has a {reader.logical} from before the Julian and Gregorian calendars agree, and "
            f"datetimeRebaseMode=EXCEPTION"
        )
    return value


def read_long(data: bytes, place: int, most_bytes: int = _LONG_BYTES) -> tuple[int, int]:
    """Return the number at a place, and the place behind it."""
    byte = data[place]
    if byte < _MORE:
        return (byte >> 1) ^ -(byte & 1), place + 1
    raw, shift = byte & 127, 7
    for end in range(place + 1, place + most_bytes):
        byte = data[end]
        raw |= (byte & 127) << shift
        if byte < _MORE:
            raw &= 2**64 - 1 if most_bytes == _LONG_BYTES else 2**32 - 1
            return (raw >> 1) ^ -(raw & 1), end + 1
        shift += 7
    raise BadRowError(f"has a number of more than {most_bytes} bytes")


def _read_int(data: bytes, place: int) -> tuple[int, int]:
    return read_long(data, place, _INT_BYTES)


def _read_boolean(data: bytes, place: int) -> tuple[bool, int]:
    return data[place] == 1, place + 1


def _read_float(data: bytes, place: int) -> tuple[float, int]:
    return _unpack(_FLOAT, data, place)


def _read_double(data: bytes, place: int) -> tuple[float, int]:
    return _unpack(_DOUBLE, data, place)


def _unpack(form: struct.Struct, data: bytes, place: int) -> tuple[float, int]:
    end = place + form.size
    if end > len(data):
        raise IndexError
    return form.unpack_from(data, place)[0], end


def _read_bytes(data: bytes, place: int) -> tuple[bytes, int]:
    length, place = read_long(data, place)
    end = _behind(data, place, length)
    return data[place:end], end


def _behind(data: bytes, place: int, length: int) -> int:
    """Return the place behind so many bytes."""
    if length < 0:
        raise BadRowError(f"has a length of {length}")
    if place + length > len(data):
        raise IndexError
    return place + length


def _drop_bytes(data: bytes, place: int) -> tuple[None, int]:
    """Pass over bytes that the reader drops: as in Java, a negative length is none."""
    length, place = read_long(data, place)
    return None, _behind(data, place, max(length, 0))


def _read_null(data: bytes, place: int) -> tuple[None, int]:  # noqa: ARG001 - as the others
    return None, place


_READERS: Final[dict[str, Read]] = {
    "null": _read_null,
    "boolean": _read_boolean,
    "int": _read_int,
    "long": read_long,
    "float": _read_float,
    "double": _read_double,
    "bytes": _read_bytes,
    "string": _read_bytes,
}


class _FieldError(BadRowError):
    """Raised for a value that cannot be read; knows the field that it is in, and where that begins."""

    def __init__(self, reason: str, node: Node, place: int) -> None:
        super().__init__(reason)
        self._reason, self._kind, self._place = reason, node.kind, place
        self._path = ""

    def within(self, part: str) -> _FieldError:
        """Add the name of the field, or the number of the item, that holds it."""
        self._path = f"{part}.{self._path}" if self._path and self._path[0] != "[" else f"{part}{self._path}"
        return self

    def located(self, size: int) -> BadRowError:
        """Return the error that a user reads, of a message of so many bytes."""
        where = f"in {self._path}, a value of the type {self._kind} from byte {self._place} of {size}"
        return BadRowError(f"{self._reason} ({where})")


def _error_in(error: Exception, part: str, node: Node, place: int) -> _FieldError:
    """Return the error for a part of a record or list that begins at a place."""
    if not isinstance(error, _FieldError):
        error = _FieldError(_EARLY if isinstance(error, IndexError) else str(error), node, place)
    return error.within(part)


class RowBatchDecoder:
    """Decodes batches as `AvroDecoder` does, message by message."""

    def __init__(self, plan: Node, kind: pa.DataType, *, strict: bool) -> None:
        self._kind, self._rows = kind, RowDecoder(plan, strict=strict)

    def decode(self, messages: pa.BinaryArray) -> Decoded:
        values, errors = [], {}
        for row, data in enumerate(messages.to_pylist()):
            value = None
            if data is not None:
                try:
                    value = self._rows.decode(data)
                except BadRowError as error:
                    errors[row] = str(error)
                    value = {} if kinds.is_struct(self._kind) else None
            values.append(value)
        return Decoded(column_of(values, self._kind), errors)


class RowDecoder:
    """Decodes by a plan. `strict` is about dates: see `_converter`."""

    def __init__(self, plan: Node, *, strict: bool) -> None:
        self._strict = strict
        self._depth = 0
        self.empty_items = 0
        """How many items of no byte the message has had so far."""
        self._made: dict[int, Read] = {}
        self._read = self.reader(plan)

    def decode(self, data: bytes) -> Any:
        """Return the value of a message; BadRowError says why there is none."""
        self._depth = self.empty_items = 0
        try:
            return self._read(data, 0)[0]
        except _FieldError as error:
            raise error.located(len(data)) from None
        except IndexError:
            raise BadRowError(_EARLY) from None

    def reader(self, node: Node) -> Read:
        """Return the function that reads values of a node."""
        if id(node) not in self._made:
            # A recursive node finds itself here while it is made.
            self._made[id(node)] = lambda data, place: self._made[id(node)](data, place)  # noqa: PLW0108 - not yet made
            self._made[id(node)] = self._make(node)
        return self._made[id(node)]

    def _make(self, node: Node) -> Read:
        if node.arrow is None and node.kind in {"bytes", "string"}:
            return _drop_bytes
        if node.kind in _READERS:
            return self._leaf(node, _READERS[node.kind])
        makers = {
            "fixed": self._fixed,
            "enum": self._enum,
            "array": self._list,
            "map": self._list,
            "record": self._record,
            "union": self._union,
            "member": self._member,
            "error": self._error,
        }
        return makers[node.kind](node)

    def _leaf(self, node: Node, read: Read) -> Read:
        if node.reader is None or node.arrow is None:
            return read
        convert = _converter(node.kind, node.reader, node.arrow, strict=self._strict)
        if convert is None:
            return read

        def converted(data: bytes, place: int) -> tuple[Any, int]:
            value, place = read(data, place)
            return convert(value), place

        return converted

    def _fixed(self, node: Node) -> Read:
        size = node.size

        def read(data: bytes, place: int) -> tuple[bytes, int]:
            end = place + size
            if end > len(data):
                raise IndexError
            return data[place:end], end

        return self._leaf(node, read)

    def _enum(self, node: Node) -> Read:
        symbols = [None if symbol is None else symbol.encode() for symbol in node.symbols]

        def read(data: bytes, place: int) -> tuple[bytes, int]:
            index, place = _read_int(data, place)
            if not 0 <= index < len(symbols):
                raise BadRowError(f"has the symbol {index} of an enum of {len(symbols)}")
            symbol = symbols[index]
            if symbol is None:
                raise BadRowError(f"has the symbol {index} of an enum, which the reader's does not have")
            return symbol, place

        # As in Java, which symbol it is does not matter in what the reader drops.
        return _read_int if node.arrow is None else read

    def _list(self, node: Node) -> Read:
        assert node.item is not None
        item = node.item
        read_item, is_map, dropped = self.reader(item), node.kind == "map", node.arrow is None
        nothing_to_read = dropped and not item.least

        def read(data: bytes, place: int) -> tuple[list[Any], int]:
            self._enter()
            values: list[Any] = []
            while True:
                count, place = read_long(data, place)
                if count < 0:
                    count, (size, place) = -count, read_long(data, place)
                    if dropped:
                        place = _behind(data, place, max(size, 0))
                        continue
                if count == 0:
                    break
                self._check_items(count, item.least, len(data) - place)
                try:
                    for _ in range(0 if nothing_to_read else count):
                        value, place = read_item(data, place)
                        values.append(value)
                except (IndexError, BadRowError) as error:
                    raise _error_in(error, f"[{len(values)}]", item, place) from None
            self._depth -= 1
            return (_entries(values) if is_map and not dropped else values), place

        return read

    def _check_items(self, count: int, least: int, room: int) -> None:
        """Refuse more items than so many bytes can hold; `least` is the least number of bytes of one."""
        if not least:
            self.empty_items += count
        if self.empty_items > EMPTY_ITEMS or (least and count > room // least):
            raise BadRowError(f"has a list of {count} items, which do not fit")

    def _record(self, node: Node) -> Read:
        if node.arrow is None:
            return self._skipped(node)
        readers = [self.reader(child) for child in node.children]
        names = [field.name for field in node.arrow]
        outputs = [(name, output.source, output.default) for name, output in zip(names, node.outputs, strict=True)]

        def read(data: bytes, place: int) -> tuple[dict[str, Any], int]:
            self._enter()
            values: list[Any] = []
            try:
                for reader in readers:
                    value, place = reader(data, place)
                    values.append(value)
            except (IndexError, BadRowError) as error:
                raise _error_in(error, _field_name(node, len(values)), node.children[len(values)], place) from None
            self._depth -= 1
            return {name: values[source] if source >= 0 else default for name, source, default in outputs}, place

        return read

    def _skipped(self, node: Node) -> Read:
        """Pass over a record; what takes no byte is not looked at, since records in records could be without number."""
        width, least, children = node.width, node.least, node.children
        readers = [self.reader(child) for child in children] if width is None else []

        def read(data: bytes, place: int) -> tuple[None, int]:
            if place + least > len(data):
                raise IndexError
            if width is not None:
                return None, place + width
            self._enter()
            number = 0
            try:
                for number, reader in enumerate(readers):  # noqa: B007 - read by the error
                    place = reader(data, place)[1]
            except (IndexError, BadRowError) as error:
                raise _error_in(error, _field_name(node, number), children[number], place) from None
            self._depth -= 1
            return None, place

        return read

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > LEVELS + 1:  # the columns count the root as 0
            raise BadRowError(f"is nested more than {LEVELS} levels deep")

    def _union(self, node: Node) -> Read:
        readers = [self.reader(child) for child in node.children]
        members = _member_names(node)

        def read(data: bytes, place: int) -> tuple[Any, int]:
            index, place = _read_int(data, place)
            if not 0 <= index < len(readers):
                raise BadRowError(f"has the branch {index} of a union of {len(readers)}")
            value, place = readers[index](data, place)
            if members is not None:
                value = _member_value(members[index], value)
            return value, place

        return read

    def _member(self, node: Node) -> Read:
        reader, members = self.reader(node.children[0]), _member_names(node) or [None]

        def read(data: bytes, place: int) -> tuple[Any, int]:
            value, place = reader(data, place)
            return _member_value(members[0], value), place

        return read

    @staticmethod
    def _error(node: Node) -> Read:
        def read(data: bytes, place: int) -> tuple[None, int]:  # noqa: ARG001 - as the others
            raise BadRowError(f"cannot be read: {node.reason}")

        return read


def _field_name(node: Node, number: int) -> str:
    """Return the name of a field of a record; of the entry of a map, whether it is the key."""
    return node.names[number] if node.names else ("key", "value")[number]


def _member_names(node: Node) -> list[str | None] | None:
    """Return the field of each branch: None for null, an empty text for one that is dropped."""
    if node.members is None or node.arrow is None:
        return None
    names = [field.name for field in node.arrow]
    return [names[member] if member >= 0 else (None if member == -1 else "") for member in node.members]


def _member_value(name: str | None, value: Any) -> dict[str, Any] | None:
    if name is None:
        return None
    return {name: value} if name else {}


def _entries(values: list[dict[str, Any]]) -> list[tuple[bytes, Any]]:
    """Return the entries of a map; of several with one key the last."""
    entries: dict[bytes, Any] = {}
    for value in values:
        entries.pop(value["key"], None)
        entries[value["key"]] = value["value"]
    return list(entries.items())
