"""Which member each message is of: by the record that its frame's schema names, by that schema's id, or by a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from connectors.core.formats import extra_imports, not_installed
from connectors.core.functions.bad_rows import BadRowError, ColumnTypeError
from connectors.core.functions.columns import validity_of
from connectors.registry.frames import Frames, Rows, WriterSchemas
from connectors.registry.glue.options import AnyRegistryOptions
from connectors.registry.kinds import kind_of, retained_registry
from connectors.registry.lookups import Lookup
from connectors.registry.rules import Migrations
from connectors.registry.schemas import Ask, SchemaForm, text_of

if TYPE_CHECKING:
    from connectors.protobuf.confluent.registry import RegisteredSchema as ProtobufSchema
    from connectors.registry.client import RegistryClient

_AVRO: Final = "AVRO"
_PROTOBUF: Final = "PROTOBUF"


class By(StrEnum):
    """What says which member a message is of."""

    RECORD_NAME = "recordName"
    SCHEMA_ID = "schemaId"
    COLUMN = "column"


@dataclass(frozen=True, slots=True)
class NamedSchema:
    """A schema of any format with the name of its record; of protobuf, each message index has a name of its own."""

    name: str
    migrations: Migrations
    protobuf: ProtobufSchema | None = None


class NameForm(SchemaForm[NamedSchema]):
    """How schemas of all formats are asked for, for the names of their records."""

    extra = "avro"

    def ask(self, client: RegistryClient, lookup: Lookup) -> Any:
        """Return the response for a schema; with a descriptor in it, if the schema is one of protobuf."""
        response: object = client.get(lookup)
        if not isinstance(response, dict) or response.get("schemaType") != _PROTOBUF or not _reads_protobuf():
            return response
        return self._protobuf.ask(client, lookup)

    def build(self, response: Mapping[str, Any], what: str, schema_id: int | str, ask: Ask) -> NamedSchema:
        """Return the name; SCHEMA_UNUSABLE where the schema cannot be parsed."""
        kind = text_of(response, "schemaType", what, _AVRO)
        if kind == _AVRO:
            with extra_imports("avro", "from_mixed"):
                from connectors.avro.registered import AvroForm  # noqa: PLC0415 - the pack may lack what it needs
            avro = AvroForm().build(response, what, schema_id, ask)
            return NamedSchema(avro.type.name, avro.migrations)
        if kind == _PROTOBUF and _reads_protobuf():
            protobuf = self._protobuf.build(response, what, schema_id, ask)
            return NamedSchema("", protobuf.migrations, protobuf)
        from connectors.json.registry import JsonForm  # noqa: PLC0415 - as above

        json = JsonForm().build(response, what, schema_id, ask)
        return NamedSchema(title_of(json.documents.own.value), json.migrations)

    @cached_property
    def _protobuf(self) -> Any:
        from connectors.protobuf.confluent.registry import ProtobufForm  # noqa: PLC0415 - as above

        return ProtobufForm()


def title_of(schema: object) -> str:
    """Return the title of a JSON Schema, which is the name of its record; empty without one."""
    title = schema.get("title") if isinstance(schema, Mapping) else None
    return title if isinstance(title, str) else ""


def _reads_protobuf() -> bool:
    """Return whether the names of protobuf's messages can be read; where not, no member can be of that format."""
    return not not_installed(["google.protobuf"])


