"""One soak: a query under a steady rate with a fault a minute, counted by contents, and measured all the time."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tests.chaos.rigs.network_flows import Services
from tests.chaos.rigs.pubsub_kills import UNANSWERED_SECONDS
from tests.chaos.rigs.soak_flows import SOAKS, SoakFlow
from tests.chaos.support import footprint, processes
from tests.chaos.support.footprint import Sample
from tests.chaos.support.record import ROOT
from tests.chaos.support.spark import GONE_SECONDS, SparkJob, SparkJobs, first_line

RATE = 20
"""Records a second; each second they are published at once."""
SAMPLES = 60
"""Of a run, whatever its length: one a minute of an hour."""
RESHARDS = ("split", "merge")

_HEALING_SECONDS = 120.0
_FAULT_SECONDS = 60.0
_EARLIEST, _LATEST = 0.25, 0.6
"""When in its minute a process is killed; shards are split or merged in the first quarter."""
_OUR_ERRORS = "connectors.core.errors"
_POLL_SECONDS = 0.05
_COUNT_SECONDS = 5.0


@dataclass(frozen=True)
class Moment:
    """One fault.

    Attributes:
        second: since the beginning.
        kind: see `processes.VICTIMS`; or ``driver``, ``split``, ``merge``.
    """

    second: float
    kind: str


@dataclass(frozen=True)
class SoakPlan:
    """What a soak does; all of it follows from the seed, the flow and the minutes.

    Attributes:
        seed: of the trial.
        flow: a name in `SOAKS`.
        seconds: how long records are published.
        moments: the faults in their order: a kill each minute, and of shards also a split or a merge.
    """

    seed: int
    flow: str
    seconds: float
    moments: tuple[Moment, ...]

    @classmethod
    def make(cls, seed: int, flow: str, minutes: float) -> SoakPlan:
        """The plan of a seed; each kind of victim comes once before any comes again."""
        choose = random.Random(seed)
        seconds = minutes * 60
        kinds = (*SOAKS[flow].victims, "driver")
        count = max(1, int(seconds // _FAULT_SECONDS))
        victims: list[str] = []
        while len(victims) < count:
            victims += choose.sample(kinds, len(kinds))
        length = seconds / count
        moments = [
            Moment(round((number + choose.uniform(_EARLIEST, _LATEST)) * length, 1), victim)
            for number, victim in enumerate(victims[:count])
        ]
        if SOAKS[flow].reshards:
            moments += [
                Moment(round((number + choose.uniform(0, _EARLIEST)) * length, 1), RESHARDS[number % len(RESHARDS)])
                for number in range(count)
            ]
        return cls(seed, flow, seconds, tuple(sorted(moments, key=lambda moment: moment.second)))


class SoakTrial:
    """A flow, its faults, and its samples.

    Args:
        plan: what to do.
        folder: for the flow; it is made.
        services: the servers.
        jobs: Spark processes.
    """

    def __init__(self, plan: SoakPlan, folder: Path, services: Services, jobs: SparkJobs) -> None:
        self._plan, self._jobs = plan, jobs
        self._flow: SoakFlow = SOAKS[plan.flow](services, folder)
        self._choose = random.Random(f"{plan.seed} moments")
        self._server_lock = threading.Lock()
        self._error: BaseException | None = None
        self._sent: list[float] = []
        self._arrived: set[bytes] = set()
        self._samples: list[Sample] = []
        self._file_counts: list[int] = []
        self._count_again = 0.0
        self._done: list[Moment] = []
        self._left_behind: dict[int, str] = {}
        self._errors: list[str] = []
        self._errors_seen = 0

    def run(self) -> dict[str, Any]:
        """Run it; the outcome for the record.

        Raises:
            AssertionError: something that had to come did not come.
        """
        with self._flow as flow:
            self._start(self._jobs.current)
            self._publish()
            self._wait_for_all()
            self._began = time.monotonic()
            publishing = threading.Thread(target=self._publish_steadily, daemon=True)
            publishing.start()
            self._strike_and_sample()
            publishing.join()
            if self._error is not None:
                raise self._error
            self._wait_for_all()
            self._stop(self._jobs.current)
            counts, faults = flow.judge()
        return self._outcome(counts, faults)

    def _publish(self) -> None:
        """Publish the records of a second, and note when."""
        with self._server_lock:
            self._sent.append(time.time())
            self._flow.publish(RATE)

    def _publish_steadily(self) -> None:
        """Publish each second until the run is over; a second that took longer is made up for."""
        try:
            for second in range(int(self._plan.seconds)):
                time.sleep(max(0.0, self._began + second - time.monotonic()))
                self._publish()
        except BaseException as error:  # noqa: BLE001 - raised where the trial waits for it
            self._error = error

    def _strike_and_sample(self) -> None:
        """Let each fault happen at its moment, and take samples in between."""
        moments = list(self._plan.moments)
        period = self._plan.seconds / SAMPLES
        again = period
        while (now := self._second) < self._plan.seconds:
            if moments and now >= moments[0].second:
                self._strike(moments.pop(0))
            elif now >= again:
                self._sample()
                again = (int(now / period) + 1) * period
            elif now >= self._count_again:
                self._count_files()
            time.sleep(_POLL_SECONDS)

    @property
    def _second(self) -> float:
        return time.monotonic() - self._began

    def _strike(self, moment: Moment) -> None:
        """Split or merge a shard, or kill a process and go on as an operator would."""
        self._done.append(Moment(round(self._second, 1), moment.kind))
        if moment.kind in RESHARDS:
            with self._server_lock:
                self._flow.reshard(moment.kind, self._choose)
            return
        job = self._jobs.current
        self._note_errors(job)
        self._left_behind |= self._jobs.strike(moment.kind, self._choose, _HEALING_SECONDS)
        if self._jobs.current is not job:
            self._start(self._jobs.current)
        with self._server_lock:
            self._flow.after_kill()

    def _count_files(self) -> None:
        """Count the files of the spool between two samples: they rise and fall as the spool is cleaned."""
        self._file_counts.append(self._flow.spool_files())
        self._count_again = self._second + _COUNT_SECONDS

    def _sample(self) -> None:
        self._count_files()
        fewest, self._file_counts = min(self._file_counts), []
        latencies = self._take_arrivals()
        self._samples.append(
            Sample(
                second=round(self._second, 1),
                **footprint.of_processes(self._jobs.current.processes()),
                spool_files=fewest,
                latency=round(median(latencies), 2) if latencies else None,
            )
        )

    def _take_arrivals(self) -> list[float]:
        """Note what has arrived; how long each took since it was published. Contents begin with their number."""
        found = self._flow.arrivals()
        self._arrived.update(value for value, _ in found)
        return [arrived - self._sent[int(value.split()[1]) // RATE] for value, arrived in found]

    def _wait_for_all(self) -> None:
        """Wait until all that was published has arrived; fails when for long nothing more comes."""
        count = len(self._flow.published)
        self._take_arrivals()
        while (now := len(self._arrived)) < count:

            def more(known: int = now) -> bool:
                self._take_arrivals()
                return len(self._arrived) > known

            self._jobs.current.wait_for(f"more than {now} of {count} records", more, _HEALING_SECONDS)

    def _start(self, job: SparkJob) -> None:
        self._errors_seen = len(job.query_errors())
        job.run(self._flow.query)

    def _stop(self, job: SparkJob) -> None:
        fetchers, runners = (job.find(kind) for kind in ("fetcher", "source_runner"))
        job.stop_query()
        self._note_errors(job)
        left = processes.still_running(fetchers, GONE_SECONDS)
        left |= processes.still_running(runners, GONE_SECONDS + UNANSWERED_SECONDS)
        self._left_behind |= {pid: f"after the stop {process}" for pid, process in left.items()}

    def _note_errors(self, job: SparkJob) -> None:
        self._errors += job.query_errors()[self._errors_seen :]
        self._errors_seen = len(job.query_errors())

    def _outcome(self, counts: dict[str, int], faults: list[str]) -> dict[str, Any]:
        measured, grown = footprint.verdict(self._samples, self._plan.seconds)
        killed = [moment.kind for moment in self._done if moment.kind not in RESHARDS]
        faults = [*faults, *grown, *self._ends(killed)]
        faults += [f"left behind: {process.replace(str(ROOT), '')}" for process in self._left_behind.values()]
        reshards = Counter(moment.kind for moment in self._done if moment.kind in RESHARDS)
        return {
            "ok": not faults,
            "faults": faults,
            "grown": grown,
            "flow": self._plan.flow,
            "minutes": self._plan.seconds / 60,
            "killed": killed,
            "moments": [f"{moment.second:g} s {moment.kind}" for moment in self._done],
            "medians": measured,
            "counts": {
                "messages": len(self._flow.published),
                "kills": len(killed),
                **{f"{kind}s": count for kind, count in sorted(reshards.items())},
                **counts,
            },
            "query_errors": [first_line(error) for error in self._errors],
            "samples": footprint.as_record(self._samples),
        }

    def _ends(self, killed: Sequence[str]) -> list[str]:
        """What is wrong about the ends of the query: only the end of a source process ends it, and no error of ours."""
        faults = [f"the source raised: {first_line(each)}" for each in self._errors if _OUR_ERRORS in each]
        if len(self._errors) > killed.count("source_runner"):
            faults.append(f"the query ended {len(self._errors)} times")
        return faults
