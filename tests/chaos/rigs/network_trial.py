"""One trial of the network: a query through Spark, records before, in and after a fault; what it made of it."""

from __future__ import annotations

import random
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.rigs.network_faults import FAULTS, PAUSE_SECONDS, Fault, applied, connections, paused
from tests.chaos.rigs.network_flows import FLOWS, Flow, KafkaFlow, Services
from tests.chaos.support import processes
from tests.chaos.support.record import ROOT
from tests.chaos.support.spark import GONE_SECONDS, SparkJob, SparkJobs, first_line
from tests.support.spark_protocol.driver import resident_bytes

HEALING_SECONDS = 120.0
"""At most so long nothing new may come to the sink: a connection without a peer is left after a minute."""

_PORTION = 200
_SLICES = 4
_KILL_AFTER = 3.0
_SINK_PAUSE = 0.6
"""Where the JVM is killed, each batch waits so long between its digest and the sink: one of them runs again."""
_CODE = re.compile(r"\[((?:PUBSUB|KINESIS|KAFKA|SPOOL|SCHEMA_REGISTRY)_[A-Z_]+)\]")
_SLACK_SECONDS = 30.0
"""For planning a batch and for a busy machine, on top of what is documented."""
_MORE_CONNECTIONS = 12
"""So many more than before a fault may be left after it; one attempt each second of an outage would be more."""


@dataclass(frozen=True)
class Cell:
    """What is tried.

    Attributes:
        flow: a name in `FLOWS`.
        fault: a name in `FAULTS`; or the process that is paused: a name in `processes.VICTIMS`, or ``broker``.
        seed: of the trial.
    """

    flow: str
    fault: str
    seed: int


