"""Leases: what is held must not expire, and what is given up is nacked at once.

A message belongs to this process until its ack deadline passes. Until it is durable its deadline is extended, at about
half of it; also that of responses that nobody has decoded yet. One thread sends extensions and nacks, one after the
other, so that an extension never overtakes the nack of the same message.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Final

import pyarrow as pa

from connectors.core.errors import ConnectorError
from connectors.core.failpoints import failpoint
from connectors.pubsub.client.errors import AckFailures
from connectors.pubsub.client.wire import modify_ack_deadline_requests
from connectors.pubsub.source.records import Decoder

__all__ = ["Deadlines", "Received"]

_log = logging.getLogger(__name__)

_FIRST_DEADLINE_SECONDS: Final = 10.0
"""The shortest deadline there is; emulators ignore that of the stream, and use the subscription's."""

_PARALLEL: Final = 8
_TIMEOUT_SECONDS: Final = 5.0
_SHORTEST_TICK_SECONDS: Final = 0.05
_LONGEST_TICK_SECONDS: Final = 1.0
_NACK_TRIES: Final = 3


@dataclass(slots=True, eq=False)
class Received:
    """Messages that are held: a response, as wire bytes, or a block that some responses became, with its ack ids.

    The deadline runs from `leased_at`, by the clock of `Deadlines`. After the part `due` of it, it is extended; that
    is random, so that not all come at once.
    """

    response: bytes | None
    ack_ids: pa.Array | None
    leased_at: float
    deadline_seconds: float
    due: float = field(default_factory=lambda: random.uniform(0.4, 0.5))  # noqa: S311 - jitter

    def is_due(self, now: float) -> bool:
        """Whether its deadline has to be extended now."""
        return now - self.leased_at >= self.deadline_seconds * self.due


