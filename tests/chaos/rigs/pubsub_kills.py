"""Random kills through Spark: publish, stream into a sink keyed on batch id, SIGKILL on the way, count by ids."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from connectors.spool import stats
from connectors.testing.pubsub.client import PubSubTestClient
from connectors.testing.pubsub.faults.knobs import PubSubKnobs
from tests.chaos.support import processes
from tests.chaos.support.recovery import Recovery
from tests.chaos.support.sink import Findings, attempts, examine, rows_in_sink, rows_run, sink_rows
from tests.chaos.support.spark import GONE_SECONDS, SparkJob, SparkJobs, first_line
from tests.support.pubsub_calls import PubSubCalls, message_ids
from tests.support.spool_writing import access_of

VICTIMS = ("source_runner", "fetcher", "worker")
"""Who is killed in each trial, in an order that follows from its seed; and one of `DRIVERS`."""

DRIVERS = ("jvm", "driver")
"""In turn: the JVM alone, and the whole driver."""

HEALING_SECONDS = 60.0
"""At most so long nothing new may come to the sink until all is there."""

UNANSWERED_SECONDS = 15.0
"""Spark's own (SPARK_AUTH_SOCKET_TIMEOUT): so long a source process, whose query was stopped while the process started,
tries to reach a JVM that has forgotten it. No code of ours runs in it before, so it holds nothing; any source has this.
"""

_PROJECT = "chaos"
_KILLED_IN_SINK = 0.6
_KILLED_BY_ROWS = 0.6
_EARLIEST_ROWS = 0.1
_LATEST_ROWS = 0.95
_LATEST_BY_ROWS = 0.5
_LATEST_BY_TIME = 3.0
_PORTION = 250
_PUBLISH_PAUSE = 0.08
_REDELIVERY_DELAY = 0.3
_ACK_DEADLINE = 10
_OUR_ERRORS = "connectors.core.errors"


@dataclass(frozen=True)
class KillMoment:
    """One kill.

    Attributes:
        victim: see `processes.VICTIMS`; or ``driver``.
        rows: it comes after so many rows are in the sink; 0: after the kill before it, or the start of the query.
        seconds: it comes so long after that.
        in_sink: the rows are those of batches that have run, and the kill comes before the last of them is in the
            sink: that batch must be run again.
    """

    victim: str
    rows: int
    seconds: float
    in_sink: bool


@dataclass(frozen=True)
class KillPlan:
    """What a trial does; all of it follows from the seed, the victims and the number of messages.

    Attributes:
        seed: of the trial.
        messages: how many are published.
        moments: the kills, one after the other.
        sink_pause: seconds that the sink takes for each batch between its digest and its file.
        redelivered: the share of messages that the server delivers again after their ack, to another stream.
        lost_acks: the share of messages whose ack the server answers and forgets.
        stream_seconds: after so long the server cuts each stream, again and again.
        options: of the source, beside where it is.
    """

    seed: int
    messages: int
    moments: tuple[KillMoment, ...]
    sink_pause: float
    redelivered: float
    lost_acks: float
    stream_seconds: float
    options: Mapping[str, str]

    @classmethod
    def make(cls, seed: int, victims: Sequence[str], messages: int) -> KillPlan:
        """The plan of a seed."""
        choose = random.Random(seed)
        order = choose.sample(victims, len(victims))
        share = messages / len(order)
        in_sink = [victim in DRIVERS and choose.random() < _KILLED_IN_SINK for victim in order]
        sink_pause = choose.choice((0.1, 0.2) if any(in_sink) else (0.0, 0.05, 0.15))
        moments = [
            _moment(choose, victim, range(int(number * share), int((number + 1) * share)), sink_pause * is_in_sink)
            for number, (victim, is_in_sink) in enumerate(zip(order, in_sink, strict=True))
        ]
        return cls(
            seed=seed,
            messages=messages,
            moments=tuple(moments),
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

    def without_faults(self) -> KillPlan:
        """The same with the kills alone, for a server that cannot be told to do anything else."""
        return replace(self, redelivered=0.0, lost_acks=0.0, stream_seconds=0.0)


def _moment(choose: random.Random, victim: str, share: range, sink_pause: float) -> KillMoment:
    """A moment in a victim's share of the rows; with a pause of the sink: in that pause."""
    # A worker is killed when it has work: its death while a query is planned is no business of a source.
    # Only who dies with the driver leaves a batch undone: without the source it still goes into the sink.
    by_rows = victim == "worker" or sink_pause > 0 or choose.random() < _KILLED_BY_ROWS
    latest = sink_pause or (_LATEST_BY_ROWS if by_rows else _LATEST_BY_TIME)
    return KillMoment(
        victim=victim,
        rows=share.start + int(choose.uniform(_EARLIEST_ROWS, _LATEST_ROWS) * len(share)) if by_rows else 0,
        seconds=round(choose.uniform(0.0, latest), 3),
        in_sink=sink_pause > 0,
    )


