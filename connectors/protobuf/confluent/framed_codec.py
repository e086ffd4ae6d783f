"""Decoding and encoding in Confluent's frames, with the schemas of a registry.

A message is decoded by the reader's schema, field by field number, as any protobuf consumer does it. Before the first
message of each writer's schema, that schema is fetched and compared: a field that has the same number and means
something else on the wire makes all messages of that schema bad rows, instead of giving wrong values.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto

from connectors.core.errors import SourceGoneError
from connectors.protobuf.batch_result import BadRowError, Decoded, Decoder
from connectors.protobuf.confluent.registry import RegisteredSchema, Registry
from connectors.protobuf.confluent.wire_format import SchemaKey, frame_prefix, read_frames
from connectors.protobuf.errors import ProtobufError, analysis_error
from connectors.protobuf.schema.descriptors import FieldType, MessageType, Schema, full_name, parse_set
from connectors.protobuf.upb.encoder import Encoder

__all__ = ["FramedDecoder", "FramedEncoder", "difference", "indexes_of", "message_at"]

K = TypeVar("K")
V = TypeVar("V")
F: Final = FieldDescriptor
# Types of one group can stand for each other: https://protobuf.dev/programming-guides/proto3/#updating
_GROUPS: Final = (
    {F.TYPE_INT32, F.TYPE_UINT32, F.TYPE_INT64, F.TYPE_UINT64, F.TYPE_BOOL, F.TYPE_ENUM},
    {F.TYPE_SINT32, F.TYPE_SINT64},
    {F.TYPE_FIXED32, F.TYPE_SFIXED32},
    {F.TYPE_FIXED64, F.TYPE_SFIXED64},
    {F.TYPE_STRING, F.TYPE_BYTES},
)
_FAILED_SECONDS: Final = 30.0  # a registry that lags behind may have the schema then
_MOST_REMEMBERED: Final = 10_000  # garbage may hold any id
_MOST_FAILURES: Final = 32
"""Requests for new schemas that may fail in one batch: garbage may cost no request for each row."""
_GROUP: Final = {kind: place for place, group in enumerate(_GROUPS) for kind in group}


def message_at(registered: RegisteredSchema, indexes: tuple[int, ...]) -> MessageType:
    """Return the message that the indexes of a frame lead to.

    Raises:
        BadRowError: the schema has no such message.
    """
    schema = Schema(registered.files)
    try:
        proto = next(file for file in schema.files.file if file.name == registered.main)
        message = proto.message_type[indexes[0]]
        name = full_name(proto.package, message.name)
        for index in indexes[1:]:
            message = message.nested_type[index]
            name += f".{message.name}"
    except IndexError:
        raise BadRowError(f"has the message indexes {list(indexes)}, which its schema has not") from None
    return schema.pool.FindMessageTypeByName(name)


def indexes_of(registered: RegisteredSchema, message: str) -> tuple[int, ...]:
    """Return the message indexes that lead from the file of a schema to a message, by its full name.

    Raises:
        ProtobufAnalysisError: PROTOBUF_MESSAGE_NOT_FOUND, where the schema's own file has no such message.
    """
    file = next(file for file in parse_set(registered.files).file if file.name == registered.main)

    def search(messages: Iterable[DescriptorProto], scope: str) -> tuple[int, ...]:
        for place, proto in enumerate(messages):
            name = full_name(scope, proto.name)
            if name == message:
                return (place,)
            inner = search(proto.nested_type, name)
            if inner:
                return (place, *inner)
        return ()

    indexes = search(file.message_type, file.package)
    if not indexes:
        raise analysis_error(
            "PROTOBUF_MESSAGE_NOT_FOUND", messageName=message, where=f"the schema {registered.schema_id}"
        )
    return indexes


def difference(writer: MessageType, reader: MessageType) -> str:
    """Return the first field, by number, that a reader would take for something else; empty if there is none."""
    seen: set[tuple[str, str]] = set()
    pending = [(writer, reader)]
    while pending:
        ours, theirs = pending.pop()
        if (ours.full_name, theirs.full_name) in seen:
            continue
        seen.add((ours.full_name, theirs.full_name))
        numbers = {field.number: field for field in theirs.fields}
        for field in ours.fields:
            other = numbers.get(field.number)
            if other is None:
                continue
            if (field.message_type is None) != (other.message_type is None) or _group(field) != _group(other):
                return f"{field.full_name} and {other.full_name} have the number {field.number} and other types"
            if field.message_type is not None:
                pending.append((field.message_type, other.message_type))
    return ""


def _group(field: FieldType) -> int:
    return _GROUP.get(field.type, -int(field.type))


class FramedDecoder:
    """Takes messages out of their frames and decodes them.

    Args:
        decoder: decodes the messages.
        reader: the reader's message.
        registry: where the writers' schemas are; None to believe the frames.
        deprecated: whether message indexes are plain varints.
        permissive: whether messages whose schema the registry cannot give are bad rows, while it gives others.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        decoder: Decoder,
        reader: MessageType,
        registry: Registry | None,
        *,
        deprecated: bool = False,
        permissive: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.decoder, self.reader, self.registry = decoder, reader, registry
        self._deprecated, self._permissive, self._clock = deprecated, permissive, clock
        self._verdicts: dict[SchemaKey, str] = {}
        self._failures: dict[int | str, tuple[str, float]] = {}

    def decode(self, messages: pa.Array, headers: pa.Array | None = None) -> Decoded:
        """See `Decoder.decode`.

        Raises:
            ServiceUnavailableError: the registry does not answer: that is no fault of a row.
            AccessDeniedError: it refuses access.
            ConnectorError: it gives what is no schema, where the query is not permissive or no other schema is given
                either.
        """
        frames = read_frames(messages, None if headers is None else _by_name(headers), deprecated=self._deprecated)
        errors = dict(frames.errors)
        verdicts = {} if self.registry is None else self._judge(self.registry, frames.keys)
        payloads = frames.messages
        if any(verdicts.values()):
            bad = [key is not None and bool(verdicts[key]) for key in frames.keys]
            errors |= {row: verdicts[key] for row, key in enumerate(frames.keys) if key is not None and bad[row]}
            payloads = pc.if_else(pa.array(np.array(bad)), pa.scalar(None, pa.binary()), payloads)
        decoded = self.decoder.decode(payloads)
        return Decoded(decoded.values, errors | decoded.errors)

    def _judge(self, registry: Registry, keys: list[SchemaKey | None]) -> dict[SchemaKey, str]:
        """Return for each key why its messages cannot be read; empty if they can."""
        distinct = [key for key in dict.fromkeys(keys) if key is not None]
        verdicts = {key: self._verdicts[key] for key in distinct if key in self._verdicts}
        unknown = [key for key in distinct if key not in verdicts]
        if not unknown:
            return verdicts
        # The schemas of most rows first: garbage has another id in each row.
        rows = Counter(key.schema for key in keys if key is not None)
        wanted = sorted(dict.fromkeys(key.schema for key in unknown), key=lambda schema: -rows[schema])
        results = self._fetch(registry, wanted)
        for key in unknown:
            result = results.get(key.schema)
            if isinstance(result, RegisteredSchema):
                verdicts[key] = self._compare(result, key)
                _remember(self._verdicts, key, verdicts[key])
            else:
                verdicts[key] = result or (
                    f"has the schema {key.schema}, which was not asked for: the registry gives none for "
                    f"{_MOST_FAILURES} others of this batch"
                )
        return verdicts

    def _fetch(self, registry: Registry, wanted: list[int | str]) -> dict[int | str, RegisteredSchema | str]:
        """Return schemas, and for each that cannot be had the reason; without those that are too many to ask for."""
        now = self._clock()
        failures = {schema: self._failures[schema] for schema in wanted if schema in self._failures}
        results: dict[int | str, RegisteredSchema | str] = {
            schema: reason for schema, (reason, until) in failures.items() if until >= now
        }
        new = [schema for schema in wanted if schema not in failures]
        failed_before = [schema for schema in failures if schema not in results]
        fetched = registry.by_ids(new, _MOST_FAILURES) | registry.by_ids(failed_before, _MOST_FAILURES, patience=0)
        for schema, result in fetched.items():
            if isinstance(result, RegisteredSchema):
                results[schema] = result
                continue
            if not (self._permissive or isinstance(result, SourceGoneError)):
                raise result
            results[schema] = str(result)
            _remember(self._failures, schema, (str(result), self._clock() + _FAILED_SECONDS))
        return results

    def _compare(self, registered: RegisteredSchema, key: SchemaKey) -> str:
        try:
            writer = message_at(registered, key.indexes)
        except (BadRowError, ProtobufError) as error:
            return str(error)
        if writer.name != self.reader.name:
            return f"holds a {writer.full_name} (schema {key.schema}), not a {self.reader.full_name}"
        reason = difference(writer, self.reader)
        return reason and f"cannot be read: {reason} (schema {key.schema})"


def _remember(memory: dict[K, V], key: K, value: V) -> None:
    if len(memory) >= _MOST_REMEMBERED:
        memory.clear()
    memory[key] = value


def _by_name(headers: pa.Array) -> list[Mapping[str, Any] | None]:
    """Return Kafka's headers, ARRAY<STRUCT<key, value>>, or a MAP, by name; of several with one name the last."""

    def mapping(row: list[Any] | None) -> Mapping[str, Any] | None:
        if row and isinstance(row[0], dict):
            return {header["key"]: header["value"] for header in row}
        return None if row is None else dict(row)

    return [mapping(row) for row in headers.to_pylist()]


class FramedEncoder:
    """Encodes messages and puts each into a frame with this schema id and these message indexes."""

    def __init__(self, encoder: Encoder, schema_id: int, indexes: tuple[int, ...]) -> None:
        self._encoder = encoder
        self._prefix = pa.scalar(frame_prefix(schema_id, indexes), pa.binary())

    def encode(self, structs: pa.StructArray) -> pa.BinaryArray:
        """See `Encoder.encode`."""
        encoded = self._encoder.encode(structs)
        return pc.binary_join_element_wise(self._prefix, encoded, pa.scalar(b"", pa.binary()))