class Deadlines:
    """Extends the deadlines of what is held, by 10 to 600 seconds, and nacks what is given up.

    `send` is `PubSubClient.modify_ack_deadline` for one subscription; no other thread uses the decoder, which finds
    the ack ids of responses. `ordered` sends nacks one after the other. After an unexpected error, which `fault` gets,
    the thread goes on, so that nobody waits for its nacks for ever.
    """

    def __init__(
        self,
        subscription: str,
        deadline_seconds: int,
        send: Callable[[bytes, float], AckFailures],
        decoder: Decoder,
        *,
        ordered: bool,
        fault: Callable[[BaseException], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._subscription = subscription
        self._seconds = deadline_seconds
        self._send = send
        self._decoder = decoder
        self._fault = fault
        self._clock = clock
        self._nacks_at_a_time = 1 if ordered else _PARALLEL
        self._changed = threading.Condition()
        self._held: dict[Received, None] = {}
        self._nacks: deque[Sequence[Received]] = deque()
        self._nacking = False
        self._deadline: float | None = None
        self._counters = {"lease_extensions": 0, "lease_extensions_failed": 0, "nacks": 0, "nacks_failed": 0}
        self._pool = ThreadPoolExecutor(_PARALLEL, thread_name_prefix="deadline")
        self._thread = threading.Thread(target=self._run, name="leases", daemon=True)
        self._thread.start()

    @property
    def counters(self) -> dict[str, int]:
        """Messages extended and nacked, and those for which the call failed."""
        return dict(self._counters)

    def receive(self, response: bytes) -> Received:
        """Hold a response that has just come."""
        received = Received(response, None, self._clock(), min(_FIRST_DEADLINE_SECONDS, self._seconds))
        with self._changed:
            self._held[received] = None
        return received

    def merge(self, parts: Sequence[Received], ack_ids: pa.Array) -> Received:
        """Hold a block instead of the responses it was decoded from; its deadline is that of the first to expire."""
        with self._changed:
            first = min(parts, key=lambda part: part.leased_at + part.deadline_seconds)
            block = Received(None, ack_ids, first.leased_at, first.deadline_seconds)
            # What was nacked meanwhile is not held again.
            still_held = [self._held.pop(part, block) is None for part in parts]
            if all(still_held):
                self._held[block] = None
        return block

    def release(self, received: Received) -> None:
        """Stop extending what is durable."""
        with self._changed:
            self._held.pop(received, None)

    def nack(self, received: Sequence[Received]) -> None:
        """Hand messages back to the service, in this order; returns at once."""
        with self._changed:
            for item in received:
                self._held.pop(item, None)
            self._nacks.append(received)
            self._changed.notify_all()

    def wait_until_nacked(self, timeout: float) -> bool:
        """Wait until no nack is in flight any more: a stream that is opened before may bring later messages first."""
        with self._changed:
            return self._changed.wait_for(self._all_nacked, timeout)

    def close(self, deadline: float) -> None:
        """Send the nacks that wait, until `deadline` (`time.monotonic`) at most; nothing is extended any more."""
        with self._changed:
            self._deadline = deadline
            self._changed.notify_all()
            self._changed.wait_for(self._all_nacked, deadline - time.monotonic())

    def _all_nacked(self) -> bool:
        return not self._nacks and not self._nacking

    def _run(self) -> None:
        tick = min(max(self._seconds / 40, _SHORTEST_TICK_SECONDS), _LONGEST_TICK_SECONDS)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._nacks or self._deadline is not None, tick)
                if self._deadline is not None and (not self._nacks or time.monotonic() >= self._deadline):
                    break
                nacks = self._nacks.popleft() if self._nacks else ()
                now = self._clock()
                due = [] if nacks else [received for received in self._held if received.is_due(now)]
                self._nacking = bool(nacks)
            try:
                if nacks:
                    self._send_nacks(nacks)
                elif due:
                    self._extend(due)
            except Exception as error:  # noqa: BLE001 - it is reported, and ends the process
                self._fault(error)
            finally:
                with self._changed:
                    self._nacking = False
                    self._changed.notify_all()
        # Not in close(): an extension that is under way then still uses it.
        self._pool.shutdown(wait=False)

    def _extend(self, due: Sequence[Received]) -> None:
        began = self._clock()
        ack_ids = self._ack_ids(due)
        requests = modify_ack_deadline_requests(self._subscription, ack_ids, self._seconds)
        outcomes = self._send_all(takewhile(lambda _: self._deadline is None, requests), _PARALLEL)
        if self._deadline is not None:
            return  # the rest does not matter any more
        if any(error is not None and error.transient for error in outcomes):
            # All of it is repeated at the next tick: an extension too many does no harm.
            self._counters["lease_extensions_failed"] += len(ack_ids)
            return
        self._counters["lease_extensions"] += len(ack_ids)
        with self._changed:
            for received in due:
                received.leased_at, received.deadline_seconds = began, self._seconds

    def _send_nacks(self, received: Sequence[Received]) -> None:
        ack_ids = self._ack_ids(received)
        requests = modify_ack_deadline_requests(self._subscription, ack_ids, 0)
        failed = [error for error in self._send_all(requests, self._nacks_at_a_time, _NACK_TRIES) if error is not None]
        failpoint("fetch.after_nack")
        self._counters["nacks"] += len(ack_ids)
        if failed:
            self._counters["nacks_failed"] += len(failed)
            _log.warning("nacks failed; their messages are redelivered when the deadline passes: %s", failed[0])

    def _ack_ids(self, received: Iterable[Received]) -> pa.Array:
        """Return the ack ids of blocks and responses, in order."""
        parts: list[pa.Array] = [pa.array([], pa.string())]
        responses: list[bytes] = []
        for item in received:
            if item.response is not None:
                responses.append(item.response)
            elif item.ack_ids is not None:
                parts += [*self._decode(responses), item.ack_ids]
                responses = []
        parts += self._decode(responses)
        return pa.concat_arrays([part.cast(pa.string()) for part in parts])

    def _decode(self, responses: list[bytes]) -> list[pa.Array]:
        if not responses:
            return []
        try:
            return [self._decoder.decode(responses).ack_ids]
        except ConnectorError as error:
            _log.warning("a response cannot be read; its messages are redelivered when the deadline passes: %s", error)
            return []

    def _send_all(self, requests: Iterator[bytes], at_a_time: int, tries: int = 1) -> list[ConnectorError | None]:
        """Send requests, so many at a time; return for each the last error, or None."""
        outcomes: list[ConnectorError | None] = []
        while group := list(islice(requests, at_a_time)):
            outcomes += self._pool.map(lambda request: self._try(request, tries), group)
        return outcomes

    def _try(self, request: bytes, tries: int) -> ConnectorError | None:
        last: ConnectorError | None = None
        for _ in range(tries):
            left = float("inf") if self._deadline is None else self._deadline - time.monotonic()
            if left <= 0:
                break
            try:
                # Ids that exactly-once delivery refuses are those of messages that are not ours any more.
                self._send(request, min(_TIMEOUT_SECONDS, left))
            except ConnectorError as error:
                last = error
                if not error.transient:
                    return error
            else:
                return None
        return last
