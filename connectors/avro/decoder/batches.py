"""Decodes batches row by row or in columns, whichever is faster for so many messages; both give the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from connectors.avro.decoder.columns import ColumnDecoder
from connectors.avro.decoder.rows import RowDecoder, column_of
from connectors.avro.decoder.varints import Places
from connectors.avro.schema.plan import Node
from connectors.functions.bad_rows import BadRowError, Decoded
from connectors.functions.bounded import row_bytes
from connectors.functions.columns import bitmap, struct_array, validity_of

_MOST_LOCATED: Final = 1000  # bad rows of a batch that are read again, to say where they are bad
_FEW_MESSAGES: Final = 64  # up to here rows are faster: docs/adr/0007-avro-decoder.md


class AvroDecoder:
    """Decodes batches by a plan."""

    def __init__(self, plan: Node, kind: pa.DataType, *, strict: bool, few: int = _FEW_MESSAGES) -> None:
        self._kind, self._few = kind, few
        self._rows = RowDecoder(plan, strict=strict)
        self._columns = ColumnDecoder(plan, self._rows, strict=strict)

    def decode(self, messages: pa.BinaryArray) -> Decoded:
        """Decode a binary array; never raises for what is in a row.

        A row that cannot be read is a struct of NULLs, and NULL where the type is no struct, as in Spark.
        """
        few = len(messages) <= self._few
        return self._by_rows(messages) if few else self._by_columns(messages)

    def _by_rows(self, messages: pa.BinaryArray) -> Decoded:
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

    def _reason(self, message: bytes, reason: str) -> str:
        """Return why a message cannot be read, with the field and the byte, which columns do not know."""
        try:
            self._rows.decode(message)
        except BadRowError as error:
            return str(error)
        return reason

    def _by_columns(self, messages: pa.BinaryArray) -> Decoded:
        rows = np.flatnonzero(validity_of(messages))
        whole = len(rows) == len(messages)
        values, found = self._columns.decode(messages if whole else messages.take(pa.array(rows)))
        errors = {int(rows[row]): reason for row, reason in found.items()}
        for row in sorted(errors)[:_MOST_LOCATED]:
            errors[row] = self._reason(messages[row].as_py(), errors[row])
        return Decoded(placed([(rows, values)], self._kind, len(messages), errors), errors)


def growth_of(node: Node) -> float:
    """Return how many bytes of Arrow, beside those that each row takes in any case, a byte of a message can become."""
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
    if len(parts) == 1 and len(parts[0][0]) == count and not len(bad):
        return parts[0][1]
    source, begin = np.full(count, -1, np.int64), 0
    for rows, values in parts:
        source[rows] = np.arange(begin, begin + len(values))
        begin += len(values)
    source[bad] = -1
    if not parts:
        column = pa.nulls(count, kind)
    else:
        values = parts[0][1] if len(parts) == 1 else pa.concat_arrays([values for _, values in parts])
        column = values.take(pa.array(source, mask=source < 0))
    if len(bad) and kinds.is_struct(kind):
        known = validity_of(column)
        known[bad] = True
        column = struct_array(kind, [column.field(place) for place in range(kind.num_fields)], count, bitmap(known))
    return column
