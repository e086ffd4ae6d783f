"""What a fetcher of Pub/Sub does: pull streams, decode, ack what is durable, extend leases, nack.

It runs in the process of `connectors.spool.fetching.process`, and imports nothing of Spark.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, cast

from connectors.core.errors import ConnectorError
from connectors.core.retry import RetryPolicy
from connectors.pubsub.client.client import PubSubClient, PullStream
from connectors.pubsub.client.errors import AckFailures
from connectors.pubsub.options.client import ServiceAccount, Transport
from connectors.pubsub.source.acks import AckSender
from connectors.pubsub.source.leases import Deadlines, Received
from connectors.pubsub.source.records import make_decoder, other_ids
from connectors.pubsub.source.streaming_pull import ServiceHealth, StreamReader
from connectors.pubsub.source.subscription import SubscriptionMonitor
from connectors.spool.fetching.target import Block, FetchContext, Intake, TargetStatus

__all__ = ["DEDUP_ATTRIBUTE_MISSING", "TARGET", "PubSubFetch", "PubSubFetchSettings"]

TARGET: Final = "connectors.pubsub.source.fetcher:PubSubFetch"
"""What `FetchPlan.target` is for Pub/Sub."""

DEDUP_ATTRIBUTE_MISSING: Final = "dedup_attribute_missing"
"""Counter of the messages without the attribute that dedupAttribute names."""

_STREAMS_A_CHANNEL: Final = 8
_ONCE: Final = RetryPolicy(deadline_seconds=0.0)

_LONGEST_PAUSE_SECONDS: Final = 1.0
"""After so long without room the streams are closed: what the service has sent ahead goes to others, or comes later."""

_PAUSE_POLL_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class PubSubFetchSettings:
    """The settings of a fetcher of Pub/Sub; they travel by pipe as `FetchPlan.settings`.

    Attributes:
        subscription: full path.
        service_account: without it and a key file, application default credentials are used.
        ack_deadline_seconds: 10 to 600; the deadline of what the streams deliver, and of each extension.
        max_outstanding_bytes: what the service may send ahead of acks, over all streams; 0 for no limit.
        max_outstanding_messages: likewise in messages.
        ordered: the subscription has message ordering, or that is unknown.
        check_every_seconds: how often the first fetcher checks whether the subscription can still be read.
        plain: decode by protobuf only.
        dedup_attribute: messages with the same value of it are duplicates; an empty text for none.
    """

    subscription: str
    transport: Transport
    credentials_file: str | None = None
    service_account: ServiceAccount | None = None
    streams: int = 4
    ack_deadline_seconds: int = 60
    max_outstanding_bytes: int = 0
    max_outstanding_messages: int = 0
    ordered: bool = False
    check_every_seconds: float = 30.0
    plain: bool = False
    dedup_attribute: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the settings as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read the settings that `to_json` wrote."""
        account, transport = value.get("service_account"), Transport(**value["transport"])
        return cls(**{**value, "transport": transport, "service_account": account and ServiceAccount(**account)})


