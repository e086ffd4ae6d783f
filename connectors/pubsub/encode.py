"""Acknowledge and ModifyAckDeadline requests as bytes, made from a column of ack ids without an object for each id.

The bytes are those of google.pubsub.v1
(https://github.com/googleapis/googleapis/blob/master/google/pubsub/v1/pubsub.proto)::

    message AcknowledgeRequest { string subscription = 1; repeated string ack_ids = 2; }
    message ModifyAckDeadlineRequest {
      string subscription = 1;
      int32 ack_deadline_seconds = 3;
      repeated string ack_ids = 4;
    }
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from connectors.pubsub.wire import cut, delimited, string_field, values_and_ends, varint

__all__ = ["MAX_ACK_IDS", "MAX_REQUEST_BYTES", "acknowledge_requests", "modify_ack_deadline_requests"]

MAX_ACK_IDS = 2_500
"""Most ack ids in one request: at the 170 to 220 bytes that ids have, as many as `MAX_REQUEST_BYTES` holds."""

MAX_REQUEST_BYTES = 500_000
"""Most bytes of a request; the service takes 512 KiB (https://cloud.google.com/pubsub/quotas#resource_limits)."""

_RUN = 8 * MAX_ACK_IDS
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
    return _requests(string_field(1, subscription), 2, ack_ids)


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
    deadline = b"\x18" + varint(seconds) if seconds else b""
    return _requests(string_field(1, subscription) + deadline, 4, ack_ids)


def _requests(head: bytes, field: int, ack_ids: pa.Array) -> Iterator[bytes]:
    if ack_ids.null_count:
        raise ValueError(f"{ack_ids.null_count} of {len(ack_ids)} ack ids are NULL")
    return _encoded(head, field, ack_ids)


def _encoded(head: bytes, field: int, ack_ids: pa.Array) -> Iterator[bytes]:
    # In runs, so that a segment's worth of ids is not in memory a second and a third time.
    for start in range(0, len(ack_ids), _RUN):
        data, ends = values_and_ends(delimited(field, ack_ids.slice(start, _RUN)))
        for first, last in cut(ends, MAX_ACK_IDS, MAX_REQUEST_BYTES - len(head)):
            yield b"".join((head, data[ends[first] : ends[last]]))
