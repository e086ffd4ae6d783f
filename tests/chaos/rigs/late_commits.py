"""Requests of a transaction that reach the broker late: each row of an exactly-once write must be in the topic once.

A task of the sink, without Spark, writes one batch after the other through a proxy. Of the second batch one request is
held, and its client goes on as a client does: it sends the request again, gives up, or is killed. The held request
then reaches the broker before the next attempt, within it, after its commit, or within the third one.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from confluent_kafka import KafkaException, Producer

from tests.support.kafka_proxy import Hold, LateRequests, Request, Trigger
from tests.support.kafka_rig import PATIENCE, KafkaRig
from tests.support.kafka_task import TaskPlan, exactly_once, run_commit
from tests.support.planted_bugs import ROOT

ROWS: Final = 20
PARTITIONS: Final = 2
MOMENTS: Final = ("before", "open", "committed", "two_later")
WAYS: Final = ("resent", "worker", "broker", "given_up")
STEPS: Final = (
    Request.INIT_PRODUCER,
    Request.ADD_PARTITIONS,
    Request.PRODUCE,
    Request.ADD_OFFSETS,
    Request.OFFSET_COMMIT,
)
"""Once the broker has answered one of these of a later attempt, the held request may arrive."""

_WRITTEN: Final = frozenset({"written", "skipped"})
_BATCHES: Final = 5
_HELD_BATCH: Final = 1
_MOST_ATTEMPTS: Final = 8
_ALL: Final = 1_000_000
_OUTAGE: Final = "5s"
_PAUSE_SECONDS: Final = 0.3
_LOOKS: Final = 5
_TIMEOUT_SLACK_SECONDS: Final = 2.0
_REQUEST_MS: Final = "10000"
"""So long a client waits for a response; while it waits, no other limit ends some of its calls."""
_HUNG_SECONDS: Final = 240.0
"""A task that gives up needs some calls, each with the limit of a request."""
_OFFSETS: Final = ("__consumer_offsets", 4)


@dataclass(frozen=True)
class LatePlan:
    """What a trial does; all of it follows from its cell and its seed.

    Attributes:
        request: what is held.
        moment: when it arrives: one of `MOMENTS`, or ``timed_out``, once the broker has ended the transaction.
        way: how its client goes on: the request is sent again (``resent``), held until the task gives up
            (``given_up``), or worker or broker are killed.
        step: of a later attempt, after whose response it arrives, for ``open`` and ``two_later``.
        kills_after: whether the worker is killed as soon as it has arrived there.
        cuts: whether the client's connection is closed; else it waits for a response.
        wait_seconds: before it arrives, for ``before``.
        transaction_ms: the transaction's time limit; 0 for the default.
    """

    request: Request
    moment: str
    way: str
    step: Request
    kills_after: bool
    cuts: bool
    wait_seconds: float
    transaction_ms: int = 0

    @classmethod
    def make(cls, request: Request, moment: str, way: str, seed: int) -> LatePlan:
        """Return the plan of a seed."""
        choose = random.Random(seed)
        cuts = way == "resent" or (way == "given_up" and choose.random() < 0.5)
        step, kills_after, wait = choose.choice(STEPS), choose.random() < 0.3, choose.uniform(0, 1.5)
        return cls(request, moment, way, step, kills_after, cuts, round(wait, 2))


class Worker:
    """A process that runs the tasks of a sink, as Spark's workers do; it starts with its first task, also after a kill.

    Args:
        tree: the code that it runs.
        log: a file for what it writes to standard error.
    """

    def __init__(self, tree: Path = ROOT, log: Path | None = None) -> None:
        self._tree, self._log = tree, log or Path(os.devnull)
        self._process: subprocess.Popen[str] | None = None
        self._runs = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def run(self, plan: TaskPlan) -> str:
        """Run a task; return what `run_task` does, ``killed``, ``hung``, or ``died`` where nobody killed it."""
        with self._runs:
            process = self._process = self._process or self._start()
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(asdict(plan)) + "\n")
                process.stdin.flush()
            answered = bool(select.select([process.stdout], [], [], _HUNG_SECONDS)[0])
            if answered and (line := process.stdout.readline()):
                return str(json.loads(line))
        if not answered:
            self.kill()
            return "hung"
        if self._process is not process:
            return "killed"
        self.kill()
        return "died"

    def _start(self) -> subprocess.Popen[str]:
        with self._log.open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.support.kafka_task"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self._tree,
                env={**os.environ, "PYTHONPATH": str(self._tree)},
            )

    def kill(self) -> None:
        """Kill it, if it runs."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with self._runs, contextlib.suppress(BrokenPipeError), process:
                pass  # close its pipes, once no task waits for them


