"""Schemas of the Glue Schema Registry: fetched by version id or name, and registered where that is asked for.

A schema never changes under its version id, so that schemas stay in the process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from uuid import UUID

from connectors.core.errors import ConnectorError, ServiceUnavailableError, SourceGoneError
from connectors.core.formats import extra_imports
from connectors.core.processes.pool import Cache
from connectors.core.retry import OutageRule, wait_out
from connectors.registry.batches import BatchedRequests, schema_unusable
from connectors.registry.glue.options import GlueOptions
from connectors.registry.schemas import SchemaForm, text_of

if TYPE_CHECKING:
    from connectors.registry.glue.client.client import GlueClient

_MOST_SCHEMAS: Final = 256  # schemas whose ids a client retains
_UNASSIGNED: Final = str(UUID(int=0))
_NOT_FOUND: Final = "EntityNotFoundException"
_EXISTS: Final = "AlreadyExistsException"

S = TypeVar("S")


class GlueRegistry(Generic[S]):
    """A client of a registry, whose ids are those of schema versions; safe to use from several threads."""

    def __init__(self, options: GlueOptions, form: SchemaForm[S]) -> None:
        with extra_imports("glue", "schemaRegistry"):
            from connectors.registry.glue.client.client import GlueClient  # noqa: PLC0415 - loads botocore

        self._options, self._form = options, form
        self._outage_rule = OutageRule(options.retry_timeout)
        self._ids = Cache(_MOST_SCHEMAS)
        self._client: GlueClient = GlueClient(options)
        self._batches = BatchedRequests(self._by_id, self._probe, _UNASSIGNED, options.retry_timeout, options.timeout)
        self.by_ids: Final = self._batches.by_ids

    def latest(self, subject: str, *, writing: bool = False) -> S:  # noqa: ARG002 - Glue has no rules
        """Return the latest version of a subject, with a new request each time."""
        what = f"schema {subject} in {self._options.registry_name}"

        def ask() -> S:
            response = self._ask(
                "get_schema_version", what, SchemaId=self._name(subject), SchemaVersionNumber={"LatestVersion": True}
            )
            return self._build(response, what, _available(response, what))

        return wait_out(ask, self._outage_rule)

    def id_of(self, subject: str, text: str, schema_type: str, *, register: bool = False) -> str:
        """Return the id of a schema of a subject; asked for once in a process, since it never changes."""
        what = f"schema of {subject} in {self._options.registry_name}"

        def ask() -> str:
            definition = {"SchemaId": self._name(subject), "SchemaDefinition": text}
            response = self._client.call("get_schema_by_definition", what, (_NOT_FOUND,), **definition)
            if response is None and register:
                response = self._register(subject, text, schema_type, what)
            if response is not None:
                return _available(response, what)
            raise SourceGoneError(
                "SCHEMA_NOT_FOUND",
                f"The schema registry has no such {what}",
                "schemaRegistry",
                "Register it, or set the option schemaAutoRegistrationEnabled to true.",
            )

        number: str = self._ids.get((subject, text, schema_type), lambda: wait_out(ask, self._outage_rule))
        return number

    def _register(self, subject: str, text: str, schema_type: str, what: str) -> dict[str, Any]:
        """Add a version, or create the schema: another writer may do either at the same time."""
        name = self._name(subject)
        call = self._client.call
        response = call("register_schema_version", what, (_NOT_FOUND,), SchemaId=name, SchemaDefinition=text)
        if response is None:
            response = call(
                "create_schema",
                what,
                (_EXISTS,),
                RegistryId={"RegistryName": self._options.registry_name},
                SchemaName=subject,
                DataFormat=schema_type,
                Compatibility="BACKWARD",
                SchemaDefinition=text,
            )
        if response is None:
            response = self._ask("register_schema_version", what, SchemaId=name, SchemaDefinition=text)
        return {"Status": response.get("SchemaVersionStatus"), **response}

    def guid(self, schema_id: int | str) -> bytes:
        """Return the version id."""
        return UUID(str(schema_id)).bytes

    def _by_id(self, schema: int | str) -> S:
        version, what = str(schema), f"schema version {schema}"
        return self._build(self._ask("get_schema_version", what, SchemaVersionId=version), what, version)

    def _probe(self, schema: int | str) -> None:
        self._ask("get_schema_version", "schema", SchemaVersionId=str(schema))

    def _build(self, response: dict[str, Any], what: str, version: str) -> S:
        arn = text_of(response, "SchemaArn", what, "")
        described = {
            "schema": text_of(response, "SchemaDefinition", what),
            "schemaType": text_of(response, "DataFormat", what),
            "subject": arn.rpartition("/")[2] or "schema",
        }
        return self._form.build(described, what, version, self._refer)

    def _refer(self, _subject: str, _version: int, what: str) -> dict[str, Any]:
        raise schema_unusable(what, "a schema of Glue refers to no other")

    def _ask(self, operation: str, what: str, **parameters: Any) -> dict[str, Any]:
        response = self._client.call(operation, what, **parameters)
        return response or {}

    def _name(self, subject: str) -> dict[str, str]:
        return {"RegistryName": self._options.registry_name, "SchemaName": subject}


def _available(response: dict[str, Any], what: str) -> str:
    """Return the id of a version; it is refused where the registry found that it breaks the rules of its schema."""
    version, status = text_of(response, "SchemaVersionId", what), text_of(response, "Status", what)
    try:
        number = str(UUID(version))
    except ValueError:
        raise schema_unusable(what, "the response holds no id of a version") from None
    if status == "PENDING":
        raise ServiceUnavailableError(
            "SCHEMA_REGISTRY_UNAVAILABLE", f"The schema registry is still checking the {what}", "schemaRegistry"
        )
    if status != "AVAILABLE":
        raise ConnectorError(
            "SCHEMA_REFUSED", f"The schema registry reports the status {status} for the {what}", "schemaRegistry"
        )
    return number
