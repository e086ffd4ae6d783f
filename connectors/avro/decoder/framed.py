"""Messages that say by which schema they were written: each is decoded by that of its writer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

import pyarrow as pa

from connectors.avro.decoder.batches import AvroDecoder, placed
from connectors.avro.errors import AvroAnalysisError
from connectors.avro.schema.parser import AvroType
from connectors.core.pool import Cache
from connectors.functions.bad_rows import Decoded
from connectors.functions.bounded import BoundedDecoder
from connectors.registry.frames import Frames

_DECODERS: Final = 256  # writers' schemas whose decoders are retained, as many as a registry's client retains


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
