"""From the bytes of StreamingPull responses to Arrow columns.

Two decoders give equal rows for equal bytes: `PlainDecoder`, by protobuf, and `FastDecoder`, by ptars
(https://github.com/0x26res/ptars), three to six times faster. ptars is a young library: `GuardedDecoder` compares the
two from time to time, and uses the plain one for good after the first difference or error.

What the wire leaves out is empty (payload, attributes, ordering key) or NULL (publish time, also a zero one and one
outside of the years 1 to 9999; delivery attempt, which only a dead-letter policy counts). Times are cut to the
microsecond below. Of an attribute that a message has twice, the last value counts, at the place of the first.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from connectors.core.errors import ConnectorError
from connectors.core.formats import ptars_obstacle, warn_not_fast
from connectors.pubsub.client.client import wire_message
from connectors.pubsub.client.wire import lengths
from connectors.pubsub.source.stored_rows import ROWS_SCHEMA
from connectors.spool.segments.id_keys import OtherIds

_log = logging.getLogger(__name__)

_MAX_WIRE_BYTES: Final = (1 << 31) - 1
"""Most bytes of responses in one call: the offsets of Arrow's strings and binaries have 32 bits."""

# What google.protobuf.Timestamp allows: 0001-01-01T00:00:00Z to before 10000-01-01T00:00:00Z, in seconds since 1970.
_FIRST_SECOND: Final = -62_135_596_800
_LAST_SECOND: Final = 253_402_300_799

_FIRST_COMPARED: Final = 3
_COMPARE_EVERY: Final = 10_000


@dataclass(frozen=True, slots=True)
class ReceivedMessages:
    """Messages in order: rows of `ROWS_SCHEMA`, ack ids, and sizes in bytes of payload, attributes and ordering key."""

    rows: pa.RecordBatch
    ack_ids: pa.Array
    sizes: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.sizes)

    def published(self) -> tuple[int, int] | None:
        """Return lowest and highest publish time, in microseconds since 1970; None if no row has one."""
        bounds = pc.min_max(self.rows.column("publishTimestamp").cast(pa.int64())).as_py()
        return None if bounds["min"] is None else (bounds["min"], bounds["max"])

    def same_as(self, other: ReceivedMessages) -> bool:
        return bool(
            self.rows.equals(other.rows)
            and self.ack_ids.equals(other.ack_ids)
            and np.array_equal(self.sizes, other.sizes)
        )


class Decoder(Protocol):
    """Reads responses."""

    def decode(self, responses: Sequence[bytes]) -> ReceivedMessages:
        """Return the messages of serialised StreamingPullResponse messages, of at most 2 GB, else ValueError.

        Raises ConnectorError, ``PUBSUB_RESPONSE_UNREADABLE``, if a response is no such message or a message has no id.
        """


class PlainDecoder:
    """Reads responses by protobuf, one field of one message after the other."""

    def __init__(self) -> None:
        self._parse = wire_message("StreamingPullResponse").FromString

    def decode(self, responses: Sequence[bytes]) -> ReceivedMessages:
        _check_wire_bytes(responses)
        ack_ids: list[str] = []
        message_ids: list[str] = []
        payloads: list[bytes] = []
        ordering_keys: list[str] = []
        seconds: list[int] = []
        nanos: list[int] = []
        attempts: list[int] = []
        offsets = [0]
        keys: list[str] = []
        values: list[str] = []
        # One loop with nothing but field access in it: at each message, an attribute of an object is what costs.
        for response in responses:
            for received in self._read(response):
                ack_ids.append(received.ack_id)
                attempts.append(received.delivery_attempt)
                message = received.message
                message_ids.append(message.message_id)
                payloads.append(message.data)
                ordering_keys.append(message.ordering_key)
                time = message.publish_time
                seconds.append(time.seconds)
                nanos.append(time.nanos)
                if attributes := message.attributes:
                    for entry in attributes:
                        keys.append(entry.key)
                        values.append(entry.value)
                offsets.append(len(keys))
        return _Columns(
            ack_ids=pa.array(ack_ids, pa.string()),
            message_ids=pa.array(message_ids, pa.string()),
            payloads=pa.array(payloads, pa.binary()),
            ordering_keys=pa.array(ordering_keys, pa.string()),
            seconds=np.array(seconds, np.int64),
            nanos=np.array(nanos, np.int32),
            attempts=np.array(attempts, np.int32),
            attribute_offsets=np.array(offsets, np.int32),
            attribute_keys=pa.array(keys, pa.string()),
            attribute_values=pa.array(values, pa.string()),
        ).assemble()

    def _read(self, response: bytes) -> Sequence[Any]:
        try:
            messages: Sequence[Any] = self._parse(response).received_messages
        except DecodeError as error:
            raise ConnectorError(
                "PUBSUB_RESPONSE_UNREADABLE",
                f"A response of the service is not a valid StreamingPullResponse: {error}",
                f"{len(response)} bytes",
            ) from error
        return messages


