"""Which fetchers run beside executors, as files in the spool: those that the driver wants, and those that run.

    fetchers/<job>.wanted             the driver writes it again every few seconds: which round of each fetcher it wants
    fetchers/<job>.<number>.<round>   a fetcher makes it, if it is the first one, and writes it again every few seconds

A file that does not change has lost its writer. No clocks of two machines are compared: the reader of a file measures
how long it has seen no change. A lost fetcher is wanted in the next round, so the lost one ends if it still lives.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from connectors.core.errors import ConnectorError, error_from_json
from connectors.spool.ledger.records import SIDE_FORMAT, decode, encode
from connectors.spool.segments.shapes import optional
from connectors.spool.store.base import Holder, Store

_log = logging.getLogger(__name__)

PLACEMENT_FOLDER: Final = "fetchers"
PLACEMENT_NAMES: Final = r"fetchers/[0-9a-f]{16}\.(?:wanted|[0-9]+\.[0-9]+)"
"""What matches the names of these files."""
_WANTED: Final = re.compile(r"([0-9a-f]{16})\.wanted")
_PLACE: Final = re.compile(r"([0-9a-f]{16})\.([0-9]{1,6})\.([0-9]{1,9})")
_JOB_BYTES: Final = 8
_SHORTEST_BEAT: Final = 2.0
_SHORTEST_LOST: Final = 12.0
_BEATS_LOST: Final = 3
_DRIVER_BEATS_LOST: Final = 5
_FORGET_SECONDS: Final = 600.0
_HOLDER_SHAPE: Final = {"machine": str, "host": str, **dict.fromkeys(("pid", "start", "jvm", "jvm_start"), int)}
_ERROR_SHAPE: Final = dict.fromkeys(("kind", "code", "what", "where", "action"), str)
_SHAPE: Final = {
    "kind": str,
    "beat": int,
    "holder": _HOLDER_SHAPE,
    "executor": str,
    "folders": [str],
    "healthy": bool,
    "ended": bool,
    "readerless": bool,
    "error": optional(_ERROR_SHAPE),
}
_WANTED_SHAPE: Final = {"kind": str, "beat": int, "rounds": {"*": int}}


def beat_seconds(store: Store) -> float:
    """Return how often each of the files is written: on an object store each time costs a request."""
    return max(_SHORTEST_BEAT, 2 * store.look_seconds)


def lost_seconds(store: Store) -> float:
    """Return after how long without a change a fetcher counts as lost, unless its machine knows better."""
    return max(_SHORTEST_LOST, _BEATS_LOST * beat_seconds(store))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a fetcher runs.

    Attributes:
        number: of the fetcher, from 0; `round` counts how often it was started.
        holder: its process, with host and pid, and the JVM of its executor.
        executor: the id that Spark gives the executor; ``driver`` in local mode; empty if it is not known.
        folders: its folders in the inbox, one for each source.
        healthy: all its streams are open, and nothing is wrong.
        ended: it has ended by itself, with `error` or because there is no reader (`readerless`).
    """

    number: int
    round: int
    holder: Holder
    executor: str = ""
    folders: tuple[str, ...] = ()
    healthy: bool = False
    ended: bool = False
    readerless: bool = False
    error: ConnectorError | None = None

    def __str__(self) -> str:
        executor = f"executor {self.executor}, " if self.executor else ""
        return f"{self.number} on {self.holder.host} ({executor}pid {self.holder.pid})"

    @property
    def is_gone(self) -> bool:
        """Whether this machine can see that its process has ended."""
        return self.holder.is_here and not self.holder.lives

    def to_bytes(self, beat: int) -> bytes:
        error = None if self.error is None else self.error.to_json()
        value = {name: getattr(self, name) for name in ("executor", "healthy", "ended", "readerless")}
        content = {"beat": beat, "holder": asdict(self.holder), "folders": list(self.folders), "error": error, **value}
        return encode({"v": SIDE_FORMAT, "kind": "fetcher", **content})

    @classmethod
    def of_bytes(cls, data: bytes, number: int, round_: int, where: str) -> Place:
        """Return what `to_bytes` wrote. `SpoolDamagedError`: it is something else."""
        value = decode(data, where, "The place of a fetcher", _SHAPE)
        return cls(
            number,
            round_,
            Holder(**{key: value["holder"][key] for key in _HOLDER_SHAPE}),
            value["executor"],
            tuple(value["folders"]),
            value["healthy"],
            value["ended"],
            value["readerless"],
            None if value["error"] is None else error_from_json(value["error"]),
        )


