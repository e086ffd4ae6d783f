"""Random kills of a query into a Delta table: each number must be there once, and each batch in one commit."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.rigs.lakehouse_sources import Source
from tests.chaos.support import processes
from tests.chaos.support.lakehouse_tables import RUNS_NAME, batches, numbers, row_count
from tests.chaos.support.spark import GONE_SECONDS, SparkJobs, first_line
from tests.chaos.support.spark_job import entries

HEALING_SECONDS = 90.0
"""At most so long nothing new may come to the table."""

_DRIVERS = ("jvm", "driver")
_KILLS_A_DRIVER = 0.3
_AT_ONCE = 0.5
"""The share of kills that come as soon as a commit is seen: Spark does not know of it then."""
_LATEST_SECONDS = 0.8
_POLL_SECONDS = 0.1
_SOURCE_DIED = ("[STREAM_FAILED]", "Connection reset", "Python worker failed to connect back.")
"""How Spark names the death of a source process: while it runs, while it is asked, and while it starts. Spark has no
code for the last two. A query that ends in any other way has a fault.
"""


@dataclass(frozen=True)
class KillPlan:
    """What a trial does; all of it follows from the seed.

    Attributes:
        seed: of the trial.
        way: into the table, see `lakehouse_tables.ways`.
        records: how many are published.
        victims: who is killed, one after the other; three in ten are the JVM or the driver.
        limit: rows of a batch.
        pause: seconds between the commit of a batch and its end.
    """

    seed: int
    way: str
    records: int
    victims: tuple[str, ...]
    limit: int
    pause: float

    @classmethod
    def make(cls, seed: int, way: str, others: tuple[str, ...], kills: int, records: int) -> KillPlan:
        """The plan of a seed; ``others`` are the victims beside JVM and driver."""
        choose = random.Random(seed)
        of_drivers = max(1, round(kills * _KILLS_A_DRIVER))
        victims = [_DRIVERS[number % len(_DRIVERS)] for number in range(of_drivers)]
        victims += [choose.choice(others) for _ in range(kills - of_drivers)]
        choose.shuffle(victims)
        limit = records // choose.choice((2 * kills, 3 * kills))
        return cls(seed, way, records, tuple(victims), limit, choose.choice((0.0, 0.1, 0.3)))


class KillTrial:
    """A source, a table, a query between them, and its ends.

    Args:
        plan: what to do.
        folder: for checkpoint, table and spool; it is made.
        source: publishes the numbers.
        jobs: Spark processes.
    """

    def __init__(self, plan: KillPlan, folder: Path, source: Source, jobs: SparkJobs) -> None:
        folder.mkdir(parents=True)
        self._plan, self._folder, self._source, self._jobs = plan, folder, source, jobs
        self._table = str(folder / "table")
        self._choose = random.Random(f"{plan.seed} moments")
        self._killed: list[str] = []
        self._errors: list[str] = []
        self._errors_seen = 0
        self._left_behind: dict[int, str] = {}

    @property
    def _query(self) -> dict[str, Any]:
        return {
            "folder": str(self._folder),
            "format": self._source.format,
            "options": dict(self._source.options(self._folder.name, self._folder, self._plan.limit)),
            "number": self._source.number,
            "way": self._plan.way,
            "pause": self._plan.pause,
        }

    def run(self) -> dict[str, Any]:
        """Run it; the outcome for the record.

        Raises:
            AssertionError: something that had to come did not come.
        """
        self._source.publish(self._folder.name, self._plan.records)
        self._start()
        share = self._plan.records / (len(self._plan.victims) + 1)
        for number, victim in enumerate(self._plan.victims, 1):
            self._wait_for(int(share * number * self._choose.uniform(0.6, 1.0)))
            if self._choose.random() > _AT_ONCE:
                time.sleep(self._choose.uniform(0, _LATEST_SECONDS))
            self._kill(victim)
        self._wait_for(self._plan.records)
        self._jobs.current.stop_query()  # a batch that is repeated now, after the last kill, is part of the trial
        self._note_errors()
        return self._outcome()

    def _start(self) -> None:
        job = self._jobs.current
        self._errors_seen = len(job.query_errors())
        job.run(self._query)

    def _wait_for(self, count: int) -> None:
        """Wait for so many rows; fails when nothing more comes for long."""
        known, since = -1, time.monotonic()
        while (now := row_count(self._table)) < count:
            if now != known:
                known, since = now, time.monotonic()
            job = self._jobs.current
            assert time.monotonic() - since < HEALING_SECONDS, f"{now} of {count} rows; {job.query_errors()[-1:]}"
            time.sleep(_POLL_SECONDS)

    def _kill(self, victim: str) -> None:
        """Kill a process, and go on as an operator would."""
        job = self._jobs.current
        found = sorted(processes.find(job.pid, victim))
        if not found:
            # A worker lives only while there are tasks: the next one that comes.
            job.wait_for(
                f"a victim: {victim}",
                lambda: bool(found.extend(processes.find(job.pid, victim)) or found),
                HEALING_SECONDS,
            )
        pid = self._choose.choice(found)
        whole = victim in _DRIVERS
        below = [job.pid, *processes.descendants(job.pid)] if whole else [pid]
        if whole:
            self._note_errors()
        processes.kill(pid, group=victim == "driver")
        self._killed.append(victim)
        if whole:
            self._jobs.replace()
            job.reap()
        self._left_behind |= processes.still_running(below, GONE_SECONDS)
        if whole:
            self._start()
        self._source.after_kill()

    def _note_errors(self) -> None:
        errors = self._jobs.current.query_errors()
        self._errors += errors[self._errors_seen :]
        self._errors_seen = len(errors)

    def _outcome(self) -> dict[str, Any]:
        plan, seen, committed = self._plan, numbers(self._table), batches(self._table)
        runs = entries(self._folder / RUNS_NAME)
        counted = {
            "lost": sum(not seen[number] for number in range(plan.records)),
            "doubled": sum(count - 1 for count in seen.values()),
            "phantom": len(seen.keys() - range(plan.records)),
            "batches_out_of_order": sum(after <= before for before, after in itertools.pairwise(committed)),
            "other_errors": sum(not first_line(error).startswith(_SOURCE_DIED) for error in self._errors),
        }
        faults = [f"{count} {name}" for name, count in counted.items() if count]
        if len(self._errors) > self._killed.count("source_runner"):
            faults.append(f"the query ended {len(self._errors)} times")
        faults += [f"left behind: {process}" for process in self._left_behind.values()]
        return {
            "ok": not faults,
            "faults": faults,
            "killed": self._killed,
            "limit": plan.limit,
            "pause": plan.pause,
            "counts": {
                "messages": plan.records,
                "kills": len(self._killed),
                "batches": len(committed),
                "repeated_after_commit": sum(not run["written"] for run in runs),
                "queries_ended": len(self._errors),
                **counted,
            },
            "query_errors": [first_line(error) for error in self._errors],
        }
