"""Confluent's frames around messages: read and written, with the schemas of a registry.

    00  schema id (4 bytes, big endian)  message indexes  message
    01  schema GUID (16 bytes)           message indexes  message

The message indexes lead from the schema's file to the message: a count, then one index for each level of nesting, as
zig-zag varints; the most usual one, the first message of the file, is the single byte 00. Newer clients can put all
before the message into a Kafka header, and the message stands alone.
(confluent-kafka-python, ``schema_registry/common/serde.py``.)
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import FieldDescriptor

from connectors.core.functions.bad_rows import BadRowError, Decoded
from connectors.core.functions.columns import offsets
from connectors.protobuf.confluent.registry import ProtobufRegistry, RegisteredSchema
from connectors.protobuf.errors import ProtobufError, analysis_error
from connectors.protobuf.schema.descriptors import FieldType, MessageType, is_repeated, nested_name, parse_set, pool_of
from connectors.protobuf.upb.decoder import Decoder
from connectors.registry.frames import (
    GUID_END,
    ID_END,
    WriterSchemas,
    explained,
    headers_by_name,
    read_schema,
    remember,
    schema_header,
)
from connectors.registry.rules import Migrations

F: Final = FieldDescriptor
_FIRST_MESSAGE: Final = (0,)
_MOST_INDEXES: Final = 100
_VARINT_BYTES: Final = 5
MORE: Final = 128  # the bit of a byte that another one follows
# Types of one group can stand for each other: https://protobuf.dev/programming-guides/proto3/#updating
_GROUPS: Final = (
    {F.TYPE_INT32, F.TYPE_UINT32, F.TYPE_INT64, F.TYPE_UINT64, F.TYPE_BOOL, F.TYPE_ENUM},
    {F.TYPE_SINT32, F.TYPE_SINT64},
    {F.TYPE_FIXED32, F.TYPE_SFIXED32},
    {F.TYPE_FIXED64, F.TYPE_SFIXED64},
    {F.TYPE_STRING, F.TYPE_BYTES},
)
_GROUP: Final = {kind: place for place, group in enumerate(_GROUPS) for kind in group}


@dataclass(frozen=True, slots=True)
class SchemaKey:
    """Which message of which schema a writer used; the schema by its id, or its GUID as 32 hexadecimal digits."""

    schema: int | str
    indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MessageFrames:
    """The frames of a batch: messages (NULL without one), their schemas, and why a row's frame cannot be read."""

    messages: pa.BinaryArray
    keys: list[SchemaKey | None]
    errors: dict[int, str]


def read_prefix(data: bytes) -> tuple[SchemaKey, int]:
    """Return the schema of a frame, and where its message begins; BadRowError if it is not a frame."""
    schema, place = read_schema(data)
    count, place = read_varint(data, place, zig_zag=True)
    if not 0 <= count <= _MOST_INDEXES:
        raise BadRowError(f"is not a Confluent frame: it has {count} message indexes")
    indexes = []
    for _ in range(count):
        index, place = read_varint(data, place, zig_zag=True)
        if index < 0:
            raise BadRowError(f"is not a Confluent frame: it has the message index {index}")
        indexes.append(index)
    return SchemaKey(schema, tuple(indexes) or _FIRST_MESSAGE), place


def read_varint(data: bytes, place: int, *, zig_zag: bool = False) -> tuple[int, int]:
    """Return a number and the place after it; BadRowError where it does not end."""
    value = 0
    for count, byte in enumerate(data[place : place + _VARINT_BYTES]):
        value |= (byte & 127) << (7 * count)
        if byte < MORE:
            return ((value >> 1) ^ -(value & 1) if zig_zag else value), place + count + 1
    raise BadRowError("is not a Confluent frame: its message indexes are cut off")


def _index_prefix(path: tuple[int, ...]) -> bytes:
    return b"\0" if path == _FIRST_MESSAGE else b"".join(varint(value << 1) for value in (len(path), *path))


def varint(value: int) -> bytes:
    """Return a number that is not negative as a plain varint; shifted by one bit, it is a zig-zag one."""
    out = bytearray()
    while value >= MORE:
        out.append(value & 127 | MORE)
        value >>= 7
    return bytes([*out, value])


def read_frames(
    column: pa.BinaryArray, headers: list[Mapping[str, Any] | None] | None = None, *, is_key: bool = False
) -> MessageFrames:
    """Take frames apart; a row with the id of this column in its headers is the message alone."""
    if headers is None:
        frames = _usual_frames(column)
        if frames is not None:
            return frames
    messages: list[bytes | None] = []
    keys: list[SchemaKey | None] = []
    errors: dict[int, str] = {}
    for row, data in enumerate(column.to_pylist()):
        message, key = None, None
        try:
            if data is not None:
                message, key = _take_apart(data, (headers[row] if headers else None) or {}, is_key=is_key)
        except BadRowError as error:
            errors[row] = str(error)
        messages.append(message)
        keys.append(key)
    return MessageFrames(pa.array(messages, pa.binary()), keys, errors)


