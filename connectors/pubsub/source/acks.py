"""Ack ids, from receipt to the end: extended while their messages are held, then acked, or nacked at once.

A message belongs to this process until its ack deadline passes. Until it is durable, decoded or not, its deadline is
extended when about half of it is over.
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
from itertools import groupby, islice, takewhile
from typing import Final

import pyarrow as pa

from connectors.core.errors import ConnectorError, one_line
from connectors.core.processes.failpoints import failpoint
from connectors.core.retry import Backoff
from connectors.pubsub.client.errors import AckFailures
from connectors.pubsub.client.wire import acknowledge_requests, modify_ack_deadline_requests
from connectors.pubsub.source.records import Decoder

_log = logging.getLogger(__name__)

_FIRST_DEADLINE_SECONDS: Final = 10.0
"""The shortest deadline there is; emulators ignore that of the stream, and use the subscription's."""

_PARALLEL: Final = 8
_DEADLINE_TIMEOUT_SECONDS: Final = 5.0
_SHORTEST_TICK_SECONDS: Final = 0.05
_LONGEST_TICK_SECONDS: Final = 1.0
_NACK_TRIES: Final = 3

_LONGEST_PAUSE_SECONDS: Final = 1.0
_ACK_SECONDS: Final = 60.0
"""How long an ack is retried; after that the message is about to be redelivered anyway."""

_TRANSIENT_FAILURE_SECONDS: Final = 600.0
"""How long ack ids that exactly-once delivery names as failed for now are sent again; as in Google's clients."""

_MOST_ACK_REQUESTS: Final = 40
_ACK_TIMEOUT_SECONDS: Final = 10.0
_CLOSING_PAUSE_SECONDS: Final = 0.1

Send = Callable[[bytes, float], AckFailures]
"""Sends a request, with a timeout in seconds: `PubSubClient.acknowledge` or `modify_ack_deadline`."""


@dataclass(slots=True, eq=False)
class Received:
    """Messages that are held: a response, as wire bytes, or a block that some responses became, with its ack ids.

    The deadline runs from `leased_at`, by the clock of `Deadlines`. After the part `due` of it, it is extended; that
    is random, so that not all come at once.
    """

    response: bytes
    ack_ids: pa.Array | None
    leased_at: float
    deadline_seconds: float
    due: float = field(default_factory=lambda: random.uniform(0.4, 0.5))  # noqa: S311 - jitter


class Deadlines:
    """Extends the deadlines of what is held, by 10 to 600 seconds, and nacks what is given up.

    One thread sends them and uses the decoder, so that an extension never overtakes the nack of the same message.
    `ordered` sends nacks one after the other. After an unexpected error, which `fault` gets, the thread goes on, so
    that nobody waits for its nacks for ever.
    """

    def __init__(
        self,
        subscription: str,
        deadline_seconds: int,
        send: Send,
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
        self.counters = {"lease_extensions": 0, "lease_extensions_failed": 0, "nacks": 0, "nacks_failed": 0}
        """Messages extended and nacked, and those for which the call failed."""
        self._pool = ThreadPoolExecutor(_PARALLEL, thread_name_prefix="deadline")
        threading.Thread(target=self._run, name="leases", daemon=True).start()

    def receive(self, response: bytes) -> Received:
        received = Received(response, None, self._clock(), min(_FIRST_DEADLINE_SECONDS, self._seconds))
        with self._changed:
            self._held[received] = None
        return received

    def merge(self, parts: Sequence[Received], ack_ids: pa.Array) -> Received:
        """Hold a block instead of the responses it was decoded from; its deadline is that of the first to expire."""
        with self._changed:
            first = min(parts, key=lambda part: part.leased_at + part.deadline_seconds)
            block = Received(b"", ack_ids, first.leased_at, first.deadline_seconds)
            # What was nacked meanwhile is not held again.
            still_held = [self._held.pop(part, block) is None for part in parts]
            if all(still_held):
                self._held[block] = None
        return block

    def release(self, received: Received) -> None:
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
            return self._changed.wait_for(lambda: not self._nacks and not self._nacking, timeout)

    def close(self, deadline: float) -> None:
        """Send the nacks that wait, until `deadline` (`time.monotonic`) at most; nothing is extended any more."""
        with self._changed:
            self._deadline = deadline
            self._changed.notify_all()
        self.wait_until_nacked(deadline - time.monotonic())

    def _run(self) -> None:
        tick = min(max(self._seconds / 40, _SHORTEST_TICK_SECONDS), _LONGEST_TICK_SECONDS)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._nacks or self._deadline is not None, tick)
                if self._deadline is not None and (not self._nacks or time.monotonic() >= self._deadline):
                    break
                nacks = self._nacks.popleft() if self._nacks else ()
                now = self._clock()
                held = () if nacks else self._held
                due = [item for item in held if now - item.leased_at >= item.deadline_seconds * item.due]
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
            self.counters["lease_extensions_failed"] += len(ack_ids)
            return
        self.counters["lease_extensions"] += len(ack_ids)
        with self._changed:
            for received in due:
                received.leased_at, received.deadline_seconds = began, self._seconds

    def _send_nacks(self, received: Sequence[Received]) -> None:
        ack_ids = self._ack_ids(received)
        requests = modify_ack_deadline_requests(self._subscription, ack_ids, 0)
        failed = [error for error in self._send_all(requests, self._nacks_at_a_time, _NACK_TRIES) if error is not None]
        failpoint("fetch.after_nack")
        self.counters["nacks"] += len(ack_ids)
        if failed:
            self.counters["nacks_failed"] += len(failed)
            _log.warning("nacks failed; their messages are redelivered after the deadline: %s", failed[0])

    def _ack_ids(self, received: Iterable[Received]) -> pa.Array:
        parts: list[pa.Array] = [pa.array([], pa.string())]
        for is_block, items in groupby(received, lambda item: item.ack_ids is not None):
            if is_block:
                parts += [item.ack_ids for item in items]
                continue
            try:
                parts.append(self._decoder.decode([item.response for item in items]).ack_ids)
            except ConnectorError as error:
                _log.warning(
                    "unreadable responses; their messages are redelivered after the deadline: %s",
                    one_line(str(error)),
                )
        return pa.concat_arrays([part.cast(pa.string()) for part in parts])

    def _send_all(self, requests: Iterator[bytes], at_a_time: int, tries: int = 1) -> list[ConnectorError | None]:
        """Send requests, `at_a_time` in parallel; return the last error of each, or None."""
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
                self._send(request, min(_DEADLINE_TIMEOUT_SECONDS, left))
            except ConnectorError as error:
                last = error
                if not error.transient:
                    return error
            else:
                return None
        return last


