"""A query that one version leaves in the middle of a batch, and another one goes on with."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from connectors.testing.kinesis import KinesisControl
from connectors.testing.pubsub.client import PubSubTestClient
from connectors.testing.pubsub.faults.knobs import PubSubKnobs
from tests.chaos.rigs.versions import Version
from tests.chaos.support import processes
from tests.chaos.support.sink import attempts, examine, rows_in_sink, sink_rows
from tests.chaos.support.spark import SparkJob
from tests.support.kafka_rig import KafkaRig
from tests.support.kinesis_rig import KinesisRig

PORTION = 500
"""Messages that are there before the first version starts, before its last batch, and before the second one starts."""

_PATIENCE = 90.0
_HELD_SECONDS = 600.0
_ACK_DEADLINE = 10
_PARTITIONS = 3
_TASK_COLUMN = "partition"
"""As the program of 0.1.0 calls it; a replay is compared with the name."""


@dataclass(frozen=True)
class Verdict:
    """What the sink holds.

    Attributes:
        counts: for the record.
        faults: what must not be.
    """

    counts: Mapping[str, int]
    faults: list[str]


class Flow(ABC):
    """A source with messages, a sink, and the query between them.

    Args:
        folder: for checkpoint, spool and sink; it is made.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder

    @property
    def failpoints(self) -> str:
        """What holds the last batch of the first version; empty where its sink does."""
        return ""

    @abstractmethod
    def publish(self) -> None:
        """Publish a portion."""

    @abstractmethod
    def plan(self, *, is_held: bool) -> dict[str, Any]:
        """Return the query; with a held batch it stops in the first batch that it runs."""

    @abstractmethod
    def is_done(self) -> bool:
        """Return whether all that was published is in the sink."""

    @abstractmethod
    def is_in_batch(self) -> bool:
        """Return whether the last batch of the first version is planned and has rows, and is not committed."""

    @abstractmethod
    def verdict(self) -> Verdict:
        """Compare the sink with what was published."""

    def after_kill(self) -> None:  # noqa: B027 - most services have nothing to wait for
        """Let the service see that its client is gone."""


class RowFlow(Flow):
    """A query from a source to files keyed on the batch id."""

    format: str
    key: str
    position: str | None = None

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.published: dict[Any, dict[str, Any]] = {}
        self._committed = 0

    @property
    @abstractmethod
    def options(self) -> dict[str, str]:
        """Return the options of the source."""

    def plan(self, *, is_held: bool) -> dict[str, Any]:
        """Return the query; its sink holds a batch between its rows and its file."""
        self._committed = len(attempts(self.folder))
        pause = _HELD_SECONDS if is_held else 0.0
        return {
            "folder": str(self.folder),
            "format": self.format,
            "options": self.options,
            "sink_pause": pause,
            "task_column": _TASK_COLUMN,
        }

    def is_done(self) -> bool:
        """Return whether all that was published is in the sink."""
        return rows_in_sink(self.folder) >= len(self.published)

    def is_in_batch(self) -> bool:
        """Return whether a batch has run that is not in the sink."""
        return len(attempts(self.folder)) > self._committed

    def verdict(self) -> Verdict:
        """Compare rows and replays."""
        found = examine(sink_rows(self.folder), attempts(self.folder), self.published, self.key, self.position)
        faults = [f"{count} {name}" for name, count in found.faults.items()]
        if not found.replays_compared:
            faults.append("the unfinished batch was not repeated")
        return Verdict({"messages": len(self.published), **asdict(found)}, faults)


