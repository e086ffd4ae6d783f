"""Which member each message is of: by the record that its frame's schema names, by that schema's id, or by a column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from connectors.avro.registered import AvroForm
from connectors.core.formats import not_installed
from connectors.core.functions.bad_rows import BadRowError, ColumnTypeError
from connectors.core.functions.call import Call
from connectors.core.functions.columns import validity_of
from connectors.json.registry import JsonForm
from connectors.registry.frames import Frames, Rows, WriterSchemas
from connectors.registry.glue.options import AnyRegistryOptions
from connectors.registry.kinds import kind_of, retained_registry
from connectors.registry.lookups import Lookup
from connectors.registry.rules import Migrations
from connectors.registry.schemas import Ask, SchemaForm, text_of

if TYPE_CHECKING:
    from connectors.protobuf.confluent.registry import ProtobufForm
    from connectors.protobuf.confluent.registry import RegisteredSchema as ProtobufSchema
    from connectors.registry.client import RegistryClient

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
        if self._protobuf is None or not isinstance(response, dict) or response.get("schemaType") != _PROTOBUF:
            return response
        return self._protobuf.ask(client, lookup)

    def build(self, response: Mapping[str, Any], what: str, schema_id: int | str, ask: Ask) -> NamedSchema:
        """Return the name; SCHEMA_UNUSABLE where the schema cannot be parsed."""
        kind = text_of(response, "schemaType", what, "AVRO")
        if kind == "AVRO":
            avro = AvroForm().build(response, what, schema_id, ask)
            return NamedSchema(avro.type.name, avro.migrations)
        if kind == _PROTOBUF and self._protobuf is not None:
            protobuf = self._protobuf.build(response, what, schema_id, ask)
            return NamedSchema("", protobuf.migrations, protobuf)
        json = JsonForm().build(response, what, schema_id, ask)
        return NamedSchema(title_of(json.documents.own.value), json.migrations)

    @cached_property
    def _protobuf(self) -> ProtobufForm | None:
        """None where protobuf is not installed: no member can be of it there."""
        if not_installed(["google.protobuf"]):
            return None
        from connectors.protobuf.confluent.registry import ProtobufForm  # noqa: PLC0415 - needs an extra of its own

        return ProtobufForm()


def title_of(schema: object) -> str:
    """Return the title of a JSON Schema, which is the name of its record; empty without one."""
    title = schema.get("title") if isinstance(schema, Mapping) else None
    return title if isinstance(title, str) else ""


@dataclass(frozen=True, slots=True)
class Member:
    """One of the record types, by the name of its column: the names, ids or values that select it, and what decodes it.

    The call has an error column unless bad rows end the query. If Spark does the rest, the column is what it returns.

    Attributes:
        takes_frames: whether its call can be given the frames of the messages, and so does not look for them again.
    """

    name: str
    call: Call
    keys: tuple[str, ...] = ()
    finished_by_spark: bool = False
    takes_frames: bool = False


@dataclass(frozen=True)
class Selection:
    """Finds the member of each message.

    Attributes:
        registry: where the schemas of frames are; None if a column selects and messages have none.
        is_key: whether Kafka's headers are searched for the schema of the key.
        permissive: whether messages whose schema the registry cannot give are bad rows, while it gives others.
    """

    by: By
    members: tuple[Member, ...]
    registry: AnyRegistryOptions | None
    is_key: bool
    permissive: bool

    @cached_property
    def _places(self) -> dict[str, int]:
        return {key: place for place, member in enumerate(self.members) for key in member.keys}

    @cached_property
    def _expected(self) -> str:
        return f"the types are: {', '.join(self._places)}"

    @cached_property
    def _schemas(self) -> WriterSchemas[NamedSchema]:
        return WriterSchemas(permissive=self.permissive)

    def find(
        self, messages: pa.BinaryArray, headers: pa.Array | None, types: pa.Array | None
    ) -> tuple[Rows, dict[int, str], Frames | None]:
        """Return the place of the member of each message, -1 where there is none, and why by row unless it is NULL.

        The frames come with them if they were looked at.
        """
        if types is not None:
            return *self._by_column(messages, types), None
        assert self.registry is not None  # noqa: S101 - the driver has checked that
        frames = kind_of(self.registry).find(messages, headers, is_key=self.is_key)
        named: Mapping[int | str, NamedSchema | str] = {}
        if frames.schemas and self.by is By.RECORD_NAME:
            counts = dict(zip(frames.schemas, np.bincount(frames.which + 1)[1:].tolist(), strict=True))
            named = self._schemas.get(retained_registry(self.registry, NameForm), counts, counts)
        places = [
            (-1, one)
            if isinstance(one := named.get(schema), str)
            else self._place(str(schema).replace("-", "") if one is None else one.name, schema)
            for schema in frames.schemas
        ]
        which = np.array([*(place for place, _ in places), -1], np.int64)[frames.which]  # -1: without a schema
        errors = dict(frames.errors)
        of_protobuf = {key: one.protobuf for key, one in named.items() if isinstance(one, NamedSchema) and one.protobuf}
        if of_protobuf:
            rows = np.flatnonzero(np.isin(frames.which, [frames.schemas.index(schema) for schema in of_protobuf]))
            taken = pa.array(rows)
            theirs = None if headers is None else headers.take(taken)
            selected = self._by_message(messages.take(taken), theirs, of_protobuf)
            for row, (place, reason) in zip(rows.tolist(), selected, strict=True):
                which[row] = place
                if reason:
                    errors[row] = reason
        for row in np.flatnonzero((frames.which >= 0) & (which < 0)).tolist():
            errors.setdefault(row, places[frames.which[row]][1])
        return which, errors, frames

    def _place(self, key: str | None, schema: int | str | None = None) -> tuple[int, str]:
        """Return the place of a member, and the reason of a bad row if there is none."""
        place = self._places.get(key or "", -1)
        if place >= 0:
            return place, ""
        if self.by is By.SCHEMA_ID:
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

    def _by_message(
        self, messages: pa.BinaryArray, headers: pa.Array | None, schemas: Mapping[int | str, ProtobufSchema]
    ) -> Iterator[tuple[int, str]]:
        """Yield what `_place` returns for each message of protobuf, by the message indexes of its frame."""
        from connectors.protobuf.glue import framing_of  # noqa: PLC0415 - needs an extra of its own

        framing = framing_of(self.registry, is_key=self.is_key)
        frames = framing.find(messages, headers)
        places: dict[Any, tuple[int, str]] = {}
        for row, key in enumerate(frames.keys):
            if key is None:
                yield -1, frames.errors[row]
                continue
            if key not in places:
                try:
                    message = framing.message_at(schemas[key.schema], key.indexes)
                    places[key] = self._place(message.full_name, key.schema)
                except BadRowError as error:
                    places[key] = -1, f"{error} (schema {key.schema})"
            yield places[key]