class NetworkTrial:
    """A flow, a fault in the middle of it, and the end.

    Args:
        cell: what to try.
        folder: for the flow; it is made.
        services: the servers.
        jobs: Spark processes.
    """

    def __init__(self, cell: Cell, folder: Path, services: Services, jobs: SparkJobs) -> None:
        self._cell, self._jobs = cell, jobs
        self._flow: Flow = FLOWS[cell.flow](services, folder)
        self._killed: list[str] = []
        self._left_behind: dict[int, str] = {}
        self._errors: list[dict[str, Any]] = []
        self._errors_seen = 0

    def run(self) -> dict[str, Any]:
        """Run it; the outcome for the record.

        Raises:
            AssertionError: something that had to come did not come.
        """
        flow = self._flow
        self._start(self._jobs.current)
        flow.publish(_PORTION)
        self._wait_for_all()
        before, connected = self._footprint(), connections(flow.proxy)
        self._began = time.time()
        fault = FAULTS.get(self._cell.fault)
        if fault is None:
            self._pause(self._cell.fault)
        else:
            self._strike(fault)
        healed = time.monotonic()
        flow.publish(_PORTION)
        self._wait_for_all()
        seconds = time.monotonic() - healed
        after = {**self._footprint(), "connections_lost": len(connected - connections(flow.proxy))}
        job = self._jobs.current
        job.stop_query()
        self._note_errors(job)
        return self._outcome(seconds, before, after)

    def _start(self, job: SparkJob) -> None:
        self._errors_seen = len(job.query_errors())
        fault = FAULTS.get(self._cell.fault)
        pause = _SINK_PAUSE if fault is not None and "jvm" in fault.kills else 0.0
        job.run({**self._flow.query, "sink_pause": pause})

    def _wait_for_all(self) -> None:
        """Wait until all that was published has arrived; fails when for long nothing more comes."""
        count = len(self._flow.published)
        while (now := self._flow.rows()) < count:

            def more(known: int = now) -> bool:
                return self._flow.rows() > known

            self._jobs.current.wait_for(f"more than {now} of {count} rows", more, HEALING_SECONDS)

    def _strike(self, fault: Fault) -> None:
        """Publish while the network is bad."""
        choose = random.Random(self._cell.seed)
        if fault.kills:
            before = self._flow.rows_run()
            self._flow.publish(_PORTION)
            self._jobs.current.wait_for("a batch runs", lambda: self._flow.rows_run() > before, HEALING_SECONDS)
        with applied(fault, self._flow.proxy):
            if fault.kills:
                time.sleep(0.0 if "jvm" in fault.kills else choose.uniform(0.0, _KILL_AFTER))
                self._kill(choose.choice([victim for victim in fault.kills if victim in self._flow.victims]))
            self._publish_slowly(fault.seconds)
            if fault.server_seconds:
                self._flow.jump(fault.server_seconds)
            if fault.passes:
                self._wait_for_all()

    def _publish_slowly(self, seconds: float) -> None:
        for _ in range(_SLICES):
            self._flow.publish(_PORTION // _SLICES)
            time.sleep(seconds / _SLICES)

    def _pause(self, victim: str) -> None:
        """Publish while a process stands still; the broker cannot be published to then."""
        if victim == "broker":
            assert isinstance(self._flow, KafkaFlow)
            broker, _ = self._flow.services.kafka
            self._flow.publish(_PORTION)
            with paused(broker.java_pid):
                time.sleep(PAUSE_SECONDS)
            return
        self._flow.publish(_PORTION)
        with paused(self._find(victim)):
            self._publish_slowly(PAUSE_SECONDS)

    def _find(self, victim: str) -> int:
        """A process of a kind; a worker lives only while there are tasks."""
        job = self._jobs.current
        found: list[int] = []

        def is_there() -> bool:
            found.extend(processes.find(job.pid, victim))
            return bool(found)

        job.wait_for(f"a victim: {victim}", is_there, HEALING_SECONDS)
        return min(found)

    def _kill(self, victim: str) -> None:
        """Kill a process, and go on as an operator would."""
        job = self._jobs.current
        self._note_errors(job)
        pid = self._find(victim)
        below = [job.pid, *processes.descendants(job.pid)] if victim == "jvm" else [pid, *processes.descendants(pid)]
        processes.kill(pid)
        self._killed.append(victim)
        if victim == "jvm":
            new = self._jobs.replace()
            job.reap()
        self._left_behind |= processes.still_running(below, GONE_SECONDS)
        if victim == "jvm":
            self._start(new)

    def _note_errors(self, job: SparkJob) -> None:
        """Keep the errors of queries that ended, each with the seconds since the fault or the start before it."""
        for event in job.events("query_ended")[self._errors_seen :]:
            starts = [start["time"] for start in job.events("started") if start["time"] < event["time"]]
            self._errors.append({**event, "seconds": event["time"] - max([self._began, *starts])})
        self._errors_seen = len(job.query_errors())

    def _footprint(self) -> dict[str, int]:
        """What the query holds: memory of its Python processes, its connections to the service, files of its spool."""
        job = self._jobs.current
        pids = [pid for kind in ("source_runner", "fetcher", "worker") for pid in processes.find(job.pid, kind)]
        spool = self._flow.folder / "spool"
        return {
            "memory_mb": sum(map(resident_bytes, pids)) >> 20,
            "connections": len(connections(self._flow.proxy)),
            "spool_files": sum(path.is_file() for path in spool.rglob("*")),
        }

    def _outcome(self, seconds: float, before: dict[str, int], after: dict[str, int]) -> dict[str, Any]:
        counts, faults = self._flow.judge()
        codes = [sorted(set(_CODE.findall(error["error"]))) for error in self._errors]
        faults += self._stops(codes)
        faults += [f"left behind: {process.replace(str(ROOT), '')}" for process in self._left_behind.values()]
        if after["connections"] > before["connections"] + _MORE_CONNECTIONS:
            faults.append(f"{after['connections']} connections are open after it, {before['connections']} before")
        stopped = sorted({code for found in codes for code in found})
        return {
            "ok": not faults,
            "faults": faults,
            "flow": self._cell.flow,
            "fault": self._cell.fault,
            "became": f"stopped with {', '.join(stopped)}" if stopped else "went on by itself",
            **({"killed": self._killed} if self._killed else {}),
            "caught_up_seconds": round(seconds, 1),
            "before": before,
            "after": after,
            "counts": {"messages": len(self._flow.published), "stops": len(stopped and self._errors), **counts},
            "query_errors": [
                {"error": first_line(error["error"]), "codes": found, "seconds": round(error["seconds"], 1)}
                for error, found in zip(self._errors, codes, strict=True)
            ],
        }

    def _stops(self, codes: list[list[str]]) -> list[str]:
        """What is wrong about the errors that ended the query: each must have one documented code, and come in time."""
        faults = []
        of_kills = sum(victim == "source_runner" for victim in self._killed)
        for error, found in zip(self._errors, codes, strict=True):
            if not found and of_kills:
                of_kills -= 1  # Spark does not start a source process again: the query ends, and is started again
                continue
            limits = [self._flow.stops.get(code) for code in found]
            limit = limits[0] if len(limits) == 1 else None
            if limit is None:
                faults.append(f"stopped with {found or 'no named error'}: {first_line(error['error'])}")
            elif error["seconds"] > limit + _SLACK_SECONDS:
                faults.append(f"stopped with {found[0]} only after {error['seconds']:.0f} s")
        return faults
