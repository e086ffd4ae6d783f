"""The driver's side of subscriptions: fetchers, and the records that they push.

A shard is as new as the unbroken chain of segments from where the query stands; the rest is polled. So subscriptions
decide how soon records come and from where, never which.
"""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from connectors.core.errors import ConnectorError
from connectors.kinesis.client.errors import INVALID_ARGUMENT, NOT_FOUND
from connectors.kinesis.fan_out.cached_ranges import SpoolIndex, spool_id
from connectors.kinesis.fan_out.consumers import StreamConsumers
from connectors.kinesis.fan_out.fetcher import TARGET
from connectors.kinesis.fan_out.subscription import (
    Deregister,
    Ended,
    Gone,
    Live,
    NotDeregistered,
    NotSubscribed,
    Order,
    Refused,
    UpToDate,
    message_to_json,
    note_from_json,
    order_name,
)
from connectors.kinesis.offsets import END, Position, PositionKind, ShardState, Streams, after
from connectors.kinesis.options.client import client_to_json
from connectors.kinesis.options.source import Deaggregate
from connectors.kinesis.shards import Listing, Piece, Seen, ShardKey
from connectors.kinesis.source.shard_monitor import Job, PushSource, ShardMonitor
from connectors.spool.fetching.group import FetcherGroup
from connectors.spool.fetching.messages import FetchPlan

if TYPE_CHECKING:
    from connectors.kinesis.options.source import KinesisReadOptions
    from connectors.kinesis.source.latest_record import PollTask
    from connectors.spool.fetching.group import FetcherStatus

_log = logging.getLogger(__name__)
_LEAST_SECONDS: Final = 3.0
"""A fetcher that works reports twice a second."""
_HELD_BYTES: Final = 64 << 20
_PUBLISH_SECONDS: Final = 0.1
"""Records are ready for a batch at the latest this long after they came; less would make more and smaller segments."""
_CHECK_SECONDS: Final = 0.5
_LAGGING_CHECKS: Final = 4
"""Checks in a row that see a subscription behind the reader before it restarts at the reader's position."""


class StallDetector:
    """The fetchers that report nothing, by index, so that the shards of a hung process are polled.

    It counts checks, one each ``period`` seconds, not time: a stopped driver receives nothing either. A fetcher may be
    silent for ``patience`` seconds, at least 3.
    """

    def __init__(self, patience: float, period: float) -> None:
        self._patience = max(patience, _LEAST_SECONDS)
        self._most = self._patience / period
        self._reports: dict[int, object] = {}
        self._unchanged: dict[int, int] = defaultdict(int)

    def __contains__(self, index: int) -> bool:
        return self._unchanged[index] >= self._most

    def check(self, statuses: Iterable[FetcherStatus]) -> None:
        """Compare the reports of all fetchers with the last ones; one that stalls is logged once."""
        for status in statuses:
            report = (status.pid, status.settled_at, status.fetched_bytes)
            if status.fetcher is None or report != self._reports.get(status.index):
                self._reports[status.index], self._unchanged[status.index] = report, 0
                continue
            was_stalled = status.index in self
            self._unchanged[status.index] += 1
            if status.index in self and not was_stalled:
                _log.warning(
                    "[KINESIS_FETCHER_SILENT] A fetcher has reported nothing for %g s. The query polls its shards "
                    "until it does (pid %s).",
                    self._patience,
                    status.pid,
                )


@dataclass(slots=True)
class _Subscribed:
    """A followed shard and its subscription.

    The fetcher was ordered to begin after ``ordered``; the query has read up to ``read``; ``head`` ends the chain from
    there. Nothing came after ``up_to_date`` until its time. ``lagging`` counts checks in a row that saw the
    subscription lag. ``brought`` is the newest record of any segment. At ``lost_at`` (monotonic) a segment was lost
    that may have held records of this shard.
    """

    created_ms: int
    ordered: Position
    read: Position
    head: Position
    arrival_ms: int | None = None
    up_to_date: UpToDate | None = None
    live: bool = False
    refused: bool = False
    lagging: int = 0
    brought: int = -1
    lost_at: float = -1.0

    def has_gap(self) -> bool:
        """Return whether segments brought what the chain does not lead to."""
        return self.head != END and self.brought > _number(self.head)

    def read_to(self, position: Position) -> None:
        """Note how far the query has read: the tasks may have polled over a gap."""
        self.read = position
        if position.kind is PositionKind.AFTER and _number(self.head) < position.number:
            self.head = position

    def must_restart(self) -> bool:
        """Return whether the subscription has brought for long what was read already."""
        if self.read.kind is not PositionKind.AFTER or self.head == END:
            return False
        lags = max(self.brought, _number(self.ordered)) < self.read.number
        self.lagging = self.lagging + 1 if lags else 0
        return self.lagging >= _LAGGING_CHECKS or (self.refused and lags)


