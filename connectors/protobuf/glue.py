"""Protobuf in frames of Glue's serializers: which message of the schema it is stands before it, as one varint.

The number is the place of the message's full name among those of all messages of the schema's file, also of nested ones
and of the entries of maps, in the order of their letters. (awslabs/aws-glue-schema-registry: ``MessageIndexFinder`` and
``ProtobufWireFormatEncoder``, which writes a plain varint, not the zig-zag one of its comment.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connectors.core.functions.bad_rows import BadRowError
from connectors.protobuf.confluent.frames import (
    MORE,
    Framing,
    MessageFrames,
    SchemaKey,
    confluent_framing,
    read_varint,
    varint,
)
from connectors.protobuf.confluent.registry import RegisteredSchema
from connectors.protobuf.errors import analysis_error
from connectors.protobuf.schema.descriptors import MessageType, parse_set, pool_of
from connectors.registry.frames import bounds_of
from connectors.registry.glue.frames import find_glue_frames
from connectors.registry.glue.options import AnyRegistryOptions

_MOST_BYTES: Final = 5  # of an index


def _find(messages: pa.BinaryArray, _headers: pa.Array | None) -> MessageFrames:
    frames = find_glue_frames(messages)
    ends, data = bounds_of(frames.column)[1:], np.frombuffer(frames.column.buffers()[2] or b"", np.uint8)
    numbers = np.full(len(frames.which), -1, np.int64)
    rows = np.flatnonzero((frames.which >= 0) & (frames.begin < ends))
    numbers[rows] = data[frames.begin[rows]]
    for row in np.flatnonzero((frames.which >= 0) & ((numbers < 0) | (numbers >= MORE))).tolist():
        begin = int(frames.begin[row])
        try:
            numbers[row], length = read_varint(data[begin : min(begin + _MOST_BYTES, int(ends[row]))].tobytes(), 0)
            frames.begin[row] = begin + length - 1
        except BadRowError:
            numbers[row], frames.errors[row] = -1, "is not a frame of Glue: its message index is cut off"
    framed = numbers >= 0
    frames.begin[framed] += 1
    alone = frames.messages(np.arange(len(numbers)))
    if not framed.all():
        alone = pc.if_else(pa.array(framed), alone, pa.scalar(None, pa.binary()))
    by_pair: dict[tuple[int, int], SchemaKey] = {}
    keys: list[SchemaKey | None] = [None] * len(numbers)
    for row, pair in enumerate(zip(frames.which.tolist(), numbers.tolist(), strict=True)):
        if pair[1] >= 0:
            if pair not in by_pair:
                by_pair[pair] = SchemaKey(frames.schemas[pair[0]], (pair[1],))
            keys[row] = by_pair[pair]
    return MessageFrames(alone, keys, frames.errors)


def _message_at(registered: RegisteredSchema, indexes: tuple[int, ...]) -> MessageType:
    names, (index,) = _names(registered), indexes
    if index >= len(names):
        raise BadRowError(f"has the message index {index}, and its schema has {len(names)} messages")
    message: MessageType = pool_of(parse_set(registered.files)).FindMessageTypeByName(names[index])
    return message


def glue_index(registered: RegisteredSchema, message: str) -> bytes:
    """Return what stands before a message; PROTOBUF_MESSAGE_NOT_FOUND if the schema's own file doesn't declare it."""
    names = _names(registered)
    if message not in names:
        where = f"the schema {registered.schema_id}"
        raise analysis_error("PROTOBUF_MESSAGE_NOT_FOUND", messageName=message, where=where)
    return varint(names.index(message))


_GLUE: Final = Framing(_find, _message_at, glue_index)


def framing_of(options: AnyRegistryOptions | None, *, is_key: bool = False) -> Framing:
    """Return the frames of a registry; without one those of Confluent."""
    return confluent_framing(is_key=is_key) if options is None or options.uses_confluent else _GLUE


def _names(registered: RegisteredSchema) -> list[str]:
    file = next(file for file in parse_set(registered.files).file if file.name == registered.main)

    def below(messages: Iterable[Any], scope: str) -> Iterator[str]:
        for message in messages:
            yield f"{scope}{message.name}"
            yield from below(message.nested_type, f"{scope}{message.name}.")

    return sorted(below(file.message_type, f"{file.package}." if file.package else ""))
