"""A bound for the memory of a decoded batch: few bytes of a message can become many of Arrow.

One byte of a message can be the longest name of an enum, and two a struct of a thousand columns. So a batch of small
messages can become more than memory holds, or more than Arrow counts by its offsets of 32 bits. Then the rows that take
the most are bad rows, and all others are decoded: a hostile message costs none of its neighbors.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from connectors.core.functions.bad_rows import Decoded
from connectors.core.functions.columns import offsets

MOST_BYTES: Final = 1 << 30
"""The most bytes that the values of a batch may take, besides the fixed bytes of each row."""
_TIMES: Final = 4
"""Large messages may take that many times their own bytes, where that is more."""
_LARGEST_COLUMN: Final = (1 << 31) - 1
_PIECE_BYTES: Final = 1 << 30
_OFFSET_BYTES: Final = 4
_BIT: Final = 1 / 8


def row_bytes(kind: pa.DataType) -> float:
    """Return the bytes that each row of a column takes, whatever is in it."""
    if kinds.is_struct(kind):
        return _BIT + sum(row_bytes(part.type) for part in kind)
    if kinds.is_null(kind):
        return 0.0
    if kinds.is_primitive(kind) or kinds.is_boolean(kind) or kinds.is_decimal(kind):
        return float(_BIT + kind.bit_width / 8)
    return _BIT + _OFFSET_BYTES


def growth_of(kind: pa.DataType, text: float = 1.0) -> float:
    """Return how many bytes, beside `row_bytes`, a byte of a message can become: ``text`` ones in a string."""
    if kinds.is_struct(kind):
        return max((growth_of(part.type, text) for part in kind), default=0.0)
    if kinds.is_map(kind):
        kind = pa.list_(pa.struct([kind.key_field, kind.item_field]))
    if kinds.is_list(kind):
        return row_bytes(kind.value_type) + growth_of(kind.value_type, text)
    return text if kinds.is_string(kind) else 1.0


class _Decoder(Protocol):
    def decode(self, messages: pa.Array) -> Decoded: ...


D = TypeVar("D", bound=_Decoder)


@dataclass(frozen=True, slots=True, order=True)
class _Piece:
    """Rows of a batch that were decoded together; the largest comes first."""

    order: float
    begin: int
    end: int
    decoded: Decoded = field(compare=False)


class BoundedDecoder(Generic[D]):
    """Decodes batches within a bound of memory.

    A row alone is decoded whatever it becomes: what a service takes as one message is the bound of that.

    Args:
        decoder: decodes any rows of a batch to values of one type.
        kind: that type.
        growth: how many bytes, beside `row_bytes`, a byte of a message can become.
        most: `MOST_BYTES`.
        piece: the bytes up to which rows are decoded without a look at what they become.
    """

    def __init__(
        self, decoder: D, kind: pa.DataType, growth: float, *, most: int = MOST_BYTES, piece: int = _PIECE_BYTES
    ) -> None:
        self.decoder = decoder
        self._kind, self._most = kind, most
        self._row_bytes = row_bytes(kind)
        self._small = int(piece / max(growth, 1.0))

    def decode(self, messages: pa.BinaryArray) -> Decoded:
        """Decode a batch; where its values take too many bytes, the rows that take the most are bad rows."""
        if not len(messages):
            return self.decoder.decode(messages)
        own = pa.Array.from_buffers(messages.type, messages.offset + len(messages), messages.buffers())
        bounds = offsets(own)[messages.offset :].astype(np.int64)
        size = int(bounds[-1] - bounds[0])
        if size <= self._small:
            return self.decoder.decode(messages)
        return self._joined(self._pieces(messages, bounds, min(max(self._most, _TIMES * size), _LARGEST_COLUMN)))

    def _pieces(self, messages: pa.BinaryArray, bounds: np.ndarray[Any, Any], room: float) -> list[_Piece]:
        pieces: list[_Piece] = []
        begin, taken = 0, 0.0
        while begin < len(messages):
            end = int(np.searchsorted(bounds, bounds[begin] + self._small, side="right")) - 1
            end = min(max(end, begin + 1), len(messages))
            taken += self._add(pieces, messages, begin, end)
            begin = end
            while taken > room:
                taken += self._cut(pieces, messages, room)
        return pieces

    def _add(self, pieces: list[_Piece], messages: pa.BinaryArray, begin: int, end: int) -> float:
        """Decode rows; return the bytes that they take beside `row_bytes`."""
        decoded = self.decoder.decode(messages.slice(begin, end - begin))
        taken = max(decoded.values.nbytes - (end - begin) * self._row_bytes, 0.0)
        heapq.heappush(pieces, _Piece(-taken, begin, end, decoded))
        return float(taken)

    def _cut(self, pieces: list[_Piece], messages: pa.BinaryArray, room: float) -> float:
        """Take the largest piece apart, or its only row out; return how many bytes more there are, mostly less."""
        largest = heapq.heappop(pieces)
        begin, end, more = largest.begin, largest.end, largest.order
        if end - begin > 1:
            middle = (begin + end) // 2
            return more + self._add(pieces, messages, begin, middle) + self._add(pieces, messages, middle, end)
        reason = (
            f"becomes {-more / 1e6:,.0f} MB of values, among the largest of a batch that may have {room / 1e6:,.0f} MB"
        )
        heapq.heappush(pieces, _Piece(0.0, begin, end, Decoded(pa.nulls(1, self._kind), {0: reason})))
        return more

    def _joined(self, pieces: list[_Piece]) -> Decoded:
        pieces.sort(key=lambda piece: piece.begin)
        errors = {piece.begin + row: reason for piece in pieces for row, reason in piece.decoded.errors.items()}
        return Decoded(pa.concat_arrays([piece.decoded.values for piece in pieces]), errors)
