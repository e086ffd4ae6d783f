"""What all decoders of the Pub/Sub source share: the wire format of received messages, and the rows made of it.

The wire format is given by a descriptor of our own, which names only the fields we use, with the numbers of
google.pubsub.v1 (https://github.com/googleapis/googleapis/blob/master/google/pubsub/v1/pubsub.proto)::

    message StreamingPullResponse { repeated ReceivedMessage received_messages = 1; }   // PullResponse likewise
    message ReceivedMessage { string ack_id = 1; PubsubMessage message = 2; int32 delivery_attempt = 3; }
    message PubsubMessage {
      bytes data = 1;
      repeated AttributesEntry attributes = 2;   // map<string, string> on the wire; so its order is kept
      string message_id = 3;
      Timestamp publish_time = 4;
      string ordering_key = 5;
    }
    message AttributesEntry { string key = 1; string value = 2; }
    message Timestamp { int64 seconds = 1; int32 nanos = 2; }

What the wire leaves out becomes: no payload an empty one, no attributes an empty map, no ordering key an empty
string, no publish time NULL (also a zero one, and one outside of the years 1 to 9999), and no delivery attempt NULL:
the service counts attempts only for a subscription with a dead-letter policy. Times are cut to the microsecond below.
An attribute that is there twice has its last value, at the place of its first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from connectors.core.errors import ConnectorError

__all__ = ["ROWS_SCHEMA", "Columns", "ReceivedMessages", "assemble", "wire_message"]

ROWS_SCHEMA = pa.schema(
    [
        ("messageId", pa.string()),
        ("payload", pa.binary()),
        ("attributes", pa.map_(pa.string(), pa.string())),
        ("orderingKey", pa.string()),
        ("publishTimestamp", pa.timestamp("us", "UTC")),
        ("deliveryAttempt", pa.int32()),
    ]
)
"""The columns of a received message, with the Arrow types that Spark gives to those of the source."""

_PACKAGE = "connectors.pubsub.wire"
_FIELDS = {
    "Timestamp": {"seconds": (1, "INT64"), "nanos": (2, "INT32")},
    "AttributesEntry": {"key": (1, "STRING"), "value": (2, "STRING")},
    "PubsubMessage": {
        "data": (1, "BYTES"),
        "attributes": (2, "AttributesEntry[]"),
        "message_id": (3, "STRING"),
        "publish_time": (4, "Timestamp"),
        "ordering_key": (5, "STRING"),
    },
    "ReceivedMessage": {
        "ack_id": (1, "STRING"),
        "message": (2, "PubsubMessage"),
        "delivery_attempt": (3, "INT32"),
    },
    "StreamingPullResponse": {"received_messages": (1, "ReceivedMessage[]")},
}

# What google.protobuf.Timestamp allows: 0001-01-01T00:00:00Z to before 10000-01-01T00:00:00Z, in seconds since 1970.
_FIRST_SECOND = -62_135_596_800
_LAST_SECOND = 253_402_300_799


@dataclass(frozen=True, slots=True)
class ReceivedMessages:
    """Messages in the order in which they stood in the responses.

    Attributes:
        rows: of the schema `ROWS_SCHEMA`.
        ack_ids: strings, one a row.
        sizes: bytes of each row: payload, keys and values of the attributes, ordering key.
    """

    rows: pa.RecordBatch
    ack_ids: pa.Array
    sizes: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.sizes)

    def published(self) -> tuple[int, int] | None:
        """Lowest and highest publish time, in microseconds since 1970; None if no row has one."""
        bounds = pc.min_max(self.rows.column("publishTimestamp").cast(pa.int64())).as_py()
        return None if bounds["min"] is None else (bounds["min"], bounds["max"])

    def same_as(self, other: ReceivedMessages) -> bool:
        """Whether both hold equal rows, ack ids and sizes."""
        return bool(
            self.rows.equals(other.rows)
            and self.ack_ids.equals(other.ack_ids)
            and np.array_equal(self.sizes, other.sizes)
        )


@dataclass(frozen=True, slots=True)
class Columns:
    """What a decoder has read, one value a row where nothing else is said; `assemble` makes rows of it.

    Attributes:
        ack_ids: strings.
        message_ids: strings.
        payloads: binaries.
        ordering_keys: strings.
        seconds: publish times, whole seconds since 1970 (int64).
        nanos: what to add to them, in nanoseconds (int32).
        attempts: delivery attempts, 0 where there is none (int32).
        attribute_offsets: the attributes of row i are those from `attribute_offsets[i]` to before
            `attribute_offsets[i + 1]`; one more than rows, from 0 (int32).
        attribute_keys: strings, one an attribute.
        attribute_values: strings, one an attribute.
    """

    ack_ids: pa.Array
    message_ids: pa.Array
    payloads: pa.Array
    ordering_keys: pa.Array
    seconds: npt.NDArray[np.int64]
    nanos: npt.NDArray[np.int32]
    attempts: npt.NDArray[np.int32]
    attribute_offsets: npt.NDArray[np.int32]
    attribute_keys: pa.Array
    attribute_values: pa.Array


@cache
def wire_message(name: str) -> Any:
    """The class of a message of our wire descriptor (see the top of this module), by its name."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: PLC0415 - protobuf comes with an extra

    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="connectors/pubsub/wire.proto", package=_PACKAGE, syntax="proto3")
    for message, fields in _FIELDS.items():
        declared = file.message_type.add(name=message)
        for field, (number, kind) in fields.items():
            target = declared.field.add(name=field, number=number)
            target.label = field_type.LABEL_REPEATED if kind.endswith("[]") else field_type.LABEL_OPTIONAL
            if kind.isupper():
                target.type = field_type.Type.Value(f"TYPE_{kind}")
            else:
                target.type = field_type.TYPE_MESSAGE
                target.type_name = f".{_PACKAGE}.{kind.removesuffix('[]')}"
    # A pool of our own: in the default one, two versions of a file would clash.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


