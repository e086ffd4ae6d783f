"""Messages of AWS's event-stream encoding, in which SubscribeToShard sends its events, by botocore's parser."""

from __future__ import annotations

from collections.abc import Iterator

from botocore.eventstream import EventStreamBuffer, EventStreamMessage, ParserError

from connectors.core.errors import ServiceUnavailableError

__all__ = ["MessageBuffer"]


class MessageBuffer:
    """Parses messages from bytes that arrive in pieces."""

    def __init__(self) -> None:
        self._buffer = EventStreamBuffer()

    def feed(self, data: bytes) -> Iterator[EventStreamMessage]:
        """Yield the messages that these bytes complete.

        Raises:
            ServiceUnavailableError: what arrived is damaged; nothing after it can be trusted.
        """
        self._buffer.add_data(data)
        try:
            yield from self._buffer
        except (ParserError, LookupError, ValueError) as error:
            what = f"What SubscribeToShard sent is damaged: {type(error).__name__}: {error}"
            raise ServiceUnavailableError("KINESIS_EVENT_DAMAGED", what, "", "It subscribes again by itself.") from None
