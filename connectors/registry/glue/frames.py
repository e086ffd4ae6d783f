"""Frames of Glue's serializers: a version byte, how the rest is compressed, and the version id of the schema.

    03  00  schema version id (16 bytes, big endian)  message
    03  05  schema version id (16 bytes, big endian)  message, compressed by zlib

(awslabs/aws-glue-schema-registry: ``SerializationDataEncoder`` and ``GlueSchemaRegistryDeserializerDataParser``.)
"""

from __future__ import annotations

import heapq
import zlib
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import numpy as np
import pyarrow as pa

from connectors.core.functions.bad_rows import BadRowError
from connectors.core.functions.columns import validity_of
from connectors.registry.frames import Frames, PrefixFrame, bounds_of

HEADER_BYTES: Final = 18
_VERSION: Final = 3
_PLAIN: Final = 0
_ZLIB: Final = 5
_ID_BEGIN: Final = 2
_MOST_BYTES: Final = 16 << 20  # of a message; a record of Kinesis has at most 10 MiB
_MOST_BATCH_BYTES: Final = 256 << 20
_LARGEST_COLUMN: Final = 2**31 - 1  # Arrow counts its bytes by 32 bits


def looks_like_glue(data: bytes) -> bool:
    """Return whether a message begins as a frame of Glue does."""
    return len(data) >= HEADER_BYTES and data[0] == _VERSION and data[1] in {_PLAIN, _ZLIB}


def find_glue_frames(column: pa.BinaryArray) -> Frames:
    """Take the frames of a batch apart: their schemas are version ids."""
    if len(column) == 0:
        return Frames(column, np.zeros(0, np.int64), np.zeros(0, np.int64))
    plain, errors = _decompressed(column)
    bounds = bounds_of(plain)
    frames = Frames(plain, np.full(len(plain), -1, np.int64), bounds[:-1].copy(), errors=errors)
    pending = validity_of(plain)
    rows = _framed_rows(plain, _PLAIN)
    if len(rows):
        data = np.frombuffer(plain.buffers()[2], np.uint8)
        numbers = data[bounds[rows][:, None] + np.arange(_ID_BEGIN, HEADER_BYTES)]
        if (numbers == numbers[0]).all():  # as in most batches
            different, inverse = numbers[:1], np.zeros(len(rows), np.int64)
        else:
            parts, inverse = np.unique(numbers.view(">u8"), axis=0, return_inverse=True)
            different, inverse = parts.view(np.uint8), inverse.reshape(-1)
        frames.note(rows, [str(UUID(bytes=number.tobytes())) for number in different], inverse)
        frames.begin[rows] += HEADER_BYTES
        pending[rows] = False
    for row in np.flatnonzero(pending).tolist():
        if row not in errors:
            begin = plain[row].as_py()[:HEADER_BYTES].hex(" ") or "no byte"
            errors[row] = f"is not a frame of Glue: it begins with {begin}"
    return frames


def _framed_rows(column: pa.BinaryArray, compression: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the rows that are frames with this compression."""
    bounds, data = bounds_of(column), np.frombuffer(column.buffers()[2] or b"", np.uint8)
    rows = np.flatnonzero(validity_of(column) & (np.diff(bounds) >= HEADER_BYTES))
    for place, byte in enumerate((_VERSION, compression)):
        rows = rows[data[bounds[rows] + place] == byte]
    return rows


def _decompressed(column: pa.BinaryArray) -> tuple[pa.BinaryArray, dict[int, str]]:
    """Return the column with frames that are not compressed, and why some rows cannot be decompressed.

    Of messages that are too large together the largest are bad rows: a few hostile ones don't harm the others.
    """
    rows = _framed_rows(column, _ZLIB)
    if not len(rows):
        return column, {}
    errors: dict[int, str] = {}
    values: list[bytes | None] = column.to_pylist()
    bounds = bounds_of(column)
    most = min(_MOST_BATCH_BYTES, _LARGEST_COLUMN - int(bounds[-1] - bounds[0]))
    taken, largest = 0, list[tuple[int, int]]()
    for row in rows.tolist():
        frame = values[row] or b""
        try:
            message = _inflate(frame[HEADER_BYTES:])
        except BadRowError as error:
            errors[row] = str(error)
            continue
        values[row] = bytes([_VERSION, _PLAIN]) + frame[_ID_BEGIN:HEADER_BYTES] + message
        taken += len(message)
        heapq.heappush(largest, (-len(message), row))
        while taken > most:
            size, out = heapq.heappop(largest)
            taken += size
            values[out] = None
            errors[out] = (
                f"is among the largest messages of a batch that has more than {_MOST_BATCH_BYTES >> 20} MB when it is "
                "decompressed; set spark.sql.execution.arrow.maxRecordsPerBatch lower"
            )
    return pa.array(values, pa.binary()), errors


def _inflate(data: bytes) -> bytes:
    """Decompress a message; BadRowError if it is damaged, or larger than what any may be."""
    stream = zlib.decompressobj()
    try:
        message = stream.decompress(data, _MOST_BYTES + 1)
    except zlib.error as error:
        raise BadRowError(f"cannot be decompressed: {error}") from None
    if len(message) > _MOST_BYTES:
        raise BadRowError(f"is larger than {_MOST_BYTES >> 20} MB when it is decompressed")
    if not stream.eof:
        raise BadRowError("cannot be decompressed: it is cut off")
    if stream.unused_data:
        raise BadRowError(f"has {len(stream.unused_data)} bytes after what can be decompressed")
    return message


@dataclass(frozen=True, slots=True)
class GlueFrame:
    """The frame of all messages of one call.

    Attributes:
        version: the version id of the schema.
        compress: whether messages are compressed by zlib.
        begin: what stands before each message, within what is compressed.
    """

    version: str
    compress: bool = False
    begin: bytes = b""

    def around(self, messages: pa.BinaryArray) -> pa.BinaryArray:
        """Put each message into the frame; NULL stays NULL."""
        header = bytes([_VERSION, _ZLIB if self.compress else _PLAIN]) + UUID(self.version).bytes
        if not self.compress:
            return PrefixFrame(header + self.begin).around(messages)
        values = messages.to_pylist()
        framed = [None if value is None else header + zlib.compress(self.begin + value) for value in values]
        return pa.array(framed, pa.binary())