class Selection:
    """Finds the member of each message.

    Args:
        by: what says it.
        keys: of each member, the names, ids or values that select it.
        registry: where the schemas of frames are; None only for a column.
        is_key: whether headers are searched for the schema of the key.
        permissive: whether messages whose schema the registry cannot give are bad rows, while it gives others.
    """

    def __init__(
        self,
        by: By,
        keys: Sequence[Sequence[str]],
        registry: AnyRegistryOptions | None,
        *,
        is_key: bool,
        permissive: bool,
    ) -> None:
        self._by, self._registry, self._is_key = by, registry, is_key
        self._places = {key: place for place, several in enumerate(keys) for key in several}
        self._expected = f"the types are: {', '.join(self._places)}"
        self._schemas = WriterSchemas[NamedSchema](permissive=permissive)

    def find(
        self, messages: pa.BinaryArray, headers: pa.Array | None, types: pa.Array | None
    ) -> tuple[Rows, dict[int, str], Frames | None]:
        """Return the place of the member of each message, -1 where there is none, and why by row unless it is NULL.

        The frames come with them if they were looked at.
        """
        if types is not None:
            return *self._by_column(messages, types), None
        assert self._registry is not None  # noqa: S101 - the driver has checked that
        frames = kind_of(self._registry).find(messages, headers, is_key=self._is_key)
        members = np.full(len(frames.schemas) + 1, -1, np.int64)  # the last one is for rows without a schema
        reasons = [""] * len(frames.schemas)
        protobuf: dict[int | str, ProtobufSchema] = {}
        if self._by is By.SCHEMA_ID:
            named: Mapping[int | str, NamedSchema | str] = {}
        else:
            counts = dict(zip(frames.schemas, np.bincount(frames.which + 1)[1:].tolist(), strict=True))
            named = self._schemas.get(self._registry_client, counts, counts) if counts else {}
        for place, schema in enumerate(frames.schemas):
            fetched = named.get(schema)
            if isinstance(fetched, str):
                reasons[place] = fetched
            elif fetched is not None and fetched.protobuf is not None:
                protobuf[schema] = fetched.protobuf
            else:
                key = str(schema).replace("-", "") if fetched is None else fetched.name
                members[place], reasons[place] = self._place(key, schema)
        which, errors = members[frames.which], dict(frames.errors)
        if protobuf:
            rows = np.flatnonzero(np.isin(frames.which, [frames.schemas.index(schema) for schema in protobuf]))
            self._select_protobuf(which, errors, (rows, protobuf), messages, headers)
        for row in np.flatnonzero((frames.which >= 0) & (which < 0)).tolist():
            errors.setdefault(row, reasons[frames.which[row]])
        return which, errors, frames

    @cached_property
    def _registry_client(self) -> Any:
        assert self._registry is not None  # noqa: S101 - else there are no frames
        return retained_registry(self._registry, NameForm)

    def _place(self, key: str | None, schema: int | str | None = None) -> tuple[int, str]:
        """Return the place of a member, and the reason of a bad row if there is none."""
        place = self._places.get(key or "", -1)
        if place >= 0:
            return place, ""
        if self._by is By.SCHEMA_ID:
            return place, f"has the schema {schema}, which no member lists; {self._expected}"
        if key is None:
            return place, f"has NULL as its type; {self._expected}"
        where = "" if schema is None else f", by the schema {schema}"
        return place, f"has the type {key!r:.200}{where}, which is that of no member; {self._expected}"

    def _by_column(self, messages: pa.BinaryArray, types: pa.Array) -> tuple[Rows, dict[int, str]]:
        kind = types.type
        if not (kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_null(kind)):
            what = f"The types of messages must be STRING, and are {kind}"
            raise ColumnTypeError("DATATYPE_MISMATCH", what, "from_mixed, by", "Cast the column to STRING.")
        names = types.cast(pa.string())
        indexes = pc.index_in(names, value_set=pa.array(list(self._places), pa.string())).fill_null(-1).to_numpy()
        which = np.array([*self._places.values(), -1], np.int64)[indexes]
        valid = validity_of(messages)
        which[~valid] = -1
        unknown = np.flatnonzero(valid & (which < 0)).tolist()
        return which, {row: self._place(names[row].as_py())[1] for row in unknown}

    def _select_protobuf(
        self,
        which: Rows,
        errors: dict[int, str],
        chosen: tuple[Rows, Mapping[int | str, ProtobufSchema]],
        messages: pa.BinaryArray,
        headers: pa.Array | None,
    ) -> None:
        """Put the members of messages of protobuf into `which`, by the message indexes of their frames."""
        from connectors.protobuf.glue import framing_of  # noqa: PLC0415 - as in NameForm

        rows, schemas = chosen
        framing = framing_of(self._registry, is_key=self._is_key)
        taken = pa.array(rows)
        frames = framing.find(messages.take(taken), None if headers is None else headers.take(taken))
        place_of: dict[Any, tuple[int, str]] = {}
        for key in dict.fromkeys(frames.keys):
            if key is None:
                continue
            try:
                place_of[key] = self._place(framing.message_at(schemas[key.schema], key.indexes).full_name, key.schema)
            except BadRowError as error:
                place_of[key] = -1, f"{error} (schema {key.schema})"
        for number, (row, key) in enumerate(zip(rows.tolist(), frames.keys, strict=True)):
            which[row], reason = (-1, frames.errors.get(number, "")) if key is None else place_of[key]
            if reason:
                errors[row] = reason
