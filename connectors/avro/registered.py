"""Avro schemas of registries, and messages in the frames that name them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from connectors.avro.decoder.batches import AvroDecoder, placed
from connectors.avro.errors import AvroAnalysisError
from connectors.avro.schema.parser import AvroType, parse_schema
from connectors.core.functions.bad_rows import Decoded
from connectors.core.functions.bounded import BoundedDecoder
from connectors.core.processes.pool import Cache
from connectors.registry.batches import SchemaSource, schema_unusable
from connectors.registry.frames import Frames, WriterSchemas
from connectors.registry.glue.options import AnyRegistryOptions
from connectors.registry.kinds import retained_registry
from connectors.registry.rules import NO_MIGRATIONS, Migrations, migrations_of
from connectors.registry.schemas import OWN, Ask, SchemaForm, gather

_DECODERS: Final = 256  # writers' schemas whose decoders are retained, as many as a registry's client retains


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema: its text, and those of the schemas that it refers to, each after those that it needs itself."""

    schema_id: int | str  # of Glue the version id; -1 where only its GUID is known
    text: str
    references: tuple[str, ...]
    type: AvroType
    migrations: Migrations = NO_MIGRATIONS


AvroRegistry = SchemaSource[RegisteredSchema]


def registry_of(options: AnyRegistryOptions) -> AvroRegistry:
    return retained_registry(options, AvroForm)


class AvroForm(SchemaForm[RegisteredSchema]):
    """How Avro schemas are asked for and parsed."""

    extra = "avro"

    def build(self, response: Mapping[str, Any], what: str, schema_id: int | str, ask: Ask) -> RegisteredSchema:
        texts = gather(response, what, ask, "AVRO")
        text = texts.pop(OWN)
        references = tuple(texts.values())
        try:
            kind = parse_schema(text, what, references)
        except AvroAnalysisError as error:
            raise schema_unusable(what, error.what) from None
        return RegisteredSchema(schema_id, text, references, kind, migrations_of(response, schema_id, what))


class FramedDecoder:
    """Takes messages out of their frames and decodes them, resolved from their writers' schemas to the reader's.

    Args:
        decoder_of: returns the decoder of messages of a writer's schema; raises AvroAnalysisError where it does not
            fit the reader's, which makes all messages of it bad rows.
        kind: the type of the values.
        registry: gives the writers' schemas.
        find: takes the frames of a batch apart.
        permissive: whether messages whose schema the registry cannot give are bad rows, while it gives others.
        reader: the schema of the columns, where that is one of the registry.
    """

    def __init__(
        self,
        decoder_of: Callable[[AvroType], BoundedDecoder[AvroDecoder]],
        kind: pa.DataType,
        registry: AvroRegistry,
        find: Callable[[pa.BinaryArray, pa.Array | None], Frames],
        *,
        permissive: bool,
        reader: Migrations | None,
    ) -> None:
        self._decoder_of, self._kind, self._registry, self.find = decoder_of, kind, registry, find
        self._writers = WriterSchemas[RegisteredSchema](permissive=permissive, reader=reader)
        self._decoders = Cache(_DECODERS)

    def decode(self, frames: Frames) -> Decoded:
        """Decode as `AvroDecoder.decode`; raises ConnectorError for what is wrong with the registry, not with a row."""
        errors, parts = dict(frames.errors), []
        by_schema = dict(zip(frames.schemas, frames.by_schema(), strict=True))
        counts = {schema: len(rows) for schema, rows in by_schema.items()}
        writers = self._writers.get(self._registry, counts, counts) if counts else {}
        for schema, rows in by_schema.items():
            decoder = self._decoder(schema, writers[schema])
            if isinstance(decoder, str):
                errors |= dict.fromkeys(rows.tolist(), decoder)
                continue
            decoded = decoder.decode(frames.messages(rows))
            errors |= {int(rows[row]): f"{reason}, schema {schema}" for row, reason in decoded.errors.items()}
            parts.append((rows, decoded.values))
        return Decoded(placed(parts, self._kind, len(frames.column), errors), errors)

    def _decoder(self, schema: int | str, writer: RegisteredSchema | str) -> BoundedDecoder[AvroDecoder] | str:
        if isinstance(writer, str):
            return writer

        def make() -> BoundedDecoder[AvroDecoder] | str:
            try:
                return self._decoder_of(writer.type)
            except AvroAnalysisError as error:
                return f"cannot be read: {error.what} (schema {schema})"

        return self._decoders.get(schema, make)