def _take_apart(data: bytes, headers: Mapping[str, Any], *, is_key: bool) -> tuple[bytes, SchemaKey]:
    value = schema_header(headers, is_key=is_key)
    if value is not None:
        return data, read_prefix(value if len(value) > GUID_END else value + b"\0")[0]
    try:
        key, place = read_prefix(data)
    except BadRowError as error:
        raise explained(error, headers, is_key=is_key) from None
    return data[place:], key


def _usual_frames(column: pa.BinaryArray) -> MessageFrames | None:
    """Read a batch in which each row is a frame with an id and the first message; None for another batch."""
    if column.null_count or column.offset or not len(column):
        return None
    bounds = offsets(column)
    if int(np.diff(bounds).min()) <= ID_END:
        return None
    data = np.frombuffer(column.buffers()[2], dtype=np.uint8)
    starts = bounds[:-1]
    if data[starts].any() or data[starts + ID_END].any():
        return None
    ids = sum(data[starts + 1 + place].astype(np.int64) << (8 * (3 - place)) for place in range(4))
    if not np.all(ids):  # an id of 8 bytes begins with 0
        return None
    keys = {int(number): SchemaKey(int(number), _FIRST_MESSAGE) for number in np.unique(ids)}
    messages = pc.binary_slice(column, ID_END + 1, 2**31 - 1)
    return MessageFrames(messages, [keys[number] for number in np.asarray(ids).tolist()], {})


def message_at(registered: RegisteredSchema, indexes: tuple[int, ...]) -> MessageType:
    file = pool_of(parse_set(registered.files)).FindFileByName(registered.main)
    try:
        message: MessageType = [*file.message_types_by_name.values()][indexes[0]]
        for index in indexes[1:]:
            message = message.nested_types[index]
    except IndexError:
        raise BadRowError(f"has the message indexes {list(indexes)}, which its schema has not") from None
    return message


def indexes_of(registered: RegisteredSchema, message: str) -> tuple[int, ...]:
    """Return the message indexes that lead from the file of a schema to a message in it, by its full name."""
    file = next(file for file in parse_set(registered.files).file if file.name == registered.main)
    messages, indexes = file.message_type, []
    for part in message.removeprefix(f"{file.package}.").split("."):
        names = [proto.name for proto in messages]
        if part not in names:
            where = f"the schema {registered.schema_id}"
            raise analysis_error("PROTOBUF_MESSAGE_NOT_FOUND", messageName=message, where=where)
        indexes.append(names.index(part))
        messages = messages[indexes[-1]].nested_type
    return tuple(indexes)


def difference(writer: MessageType, reader: MessageType, *, extensions: bool = False) -> str:
    """Return the first field, by number, that a reader would take for something else; empty if there is none.

    Types of one group stand for each other, and one value for a list of it. Several values for one, or fields that
    can all be there for members of one oneof, would lose values. `extensions` are compared where they are columns.
    """
    seen: set[tuple[str, str]] = set()
    pending = [(writer, reader)]
    while pending:
        ours, theirs = pending.pop()
        if (ours.full_name, theirs.full_name) in seen:
            continue
        seen.add((ours.full_name, theirs.full_name))
        numbers = {field.number: field for field in _fields(theirs, extensions=extensions)}
        shared = [
            (field, numbers[field.number]) for field in _fields(ours, extensions=extensions) if field.number in numbers
        ]
        reason = next(filter(None, (_field_difference(*pair) for pair in shared)), "") or _oneof_difference(shared)
        if reason:
            return reason
        pending += [(field.message_type, other.message_type) for field, other in shared if field.message_type]
    return ""


def _fields(message: MessageType, *, extensions: bool) -> list[FieldType]:
    return [*message.fields, *(message.file.pool.FindAllExtensions(message) if extensions else ())]


def _field_difference(field: FieldType, other: FieldType) -> str:
    if (field.message_type is None) != (other.message_type is None) or _group(field) != _group(other):
        return f"{field.full_name} and {other.full_name} have the number {field.number} and other types"
    if is_repeated(field) and not is_repeated(other):
        return f"{field.full_name} is repeated and {other.full_name}, with its number {field.number}, is not"
    implicit = not (field.has_presence or is_repeated(field))
    if implicit and not is_repeated(other) and other.has_default_value and other.default_value:
        return f"{field.full_name} leaves out zeros and {other.full_name} declares the default {other.default_value}"
    return ""


