"""Schema registries that speak Confluent's REST interface: fetched by id, GUID or subject, with their references.

A registry gives a schema as text, or, asked with ``format=serialized``, as a descriptor; text needs protoc, which
comes with grpcio-tools. What was fetched is kept for the life of the process: a schema never changes under its id.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from connectors.core.errors import ConnectorError, ServiceUnavailableError, SourceGoneError
from connectors.core.pool import Cache
from connectors.core.retry import RetryPolicy, retry
from connectors.protobuf.confluent.registry_client import RegistryClient, unusable
from connectors.protobuf.confluent.registry_files import add_well_known, as_descriptor, compile_texts
from connectors.protobuf.confluent.registry_options import RegistryOptions, parse_registry_options

__all__ = ["RegisteredSchema", "Registry", "RegistryOptions", "parse_registry_options"]

_DEPTH: Final = 50
_MOST_FILES: Final = 1000
_MOST_KNOWN: Final = 256
"""Schemas that a client keeps, each with all that it imports."""
_LARGEST_ID: Final = 2**32 - 1
_UNASSIGNED: Final = "/schemas/ids/0"
"""No registry gives out the id 0."""
_OF_ONE_SCHEMA: Final = {"SCHEMA_NOT_FOUND", "SCHEMA_UNUSABLE"}
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """One schema.

    Attributes:
        schema_id: its id; -1 where only its GUID is known.
        files: its descriptor set, with all that it imports.
        main: the name of its own file in the set.
    """

    schema_id: int
    files: bytes
    main: str


Results: TypeAlias = dict[int | str, RegisteredSchema | ConnectorError]


def _failed(results: Results) -> int:
    return sum(isinstance(result, ConnectorError) for result in results.values())


class Registry:
    """A client; safe to use from several threads.

    Args:
        options: where the registry is.
    """

    def __init__(self, options: RegistryOptions) -> None:
        self._options = options
        self._policy = RetryPolicy(deadline_seconds=options.retry_timeout)
        self._known = Cache(_MOST_KNOWN)
        self._served = _UNASSIGNED
        self._client = RegistryClient(options.address, options.headers(), options.tls_context(), options.timeout)

    def by_id(self, schema_id: int | str) -> RegisteredSchema:
        """Return the schema with an id, or with a GUID, given as 32 hexadecimal digits.

        Raises:
            SourceGoneError: SCHEMA_NOT_FOUND, for one that the registry has not.
            ServiceUnavailableError: SCHEMA_REGISTRY_UNAVAILABLE, when it does not answer.
            ConnectorError: as `RegistryClient.get`.
        """
        return retry(lambda: self._by_id(schema_id), self._policy)

    def by_ids(self, ids: Iterable[int | str], most_failures: int, patience: float | None = None) -> Results:
        """Return several schemas, and for each that cannot be had the reason.

        While the registry answers for others, one that it cannot give is no reason to stop: any bytes can look like an
        id, and some registries answer 5xx for ids that they cannot have given.

        Args:
            ids: the ids and GUIDs, in the order in which to ask for them.
            most_failures: how many may fail before no further one is asked for.
            patience: for how many seconds to ask again for those that the registry fails to answer for; None for
                `retry.timeout`.

        Raises:
            ConnectorError: as `RegistryClient.get`, for what is wrong with the registry and not with one schema.
        """
        schemas: Results = {}
        pending: dict[int | str, ConnectorError | None] = dict.fromkeys(ids)
        policy = self._policy if patience is None else RetryPolicy(deadline_seconds=patience)
        end = time.monotonic() + self._options.retry_timeout + self._options.timeout

        def ask() -> None:
            self._ask_once(schemas, pending, most_failures, end)

        with contextlib.suppress(ServiceUnavailableError):  # it stands in pending
            retry(ask, policy)
        failures = [error for error in (*schemas.values(), *pending.values()) if isinstance(error, ConnectorError)]
        odd = [error for error in failures if not isinstance(error, SourceGoneError)]
        if odd:
            if not self._serves():
                raise odd[-1]
            with contextlib.suppress(ServiceUnavailableError):
                ask()  # the registry may serve again only since then
        schemas |= {schema: error for schema, error in pending.items() if error is not None}
        if odd and None in pending.values() and _failed(schemas) < most_failures:
            raise odd[-1]  # no time was left to ask for these
        return schemas

    def _ask_once(
        self, schemas: Results, pending: dict[int | str, ConnectorError | None], most_failures: int, end: float
    ) -> None:
        """Ask for each pending schema, and move what is final from there to the results."""
        failures = _failed(schemas)
        trouble: ConnectorError | None = None
        for schema in tuple(pending):
            if failures >= most_failures or (trouble is not None and time.monotonic() > end):
                break
            try:
                schemas[schema] = self._by_id(schema)
            except ServiceUnavailableError as error:
                trouble = pending[schema] = error
                failures += 1
                continue
            except ConnectorError as error:
                if error.code not in _OF_ONE_SCHEMA:
                    raise
                schemas[schema] = error
                failures += 1
            del pending[schema]
        if trouble is not None:
            raise trouble

    def _by_id(self, schema: int | str) -> RegisteredSchema:
        path, what = f"/schemas/ids/{schema}", f"schema id {schema}"
        if isinstance(schema, str):
            dashed = "-".join((schema[:8], schema[8:12], schema[12:16], schema[16:20], schema[20:]))
            path, what = f"/schemas/guids/{dashed}", f"schema GUID {dashed}"

        def ask() -> RegisteredSchema:
            return self._schema(self._ask(path, what), what, schema if isinstance(schema, int) else -1)

        found = self._known.get(path, ask)
        self._served = path
        return found

    def _serves(self) -> bool:
        """Ask whether the registry answers for schemas: for the last one that it gave, or for one that nobody has."""
        try:
            self._ask(self._served, "schema")
        except SourceGoneError:
            return True
        except ConnectorError:
            return False
        return True

    def latest(self, subject: str) -> RegisteredSchema:
        """Return the latest version of a subject; asked anew each time. Raises as `by_id`."""
        what = f"subject {subject}"

        def ask() -> RegisteredSchema:
            answer = self._ask(f"/subjects/{quote(subject, safe='')}/versions/latest", what)
            schema_id = answer.get("id")
            if type(schema_id) is not int or not 0 <= schema_id <= _LARGEST_ID:
                raise unusable(what, "the answer holds no id")
            return self._schema(answer, what, schema_id)

        return retry(ask, self._policy)

    def _schema(self, answer: Mapping[str, Any], what: str, schema_id: int) -> RegisteredSchema:
        main = _text(answer, "subject", what, what).replace(" ", "-") + ".proto"
        files: dict[str, FileDescriptorProto] = {}
        texts: dict[str, str] = {}
        self._gather(main, answer, what, files, texts, 0)
        if texts:
            return RegisteredSchema(schema_id, compile_texts(main, texts, files, what), main)
        found = FileDescriptorSet(file=[files.pop(main), *files.values()])
        found.file[0].name = main
        add_well_known(found)
        return RegisteredSchema(schema_id, found.SerializeToString(deterministic=True), main)

    def _gather(
        self,
        name: str,
        answer: Mapping[str, Any],
        what: str,
        files: dict[str, FileDescriptorProto],
        texts: dict[str, str],
        depth: int,
    ) -> None:
        """Collect a schema and its references under the names by which they are imported."""
        kind = _text(answer, "schemaType", what, "AVRO")
        if kind != "PROTOBUF":
            raise unusable(what, f"it is a schema of the type {kind!r}")
        if depth > _DEPTH or len(files) + len(texts) >= _MOST_FILES:
            raise unusable(what, "its references go round in a circle, or are too many")
        schema = _text(answer, "schema", what)
        descriptor = as_descriptor(schema)
        if descriptor is None:
            texts[name] = schema
        else:
            descriptor.name = name
            files[name] = descriptor
        references = answer.get("references") or ()
        if not isinstance(references, list | tuple):
            raise unusable(what, "its references are no list")
        for reference in references:
            imported, subject = (_text(reference, key, what) for key in ("name", "subject"))
            if type(reference.get("version")) is not int:
                raise unusable(what, f"its reference {imported!r} has no version")
            if imported not in files and imported not in texts:
                path = f"/subjects/{quote(subject, safe='')}/versions/{reference['version']}"
                inner = f"{what}, reference {imported!r}"
                self._gather(imported, self._ask(path, inner), inner, files, texts, depth + 1)

    def _ask(self, path: str, what: str) -> dict[str, Any]:
        """One answer of the registry that holds a schema."""
        found = self._client.get(f"{path}?format=serialized", what)
        _text(found, "schema", what)
        return found


def _text(answer: object, key: str, what: str, default: str | None = None) -> str:
    """Return a text of an answer."""
    value = answer.get(key) if isinstance(answer, dict) else None
    value = default if value is None else value
    if not isinstance(value, str) or _SURROGATE.search(value):
        raise unusable(what, f"the answer holds no {key}; is this the address of a schema registry?")
    return value