class View:
    """What a careful consumer has seen of the topic, at several moments.

    Attributes:
        torn: the batches of which it saw some rows and not all.
    """

    def __init__(self, kafka: KafkaRig, topic: str) -> None:
        self._kafka, self._topic = kafka, topic
        self.torn: set[int] = set()

    def look(self) -> Counter[str]:
        """Read all committed rows; a batch counts as torn if it stays so for a second."""
        for number in range(_LOOKS):
            found = self._kafka.read_committed(self._topic, PARTITIONS, is_open=True)
            rows = Counter(message.value().decode() for message in found)
            batches = Counter(int(row.partition("-")[0]) for row in rows)
            torn = {batch for batch, count in batches.items() if count < ROWS}
            if not torn:
                break
            if number < _LOOKS - 1:
                time.sleep(_PAUSE_SECONDS)  # the broker ends a transaction in one partition after the other
        self.torn |= torn
        return rows


class LateTrial:
    """A query with a topic of its own, a request that is late, and the count of what the topic holds.

    Args:
        plan: what to do.
        kafka: the broker that `proxy` leads to.
        proxy: where the sink connects.
        worker: runs the tasks.
        name: of the query; no other has it.
    """

    def __init__(self, plan: LatePlan, kafka: KafkaRig, proxy: LateRequests, worker: Worker, name: str) -> None:
        self._plan, self._kafka, self._proxy, self._worker, self._query = plan, kafka, proxy, worker, name
        self._topic = kafka.topic(PARTITIONS, f"topic-{name}")
        self._view = View(kafka, self._topic)
        self._options = {
            "kafka.bootstrap.servers": proxy.endpoint,
            "topic": self._topic,
            "retryTimeout": _OUTAGE,
        }
        if not plan.transaction_ms:
            self._options["kafka.socket.timeout.ms"] = _REQUEST_MS
        else:  # a request may not take longer than a transaction: the client sees to that
            self._options |= {
                "kafka.transaction.timeout.ms": str(plan.transaction_ms),
                "kafka.delivery.timeout.ms": str(plan.transaction_ms - 100),
            }
        markers = exactly_once({**self._options, "kafka.bootstrap.servers": kafka.broker.endpoint}).markers(name)
        self._markers, self._id = markers, markers.group(0)
        self._attempts: list[str] = []
        self._killed: list[str] = []
        self._faults: list[str] = []
        self._arrived = threading.Event()
        """Set once the request was delivered, and the topic was read after that."""

    def run(self) -> dict[str, Any]:
        """Run it; the outcome for the record."""
        self._write_batch(0)
        hold = self._proxy.hold(self._plan.request, self._id, most=self._most_held, cuts=self._plan.cuts)
        first = self._disturbed_attempt(hold)
        hold.close()
        if not hold.count:
            self._faults.append("nothing was held")
        if self._plan.moment == "before":
            time.sleep(self._plan.wait_seconds)
            self._deliver(hold)
        if is_written := first in _WRITTEN:
            self._finish(_HELD_BATCH)
        trigger: Trigger | None = None
        later = 0
        for batch in range(_HELD_BATCH + is_written, _BATCHES):
            for _ in range(_MOST_ATTEMPTS):
                later += 1
                if trigger is None and later >= self._first_later:
                    trigger = self._proxy.once_answered(self._step, self._id, lambda: self._arrive_within(hold))
                if self._attempt(batch) in _WRITTEN:
                    break
            self._finish(batch)
            if trigger is not None and trigger.fired.is_set() and not self._arrived.wait(PATIENCE):
                self._faults.append("the topic could not be read when the request had arrived")
        if trigger is not None and not trigger.fired.is_set():
            trigger.fired.set()
            self._deliver(hold)
        return self._outcome(hold)

    @property
    def _most_held(self) -> int:
        return 1 if self._plan.way in {"resent", "broker"} else _ALL

    @property
    def _first_later(self) -> float:
        """The number of the later attempt from which on the request may arrive."""
        return {"open": 1, "committed": 1, "two_later": 3}.get(self._plan.moment, float("inf"))

    @property
    def _step(self) -> Request:
        return Request.COMMIT if self._plan.moment == "committed" else self._plan.step

    def _task(self, batch: int) -> TaskPlan:
        return TaskPlan(self._options, self._query, batch, 0, [f"{batch}-{row}" for row in range(ROWS)])

    def _attempt(self, batch: int, failpoints: str = "") -> str:
        answer = self._worker.run(replace(self._task(batch), failpoints=failpoints))
        self._attempts.append(answer)
        if answer in {"died", "hung"}:
            self._faults.append(f"the worker {answer}")
        return answer

    def _write_batch(self, batch: int) -> None:
        for _ in range(_MOST_ATTEMPTS):
            if self._attempt(batch) in _WRITTEN:
                break
        self._finish(batch)

    def _finish(self, batch: int) -> None:
        if self._attempts[-1] not in _WRITTEN:
            self._faults.append(f"batch {batch} was not written: {', '.join(self._attempts[-_MOST_ATTEMPTS:])}")
            return
        answer = run_commit(self._options, self._query, batch, 1)
        if answer != "committed":
            self._faults.append(f"the driver's part of batch {batch} failed with {answer}")

    def _disturbed_attempt(self, hold: Hold) -> str:
        """Run the attempt whose request is held, and what happens meanwhile."""
        aborts = self._plan.request is Request.ABORT
        with ThreadPoolExecutor(1) as pool:
            attempt = pool.submit(self._attempt, _HELD_BATCH, "kafka.rows_sent=raise:5:1" if aborts else "")
            if self._plan.way != "resent":
                hold.holds.wait(PATIENCE)
            if self._plan.moment == "timed_out":
                time.sleep(self._plan.transaction_ms / 1000 + _TIMEOUT_SLACK_SECONDS)
                self._deliver(hold)
            if self._plan.way == "worker":
                self._kill_worker()
            elif self._plan.way == "broker":
                self._killed.append("broker")
                self._kafka.broker.restart()
            return attempt.result()

    def _kill_worker(self) -> None:
        self._killed.append("worker")
        self._worker.kill()

    def _arrive_within(self, hold: Hold) -> None:
        """Deliver within an attempt, whose client waits for a response."""
        hold.deliver()
        self._view.look()
        if self._plan.kills_after:
            self._kill_worker()
        self._arrived.set()

    def _deliver(self, hold: Hold) -> None:
        hold.deliver()
        self._view.look()

    def _outcome(self, hold: Hold) -> dict[str, Any]:
        hanging = [
            topic for topic, partitions in ((self._topic, PARTITIONS), _OFFSETS) if self._hangs(topic, partitions)
        ]
        rows = self._view.look()
        all_rows = {f"{batch}-{row}" for batch in range(_BATCHES) for row in range(ROWS)}
        written = self._kafka.read_all(self._topic, PARTITIONS)
        wrong = {
            "lost": sum(row not in rows for row in all_rows),
            "doubled": sum(count > 1 for count in rows.values()),
            "phantom": sum(row not in all_rows for row in rows),
            "torn": len(self._view.torn),
            "hanging": len(hanging),
            "wrong_markers": int(not self._marker_is_right()),
        }
        faults = self._faults + [f"{count} {name.replace('_', ' ')}" for name, count in wrong.items() if count]
        attempts = Counter(self._attempts)
        return {
            "ok": not faults,
            "faults": faults,
            **{key: value.name.lower() if isinstance(value, Request) else value for key, value in vars_of(self._plan)},
            "attempts": self._attempts,
            "answers": hold.errors,
            "disturbed": self._killed,
            "counts": {
                "messages": _BATCHES * ROWS,
                "late": len(hold.errors),
                "refused": sum(error != "NO_ERROR" for error in hold.errors),
                "kills": len(self._killed),
                "aborted": len(written) - rows.total(),
                "replays_compared": attempts["skipped"],
                "replays_differing": attempts["KAFKA_REPLAY_DIFFERS"],
                **wrong,
            },
        }

    def _hangs(self, topic: str, partitions: int) -> bool:
        """Return whether a transaction stays open, behind which careful consumers would wait."""
        try:
            self._kafka.wait_for_ends(topic, partitions, PATIENCE / 3)
        except AssertionError:
            return True
        return False

    def _marker_is_right(self) -> bool:
        marker, noted = self._markers.of([0]).get(0), self._markers.finished()
        return marker is not None and (marker.batch, marker.rows, noted.batch) == (_BATCHES - 1, ROWS, _BATCHES - 1)