def _oneof_difference(shared: list[tuple[FieldType, FieldType]]) -> str:
    """Return which fields, that a writer can set together, are members of one oneof for the reader."""
    first: dict[str, FieldType] = {}
    for field, other in shared:
        oneof = other.containing_oneof
        if oneof is None:
            continue
        earlier: FieldType = first.setdefault(oneof.full_name, field)
        theirs = {one.containing_oneof and one.containing_oneof.full_name for one in (field, earlier)}
        if earlier is not field and (None in theirs or len(theirs) > 1):
            whole = other.containing_type.full_name
            return f"{earlier.full_name} and {field.full_name} can be set together and are in one oneof of {whole}"
    return ""


def _group(field: FieldType) -> int:
    return _GROUP.get(field.type, -int(field.type))


@dataclass(frozen=True, slots=True)
class Framing:
    """How messages say by which schema they were written, and as which message of it.

    Attributes:
        find: takes the frames of a batch apart, with the column of Kafka's headers.
        message_at: returns the message that the indexes of a frame mean; BadRowError if there is none.
        prefix: returns what stands before a message of a schema, by its full name.
    """

    find: Callable[[pa.BinaryArray, pa.Array | None], MessageFrames]
    message_at: Callable[[RegisteredSchema, tuple[int, ...]], MessageType]
    prefix: Callable[[RegisteredSchema, str], bytes]


def confluent_framing(*, is_key: bool = False) -> Framing:
    """Return Confluent's frames, with the ids in headers of keys or of values."""

    def find(messages: pa.BinaryArray, headers: pa.Array | None) -> MessageFrames:
        by_name = None if headers is None else headers_by_name(headers)
        return read_frames(messages, by_name, is_key=is_key)

    return Framing(find, message_at, lambda registered, message: _index_prefix(indexes_of(registered, message)))


_CONFLUENT: Final = confluent_framing()


class FramedDecoder:
    """Takes messages out of their frames and decodes them by the reader's schema, field by field number.

    The first message of each writer's schema has that schema fetched and compared. A field with the same number that
    means something else on the wire makes all messages of that schema bad rows, instead of wrong values.

    Args:
        registry: gives the writers' schemas; without one the frames are believed.
        extensions: whether these are columns too.
        permissive: whether messages whose schema the registry cannot give are bad rows, while it gives others.
        reader_version: the reader's schema, where that is one of the registry.
    """

    def __init__(
        self,
        decoder: Decoder,
        reader: MessageType,
        registry: ProtobufRegistry | None,
        framing: Framing = _CONFLUENT,
        *,
        extensions: bool = False,
        permissive: bool = False,
        reader_version: Migrations | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.decoder, self.reader, self.registry = decoder, reader, registry
        self._framing, self._extensions = framing, extensions
        self._verdicts: dict[SchemaKey, str] = {}
        self._writers = WriterSchemas[RegisteredSchema](permissive=permissive, reader=reader_version, clock=clock)

    def decode(self, messages: pa.Array, headers: pa.Array | None = None) -> Decoded:
        """Decode as `Decoder.decode`; raises ConnectorError for what is wrong with the registry, not with a row."""
        frames = self._framing.find(messages, headers)
        errors = dict(frames.errors)
        verdicts = {} if self.registry is None else self._judge(self.registry, frames.keys)
        payloads = frames.messages
        if any(verdicts.values()):
            bad = [key is not None and bool(verdicts[key]) for key in frames.keys]
            errors |= {row: verdicts[key] for row, key in enumerate(frames.keys) if key is not None and bad[row]}
            payloads = pc.if_else(pa.array(np.array(bad)), pa.scalar(None, pa.binary()), payloads)
        decoded = self.decoder.decode(payloads)
        return Decoded(decoded.values, errors | decoded.errors)

    def _judge(self, registry: ProtobufRegistry, keys: list[SchemaKey | None]) -> dict[SchemaKey, str]:
        """Return for each key why its messages cannot be read; empty if they can."""
        distinct = [key for key in dict.fromkeys(keys) if key is not None]
        verdicts = {key: self._verdicts[key] for key in distinct if key in self._verdicts}
        unknown = [key for key in distinct if key not in verdicts]
        if not unknown:
            return verdicts
        wanted = dict.fromkeys(key.schema for key in unknown)
        results = self._writers.get(registry, wanted, Counter(key.schema for key in keys if key is not None))
        for key in unknown:
            result = results[key.schema]
            verdicts[key] = result if isinstance(result, str) else self._compare(result, key)
            if not isinstance(result, str):
                remember(self._verdicts, key, verdicts[key])
        return verdicts

    def _compare(self, registered: RegisteredSchema, key: SchemaKey) -> str:
        try:
            writer = self._framing.message_at(registered, key.indexes)
        except (BadRowError, ProtobufError) as error:
            return str(error)
        if nested_name(writer) != nested_name(self.reader):
            return f"holds a {writer.full_name} (schema {key.schema}), not a {self.reader.full_name}"
        reason = difference(writer, self.reader, extensions=self._extensions)
        return reason and f"cannot be read: {reason} (schema {key.schema})"
