"""From the bytes of a response straight to Arrow columns, by ptars (the fast path; see `connectors.pubsub.decode`).

ptars (https://github.com/0x26res/ptars) is a young library: it comes with the extra fast, only tested versions of it
are used, and `connectors.pubsub.decode.GuardedDecoder` stands around it. No Python object is made for a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from connectors.core.extras import ptars_obstacle, warn_not_fast
from connectors.pubsub.messages import wire_message
from connectors.pubsub.rows import Columns, ReceivedMessages, assemble

__all__ = ["FastDecoder", "load_fast_decoder"]


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
        """See `connectors.pubsub.decode.Decoder.decode`; what it raises is up to ptars."""
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
