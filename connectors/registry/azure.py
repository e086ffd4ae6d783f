"""The Azure Schema Registry of Event Hubs: options, client and frames, with schema ids of 32 hexadecimal digits.

    header content-type: avro/binary+ID    message    all serializers since 2022
    2c  avro/binary+ID (44 bytes)          message    those of Kafka Streams
    00000000  ID (32 bytes)                message    before 2022

Event Hubs hands AMQP's content type on as that header, in plain text. (Azure/azure-schema-registry-for-kafka, Python's
azure-schemaregistry 1.3.0, by its REST interface 2022-10, and azure-schemaregistry-avroserializer 1.0.0b4.)
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Generic, Self, TypeVar
from urllib.parse import parse_qsl, quote, urlsplit
from uuid import UUID

import numpy as np
import pyarrow as pa

from connectors.core.errors import OptionError
from connectors.core.formats import extra_imports
from connectors.core.functions.columns import validity_of
from connectors.core.options.declaration import declared_options, option, parse_options
from connectors.core.options.kinds import STRING, Kind
from connectors.core.processes.pool import Cache
from connectors.core.retry import OutageRule, wait_out
from connectors.registry.batches import BatchedRequests, schema_unusable
from connectors.registry.frames import Frames, bounds_of, headers_by_name
from connectors.registry.lookups import Lookup
from connectors.registry.options import WORD, RegistryOptions, parse_registry_options
from connectors.registry.schemas import SchemaForm

_ENTRA_ID: Final = "https://login.microsoftonline.com"
_SCOPE: Final = "https://eventhubs.azure.net/.default"
_API: Final = (("api-version", "2022-10"),)
_AVRO: Final = "application/json; serialization=Avro"
_KIND: Final = re.compile(r"serialization=(\w+)", re.IGNORECASE)
_CHECK: Final = "Check the namespace, schemaGroup and the schema's name."
_HEADER: Final = "content-type"
_CONTENT_TYPE: Final = re.compile(rb"avro/binary\+([0-9a-fA-F]{32})")
_FRAME: Final = re.compile(rb"(?:\x2cavro/binary\+|\0{4})([0-9a-fA-F]{32})")

S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureOptions:
    """Where a registry is; made by `parse_azure_options`. How to connect has the names of `RegistryOptions`."""

    uses_confluent: ClassVar = False
    auto_register: ClassVar = False

    type: str = option("type", Kind("choice", "azure", str.lower), "azure: the Azure Schema Registry.")
    namespace: str | None = option(
        "fullyQualifiedNamespace",
        WORD,
        "The namespace, such as NAME.servicebus.windows.net. Or give its https:// URL as schema.registry.url.",
        default=None,
    )
    group: str = option("schemaGroup", STRING, "The group of the schema.", aliases=("schema.group",))
    subject: str | None = option(
        "schemaName",
        STRING,
        "The schema whose latest version says what the columns are, and what is written, where the call has no schema. "
        "Without it, to_avro looks a schema up by the full name of its record, as Azure's serializers do.",
        default=None,
        aliases=("subject", "schema.registry.subject"),
    )
    tenant: str | None = option(
        "tenantId",
        WORD,
        "The tenant of bearer.auth.client.id. Outside the public cloud give bearer.auth.issuer.endpoint.url instead.",
        default=None,
    )
    connection: RegistryOptions = field(default_factory=lambda: RegistryOptions(address=""))

    @property
    def named_subject(self) -> str | None:
        """The schema's name."""
        return self.subject

    def subject_missing(self) -> OptionError:
        """Return the error for a call that writes without the name of a schema."""
        what = "The option schemaName is required to write without the schema of a record"
        return OptionError("OPTION_MISSING", what, "schemaRegistry", "Give the name of a schema in the group.")

    def for_client(self) -> Self:
        """Return the options without the schema's name: one client is for all of a group."""
        return replace(self, subject=None)


def parse_azure_options(raw: Mapping[str, str]) -> AzureOptions:
    """Parse the dictionary passed as schemaRegistry; raises OptionError."""
    names = {name.lower() for one in declared_options(AzureOptions).values() for name in (one.name, *one.aliases)}
    own = {name: value for name, value in raw.items() if name.lower() in names}
    options = parse_options(AzureOptions, own, os.environ, "schemaRegistry")
    theirs = {name: value for name, value in raw.items() if name not in own}
    if options.namespace is not None:
        theirs["schema.registry.address"] = f"https://{options.namespace}"
    if options.tenant is not None:
        theirs["bearer.auth.issuer.endpoint.url"] = f"{_ENTRA_ID}/{options.tenant}/oauth2/v2.0/token"
    connection = parse_registry_options(theirs)
    return replace(options, connection=replace(connection, scope=connection.scope or _SCOPE))


