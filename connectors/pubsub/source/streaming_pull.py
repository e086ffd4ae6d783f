"""One pull stream of a fetcher: open, read, pause, open again.

The service closes streams all the time, by design, so an end is no trouble; a stream that cannot be opened again is.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from connectors.core.errors import ConnectorError
from connectors.core.retry import Backoff, RetryPolicy
from connectors.pubsub.client.client import PullStream
from connectors.pubsub.source.leases import Deadlines
from connectors.spool.fetching.target import FetchContext, Intake

__all__ = ["Service", "StreamReader", "message_count"]

_log = logging.getLogger(__name__)

_REOPEN: Final = RetryPolicy(initial_seconds=0.05, cap_seconds=5.0, deadline_seconds=None)
_GOOD_LIFE_SECONDS: Final = 1.0
"""A stream that lived so long, or brought something, was no failure, however it ended."""

_REOPENING_SECONDS: Final = 1.0
"""So long a stream that was open counts as open while the next one is opened: the service closes streams every day."""

_FINISH_SECONDS: Final = 0.3
"""So long the service has to end a stream in good order; then it is cancelled."""

_JOIN_SECONDS: Final = 0.5
_FOREVER: Final = 3600.0
_COUNTED: Final = 16
_FIRST_FIELD: Final = 0x0A
_CONTINUED: Final = 0x80


class Service:
    """What is known of the service's health, from all calls together."""

    def __init__(self) -> None:
        self.last_answer: float | None = None
        self.last_delivery: float | None = None
        self.error: ConnectorError | None = None
        self.asked = threading.Event()

    def ask(self) -> None:
        """Have some call made: a stream says nothing before there are messages."""
        self.asked.set()

    def answered(self) -> None:
        """A call was answered, with whatever."""
        self.last_answer = time.monotonic()
        self.error = None

    def delivered(self) -> None:
        """A stream brought something."""
        self.answered()
        self.last_delivery = self.last_answer

    def failed(self, error: ConnectorError) -> None:
        """A call was not answered, or the service said that it cannot now."""
        self.error = error


class StreamReader:
    """Reads one stream after the other, in a thread of its own, until it is stopped.

    Args:
        name: of the thread.
        open_stream: opens a stream.
        deadlines: holds what was received.
        service: hears of answers.
        context: hears of errors that no retry can mend, of what nobody expected, and of changes.
    """

    def __init__(
        self,
        name: str,
        open_stream: Callable[[], PullStream],
        deadlines: Deadlines,
        service: Service,
        context: FetchContext,
    ) -> None:
        self._open_stream = open_stream
        self._deadlines = deadlines
        self._service = service
        self._context = context
        self._backoff = Backoff(_REOPEN)
        self._stopped = threading.Event()
        self._leaving = False
        self._finish_by = 0.0
        self._forgotten = False
        self._stream: PullStream | None = None
        self._opened_at: float | None = None
        self._open_until = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._intake: Intake | None = None

    @property
    def is_open(self) -> bool:
        """Whether it has a stream, and the service has answered something since that was opened.

        One that the service has just closed counts as open for the moment that it takes to open another.
        """
        return self._is_answered or time.monotonic() < self._open_until

    @property
    def _is_answered(self) -> bool:
        opened, answer = self._opened_at, self._service.last_answer
        return opened is not None and answer is not None and answer >= opened

    @property
    def awaits_answer(self) -> bool:
        """Whether it has a stream of which nothing is known yet."""
        return self._opened_at is not None and not self._is_answered

    def start(self, intake: Intake) -> None:
        """Begin to read."""
        self._intake = intake
        self._thread.start()

    def begin_stop(self) -> None:
        """Make the thread end; see `join`."""
        self._stopped.set()
        self._open_until = 0.0
        self.close_stream()

    def close_stream(self) -> None:
        """Close its stream, if it has one; another is opened when there is room. Called again, it is cancelled soon."""
        stream, intake = self._stream, self._intake
        if stream is not None:
            if not self._leaving:
                self._leaving = True
                self._finish_by = time.monotonic() + _FINISH_SECONDS
                stream.finish()
            elif time.monotonic() >= self._finish_by:
                stream.cancel()
        if intake is not None:
            intake.wake()

    def join(self) -> None:
        """Wait until the thread has ended. One that does not puts nothing any more."""
        self._thread.join(max(self._finish_by - time.monotonic(), 0.0))
        self.close_stream()
        self._thread.join(_JOIN_SECONDS)
        self._forgotten = True

    def _run(self) -> None:
        try:
            self._read_streams()
        except Exception as error:  # noqa: BLE001 - it is told, and ends this process life
            self._context.fault(error)

    def _read_streams(self) -> None:
        intake = self._intake
        while intake is not None and not self._stopped.is_set():
            if not self._deadlines.wait_until_given_back(_JOIN_SECONDS / 2):
                continue
            if not intake.wait(_FOREVER, self._stopped.is_set):
                continue
            began = time.monotonic()
            error, responses = self._read_one_stream(intake)
            if responses or self._leaving or time.monotonic() - began > _GOOD_LIFE_SECONDS:
                self._backoff.reset()
            if error is not None and not self._stopped.is_set():
                self._take_error(error)
            if not self._leaving:
                self._stopped.wait(self._backoff.next_delay_seconds(error))

    def _read_one_stream(self, intake: Intake) -> tuple[ConnectorError | None, int]:
        """Read a stream to its end; why it ended, and how many responses it gave."""
        responses = 0
        try:
            self._leaving = False
            stream = self._stream = self._open_stream()
            if self._stopped.is_set():
                stream.cancel()
            self._opened_at = time.monotonic()
            self._service.ask()
            try:
                for response in stream:
                    responses += 1
                    self._take(intake, response, first=responses == 1)
                    intake.wait(_FOREVER, lambda: self._leaving)
            finally:
                stream.cancel()
        except ConnectorError as error:
            return error, responses
        finally:
            if self._is_answered and not self._leaving:
                self._open_until = time.monotonic() + _REOPENING_SECONDS
            self._stream = self._opened_at = None
            self._context.changed()
        return None, responses

    def _take(self, intake: Intake, response: bytes, *, first: bool) -> None:
        self._service.delivered()
        if first:
            self._context.changed()
        received = self._deadlines.receive(response)
        if self._leaving:
            # What was on its way when the stream was closed: nobody waits for it here.
            self._deadlines.give_back([received])
        elif not self._forgotten:
            intake.put(received, len(response), message_count(response))

    def _take_error(self, error: ConnectorError) -> None:
        if not error.transient:
            self._context.fail(error)
            self._stopped.set()
            return
        _log.debug("a stream ended: %s", error)
        if time.monotonic() >= self._open_until:
            self._service.failed(error)


def message_count(response: bytes) -> int:
    """About how many messages a response holds.

    Exact up to a few; beyond, the rest of the bytes is taken to hold messages like the first ones. Reading them all
    would cost as much as decoding.
    """
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
