"""Where values end: numbers of variable length at many places at once, and whole values one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from connectors.avro.schema.plan import Node
from connectors.core.functions.bad_rows import BadRowError

LEVELS: Final = 150  # of recursion in a message: Python's own limit is 1,000 calls
EMPTY_ITEMS: Final = 1000  # items of no byte in a message: any number of them fits into ten bytes
EARLY: Final = "ends too early"
INT_BYTES: Final = 5
LONG_BYTES: Final = 10
PADDING: Final = 16  # bytes behind the data, so that what begins in it can be read past its end
Places = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Data = memoryview | bytes
After = Callable[[Data, int], int]
"""Finds the place after a value; IndexError where the message ends before."""

_ONE: Final = np.uint64(1)
_HIGH: Final = np.uint64(0x8080808080808080)
_LOW: Final = np.uint64(0x7F7F7F7F7F7F7F7F)
# Puts groups of 7 bits together, two by two: each step has what stays, what moves, and how far.
_STEPS: Final = (
    (np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00), np.uint64(1)),
    (np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000), np.uint64(2)),
    (np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000), np.uint64(4)),
)
_MORE: Final = 128
_NO_TARGET: Final = 1 << 62
_WORD: Final = 8


def read_varints(
    data: npt.NDArray[np.uint8], words: Words, places: Places
) -> tuple[Words, Places, npt.NDArray[Any] | None]:
    """Return the numbers, the places behind them, and which ones have more than ten bytes; None for no one.

    `words` has the eight bytes at each place of `data`, which has `PADDING` more bytes.
    """
    first = data[places]
    if len(first) == 0 or first.max() < _MORE:
        return first.astype(np.uint64), places + 1, None
    word = words[places]
    stop = ~word & _HIGH
    keep = (stop & (~stop + _ONE)) - _ONE  # all bits up to the one that ends the number
    value = word & keep & _LOW
    for stays, moves, bits in _STEPS:
        value = (value & stays) | ((value & moves) >> bits)
    sizes = (np.bitwise_count(keep).astype(np.int64) + 1) >> 3
    long = np.flatnonzero(stop == 0)
    if len(long) == 0:
        return value, places + sizes, None
    ninth, tenth = (data[places[long] + _WORD + more].astype(np.uint64) for more in (0, 1))
    ends = ninth < _MORE
    value[long] |= (ninth & np.uint64(127)) << np.uint64(56)
    value[long] |= np.where(ends, np.uint64(0), tenth << np.uint64(63))
    sizes[long] = np.where(ends, 9, 10)
    endless = np.zeros(len(places), dtype=np.bool_)
    endless[long] = ~ends & (tenth >= _MORE)
    return value, places + sizes, endless


def unzigzag(raw: Words) -> Places:
    return (raw >> _ONE).view(np.int64) ^ -(raw & _ONE).view(np.int64)


class _FieldError(BadRowError):
    """Raised for a value that cannot be read; knows the field that it is in, and where that begins."""

    def __init__(self, reason: str, kind: str, place: int) -> None:
        super().__init__(reason)
        self._kind, self._place = kind, place
        self._path = ""

    def within(self, part: str) -> _FieldError:
        """Add the name of the field, or the number of the item, that holds it."""
        self._path = f"{part}.{self._path}" if self._path and self._path[0] != "[" else f"{part}{self._path}"
        return self

    def location(self, size: int) -> str:
        """Return what a user reads of a message of that many bytes."""
        return f" (in {self._path}, a value of the type {self._kind} from byte {self._place} of {size})"


def _fault(error: Exception, part: str, node: Node, place: int) -> _FieldError:
    if not isinstance(error, _FieldError):
        error = _FieldError(EARLY if isinstance(error, IndexError) else str(error), node.kind, place)
    return error.within(part)


class Walker:
    """Finds where values end, one by one, in bytes that end where their message does.

    For lists that few rows have, which are too long to read one item of all rows after the other, and for the field in
    which a message is bad. RecursionError: the plan is too deep.
    """

    def __init__(self, plan: Node) -> None:
        self._made: dict[int, After] = {}
        self._depth = 0
        self._target = _NO_TARGET
        self.empty_items = 0
        """How many items of no byte the message has had so far."""
        self._root = self._after(plan)

    def begins(self, node: Node, data: memoryview, place: int, count: int) -> tuple[list[int], int, str]:
        """Return where that many values begin, the place after them, and why there are fewer."""
        after, begins = self._after(node), list[int]()
        self._depth, self._target = 0, _NO_TARGET
        try:
            for _ in range(count):
                end = after(data, place)
                begins.append(place)
                place = end
        except IndexError:
            return begins, place, EARLY
        except BadRowError as error:
            return begins, place, str(error)
        return begins, place, ""

    def location(self, message: bytes, place: int) -> str:
        """Return where a message is bad, with the field and its first byte; empty where the whole message is one value.

        `place` is in the value that is bad, unless the message ends before its values do.
        """
        self._depth, self.empty_items, self._target = 0, 0, place
        try:
            self._root(message, 0)
        except _FieldError as error:
            return error.location(len(message))
        except (IndexError, BadRowError):
            pass
        return ""

    def _after(self, node: Node) -> After:
        if id(node) not in self._made:
            # A recursive node finds itself here while it is made.
            self._made[id(node)] = lambda data, place: self._made[id(node)](data, place)  # noqa: PLW0108 - not yet made
            self._made[id(node)] = self._make(node)
        return self._made[id(node)]

    def _make(self, node: Node) -> After:
        if node.kind in {"bytes", "string"}:
            return _dropped_bytes if node.arrow is None else _bytes
        makers: dict[str, Callable[[Node], After]] = {
            "record": self._record,
            "array": self._list,
            "map": self._list,
            "union": lambda union: _union([self._after(child) for child in union.children]),
            "member": lambda member: self._after(member.children[0]),
            "long": lambda _: _long,
            "int": lambda _: _int,
            "enum": lambda _: _int,
            "error": lambda error: _error(error.reason),
        }
        return makers.get(node.kind, _fixed)(node)

    def _record(self, node: Node) -> After:
        readers = [self._after(child) for child in node.children]
        names = node.names or ("key", "value")
        # Records that are dropped can hold others without number.
        width, least = node.width, node.least if node.arrow is None else 0

        def after(data: Data, place: int) -> int:
            if place + least > len(data):
                raise IndexError
            if width is not None and place + width <= min(len(data), self._target):
                return place + width
            self._enter()
            number = 0
            try:
                for number, reader in enumerate(readers):  # noqa: B007 - read by the error
                    end = reader(data, place)
                    if end > self._target:
                        raise BadRowError  # noqa: TRY301 - it gets its field there
                    place = end
            except (IndexError, BadRowError) as error:
                raise _fault(error, names[number], node.children[number], place) from None
            self._depth -= 1
            return place

        return after

    def _items(self, item: Node) -> Callable[[Data, int, int, int], int]:
        """Return the function from the place of items to the place after them; `number` stand before the first."""
        after_item = self._after(item)

        def after_items(data: Data, place: int, number: int, count: int) -> int:
            if item.width is not None:
                whole = min(count, max(self._target - place, 0) // item.width)
                place, number, count = place + whole * item.width, number + whole, count - whole
            last = number + count
            try:
                while number < last:
                    end = after_item(data, place)
                    if end > self._target:
                        raise BadRowError  # noqa: TRY301 - it gets its field there
                    place, number = end, number + 1
            except (IndexError, BadRowError) as error:
                raise _fault(error, f"[{number}]", item, place) from None
            return place

        return after_items

    def _list(self, node: Node) -> After:
        assert node.item is not None  # noqa: S101 - of an array or a map
        item, after_items, dropped = node.item, self._items(node.item), node.arrow is None

        def after(data: Data, place: int) -> int:
            self._enter()
            number = 0
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
                if item.least:
                    place = after_items(data, place, number, count)
                number += count
            self._depth -= 1
            return place

        return after

    def _check_items(self, count: int, least: int, room: int) -> None:
        """Refuse more items than that many bytes can hold; `least` is the least number of bytes of one."""
        if not least:
            self.empty_items += count
        if self.empty_items > EMPTY_ITEMS or (least and count > room // least):
            raise BadRowError(f"has a list of {count} items, which do not fit")

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > LEVELS + 1:
            raise BadRowError(f"is nested more than {LEVELS} levels deep")


def read_long(data: Data, place: int, most_bytes: int = LONG_BYTES) -> tuple[int, int]:
    """Return the number at a place, and the place behind it."""
    byte = data[place]
    if byte < _MORE:
        return (byte >> 1) ^ -(byte & 1), place + 1
    raw, shift = byte & 127, 7
    for end in range(place + 1, place + most_bytes):
        byte = data[end]
        raw |= (byte & 127) << shift
        if byte < _MORE:
            raw &= 2**64 - 1 if most_bytes == LONG_BYTES else 2**32 - 1
            return (raw >> 1) ^ -(raw & 1), end + 1
        shift += 7
    raise BadRowError(f"has a number of more than {most_bytes} bytes")


def _long(data: Data, place: int) -> int:
    return read_long(data, place)[1]


def _int(data: Data, place: int) -> int:
    return read_long(data, place, INT_BYTES)[1]


def _behind(data: Data, place: int, length: int) -> int:
    if length < 0:
        raise BadRowError(f"has a length of {length}")
    if place + length > len(data):
        raise IndexError
    return place + length


def _bytes(data: Data, place: int) -> int:
    length, place = read_long(data, place)
    return _behind(data, place, length)


def _dropped_bytes(data: Data, place: int) -> int:
    length, place = read_long(data, place)
    return _behind(data, place, max(length, 0))  # as in Java


def _fixed(node: Node) -> After:
    size = node.width or 0
    return lambda data, place: _behind(data, place, size)


def _union(readers: list[After]) -> After:
    def after(data: Data, place: int) -> int:
        index, place = read_long(data, place, INT_BYTES)
        if not 0 <= index < len(readers):
            raise BadRowError(f"has the branch {index} of a union of {len(readers)}")
        return readers[index](data, place)

    return after


def _error(reason: str) -> After:
    def after(data: Data, place: int) -> int:  # noqa: ARG001 - as the others
        raise BadRowError(f"cannot be read: {reason}")

    return after
