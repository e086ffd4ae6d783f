"""One random kill through Spark: publish, stream into a sink keyed on batch id, SIGKILL in the middle, count by ids."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from connectors.spool import stats
from connectors.testing.pubsub_client import PubSubTestClient
from connectors.testing.pubsub_knobs import PubSubKnobs
from tests.chaos import _processes
from tests.chaos._sink import Findings, attempts, examine, rows_in_sink, rows_run, sink_rows
from tests.chaos._spark import GONE_SECONDS, SparkJob, SparkJobs, first_line

VICTIMS = ("jvm", "source_runner", "jvm", "fetcher", "driver", "worker")
"""In turn: a third of the kills strike the JVM alone, a sixth the whole driver."""

HEALING_SECONDS = 60.0
"""At most so long nothing new may come to the sink until all is there."""

_PROJECT = "chaos"
_KILLED_IN_SINK = 0.6
_KILLED_BY_ROWS = 0.6
_LATEST_BY_ROWS = 0.5
_LATEST_BY_TIME = 3.0
_PORTION = 250
_PUBLISH_PAUSE = 0.08
_REDELIVERY_DELAY = 0.3
_ACK_DEADLINE = 10
_OUR_ERRORS = "connectors.core.errors"


@dataclass(frozen=True)
class KillPlan:
    """What a trial does; all of it follows from the seed, the victim and the number of messages.

    Attributes:
        seed: of the trial.
        victim: see `_processes.VICTIMS`; or ``driver``.
        messages: how many are published.
        rows: the kill comes after so many rows are in the sink; 0: after the start of the query.
        seconds: the kill comes so long after that.
        in_sink: the rows are those of batches that have run, and the kill comes before the last of them is in the
            sink: that batch must be run again.
        sink_pause: seconds that the sink takes for each batch between its digest and its file.
        redelivered: the share of messages that the server delivers again after their ack, to another stream.
        lost_acks: the share of messages whose ack the server answers and forgets.
        stream_seconds: after so long the server cuts each stream, again and again.
        options: of the source, beside where it is.
    """

    seed: int
    victim: str
    messages: int
    rows: int
    seconds: float
    in_sink: bool
    sink_pause: float
    redelivered: float
    lost_acks: float
    stream_seconds: float
    options: Mapping[str, str]

    @classmethod
    def make(cls, seed: int, victim: str, messages: int) -> KillPlan:
        """The plan of a seed."""
        choose = random.Random(seed)
        # A worker is killed when it has work: its death while a query is planned is no business of a source.
        # Only who dies with the driver leaves a batch undone: without the source it still goes into the sink.
        in_sink = victim in {"jvm", "driver"} and choose.random() < _KILLED_IN_SINK
        by_rows = victim == "worker" or in_sink or choose.random() < _KILLED_BY_ROWS
        sink_pause = choose.choice((0.1, 0.2) if in_sink else (0.0, 0.05, 0.15))
        latest = sink_pause if in_sink else _LATEST_BY_ROWS if by_rows else _LATEST_BY_TIME
        return cls(
            seed=seed,
            victim=victim,
            messages=messages,
            rows=int(choose.uniform(0.02, 0.95) * messages) if by_rows else 0,
            seconds=round(choose.uniform(0.0, latest), 3),
            in_sink=in_sink,
            sink_pause=sink_pause,
            redelivered=round(choose.uniform(0.05, 0.3), 2),
            lost_acks=round(choose.uniform(0.02, 0.15), 2),
            stream_seconds=round(choose.uniform(0.3, 3.0), 1),
            options={
                "streams": str(choose.choice((2, 4))),
                "fetchers": str(choose.choice((1, 2))),
                "maxRecordsPerTrigger": str(choose.choice((150, 250, 500))),
                "partitionBytes": str(choose.choice((2_000, 8_000, 16_000_000))),
                "maxFetchPeriod": choose.choice(("5ms", "30ms", "100ms")),
            },
        )


class KillTrial:
    """A subscription, a query on it, and its end.

    Args:
        plan: what to do.
        folder: for spool, checkpoint and sink; it is made.
        server: where messages come from.
        endpoint: where it listens.
        jobs: Spark processes.
    """

    def __init__(self, plan: KillPlan, folder: Path, server: PubSubKnobs, endpoint: str, jobs: SparkJobs) -> None:
        folder.mkdir(parents=True)
        self._plan, self._folder, self._server, self._endpoint, self._jobs = plan, folder, server, endpoint, jobs
        self._name = folder.name
        self._published: dict[str, dict[str, Any]] = {}
        self._job = jobs.current
        self._left_behind: dict[int, str] = {}
        self._query_errors: list[str] = []

    @property
    def _subscription(self) -> str:
        return f"projects/{_PROJECT}/subscriptions/{self._name}"

    @property
    def _query(self) -> dict[str, Any]:
        place = {
            "projectId": _PROJECT,
            "subscriptionId": self._name,
            "endpoint": self._endpoint,
            "spoolLocation": str(self._folder / "spool"),
        }
        options = {**place, **self._plan.options}
        return {
            "folder": str(self._folder),
            "format": "pubsub",
            "options": options,
            "sink_pause": self._plan.sink_pause,
        }

    def run(self) -> dict[str, Any]:
        """Run it; the outcome for the record.

        Raises:
            AssertionError: something that had to come did not come.
        """
        with PubSubTestClient(self._endpoint, _PROJECT) as client:
            client.create(self._name, self._name, _ACK_DEADLINE)
            self._switch_faults_on()
            publishing = threading.Thread(target=self._publish, args=(client,), daemon=True)
            publishing.start()
            self._seen_errors = len(self._job.query_errors())
            self._job.run(self._query)
            killed_at = self._kill()
            publishing.join()
            self._heal()
        return self._outcome(killed_at)

    def _switch_faults_on(self) -> None:
        plan, server = self._plan, self._server
        server.redeliver_acked(
            plan.redelivered, delay=_REDELIVERY_DELAY, to_other_stream=True, subscription=self._subscription
        )
        server.lose_acks(fraction=plan.lost_acks, subscription=self._subscription)
        server.close_streams_every(plan.stream_seconds)

    def _publish(self, client: PubSubTestClient) -> None:
        """Publish over some seconds; the payload and an attribute say which message it is."""
        for first in range(0, self._plan.messages, _PORTION):
            numbers = range(first, min(first + _PORTION, self._plan.messages))
            messages = [(f"message {number}".encode(), {"number": str(number)}) for number in numbers]
            ids = client.publish(self._name, messages)
            self._published |= {
                identity: {"payload": payload, "attributes": attributes, "subscription": self._subscription}
                for identity, (payload, attributes) in zip(ids, messages, strict=True)
            }
            time.sleep(_PUBLISH_PAUSE)

    def _kill(self) -> int:
        """Kill the victim at its moment, go on as an operator would, and give the rows that were in the sink."""
        plan, job = self._plan, self._job
        pid = self._await_moment()
        rows = rows_in_sink(self._folder)
        doomed = {"jvm": job.pid, "driver": job.pid, "source_runner": pid}.get(plan.victim)
        below = [] if doomed is None else [doomed, *_processes.descendants(doomed)]
        _processes.kill(pid, group=plan.victim == "driver")
        if doomed == job.pid:
            # The next one starts while the remains of this one end, as under a supervisor.
            self._job = self._jobs.replace()
            job.reap()
        self._left_behind = _processes.still_running([pid, *below], GONE_SECONDS)
        self._note_errors(job)
        if doomed == job.pid:
            self._seen_errors = 0
            self._job.run(self._query)
        # What dead fetchers held comes again when its deadline is over.
        self._server.jump(6 * _ACK_DEADLINE)
        return rows

    def _await_moment(self) -> int:
        """Wait for the moment, and for a victim; its pid."""
        plan, job = self._plan, self._job
        self._wait_for_rows(plan.rows, rows_run if plan.in_sink else rows_in_sink)
        time.sleep(plan.seconds)
        found: list[int] = []
        job.wait_for(
            f"a victim: {plan.victim}",
            lambda: bool(found.extend(_processes.find(job.pid, plan.victim)) or found),
            HEALING_SECONDS,
        )
        return random.Random(plan.seed).choice(sorted(found))

    def _wait_for_rows(self, count: int, counted: Callable[[Path], int]) -> None:
        """Wait for so many rows; fails when for a minute no more come."""
        while (rows := counted(self._folder)) < count:

            def more(known: int = rows) -> bool:
                return counted(self._folder) > known

            self._job.wait_for(f"more than {rows} of {self._plan.messages} rows", more, HEALING_SECONDS)

    def _note_errors(self, job: SparkJob) -> None:
        self._query_errors += job.query_errors()[self._seen_errors :]
        self._seen_errors = len(job.query_errors())

    def _heal(self) -> None:
        """Wait until all is in the sink and acked, copies too, then stop the query."""
        job = self._job
        self._wait_for_rows(self._plan.messages, rows_in_sink)
        self._server.lose_acks(fraction=0, subscription=self._subscription)
        # Messages whose acks were lost come again when their deadline is over, and are acked then.
        self._server.jump(6 * _ACK_DEADLINE)
        for _ in range(2):
            # The second time for what is delivered again after its ack.
            job.wait_for(
                "every message is acked", lambda: self._server.backlog(self._subscription) == 0, HEALING_SECONDS
            )
            time.sleep(2 * _REDELIVERY_DELAY)
        running = [pid for kind in ("source_runner", "fetcher") for pid in _processes.find(job.pid, kind)]
        job.stop_query()
        self._note_errors(job)
        left = _processes.still_running(running, GONE_SECONDS)
        self._left_behind |= {pid: f"after the stop {process}" for pid, process in left.items()}
        self._server.redeliver_acked(0, subscription=self._subscription)
        self._server.close_streams_every(0)

    def _outcome(self, killed_at: int) -> dict[str, Any]:
        plan = self._plan
        findings = examine(
            sink_rows(self._folder), attempts(self._folder), self._published, key="messageId", position="offset"
        )
        spool = stats(str(self._folder / "spool"))
        faults = self._faults(findings)
        return {
            "ok": not faults,
            "faults": faults,
            "moment": {"rows": plan.rows, "seconds": plan.seconds, "in_sink": plan.in_sink},
            "rows_at_kill": killed_at,
            "sink_pause": plan.sink_pause,
            "redelivered": plan.redelivered,
            "lost_acks": plan.lost_acks,
            "stream_seconds": plan.stream_seconds,
            "options": dict(plan.options),
            "counts": {
                "messages": len(self._published),
                "deliveries": spool.delivered,
                "duplicates_struck_out": spool.duplicates,
                **asdict(findings),
                "left_behind": len(self._left_behind),
            },
            "query_errors": [first_line(error) for error in self._query_errors],
        }

    def _faults(self, findings: Findings) -> list[str]:
        """What must not be; nothing if all is well."""
        faults = [f"{count} {name}" for name, count in findings.faults.items()]
        faults += [f"left behind: {process}" for process in self._left_behind.values()]
        allowed = 1 if self._plan.victim == "source_runner" else 0
        ours = [error for error in self._query_errors if _OUR_ERRORS in error]
        faults += [f"the source raised: {first_line(error)}" for error in ours]
        if len(self._query_errors) > allowed:
            faults.append(f"the query ended {len(self._query_errors)} times")
        return faults
