"""Numbers of variable length, read at many places at once."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

PADDING: Final = 16  # bytes behind the data, so that what begins in it can be read past its end
Places = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

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
    """Return signed numbers."""
    return (raw >> _ONE).view(np.int64) ^ -(raw & _ONE).view(np.int64)
