"""Binary search in a sorted array for many keys at once.

`numpy.searchsorted` takes one key after the other: twenty branches a key that the processor cannot predict, and for
hashes a call each. Here each step of the search is one step for all keys. A sample of the array, its *guide*, does most
steps in memory that fits into the processor's cache. Hashes are searched for by their first eight bytes, as big-endian
numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from connectors.spool.segments.id_keys import HASH_TYPE

__all__ = ["Guide", "guide_of", "places_of"]

_SAMPLED = 32
"""One key in so many is in the guide: a quarter of a byte a key."""

Guide = npt.NDArray[np.uint64]

_Keys = npt.NDArray[Any]
_Places = npt.NDArray[np.intp]


def guide_of(array: _Keys) -> Guide:
    """Return the guide of a sorted array of numbers or hashes, in memory of its own."""
    return _prefixes(array[::_SAMPLED])


def places_of(keys: _Keys, array: _Keys, guide: Guide) -> _Places:
    """Return what `numpy.searchsorted` returns: how many keys of a sorted array are less than each of `keys`.

    Args:
        keys: what to search for; the search is fastest if they ascend.
        array: not empty; numbers or hashes, as `keys`.
        guide: of the array.
    """
    wanted, last = _prefixes(keys), len(array) - 1

    def at(places: _Places) -> Guide:
        return _prefixes(array[np.minimum(places, last)])

    places: _Places = np.maximum(np.searchsorted(guide, wanted) - 1, 0) * _SAMPLED
    step = _SAMPLED // 2
    while step:
        places += step * (at(places + (step - 1)) < wanted)
        step //= 2
    places += at(places) < wanted
    places = np.minimum(places, len(array))
    if array.dtype == HASH_TYPE:
        # Hashes that begin with the same eight bytes: hardly ever by chance.
        tied = (at(places) == wanted) & (array[np.minimum(places, last)] != keys)
        if tied.any():
            places[tied] = np.searchsorted(array, keys[tied])
    return places


def _prefixes(keys: _Keys) -> Guide:
    """Return numbers unchanged, and the first eight bytes of hashes as numbers of the same order."""
    if keys.dtype != HASH_TYPE:
        return keys.astype(np.uint64)
    return np.ascontiguousarray(keys).view(np.uint64)[::2].byteswap()
