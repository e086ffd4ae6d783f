"""What the source process knows of streams and shards, kept fresh in the background: Spark asks every 10 ms."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from connectors.core.errors import ConnectorError
from connectors.core.retry import Backoff, RetryPolicy, is_transient
from connectors.kinesis.cached_ranges import Piece, ShardKey
from connectors.kinesis.client.client import KinesisClient
from connectors.kinesis.client.errors import EXPIRED_ITERATOR
from connectors.kinesis.client.shared import patiently
from connectors.kinesis.offsets import Position, ShardState, Streams
from connectors.kinesis.options.client import client_options
from connectors.kinesis.shards import Listing, Seen, newest
from connectors.kinesis.source.iterators import ShardLook
from connectors.kinesis.source.latest_record import ShardTail
from connectors.kinesis.source.scheduler import Job, Jobs

if TYPE_CHECKING:
    from connectors.kinesis.client.responses import Page
    from connectors.kinesis.options.source import KinesisReadOptions

__all__ = ["Followed", "ShardKey", "ShardWatch"]

T = TypeVar("T")
_THREADS: Final = 16
_SHARE_OF_A_CORE: Final = 0.25
"""For the looks at shards; the rest of half a core is for listing, planning, and what Python needs beside."""
_BUSY: Final = 4
"""While a batch reads a shard, its tasks make three of four calls."""
_REST_SECONDS: Final = 1.0
_SLICE_SECONDS: Final = 0.1
_SMOOTHING: Final = 0.1


@dataclass(eq=False)
class Followed:
    """A shard that is followed."""

    tail: ShardTail
    backoff: Backoff
    job: Job = field(init=False)
    seen: Seen = field(default_factory=Seen)
    pushed: Seen = field(default_factory=Seen)
    exact: bool = False
    wanted: float = -1.0
    began: float | None = None
    fresh_as_of: float = -1.0
    quiet_rounds: int = 0
    spent: float = 0.0


class ShardWatch:
    """Lists streams and follows shards.

    Args:
        options: the parsed options.
    """

    def __init__(self, options: KinesisReadOptions) -> None:
        self._options = options
        self.client = KinesisClient(client_options(options), _THREADS)
        self._changed = threading.Condition()
        self._jobs = Jobs(_THREADS, self._fail)
        self._listings: dict[str, Listing] = {}
        self._listing_job = Job(self._list_again)
        self._followed: dict[ShardKey, Followed] = {}
        self._busy: frozenset[ShardKey] = frozenset()
        self._allowed: dict[ShardKey, float] = {}
        self._error: BaseException | None = None
        self._round_seconds = 0.0
        self.version = 0
        """Grows with everything that is learnt."""

    # Asking

    def ask(self, *questions: Callable[[], T]) -> list[T]:
        """The answers to questions that call the service; each is asked again as ``numRetries`` says.

        Raises:
            ConnectorError: one failed.
        """
        return self._jobs.all_of([self._patient(question) for question in questions])

    def _patient(self, question: Callable[[], T]) -> Callable[[], T]:
        return lambda: patiently(question, self._options)

    def listings(self, *, fresh: bool) -> list[Listing]:
        """The streams and their shards.

        Args:
            fresh: as they are now; else as they were at the last look, which is at most ``shardFetchInterval`` ago.

        Raises:
            ConnectorError: the service cannot be asked, or an earlier question in the background has failed.
        """
        with self._changed:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self._listings and not fresh:
                return list(self._listings.values())
        first = not self._listings
        self._keep(self.ask(*(self._question(stream) for stream in self._options.streams)))
        if first:
            self._jobs.add(self._listing_job, self._options.shard_fetch_interval)
        return list(self._listings.values())

    def known(self) -> list[Listing]:
        """The streams as they were at the last look; what has failed since is told by `listings`.

        Raises:
            ConnectorError: there was none, and the service cannot be asked.
        """
        with self._changed:
            found = list(self._listings.values())
        return found or self.listings(fresh=True)

    def _question(self, stream: str) -> Callable[[], Listing]:
        return lambda: self.client.listing(stream, self._options.max_shards_per_describe)

    def _keep(self, listings: Collection[Listing]) -> None:
        with self._changed:
            self._listings = {each.stream: each for each in listings}
            self.version += 1

    def _list_again(self) -> float:
        """The job that lists in the background."""
        self._keep([self._patient(self._question(stream))() for stream in self._options.streams])
        return self._options.shard_fetch_interval

    def _fail(self, error: BaseException) -> None:
        """Keep an error for the next call."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    # Following

    def follow(self, shards: Mapping[ShardKey, ShardState], listings: Collection[Listing]) -> None:
        """Follow just these shards, each from how far it has been read.

        Args:
            shards: the states; only looked at for shards that were not followed before.
            listings: their streams.
        """
        if shards.keys() == self._followed.keys():
            return
        streams = {each.arn: each for each in listings}
        for key in self._followed.keys() - shards.keys():
            self._jobs.drop(self._followed.pop(key).job)
        for key in shards.keys() - self._followed.keys():
            stream = streams[key[0]]
            tail = ShardTail(
                self.client,
                stream.stream,
                key[1],
                shards[key],
                window_ms=round(self._options.probe_window * 1000),
                oldest_ms=stream.at_ms - stream.retention_ms,
            )
            policy = RetryPolicy(cap_seconds=self._options.max_retry_interval)
            followed = Followed(tail, Backoff(policy))
            followed.job = Job(self._step_of(key, followed))
            self._followed[key] = followed
            self._jobs.add(followed.job)

    def follows(self, key: ShardKey) -> bool:
        """Whether a shard is followed."""
        return key in self._followed

    def seen(self, key: ShardKey) -> Seen:
        """What is known of the newest records of a shard that is followed."""
        return self._followed[key].seen

    def refresh(self, *, exact: bool) -> None:
        """Wait until every shard that is followed has been looked at anew.

        Args:
            exact: up to the newest record, as it is now.

        Raises:
            ConnectorError: a look failed, or the process that asked is gone.
        """
        asked = time.monotonic()
        waiting = list(self._followed.values())
        for followed in waiting:
            followed.exact, followed.wanted = exact, asked
            self._jobs.hurry(followed.job)
        with self._changed:
            while not all(followed.seen.ended or followed.fresh_as_of >= asked for followed in waiting):
                if self._error is not None:
                    error, self._error = self._error, None
                    raise error
                self._changed.wait(_SLICE_SECONDS)
                self._jobs.check_parent()

    def busy(self, shards: Collection[ShardKey]) -> None:
        """Let the tasks of a batch have most of the calls to these shards, until the next call."""
        before, self._busy = self._busy, frozenset()
        for key in shards:
            self._spend(key, 1)  # the first call of the task
        self._busy = frozenset(shards)
        if self._rarest() > self._options.min_fetch_period * _BUSY:
            return  # so many shards that looks are rarer than those calls: they keep their pace
        for key in (before - self._busy) & self._followed.keys():
            self._jobs.hurry(self._followed[key].job)

    def look(self, key: ShardKey, stream: str) -> ShardLook:
        """A shard, to be looked at beside its tail, at the same pace.

        Args:
            key: the shard.
            stream: name or ARN of its stream, to call the service with.
        """

        def in_turn(call: Callable[[], Page]) -> Page:
            return patiently(lambda: self._in_turn(key, call), self._options)

        return ShardLook(self.client, stream, key[1], in_turn)

    def look_at_all(self, *questions: Callable[[], T]) -> list[T]:
        """The answers to questions that ask by `look`, of which each call is made again as ``numRetries`` says.

        Raises:
            ConnectorError: one failed.
        """
        return self._jobs.all_of(questions)

    def _in_turn(self, key: ShardKey, call: Callable[[], T]) -> T:
        """The answer to a call that reads from a shard, when one may be made again."""
        if (wait := self._allowed.get(key, 0.0) - time.monotonic()) > 0:
            time.sleep(wait)
        self._spend(key, 1)
        return call()

    def _spend(self, key: ShardKey, calls: int) -> None:
        """Note calls to a shard: so long this process makes none."""
        begin = max(time.monotonic(), self._allowed.get(key, 0.0))
        self._allowed[key] = begin + calls * self._period(key)

    def _step_of(self, key: ShardKey, followed: Followed) -> Callable[[], float | None]:
        def step() -> float | None:
            began, spent = time.monotonic(), time.thread_time()
            if followed.seen.ended:
                return None
            if followed.fresh_as_of >= followed.wanted and self._rests(key, followed):
                return _REST_SECONDS
            if (wait := self._allowed.get(key, 0.0) - began) > 0:
                return wait
            if followed.began is None:
                followed.began = began
                followed.tail.skip_to(followed.pushed)
            exact = followed.exact
            try:
                calls = followed.tail.step(exact=exact)
            except ConnectorError as error:
                self._spend(key, 1)
                return self._after_failure(followed, error)
            followed.backoff.reset()
            self._spend(key, calls)
            self._count(followed, time.thread_time() - spent)
            self._note(followed, exact=exact)
            if followed.tail.seen.ended:
                self._jobs.hurry(self._listing_job)  # its children are there now
            return self._pause(followed)

        return step

    def _count(self, followed: Followed, seconds: float) -> None:
        """Note the processor time of a step: a round of a busy shard takes several."""
        followed.spent += seconds
        if followed.tail.settled:
            self._round_seconds += _SMOOTHING * (followed.spent - self._round_seconds)
            followed.spent = 0.0

    def _after_failure(self, followed: Followed, error: ConnectorError) -> float:
        delay = followed.backoff.next_delay_seconds(error)
        if error.code == EXPIRED_ITERATOR and followed.backoff.failures == 1:
            return 0.0  # it lives five minutes, and the next step has a new one: no failure that ``numRetries`` counts
        if not is_transient(error) or followed.backoff.failures > self._options.num_retries:
            self._fail(error)
            followed.backoff.reset()
        return delay

    def _note(self, followed: Followed, *, exact: bool) -> None:
        """Show what a step has found, and whether that was all."""
        with self._changed:
            seen = newest(followed.tail.seen, followed.pushed)
            self.version += followed.seen != seen
            followed.seen = seen
            if followed.tail.settled:
                followed.quiet_rounds = 0 if followed.tail.found_any else followed.quiet_rounds + 1
                if exact or not followed.exact:
                    followed.fresh_as_of = followed.began or 0.0
                    followed.exact = False
                followed.began = None
            self._changed.notify_all()

    def _rests(self, key: ShardKey, followed: Followed) -> bool:  # noqa: ARG002 - for those who are told of records
        """Whether there is no need to look at a shard, because its records are told."""
        return False

    def _push(self, key: ShardKey, seen: Seen) -> None:
        """Take what was learnt of a shard without looking."""
        with self._changed:
            followed = self._followed.get(key)
            if followed is None:
                return
            followed.pushed = seen
            found = newest(followed.tail.seen, seen)
            if found != followed.seen:
                followed.seen = found
                self.version += 1
            self._changed.notify_all()
        if seen.ended:
            self._jobs.hurry(self._listing_job)  # its children are there now

    # For those who are told of records

    def begins_anew(self) -> None:
        """The checkpoint is a new one."""

    def bounded(self) -> None:
        """This run has an end."""

    def pieces(self, key: ShardKey, created_ms: int, begin: Position, end: Position) -> tuple[Piece, ...]:  # noqa: ARG002
        """What is there of a range without asking the service."""
        return ()

    def forget(self, read: Streams) -> None:
        """Up to here nothing is needed any more."""

    def _period(self, key: ShardKey) -> float:
        """Seconds between two calls to a shard by this process."""
        return self._options.min_fetch_period * (_BUSY if key in self._busy else 1)

    def _pause(self, followed: Followed) -> float:
        """Seconds between two rounds: more when nothing comes, and when there are many shards to look at."""
        if not followed.tail.settled:
            return 0.0
        quiet = self._options.min_fetch_period * 2.0 ** min(followed.quiet_rounds, 30)
        return max(self._rarest(), min(quiet, self._options.idle_fetch_period))

    def _rarest(self) -> float:
        """Seconds between two rounds of a shard, so that the looks at all of them take their share of a core."""
        return len(self._followed) * self._round_seconds / _SHARE_OF_A_CORE

    def stop(self) -> None:
        """End the threads."""
        self._jobs.stop()
