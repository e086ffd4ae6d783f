"""A query of Spark, from Kafka to Kafka exactly once, some of whose requests reach the broker late."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from tests.chaos.rigs.kafka_kills import HEALING_SECONDS, KillPlan, KillTrial
from tests.chaos.support.spark import SparkJobs
from tests.support.kafka_proxy import LateRequests, Request
from tests.support.kafka_rig import KafkaRig
from tests.support.waiting import wait_for

_REQUESTS: Final = (Request.COMMIT, Request.COMMIT, Request.PRODUCE, Request.OFFSET_COMMIT, Request.INIT_PRODUCER)
_RECORDS: Final = 6_000
_BATCHES: Final = 30
_LATE: Final = 5
_TASKS: Final = 3


class LateSparkTrial(KillTrial):
    """Instead of kills, requests are held, and arrive within a later task of their id; then half of the workers die.

    Args:
        seed: of the trial.
        folder: for the checkpoint; it is made.
        kafka: the broker.
        jobs: Spark processes.
        proxy: leads to the broker.
    """

    def __init__(self, seed: int, folder: Path, kafka: KafkaRig, jobs: SparkJobs, proxy: LateRequests) -> None:
        choose = random.Random(seed)
        names = tuple(choose.choice(_REQUESTS).name for _ in range(_LATE))
        super().__init__(KillPlan(seed, _RECORDS, names, _RECORDS // _BATCHES), folder, kafka, jobs)
        self._proxy, self._requests = proxy, names
        self._answers: list[str] = []
        self._workers_killed = 0

    def _sink(self, servers: Mapping[str, str]) -> dict[str, Any]:
        sink = super()._sink(servers)
        return {**sink, "options": {**sink["options"], "kafka.bootstrap.servers": self._proxy.endpoint}}

    def _kill(self, victim: str) -> None:
        """Hold a request, and let it arrive once a later task of its transactional id has sent rows."""
        metadata = self._folder / "checkpoint" / "metadata"
        query = json.loads(wait_for(lambda: metadata.exists() and metadata.read_text(), HEALING_SECONDS))["id"]
        transactional_id = f"kafka_py-{query}-{self._choose.randrange(_TASKS)}"
        hold = self._proxy.hold(Request[victim], transactional_id)
        assert hold.holds.wait(HEALING_SECONDS), f"no {victim} came"
        kills, done = self._choose.random() < 0.5, Future[None]()

        def arrive() -> None:
            hold.deliver()
            if kills and (found := sorted(self._jobs.current.find("worker"))):
                self._jobs.current.strike("worker", self._choose.choice(found))
                self._workers_killed += 1
            done.set_result(None)

        def later_task() -> None:
            self._proxy.once_answered(Request.PRODUCE, transactional_id, arrive)

        self._proxy.once_answered(Request.INIT_PRODUCER, transactional_id, later_task)
        done.result(HEALING_SECONDS)
        self._answers += hold.errors

    def run(self) -> dict[str, Any]:
        """Run it; the outcome for the record."""
        outcome = super().run()
        outcome.pop("killed")
        counts = {name: outcome["counts"][name] for name in ("messages", "lost", "doubled", "phantom")}
        refused = sum(answer != "NO_ERROR" for answer in self._answers)
        counts |= {"late": len(self._answers), "refused": refused, "kills": self._workers_killed}
        return {**outcome, "request": "spark", "requests": self._requests, "answers": self._answers, "counts": counts}
