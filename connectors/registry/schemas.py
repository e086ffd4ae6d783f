"""Schemas of registries that speak Confluent's REST interface: fetched by id, GUID or subject, with references.

A `SchemaForm` says what is made of a schema, such as a descriptor set. Schemas stay in the process: a schema never
changes under its id.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar
from uuid import UUID

from connectors.core.errors import ConnectorError, SourceGoneError
from connectors.core.formats import extra_imports
from connectors.core.processes.pool import Cache
from connectors.core.retry import OutageRule, wait_out
from connectors.registry.batches import BatchedRequests, schema_unusable
from connectors.registry.lookups import Lookup, by_id, context_of, normal_context, of_subject, qualified, subject_path
from connectors.registry.options import RegistryOptions
from connectors.registry.rules import Direction, check_rules

if TYPE_CHECKING:
    from connectors.registry.client import RegistryClient

_MOST_LEVELS: Final = 50
_MOST_FILES: Final = 1000
MOST_BYTES: Final = 16 << 20  # of a schema with all that it imports
TOO_LARGE: Final = f"with what it imports it is larger than {MOST_BYTES >> 20} MB"
_MOST_SCHEMAS: Final = 256  # schemas of subjects whose ids a client retains
_LARGEST_ID: Final = 2**32 - 1
_READERS: Final = {"AVRO": "from_avro", "JSON": "from_json_registry", "PROTOBUF": "from_protobuf"}
_UNASSIGNED: Final = 0  # no registry gives out this id
OWN: Final = ""
"""Stands for the name of a schema's own text among those of its references."""
_SURROGATE: Final = re.compile("[\ud800-\udfff]")

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
Ask = Callable[[str, int, str], dict[str, Any]]
"""Asks for the version of a subject, where the third argument says what it is; returns the response."""


class SchemaForm(Protocol[S_co]):
    """How schemas of one format are asked for, and what is made of them; one for each client.

    Attributes:
        extra: the extra of this pack that brings what a client of a registry needs.
    """

    extra: str

    def ask(self, client: RegistryClient, lookup: Lookup) -> Any:
        """Return the response for a schema, with its text. Raises as `RegistryClient.get`."""
        return client.get(lookup)

    def build(self, response: Mapping[str, Any], what: str, schema_id: int | str, ask: Ask) -> S_co:
        """Return what is made of a schema; the id is -1 where only its GUID is known."""
        ...


class Registry(Generic[S]):
    """A client of a registry; safe to use from several threads."""

    def __init__(self, options: RegistryOptions, form: SchemaForm[S]) -> None:
        with extra_imports(form.extra, "schemaRegistry"):
            from connectors.registry.client import RegistryClient  # noqa: PLC0415 - loads httpx2

        self._options, self._form = options, form
        self._outage_rule = OutageRule(options.retry_timeout)
        self._batches = BatchedRequests(self._by_id, self._probe, _UNASSIGNED, options.retry_timeout, options.timeout)
        self.by_ids: Final = self._batches.by_ids
        self._ids = Cache(_MOST_SCHEMAS)
        self._context = context_of(options.subject)
        self._client = RegistryClient(options)

    def _by_id(self, schema: int | str) -> S:
        lookup = by_id(schema, self._context)
        number = schema if isinstance(schema, int) else -1
        response = self._ask(lookup)
        self._check_rules(response, lookup.what, Direction.READ)
        return self._form.build(response, lookup.what, number, self._refer(self._context))

    def _probe(self, schema: int | str) -> None:
        self._ask(replace(by_id(schema, self._context), what="schema"))

    def latest(self, subject: str, *, writing: bool = False) -> S:
        """Return the latest version of a subject, with a new request each time."""
        subject = qualified(subject, self._context)
        lookup = of_subject(subject, "latest", what := f"subject {subject}")

        def ask() -> S:
            try:
                response = self._ask(lookup)
            except SourceGoneError as error:
                raise self._soft_deleted(lookup, subject) or error from None
            self._check_context(response, subject)
            self._check_rules(response, what, Direction.WRITE if writing else Direction.READ)
            return self._form.build(response, what, _id_in(response, what), self._refer(context_of(subject)))

        return wait_out(ask, self._outage_rule)

    def _soft_deleted(self, latest: Lookup, subject: str) -> ConnectorError | None:
        """Return the error for a subject whose versions are all soft-deleted; None if it has none at all."""
        path = latest.path.removesuffix("/latest")
        try:
            versions = self._client.get(replace(latest, path=path, query=(("deleted", "true"),)))
        except ConnectorError:
            return None
        if not versions:
            return None
        return SourceGoneError(
            "SCHEMA_NOT_FOUND",
            f"The subject {subject} of the schema registry is soft-deleted, so it has no latest version",
            self._options.address,
            "Register a schema under it again. To read messages, you can give the schema of the columns instead.",
        )

    def id_of(self, subject: str, text: str, schema_type: str, *, register: bool = False) -> int:
        """Return the id of a schema of a subject; asked for once in a process, since it never changes."""
        subject = qualified(subject, self._context)
        path = subject_path(subject, what := f"schema of {subject}") + ("/versions" if register else "")

        def ask() -> int:
            response = self._client.post(path, what, {"schema": text, "schemaType": schema_type})
            self._check_context(response, subject)
            number = _id_in(response, what)
            if "schema" not in response:  # older registries give the id of a new version alone, which has rules too
                response = self._ask(by_id(number, context_of(subject)))
            check_rules(response, what, Direction.WRITE)
            return number

        try:
            number: int = self._ids.get((path, text), lambda: wait_out(ask, self._outage_rule))
        except SourceGoneError:
            raise SourceGoneError(
                "SCHEMA_NOT_FOUND",
                f"The subject {subject} of the schema registry has no such schema",
                self._options.address,
                "Register it, or set the option auto.register.schemas to true.",
            ) from None
        return number

    def guid(self, schema_id: int | str) -> bytes:
        """Return the GUID of a schema. Raises as `RegistryClient.get`; SCHEMA_UNUSABLE where the registry has none."""
        lookup = by_id(schema_id, self._context)
        response = wait_out(lambda: self._ask(lookup), self._outage_rule)
        try:
            return UUID(response.get("guid")).bytes
        except (AttributeError, TypeError, ValueError):
            raise schema_unusable(
                lookup.what, "the response holds no GUID, which not every registry gives out"
            ) from None

    def _ask(self, lookup: Lookup) -> dict[str, Any]:
        response: dict[str, Any] = self._form.ask(self._client, lookup)
        text_of(response, "schema", lookup.what)
        return response

    def _refer(self, context: str | None) -> Ask:
        """Return how the references of a schema are asked for, whose subjects are in its context."""

        def ask(subject: str, version: int, what: str) -> dict[str, Any]:
            return self._ask(of_subject(qualified(subject, context), version, what))

        return ask

    def _check_rules(self, response: dict[str, Any], what: str, direction: Direction) -> None:
        """Refuse a schema with rules; what reads without them sees none."""
        ignored = direction is Direction.READ and self._options.ignore_read_rules
        check_rules(response, what, direction, ignored=ignored)
        if ignored:
            response.pop("ruleSet", None)

    def _check_context(self, response: object, subject: str) -> None:
        """Refuse a schema that the registry found in another context: its id would be taken for one of this."""
        answered = response.get("subject") if isinstance(response, dict) else None
        if not isinstance(answered, str):
            return
        ours = context_of(subject) or self._options.context
        theirs = normal_context(context_of(answered))
        if theirs and theirs != normal_context(ours):
            raise schema_unusable(
                f"subject {subject}", f"the registry has it in another context: give it as {answered!r:.200}"
            )


