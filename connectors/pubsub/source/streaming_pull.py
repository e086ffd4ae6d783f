"""One pull stream of a fetcher: open, read, pause, reopen.

The service closes streams all the time, by design, so an end is no error; a stream that cannot be reopened is.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from connectors.core.errors import ConnectorError
from connectors.core.retry import Backoff
from connectors.pubsub.client.client import PullStream
from connectors.pubsub.source.acks import Deadlines, Received
from connectors.spool.fetching.contract import FetchContext, Intake

_log = logging.getLogger(__name__)

_HEALTHY_SECONDS: Final = 1.0
"""A stream that was open so long, or brought something, was no failure, however it ended."""

_REOPENING_SECONDS: Final = 1.0
"""So long a stream that was open counts as open while the next one is opened: the service closes streams every day."""

_FINISH_SECONDS: Final = 0.3
"""So long the service has to end a stream in good order; then it is cancelled."""

_JOIN_SECONDS: Final = 0.5
_FOREVER: Final = 3600.0
_COUNTED: Final = 16
_FIRST_FIELD: Final = 0x0A
_CONTINUED: Final = 0x80


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
        """Note that a call had a response of any kind."""
        self.last_response = time.monotonic()
        self.error = None

    def delivered(self) -> None:
        """Note that a stream brought something."""
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
        """Whether it has a stream, or had one a moment ago, and the service has responded since that was opened."""
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
        """Wait until the thread has ended. One that does not puts nothing any more."""
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
