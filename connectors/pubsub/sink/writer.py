"""Publishing the rows of a task: nothing is left under way, and no error unseen.

Publishing requests: some at a time, those of one ordering key one after the other, again after passing errors.

All decisions are taken in the thread that calls `Publisher.publish` and `Publisher.finish`; threads of gRPC only say
that a request is over.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import queue
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

from connectors.core.errors import ConnectorError
from connectors.core.failpoints import failpoint
from connectors.core.pool import Pool
from connectors.core.retry import Backoff, RetryPolicy
from connectors.pubsub.sink.requests import publish_requests

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from connectors.pubsub.client.client import PublishCall, PubSubClient
    from connectors.pubsub.options.client import Transport
    from connectors.pubsub.options.sink import PubSubWriteOptions
    from connectors.pubsub.sink.requests import PublishRequest
    from connectors.pubsub.sink.rows import RowStamp, SinkColumns

__all__ = ["PublishLimits", "Publisher", "close_clients", "publish_batches"]


_log = logging.getLogger(__name__)

_MOST_READY: Final = 10_000
"""Requests that wait for their turn: with an ordering key for each row, they are small and many."""

_CALL_SECONDS: Final = 60.0
"""After so long a call counts as failed, and is tried again; as in Google's clients."""

_PATIENCE: Final = 10.0
"""When no request went through for so many seconds, that is worth a word."""

_REFUSED: Final = "PUBSUB_PUBLISH_REFUSED"


@dataclass(frozen=True, slots=True)
class PublishLimits:
    """How much may be under way, and how long one request may take.

    Attributes:
        requests: the most requests that were sent and not answered.
        held_bytes: the most bytes of messages that were taken over and are not published; one request that alone is
            larger passes alone.
        timeout_seconds: how long a request is tried again.
    """

    requests: int
    held_bytes: int
    timeout_seconds: float


@dataclass(slots=True, eq=False)
class _Held:
    """A request that is not published."""

    request: PublishRequest
    backoff: Backoff
    give_up_at: float = 0.0
    call: PublishCall | None = None


