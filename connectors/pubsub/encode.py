"""Acknowledge and ModifyAckDeadline requests as bytes, made from a column of ack ids without an object for each id.

The bytes are those of google.pubsub.v1
(https://github.com/googleapis/googleapis/blob/master/google/pubsub/v1/pubsub.proto)::

    message AcknowledgeRequest { string subscription = 1; repeated string ack_ids = 2; }
    message ModifyAckDeadlineRequest {
      string subscription = 1;
      int32 ack_deadline_seconds = 3;
      repeated string ack_ids = 4;
    }

A repeated string is, for each value, its tag, its length as a varint, and its UTF-8: so the data buffer of a column
whose values are "tag, length, id" is the field as it is sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["MAX_ACK_IDS", "MAX_REQUEST_BYTES", "acknowledge_requests", "modify_ack_deadline_requests"]

MAX_ACK_IDS = 2_500
"""Most ack ids in one request: at the 170 to 220 bytes that ids have, as many as `MAX_REQUEST_BYTES` holds."""

MAX_REQUEST_BYTES = 500_000
"""Most bytes of a request; the service takes 512 KiB (https://cloud.google.com/pubsub/quotas#resource_limits)."""

_RUN = 8 * MAX_ACK_IDS
_LENGTH_DELIMITED = 2
_SHORT = 0x80
_DEADLINES = range(601)


def acknowledge_requests(subscription: str, ack_ids: pa.Array) -> Iterator[bytes]:
    """Serialised AcknowledgeRequest messages that name every ack id once, in order.

    Args:
        subscription: full name, ``projects/P/subscriptions/S``.
        ack_ids: strings or binaries, without nulls.

    Returns:
        Requests within the limits of the service, each made when it is asked for; none for no ids.

    Raises:
        ValueError: an id is NULL.
    """
    return _requests(_string_field(1, subscription), 2, ack_ids)


def modify_ack_deadline_requests(subscription: str, ack_ids: pa.Array, seconds: int) -> Iterator[bytes]:
    """Serialised ModifyAckDeadlineRequest messages that name every ack id once, in order.

    Args:
        subscription: full name, ``projects/P/subscriptions/S``.
        ack_ids: strings or binaries, without nulls.
        seconds: the new deadline from now on, 0 to 600; 0 hands the messages back (a nack).

    Returns:
        Requests within the limits of the service, each made when it is asked for; none for no ids.

    Raises:
        ValueError: an id is NULL, or the deadline is none that the service takes.
    """
    if seconds not in _DEADLINES:
        raise ValueError(f"a deadline of {seconds} seconds; the service takes 0 to 600")
    # As every field of proto3, a zero is left out.
    deadline = b"\x18" + _varint(seconds) if seconds else b""
    return _requests(_string_field(1, subscription) + deadline, 4, ack_ids)


def _requests(head: bytes, field: int, ack_ids: pa.Array) -> Iterator[bytes]:
    if ack_ids.null_count:
        raise ValueError(f"{ack_ids.null_count} of {len(ack_ids)} ack ids are NULL")
    # In runs, so that a segment's worth of ids is not in memory a second and a third time.
    return (
        b"".join((head, part))
        for start in range(0, len(ack_ids), _RUN)
        for part in _cut(*_repeated_strings(field, ack_ids.slice(start, _RUN)), MAX_REQUEST_BYTES - len(head))
    )


def _repeated_strings(field: int, values: pa.Array) -> tuple[memoryview, npt.NDArray[np.int64]]:
    """The encoded field, and where in it each value begins and, last, where it ends."""
    values = values.cast(pa.binary())
    lengths = pc.binary_length(values)
    distinct = pc.dictionary_encode(lengths)
    prefixes = [_prefix(field, length) for length in distinct.dictionary.to_pylist()]
    column = pc.binary_join_element_wise(
        pa.array(prefixes, pa.binary()).take(distinct.indices), values, pa.scalar(b"", pa.binary())
    )
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    return memoryview(b"" if data is None else data), ends


def _cut(data: memoryview, ends: npt.NDArray[np.int64], max_bytes: int) -> Iterator[memoryview]:
    """The encoded field in parts of at most `MAX_ACK_IDS` values and `max_bytes`; a longer value stands alone."""
    first, rows = 0, len(ends) - 1
    while first < rows:
        fitting = int(np.searchsorted(ends, ends[first] + max_bytes, side="right")) - 1
        last = min(max(fitting, first + 1), first + MAX_ACK_IDS, rows)
        yield data[ends[first] : ends[last]]
        first = last


@cache
def _prefix(field: int, length: int) -> bytes:
    return _varint(field << 3 | _LENGTH_DELIMITED) + _varint(length)


def _string_field(field: int, value: str) -> bytes:
    encoded = value.encode()
    return _prefix(field, len(encoded)) + encoded


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= _SHORT:
        out.append(value & 0x7F | _SHORT)
        value >>= 7
    out.append(value)
    return bytes(out)
