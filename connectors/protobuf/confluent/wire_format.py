"""Confluent's wire format: what stands before a message, and how it is read and written.

    00  schema id (4 bytes, big endian)  message indexes  message
    01  schema GUID (16 bytes)           message indexes  message

The message indexes lead from the schema's file to the message: a count, then one index for each level of nesting, as
zig-zag varints; the most usual one, the first message of the file, is the single byte 00. Old clients wrote plain
varints. Newer ones can put the first two parts and the indexes into a Kafka header, and the message stands alone.
(confluent-kafka-python, ``schema_registry/common/serde.py``.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connectors.protobuf.batch_result import BadRowError
from connectors.protobuf.columns import offsets

__all__ = ["HEADERS", "Frames", "SchemaKey", "frame_prefix", "read_frames", "read_prefix"]

HEADERS: Final = ("__value_schema_id", "__key_schema_id")
"""The names of the Kafka headers that can hold an id."""

_ID_END: Final = 5
_GUID_END: Final = 17
_FIRST_MESSAGE: Final = (0,)
_MOST_INDEXES: Final = 100
_VARINT_BYTES: Final = 5
_MORE: Final = 128  # the bit of a byte that another one follows


@dataclass(frozen=True, slots=True)
class SchemaKey:
    """Which message of which schema a writer used; the schema by its id, or its GUID as 32 hexadecimal digits."""

    schema: int | str
    indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Frames:
    """The frames of a batch: messages (NULL without one), their schemas, and why a row's frame cannot be read."""

    messages: pa.BinaryArray
    keys: list[SchemaKey | None]
    errors: dict[int, str]


def read_prefix(data: bytes, *, deprecated: bool = False) -> tuple[SchemaKey, int]:
    """Return the schema of a frame, and where its message begins.

    Raises:
        BadRowError: it is no frame.
    """
    if data[:1] == b"\x00" and len(data) >= _ID_END:
        schema: int | str = int.from_bytes(data[1:_ID_END], "big")
        place = _ID_END
    elif data[:1] == b"\x01" and len(data) >= _GUID_END:
        schema, place = data[1:_GUID_END].hex(), _GUID_END
    else:
        raise BadRowError(f"is no Confluent frame: it begins with {data[:6].hex(' ') or 'no byte'}")
    count, place = _varint(data, place, deprecated=deprecated)
    if not 0 <= count <= _MOST_INDEXES:
        raise BadRowError(f"is no Confluent frame: it has {count} message indexes")
    indexes = []
    for _ in range(count):
        index, place = _varint(data, place, deprecated=deprecated)
        if index < 0:
            raise BadRowError(f"is no Confluent frame: it has the message index {index}")
        indexes.append(index)
    return SchemaKey(schema, tuple(indexes) or _FIRST_MESSAGE), place


def _varint(data: bytes, place: int, *, deprecated: bool) -> tuple[int, int]:
    value = 0
    for count, byte in enumerate(data[place : place + _VARINT_BYTES]):
        value |= (byte & 127) << (7 * count)
        if byte < _MORE:
            return (value if deprecated else (value >> 1) ^ -(value & 1)), place + count + 1
    raise BadRowError("is no Confluent frame: its message indexes are cut off")


def frame_prefix(schema: int, indexes: Iterable[int]) -> bytes:
    """Return what stands before a message: magic byte, schema id and message indexes."""
    path = tuple(indexes)
    encoded = b"\0" if path == _FIRST_MESSAGE else b"".join(_zig_zag(value) for value in (len(path), *path))
    return b"\0" + schema.to_bytes(4, "big") + encoded


def _zig_zag(value: int) -> bytes:
    rest = value << 1
    out = bytearray()
    while rest >= _MORE:
        out.append(rest & 127 | _MORE)
        rest >>= 7
    return bytes([*out, rest])


def read_frames(
    column: pa.BinaryArray, headers: list[Mapping[str, Any] | None] | None = None, *, deprecated: bool = False
) -> Frames:
    """Take frames apart.

    Args:
        column: the frames; with an id in the headers, the message alone.
        headers: of each row, by name.
        deprecated: whether the indexes are plain varints.
    """
    if headers is None and not deprecated:
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
                message, key = _take_apart(data, headers[row] if headers else None, deprecated=deprecated)
        except BadRowError as error:
            errors[row] = str(error)
        messages.append(message)
        keys.append(key)
    return Frames(pa.array(messages, pa.binary()), keys, errors)


def _take_apart(data: bytes, headers: Mapping[str, Any] | None, *, deprecated: bool) -> tuple[bytes, SchemaKey]:
    for name in HEADERS:
        value = (headers or {}).get(name)
        if value is not None:
            return data, read_prefix(bytes(value) if len(value) > _GUID_END else bytes(value) + b"\0")[0]
    key, place = read_prefix(data, deprecated=deprecated)
    return data[place:], key


def _usual_frames(column: pa.BinaryArray) -> Frames | None:
    """Read a batch in which each row is a frame with an id and the first message; None for another batch."""
    if column.null_count or column.offset or not len(column):
        return None
    bounds = offsets(column)
    if int(np.diff(bounds).min()) <= _ID_END:
        return None
    data = np.frombuffer(column.buffers()[2], dtype=np.uint8)
    starts = bounds[:-1]
    if data[starts].any() or data[starts + _ID_END].any():
        return None
    ids = sum(data[starts + 1 + place].astype(np.int64) << (8 * (3 - place)) for place in range(4))
    keys = {int(number): SchemaKey(int(number), _FIRST_MESSAGE) for number in np.unique(ids)}
    messages = pc.binary_slice(column, _ID_END + 1, 2**31 - 1)
    return Frames(messages, [keys[number] for number in np.asarray(ids).tolist()], {})
