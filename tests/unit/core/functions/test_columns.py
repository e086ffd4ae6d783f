"""Arrow arrays made of their parts."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from connectors.core.functions.columns import map_array

DECIMAL = pa.decimal128(20, 0)


def test_maps_with_keys_that_were_cast_can_be_put_behind_each_other() -> None:
    """Up to version 20 pyarrow found NULLs among such keys, and the batch failed."""
    keys = pa.array([1, 2, 3], pa.uint64()).cast(DECIMAL)
    maps = map_array(pa.map_(DECIMAL, pa.string()), np.array([0, 1, 3], np.int32), keys, pa.array(["a", "b", "c"]))
    copy = pa.concat_arrays([maps, maps.slice(1)])
    copy.validate(full=True)
    assert [[*map(int, dict(each))] for each in copy.to_pylist()] == [[1], [2, 3], [2, 3]]