class AckSender:
    """Acks what is durable: several unary calls at a time, retried for a while.

    An ack that fails for good only causes a redelivery, which the ledger drops as a duplicate: it is counted, no more.
    `fault` gets unexpected errors; later acks are sent all the same, so that no caller waits for ever.
    """

    def __init__(self, subscription: str, send: Send, fault: Callable[[BaseException], None]) -> None:
        self._subscription = subscription
        self._send = send
        self._fault = fault
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._deadline = float("inf")
        self.counters = {"ack_requests": 0, "ack_requests_failed": 0, "ack_requests_waiting": 0, "acks_too_late": 0}
        """Requests that succeeded, that failed for good, and that wait; and ack ids that came too late."""
        self._pool = ThreadPoolExecutor(_PARALLEL, thread_name_prefix="ack")

    def acknowledge(self, ack_ids: pa.Array) -> None:
        """Acknowledge these messages some time soon; waits while too many requests wait."""
        for request in acknowledge_requests(self._subscription, ack_ids):
            with self._changed:
                self._changed.wait_for(
                    lambda: self.counters["ack_requests_waiting"] < _MOST_ACK_REQUESTS or self._closing.is_set()
                )
            self._count("ack_requests_waiting")
            self._pool.submit(self._run, request)

    def close(self, deadline: float) -> None:
        """Send what waits, until `deadline` (`time.monotonic`) at most."""
        with self._changed:
            self._deadline = deadline
            self._closing.set()
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self.counters["ack_requests_waiting"], deadline - time.monotonic())

    def _count(self, name: str, number: int = 1) -> None:
        with self._changed:
            self.counters[name] += number
            self._changed.notify_all()

    def _run(self, request: bytes) -> None:
        try:
            if time.monotonic() < self._deadline:
                self._send_with_retries(request)
        except Exception as error:  # noqa: BLE001 - it is reported, and ends the process
            self._count("ack_requests_failed")
            self._fault(error)
        finally:
            self._count("ack_requests_waiting", -1)

    def _send_with_retries(self, request: bytes) -> None:
        backoff = Backoff(cap_seconds=_LONGEST_PAUSE_SECONDS)
        began = time.monotonic()
        give_up_at = began + _ACK_SECONDS
        while True:
            reason: ConnectorError | None = None
            try:
                # The time that is left, but enough for a call.
                timeout = max(min(_ACK_TIMEOUT_SECONDS, self._deadline - time.monotonic()), 0.1)
                failures = self._send(request, timeout)
            except ConnectorError as error:
                reason = error
            else:
                failpoint("fetch.after_ack")
                if failures.permanent:
                    self._count("acks_too_late", len(failures.permanent))
                    _log.info("%d acks were too late; their messages are redelivered", len(failures.permanent))
                if not failures.transient:
                    self._count("ack_requests")
                    return
                # Exactly-once delivery names the ids that are worth another try; only those go out again.
                give_up_at = began + _TRANSIENT_FAILURE_SECONDS
                again = pa.array(sorted(failures.transient), pa.string())
                request = next(acknowledge_requests(self._subscription, again))
            if reason is not None and not reason.transient:
                break
            delay = backoff.next_delay_seconds(reason)
            if time.monotonic() + delay > min(give_up_at, self._deadline):
                break
            if self._closing.wait(delay):
                time.sleep(min(delay, _CLOSING_PAUSE_SECONDS))
        self._count("ack_requests_failed")
        _log.warning(
            "an ack failed; its messages are redelivered, and dropped as duplicates: %s",
            one_line(str(reason or "refused")),
        )
