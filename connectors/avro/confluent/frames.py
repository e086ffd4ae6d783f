"""Messages in Confluent's frames: each is decoded by the schema that its writer used.

00  schema id (4 bytes, big endian)  message
01  schema GUID (16 bytes)           message
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from connectors.avro.confluent.registry import AvroRegistry, RegisteredSchema
from connectors.avro.decoder.batches import AvroDecoder, placed
from connectors.avro.errors import AvroAnalysisError
from connectors.avro.schema.parser import AvroType
from connectors.core.pool import Cache
from connectors.functions.bad_rows import Decoded
from connectors.registry.frames import WriterSchemas, find_frames

__all__ = ["FramedDecoder"]

_DECODERS: Final = 256  # writers' schemas whose decoders are retained, as many as a registry's client retains


class FramedDecoder:
    """Takes messages out of their frames and decodes them, resolved from their writers' schemas to the reader's.

    Args:
        decoder_of: returns the decoder of messages of a writer's schema; raises AvroAnalysisError where it does not
            fit the reader's, which makes all messages of it bad rows.
        kind: the type of the values.
        registry: gives the writers' schemas.
        is_key: whether the ids in headers are those of keys.
        permissive: whether messages whose schema the registry cannot give are bad rows, while it gives others.
        clock: the time in seconds.
    """

    def __init__(
        self,
        decoder_of: Callable[[AvroType], AvroDecoder],
        kind: pa.DataType,
        registry: AvroRegistry,
        *,
        is_key: bool = False,
        permissive: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._decoder_of, self._kind, self._registry, self._is_key = decoder_of, kind, registry, is_key
        self._fetched = WriterSchemas[RegisteredSchema](permissive=permissive, clock=clock)
        self._decoders = Cache(_DECODERS)

    def decode(self, messages: pa.BinaryArray, headers: pa.Array | None = None) -> Decoded:
        """See `AvroDecoder.decode`; raises ConnectorError for what is wrong with the registry and not with a row."""
        frames = find_frames(messages, headers, is_key=self._is_key)
        errors, parts = dict(frames.errors), []
        by_schema = dict(zip(frames.schemas, frames.by_schema(), strict=True))
        counts = {schema: len(rows) for schema, rows in by_schema.items()}
        registered = self._fetched.get(self._registry, by_schema, counts) if by_schema else {}
        for schema, rows in by_schema.items():
            decoder = self._decoder(schema, registered[schema])
            if isinstance(decoder, str):
                errors |= dict.fromkeys(rows.tolist(), decoder)
                continue
            decoded = decoder.decode(frames.messages(rows))
            errors |= {int(rows[row]): reason for row, reason in decoded.errors.items()}
            parts.append((rows, decoded.values))
        return Decoded(placed(parts, self._kind, len(messages), errors), errors)

    def _decoder(self, schema: int | str, registered: RegisteredSchema | str) -> AvroDecoder | str:
        """Return the decoder of a writer's messages, or why they cannot be read."""
        if isinstance(registered, str):
            return registered

        def make() -> AvroDecoder | str:
            try:
                return self._decoder_of(registered.type)
            except AvroAnalysisError as error:
                return f"cannot be read: {error.what} (schema {schema})"

        return self._decoders.get(schema, make)
