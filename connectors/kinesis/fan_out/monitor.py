"""What the source process of a query with subscriptions knows of its shards, and the fetchers that tell it.

A shard is as new as the unbroken chain of segments that leads on from where the query stands. While a shard has no
subscription that works it is looked at as in polling, and what is not in the spool is polled by the tasks: so the
subscriptions decide how soon and from where records come, and never which.

Which fetchers have told nothing for long: a process that hangs is no reason not to look at its shards.
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

from connectors.core.errors import ConnectorError, error_from_json
from connectors.kinesis.cached_ranges import Piece, ShardKey
from connectors.kinesis.client.errors import INVALID_ARGUMENT, NOT_FOUND
from connectors.kinesis.fan_out.consumers import StreamConsumers
from connectors.kinesis.fan_out.fetcher import DEREGISTER, TARGET
from connectors.kinesis.fan_out.spool_index import SpooledExtents, spool_id
from connectors.kinesis.fan_out.subscription import Order
from connectors.kinesis.offsets import END, Kind, Position, ShardState, Streams, after
from connectors.kinesis.options.client import client_to_json
from connectors.kinesis.options.source import Deaggregate
from connectors.kinesis.shards import Listing, Seen
from connectors.kinesis.source.scheduler import Job
from connectors.kinesis.source.shard_monitor import Followed, ShardWatch
from connectors.spool.fetching.group import FetcherGroup
from connectors.spool.fetching.target import FetchPlan

if TYPE_CHECKING:
    from connectors.kinesis.options.source import KinesisReadOptions
    from connectors.spool.fetching.child import FetcherStatus

__all__ = ["FanOutWatch", "SilentFetchers"]


_log = logging.getLogger(__name__)
_LEAST_SECONDS: Final = 3.0
"""A fetcher that works tells how it stands twice a second."""


@dataclass(slots=True)
class _Told:
    """What a fetcher has told last.

    Attributes:
        health: something that changes with each report of a fetcher that works.
        looks: how often in a row it was found unchanged.
    """

    health: object = None
    looks: int = 0


class SilentFetchers:
    """The fetchers that tell nothing, each by its index.

    It counts looks and not time: while this process is stopped itself, it hears nothing either.

    Args:
        patience: seconds in which a fetcher may tell nothing; no less than 3 are taken.
        period: seconds between two looks.
    """

    def __init__(self, patience: float, period: float) -> None:
        self._patience = max(patience, _LEAST_SECONDS)
        self._most = self._patience / period
        self._told: dict[int, _Told] = defaultdict(_Told)

    def __contains__(self, index: int) -> bool:
        """Whether a fetcher is silent."""
        return self._told[index].looks >= self._most

    def look(self, statuses: Iterable[FetcherStatus]) -> None:
        """Look at what all of them have told; one that falls silent is logged once."""
        for status in statuses:
            told, health = self._told[status.index], (status.pid, status.settled_at, status.fetched_bytes)
            if status.fetcher is None or health != told.health:
                told.health, told.looks = health, 0
                continue
            was_silent = status.index in self
            told.looks += 1
            if status.index in self and not was_silent:
                _log.warning(
                    "[KINESIS_FETCHER_SILENT] A fetcher has told nothing for %g s; its shards are polled until it does "
                    "(pid %s).",
                    self._patience,
                    status.pid,
                )


_HELD_BYTES: Final = 64 << 20
_CHECK_SECONDS: Final = 0.5
_BEHIND_CHECKS: Final = 4
"""So often in a row a subscription must be behind what was read already before it is begun anew there."""


@dataclass(slots=True)
class _Fan:
    """A shard that is followed, and its subscription.

    Attributes:
        created_ms: when its stream was made.
        ordered: what the fetcher was told to begin after.
        read: how far the query has read.
        head: the end of the chain that leads on from there.
        arrival_ms: when the last record of the chain arrived.
        clean: a position, and up to when nothing came after it.
        live: the subscription works.
        refused: the service does not take the position.
        behind: how often in a row it was seen to be behind.
        brought: the newest record that segments ever brought; -1 when none did.
        lost_at: when a segment was last seen to be lost, by the monotonic clock: it may have been this shard's newest.
    """

    created_ms: int
    ordered: Position
    read: Position
    head: Position
    arrival_ms: int | None = None
    clean: tuple[str, int] | None = None
    live: bool = False
    refused: bool = False
    behind: int = 0
    brought: int = -1
    lost_at: float = -1.0

    def has_gap(self) -> bool:
        """Whether segments brought what the chain does not lead to."""
        return self.head != END and self.brought > (self.head.number if self.head.kind is Kind.AFTER else -1)


class FanOutWatch(ShardWatch):
    """Lists streams and follows shards, which subscriptions tell of.

    Args:
        options: the parsed options, with consumers.
    """

    def __init__(self, options: KinesisReadOptions) -> None:
        super().__init__(options)
        self._spool = SpooledExtents(
            str(options.spool_folder),
            spool_id(options.endpoint_url, options.region),
            deaggregate=options.deaggregate is Deaggregate.AUTO,
        )
        self._lock = threading.RLock()
        self._spool_is_open = False
        self._is_bounded = False
        self._group: FetcherGroup | None = None
        self._fans: dict[ShardKey, _Fan] = {}
        self._consumers = StreamConsumers(options, self.client, self._jobs, self._consumer_found)
        self._told: set[str] = set()
        self._silent = SilentFetchers(options.subscription_stall, _CHECK_SECONDS)

    # What the stream asks

    def begins_anew(self) -> None:
        """The checkpoint is a new one: what an earlier query left may lie before its start, or be trimmed."""
        self._open_spool()
        if self._group is None:
            self._spool.clear()

    def bounded(self) -> None:
        """This run has an end: it opens no subscriptions, and uses what the spool has."""
        self._is_bounded = True

    def follow(self, shards: Mapping[ShardKey, ShardState], listings: Collection[Listing]) -> None:
        """See `ShardWatch.follow`; every call tells how far the shards were read."""
        self._open_spool()
        super().follow(shards, listings)
        if self._is_bounded:
            return
        streams = {each.arn: each for each in listings}
        with self._lock:
            for key in self._fans.keys() - shards.keys():
                del self._fans[key]
                self._withdraw(key)
            for key, state in shards.items():
                fan = self._fans.get(key)
                if fan is None:
                    position = state.position
                    fan = self._fans[key] = _Fan(streams[key[0]].created_ms, position, position, position)
                    self._order(key, fan)
                fan.read = state.position
                if fan.read.kind is Kind.AFTER and (
                    fan.head.kind is not Kind.AFTER or fan.head.number < fan.read.number
                ):
                    fan.head = fan.read  # the tasks have polled over a gap
        for key in shards:
            self._advance(key)
        for arn in {key[0] for key in shards}:
            self._consumers.want(arn, streams[arn].stream)
        if shards and self._group is None:
            self._start()
        self._allow()

    def pieces(self, key: ShardKey, created_ms: int, begin: Position, end: Position) -> tuple[Piece, ...]:
        """What of a range the spool has."""
        self._open_spool()
        return self._spool.pieces(key, created_ms, begin, end)

    def forget(self, read: Streams) -> None:
        """Free what lies before."""
        self._open_spool()
        running = [] if self._group is None else [each.fetcher for each in self._group.status()]
        with self._lock:
            followed = set(self._fans)
        self._spool.free(read, followed, [each for each in running if each is not None])
        self._allow()

    def stop(self) -> None:
        """End the fetchers and the threads."""
        if self._group is not None:
            self._group.stop()
        super().stop()

    def _rests(self, key: ShardKey, followed: Followed) -> bool:
        with self._lock:
            fan = self._fans.get(key)
            if fan is None or not fan.live or self._index(key) in self._silent:
                return False
            if fan.has_gap() or followed.fresh_as_of < fan.lost_at:
                return False  # what a lost segment held is seen here and polled, and then the chain goes on behind it
        looked = followed.tail.seen.number
        return looked is None or (followed.pushed.number or -1) >= looked

    # The spool and the fetchers

    def _open_spool(self) -> None:
        if not self._spool_is_open:
            self._spool.open()
            self._spool_is_open = True

    def _start(self) -> None:
        """Start the fetchers."""
        options = self._options
        plan = FetchPlan(
            target=TARGET,
            root=str(options.spool_folder),
            spool=spool_id(options.endpoint_url, options.region),
            hash_key=b"",
            settings={
                "client": client_to_json(options),
                "deaggregate": options.deaggregate is Deaggregate.AUTO,
                "stall_seconds": options.subscription_stall,
            },
            publish_period=options.max_fetch_period,
            max_held_bytes=_HELD_BYTES,
        )
        group = FetcherGroup(
            plan,
            options.fetchers,
            on_published=self._published,
            on_note=self._noted,
            free_bytes=options.max_spool_bytes,
        )
        with self._lock:
            first = self._group is None
            self._group = group
            for key, fan in self._fans.items():
                self._order(key, fan)
            self._order_deregistration()
        group.start()
        if first:
            self._jobs.add(Job(self._check), _CHECK_SECONDS)

    def _index(self, key: ShardKey) -> int:
        """Which fetcher a shard belongs to."""
        return zlib.crc32(" ".join(key).encode()) % self._options.fetchers

    def _order(self, key: ShardKey, fan: _Fan) -> None:
        """Tell the fetcher to follow a shard; the caller holds the lock."""
        consumer = self._consumers.arn(key[0])
        if self._group is not None and consumer is not None:
            order = Order(consumer, key, fan.created_ms, fan.ordered)
            self._group.order(self._index(key), " ".join(key), order.to_json())

    def _withdraw(self, key: ShardKey) -> None:
        if self._group is not None:
            self._group.order(self._index(key), " ".join(key), None)

    def _order_deregistration(self) -> None:
        if self._group is not None and self._options.require_deregistration:
            for consumer in self._consumers.arns():
                self._group.order(0, DEREGISTER + consumer, True)

    def _allow(self) -> None:
        """Let the fetchers fetch what there is room for; more, whatever the room, when all was read."""
        group = self._group
        if group is None:
            return
        free = self._options.max_spool_bytes - self._spool.size
        with self._lock:
            unread = any(fan.head != fan.read for fan in self._fans.values())
        group.allow(free if unread else max(free, 1))

    # What the fetchers tell; in the thread that supervises them

    def _published(self, fetcher: str, number: int) -> None:
        lost = self._spool.lost
        for key in set(self._spool.take_folder(fetcher, number)):
            self._advance(key)
        if self._spool.lost != lost:
            self._look_at_all()
        self._allow()

    def _look_at_all(self) -> None:
        """Look at every shard once: a segment is lost, and nobody knows whose records it held."""
        now = time.monotonic()
        with self._lock:
            for fan in self._fans.values():
                fan.lost_at = now
            keys = list(self._fans)
        for key in keys:
            self._look_again(key)

    def _noted(self, index: int, value: Any) -> None:
        if value is None:
            self._fetcher_ended(index)
        elif "failed" in value and "key" not in value:
            self._take_failure(value)
        else:
            stream, shard = value["key"]
            self._take_note((stream, shard), value)

    def _take_note(self, key: ShardKey, value: Mapping[str, Any]) -> None:
        with self._lock:
            fan = self._fans.get(key)
            if fan is None:
                return
            if "live" in value:
                fan.live = bool(value["live"])
                fan.refused = fan.refused and not fan.live
                self._told -= self._told if fan.live else set()
            if "clean" in value:
                position, at_ms = value["clean"]
                fan.clean = (position, at_ms)
            fan.refused = fan.refused or "refused" in value
        if "gone" in value:
            self._consumers.gone(key[0])
        if "clean" in value:
            self._tell(key, fan)
        if "ended" in value:
            self._jobs.hurry(self._listing_job)
        if value.get("live") is False:
            self._look_again(key)

    def _take_failure(self, value: Mapping[str, Any]) -> None:
        if isinstance(value["failed"], str):
            _log.warning("[KINESIS_NOT_DEREGISTERED] %s", value["failed"])
            return
        error = error_from_json(value["failed"])
        if not error.transient and error.code not in {INVALID_ARGUMENT, NOT_FOUND}:
            self._fail(error)
        elif error.code not in self._told:
            self._told.add(error.code)
            _log.warning("[KINESIS_NOT_SUBSCRIBED] Records are polled meanwhile: %s", error)

    def _fetcher_ended(self, index: int) -> None:
        """A process has ended; the one that follows begins where this one's segments end."""
        try:
            self._spool.make()
        except ConnectorError as error:
            self._fail(error)
            return
        with self._lock:
            mine = {key: fan for key, fan in self._fans.items() if self._index(key) == index}
        for fetcher in self._spool.fetchers():
            self._spool.take_folder(fetcher)
        for key, fan in mine.items():
            self._advance(key)
            with self._lock:
                fan.live = False
                if fan.head.kind is Kind.AFTER:
                    fan.ordered = fan.head
                self._order(key, fan)
            self._look_again(key)

    def _look_again(self, key: ShardKey) -> None:
        """Look at a shard as in polling, now."""
        followed = self._followed.get(key)
        if followed is not None:
            self._jobs.hurry(followed.job)

    def _advance(self, key: ShardKey) -> None:
        """Follow the chain of a shard as far as it goes."""
        with self._lock:
            fan = self._fans.get(key)
            if fan is None:
                return
            fan.brought = max(fan.brought, self._spool.newest(key, fan.created_ms) or -1)
            last = self._spool.end_of_chain(key, fan.created_ms, fan.head)
            if last is None:
                return
            fan.head = END if last.ended else after(last.last)
            fan.arrival_ms = last.arrival_ms
        if last.ended:
            self._push(key, Seen(last.last, last.arrival_ms, ended=True))
        else:
            self._tell(key, fan)

    def _tell(self, key: ShardKey, fan: _Fan) -> None:
        """Let the stream know how new a shard is."""
        with self._lock:
            if fan.head == END:
                return
            number = fan.head.number if fan.head.kind is Kind.AFTER else None
            clean_ms = fan.clean[1] if fan.clean is not None and fan.clean[0] == str(fan.head) else None
            seen = Seen(number, fan.arrival_ms, clean_ms)
        self._push(key, seen)

    def _consumer_found(self, arn: str) -> None:
        """The consumer of a stream is ACTIVE."""
        with self._lock:
            for key, fan in self._fans.items():
                if key[0] == arn:
                    self._order(key, fan)
            self._order_deregistration()

    # Looking after it all

    def _check(self) -> float:
        """What is done twice a second."""
        group = self._group
        error = None if group is None else group.terminal_error()
        if error is not None and error.code == "SPOOL_MISSING":
            self._spool.make()
            self._start()
        elif error is not None:
            self._fail(error)
        self._silent.look([] if group is None else group.status())
        with self._lock:
            for key, fan in self._fans.items():
                if self._is_behind(fan):
                    fan.behind = 0
                    fan.ordered, fan.refused = fan.read, False
                    self._order(key, fan)
        return _CHECK_SECONDS

    @staticmethod
    def _is_behind(fan: _Fan) -> bool:
        """Whether the subscription brings what was read already, for long enough to begin anew."""
        if fan.read.kind is not Kind.AFTER or fan.head == END:
            return False
        lags = max(fan.brought, fan.ordered.number if fan.ordered.kind is Kind.AFTER else -1) < fan.read.number
        fan.behind = fan.behind + 1 if lags else 0
        return fan.behind >= _BEHIND_CHECKS or (fan.refused and lags)
