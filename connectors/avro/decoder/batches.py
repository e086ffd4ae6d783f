"""Decodes batches of bare messages, all by one schema."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from connectors.avro.decoder.arrays import scattered
from connectors.avro.decoder.columns import ColumnDecoder
from connectors.avro.decoder.places import Places
from connectors.avro.schema.plan import Node
from connectors.core.functions.bad_rows import Decoded
from connectors.core.functions.bounded import row_bytes
from connectors.core.functions.columns import bitmap, struct_array, validity_of

_MOST_LOCATED: Final = 1000  # bad rows of a batch that are walked through, to say where they are bad


class AvroDecoder:
    """Decodes batches by a plan. `strict` refuses dates and timestamps of before the calendars agree."""

    def __init__(self, plan: Node, kind: pa.DataType, *, strict: bool) -> None:
        self._plan, self._kind = plan, kind
        self._columns = ColumnDecoder(plan, strict=strict)

    def decode(self, messages: pa.BinaryArray) -> Decoded:
        """Decode a binary array; never raises for what is in a row.

        A row that cannot be read is a struct of NULLs, and NULL where the type is not a struct, as in Spark.
        """
        rows = np.flatnonzero(validity_of(messages))
        if not len(rows):
            return Decoded(pa.nulls(len(messages), self._kind), {})
        whole = len(rows) == len(messages)
        values, faults = self._columns.decode(messages if whole else messages.take(pa.array(rows)))
        errors = {}
        for number, (row, (reason, place)) in enumerate(sorted(faults.items())):
            message = int(rows[row])
            located = number < _MOST_LOCATED
            where = self._columns.walker.location(messages[message].as_py(), place) if located else ""
            errors[message] = f"{reason}{where}"
        return Decoded(placed([(rows, values)], self._kind, len(messages), errors), errors)


def growth_of(node: Node) -> float:
    """Return how many bytes of Arrow a byte of a message can become, besides the fixed bytes of each row."""
    if node.arrow is None:
        return 0.0
    if node.item is not None and node.item.arrow is not None:
        an_item = row_bytes(node.item.arrow) + sum(_bytes_of(output.default) for output in node.item.outputs)
        return an_item / max(node.item.least, 1) + growth_of(node.item)
    longest = max((len(symbol.encode()) for symbol in node.symbols if symbol), default=1)
    return max([float(longest), *map(growth_of, node.children)])


def _bytes_of(default: Any) -> int:
    """Return the bytes of the texts in a default, and some for each item."""
    if isinstance(default, bytes):
        return len(default)
    if isinstance(default, dict):
        default = list(default.values())
    return sum(map(_bytes_of, default), 8) if isinstance(default, list | tuple) else 0


def placed(
    parts: Sequence[tuple[Places, pa.Array]], kind: pa.DataType, count: int, errors: Iterable[int] = ()
) -> pa.Array:
    """Return a column with these values in these rows and NULL elsewhere; what `AvroDecoder` gives in bad rows."""
    bad = np.fromiter(errors, np.int64)
    column = scattered(parts, kind, count, bad)
    if len(bad) and kinds.is_struct(kind):
        valid = validity_of(column)
        valid[bad] = True
        column = struct_array(kind, [column.field(place) for place in range(kind.num_fields)], count, bitmap(valid))
    return column
