"""Publishing the rows of a task: nothing is left in flight, and no error is missed.

Requests of one ordering key are sent one after the other. The thread that calls `Publisher.publish` decides everything;
threads of gRPC only report that a request is over.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import math
import queue
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from connectors.core.errors import ConnectorError
from connectors.core.processes.failpoints import failpoint
from connectors.core.processes.pool import Pool
from connectors.core.retry import Backoff
from connectors.pubsub.options.client import client_credentials
from connectors.pubsub.sink.rows import publish_requests

if TYPE_CHECKING:
    import pyarrow as pa

    from connectors.pubsub.client.client import PubSubClient
    from connectors.pubsub.options.client import Credentials, Transport
    from connectors.pubsub.options.sink import PubSubWriteOptions
    from connectors.pubsub.sink.rows import PublishRequest, RowStamp, SinkColumns

_log = logging.getLogger(__name__)

_MOST_READY: Final = 10_000
"""Requests that wait for their turn: with an ordering key for each row, they are small and many."""

_CALL_SECONDS: Final = 60.0
"""The timeout of a call, which is then retried; as in Google's clients."""

_WARN_SECONDS: Final = 5.0
"""How long nothing is published before there is a warning, and then another one each minute."""
_WARN_AGAIN_SECONDS: Final = 60.0
_MOST_REQUESTS: Final = 16
"""Of a task in flight; those of one ordering key are sent one after the other."""


@dataclass(slots=True, eq=False)
class _Pending:
    """A request that is not published."""

    request: PublishRequest
    backoff: Backoff
    give_up_at: float = 0.0
    call: Any = None


