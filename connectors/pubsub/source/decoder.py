"""From the bytes of a StreamingPull or Pull response to Arrow columns (the plain path, and the guard of the fast one).

There are two ways, which give equal rows for equal bytes:

* `PlainDecoder` lets protobuf parse the bytes and reads the fields of each message. It is the reference.
* `FastDecoder` parses straight into Arrow by ptars, three to six times faster.

`GuardedDecoder` uses the fast one, compares it with the plain one from time to time, and leaves it for good at the
first difference or error. `make_decoder` builds what a fetcher should use.

The wire format stands in `connectors.pubsub.client.messages`, what becomes of a field that is left out in
`connectors.pubsub.source.records`.

ptars (https://github.com/0x26res/ptars) is a young library: it comes with the extra fast, and only tested versions
of it are used. It makes no Python object for a message.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from connectors.core.errors import ConnectorError
from connectors.core.extras import ptars_obstacle, warn_not_fast
from connectors.pubsub.client.messages import wire_message
from connectors.pubsub.source.records import Columns, ReceivedMessages, assemble

__all__ = [
    "MAX_WIRE_BYTES",
    "Decoder",
    "FastDecoder",
    "GuardedDecoder",
    "PlainDecoder",
    "cut_responses",
    "load_fast_decoder",
    "make_decoder",
]


_log = logging.getLogger(__name__)

MAX_WIRE_BYTES = (1 << 31) - 1
"""Most bytes of responses in one call: the offsets of Arrow's strings and binaries have 32 bits."""

_FIRST_COMPARED = 3
_COMPARE_EVERY = 10_000


class Decoder(Protocol):
    """Something that reads responses."""

    def decode(self, responses: Sequence[bytes]) -> ReceivedMessages:
        """The messages of these responses.

        Args:
            responses: serialised StreamingPullResponse or PullResponse messages, in all at most `MAX_WIRE_BYTES`
                (see `cut_responses`). Responses without messages are fine.

        Raises:
            ConnectorError: ``PUBSUB_RESPONSE_UNREADABLE``: a response is no such message, or a message has no id.
            ValueError: the responses are too large for one call.
        """


class PlainDecoder:
    """Reads responses by protobuf, one field of one message after the other."""

    def __init__(self) -> None:
        from google.protobuf.message import DecodeError  # noqa: PLC0415 - protobuf comes with an extra

        self._parse = wire_message("StreamingPullResponse").FromString
        self._parse_error = DecodeError

    def decode(self, responses: Sequence[bytes]) -> ReceivedMessages:
        """See `Decoder.decode`."""
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
        return assemble(
            Columns(
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
            )
        )

    def _read(self, response: bytes) -> Sequence[Any]:
        try:
            messages: Sequence[Any] = self._parse(response).received_messages
        except self._parse_error as error:
            raise ConnectorError(
                "PUBSUB_RESPONSE_UNREADABLE",
                f"A response of the service is not a valid StreamingPullResponse: {error}",
                f"{len(response)} bytes",
                "Nothing of it was acked, so the service sends its messages again. If it goes on, look for a proxy "
                "that changes traffic, and compare with another client of this subscription.",
            ) from error
        return messages


class GuardedDecoder:
    """Uses the fast decoder as long as it gives what the plain one gives.

    The first responses of a process, one in many later, and any answer without rows are read by both. Nothing is lost
    when the fast one fails or differs: the same bytes are read by the plain one, before anything is acked. Any thread
    may use it.

    Args:
        fast: the decoder to use, or None to use the plain one only.
        plain: the reference.
        first: how many responses with messages are compared at first.
        every: each how many-th response is compared later.
    """

    def __init__(
        self, fast: Decoder | None, plain: Decoder, *, first: int = _FIRST_COMPARED, every: int = _COMPARE_EVERY
    ) -> None:
        self._fast = fast
        self._plain = plain
        self._first = first
        self._every = every
        self._seen = 0

    @property
    def is_fast(self) -> bool:
        """Whether the fast decoder is still in use."""
        return self._fast is not None

    def decode(self, responses: Sequence[bytes]) -> ReceivedMessages:
        """See `Decoder.decode`."""
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
        before = self._seen
        self._seen += responses
        return before < self._first or before // self._every != self._seen // self._every

    def _leave_fast(self, reason: str) -> None:
        self._fast = None
        _log.warning(
            "[FAST_DECODER_NOT_USED] The fast decoder (ptars) is not used any more in this process: %s. "
            "Messages are read by protobuf instead, which is slower and loses nothing.",
            reason,
        )


def make_decoder(*, plain: bool = False) -> GuardedDecoder:
    """The decoder of a fetcher: the fast one under guard where a tested ptars is installed, else the plain one.

    Args:
        plain: use the plain one only.
    """
    return GuardedDecoder(None if plain else load_fast_decoder(), PlainDecoder())


def cut_responses(responses: Sequence[bytes], max_bytes: int = MAX_WIRE_BYTES) -> Iterator[Sequence[bytes]]:
    """Cut a list of responses into runs of at most `max_bytes`, in order; a larger response stands alone."""
    start = held = 0
    for index, response in enumerate(responses):
        if held and held + len(response) > max_bytes:
            yield responses[start:index]
            start, held = index, 0
        held += len(response)
    if start < len(responses):
        yield responses[start:]


def _check_wire_bytes(responses: Sequence[bytes]) -> None:
    total = sum(map(len, responses))
    if total > MAX_WIRE_BYTES:
        raise ValueError(f"{total} bytes of responses in one call; at most {MAX_WIRE_BYTES} fit into one batch")


class FastDecoder:
    """Reads responses by ptars.

    It may raise anything, and for bytes that are no response it may give rows where the plain one raises: use it
    under a `GuardedDecoder`.

    Raises:
        ImportError: ptars is not installed.
    """

    def __init__(self) -> None:
        from ptars import HandlerPool  # noqa: PLC0415 - optional

        descriptor = wire_message("StreamingPullResponse").DESCRIPTOR
        self._handler: Any = HandlerPool([descriptor.file]).get_for_message(descriptor)

    def decode(self, responses: Sequence[bytes]) -> ReceivedMessages:
        """See `connectors.pubsub.source.decoder.Decoder.decode`; what it raises is up to ptars."""
        # One row a response, each with a list of messages; their values are all messages, in order.
        received = self._handler.list_to_record_batch(list(responses)).column(0).values
        message = received.field("message")
        publish_time = message.field("publish_time")
        attributes = message.field("attributes")
        return assemble(
            Columns(
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
            )
        )


def load_fast_decoder() -> FastDecoder | None:
    """Return the fast decoder, or None, with a line in the log, where its library is missing or cannot be used."""
    if obstacle := ptars_obstacle():
        warn_not_fast("Messages of Pub/Sub are read", obstacle)
        return None
    try:
        return FastDecoder()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - a panic in Rust arrives as a BaseException of its own
        warn_not_fast("Messages of Pub/Sub are read", f"ptars raised {type(error).__name__}: {error}")
    return None
