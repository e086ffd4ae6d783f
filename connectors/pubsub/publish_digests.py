"""Digests of rows, for their names: a name that is used again for a row of other content is another name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from connectors.pubsub.wire import concatenate

__all__ = ["content_digests"]

_DIGITS: Final = 16
_HEX: Final = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint16)
"""The two digits of each byte, as one number."""
_ROWS_AT_ONCE: Final = 128
"""So few that their copies as Python's bytes stay in the processor's cache."""


def content_digests(payloads: pa.Array, others: Sequence[pa.Array]) -> pa.Array:
    """A digest of each row: 16 hexadecimal digits (xxh3, 64 bits).

    Args:
        payloads: binaries without nulls.
        others: the encoded fields of the rest of each row, and what else tells rows apart; binaries or strings.
    """
    seeds = _digests(concatenate(*(part.cast(pa.binary()) for part in others))) if others else None
    digests = np.array(_digests(payloads, seeds), np.uint64)
    digits = _HEX[digests.astype(">u8").view(np.uint8)]
    return _texts(digits)


def _digests(values: pa.Array, seeds: Sequence[int] | None = None) -> list[int]:
    found: list[int] = []
    for first in range(0, len(values), _ROWS_AT_ONCE):
        texts = values[first : first + _ROWS_AT_ONCE].to_pylist()
        found += map(
            xxhash.xxh3_64_intdigest, texts, repeat(0) if seeds is None else seeds[first : first + _ROWS_AT_ONCE]
        )
    return found


def _texts(digits: npt.NDArray[np.uint16]) -> pa.Array:
    buffers = [None, pa.py_buffer(digits.tobytes())]
    width = pa.binary(_DIGITS)
    return pa.Array.from_buffers(width, digits.nbytes // _DIGITS, buffers).cast(pa.binary())