def vars_of(plan: LatePlan) -> list[tuple[str, Any]]:
    """Return the plan for the record."""
    return [(name, getattr(plan, name)) for name in plan.__dataclass_fields__]


def reused_client_trial(
    request: Request, kafka: KafkaRig, proxy: LateRequests, name: str, *, by_halves: bool
) -> dict[str, Any]:
    """Let one producer of confluent-kafka, without our sink, make two transactions; the end of the first is late.

    It arrives within the second, whose client commits after a late abort, and aborts after a late commit. Its rows go
    to both partitions in turn, or ``by_halves``: then the client adds a partition after the late request.
    """
    topic, commits = kafka.topic(PARTITIONS, f"topic-{name}"), request is Request.COMMIT
    producer = Producer({"bootstrap.servers": proxy.endpoint, "transactional.id": name, "linger.ms": 0, "log_level": 0})
    producer.init_transactions(PATIENCE)
    view, hold = View(kafka, topic), proxy.hold(request, name)

    def write(batch: int, rows: range) -> None:
        for row in rows:
            partition = row * PARTITIONS // ROWS if by_halves else row % PARTITIONS
            producer.produce(topic, f"{batch}-{row}", partition=partition)
        assert producer.flush(PATIENCE) == 0

    def end(*, commit: bool) -> str:
        try:
            (producer.commit_transaction if commit else producer.abort_transaction)(PATIENCE)
        except KafkaException as error:
            return str(error.args[0].name())
        return "NO_ERROR"

    producer.begin_transaction()
    write(0, range(ROWS))
    answers = [end(commit=commits)]
    producer.begin_transaction()
    write(1, range(ROWS // 2))
    hold.deliver()
    view.look()
    write(1, range(ROWS // 2, ROWS))
    answers.append(end(commit=not commits))
    kafka.wait_for_ends(topic, PARTITIONS)
    rows = view.look()
    seen = sum(row.startswith("1-") for row in rows)
    said = answers[-1] == "NO_ERROR"
    altered = {
        "lost": ROWS - seen if said and not commits else 0,
        "aborted_but_seen": seen if commits else 0,
        "torn": len(view.torn),
    }
    return {
        "ok": bool(hold.errors),
        "faults": [] if hold.errors else ["nothing was late"],
        "request": request.name.lower(),
        "by_halves": by_halves,
        "answers": hold.errors,
        "ends": answers,
        "altered": altered,
    }
