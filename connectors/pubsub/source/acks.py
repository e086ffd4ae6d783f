"""Acknowledging what is durable: unary calls, several at a time, retried for a while.

An ack that fails for good only causes a redelivery, which the ledger drops as a duplicate: it is counted, no more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from connectors.core.errors import ConnectorError
from connectors.core.failpoints import failpoint
from connectors.core.retry import Backoff, RetryPolicy
from connectors.pubsub.client.errors import AckFailures
from connectors.pubsub.client.wire import acknowledge_requests

__all__ = ["AckSender"]

_log = logging.getLogger(__name__)

_RETRY: Final = RetryPolicy(initial_seconds=0.1, cap_seconds=1.0, deadline_seconds=60.0)
"""After that deadline the message is about to be redelivered anyway."""

_TRANSIENT_FAILURE_SECONDS: Final = 600.0
"""How long ack ids that exactly-once delivery names as failed for now are sent again; as in Google's clients."""

_THREADS: Final = 8
_MOST_WAITING: Final = 32
_TIMEOUT_SECONDS: Final = 10.0
_CLOSING_PAUSE_SECONDS: Final = 0.1


class AckSender:
    """Sends acks in threads of its own; `send` is `PubSubClient.acknowledge` for one subscription.

    After an unexpected error, which `fault` gets, the threads go on, so that no caller waits for ever.
    """

    def __init__(
        self, subscription: str, send: Callable[[bytes, float], AckFailures], fault: Callable[[BaseException], None]
    ) -> None:
        self._subscription = subscription
        self._send = send
        self._fault = fault
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._in_flight = 0
        self._closing = threading.Event()
        self._deadline = float("inf")
        self._failed = 0
        self._sent = 0
        self._too_late = 0
        for number in range(_THREADS):
            threading.Thread(target=self._run, name=f"ack-{number}", daemon=True).start()

    @property
    def counters(self) -> dict[str, int]:
        """Requests that succeeded, that failed for good, and that wait; and ack ids that came too late."""
        return {
            "ack_requests": self._sent,
            "ack_requests_failed": self._failed,
            "ack_requests_waiting": len(self._waiting) + self._in_flight,
            "acks_too_late": self._too_late,
        }

    def acknowledge(self, ack_ids: pa.Array) -> None:
        """Acknowledge these messages some time soon; waits while too many requests wait."""
        for request in acknowledge_requests(self._subscription, ack_ids):
            with self._changed:
                self._changed.wait_for(lambda: len(self._waiting) < _MOST_WAITING or self._closing.is_set())
                self._waiting.append(request)
                self._changed.notify_all()

    def close(self, deadline: float) -> None:
        """Send what waits, until `deadline` (`time.monotonic`) at most, and end the threads."""
        with self._changed:
            self._deadline = deadline
            self._closing.set()
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._waiting and not self._in_flight, deadline - time.monotonic())

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing.is_set())
                if not self._waiting or time.monotonic() >= self._deadline:
                    return
                request = self._waiting.popleft()
                self._in_flight += 1
                self._changed.notify_all()
            try:
                self._send_with_retries(request)
            except Exception as error:  # noqa: BLE001 - it is reported, and ends the process
                self._failed += 1
                self._fault(error)
            finally:
                with self._changed:
                    self._in_flight -= 1
                    self._changed.notify_all()

    def _send_with_retries(self, request: bytes) -> None:
        backoff = Backoff(_RETRY)
        began = time.monotonic()
        give_up_at = began + (_RETRY.deadline_seconds or 0.0)
        while True:
            reason: ConnectorError | None = None
            try:
                failures = self._send(request, self._timeout())
            except ConnectorError as error:
                if not error.transient:
                    self._give_up(error)
                    return
                reason = error
            else:
                failpoint("fetch.after_ack")
                if failures.permanent:
                    with self._changed:
                        self._too_late += len(failures.permanent)
                    _log.info("%d acks were too late; their messages are redelivered", len(failures.permanent))
                if not failures.transient:
                    self._sent += 1
                    return
                # Exactly-once delivery names the ids that are worth another try; only those go out again.
                give_up_at = began + _TRANSIENT_FAILURE_SECONDS
                again = pa.array(sorted(failures.transient), pa.string())
                request = next(acknowledge_requests(self._subscription, again))
            delay = backoff.next_delay_seconds(reason)
            if time.monotonic() + delay > min(give_up_at, self._deadline):
                self._give_up(reason)
                return
            if self._closing.wait(delay):
                time.sleep(min(delay, _CLOSING_PAUSE_SECONDS))

    def _give_up(self, error: ConnectorError | None) -> None:
        self._failed += 1
        _log.warning("an ack failed; its messages are redelivered, and dropped as duplicates: %s", error or "refused")

    def _timeout(self) -> float:
        """Return the remaining time, but enough for a call."""
        return max(min(_TIMEOUT_SECONDS, self._deadline - time.monotonic()), 0.1)