class Publisher:
    """Publishes the requests of one task, whose name is for errors; other tasks may use the client too."""

    def __init__(
        self, client: PubSubClient, options: PubSubWriteOptions, task: str, warn_seconds: float = _WARN_SECONDS
    ) -> None:
        self._client = client
        self._warn_seconds = warn_seconds
        self._most_bytes = options.max_outstanding_bytes
        self._rule = options.outage_rule
        self._task = task
        self._lanes: dict[tuple[str, str], deque[_Pending]] = {}
        """What waits behind the request of a topic and ordering key that is in flight, or waits for its next try."""
        self._ready: deque[_Pending] = deque()
        self._later: list[tuple[float, int, _Pending]] = []
        self._numbers = count()
        self._in_flight: set[_Pending] = set()
        self._over: queue.SimpleQueue[tuple[_Pending, ConnectorError | None]] = queue.SimpleQueue()
        self._pending = 0
        self._pending_bytes = 0
        self._progress_at = time.monotonic()
        """When a request was last published, or there was none."""
        self._last_error: ConnectorError | None = None
        self._warn_at = math.inf

    def publish(self, request: PublishRequest) -> None:
        """Take a request over; wait while too much is in flight, and raise the first error of any request."""
        while self._pending and (self._pending_bytes + request.size > self._most_bytes or self._pending >= _MOST_READY):
            self._step()
        if not self._pending:
            self._note_progress()
        self._pending += 1
        self._pending_bytes += request.size
        pending = _Pending(request, Backoff())
        if request.ordering_key:
            if request.lane in self._lanes:
                self._lanes[request.lane].append(pending)
                return
            self._lanes[request.lane] = deque()
        self._ready.append(pending)
        self._drain()
        self._send_ready()

    def finish(self) -> None:
        while self._pending:
            self._step()

    def discard(self) -> None:
        """Give up what is not published; some of it may have been."""
        for pending in self._in_flight:
            pending.call.cancel()
        self._in_flight.clear()

    def _step(self) -> None:
        """Send what may be sent, and wait until something is over, or due again."""
        self._send_ready()
        wake_at = [self._later[0][0]] if self._later else []
        pause = max(min([self._warn_at, *wake_at]) - time.monotonic(), 0.0)
        with contextlib.suppress(queue.Empty):
            self._end(*self._over.get(timeout=pause))
        self._drain()
        self._warn()

    def _drain(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._end(*self._over.get_nowait())
        while self._later and self._later[0][0] <= time.monotonic():
            self._ready.append(heapq.heappop(self._later)[2])

    def _send_ready(self) -> None:
        while self._ready and len(self._in_flight) < _MOST_REQUESTS:
            pending = self._ready.popleft()
            pending.give_up_at = pending.give_up_at or time.monotonic() + self._rule.seconds
            remaining = max(pending.give_up_at - time.monotonic(), 1.0)
            pending.call = self._client.publish(
                pending.request.topic,
                pending.request.encode(),
                timeout_seconds=min(_CALL_SECONDS, remaining),
                done=partial(self._report, pending),
            )
            self._in_flight.add(pending)

    def _report(self, pending: _Pending, error: ConnectorError | None) -> None:
        self._over.put((pending, error))

    def _end(self, pending: _Pending, error: ConnectorError | None) -> None:
        """Handle a request that is over: it is published, retried, split, or fails the task."""
        self._in_flight.discard(pending)
        if error is None:
            self._release(pending)
        elif error.transient:
            if time.monotonic() >= pending.give_up_at:
                raise self._rule.ending(error)
            # The last attempt begins when it is to be given up; one warning for all requests follows.
            due = min(time.monotonic() + pending.backoff.next_delay_seconds(), pending.give_up_at)
            self._last_error = error
            heapq.heappush(self._later, (due, next(self._numbers), pending))
        elif error.code == "PUBSUB_PUBLISH_REFUSED":
            self._split(pending, error)
        else:
            raise error

    def _note_progress(self) -> None:
        self._progress_at, self._last_error = time.monotonic(), None
        self._warn_at = self._progress_at + self._warn_seconds

    def _warn(self) -> None:
        now = time.monotonic()
        if self._pending and now >= self._warn_at:
            self._warn_at = now + _WARN_AGAIN_SECONDS
            _log.warning(
                "[PUBSUB_PUBLISH_INTERRUPTED] Nothing of %s was published for %.0f s; each request is retried for %s, "
                "%g s. %s",
                self._task,
                now - self._progress_at,
                self._rule.option,
                self._rule.seconds,
                self._last_error or "The service has not responded.",
            )

    def _release(self, pending: _Pending) -> None:
        self._note_progress()
        self._pending -= 1
        self._pending_bytes -= pending.request.size
        if lane := self._lanes.get(pending.request.lane):
            self._ready.append(lane.popleft())
        else:
            self._lanes.pop(pending.request.lane, None)

    def _split(self, pending: _Pending, error: ConnectorError) -> None:
        """Halve a refused request to find the row that the service refuses; nothing of it was published."""
        request = pending.request
        if len(request) == 1:
            raise ConnectorError(
                "PUBSUB_BAD_ROW",
                f"Row {request.numbers[0]} of {self._task} cannot be published: the service refuses it",
                request.topic,
                error.action,
            )
        middle = len(request) // 2
        second = _Pending(request.part(middle, len(request)), Backoff())
        self._ready.append(_Pending(request.part(0, middle), Backoff()))
        self._pending += 1
        if request.lane in self._lanes:
            self._lanes[request.lane].appendleft(second)
        else:
            self._ready.append(second)


_clients: Final[Pool[tuple[Transport, Credentials], PubSubClient]] = Pool(lambda client: client.close())
"""The idle clients of this worker, by transport and credentials."""


def publish_batches(
    batches: Iterable[pa.RecordBatch], columns: SinkColumns, options: PubSubWriteOptions, stamp: RowStamp
) -> int:
    """Publish all rows of some batches, wait until the service has acknowledged them, and return their number."""
    from connectors.pubsub.client.client import PubSubClient  # noqa: PLC0415 - tasks that read load no grpc

    key = options.transport, client_credentials(options)
    client = _clients.acquire(key) or PubSubClient(*key)
    publisher = Publisher(client, options, f"partition {stamp.partition}")
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
        # The next attempt begins with a new client, which reads the credentials again.
        client.close()
        raise
    _clients.release(key, client)
    return rows


def close_clients() -> None:
    _clients.close()
