"""Avro schemas of registries, with the schemas that they refer to, and the frames of messages that name them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from connectors.avro.errors import AvroAnalysisError
from connectors.avro.schema.parser import AvroType, parse_schema
from connectors.registry.batches import SchemaSource
from connectors.registry.errors import schema_unusable
from connectors.registry.frames import Frames, WriterSchemas
from connectors.registry.glue.options import AnyRegistryOptions
from connectors.registry.kinds import retained_registry
from connectors.registry.rules import NO_MIGRATIONS, Migrations, migrations_of
from connectors.registry.schemas import OWN, Ask, SchemaForm, gather


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
    """Return the client of a registry of Avro schemas."""
    return retained_registry(options, AvroForm)


class AvroForm(SchemaForm[RegisteredSchema]):
    """How Avro schemas are asked for and parsed."""

    extra = "avro"

    def build(self, response: Mapping[str, Any], what: str, schema_id: int | str, ask: Ask) -> RegisteredSchema:
        """Return a schema with its references."""
        texts = gather(response, what, ask, "AVRO")
        text = texts.pop(OWN)
        references = tuple(texts.values())
        try:
            kind = parse_schema(text, what, references)
        except AvroAnalysisError as error:
            raise schema_unusable(what, error.what) from None
        return RegisteredSchema(schema_id, text, references, kind, migrations_of(response, schema_id, what))


class RegisteredFrames:
    """Finds the schemas of messages by what their frames say.

    Args:
        registry: gives the writers' schemas.
        find: takes the frames of a batch apart.
        permissive: whether messages whose schema the registry cannot give are bad rows, while it gives others.
        reader: the schema of the columns, where that is one of the registry.
        clock: the time in seconds.
    """

    def __init__(
        self,
        registry: AvroRegistry,
        find: Callable[[pa.BinaryArray, pa.Array | None], Frames],
        *,
        permissive: bool = False,
        reader: Migrations | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry, self.find = registry, find
        self._fetched = WriterSchemas[RegisteredSchema](permissive=permissive, reader=reader, clock=clock)

    def types(self, counts: Mapping[int | str, int]) -> dict[int | str, AvroType | str]:
        """Return each schema, or why it cannot be had."""
        fetched = self._fetched.get(self._registry, counts, counts)
        return {schema: found if isinstance(found, str) else found.type for schema, found in fetched.items()}
