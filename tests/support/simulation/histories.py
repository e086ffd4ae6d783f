"""Plans, runs and shortens histories. A plan is data, so one that failed can be cut down and run again."""

from __future__ import annotations

import gc
import json
import os
import pickle
import random
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from connectors.spool.ledger.records import decode
from connectors.spool.ledger.segment_log import SegmentEntry
from connectors.spool.ledger.state import LedgerState
from connectors.spool.segments.segment import SegmentReader
from connectors.spool.store import open_store
from connectors.spool.store.base import Holder
from connectors.spool.store.local import LocalStore
from connectors.spool.store.object_client import ObjectClient
from connectors.testing.history import judge
from tests.support.ledger_model import LedgerModel
from tests.support.simulation.primitives import drop_locks, scheduler, use
from tests.support.simulation.scheduler import HistoryEndlessError, Process, Scheduler, Task
from tests.support.simulation.service import Service
from tests.support.simulation.storage import Bucket, SteppedDisk
from tests.support.simulation.world import World

_BUCKET_URL = "s3://simulated/spool"
_MOST_STEPS = 400_000
_FAULTS_UNTIL = 20.0
_QUIET_SECONDS = 240.0
_AFTER_SECONDS = 12.0
"""After all rows have come: a copy of an acked message comes within this time."""
_CLOSED_NAME_BYTES = 100

KINDS = (
    "kill driver",
    "kill driver in a step",
    "kill fetcher",
    "kill fetcher in a step",
    "kill machine",
    "pause driver",
    "pause fetcher",
    "second driver",
    "driver takes over",
    "clock of a driver",
    "troubled store",
)


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is done at a time to a process or to the store; `size` says for how long, or at which step."""

    at: float
    kind: str
    size: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What a history is made of. The seed decides the rest: every choice of the scheduler and of the network.

    Attributes:
        store: ``bucket`` or ``folder``.
        publishes: how many messages are published, each at a time.
        trouble: of `Bucket`; lost_acks, copies: of `Service`; preemption: of `Scheduler`.
    """

    seed: int
    store: str
    ordered: bool
    fetchers: int
    publishes: tuple[tuple[float, int], ...]
    faults: tuple[Fault, ...]
    preemption: float
    trouble: float
    lost_acks: float
    copies: float

    @classmethod
    def of_seed(cls, seed: int) -> Plan:
        """Return the plan that a seed stands for."""
        chance = random.Random(f"plan {seed}")
        times = sorted(chance.uniform(0.0, _FAULTS_UNTIL) for _ in range(chance.randint(2, 8)))
        ordered = chance.random() < 0.25
        faults = [
            Fault(chance.uniform(0.2, _FAULTS_UNTIL), chance.choice(KINDS), chance.random())
            for _ in range(chance.randint(0, 6))
        ]
        return cls(
            seed,
            chance.choice(("bucket", "folder")),
            ordered,
            1 if ordered else chance.randint(1, 2),
            tuple((round(at, 3), chance.randint(1, 12)) for at in times),
            tuple(sorted(faults, key=lambda fault: fault.at)),
            chance.choice((0.05, 0.3, 1.0)),
            chance.choice((0.0, 0.02, 0.1)),
            chance.choice((0.0, 0.1, 0.5)),
            chance.choice((0.0, 0.02, 0.2)),
        )

    @classmethod
    def of_json(cls, text: str) -> Plan:
        """Return the plan that `to_json` wrote."""
        value = json.loads(text)
        faults = tuple(Fault(**fault) for fault in value["faults"])
        return cls(**{**value, "publishes": tuple(map(tuple, value["publishes"])), "faults": faults})

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass
class Outcome:
    """How a history ended: what is wrong with it, and its events."""

    plan: Plan
    wrong: list[str] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0