def not_acked(endpoint: str, subscription: str, seconds: float) -> set[str]:
    """Pull for so many seconds; the ids of the messages that come."""
    found: set[str] = set()
    end = time.monotonic() + seconds
    with PubSubCalls(endpoint) as calls:
        while time.monotonic() < end:
            found.update(message_ids(calls.pull_what_is_there(subscription)))
            time.sleep(_REDELIVERY_DELAY)
    return found


class KillTrial:
    """A subscription, a query on it, and its end.

    Args:
        plan: what to do.
        folder: for spool, checkpoint and sink; it is made.
        server: where messages come from; None if it has no knobs. Then a client of the test's own looks in the end for
            messages that were not acked.
        endpoint: where it listens.
        jobs: Spark processes.
        spool: the options that say where the spool goes, if not into the folder.
    """

    def __init__(
        self,
        plan: KillPlan,
        folder: Path,
        server: PubSubKnobs | None,
        endpoint: str,
        jobs: SparkJobs,
        spool: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True)
        self._spool = {"spoolLocation": str(folder / "spool"), **(spool or {})}
        self._plan, self._folder, self._server, self._endpoint, self._jobs = plan, folder, server, endpoint, jobs
        self._name = folder.name
        self._published: dict[str, dict[str, Any]] = {}
        self._job = jobs.current
        self._left_behind: dict[int, str] = {}
        self._query_errors: list[str] = []
        self._not_acked: set[str] = set()
        self._rows_at_kill: list[int] = []
        self._recovery = Recovery()

    @property
    def _subscription(self) -> str:
        return f"projects/{_PROJECT}/subscriptions/{self._name}"

    @property
    def _query(self) -> dict[str, Any]:
        place = {
            "projectId": _PROJECT,
            "subscriptionId": self._name,
            "endpoint": self._endpoint,
        }
        options = {**place, **self._spool, **self._plan.options}
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
            if self._server is not None:
                self._switch_faults_on(self._server)
            publishing = threading.Thread(target=self._publish, args=(client,), daemon=True)
            publishing.start()
            self._seen_errors = len(self._job.query_errors())
            self._job.run(self._query)
            for moment in self._plan.moments:
                self._kill(moment)
            publishing.join()
            self._wait_for_rows(self._plan.messages, rows_in_sink)
            if self._server is None:
                self._end()
            else:
                self._heal(self._server)
        return self._outcome()

    def _switch_faults_on(self, server: PubSubKnobs) -> None:
        plan = self._plan
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

    def _kill(self, moment: KillMoment) -> None:
        """Kill the victim at its moment, and go on as an operator would."""
        job = self._job
        pid = self._await_moment(moment)
        self._rows_at_kill.append(rows_in_sink(self._folder))
        self._recovery.begin(self._rows_at_kill[-1])
        doomed = {"jvm": job.pid, "driver": job.pid}.get(moment.victim)
        below = job.processes() if doomed is not None else processes.descendants(pid)
        job.strike(moment.victim, pid)
        if doomed == job.pid:
            # The next one starts while the remains of this one end, as under a supervisor.
            self._job = self._jobs.replace()
            job.reap()
        self._left_behind |= processes.still_running([pid, *below], GONE_SECONDS)
        self._note_errors(job)
        if doomed == job.pid:
            self._seen_errors = 0
            self._job.run(self._query)
        # What dead fetchers held comes again when its deadline is over.
        if self._server is not None:
            self._server.jump(6 * _ACK_DEADLINE)

    def _await_moment(self, moment: KillMoment) -> int:
        """Wait for the moment, and for a victim; its pid."""
        job = self._job
        self._wait_for_rows(moment.rows, rows_run if moment.in_sink else rows_in_sink)
        time.sleep(moment.seconds)
        found: list[int] = []
        job.wait_for(
            f"a victim: {moment.victim}",
            lambda: bool(found.extend(job.find(moment.victim)) or found),
            HEALING_SECONDS,
        )
        return random.Random(self._plan.seed).choice(sorted(found))

    def _wait_for_rows(self, count: int, counted: Callable[[Path], int]) -> None:
        """Wait for so many rows; fails when for a minute no more come."""
        while (rows := counted(self._folder)) < count:

            def more(known: int = rows) -> bool:
                self._recovery.see(rows_in_sink(self._folder))
                return counted(self._folder) > known

            self._job.wait_for(f"more than {rows} of {self._plan.messages} rows", more, HEALING_SECONDS)

    def _note_errors(self, job: SparkJob) -> None:
        self._query_errors += job.query_errors()[self._seen_errors :]
        self._seen_errors = len(job.query_errors())

    def _heal(self, server: PubSubKnobs) -> None:
        """Wait until all is acked, copies too, then stop the query."""
        server.lose_acks(fraction=0, subscription=self._subscription)
        # Messages whose acks were lost come again when their deadline is over, and are acked then.
        server.jump(6 * _ACK_DEADLINE)
        for _ in range(2):
            # The second time for what is delivered again after its ack.
            self._job.wait_for(
                "every message is acked", lambda: server.backlog(self._subscription) == 0, HEALING_SECONDS
            )
            time.sleep(2 * _REDELIVERY_DELAY)
        self._stop()
        server.redeliver_acked(0, subscription=self._subscription)
        server.close_streams_every(0)

    def _end(self) -> None:
        """Stop the query, and look for messages that it has not acked: they come to others when deadlines are over."""
        time.sleep(2 * _ACK_DEADLINE)
        self._stop()
        self._not_acked = not_acked(self._endpoint, self._subscription, 2 * _ACK_DEADLINE)

    def _stop(self) -> None:
        job = self._job
        fetchers, runners = (job.find(kind) for kind in ("fetcher", "source_runner"))
        job.stop_query()
        self._note_errors(job)
        left = processes.still_running(fetchers, GONE_SECONDS)
        left |= processes.still_running(runners, GONE_SECONDS + UNANSWERED_SECONDS)
        self._left_behind |= {pid: f"after the stop {process}" for pid, process in left.items()}

    def _outcome(self) -> dict[str, Any]:
        plan = self._plan
        findings = examine(
            sink_rows(self._folder), attempts(self._folder), self._published, key="messageId", position="offset"
        )
        spool = stats(self._spool["spoolLocation"], access_of(self._spool))
        faults = self._faults(findings)
        return {
            "ok": not faults,
            "faults": faults,
            "killed": [moment.victim for moment in plan.moments],
            "moments": [
                {"rows": moment.rows, "seconds": moment.seconds, "in_sink": moment.in_sink} for moment in plan.moments
            ],
            "rows_at_kill": self._rows_at_kill,
            "seconds_until_new_rows": self._recovery.seconds,
            "sink_pause": plan.sink_pause,
            "redelivered": plan.redelivered,
            "lost_acks": plan.lost_acks,
            "stream_seconds": plan.stream_seconds,
            "options": dict(plan.options),
            "counts": {
                "messages": len(self._published),
                "kills": len(plan.moments),
                "deliveries": spool.delivered,
                "duplicates_dropped": spool.duplicates,
                **asdict(findings),
                "not_acked": len(self._not_acked),
                "left_behind": len(self._left_behind),
            },
            "query_errors": [first_line(error) for error in self._query_errors],
        }

    def _faults(self, findings: Findings) -> list[str]:
        """What must not be; nothing if all is well."""
        faults = [f"{count} {name}" for name, count in findings.faults.items()]
        faults += [f"{len(self._not_acked)} not acked"] if self._not_acked else []
        faults += [f"left behind: {process}" for process in self._left_behind.values()]
        allowed = sum(moment.victim == "source_runner" for moment in self._plan.moments)
        ours = [error for error in self._query_errors if _OUR_ERRORS in error]
        faults += [f"the source raised: {first_line(error)}" for error in ours]
        if len(self._query_errors) > allowed:
            faults.append(f"the query ended {len(self._query_errors)} times")
        return faults
