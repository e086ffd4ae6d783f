"""One fault of a cluster in the middle of a query, for each source and each sink, with the checks of the other rigs."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from connectors.testing import kinesis, pubsub
from tests.chaos.rigs import kafka_kills, kinesis_kills, pubsub_kills
from tests.chaos.rigs.other_sinks import KinesisSinkTrial, PubSubSinkTrial
from tests.chaos.support.cluster import StandaloneCluster
from tests.chaos.support.spark import SparkJobs
from tests.chaos.support.trials import temporary_folder
from tests.servers.kafka_broker import KafkaBroker
from tests.servers.object_stores import AzuriteServer
from tests.support.kafka_rig import KafkaRig

FAULTS = ("executor", "machine", "driver", "allocation", "decommission")
"""An executor is killed; a machine is lost, and another one joins; the driver is killed and started again; dynamic
allocation gives an executor back; a machine is decommissioned, and then lost."""
FLOWS = (
    "kafka_to_kafka",
    "kinesis_polling",
    "kinesis_efo",
    "pubsub",
    "pubsub_on_object_store",
    "pubsub_on_executors",
    "kafka_to_kinesis",
    "kafka_to_pubsub",
)

_FETCHERS = "2"
_BATCHES = 6
_BATCHES_WITH_PAUSES = 3
_PAUSE_OF_BATCHES = "8 seconds"
"""Longer than an idle executor is kept."""
_BURST_SECONDS = 4.0
"""Another job of the application asks for more executors than there are at least, and lets them go."""


_MOST_SECONDS = 60.0
"""From a fault until the sink has new rows."""


class ClusterRig:
    """A cluster, the servers, and Spark applications; each starts with the first trial that needs it.

    Args:
        stack: ends what is started.
    """

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    @cached_property
    def _cluster(self) -> StandaloneCluster:
        return self._stack.enter_context(StandaloneCluster(self._folder("cluster")))

    @cached_property
    def _jobs(self) -> SparkJobs:
        return self._stack.enter_context(SparkJobs(self._folder("jobs"), cluster=self._cluster))

    @cached_property
    def _broker(self) -> KafkaBroker:
        return self._stack.enter_context(KafkaBroker())

    @cached_property
    def _kinesis(self) -> Any:
        return self._stack.enter_context(kinesis.start_server_process(call_limit=0))

    @cached_property
    def _pubsub(self) -> Any:
        return self._stack.enter_context(pubsub.start_server_process(event_limit=0))

    @cached_property
    def _steady_pubsub(self) -> Any:
        return self._stack.enter_context(pubsub.start_server_process(event_limit=0))

    @cached_property
    def _store(self) -> AzuriteServer:
        return self._stack.enter_context(AzuriteServer())

    def _folder(self, name: str) -> Path:
        return self._stack.enter_context(temporary_folder(name))

    def run(self, folder: Path, seed: int, flow: str, fault: str, messages: int) -> dict[str, Any]:
        """Run a trial in a folder of its own; the outcome for the record."""
        self._jobs.extra.clear()
        if fault == "allocation":
            self._jobs.extra["trigger"] = _PAUSE_OF_BATCHES
            self._jobs.extra["burst"] = _BURST_SECONDS
        if flow == "pubsub_on_executors" and fault == "executor":
            fault = "fetching_executor"
        try:
            with self._cluster.watched():
                outcome: dict[str, Any] = self._trial(folder, seed, flow, fault, messages).run()
        except BaseException:
            self._jobs.discard()
            raise
        late = [seconds for seconds in outcome["seconds_until_new_rows"] if seconds > _MOST_SECONDS]
        if late:
            outcome |= {"ok": False, "faults": [*outcome["faults"], f"new rows after {late} s"]}
        # These faults are not moments that were drawn alone, so no bound is computed from them.
        return {**{key: value for key, value in outcome.items() if key != "killed"}, "flow": flow, "fault": fault}

    def _trial(self, folder: Path, seed: int, flow: str, fault: str, messages: int) -> Any:
        own = folder / folder.name
        match flow.split("_"):
            case ["kinesis", mode]:
                plan = kinesis_kills.KillPlan.make(seed, mode, 0, 1)
                return kinesis_kills.KillTrial(replace(plan, victims=(fault,)), own, self._kinesis.endpoint, self._jobs)
            case ["pubsub", *_]:
                return self._pubsub_trial(own, seed, flow, fault, messages)
        batches = _BATCHES_WITH_PAUSES if fault == "allocation" else _BATCHES
        drawn = kafka_kills.KillPlan.make(seed, 1, messages)
        plan_of_kafka = replace(drawn, victims=(fault,), limit=messages // batches)
        shared = (plan_of_kafka, own, KafkaRig(self._broker, folder), self._jobs)
        if flow == "kafka_to_kinesis":
            return KinesisSinkTrial(*shared, self._kinesis.endpoint)
        if flow == "kafka_to_pubsub":
            return PubSubSinkTrial(*shared, self._steady_pubsub.endpoint)
        return kafka_kills.KillTrial(*shared)

    def _pubsub_trial(self, folder: Path, seed: int, flow: str, fault: str, messages: int) -> pubsub_kills.KillTrial:
        plan = pubsub_kills.KillPlan.make(seed, (fault,), messages)
        options = dict(plan.options)
        if fault == "allocation":
            options["maxRecordsPerTrigger"] = str(messages // _BATCHES_WITH_PAUSES)
        if flow == "pubsub_on_executors":
            options |= {"fetch": "external", "fetchers": _FETCHERS}
        spool = self._store.options(folder.name) if flow == "pubsub_on_object_store" else None
        plan = replace(plan, options=options)
        return pubsub_kills.KillTrial(plan, folder, self._pubsub, self._pubsub.endpoint, self._jobs, spool)
