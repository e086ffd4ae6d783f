"""Random kills of a Kinesis query through Spark, several in a trial, under load that never pauses; counted by ids."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from connectors.testing.kinesis import KinesisControl
from tests.chaos.rigs.kinesis_load import RESHARD_SECONDS, KinesisApi, Load, keys_out_of_order
from tests.chaos.support.recovery import Recovery
from tests.chaos.support.sink import attempts, examine, rows_in_sink, rows_run, sink_rows
from tests.chaos.support.spark import SparkJob, SparkJobs, first_line

HEALING_SECONDS = 90.0
"""At most so long nothing new may come to the sink."""

_QUICK = {
    "awsAccessKey": "AKIATEST",
    "awsSecretKey": "test-secret",
    "minFetchPeriod": "20ms",
    "idleFetchPeriod": "100ms",
    "shardFetchInterval": "200ms",
    "maxFetchRate": "1000",
    "maxRetryInterval": "500ms",
    "initialPosition": "trim_horizon",
}
_OUR_ERRORS = "connectors.core.errors"
_LATEST_SECONDS = 1.0
_SHARDS = 2
_MOST_ROWS = 1500


@dataclass(frozen=True)
class Mode:
    """A way of consuming.

    Attributes:
        options: that choose it, beside those that every query of this run has.
        victims: who is killed, in turn over all trials; at least a quarter are the JVM.
        spool: whether the query has one.
    """

    options: Mapping[str, str]
    victims: tuple[str, ...]
    spool: bool = False


MODES = {
    "efo": Mode(
        {"consumerMode": "efo", "consumerName": "orders"},
        ("jvm", "fetcher", "worker", "source_runner", "jvm", "fetcher", "driver", "worker"),
        spool=True,
    ),
    "polling": Mode(
        {"consumerMode": "polling"},
        ("jvm", "worker", "source_runner", "driver", "jvm", "worker", "source_runner", "worker"),
    ),
}


@dataclass(frozen=True)
class KillPlan:
    """What a trial does; all of it follows from the seed, its number and the mode.

    Attributes:
        seed: of the trial.
        mode: a name in `MODES`.
        victims: who is killed, one after the other.
        sink_pause: seconds that the sink takes for each batch between its digest and its file.
        options: of the source, beside those of every query.
    """

    seed: int
    mode: str
    victims: tuple[str, ...]
    sink_pause: float
    options: Mapping[str, str]

    @classmethod
    def make(cls, seed: int, mode: str, number: int, kills: int) -> KillPlan:
        """The plan of a seed.

        Args:
            seed: of the trial.
            mode: a name in `MODES`.
            number: of the trial, from 0: the victims of all trials come in turn.
            kills: of each trial.
        """
        choose = random.Random(seed)
        cycle = MODES[mode].victims
        victims = [cycle[place % len(cycle)] for place in range(number * kills, (number + 1) * kills)]
        choose.shuffle(victims)
        options = {"maxRecordsPerFetch": choose.choice(("50", "1000", "10000"))}
        if limit := choose.choice(("", "500", "4000")):
            options["maxRecordsPerTrigger"] = limit
        return cls(seed, mode, tuple(victims), choose.choice((0.0, 0.1, 0.2)), options)


class KillTrial:
    """A stream, a query on it, and its ends.

    Args:
        plan: what to do.
        folder: for checkpoint, sink and spool; it is made.
        endpoint: of the server.
        jobs: Spark processes.
        knobs: whether the server has those of `KinesisControl`. If not, no calls are made to fail, and boto3 reads what
            the server holds in the end.
        reshard_seconds: between two splits or merges, from and to; None for no such.
    """

    def __init__(
        self,
        plan: KillPlan,
        folder: Path,
        endpoint: str,
        jobs: SparkJobs,
        *,
        knobs: bool = True,
        reshard_seconds: tuple[float, float] | None = RESHARD_SECONDS,
    ) -> None:
        folder.mkdir(parents=True)
        self._knobs, self._reshard_seconds = knobs, reshard_seconds
        self._plan, self._folder, self._endpoint, self._jobs = plan, folder, endpoint, jobs
        self._choose = random.Random(f"{plan.seed} moments")
        self._killed: list[str] = []
        self._left_behind: dict[int, str] = {}
        self._errors: list[str] = []
        self._errors_seen = 0
        self._of_server: list[str] = []
        self._recovery = Recovery()

    @property
    def _query(self) -> dict[str, Any]:
        mode = MODES[self._plan.mode]
        place = {"streamName": self._folder.name, "endpointUrl": f"http://{self._endpoint}"}
        spool = {"spoolLocation": str(self._folder / "spool")} if mode.spool else {}
        return {
            "folder": str(self._folder),
            "format": "kinesis",
            "options": {**_QUICK, **place, **spool, **mode.options, **self._plan.options},
            "sink_pause": self._plan.sink_pause,
        }

    def run(self) -> dict[str, Any]:
        """Run it; the outcome for the record.

        Raises:
            AssertionError: something that had to come did not come.
        """
        stream = self._folder.name
        with closing(KinesisControl(self._endpoint) if self._knobs else KinesisApi(self._endpoint)) as server:
            server.create_stream(stream, _SHARDS)
        with Load(
            self._endpoint,
            stream,
            self._plan.seed,
            subscribed=self._plan.mode == "efo",
            reshard_seconds=self._reshard_seconds,
            knobs=self._knobs,
        ) as load:
            self._start(self._jobs.current)
            for victim in self._plan.victims:
                wanted = self._choose.randrange(1, _MOST_ROWS)
                self._wait_for_rows(rows_run(self._folder) + wanted)
                time.sleep(self._choose.uniform(0, _LATEST_SECONDS))
                self._kill(victim)
            published = load.finish()
            if not self._knobs:
                self._note_held(published)
            self._wait_for_rows(len(published), in_sink=True)
            job = self._jobs.current
            job.stop_query()
            self._note_errors(job)
        return self._outcome(published, load)

    def _note_held(self, published: Mapping[bytes, Mapping[str, Any]]) -> None:
        """Note what boto3 finds on the server that is not what was put: what it lost, no query can read."""
        with closing(KinesisApi(self._endpoint)) as server:
            held = examine(server.read(self._folder.name), [], published, key="data")
        self._of_server = [f"{count} {name} for boto3 too" for name, count in held.faults.items()]

    def _start(self, job: SparkJob) -> None:
        self._errors_seen = len(job.query_errors())
        job.run(self._query)

    def _wait_for_rows(self, count: int, *, in_sink: bool = False) -> None:
        """Wait for so many rows; fails when for long no more come."""
        counted = rows_in_sink if in_sink else rows_run
        while (now := counted(self._folder)) < count:

            def more(known: int = now) -> bool:
                self._recovery.see(rows_in_sink(self._folder))
                return counted(self._folder) > known

            self._jobs.current.wait_for(f"more than {now} of {count} rows", more, HEALING_SECONDS)

    def _kill(self, victim: str) -> None:
        """Kill a process, and go on as an operator would."""
        job = self._jobs.current
        self._note_errors(job)
        self._recovery.begin(rows_in_sink(self._folder))
        self._left_behind |= self._jobs.strike(victim, self._choose, HEALING_SECONDS)
        self._killed.append(victim)
        if self._jobs.current is not job:
            self._start(self._jobs.current)
        else:
            self._note_errors(job)

    def _note_errors(self, job: SparkJob) -> None:
        self._errors += job.query_errors()[self._errors_seen :]
        self._errors_seen = len(job.query_errors())

    def _outcome(self, published: Mapping[bytes, Mapping[str, Any]], load: Load) -> dict[str, Any]:
        rows = sink_rows(self._folder)
        findings = examine(rows, attempts(self._folder), published, key="data")
        disordered = keys_out_of_order(rows, published)
        faults = [f"{count} {name}" for name, count in findings.faults.items()]
        faults += [f"{len(disordered)} keys out of order"] if disordered else []
        faults += self._of_server
        faults += [f"left behind: {process}" for process in self._left_behind.values()]
        faults += [f"the source raised: {first_line(each)}" for each in self._errors if _OUR_ERRORS in each]
        return {
            "ok": not faults,
            "faults": faults,
            "mode": self._plan.mode,
            "killed": self._killed,
            "seconds_until_new_rows": self._recovery.seconds,
            "sink_pause": self._plan.sink_pause,
            "options": dict(self._plan.options),
            "counts": {
                "messages": len(published),
                "kills": len(self._killed),
                **{f"kills_{victim}": count for victim, count in sorted(Counter(self._killed).items())},
                "splits": load.splits,
                "merges": load.merges,
                "failing_calls": load.faults,
                **asdict(findings),
                "keys_out_of_order": len(disordered),
                "left_behind": len(self._left_behind),
            },
            "query_errors": [first_line(error) for error in self._errors],
        }