class AzureRegistry(Generic[S]):
    """A client of the registry of a namespace, whose schemas never change under an id; safe for several threads."""

    def __init__(self, options: AzureOptions, form: SchemaForm[S]) -> None:
        with extra_imports(form.extra, "schemaRegistry"):
            from connectors.registry.client import RegistryClient  # noqa: PLC0415 - loads httpx2

        self._group, self._form, at = options.group, form, options.connection
        self._client, self._ids = RegistryClient(at), Cache(256)  # ids by name and text
        self._outage_rule = OutageRule(at.retry_timeout)
        batches = BatchedRequests(self._by_id, self._by_id, str(UUID(int=0)), at.retry_timeout, at.timeout)
        self.by_ids: Final = batches.by_ids

    def latest(self, subject: str, *, writing: bool = False) -> S:  # noqa: ARG002 - Azure has no rules
        """Return the latest version of a schema, with new requests each time."""
        lookup = self._named(subject, "/versions")
        return wait_out(lambda: self._schema(self._newest(lookup)), self._outage_rule)

    def id_of(self, subject: str, text: str, schema_type: str, *, register: bool = False) -> str:  # noqa: ARG002
        """Return the id of a schema by its name and text; asked for once in a process, since it never changes."""
        method, end = ("PUT", "") if register else ("POST", ":get-id")
        missing = f"Register it, or set the option auto.register.schemas to true. {_CHECK}"
        lookup = replace(self._named(subject, end), missing=missing)

        def ask() -> str:
            headers, _ = self._client.send(method, lookup, text.encode(), {"Content-Type": _AVRO})
            return _id_in(headers, lookup.what)

        return self._ids.get((lookup.path, text), lambda: wait_out(ask, self._outage_rule))

    def guid(self, schema_id: int | str) -> bytes:
        """Return the bytes of an id."""
        return UUID(str(schema_id)).bytes

    def _by_id(self, schema: int | str) -> S:
        number = UUID(str(schema)).hex
        lookup = Lookup(f"/$schemaGroups/$schemas/{number}", f"schema id {number}", _CHECK, _API)
        return self._schema(lookup, number)

    def _schema(self, lookup: Lookup, number: str = "") -> S:
        headers, body = self._client.send("GET", lookup, headers={"Accept": _AVRO})
        kind = _KIND.search(headers.get("content-type", ""))
        name = kind[1].lower() if kind else "custom"
        response = {"schema": body.decode(errors="surrogateescape"), "schemaType": "AVRO" if name == "avro" else name}
        return self._form.build(response, lookup.what, number or _id_in(headers, lookup.what), lambda *_: {})

    def _newest(self, lookup: Lookup) -> Lookup:
        """Return the request for the latest of versions; no order of their pages is documented."""
        numbers, page = list[int](), lookup
        for _ in range(100):  # pages: no schema has more
            response = self._client.get(page)
            try:
                numbers += map(int, response["Value"])
                link = urlsplit(response.get("NextLink") or "")
                if not link.path:
                    return replace(lookup, path=f"{lookup.path}/{max(numbers)}")
            except (AttributeError, KeyError, TypeError, ValueError):
                break
            page = replace(lookup, path=link.path, query=(*dict([*parse_qsl(link.query), *_API]).items(),))
        raise schema_unusable(lookup.what, "the response holds no versions")

    def _named(self, subject: str, end: str) -> Lookup:
        path = f"/$schemaGroups/{quote(self._group, safe='')}/schemas/{quote(subject, safe='')}{end}"
        return Lookup(path, f"schema {subject} of the group {self._group}", _CHECK, _API)


def _id_in(headers: Mapping[str, str], what: str) -> str:
    try:
        return UUID(headers.get("schema-id", "")).hex
    except ValueError:
        raise schema_unusable(what, "the response holds no id of a schema") from None


def find_azure_frames(column: pa.BinaryArray, headers: pa.Array | None = None) -> Frames:
    """Take the frames of a batch apart; the header, where a row has it, goes before what the message begins with."""
    bounds = bounds_of(column) if len(column) else np.zeros(1, np.int64)
    frames = Frames(column, np.full(len(column), -1, np.int64), bounds[:-1].copy())
    data, named = memoryview(column.buffers()[2] or b""), dict[int, str]()
    mappings = [None] * len(column) if headers is None else headers_by_name(headers)
    for row in np.flatnonzero(validity_of(column)).tolist():
        value = (mappings[row] or {}).get(_HEADER)
        match = _CONTENT_TYPE.fullmatch(value or b"")
        if match is None and (match := _FRAME.match(data, bounds[row], bounds[row + 1])) is not None:
            frames.begin[row] = match.end()
        if match is not None:
            named[row] = match[1].decode().lower()
        else:
            begin = bytes(data[bounds[row] : bounds[row + 1]][:6]).hex(" ") or "no byte"
            frames.errors[row] = f"is not a frame of Azure: it begins with {begin}, and its {_HEADER} is {value!r:.80}"
    frames.note(np.fromiter(named, np.int64), named.values(), np.arange(len(named)))
    return frames


def content_type(guid: bytes, *, is_key: bool) -> tuple[str, bytes]:  # noqa: ARG001 - keys are refused
    """Return the header, by its name, of a message by the schema of this id."""
    return _HEADER, b"avro/binary+" + guid.hex().encode()


def azure_prefix(schema_id: int | str) -> bytes:
    """Return what stands before a message for the deserializers of Kafka Streams."""
    _, text = content_type(UUID(str(schema_id)).bytes, is_key=False)
    return bytes([len(text)]) + text