def _number(position: Position) -> int:
    return position.number if position.kind is PositionKind.AFTER else -1


class FanOut(PushSource):
    """Pushes the records of subscriptions into a monitor, which polls what is not pushed."""

    def __init__(self, options: KinesisReadOptions, monitor: ShardMonitor) -> None:
        self._options = options
        self._monitor = monitor
        self._spool_id = spool_id(options.endpoint_url, options.region)
        self._deaggregate = options.deaggregate is Deaggregate.AUTO
        self._spool = SpoolIndex(str(options.spool_folder), self._spool_id, deaggregate=self._deaggregate)
        self._spool_is_open = False
        self._is_bounded = False
        self._lock = threading.RLock()
        self._group: FetcherGroup | None = None
        self._shards: dict[ShardKey, _Subscribed] = {}
        self._consumers = StreamConsumers(options, monitor.client, monitor.scheduler, self._consumer_active)
        self._logged: set[str] = set()
        self._stalled = StallDetector(options.stall_seconds, _CHECK_SECONDS)

    def start_over(self) -> None:
        """Drop what an earlier query left: it may lie before the start of this one, or be trimmed."""
        self._open_spool()
        if self._group is None:
            self._spool.clear()

    def bound(self, *, bounded: bool) -> None:
        """Open no subscriptions as long as a run is bounded, and use what the spool has."""
        self._is_bounded = bounded

    def follow(self, shards: Mapping[ShardKey, ShardState], listings: Collection[Listing]) -> None:
        """Subscribe to just these shards; every call says how far they were read."""
        self._open_spool()
        if self._is_bounded:
            return
        streams = {listing.arn: listing for listing in listings}
        with self._lock:
            for key in self._shards.keys() - shards.keys():
                del self._shards[key]
                if self._group is not None:
                    self._group.order(self._fetcher_of(key), order_name(key), None)
            for key, state in shards.items():
                shard = self._shards.get(key)
                if shard is None:
                    start = state.position
                    shard = self._shards[key] = _Subscribed(streams[key[0]].created_ms, start, start, start)
                    self._order(key, shard)
                shard.read_to(state.position)
        for key in shards:
            self._advance(key)
        for arn in {key[0] for key in shards}:
            self._consumers.want(arn, streams[arn].stream)
        if shards and self._group is None:
            self._start()
        self._allow()

    def covers(self, task: PollTask) -> bool:
        """Return whether the subscription of a shard works and has brought everything that polling has seen."""
        with self._lock:
            shard = self._shards.get(task.key)
            if shard is None or not shard.live or self._fetcher_of(task.key) in self._stalled:
                return False
            if shard.has_gap() or task.fresh_as_of < shard.lost_at:
                return False  # what a lost segment held is seen by polling, and then the chain goes on after it
        polled = task.latest.seen.number
        return polled is None or (task.pushed.number or -1) >= polled

    def pieces(self, key: ShardKey, created_ms: int, begin: Position, end: Position) -> tuple[Piece, ...]:
        self._open_spool()
        return self._spool.pieces(key, created_ms, begin, end)

    def forget(self, read: Streams) -> None:
        self._open_spool()
        running = [] if self._group is None else [status.fetcher for status in self._group.status()]
        with self._lock:
            followed = set(self._shards)
        self._spool.free(read, followed, [fetcher for fetcher in running if fetcher is not None])
        self._allow()

    def stop(self) -> None:
        if self._group is not None:
            self._group.stop()

    def _open_spool(self) -> None:
        if not self._spool_is_open:
            self._spool.open()
            self._spool_is_open = True

    def _start(self) -> None:
        options = self._options
        plan = FetchPlan(
            target=TARGET,
            root=str(options.spool_folder),
            spool=self._spool_id,
            hash_key=b"",
            settings={
                "client": client_to_json(options),
                "deaggregate": self._deaggregate,
                "stall_seconds": options.stall_seconds,
            },
            publish_period=_PUBLISH_SECONDS,
            max_held_bytes=_HELD_BYTES,
        )
        group = FetcherGroup(on_published=self._published, on_note=self._noted, free_bytes=options.max_spool_bytes)
        group.add(plan, options.fetchers)
        with self._lock:
            first = self._group is None
            self._group = group
            for key, shard in self._shards.items():
                self._order(key, shard)
            self._order_deregistration()
        group.start()
        if first:
            self._monitor.scheduler.add(Job(self._check), _CHECK_SECONDS)

    def _fetcher_of(self, key: ShardKey) -> int:
        return zlib.crc32(" ".join(key).encode()) % self._options.fetchers

    def _order(self, key: ShardKey, shard: _Subscribed) -> None:
        consumer = self._consumers.arn(key[0])
        if self._group is not None and consumer is not None:
            order = Order(key, consumer, shard.created_ms, shard.ordered)
            self._group.order(self._fetcher_of(key), order_name(order), message_to_json(order))

    def _order_deregistration(self) -> None:
        if self._group is not None and self._options.require_deregistration:
            for consumer in self._consumers.arns():
                order = Deregister(consumer)
                self._group.order(0, order_name(order), message_to_json(order))

    def _consumer_active(self, arn: str) -> None:
        with self._lock:
            for key, shard in self._shards.items():
                if key[0] == arn:
                    self._order(key, shard)
            self._order_deregistration()

    def _allow(self) -> None:
        """Let the fetchers fetch what there is room for; more, whatever the room, when everything was read."""
        if self._group is None:
            return
        free = self._options.max_spool_bytes - self._spool.size
        with self._lock:
            unread = any(shard.head != shard.read for shard in self._shards.values())
        self._group.allow(free if unread else max(free, 1))

    def _check(self) -> float:
        group = self._group
        error = None if group is None else group.terminal_error()
        if error is not None and error.code == "SPOOL_MISSING":
            self._spool.make()
            self._start()
        elif error is not None:
            self._monitor.fail(error)
        self._stalled.check([] if group is None else group.status())
        with self._lock:
            for key, shard in self._shards.items():
                if shard.must_restart():
                    shard.lagging, shard.ordered, shard.refused = 0, shard.read, False
                    self._order(key, shard)
        return _CHECK_SECONDS

    # What the fetchers report; in the thread that supervises them

    def _published(self, fetcher: str, number: int) -> None:
        lost = self._spool.lost
        for key in set(self._spool.add_folder(fetcher, number)):
            self._advance(key)
        if self._spool.lost != lost:
            # It may have held records of any shard: poll each once.
            with self._lock:
                for shard in self._shards.values():
                    shard.lost_at = time.monotonic()
                keys = list(self._shards)
            for key in keys:
                self._monitor.poll_now(key)
        self._allow()

    def _noted(self, index: int, value: Any) -> None:
        match None if value is None else note_from_json(value):
            case None:
                self._fetcher_ended(index)
            case NotSubscribed() as note:
                self._take_failure(note.error)
            case NotDeregistered() as note:
                _log.warning("[KINESIS_NOT_DEREGISTERED] %s", note.reason)
            case note:
                self._take_note(note)

    def _take_note(self, note: Live | UpToDate | Refused | Gone | Ended) -> None:
        with self._lock:
            shard = self._shards.get(note.key)
            if shard is None:
                return
            match note:
                case Live():
                    shard.live = note.live
                    shard.refused = shard.refused and not note.live
                    self._logged -= self._logged if note.live else set()
                case UpToDate():
                    shard.up_to_date = note
                case Refused():
                    shard.refused = True
        match note:
            case Gone():
                self._consumers.gone(note.key[0])
            case UpToDate():
                self._push(note.key, shard)
            case Ended():
                self._monitor.list_now()
            case Live(live=False):
                self._monitor.poll_now(note.key)

    def _take_failure(self, error: ConnectorError) -> None:
        if not error.transient and error.code not in {INVALID_ARGUMENT, NOT_FOUND}:
            self._monitor.fail(error)
        elif error.code not in self._logged:
            self._logged.add(error.code)
            _log.warning(
                "[KINESIS_NOT_SUBSCRIBED] Enhanced fan-out does not work now, so the query polls records: %s", error
            )

    def _fetcher_ended(self, index: int) -> None:
        """Let the process that follows begin where the segments of this one end."""
        try:
            self._spool.make()
        except ConnectorError as error:
            self._monitor.fail(error)
            return
        with self._lock:
            own = {key: shard for key, shard in self._shards.items() if self._fetcher_of(key) == index}
        for fetcher in self._spool.fetchers():
            self._spool.add_folder(fetcher)
        for key, shard in own.items():
            self._advance(key)
            with self._lock:
                shard.live = False
                if shard.head.kind is PositionKind.AFTER:
                    shard.ordered = shard.head
                self._order(key, shard)
            self._monitor.poll_now(key)

    def _advance(self, key: ShardKey) -> None:
        with self._lock:
            shard = self._shards.get(key)
            if shard is None:
                return
            newest, last = self._spool.chain(key, shard.created_ms, shard.head)
            shard.brought = max(shard.brought, newest)
            if last is None:
                return
            shard.head = END if last.ended else after(last.last)
            shard.arrival_ms = last.arrival_ms
        if last.ended:
            self._monitor.push(key, Seen(last.last, last.arrival_ms, ended=True))
        else:
            self._push(key, shard)

    def _push(self, key: ShardKey, shard: _Subscribed) -> None:
        with self._lock:
            if shard.head == END:
                return
            number = shard.head.number if shard.head.kind is PositionKind.AFTER else None
            newest = shard.up_to_date
            clean_ms = newest.until_ms if newest is not None and newest.position == shard.head else None
            seen = Seen(number, shard.arrival_ms, clean_ms)
        self._monitor.push(key, seen)