class PubSubFetch:
    """The target of Pub/Sub; see `connectors.spool.fetching.target.FetchTarget`."""

    def __init__(self, settings: Mapping[str, Any], context: FetchContext) -> None:
        parsed = self._settings = PubSubFetchSettings.from_json(settings)
        self._context = context
        key_file = None if parsed.credentials_file is None else Path(parsed.credentials_file)
        credentials = parsed.service_account or key_file
        channels = -(-parsed.streams // _STREAMS_A_CHANNEL)
        self._clients = [PubSubClient(parsed.transport, credentials, retry_policy=_ONCE) for _ in range(channels)]
        self._client_id = secrets.token_hex(16)
        self._health = ServiceHealth()
        self._decoder = make_decoder(plain=parsed.plain)
        self._acks = AckSender(parsed.subscription, partial(self._send, self._clients[0].acknowledge), context.fail)
        self._deadlines = Deadlines(
            parsed.subscription,
            parsed.ack_deadline_seconds,
            partial(self._send, self._clients[0].modify_ack_deadline),
            make_decoder(plain=parsed.plain),
            ordered=parsed.ordered,
            fault=context.fail,
        )
        self._readers: list[StreamReader] = []
        self._intake: Intake | None = None
        self._closed = threading.Event()
        self._monitor = SubscriptionMonitor(
            lambda: self._clients[0].get_subscription(parsed.subscription),
            self._health,
            context,
            every_seconds=parsed.check_every_seconds,
            quiet_seconds=parsed.ack_deadline_seconds,
            response_awaited=lambda: any(reader.awaits_response for reader in self._readers),
            reading=self._is_reading,
        )
        for name, work in (("monitor", self._monitor.run), ("pauses", self._close_streams_in_pauses)):
            threading.Thread(target=self._run, args=(work,), name=name, daemon=True).start()

    def start(self, intake: Intake) -> None:
        """Open the streams."""
        self._intake = intake
        self._readers = [
            StreamReader(
                f"stream-{number}",
                partial(self._open_stream, self._clients[number // _STREAMS_A_CHANNEL]),
                intake,
                self._deadlines,
                self._health,
                self._context,
            )
            for number in range(self._settings.streams)
        ]

    def stop(self) -> None:
        """Close the streams."""
        for reader in self._readers:
            reader.begin_stop()
        for reader in self._readers:
            reader.join()

    def decode(self, deliveries: Sequence[object]) -> Block:
        """Return the messages of these responses."""
        received = cast("Sequence[Received]", deliveries)
        messages = self._decoder.decode([part.response for part in received if part.response is not None])
        token = self._deadlines.merge(received, messages.ack_ids)
        block = Block(messages.rows, messages.rows.column("messageId"), messages.sizes, messages.published(), token)
        if self._settings.dedup_attribute:
            block.other_ids = other_ids(messages.rows, self._settings.dedup_attribute)
            block.counters = {DEDUP_ATTRIBUTE_MISSING: block.other_ids.values.null_count}
        return block

    def on_durable(self, token: object) -> None:
        """Ack a block."""
        received = cast("Received", token)
        self._deadlines.release(received)
        self._acks.acknowledge(received.ack_ids)

    def on_given_up(self, tokens: Sequence[object]) -> None:
        """Nack blocks and responses."""
        self._deadlines.nack(cast("Sequence[Received]", tokens))

    def status(self) -> TargetStatus:
        """Return how many streams are open, the service's health, and the counters."""
        return TargetStatus(
            streams=self._settings.streams,
            streams_open=sum(reader.is_open for reader in self._readers),
            error=self._health.error,
            counters={**self._acks.counters, **self._deadlines.counters},
        )

    def close(self, deadline: float) -> None:
        """Send acks and nacks that wait, and close the channels."""
        self._closed.set()
        self._monitor.close()
        self._acks.close(deadline)
        self._deadlines.close(deadline)
        for client in self._clients:
            client.close()

    def _open_stream(self, client: PubSubClient) -> PullStream:
        settings = self._settings
        # The service hands an ordering key to one client at a time. With message ordering each stream is a client of
        # its own, also when it is reopened: what was lost with the stream before would else be overtaken by later
        # messages of its keys, as the service takes them for still held.
        return client.streaming_pull(
            settings.subscription,
            ack_deadline_seconds=settings.ack_deadline_seconds,
            client_id=secrets.token_hex(16) if settings.ordered else self._client_id,
            max_outstanding_messages=_share(settings.max_outstanding_messages, settings.streams),
            max_outstanding_bytes=_share(settings.max_outstanding_bytes, settings.streams),
        )

    def _send(self, send: Callable[..., AckFailures], request: bytes, timeout_seconds: float) -> AckFailures:
        try:
            failures = send(self._settings.subscription, request, timeout_seconds=timeout_seconds)
        except ConnectorError as error:
            if error.transient:
                self._health.failed(error)
            raise
        self._health.responded()
        return failures

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - it is reported, and ends the process
            self._context.fail(error)

    def _is_reading(self) -> bool:
        has_room = self._intake is not None and not self._intake.paused_seconds()
        return has_room and all(reader.is_open for reader in self._readers)

    def _close_streams_in_pauses(self) -> None:
        while not self._closed.wait(_PAUSE_POLL_SECONDS):
            # A saturated fetcher has room for moments only: what counts is that a stream was let in.
            if self._intake is not None and self._intake.paused_seconds() >= _LONGEST_PAUSE_SECONDS:
                for reader in self._readers:
                    reader.close_stream()


def _share(total: int, streams: int) -> int:
    """Return the share of each stream, at least 1; 0, which means no limit, stays."""
    return max(total // streams, 1) if total else 0