class PubSubFlow(RowFlow):
    """From Pub/Sub, with a spool.

    Args:
        folder: as for `Flow`.
        server: where messages come from.
        endpoint: where it listens.
        spool: the options that say where the spool is, if not in the folder.
    """

    format, key, position = "pubsub", "messageId", "offset"

    def __init__(
        self, folder: Path, server: PubSubKnobs, endpoint: str, spool: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(folder)
        self._server, self._endpoint = server, endpoint
        self._spool = spool or {"spoolLocation": str(folder / "spool")}
        with PubSubTestClient(endpoint, "chaos") as client:
            client.create(folder.name, folder.name, _ACK_DEADLINE)

    @property
    def options(self) -> dict[str, str]:
        """Return the options of the source."""
        place = {"projectId": "chaos", "subscriptionId": self.folder.name, "endpoint": self._endpoint}
        return {**place, **self._spool, "maxFetchPeriod": "30ms", "maxRecordsPerTrigger": "150"}

    def publish(self) -> None:
        """Publish a portion."""
        first = len(self.published)
        messages: list[tuple[bytes, dict[str, str]]] = [
            (f"message {number}".encode(), {"number": str(number)}) for number in range(first, first + PORTION)
        ]
        with PubSubTestClient(self._endpoint, "chaos") as client:
            ids = client.publish(self.folder.name, messages)
        for identity, (payload, attributes) in zip(ids, messages, strict=True):
            self.published[identity] = {"payload": payload, "attributes": attributes}

    def after_kill(self) -> None:
        """Let the deadlines of what dead fetchers held pass."""
        self._server.jump(6 * _ACK_DEADLINE)


class KinesisFlow(RowFlow):
    """From Kinesis.

    Args:
        folder: as for `Flow`.
        server: where records come from.
        is_fan_out: whether the query subscribes, with a spool, instead of polling.
    """

    format, key = "kinesis", "data"

    def __init__(self, folder: Path, server: KinesisControl, *, is_fan_out: bool) -> None:
        super().__init__(folder)
        self._rig = KinesisRig(server, folder, shards=2)
        fan_out = {"consumerMode": "efo", "consumerName": "upgrade", "spoolLocation": str(folder / "spool")}
        self._mode = fan_out if is_fan_out else {"maxRecordsPerTrigger": "150"}

    @property
    def options(self) -> dict[str, str]:
        """Return the options of the source."""
        return self._rig.options(**self._mode)

    def publish(self) -> None:
        """Put a portion."""
        self.published |= {data: {} for data in self._rig.put(PORTION)}


class KafkaFlow(Flow):
    """From Kafka to Kafka, exactly once.

    Args:
        folder: as for `Flow`.
        kafka: the broker.
        held_at: the failpoint of the sink at which the last batch of the first version stops.
    """

    def __init__(self, folder: Path, kafka: KafkaRig, held_at: str) -> None:
        super().__init__(folder)
        self._kafka, self._held_at, self._published = kafka, held_at, 0
        self._source, self._target = kafka.topic(_PARTITIONS), kafka.topic(_PARTITIONS)

    @cached_property
    def _held(self) -> Path:
        return self.folder / "held"

    @property
    def failpoints(self) -> str:
        """Return the place in a task where it waits."""
        return f"{self._held_at}=pause:{self._held}"

    def publish(self) -> None:
        """Send a portion."""
        numbers = range(self._published, self._published + PORTION)
        for partition in range(_PARTITIONS):
            self._kafka.send(self._source, numbers[partition::_PARTITIONS], partition, key=b"k")
        self._published += PORTION

    def plan(self, *, is_held: bool) -> dict[str, Any]:  # noqa: ARG002 - failpoints hold it
        """Return the query."""
        servers = {"kafka.bootstrap.servers": self._kafka.broker.endpoint}
        source = {"subscribe": self._source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "150"}
        target = {"topic": self._target, "deliveryGuarantee": "exactly_once"}
        return {
            "folder": str(self.folder),
            "format": "kafka_py",
            "options": servers | source,
            "sink": {"format": "kafka_py", "options": servers | target},
        }

    def is_done(self) -> bool:
        """Return whether all that was sent is in the target."""
        return len(self._seen()) >= self._published

    def is_in_batch(self) -> bool:
        """Return whether a task waits."""
        return self._held.exists()

    def is_open(self) -> bool:
        """Return whether a transaction of the sink has records and is not committed."""
        ends = (
            [self._kafka.end(self._target, n, committed=each) for n in range(_PARTITIONS)] for each in (True, False)
        )
        committed, sent = ends
        return committed != sent

    def _seen(self) -> Counter[int]:
        found = self._kafka.read_committed(self._target, _PARTITIONS, is_open=True)
        return Counter(int(message.value()) for message in found)

    def verdict(self) -> Verdict:
        """Compare the target with what was sent, when no transaction is open any more."""
        self._kafka.wait_for_ends(self._target, _PARTITIONS)
        seen, wanted = self._seen(), set(range(self._published))
        counts = {
            "lost": len(wanted - seen.keys()),
            "doubled": sum(count - 1 for count in seen.values()),
            "phantom": len(seen.keys() - wanted),
        }
        faults = [f"{count} {name}" for name, count in counts.items() if count]
        return Verdict({"messages": self._published, **counts}, faults)


def upgrade(flow: Flow, folder: Path, first: Version, second: Version) -> dict[str, Any]:
    """Run a query by one version, kill it within a batch, and go on by the other; the outcome for the record.

    Raises:
        AssertionError: something that had to come did not come.
    """
    flow.publish()
    job = first.start(folder / "first")
    _run_to_end(flow, job)
    job.close()
    held = first.start(folder / "held", {"CONNECTORS_FAILPOINTS": flow.failpoints})
    try:
        flow.publish()
        held.run(flow.plan(is_held=True))
        held.wait_for("a batch that is half done", flow.is_in_batch, _PATIENCE)
        everyone = held.processes()
    finally:
        held.kill()
    assert not processes.still_running(everyone, 10.0)
    flow.after_kill()
    flow.publish()
    job = second.start(folder / "second")
    _run_to_end(flow, job)
    errors = job.query_errors()
    job.close()
    verdict = flow.verdict()
    faults = verdict.faults + [f"the query ended: {error.splitlines()[0]}" for error in errors]
    return {"ok": not faults, "faults": faults, "counts": dict(verdict.counts)}


def _run_to_end(flow: Flow, job: SparkJob) -> None:
    """Run the query until all is in the sink."""
    try:
        job.run(flow.plan(is_held=False))
        job.wait_for("all is in the sink", flow.is_done, _PATIENCE)
        time.sleep(0.5)  # for the commit of the last batch
        job.stop_query()
    except BaseException:
        job.kill()
        raise
