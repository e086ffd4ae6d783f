"""Avro schemas of registries, with the schemas that they refer to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from connectors.avro.errors import AvroAnalysisError
from connectors.avro.schema.parser import AvroType, parse_schema
from connectors.registry.batches import SchemaSource
from connectors.registry.errors import schema_unusable
from connectors.registry.glue.options import AnyRegistryOptions
from connectors.registry.kinds import retained_registry
from connectors.registry.lookups import Lookup
from connectors.registry.rules import NO_MIGRATIONS, Migrations, migrations_of
from connectors.registry.schemas import OWN, Ask, gather

if TYPE_CHECKING:
    from connectors.registry.client import RegistryClient


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


class AvroForm:
    """How Avro schemas are asked for and parsed."""

    extra = "avro"

    def ask(self, client: RegistryClient, lookup: Lookup) -> Any:
        """Ask for a schema as a text."""
        return client.get(lookup)

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
