"""JSON Schemas of registries, with the schemas that they refer to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from connectors.json.errors import JsonAnalysisError
from connectors.json.schema.parser import Documents, parse_schemas
from connectors.registry.batches import SchemaSource, schema_unusable
from connectors.registry.kinds import retained_registry
from connectors.registry.options import RegistryOptions
from connectors.registry.rules import NO_MIGRATIONS, Migrations, migrations_of
from connectors.registry.schemas import OWN, Ask, SchemaForm, gather


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema with those that it refers to."""

    schema_id: int | str  # of Confluent an int; -1 where only its GUID is known
    documents: Documents
    migrations: Migrations = NO_MIGRATIONS


JsonRegistry = SchemaSource[RegisteredSchema]


def registry_of(options: RegistryOptions) -> JsonRegistry:
    """Return the client of a registry of JSON Schemas."""
    return retained_registry(options, JsonForm)


class JsonForm(SchemaForm[RegisteredSchema]):
    """How JSON Schemas are asked for and parsed."""

    extra = "json"

    def build(self, response: Mapping[str, Any], what: str, schema_id: int | str, ask: Ask) -> RegisteredSchema:
        """Return a schema with its references."""
        texts = gather(response, what, ask, "JSON")
        text = texts.pop(OWN)
        try:
            documents = parse_schemas(text, texts)
        except JsonAnalysisError as error:
            raise schema_unusable(what, error.what) from None
        return RegisteredSchema(schema_id, documents, migrations_of(response, schema_id, what))
