"""Protobuf's wire format for whole Arrow columns, and acks and nacks encoded without an object for each ack id.

A field of strings or bytes is, for each value, its tag, its length as a varint, and its bytes
(https://protobuf.dev/programming-guides/encoding/): so the data buffer of a column whose values are "tag, length,
bytes" is a repeated field as it is sent. The requests are those of google.pubsub.v1::

    message AcknowledgeRequest { string subscription = 1; repeated string ack_ids = 2; }
    message ModifyAckDeadlineRequest {
      string subscription = 1; int32 ack_deadline_seconds = 3; repeated string ack_ids = 4;
    }
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

MAX_ACK_IDS: Final = 2_500
"""Most ack ids in one request: at the 170 to 220 bytes that ids have, as many as `MAX_REQUEST_BYTES` holds."""

MAX_REQUEST_BYTES: Final = 500_000
"""Most bytes of a request; the service takes 512 KiB (https://cloud.google.com/pubsub/quotas#resource_limits)."""

_LONGEST_DEADLINE: Final = 600
_ENCODED_AT_ONCE: Final = 8 * MAX_ACK_IDS
_LENGTH_DELIMITED: Final = 2
_CONTINUED: Final = 0x80
_EMPTY: Final = pa.scalar(b"", pa.binary())


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= _CONTINUED:
        out.append(value & 0x7F | _CONTINUED)
        value >>= 7
    out.append(value)
    return bytes(out)


@lru_cache(maxsize=1 << 16)
def _prefix(field: int, length: int) -> bytes:
    return _varint(field << 3 | _LENGTH_DELIMITED) + _varint(length)


def string_field(field: int, value: str) -> bytes:
    encoded = value.encode()
    return _prefix(field, len(encoded)) + encoded


def prefixes(field: int, sizes: pa.Array) -> pa.Array:
    """Return tag and length for values of these sizes in bytes."""
    distinct = pc.dictionary_encode(sizes)
    encoded = [_prefix(field, size) for size in distinct.dictionary.to_pylist()]
    return pa.array(encoded, pa.binary()).take(distinct.indices)


def lengths(values: pa.Array) -> npt.NDArray[np.int64]:
    """Return the bytes of each string or binary; there must be no nulls."""
    sizes: npt.NDArray[np.int64] = pc.binary_length(values).to_numpy(zero_copy_only=False).astype(np.int64)
    return sizes


def concatenate(*parts: pa.Array | pa.Scalar) -> pa.Array:
    return pc.binary_join_element_wise(*parts, _EMPTY)


def delimited(field: int, values: pa.Array) -> pa.Array:
    values = values.cast(pa.binary())
    return concatenate(prefixes(field, pc.binary_length(values)), values)


def values_and_ends(column: pa.Array) -> tuple[memoryview, npt.NDArray[np.int64]]:
    """Return the data buffer of a binary column, and where in it each value begins and, last, where it ends."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    return memoryview(b"" if data is None else data), ends


def cut(ends: npt.NDArray[np.int64], max_values: int, max_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut the values of `values_and_ends` into ranges within both limits; a single larger value is a range."""
    first, rows = 0, len(ends) - 1
    while first < rows:
        fitting = int(np.searchsorted(ends, ends[first] + max_bytes, side="right")) - 1
        last = min(max(fitting, first + 1), first + max_values, rows)
        yield first, last
        first = last


def acknowledge_requests(subscription: str, ack_ids: pa.Array) -> Iterator[bytes]:
    """Yield encoded AcknowledgeRequests with every ack id once, in order; raise ValueError for a NULL."""
    return _requests(string_field(1, subscription), 2, ack_ids)


def modify_ack_deadline_requests(subscription: str, ack_ids: pa.Array, seconds: int) -> Iterator[bytes]:
    """Yield ModifyAckDeadlineRequests in the same way, for a deadline of 0 (a nack) to 600 s, else ValueError."""
    if not 0 <= seconds <= _LONGEST_DEADLINE:
        raise ValueError(f"a deadline of {seconds} seconds; the service takes 0 to 600")
    # As every field of proto3, a zero is left out.
    deadline = b"\x18" + _varint(seconds) if seconds else b""
    return _requests(string_field(1, subscription) + deadline, 4, ack_ids)


def _requests(head: bytes, field: int, ack_ids: pa.Array) -> Iterator[bytes]:
    if ack_ids.null_count:
        raise ValueError(f"{ack_ids.null_count} of {len(ack_ids)} ack ids are NULL")
    return _encode(head, field, ack_ids)


def _encode(head: bytes, field: int, ack_ids: pa.Array) -> Iterator[bytes]:
    # In runs, so that a segment's worth of ids is not in memory a second and a third time.
    for start in range(0, len(ack_ids), _ENCODED_AT_ONCE):
        data, ends = values_and_ends(delimited(field, ack_ids.slice(start, _ENCODED_AT_ONCE)))
        for first, last in cut(ends, MAX_ACK_IDS, MAX_REQUEST_BYTES - len(head)):
            yield b"".join((head, data[ends[first] : ends[last]]))
