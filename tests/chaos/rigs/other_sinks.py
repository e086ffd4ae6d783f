"""A query from Kafka to one of the sinks that promise at least once, and its ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.pubsub_v1.types import pubsub as types

from connectors.testing.kinesis import KinesisControl
from connectors.testing.pubsub.client import PubSubTestClient
from tests.chaos.rigs.kafka_kills import KillPlan, KillTrial
from tests.chaos.support.spark import SparkJobs
from tests.support.kafka_rig import KafkaRig

_PROJECT = "chaos"
_SHARDS = 2
_LEASE_SECONDS = 600
_MOST_MESSAGES = 1000


class KinesisSinkTrial(KillTrial):
    """From Kafka to Kinesis: no record is lost, and some may be written again.

    Args:
        plan: what to do.
        folder: for the checkpoint.
        kafka: the broker.
        jobs: Spark processes.
        server: the endpoint of a Kinesis server.
    """

    may_double = True

    def __init__(self, plan: KillPlan, folder: Path, kafka: KafkaRig, jobs: SparkJobs, server: str) -> None:
        super().__init__(plan, folder, kafka, jobs)
        self._control, self._endpoint, self._stream = KinesisControl(server), server, folder.name
        self._control.create_stream(self._stream, _SHARDS)

    def _sink(self, _servers: Mapping[str, str]) -> dict[str, Any]:
        place = {"streamName": self._stream, "endpointUrl": f"http://{self._endpoint}", "maxRetryInterval": "500ms"}
        keys = {"awsAccessKey": "AKIATEST", "awsSecretKey": "test-secret"}
        columns = ["CAST(value AS STRING) AS partitionKey", "value AS data"]
        return {"format": "kinesis", "options": {**place, **keys}, "columns": columns}

    def _committed(self) -> int:
        return len(self._seen())

    def _seen(self) -> Counter[int]:
        return Counter(int(record.data) for record in self._control.records(self._stream))


class PubSubSinkTrial(KillTrial):
    """From Kafka to Pub/Sub, read as our source reads with ``dedupAttribute=spark_uid``: each record once.

    Args:
        plan: what to do.
        folder: for the checkpoint.
        kafka: the broker.
        jobs: Spark processes.
        server: the endpoint of a Pub/Sub server, whose time goes as fast as ours.
    """

    def __init__(self, plan: KillPlan, folder: Path, kafka: KafkaRig, jobs: SparkJobs, server: str) -> None:
        super().__init__(plan, folder, kafka, jobs)
        self._client, self._endpoint, self._name = PubSubTestClient(server, _PROJECT), server, folder.name
        self._client.create(self._name, self._name, _LEASE_SECONDS)
        self._rows: dict[str, int] = {}
        self._deliveries = 0

    def run(self) -> dict[str, Any]:
        with self._client:
            outcome = super().run()
        outcome["counts"]["deliveries"] = self._deliveries
        return outcome

    def _sink(self, _servers: Mapping[str, str]) -> dict[str, Any]:
        options = {"topicId": f"projects/{_PROJECT}/topics/{self._name}", "endpoint": self._endpoint}
        return {"format": "pubsub", "options": options, "columns": ["value AS payload"]}

    def _committed(self) -> int:
        return len(self._seen())

    def _seen(self) -> Counter[int]:
        """The rows by the name that the sink gave each; what was pulled is leased, so it does not come again."""
        asked = types.PullRequest(
            subscription=self._client.subscription(self._name), max_messages=_MOST_MESSAGES, return_immediately=True
        )
        while found := self._client.call("Subscriber/Pull", asked, types.PullResponse).received_messages:
            self._deliveries += len(found)
            self._rows |= {each.message.attributes["spark_uid"]: int(each.message.data) for each in found}
        return Counter(self._rows.values())
