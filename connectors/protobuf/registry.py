"""Schema registries that speak Confluent's REST interface: fetched by id, GUID or subject, with their references.

A registry gives a schema as text, or, asked with ``format=serialized``, as a descriptor; text needs protoc, which
comes with grpcio-tools. What was fetched is kept for the life of the process: a schema never changes under its id.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlsplit

from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from connectors.core.backoff import RetryPolicy, retry
from connectors.core.cache import Cache
from connectors.core.errors import AccessDeniedError, ConnectorError, ServiceUnavailableError, SourceGoneError
from connectors.core.option_kinds import DURATION, SECRET, STRING, Kind, Secret
from connectors.core.options import option, parse_options

__all__ = ["RegisteredSchema", "Registry", "RegistryOptions", "parse_registry_options"]

_TRANSIENT: Final = {429, 500, 502, 503, 504}
_DEPTH: Final = 50


def _parse_address(text: str) -> str:
    url = urlsplit(text)
    if url.scheme not in {"http", "https"} or not url.hostname:
        raise ValueError("it is no http or https URL")
    if url.username or url.password:
        raise ValueError("it holds a user's name; give basic.auth.user.info instead")
    return text.rstrip("/")


_MOST_KNOWN: Final = 256
"""Schemas that a client keeps, each with all that it imports."""
_ADDRESS: Final = Kind("URL", "an http:// or https:// URL", str, _parse_address)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryOptions:
    """Where a registry is; made by `parse_registry_options`. Names as on Databricks, and short ones."""

    address: str = option(
        "schema.registry.address",
        _ADDRESS,
        "The URL of the registry.",
        aliases=("address", "url", "schema.registry.url"),
    )
    subject: str | None = option(
        "schema.registry.subject",
        STRING,
        "The subject whose latest version says what the columns are, for from_protobuf without a descriptor set, and "
        "what to_protobuf writes.",
        default=None,
        aliases=("subject",),
    )
    user_info: Secret | None = option(
        "confluent.schema.registry.basic.auth.user.info",
        SECRET,
        "User and password for basic authentication: user:password.",
        default=None,
        aliases=("basic.auth.user.info",),
    )
    token: Secret | None = option(
        "confluent.schema.registry.bearer.auth.token",
        SECRET,
        "A bearer token.",
        default=None,
        aliases=("bearer.auth.token",),
    )
    credentials_source: str | None = option(
        "confluent.schema.registry.basic.auth.credentials.source",
        STRING,
        "Only USER_INFO is possible; taken so that options of Databricks can be used as they are.",
        default=None,
        aliases=("basic.auth.credentials.source",),
    )
    ca_file: str | None = option(
        "confluent.schema.registry.ssl.ca.location",
        STRING,
        "A file of certificates (PEM) that the registry's own must descend from; it must be on driver and executors.",
        default=None,
        aliases=("ssl.ca.location",),
        instead_of=("confluent.schema.registry.ssl.truststore.location",),
    )
    timeout: float = option(
        "request.timeout", DURATION, "How long one request may take.", default="10s", minimum="1ms", maximum="5m"
    )
    retry_timeout: float = option(
        "retry.timeout",
        DURATION,
        "How long a registry that does not answer, or answers 429 or 5xx, is asked again.",
        default="60s",
        minimum="0",
        maximum="1h",
    )


def parse_registry_options(raw: Mapping[str, str]) -> RegistryOptions:
    """Parse the dictionary given as schemaRegistry.

    Raises:
        OptionError: an option is unknown, missing or illegal.
    """
    return parse_options(RegistryOptions, raw, os.environ, "schemaRegistry")


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


class Registry:
    """A client; safe to use from several threads.

    Args:
        options: where the registry is.
    """

    def __init__(self, options: RegistryOptions) -> None:
        self._options = options
        self._policy = RetryPolicy(deadline_seconds=options.retry_timeout)
        self._known = Cache(_MOST_KNOWN)
        self._context = ssl.create_default_context(cafile=options.ca_file) if options.ca_file else None

    def by_id(self, schema_id: int) -> RegisteredSchema:
        """The schema with an id.

        Raises:
            SourceGoneError: SCHEMA_NOT_FOUND, for an id that the registry has not.
            ServiceUnavailableError: SCHEMA_REGISTRY_UNAVAILABLE, when it does not answer.
            AccessDeniedError: SCHEMA_REGISTRY_ACCESS_DENIED.
        """
        return self._get(f"/schemas/ids/{schema_id}", f"schema id {schema_id}", schema_id)

    def by_guid(self, guid: str) -> RegisteredSchema:
        """The schema with a GUID, given as 32 hexadecimal digits; raises as `by_id`."""
        dashed = "-".join((guid[:8], guid[8:12], guid[12:16], guid[16:20], guid[20:]))
        return self._get(f"/schemas/guids/{dashed}", f"schema GUID {dashed}", -1)

    def latest(self, subject: str) -> RegisteredSchema:
        """The latest version of a subject; asked anew each time. Raises as `by_id`."""
        what = f"subject {subject}"
        answer = self._ask(f"/subjects/{quote(subject, safe='')}/versions/latest?format=serialized", what)
        if not isinstance(answer.get("id"), int):
            raise _unusable(what, "the answer holds no id")
        return self._schema(answer, what, answer["id"])

    def _get(self, path: str, what: str, schema_id: int) -> RegisteredSchema:
        def ask() -> RegisteredSchema:
            return self._schema(self._ask(f"{path}?format=serialized", what), what, schema_id)

        return self._known.get(path, ask)

    def _schema(self, answer: Mapping[str, Any], what: str, schema_id: int) -> RegisteredSchema:
        main = str(answer.get("subject") or what).replace(" ", "-") + ".proto"
        files: dict[str, FileDescriptorProto] = {}
        texts: dict[str, str] = {}
        self._gather(main, answer, what, files, texts, 0)
        if texts:
            return RegisteredSchema(schema_id, _compile(main, texts, files, what), main)
        found = FileDescriptorSet(file=[files.pop(main), *files.values()])
        found.file[0].name = main
        _add_well_known(found)
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
        if answer.get("schemaType", "AVRO") != "PROTOBUF":
            raise _unusable(what, f"it is a schema of the type {answer.get('schemaType', 'AVRO')}")
        if depth > _DEPTH:
            raise _unusable(what, "its references go round in a circle")
        descriptor = _as_descriptor(str(answer["schema"]))
        if descriptor is None:
            texts[name] = str(answer["schema"])
        else:
            descriptor.name = name
            files[name] = descriptor
        for reference in answer.get("references") or ():
            imported = str(reference["name"])
            if imported not in files and imported not in texts:
                path = f"/subjects/{quote(str(reference['subject']), safe='')}/versions/{int(reference['version'])}"
                inner = f"{what}, reference {imported}"
                self._gather(imported, self._ask(f"{path}?format=serialized", inner), inner, files, texts, depth + 1)

    def _ask(self, path: str, what: str) -> dict[str, Any]:
        """One answer of the registry, asked again while it is in trouble."""
        found: dict[str, Any] = retry(lambda: self._request(path, what), self._policy)
        return found

    def _request(self, path: str, what: str) -> dict[str, Any]:
        request = urllib.request.Request(self._options.address + path, headers=self._headers())  # noqa: S310 - checked
        try:
            with urllib.request.urlopen(  # noqa: S310 - checked where the option is parsed
                request, timeout=self._options.timeout, context=self._context
            ) as response:
                found = json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                raise self._http_error(error, what) from None
        except (OSError, http.client.HTTPException, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise self._unavailable(f"{type(error).__name__}: {error}", what) from None
        if not isinstance(found, dict) or not isinstance(found.get("schema"), str):
            raise _unusable(what, "the answer holds no schema; is this the address of a schema registry?")
        return found

    def _headers(self) -> dict[str, str]:
        found = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if self._options.user_info is not None:
            encoded = base64.b64encode(self._options.user_info.reveal().encode()).decode()
            found["Authorization"] = f"Basic {encoded}"
        elif self._options.token is not None:
            found["Authorization"] = f"Bearer {self._options.token.reveal()}"
        return found

    def _http_error(self, error: urllib.error.HTTPError, what: str) -> ConnectorError:
        if error.code in {401, 403}:
            return AccessDeniedError(
                "SCHEMA_REGISTRY_ACCESS_DENIED",
                f"The schema registry refuses access to {what} (HTTP {error.code})",
                self._options.address,
                "Give basic.auth.user.info or bearer.auth.token of someone who may read it.",
            )
        if error.code == 404:  # noqa: PLR2004 - HTTP
            return SourceGoneError(
                "SCHEMA_NOT_FOUND",
                f"The schema registry has no {what}",
                self._options.address,
                "See that the address is that of the registry by which the messages were written.",
            )
        if error.code in _TRANSIENT:
            return self._unavailable(f"HTTP {error.code}", what)
        return _unusable(what, f"the registry answers HTTP {error.code}")

    def _unavailable(self, why: str, what: str) -> ConnectorError:
        return ServiceUnavailableError(
            "SCHEMA_REGISTRY_UNAVAILABLE",
            f"The schema registry cannot be asked for {what}: {why}",
            self._options.address,
            "See that driver and executors can reach it; retry.timeout says how long it is asked again.",
        )


def _unusable(what: str, why: str) -> ConnectorError:
    return ConnectorError("SCHEMA_UNUSABLE", f"The {what} cannot be used: {why}", "schemaRegistry")


def _as_descriptor(schema: str) -> FileDescriptorProto | None:
    """The descriptor in an answer; None for the text of a .proto file."""
    try:
        data = base64.b64decode(schema, validate=True)
        return FileDescriptorProto.FromString(data)
    except (binascii.Error, ValueError, DecodeError):
        return None


def _add_well_known(files: FileDescriptorSet) -> None:
    """Add what comes with protobuf itself, which no one registers as a reference."""
    from connectors.protobuf.descriptors import well_known_class  # noqa: PLC0415 - loads these files

    well_known_class("com.google.protobuf.Any")
    present = {file.name for file in files.file}
    todo = [name for file in files.file for name in file.dependency]
    while todo:
        name = todo.pop()
        if name in present or not name.startswith("google/"):
            continue
        present.add(name)
        try:
            found = descriptor_pool.Default().FindFileByName(name)
        except KeyError:
            continue  # then loading the set names what is missing
        found.CopyToProto(files.file.add())
        todo += files.file[-1].dependency


def _compile(main: str, texts: Mapping[str, str], files: Mapping[str, FileDescriptorProto], what: str) -> bytes:
    """The descriptor set of schemas in text, by protoc."""
    if files:
        raise _unusable(what, "the registry gives some of its files as text and some as descriptors")
    try:
        import grpc_tools  # type: ignore[import-untyped]  # noqa: PLC0415 - optional
        from grpc_tools import protoc  # noqa: PLC0415
    except ImportError:
        raise _unusable(
            what, "the registry gives it as text only, and to compile that takes grpcio-tools: pip install grpcio-tools"
        ) from None
    from pathlib import Path  # noqa: PLC0415 - only here
    from tempfile import TemporaryDirectory  # noqa: PLC0415 - only here

    with TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        for name, text in texts.items():
            path = (root / name).resolve()
            if root not in path.parents:
                raise _unusable(what, f"it imports {name!r}, which is no name of a file")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        known = Path(grpc_tools.__file__).parent / "_proto"
        target = root / "set.desc"
        command = ["protoc", f"-I{root}", f"-I{known}", "--include_imports", f"--descriptor_set_out={target}"]
        if protoc.main([*command, str(root / main)]):
            raise _unusable(what, "protoc does not accept its text")
        return target.read_bytes()