def _id_in(response: Any, what: str) -> int:
    schema_id = response.get("id") if isinstance(response, dict) else None
    if type(schema_id) is not int or not 0 <= schema_id <= _LARGEST_ID:
        raise schema_unusable(what, "the response holds no id")
    return schema_id


def gather(response: Mapping[str, Any], what: str, ask: Ask, schema_type: str) -> dict[str, str]:
    """Return the text of a schema, as `OWN`, and of all that it refers to, under the names by which it does.

    Each stands after those that it refers to.

    Raises:
        ConnectorError: SCHEMA_UNUSABLE for a schema of another type, too large, or with references without an end.
    """
    texts: dict[str, str] = {}
    total = 0

    def visit(name: str, response: Mapping[str, Any], what: str, level: int, context: str | None) -> None:
        kind = text_of(response, "schemaType", what, "AVRO")
        if kind != schema_type:
            reader = f"Read its messages with {_READERS[kind]}, or name" if kind in _READERS else "Name"
            action = f"{reader} a subject whose schema has the type {schema_type}."
            raise schema_unusable(what, f"it is a schema of the type {kind!r}", action)
        if level > _MOST_LEVELS or len(texts) >= _MOST_FILES:
            raise schema_unusable(what, "its references go round in a circle, or are too many")
        schema = text_of(response, "schema", what)
        nonlocal total
        total += len(schema)
        if total > MOST_BYTES:
            raise schema_unusable(what, TOO_LARGE)
        texts[name] = schema
        context = context_of(text_of(response, "subject", what, "")) or context
        for imported, subject, version in _references(response, what):
            if imported not in texts:
                inner = f"{what}, reference {imported!r}"
                visit(imported, ask(qualified(subject, context), version, inner), inner, level + 1, context)
        texts[name] = texts.pop(name)

    visit(OWN, response, what, 0, None)
    return texts


def _references(response: Mapping[str, Any], what: str) -> Iterator[tuple[str, str, int]]:
    """Yield the name of each reference, with the subject and version of its schema."""
    references = response.get("references") or ()
    if not isinstance(references, list | tuple):
        raise schema_unusable(what, "its references are not a list")
    for reference in references:
        imported, subject = (text_of(reference, key, what) for key in ("name", "subject"))
        if type(reference.get("version")) is not int:
            raise schema_unusable(what, f"its reference {imported!r} has no version")
        yield imported, subject, reference["version"]


def text_of(response: object, key: str, what: str, default: str | None = None) -> str:
    """Return a text of a response; SCHEMA_UNUSABLE where there is none, and no default."""
    value = response.get(key) if isinstance(response, dict) else None
    value = default if value is None else value
    if not isinstance(value, str) or _SURROGATE.search(value):
        raise schema_unusable(what, f"the response holds no {key}; is this the address of a schema registry?")
    return value
