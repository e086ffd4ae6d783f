"""JSON Schemas of registries, with the schemas that they refer to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from connectors.core.pool import Cache
from connectors.json.errors import JsonAnalysisError
from connectors.json.schema.parser import Documents, parse_schemas
from connectors.registry.errors import schema_unusable
from connectors.registry.lookups import Lookup
from connectors.registry.options import RegistryOptions
from connectors.registry.rules import NO_MIGRATIONS, Migrations, migrations_of
from connectors.registry.schemas import OWN, Ask, Registry, gather

if TYPE_CHECKING:
    from connectors.registry.client import RegistryClient

_REGISTRIES: Final = 8
_registries: Final = Cache(_REGISTRIES)


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema with those that it refers to."""

    schema_id: int | str  # of Confluent an int; -1 where only its GUID is known
    documents: Documents
    migrations: Migrations = NO_MIGRATIONS


JsonRegistry = Registry[RegisteredSchema]


def registry_of(options: RegistryOptions) -> JsonRegistry:
    """Return the client of a registry: one for all subjects of a context, by its address and authentication."""
    common = options.for_client()
    return _registries.get(common, lambda: Registry(common, JsonForm()))


class JsonForm:
    """See `SchemaForm`."""

    extra = "json"

    def ask(self, client: RegistryClient, lookup: Lookup) -> Any:
        """Ask for a schema as a text."""
        return client.get(lookup)

    def build(self, response: Mapping[str, Any], what: str, schema_id: int | str, ask: Ask) -> RegisteredSchema:
        """Return a schema with its references."""
        texts = gather(response, what, ask, "JSON")
        text = texts.pop(OWN)
        try:
            documents = parse_schemas(text, texts)
        except JsonAnalysisError as error:
            raise schema_unusable(what, error.what) from None
        return RegisteredSchema(schema_id, documents, migrations_of(response, schema_id, what))
