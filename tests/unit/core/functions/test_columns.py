"""Arrow arrays made of their parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from connectors.core.functions.columns import map_array, spread

DECIMAL = pa.decimal128(20, 0)


def test_maps_with_keys_that_were_cast_can_be_put_behind_each_other() -> None:
    """Up to version 20 pyarrow found NULLs among such keys, and the batch failed."""
    keys = pa.array([1, 2, 3], pa.uint64()).cast(DECIMAL)
    maps = map_array(pa.map_(DECIMAL, pa.string()), np.array([0, 1, 3], np.int32), keys, pa.array(["a", "b", "c"]))
    copy = pa.concat_arrays([maps, maps.slice(1)])
    copy.validate(full=True)
    assert [[*map(int, dict(each))] for each in copy.to_pylist()] == [[1], [2, 3], [2, 3]]


@pytest.mark.parametrize(
    "kind",
    [
        pa.int8(),
        pa.float64(),
        pa.bool_(),
        pa.timestamp("us", "UTC"),
        pa.decimal128(20, 2),
        pa.string(),
        pa.large_binary(),
        pa.null(),
        pa.list_(pa.string()),
        pa.map_(pa.string(), pa.list_(pa.int32())),
        pa.struct([pa.field("a", pa.int64(), nullable=False), ("b", pa.struct([("c", pa.list_(pa.bool_()))]))]),
    ],
    ids=str,
)
def test_values_are_spread_over_the_rows_of_a_mask(kind: pa.DataType) -> None:
    samples = {
        "bool": [True, None, False],
        "string": ["a", None, "", "bcd"],
        "large_binary": [b"a", None, b"", b"bcd"],
        "null": [None, None, None],
        "list<item: string>": [["a", None], None, [], ["b"]],
        "map<string, list<item: int32>>": [[("a", [1, None])], None, [], [("b", []), ("c", None)]],
        "timestamp[us, tz=UTC]": [1, None, 3],
    }
    plain: list[Any] = (
        [1, None, 3, 4]
        if not pa.types.is_struct(kind)
        else [{"a": 1, "b": None}, None, {"a": 2, "b": {"c": None}}, {"a": 3, "b": {"c": [True, None]}}]
    )
    values = pa.array(samples.get(str(kind), plain), kind)
    for array in (values, values[1:], pa.concat_arrays([values] * 20), values[:0]):
        for step in (1, 3):
            mask = np.zeros(len(array) * step + 2 * (step > 1), np.bool_)
            mask[step - 1 :: step][: len(array)] = True
            result = spread(array, mask)
            result.validate(full=True)
            assert result.type == kind
            rows = iter(array.to_pylist())
            assert result.to_pylist() == [next(rows) if chosen else None for chosen in mask]
