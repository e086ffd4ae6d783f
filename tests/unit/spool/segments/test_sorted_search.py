"""Hashes are found where `numpy.searchsorted` finds them, also where many begin alike."""

from __future__ import annotations

import numpy as np
import pytest

from connectors.spool.segments.dedup_index import guide_of, places_of
from connectors.spool.segments.id_keys import HASH_TYPE, Hashes


def hashes(generator: np.random.Generator, count: int, beginnings: int) -> Hashes:
    """Hashes of which so many are alike in their first eight bytes."""
    words = generator.integers(0, 1 << 63, (count, 2), dtype=np.uint64)
    words[:, 0] = generator.choice(words[:beginnings, 0], count)
    return words.view(HASH_TYPE).ravel()


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 64, 1000])
def test_hashes_are_found_where_numpy_finds_them(count: int) -> None:
    generator = np.random.default_rng(count)
    for beginnings in (1, max(count // 2, 1), count):
        array = np.unique(hashes(generator, count, beginnings))
        near = hashes(generator, 50, 50)
        near.view(np.uint64)[::2] = generator.choice(array.view(np.uint64)[::2], 50)
        edges = np.array([b"", b"\xff" * 16, b"a"], HASH_TYPE)
        for keys in (generator.choice(array, 50), near, hashes(generator, 50, 50), edges):
            assert np.array_equal(places_of(keys, array, guide_of(array)), np.searchsorted(array, keys))


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 64, 1000])
def test_numbers_are_found_where_numpy_finds_them(count: int) -> None:
    generator = np.random.default_rng(count)
    array = np.unique(generator.integers(0, 1 << 63, count, dtype=np.uint64))
    edges = np.array([0, (1 << 64) - 1, array[0], array[-1]], np.uint64)
    for keys in (generator.choice(array, 50), generator.integers(0, 1 << 63, 50, dtype=np.uint64), edges):
        assert np.array_equal(places_of(keys, array, guide_of(array)), np.searchsorted(array, keys))