class LedgerWatch:
    """Holds each record of the ledger, when it is put, against the model of what a ledger must do."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._model = LedgerModel()
        self._state: LedgerState | None = None
        self._last = (0, -1)
        self._seen: set[tuple[int, int]] = set()
        self._segments: dict[str, int] = {}

    def written(self, name: str, data: bytes) -> None:
        """Note a file that has just got its name."""
        folder, _, base = name.rpartition("/")
        try:
            if folder.startswith("inbox/") and base.endswith(".arrow") and len(data) > _CLOSED_NAME_BYTES:
                self._segment(name, folder.removeprefix("inbox/"), int(base.removesuffix(".arrow")))
            elif folder.startswith("ledger/"):
                self._record((int(folder.removeprefix("ledger/")), int(base)), data)
        except AssertionError as error:
            self._world.wrong.append(f"ledger: {error}")

    def _segment(self, name: str, fetcher: str, number: int) -> None:
        present = self._segments.get(fetcher, 0)
        if number < present:
            return  # a late copy of a request
        assert number == present, f"segment {name} follows number {present - 1}"
        self._segments[fetcher] = number + 1
        reader = SegmentReader(open_store(self._world.root), name)
        ids = [text for _, rows in reader.batches(0, reader.info.rows) for text in rows.column("id").to_pylist()]
        self._model.publish(fetcher, ids)

    def _record(self, place: tuple[int, int], data: bytes) -> None:
        record = decode(data, str(place))
        if place in self._seen or record["kind"] == "seal":
            return  # a late copy of a request, or what fences an older writer
        assert place > self._last, "an older writer put a record after a newer one had begun"
        self._seen.add(place)
        self._last = place
        if record["kind"] == "snapshot":
            # The list of segments is in files of its own; a start that reads another one shows in what it serves.
            before = self._state or LedgerState(record["spool"])
            self._state = LedgerState.from_snapshot(record, before.segments)
        else:
            assert self._state is not None, "a ledger begins with a record that is no snapshot"
            if "admit" in record:
                record["admit"] = [SegmentEntry.from_json(value) for value in record["admit"]]
            self._state = self._state.apply(record)
        if "free" in record:
            assert record["free"][0] <= self._state.runs_through, "rows were freed whose ids are in no durable run"
        if "commit" in record:
            assert record["commit"] in self._world.asked, "a commit was recorded that nobody asked for"
            self._model.commit(record["commit"])
        self._model.observe(self._state)


class _WatchedDisk(SteppedDisk):
    """Tells the watch of each file that gets its name."""

    def __init__(self, root: Path, watch: LedgerWatch) -> None:
        self._root, self._watch = root, watch

    def link(self, source: str, source_folder: int, name: str, folder: int) -> None:
        super().link(source, source_folder, name, folder)
        path = Path(f"/proc/self/fd/{folder}").readlink() / name
        current, scheduler().current = scheduler().current, None
        try:
            self._watch.written(str(path.relative_to(self._root)), path.read_bytes())
        finally:
            scheduler().current = current


def run(plan: Plan) -> Outcome:
    """Run a history; the process is one in which `install` was called."""
    gc.disable()
    outcome = Outcome(plan)
    here = Scheduler(f"history {plan.seed}", plan.preemption)
    use(here)
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="history-", dir=shared if shared.is_dir() else None)).resolve()

    def note(event: str, **values: Any) -> None:
        outcome.events.append({"event": event, "time": round(here.now, 4), **values})

    service = Service(note, plan.ordered, 3, plan.lost_acks, plan.copies)
    world = World(_BUCKET_URL if plan.store == "bucket" else f"{folder}/spool", service, note, plan.fetchers)
    watch, bucket = LedgerWatch(world), Bucket()
    bucket.written, bucket.trouble = watch.written, plan.trouble
    ObjectClient.connect = staticmethod(bucket.connect)
    LocalStore.disk = _WatchedDisk(folder / "spool", watch)
    Holder.this_machine = staticmethod(lambda: "observer" if here.current is None else here.current.process.name)
    here.failed = lambda task, error: _failed(world, task, error)
    here.killed = lambda process: drop_locks(process.locks)
    outside = Process("world")
    here.spawn(outside, lambda: _direct(plan, world, bucket), "plan")
    end: list[float] = []

    def ended() -> bool:
        if not end and here.now > _FAULTS_UNTIL and not here.random.random() < 0.9 and world.drained:
            end.append(here.now + _AFTER_SECONDS)
        return bool(world.wrong) or (bool(end) and here.now > end[0]) or here.now > _FAULTS_UNTIL + _QUIET_SECONDS

    try:
        here.run(ended, _MOST_STEPS)
    except HistoryEndlessError as error:
        world.wrong.append(f"endless: {error}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        bucket.objects.clear()
    note("end", drained=True)
    verdict = judge(outcome.events, ordered=plan.ordered)
    outcome.wrong = world.wrong + ([str(verdict)] if verdict.wrong else [])
    outcome.steps = here.steps
    return outcome


def run_apart(plans: Iterable[Plan], processes: int = 1) -> Iterator[Outcome]:
    """Run histories, in order, each in a child of this process: nothing of an earlier one is left or comes later."""
    running: deque[tuple[int, int]] = deque()
    for plan in plans:
        running.append(_begin(plan))
        if len(running) == processes:
            yield _end(*running.popleft())
    while running:
        yield _end(*running.popleft())


def _begin(plan: Plan) -> tuple[int, int]:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(run(plan), pipe)
        finally:
            # Threads of killed processes are still inside of their calls; nothing of them may run any more.
            os._exit(0)
    os.close(writing)
    return child, reading


def _end(child: int, reading: int) -> Outcome:
    with os.fdopen(reading, "rb") as pipe:
        outcome: Outcome = pickle.load(pipe)
    os.waitpid(child, 0)
    return outcome


def _failed(world: World, task: Task, error: BaseException) -> None:
    if task.process.alive:
        world.wrong.append(f"the thread {task.name} of {task.process.name} ended with {error!r}")


def _direct(plan: Plan, world: World, bucket: Bucket) -> None:
    """Do what the plan says, each at its time; then make sure that the query can end."""
    here = scheduler()
    world.start_driver()
    acts: list[tuple[float, Callable[[], None]]] = [
        *((at, lambda count=count: world.service.publish(count)) for at, count in plan.publishes),
        *((fault.at, lambda fault=fault: _inflict(fault, world, bucket)) for fault in plan.faults),
    ]
    for at, act in sorted(acts, key=lambda pair: pair[0]):
        here.sleep(at - here.now)
        act()
    here.sleep(_FAULTS_UNTIL - here.now)
    _calm(bucket)
    bucket.trouble = world.service.lost_acks = world.service.copies = here.pauses = 0.0
    for process in (*world.drivers, *world.fetchers):
        process.kill_in = None
    while True:
        if not any(process.alive for process in world.drivers):
            world.start_driver()
        here.sleep(1.0)


def _inflict(fault: Fault, world: World, bucket: Bucket) -> None:
    here = scheduler()
    world.note("fault", kind=fault.kind, size=fault.size)
    if fault.kind == "troubled store":
        bucket.worse, LocalStore.disk.full = 0.7, 0.3  # type: ignore[attr-defined]
        here.at(here.now + fault.size * 10.0, lambda: _calm(bucket))
    elif fault.kind in {"second driver", "driver takes over"}:
        world.start_driver(take_over=fault.kind == "driver takes over")
    else:
        among = [process for process in (world.fetchers if "fetcher" in fault.kind else world.drivers) if process.alive]
        if among:
            _strike(fault, here.random.choice(among), world)
        if fault.kind.startswith("kill") and not any(process.alive for process in world.drivers):
            # Whoever watches over the query starts it again, some time later.
            here.at(here.now + fault.size * 3.0, lambda: world.start_driver() and None)


def _strike(fault: Fault, process: Process, world: World) -> None:
    here = scheduler()
    action = fault.kind.replace("driver", "").replace("fetcher", "").strip()
    if action == "kill machine":
        for fetcher in world.fetchers:
            if fetcher.parent is process:
                here.kill(fetcher)
    if action in {"kill", "kill machine"}:
        here.kill(process)
    elif action == "pause":
        process.paused_until = here.now + fault.size * 60.0
    elif action == "clock of a":
        process.clock = (fault.size - 0.5) * 7200.0
    else:
        process.kill_in = int(fault.size * 300) + 1


def _calm(bucket: Bucket) -> None:
    bucket.worse = LocalStore.disk.full = 0.0  # type: ignore[attr-defined]


def shortened(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """Return the smallest plan that still fails, by leaving out one fault or publish at a time."""
    changed = True
    while changed:
        changed = False
        for smaller in _smaller(plan):
            if fails(smaller):
                plan, changed = smaller, True
                break
    return plan


def _smaller(plan: Plan) -> Iterable[Plan]:
    for number in range(len(plan.faults)):
        yield replace(plan, faults=plan.faults[:number] + plan.faults[number + 1 :])
    for number in range(len(plan.publishes)):
        if len(plan.publishes) > 1:
            yield replace(plan, publishes=plan.publishes[:number] + plan.publishes[number + 1 :])
    for name in ("trouble", "lost_acks", "copies"):
        if getattr(plan, name):
            yield replace(plan, **{name: 0.0})
    if plan.fetchers > 1:
        yield replace(plan, fetchers=1)


__all__ = ["Fault", "Outcome", "Plan", "run_apart", "shortened"]