class FastDecoder:
    """Reads responses by ptars, without a Python object for a message; ImportError where it is not installed.

    For a `GuardedDecoder`: it may raise anything, and give rows for bytes that are no response.
    """

    def __init__(self) -> None:
        from ptars import HandlerPool  # noqa: PLC0415 - optional

        descriptor = wire_message("StreamingPullResponse").DESCRIPTOR
        self._handler: Any = HandlerPool([descriptor.file]).get_for_message(descriptor)

    def decode(self, responses: Sequence[bytes]) -> ReceivedMessages:
        # One row a response, each with a list of messages; their values are all messages, in order.
        received = self._handler.list_to_record_batch(list(responses)).column(0).values
        message = received.field("message")
        publish_time = message.field("publish_time")
        attributes = message.field("attributes")
        return _Columns(
            ack_ids=received.field("ack_id"),
            message_ids=message.field("message_id"),
            payloads=message.field("data"),
            ordering_keys=message.field("ordering_key"),
            seconds=publish_time.field("seconds").to_numpy(),
            nanos=publish_time.field("nanos").to_numpy(),
            attempts=received.field("delivery_attempt").to_numpy(),
            attribute_offsets=attributes.offsets.to_numpy(),
            attribute_keys=attributes.values.field("key"),
            attribute_values=attributes.values.field("value"),
        ).assemble()


class GuardedDecoder:
    """Uses the fast decoder as long as it gives what the plain one gives. Any thread may use it.

    Both read the first responses of a process, one of `every` later, and any that gives no rows. When the fast one
    fails or differs, the plain one reads the same bytes, before anything is acked.
    """

    def __init__(
        self, fast: Decoder | None, plain: Decoder, *, first: int = _FIRST_COMPARED, every: int = _COMPARE_EVERY
    ) -> None:
        self._fast = fast
        self._plain = plain
        self._first = first
        self._every = every
        self._decoded = 0

    @property
    def is_fast(self) -> bool:
        """Whether the fast decoder is still in use."""
        return self._fast is not None

    def decode(self, responses: Sequence[bytes]) -> ReceivedMessages:
        fast = self._fast  # another thread may leave it meanwhile
        if fast is None:
            return self._plain.decode(responses)
        _check_wire_bytes(responses)
        try:
            received = fast.decode(responses)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - a panic in Rust arrives as a BaseException of its own
            reference = self._plain.decode(responses)
            self._leave_fast(f"it raised {type(error).__name__}: {error}")
            return reference
        if not self._is_due(len(responses), len(received)):
            return received
        reference = self._plain.decode(responses)
        if not received.same_as(reference):
            self._leave_fast("it gave other rows than protobuf for the same bytes")
        return reference

    def _is_due(self, responses: int, rows: int) -> bool:
        if not rows:
            return True
        before = self._decoded
        self._decoded += responses
        return before < self._first or before // self._every != self._decoded // self._every

    def _leave_fast(self, reason: str) -> None:
        self._fast = None
        _log.warning(
            "[FAST_DECODER_NOT_USED] This process no longer uses the fast decoder (ptars): %s. "
            "protobuf reads the messages instead, which is slower and loses nothing.",
            reason,
        )


def make_decoder(*, plain: bool = False) -> GuardedDecoder:
    """Return the fast decoder under guard where a tested ptars is installed, else, or with `plain`, the plain one."""
    return GuardedDecoder(None if plain else _fast_decoder(), PlainDecoder())


