"""Decodes batches: bare messages by one schema, and messages that say by which schema they were written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from connectors.avro.decoder.arrays import scattered
from connectors.avro.decoder.columns import ColumnDecoder
from connectors.avro.decoder.places import Places
from connectors.avro.errors import AvroAnalysisError
from connectors.avro.schema.parser import AvroType
from connectors.avro.schema.plan import Node
from connectors.core.functions.bad_rows import Decoded
from connectors.core.functions.bounded import BoundedDecoder, row_bytes
from connectors.core.functions.columns import bitmap, struct_array, validity_of
from connectors.core.processes.pool import Cache
from connectors.registry.frames import Frames

_MOST_LOCATED: Final = 1000  # bad rows of a batch that are walked through, to say where they are bad
_DECODERS: Final = 256  # writers' schemas whose decoders are retained, as many as a registry's client retains


class AvroDecoder:
    """Decodes batches by a plan. `strict` is about dates: see `schema.leaf.converter`."""

    def __init__(self, plan: Node, kind: pa.DataType, *, strict: bool) -> None:
        self._plan, self._kind = plan, kind
        self._columns = ColumnDecoder(plan, strict=strict)

    def decode(self, messages: pa.BinaryArray) -> Decoded:
        """Decode a binary array; never raises for what is in a row.

        A row that cannot be read is a struct of NULLs, and NULL where the type is no struct, as in Spark.
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
    column = scattered(parts, kind, count, bad)
    if len(bad) and kinds.is_struct(kind):
        valid = validity_of(column)
        valid[bad] = True
        column = struct_array(kind, [column.field(place) for place in range(kind.num_fields)], count, bitmap(valid))
    return column


class Framing(Protocol):
    """How messages say by which schema they were written, and where that is found."""

    def find(self, messages: pa.BinaryArray, headers: pa.Array | None) -> Frames:
        """Take the frames of a batch apart."""
        ...

    def types(self, counts: Mapping[int | str, int]) -> Mapping[int | str, AvroType | str]:
        """Return each schema, or why its messages cannot be read; `counts` says how many messages have it.

        Raises:
            ConnectorError: for what is wrong with the source of the schemas and not with a row.
        """
        ...


class FramedDecoder:
    """Takes messages out of their frames and decodes them, resolved from their writers' schemas to the reader's.

    Args:
        decoder_of: returns the decoder of messages of a writer's schema; raises AvroAnalysisError where it does not
            fit the reader's, which makes all messages of it bad rows.
        kind: the type of the values.
        framing: finds frames and schemas.
    """

    def __init__(
        self, decoder_of: Callable[[AvroType], BoundedDecoder[AvroDecoder]], kind: pa.DataType, framing: Framing
    ) -> None:
        self._decoder_of, self._kind, self._framing = decoder_of, kind, framing
        self._decoders = Cache(_DECODERS)

    def decode(self, messages: pa.BinaryArray, headers: pa.Array | None = None) -> Decoded:
        """See `AvroDecoder.decode`; raises ConnectorError as `Framing.types`."""
        frames = self._framing.find(messages, headers)
        errors, parts = dict(frames.errors), []
        by_schema = dict(zip(frames.schemas, frames.by_schema(), strict=True))
        counts = {schema: len(rows) for schema, rows in by_schema.items()}
        types = self._framing.types(counts) if by_schema else {}
        for schema, rows in by_schema.items():
            decoder = self._decoder(schema, types[schema])
            if isinstance(decoder, str):
                errors |= dict.fromkeys(rows.tolist(), decoder)
                continue
            decoded = decoder.decode(frames.messages(rows))
            errors |= {int(rows[row]): f"{reason}, schema {schema}" for row, reason in decoded.errors.items()}
            parts.append((rows, decoded.values))
        return Decoded(placed(parts, self._kind, len(messages), errors), errors)

    def _decoder(self, schema: int | str, writer: AvroType | str) -> BoundedDecoder[AvroDecoder] | str:
        """Return the decoder of a writer's messages, or why they cannot be read."""
        if isinstance(writer, str):
            return writer

        def make() -> BoundedDecoder[AvroDecoder] | str:
            try:
                return self._decoder_of(writer)
            except AvroAnalysisError as error:
                return f"cannot be read: {error.what} (schema {schema})"

        return self._decoders.get(schema, make)
