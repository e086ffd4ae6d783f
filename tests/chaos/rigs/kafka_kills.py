"""Random kills of an exactly-once query from Kafka to Kafka: each record must be in the target once."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.chaos.support import processes
from tests.chaos.support.recovery import Recovery
from tests.chaos.support.sink import attempts, examine, groups_out_of_order, rows_in_sink, sink_rows
from tests.chaos.support.spark import GONE_SECONDS, SparkJobs
from tests.support.kafka_rig import KafkaRig

HEALING_SECONDS = 90.0
"""At most so long nothing new may come to the target."""

_KILLS_A_JVM = 5
"""One of so many kills is of the JVM, and at least one of each trial."""
_OTHERS = ("worker", "worker", "worker", "driver", "source_runner")
_PARTITIONS = 3
_POLL_SECONDS = 0.1
_LATEST_SECONDS = 0.6
_SINK_PAUSE = 0.1


@dataclass(frozen=True)
class KillPlan:
    """What a trial does; all of it follows from the seed.

    Attributes:
        seed: of the trial.
        records: how many are in the source.
        victims: who is killed, one after the other; the JVM is among them.
        limit: offsets of a batch.
    """

    seed: int
    records: int
    victims: tuple[str, ...]
    limit: int

    @classmethod
    def make(cls, seed: int, kills: int, records: int) -> KillPlan:
        """The plan of a seed."""
        choose = random.Random(seed)
        of_jvm = max(1, kills // _KILLS_A_JVM)
        victims = [*(["jvm"] * of_jvm), *(choose.choice(_OTHERS) for _ in range(kills - of_jvm))]
        choose.shuffle(victims)
        return cls(seed, records, tuple(victims), records // choose.choice((12, 20, 30)))


class KillTrial:
    """A source, a target, a query between them, and its ends.

    Args:
        plan: what to do.
        folder: for the checkpoint; it is made.
        kafka: the broker.
        jobs: Spark processes.

    Attributes:
        may_double: whether a record may be in the target more than once.
    """

    may_double = False

    def __init__(self, plan: KillPlan, folder: Path, kafka: KafkaRig, jobs: SparkJobs) -> None:
        folder.mkdir(parents=True)
        self._plan, self._folder, self._kafka, self._jobs = plan, folder, kafka, jobs
        self._choose = random.Random(f"{plan.seed} moments")
        self._source, self._target = kafka.topic(_PARTITIONS), kafka.topic(_PARTITIONS)
        self._killed: list[str] = []
        self._left_behind: dict[int, str] = {}
        self._recovery = Recovery()

    @property
    def _query(self) -> dict[str, Any]:
        servers = {"kafka.bootstrap.servers": self._kafka.broker.endpoint}
        return {
            "folder": str(self._folder),
            "format": "kafka_py",
            "options": {
                **servers,
                "subscribe": self._source,
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": str(self._plan.limit),
            },
            "sink": self._sink(servers),
        }

    def _sink(self, servers: Mapping[str, str]) -> dict[str, Any]:
        return {
            "format": "kafka_py",
            "options": {**servers, "topic": self._target, "deliveryGuarantee": "exactly_once"},
        }

    def run(self) -> dict[str, Any]:
        """Run it; the outcome for the record.

        Raises:
            AssertionError: something that had to come did not come.
        """
        for partition in range(_PARTITIONS):
            numbers = range(partition, self._plan.records, _PARTITIONS)
            self._kafka.send(self._source, numbers, partition, key=b"k")
        job = self._jobs.current
        job.run(self._query)
        share = self._plan.records / (len(self._plan.victims) + 1)
        for number, victim in enumerate(self._plan.victims, 1):
            self._wait_for(int(share * number * self._choose.uniform(0.6, 1.0)))
            time.sleep(self._choose.uniform(0, _LATEST_SECONDS))
            self._kill(victim)
        self._wait_for(self._plan.records)
        job = self._jobs.current
        job.stop_query()  # a batch that is repeated now, after the last kill, is part of the trial
        return self._outcome(self._seen(), job.query_errors())

    def _committed(self) -> int:
        """About how many records the target holds: its offsets count markers and aborted records too."""
        return sum(self._kafka.end(self._target, number, committed=True) for number in range(_PARTITIONS))

    def _seen(self) -> Counter[int]:
        """The records of the target, as a careful consumer sees them."""
        found = self._kafka.read_committed(self._target, _PARTITIONS, is_open=True)
        return Counter(int(message.value()) for message in found)

    def _wait_for(self, count: int) -> None:
        """Wait for so many records; fails when nothing more comes for long."""
        known, since = -1, time.monotonic()
        while (now := self._committed()) < count or (count == self._plan.records and len(self._seen()) < count):
            self._recovery.see(now)
            if now != known:
                known, since = now, time.monotonic()
            assert time.monotonic() - since < HEALING_SECONDS, f"{now} of {count} records"
            time.sleep(_POLL_SECONDS)

    def _kill(self, victim: str) -> None:
        """Kill a process, and go on as an operator would."""
        job = self._jobs.current
        found = sorted(job.find(victim))
        if not found:
            # A worker lives only while there are tasks: the next one that comes.
            job.wait_for(
                f"a victim: {victim}",
                lambda: bool(found.extend(job.find(victim)) or found),
                HEALING_SECONDS,
            )
        pid = self._choose.choice(found)
        below = job.processes() if victim in {"jvm", "driver"} else [pid]
        self._recovery.begin(self._committed())
        job.strike(victim, pid)
        self._killed.append(victim)
        if victim in {"jvm", "driver"}:
            new = self._jobs.replace()
            job.reap()
            self._left_behind |= processes.still_running(below, GONE_SECONDS)
            new.run(self._query)

    def _outcome(self, seen: Counter[int], errors: list[str]) -> dict[str, Any]:
        lost = [number for number in range(self._plan.records) if not seen[number]]
        doubled = [number for number, count in seen.items() if count > 1]
        phantom = sorted(set(seen) - set(range(self._plan.records)))
        judged = (("lost", lost), ("doubled", [] if self.may_double else doubled), ("phantom", phantom))
        faults = [f"{len(found)} {word}" for word, found in judged if found]
        faults += [f"left behind: {command}" for command in self._left_behind.values()]
        return {
            "ok": not faults,
            "faults": faults,
            "limit": self._plan.limit,
            "killed": self._killed,
            "seconds_until_new_rows": self._recovery.seconds,
            "counts": {
                "messages": self._plan.records,
                "kills": len(self._killed),
                **{f"kills_{victim}": count for victim, count in sorted(Counter(self._killed).items())},
                "lost": len(lost),
                "repeated" if self.may_double else "doubled": len(doubled),
                "phantom": len(phantom),
            },
            "query_errors": [error.strip().splitlines()[0][:200] for error in errors],
        }


class RowsTrial(KillTrial):
    """From Kafka to files keyed on the batch id, which show order and repeated batches too."""

    @property
    def _query(self) -> dict[str, Any]:
        query = super()._query
        del query["sink"]
        return {**query, "sink_pause": _SINK_PAUSE}

    def _committed(self) -> int:
        return rows_in_sink(self._folder)

    def _seen(self) -> Counter[int]:
        return Counter(int(row["value"]) for row in sink_rows(self._folder))

    def _outcome(self, seen: Counter[int], errors: list[str]) -> dict[str, Any]:
        outcome = super()._outcome(seen, errors)
        rows = sink_rows(self._folder)
        published = {str(number).encode(): {"topic": self._source} for number in range(self._plan.records)}
        findings = examine(rows, attempts(self._folder), published, key="value")
        disordered = groups_out_of_order(rows, "partition", "offset")
        faults = [f"{count} {name}" for name, count in findings.faults.items()]
        faults += [f"{disordered} partitions out of order"] if disordered else []
        counts = {**outcome["counts"], **asdict(findings), "partitions_out_of_order": disordered}
        faults = [*dict.fromkeys((*outcome["faults"], *faults))]
        return {**outcome, "ok": not faults, "faults": faults, "counts": counts}