def _fast_decoder() -> FastDecoder | None:
    obstacle = ptars_obstacle()
    if not obstacle:
        try:
            return FastDecoder()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - a panic in Rust arrives as a BaseException of its own
            obstacle = f"ptars raised {type(error).__name__}: {error}"
    warn_not_fast("Messages of Pub/Sub are read", obstacle)
    return None


def _check_wire_bytes(responses: Sequence[bytes]) -> None:
    total = sum(map(len, responses))
    if total > _MAX_WIRE_BYTES:
        raise ValueError(f"{total} bytes of responses in one call; at most {_MAX_WIRE_BYTES} fit into one batch")


@dataclass(frozen=True, slots=True)
class _Columns:
    """What a decoder has read; seconds and nanos are the publish times, and an attempt of 0 is none.

    The attributes of row i are those from `attribute_offsets[i]` to before `attribute_offsets[i + 1]`.
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

    def assemble(self) -> ReceivedMessages:
        # Ids decide what is a duplicate: messages without one would be dropped as duplicates of each other.
        if len(self.message_ids) and not pc.min(pc.binary_length(self.message_ids)).as_py():
            what, where = "A message in a response has no message id", f"one of {len(self.message_ids)} messages"
            raise ConnectorError("PUBSUB_RESPONSE_UNREADABLE", what, where)
        offsets, keys, values = _with_unique_keys(self.attribute_offsets, self.attribute_keys, self.attribute_values)
        rows = pa.RecordBatch.from_arrays(
            [
                self.message_ids,
                self.payloads,
                pa.MapArray.from_arrays(pa.array(offsets), keys, values),
                self.ordering_keys,
                _timestamps(self.seconds, self.nanos),
                pa.array(self.attempts, pa.int32(), mask=self.attempts == 0),
            ],
            schema=ROWS_SCHEMA,
        )
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths(keys) + lengths(values))])
        sizes = lengths(self.payloads) + lengths(self.ordering_keys) + np.diff(ends[offsets])
        return ReceivedMessages(rows, self.ack_ids, sizes)


def other_ids(rows: pa.RecordBatch, attribute: str) -> OtherIds:
    """Return the values of an attribute; null where it is missing or empty, as in Apache Beam's ``withIdAttribute``."""
    values = pc.map_lookup(rows.column("attributes"), pa.scalar(attribute), "first")
    return OtherIds(attribute, pc.if_else(pc.equal(values, ""), pa.scalar(None, pa.string()), values))


def _timestamps(seconds: npt.NDArray[np.int64], nanos: npt.NDArray[np.int32]) -> pa.Array:
    unset = (seconds == 0) & (nanos == 0)
    missing = unset | (seconds < _FIRST_SECOND) | (seconds > _LAST_SECOND)
    microseconds = np.where(missing, 0, seconds) * 1_000_000 + nanos // 1000
    return pa.array(microseconds, pa.int64(), mask=missing).cast(pa.timestamp("us", "UTC"))


def _with_unique_keys(
    offsets: npt.NDArray[np.int32], keys: pa.Array, values: pa.Array
) -> tuple[npt.NDArray[np.int32], pa.Array, pa.Array]:
    """Return the same attributes, but each key once in its row, with its last value (the rule of protobuf's maps)."""
    counts = np.diff(offsets)
    if not len(counts) or counts.max() <= 1 or not _has_duplicates(counts, keys):
        return offsets, keys, values
    all_keys, all_values = keys.to_pylist(), values.to_pylist()
    maps = [dict(zip(all_keys[first:end], all_values[first:end], strict=True)) for first, end in pairwise(offsets)]
    return (
        np.cumsum([0, *map(len, maps)], dtype=np.int32),
        pa.array([key for attributes in maps for key in attributes], pa.string()),
        pa.array([value for attributes in maps for value in attributes.values()], pa.string()),
    )


def _has_duplicates(counts: npt.NDArray[np.int32], keys: pa.Array) -> bool:
    encoded = keys.dictionary_encode()
    codes = encoded.indices.to_numpy().astype(np.int64)
    rows = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    pairs = rows * len(encoded.dictionary) + codes
    pairs.sort()
    return bool((pairs[1:] == pairs[:-1]).any())
