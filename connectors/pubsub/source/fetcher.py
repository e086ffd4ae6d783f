"""What a fetcher of Pub/Sub does: pull streams, decode, ack what is durable, extend leases, nack.

It runs in the process of `connectors.spool.fetching.process`, and imports nothing of Spark. A subscription whose topic
was deleted delivers what it holds (seen on the official emulator), so its query stops when nothing comes any more.
The service closes streams all the time, by design, so an end is no error; a stream that cannot be reopened is.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from connectors.core.errors import AccessDeniedError, ConnectorError, SourceGoneError
from connectors.core.options.providers import Provider
from connectors.core.retry import Backoff
from connectors.pubsub.client.client import PubSubClient, PullStream
from connectors.pubsub.client.errors import AckFailures, topic_deleted
from connectors.pubsub.options.client import ServiceAccount, Transport
from connectors.pubsub.source.acks import AckSender, Deadlines, Received
from connectors.pubsub.source.records import make_decoder, other_ids
from connectors.spool.fetching.contract import Block, FetchContext, FetchTarget, Intake, TargetStatus
from connectors.spool.fetching.messages import from_json

_log = logging.getLogger(__name__)

DEDUP_ATTRIBUTE_MISSING: Final = "dedup_attribute_missing"
"""Counter of the messages without the attribute that dedupAttribute names."""

_STREAMS_A_CHANNEL: Final = 8

_LONGEST_PAUSE_SECONDS: Final = 1.0
"""Seconds without room until the streams are closed: what the service has sent ahead goes to others, or comes later."""

_POLL_SECONDS: Final = 0.25
_CHECK_RETRY_SECONDS: Final = 1.0

_HEALTHY_SECONDS: Final = 1.0
"""A stream that was open this long, or brought something, was no failure, however it ended."""

_REOPENING_SECONDS: Final = 1.0
"""How long a closed stream counts as open while the next one is opened: the service closes streams every day."""

_FINISH_SECONDS: Final = 0.3
"""How long the service has to end a stream in good order; then it is cancelled."""

_JOIN_SECONDS: Final = 0.5
_FOREVER: Final = 3600.0
_COUNTED: Final = 16
_FIRST_FIELD: Final = 0x0A
_CONTINUED: Final = 0x80


@dataclass(frozen=True, slots=True)
class PubSubFetchSettings:
    """The settings of a fetcher of Pub/Sub; they travel by pipe as `FetchPlan.settings`.

    Attributes:
        ack_deadline_seconds: 10 to 600; of what the streams deliver, and of each extension.
        max_outstanding_bytes: what the service may send ahead of acks, over all streams; 0 for no limit.
        ordered: the subscription has message ordering, or that is unknown.
        check_every_seconds: how often the first fetcher checks whether the subscription can still be read.
        plain: decode by protobuf only.
        dedup_attribute: messages with the same value of it are duplicates; empty for none.
    """

    subscription: str
    transport: Transport
    credentials_file: str | None = None
    service_account: ServiceAccount | None = None
    credential_provider: str | None = None
    streams: int = 4
    ack_deadline_seconds: int = 60
    max_outstanding_bytes: int = 0
    ordered: bool = False
    check_every_seconds: float = 30.0
    plain: bool = False
    dedup_attribute: str = ""


class ServiceHealth:
    """The health of the service, from all calls together."""

    def __init__(self) -> None:
        self.last_response: float | None = None
        self.last_delivery: float | None = None
        self.error: ConnectorError | None = None
        """Why the latest call failed, if it did."""
        self.check_wanted = threading.Event()
        """Set to have some call made: a stream says nothing before there are messages."""

    def responded(self) -> None:
        self.last_response = time.monotonic()
        self.error = None

    def delivered(self) -> None:
        self.responded()
        self.last_delivery = self.last_response


def start_thread(name: str, work: Callable[[], None], context: FetchContext) -> threading.Thread:
    """Start a daemon thread; the context gets its unexpected error."""

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - it is reported, and ends the process
            context.fail(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


class PullStreamReader:
    """Reads one stream after the other, in a thread of its own; responses go to the deadlines and to the intake."""

    def __init__(
        self,
        name: str,
        open_stream: Callable[[], PullStream],
        intake: Intake[Received, Received],
        deadlines: Deadlines,
        health: ServiceHealth,
        context: FetchContext,
    ) -> None:
        self._open_stream = open_stream
        self._intake = intake
        self._deadlines = deadlines
        self._health = health
        self._context = context
        self._backoff = Backoff(initial_seconds=0.05, cap_seconds=5.0)
        self._stopped = threading.Event()
        self._closing = False
        self._finish_by = 0.0
        self._abandoned = False
        self._stream: PullStream | None = None
        self._opened_at: float | None = None
        self._open_until = 0.0
        self._thread = start_thread(name, self._read_streams, context)

    @property
    def is_open(self) -> bool:
        """Whether it has a stream to which the service has responded, or had one a moment ago."""
        return self._is_confirmed or time.monotonic() < self._open_until

    @property
    def _is_confirmed(self) -> bool:
        opened, response = self._opened_at, self._health.last_response
        return opened is not None and response is not None and response >= opened

    @property
    def awaits_response(self) -> bool:
        """Whether it has a stream whose health is unknown."""
        return self._opened_at is not None and not self._is_confirmed

    def begin_stop(self) -> None:
        """Make the thread end; see `join`."""
        self._stopped.set()
        self._open_until = 0.0
        self.close_stream()

    def close_stream(self) -> None:
        """Close its stream, if it has one; another is opened when there is room. Called again, it is cancelled soon."""
        stream = self._stream
        if stream is not None:
            if not self._closing:
                self._closing = True
                self._finish_by = time.monotonic() + _FINISH_SECONDS
                stream.finish()
            elif time.monotonic() >= self._finish_by:
                stream.cancel()
        self._intake.wake()

    def join(self) -> None:
        """Wait until the thread has ended. If it does not, it puts nothing any more."""
        self._thread.join(max(self._finish_by - time.monotonic(), 0.0))
        self.close_stream()
        self._thread.join(_JOIN_SECONDS)
        self._abandoned = True

    def _read_streams(self) -> None:
        while not self._stopped.is_set():
            if not self._deadlines.wait_until_nacked(_JOIN_SECONDS / 2):
                continue
            if not self._intake.wait(_FOREVER, self._stopped.is_set):
                continue
            began = time.monotonic()
            error, responses = self._read_one_stream()
            if responses or self._closing or time.monotonic() - began > _HEALTHY_SECONDS:
                self._backoff.reset()
            if error is not None and not self._stopped.is_set():
                self._handle(error)
            if not self._closing:
                self._stopped.wait(self._backoff.next_delay_seconds(error))

    def _read_one_stream(self) -> tuple[ConnectorError | None, int]:
        """Read a stream to its end; return its error, if any, and how many responses it gave."""
        responses = 0
        try:
            self._closing = False
            stream = self._stream = self._open_stream()
            if self._stopped.is_set():
                stream.cancel()
            self._opened_at = time.monotonic()
            self._health.check_wanted.set()
            try:
                for response in stream:
                    responses += 1
                    self._receive(response, first=responses == 1)
                    self._intake.wait(_FOREVER, lambda: self._closing)
            finally:
                stream.cancel()
        except ConnectorError as error:
            return error, responses
        finally:
            if self._is_confirmed and not self._closing:
                self._open_until = time.monotonic() + _REOPENING_SECONDS
            self._stream = self._opened_at = None
            self._context.changed()
        return None, responses

    def _receive(self, response: bytes, *, first: bool) -> None:
        self._health.delivered()
        if first:
            self._context.changed()
        received = self._deadlines.receive(response)
        if self._closing:
            # It was in flight when the stream was closed: nobody waits for it here.
            self._deadlines.nack([received])
        elif not self._abandoned:
            self._intake.put(received, len(response), message_count(response))

    def _handle(self, error: ConnectorError) -> None:
        if not error.transient:
            self._context.fail(error)
            self._stopped.set()
            return
        _log.debug("a stream ended: %s", error)
        if time.monotonic() >= self._open_until:
            self._health.error = error


def message_count(response: bytes) -> int:
    """Return how many messages a response holds; beyond a few an estimate: to read all costs as much as decoding."""
    position, count, end = 0, 0, len(response)
    while position < end and count < _COUNTED:
        if response[position] != _FIRST_FIELD:
            # The properties of the subscription, which come last.
            return count
        position += 1
        length = shift = 0
        while position < end and response[position] >= _CONTINUED:
            length |= (response[position] & 0x7F) << shift
            shift += 7
            position += 1
        if position < end:
            length |= response[position] << shift
        position += 1 + length
        count += 1
    return count if position >= end else max(count, count * end // position)


class PubSubFetch(FetchTarget[Received, Received]):
    """The target of Pub/Sub: deliveries are responses, and tokens their ack ids."""

    def __init__(self, settings: Mapping[str, Any], context: FetchContext) -> None:
        parsed = self._settings = from_json(settings, PubSubFetchSettings, "settings")
        self._context = context
        key_file = None if parsed.credentials_file is None else Path(parsed.credentials_file)
        provider = None if parsed.credential_provider is None else Provider(parsed.credential_provider)
        credentials = provider or parsed.service_account or key_file
        channels = -(-parsed.streams // _STREAMS_A_CHANNEL)
        self._clients = [PubSubClient(parsed.transport, credentials) for _ in range(channels)]
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
        self._readers: list[PullStreamReader] = []
        self._intake: Intake[Received, Received] | None = None
        self._closed = threading.Event()
        self._check_every = parsed.check_every_seconds if context.index == 0 else threading.TIMEOUT_MAX
        self._has_checked = context.index > 0
        self._topic_deleted: SourceGoneError | None = None
        self._quiet_since = 0.0
        start_thread("monitor", self._watch_subscription, context)
        start_thread("pauses", self._close_streams_in_pauses, context)

    def start(self, intake: Intake[Received, Received]) -> None:
        self._intake = intake
        self._readers = [
            PullStreamReader(
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
        for reader in self._readers:
            reader.begin_stop()
        for reader in self._readers:
            reader.join()

    def decode(self, deliveries: Sequence[Received]) -> Block[Received]:
        messages = self._decoder.decode([part.response for part in deliveries])
        token = self._deadlines.merge(deliveries, messages.ack_ids)
        block = Block(messages.rows, messages.rows.column("messageId"), messages.sizes, messages.published(), token)
        if self._settings.dedup_attribute:
            block.other_ids = other_ids(messages.rows, self._settings.dedup_attribute)
            block.counters = {DEDUP_ATTRIBUTE_MISSING: block.other_ids.values.null_count}
        return block

    def on_durable(self, token: Received) -> None:
        self._deadlines.release(token)
        self._acks.acknowledge(token.ack_ids)

    def on_given_up(self, held: Sequence[Received]) -> None:
        self._deadlines.nack(held)

    def status(self) -> TargetStatus:
        return TargetStatus(
            streams=self._settings.streams,
            streams_open=sum(reader.is_open for reader in self._readers),
            error=self._health.error,
            counters={**self._acks.counters, **self._deadlines.counters},
        )

    def close(self, deadline: float) -> None:
        self._closed.set()
        self._health.check_wanted.set()
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
            max_outstanding_bytes=_share(settings.max_outstanding_bytes, settings.streams),
        )

    def _send(self, send: Callable[..., AckFailures], request: bytes, timeout_seconds: float) -> AckFailures:
        try:
            failures = send(self._settings.subscription, request, timeout_seconds=timeout_seconds)
        except ConnectorError as error:
            if error.transient:
                self._health.error = error
            raise
        self._health.responded()
        return failures

    def _watch_subscription(self) -> None:
        """Read the subscription when a stream was opened and, in one fetcher, at times: a deleted topic shows there."""
        next_check = time.monotonic() + self._check_every
        while True:
            pause = min(max(next_check - time.monotonic(), 0.0), threading.TIMEOUT_MAX)
            wanted = self._health.check_wanted.wait(pause if self._topic_deleted is None else _POLL_SECONDS)
            self._health.check_wanted.clear()
            if self._closed.is_set() or self._is_drained():
                return
            # Messages show that the subscription is there, and not that its topic is.
            if wanted and self._has_checked and not any(reader.awaits_response for reader in self._readers):
                continue
            if wanted or time.monotonic() >= next_check:
                if not self._check_subscription():
                    return
                next_check = time.monotonic() + self._check_every

    def _check_subscription(self) -> bool:
        try:
            info = self._clients[0].get_subscription(self._settings.subscription)
            self._has_checked = True
            info.check_readable()
            if info.topic_is_deleted and self._topic_deleted is None:
                self._quiet_since, self._topic_deleted = time.monotonic(), topic_deleted(info.name)
        except AccessDeniedError:
            # A response, and no reason to stop: pulling needs another role than reading the subscription.
            self._health.responded()
            self._check_every = threading.TIMEOUT_MAX
        except ConnectorError as error:
            if not error.transient:
                self._context.fail(error)
                return False
            self._health.error = error
            self._health.check_wanted.set()
            self._closed.wait(_CHECK_RETRY_SECONDS)
        else:
            self._health.responded()
        self._context.changed()
        return True

    def _is_drained(self) -> bool:
        """Whether the topic is gone and nothing came for as long as a fetcher that died may have held messages."""
        if self._topic_deleted is None:
            return False
        now = time.monotonic()
        has_room = self._intake is not None and not self._intake.paused_seconds()
        if not has_room or not all(reader.is_open for reader in self._readers):
            self._quiet_since = now
        if now - max(self._quiet_since, self._health.last_delivery or 0.0) < self._settings.ack_deadline_seconds:
            return False
        self._context.fail(self._topic_deleted)
        return True

    def _close_streams_in_pauses(self) -> None:
        while not self._closed.wait(_POLL_SECONDS):
            # A saturated fetcher has room for moments only: what counts is that a stream was let in.
            if self._intake is not None and self._intake.paused_seconds() >= _LONGEST_PAUSE_SECONDS:
                for reader in self._readers:
                    reader.close_stream()


def _share(total: int, streams: int) -> int:
    """Return the share of each stream, at least 1; 0, which means no limit, stays."""
    return max(total // streams, 1) if total else 0
