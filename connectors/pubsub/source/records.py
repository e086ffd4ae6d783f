"""The rows that all decoders of the Pub/Sub source make of received messages.

What the wire leaves out becomes: no payload an empty one, no attributes an empty map, no ordering key an empty
string, no publish time NULL (also a zero one, and one outside of the years 1 to 9999), and no delivery attempt NULL:
the service counts attempts only for a subscription with a dead-letter policy. Times are cut to the microsecond below.
An attribute that is there twice has its last value, at the place of its first.

From the columns of a segment to those that Spark gets, by schema mode; runs in tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from connectors.core.errors import ConnectorError
from connectors.spool.segments.id_keys import OtherIds

__all__ = ["ROWS_SCHEMA", "Columns", "ReceivedMessages", "assemble", "other_ids"]


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


def other_ids(rows: pa.RecordBatch, attribute: str) -> OtherIds:
    """The values of an attribute; null where it is missing or empty, as Apache Beam's ``withIdAttribute`` has it."""
    values = pc.map_lookup(rows.column("attributes"), pa.scalar(attribute), "first")
    return OtherIds(attribute, pc.if_else(pc.equal(values, ""), pa.scalar(None, pa.string()), values))


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