class Placement:
    """The driver's side: which fetchers are wanted, and which of them live.

    One thread looks; `announce` may be called by another one.
    """

    def __init__(self, store: Store, fetchers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.job = secrets.token_hex(_JOB_BYTES)
        self.store = store
        self._clock = clock
        self._rounds = dict.fromkeys(range(fetchers), 0)
        self._lock = threading.Lock()
        self._beat = 0
        self._ended = False
        self._seen: dict[str, tuple[bytes, float]] = {}

    def announce(self) -> None:
        """Write what is wanted. `OSError`, `ConnectorError`: the store does not answer."""
        with self._lock:
            self._beat += 1
            rounds = {} if self._ended else {str(number): round_ for number, round_ in self._rounds.items()}
            content = {"v": SIDE_FORMAT, "kind": "wanted", "beat": self._beat, "rounds": rounds}
            self.store.overwrite(f"{PLACEMENT_FOLDER}/{self.job}.wanted", encode(content))

    def look(self) -> list[Place]:
        """Return the places of this job's fetchers that are wanted, also of lost ones."""
        now = self._clock()
        places, seen, gone = [], {}, set(self._seen)
        for name in self.store.names(PLACEMENT_FOLDER):
            match = _PLACE.fullmatch(name)
            if match is None or match[1] != self.job:
                continue
            number, round_ = int(match[2]), int(match[3])
            try:
                data = self.store.read(f"{PLACEMENT_FOLDER}/{name}")
                place = Place.of_bytes(data, number, round_, f"{self.store.root}/{PLACEMENT_FOLDER}/{name}")
            except FileNotFoundError:
                continue
            except ConnectorError as error:
                _log.warning("a fetcher is restarted: %s", error)
                gone.add(name)
                continue
            gone.discard(name)
            before = self._seen.get(name)
            seen[name] = before if before is not None and before[0] == data else (data, now)
            if self._rounds.get(number) == round_:
                places.append(place)
        self._seen = seen
        # A fetcher whose file has gone has ended in good order.
        for _, ended, of_round in (name.split(".") for name in gone):
            self._begin_next(int(ended), int(of_round))
        return sorted(places, key=lambda place: place.number)

    def _begin_next(self, number: int, round_: int) -> None:
        with self._lock:
            if self._rounds[number] == round_:
                self._rounds[number] += 1

    def is_lost(self, place: Place) -> bool:
        """Return whether a place that `look` returned has no process any more, as far as can be known."""
        at = self._seen.get(self._name(place), (b"", self._clock()))[1]
        return place.ended or place.is_gone or self._clock() - at > lost_seconds(self.store)

    def missing(self, places: Sequence[Place]) -> list[tuple[int, int]]:
        """Return number and round of each wanted fetcher that does not live; a lost one is wanted in the next round."""
        lost = [place for place in places if self.is_lost(place)]
        for place in lost:
            self._begin_next(place.number, place.round)
            self.store.delete(f"{PLACEMENT_FOLDER}/{self._name(place)}")
            self._seen.pop(self._name(place), None)
        living = {place.number for place in places} - {place.number for place in lost}
        return [(number, round_) for number, round_ in self._rounds.items() if number not in living]

    def end(self, patience: float, pause: float = 0.2) -> None:
        """Want none any more, wait until all have ended or `patience` is over, and remove the files."""
        until = self._clock() + patience
        self._ended = True
        self.announce()
        while self._clock() < until and not all(map(self.is_lost, self.look())):
            time.sleep(pause)
        for name in self.store.names(PLACEMENT_FOLDER):
            if name.startswith(f"{self.job}."):
                self.store.delete(f"{PLACEMENT_FOLDER}/{name}")

    def forget_others(self) -> None:
        """Remove the files of jobs whose drivers wrote nothing for ten minutes, by the store's clock."""
        times = self.store.written(PLACEMENT_FOLDER)
        newest: dict[str, float] = {}
        for name, at in times.items():
            job = name.partition(".")[0]
            newest[job] = max(at, newest.get(job, at))
        now = newest.get(self.job)
        for name in times:
            job = name.partition(".")[0]
            is_ours = _WANTED.fullmatch(name) or _PLACE.fullmatch(name)
            if now is not None and is_ours and now - newest[job] > _FORGET_SECONDS:
                self.store.delete(f"{PLACEMENT_FOLDER}/{name}")

    def _name(self, place: Place) -> str:
        return f"{self.job}.{place.number}.{place.round}"


class Claim:
    """A fetcher's side: its place, which it takes, keeps and leaves."""

    def __init__(self, store: Store, job: str, place: Place, clock: Callable[[], float] = time.monotonic) -> None:
        self.place = place
        self._store = store
        self._job = job
        self._name = f"{PLACEMENT_FOLDER}/{job}.{place.number}.{place.round}"
        self._clock = clock
        self._beat = 0
        self._lock = threading.Lock()
        self._has_left = False
        self._wanted: tuple[bytes, float] = (b"", clock())

    def neighbors(self) -> tuple[int, int]:
        """Return how many other fetchers of the job live at the same executor, and on the same machine."""
        places, own = places_now(self._store, self._job), self.place.holder
        here = [place for place in places if place.holder.machine == own.machine and not place.is_gone]
        return sum(place.holder.jvm == own.jvm for place in here), len(here)

    def take(self) -> bool:
        """Take the place; False if another process was faster."""
        return self._store.create(self._name, self.place.to_bytes(0))

    def keep(self, **changes: Any) -> None:
        """Write the place again, with what has changed. `OSError`, `ConnectorError`: the store does not answer."""
        with self._lock:
            if self._has_left:
                return
            self._beat += 1
            self.place = replace(self.place, **changes)
            self._store.overwrite(self._name, self.place.to_bytes(self._beat))

    def leave(self) -> None:
        """Remove the place: the process ends in good order."""
        with self._lock:
            self._has_left = True
            self._store.delete(self._name)

    def is_wanted(self) -> bool:
        """Return whether the driver lives and wants this fetcher. `OSError`: the store does not answer."""
        now = self._clock()
        try:
            data = self._store.read(f"{PLACEMENT_FOLDER}/{self._job}.wanted")
        except FileNotFoundError:
            return False
        if data != self._wanted[0]:
            self._wanted = data, now
        patience = _DRIVER_BEATS_LOST * lost_seconds(self._store)
        rounds: Mapping[str, int] = decode(data, self._name, "The list of wanted fetchers", _WANTED_SHAPE)["rounds"]
        return rounds.get(str(self.place.number)) == self.place.round and now - self._wanted[1] <= patience


def places_now(store: Store, job: str | None = None) -> list[Place]:
    """Return the places of fetchers that were written lately, by the store's clock; of one job, or of all.

    What is damaged is left out.
    """
    times = store.written(PLACEMENT_FOLDER)
    newest = max(times.values(), default=0.0)
    places = []
    for name, at in sorted(times.items()):
        match = _PLACE.fullmatch(name)
        if match is None or job not in {None, match[1]} or newest - at > lost_seconds(store):
            continue
        try:
            place = Place.of_bytes(store.read(f"{PLACEMENT_FOLDER}/{name}"), int(match[2]), int(match[3]), name)
        except (FileNotFoundError, ConnectorError):
            continue
        if not place.ended:
            places.append(place)
    return places