class Publisher:
    """Publishes the requests of one task.

    Args:
        client: to publish by; it may be used by other tasks too.
        limits: how much may be under way.
        where: names the task in errors.
    """

    def __init__(self, client: PubSubClient, limits: PublishLimits, where: str) -> None:
        self._client = client
        self._limits = limits
        self._where = where
        self._retries = RetryPolicy(initial_seconds=0.1, cap_seconds=10.0, deadline_seconds=limits.timeout_seconds)
        self._lanes: dict[tuple[str, str], deque[_Held]] = {}
        """What waits behind the request of a topic and ordering key that is under way, or waits for its next try."""
        self._ready: deque[_Held] = deque()
        self._later: list[tuple[float, int, _Held]] = []
        self._numbers = count()
        self._under_way: set[_Held] = set()
        self._over: queue.SimpleQueue[_Held] = queue.SimpleQueue()
        self._held = 0
        self._held_bytes = 0
        self._went_well_at = time.monotonic()
        """When a request was last published, or there was none."""
        self._trouble: ConnectorError | None = None
        self._said = False

    def publish(self, request: PublishRequest) -> None:
        """Take a request over; waits while too much is under way.

        Raises:
            ConnectorError: this request or one before could not be published.
        """
        while self._held and (self._held_bytes + request.size > self._limits.held_bytes or self._held >= _MOST_READY):
            self._step()
        if not self._held:
            self._went_well_at = time.monotonic()
        self._held += 1
        self._held_bytes += request.size
        held = _Held(request, Backoff(self._retries))
        if request.ordering_key:
            name = request.topic, request.ordering_key
            lane = self._lanes.get(name)
            if lane is not None:
                lane.append(held)
                return
            self._lanes[name] = deque()
        self._ready.append(held)
        self._take_note()
        self._send_ready()

    def finish(self) -> None:
        """Wait until all is published.

        Raises:
            ConnectorError: a request could not be.
        """
        while self._held:
            self._step()

    def discard(self) -> None:
        """Give up what is not published; some of it may have been."""
        for held in self._under_way:
            if held.call is not None:
                held.call.cancel()
        self._under_way.clear()

    def _step(self) -> None:
        """Send what may be sent, and wait until something is over, or due again."""
        self._send_ready()
        wake_at = [self._later[0][0]] if self._later else []
        if not self._said:
            wake_at.append(self._went_well_at + _PATIENCE)
        pause = max(min(wake_at) - time.monotonic(), 0.0) if wake_at else None
        with contextlib.suppress(queue.Empty):
            self._end(self._over.get(timeout=pause))
        self._take_note()
        self._say_once()

    def _take_note(self) -> None:
        """Of all that is over, or due again, now."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._end(self._over.get_nowait())
        while self._later and self._later[0][0] <= time.monotonic():
            self._ready.append(heapq.heappop(self._later)[2])

    def _send_ready(self) -> None:
        while self._ready and len(self._under_way) < self._limits.requests:
            held = self._ready.popleft()
            held.give_up_at = held.give_up_at or time.monotonic() + self._limits.timeout_seconds
            self._under_way.add(held)
            left = max(held.give_up_at - time.monotonic(), 1.0)
            held.call = self._client.publish(
                held.request.topic,
                held.request.encode(),
                timeout_seconds=min(_CALL_SECONDS, left),
                done=partial(self._note_over, held),
            )

    def _note_over(self, held: _Held, _: PublishCall) -> None:
        self._over.put(held)

    def _end(self, held: _Held) -> None:
        """A request is over: it is published, comes again, is cut, or fails the task."""
        self._under_way.discard(held)
        error = None if held.call is None else held.call.error()
        if error is None:
            self._published(held)
        elif isinstance(error, ConnectorError) and error.transient:
            due = time.monotonic() + held.backoff.next_delay_seconds(error)
            if due > held.give_up_at:
                raise error
            self._trouble = error
            heapq.heappush(self._later, (due, next(self._numbers), held))
        elif isinstance(error, ConnectorError) and error.code == _REFUSED:
            self._cut(held, error)
        else:
            raise error

    def _say_once(self) -> None:
        """Warn that nothing goes through, when that has lasted for some seconds."""
        lasts = time.monotonic() - self._went_well_at
        if self._held and lasts >= _PATIENCE and not self._said:
            self._said = True
            _log.warning(
                "[PUBSUB_PUBLISH_INTERRUPTED] Nothing of %s was published for %.0f s; each request is tried again for "
                "publishTimeout, %g s. %s",
                self._where,
                lasts,
                self._limits.timeout_seconds,
                "The service has not answered." if self._trouble is None else self._trouble,
            )

    def _published(self, held: _Held) -> None:
        self._went_well_at, self._trouble = time.monotonic(), None
        self._held -= 1
        self._held_bytes -= held.request.size
        name = held.request.topic, held.request.ordering_key
        lane = self._lanes.get(name)
        if lane is None:
            return
        if lane:
            self._ready.append(lane.popleft())
        else:
            del self._lanes[name]

    def _cut(self, held: _Held, error: ConnectorError) -> None:
        """Nothing of a refused request was published: its halves tell which row the service does not take.

        Raises:
            ConnectorError: it was one row alone.
        """
        request = held.request
        if len(request) == 1:
            raise ConnectorError(
                "PUBSUB_BAD_ROW",
                f"Row {request.numbers[0]} of {self._where} cannot be published: the service refuses it",
                request.topic,
                error.action,
            )
        middle = len(request) // 2
        first, second = (
            _Held(part, Backoff(self._retries))
            for part in (request.part(0, middle), request.part(middle, len(request)))
        )
        self._held += 1
        lane = self._lanes.get((request.topic, request.ordering_key))
        if lane is not None:
            lane.appendleft(second)
            self._ready.append(first)
        else:
            self._ready.extend((first, second))


def _close(client: PubSubClient) -> None:
    client.close()


_clients: Final[Pool[tuple[Transport, Path | None], PubSubClient]] = Pool(_close)
"""The clients that this worker keeps, by what they were made from."""


def publish_batches(
    batches: Iterable[pa.RecordBatch], columns: SinkColumns, options: PubSubWriteOptions, stamp: RowStamp
) -> int:
    """Publish all rows of some batches, and wait until the service has each.

    Args:
        batches: rows.
        columns: what is read of them.
        options: of the sink.
        stamp: names each row.

    Returns:
        The number of rows.

    Raises:
        ConnectorError: a row could not be published; others may have been.
    """
    limits = PublishLimits(options.max_outstanding_requests, options.max_outstanding_bytes, options.publish_timeout)
    key = options.transport, options.credentials_file
    client = _clients.acquire(key) or _new_client(*key)
    publisher = Publisher(client, limits, f"partition {stamp.partition}")
    rows = 0
    try:
        for request in publish_requests(batches, columns, stamp):
            failpoint("publish.before_request")
            publisher.publish(request)
            rows += len(request)
        publisher.finish()
        failpoint("publish.after_last_request")
    except BaseException:
        publisher.discard()
        # The next attempt begins anew, with credentials read anew.
        client.close()
        raise
    _clients.release(key, client)
    return rows


def _new_client(transport: Transport, credentials_file: Path | None) -> PubSubClient:
    from connectors.pubsub.client.client import PubSubClient  # noqa: PLC0415 - grpc is loaded where rows are written

    return PubSubClient(transport, credentials_file)


def close_clients() -> None:
    """Close the clients that this worker keeps."""
    _clients.close()