def assemble(columns: Columns) -> ReceivedMessages:
    """Make rows of what a decoder has read.

    Raises:
        ConnectorError: ``PUBSUB_RESPONSE_UNREADABLE``: a message has no id.
    """
    _check_message_ids(columns.message_ids)
    offsets, keys, values = _with_unique_keys(
        columns.attribute_offsets, columns.attribute_keys, columns.attribute_values
    )
    rows = pa.RecordBatch.from_arrays(
        [
            columns.message_ids,
            columns.payloads,
            pa.MapArray.from_arrays(pa.array(offsets), keys, values),
            columns.ordering_keys,
            _timestamps(columns.seconds, columns.nanos),
            pa.array(columns.attempts, pa.int32(), mask=columns.attempts == 0),
        ],
        schema=ROWS_SCHEMA,
    )
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(_lengths(keys) + _lengths(values))])
    sizes = _lengths(columns.payloads) + _lengths(columns.ordering_keys) + np.diff(ends[offsets])
    return ReceivedMessages(rows, columns.ack_ids, sizes)


def _check_message_ids(message_ids: pa.Array) -> None:
    # Ids decide what is a copy: messages without one would be struck out as copies of each other.
    if len(message_ids) and not pc.min(pc.binary_length(message_ids)).as_py():
        raise ConnectorError(
            "PUBSUB_RESPONSE_UNREADABLE",
            "A message of a response has no message id",
            f"one of {len(message_ids)} messages",
            "Nothing of the response was acked. The service gives every message an id: look at what answers at the "
            "endpoint.",
        )


def _lengths(array: pa.Array) -> npt.NDArray[np.int64]:
    """The bytes of each string or binary."""
    lengths: npt.NDArray[np.int64] = pc.binary_length(array).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths


def _timestamps(seconds: npt.NDArray[np.int64], nanos: npt.NDArray[np.int32]) -> pa.Array:
    unset = (seconds == 0) & (nanos == 0)
    missing = unset | (seconds < _FIRST_SECOND) | (seconds > _LAST_SECOND)
    microseconds = np.where(missing, 0, seconds) * 1_000_000 + nanos // 1000
    return pa.array(microseconds, pa.int64(), mask=missing).cast(pa.timestamp("us", "UTC"))


def _with_unique_keys(
    offsets: npt.NDArray[np.int32], keys: pa.Array, values: pa.Array
) -> tuple[npt.NDArray[np.int32], pa.Array, pa.Array]:
    """The same attributes, but each key once in its row, with its last value (the rule of protobuf's maps)."""
    counts = np.diff(offsets)
    if not len(counts) or counts.max() < 2 or not _has_duplicates(counts, keys):  # noqa: PLR2004 - one has no twin
        return offsets, keys, values
    all_keys, all_values = keys.to_pylist(), values.to_pylist()
    maps = [dict(zip(all_keys[first:end], all_values[first:end], strict=True)) for first, end in pairwise(offsets)]
    return (
        np.cumsum([0, *map(len, maps)], dtype=np.int32),
        pa.array([key for each in maps for key in each], pa.string()),
        pa.array([value for each in maps for value in each.values()], pa.string()),
    )


def _has_duplicates(counts: npt.NDArray[np.int32], keys: pa.Array) -> bool:
    encoded = keys.dictionary_encode()
    codes = encoded.indices.to_numpy().astype(np.int64)
    rows = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    pairs = rows * len(encoded.dictionary) + codes
    pairs.sort()
    return bool((pairs[1:] == pairs[:-1]).any())
