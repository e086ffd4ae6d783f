"""What fault runs of the network read and write: a flow is a service behind a proxy, a query on it, and its checker."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from connectors.testing.kinesis import start_server_process as start_kinesis
from connectors.testing.pubsub import start_server_process as start_pubsub
from connectors.testing.pubsub.client import PubSubTestClient
from connectors.testing.schema_registry import SchemaRegistryServer
from tests.chaos.support.sink import attempts, examine, rows_in_sink, rows_run, sink_rows
from tests.servers.kafka_broker import KafkaBroker
from tests.servers.object_stores import VersityServer
from tests.servers.pubsub_emulator import Emulator
from tests.servers.toxiproxy import Proxy, Toxiproxy
from tests.support.kafka_rig import STEADY, KafkaRig

_PROJECT = "chaos"
_KEYS = 7
_PARTITIONS = 2
_BATCH = 100
_BYTES = 1000
"""Of each record: so many need some seconds at 50 kB/s."""
_PORT_OF_NOBODY = "127.0.0.1:9"


class Services:
    """The servers of a run and the proxies before them, each started when it is first needed.

    Args:
        stack: ends them.
        seed: of toxiproxy.
    """

    def __init__(self, stack: ExitStack, seed: int) -> None:
        self._stack, self._seed = stack, seed

    @cached_property
    def toxiproxy(self) -> Toxiproxy:
        """The proxies' process."""
        return self._stack.enter_context(Toxiproxy(self._seed))

    @cached_property
    def pubsub(self) -> tuple[Any, Proxy]:
        """Our Pub/Sub server."""
        server = self._stack.enter_context(start_pubsub(event_limit=0, seed=self._seed))
        return server, self.toxiproxy.proxy("pubsub", server.endpoint)

    @cached_property
    def emulator(self) -> tuple[PubSubTestClient, Proxy]:
        """Google's emulator."""
        server = self._stack.enter_context(Emulator())
        client = self._stack.enter_context(PubSubTestClient(server.endpoint, _PROJECT))
        return client, self.toxiproxy.proxy("emulator", server.endpoint)

    @cached_property
    def store(self) -> Proxy:
        """VersityGW, an object store."""
        return self.toxiproxy.proxy("store", self._stack.enter_context(VersityServer()).endpoint)

    @cached_property
    def kinesis(self) -> tuple[Any, Proxy]:
        """Our Kinesis server."""
        server = self._stack.enter_context(start_kinesis(call_limit=0))
        return server, self.toxiproxy.proxy("kinesis", server.endpoint)

    @cached_property
    def kafka(self) -> tuple[KafkaBroker, Proxy]:
        """A broker that is advertised at the proxy; it leads its partitions on after a pause."""
        proxy = self.toxiproxy.proxy("kafka", _PORT_OF_NOBODY)
        broker = self._stack.enter_context(KafkaBroker(settings=STEADY, proxy=proxy.endpoint))
        proxy.lead_to(broker.proxied_endpoint)
        return broker, proxy

    @cached_property
    def registry(self) -> tuple[SchemaRegistryServer, Proxy]:
        """A schema registry."""
        server = self._stack.enter_context(SchemaRegistryServer())
        return server, self.toxiproxy.proxy("registry", server.address.removeprefix("http://"))


class Flow(ABC):
    """Records with unique contents, a query that reads them, and what must have become of them.

    Args:
        services: the servers.
        folder: for checkpoint, sink and spool; its name is that of the topic or stream.
    """

    name: ClassVar[str]
    stops: ClassVar[Mapping[str, float]] = {}
    """The errors with which an outage may stop the query, and within how many seconds, as documented.

    None of a service: each outage here is shorter than ``retryTimeout``.
    """
    victims: ClassVar[tuple[str, ...]] = ("jvm", "source_runner", "worker")
    """Which processes of the query can be killed."""
    has_clock: ClassVar[bool] = False
    key: ClassVar[str] = "value"
    """The column with the contents."""
    position: ClassVar[str | None] = None

    def __init__(self, services: Services, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.services, self.folder = services, folder
        self.published: dict[Any, dict[str, Any]] = {}
        self._numbers = itertools.count()

    @property
    @abstractmethod
    def proxy(self) -> Proxy:
        """What stands between the query and the service."""

    @property
    @abstractmethod
    def query(self) -> dict[str, Any]:
        """The plan for `spark_job.start_query`."""

    @abstractmethod
    def publish(self, count: int) -> None:
        """Publish so many records, not through the proxy."""

    def jump(self, seconds: float) -> None:
        """Move the server's clock, where it has one."""
        raise NotImplementedError

    def rows(self) -> int:
        """How many rows have arrived."""
        return rows_in_sink(self.folder)

    def rows_run(self) -> int:
        """How many rows batches have had, whether they have arrived yet or not."""
        return rows_run(self.folder)

    def judge(self) -> tuple[dict[str, int], list[str]]:
        """What was counted, and what must not be."""
        rows = sink_rows(self.folder)
        findings = examine(rows, attempts(self.folder), self.published, self.key, self.position)
        disordered = disordered_keys((row[self.key], self.order_key(row)) for row in rows)
        counts: dict[str, int] = asdict(findings)
        faults = [f"{count} {name}" for name, count in findings.faults.items()]
        return counts | {"keys_out_of_order": disordered}, faults + (["out of order"] if disordered else [])

    def order_key(self, row: Mapping[str, Any]) -> str | None:
        """Within what the order of a row is promised; None for nothing."""
        raise NotImplementedError

    def _made(self, count: int) -> list[bytes]:
        """The contents of the next records; they sort in the order in which they are made."""
        return [b"record %08d ".ljust(_BYTES, b".") % next(self._numbers) for _ in range(count)]

    def _plan(self, source: str, options: Mapping[str, str]) -> dict[str, Any]:
        return {"folder": str(self.folder), "format": source, "options": dict(options), "sink_pause": 0.0}


def disordered_keys(records: Iterable[tuple[Any, str | None]]) -> int:
    """Count the keys whose records do not stand in the order of their contents."""
    by_key: dict[str, list[Any]] = defaultdict(list)
    for content, key in records:
        if key is not None:
            by_key[key].append(content)
    return sum(contents != sorted(contents) for contents in by_key.values())


class PubSubFlow(Flow):
    """Our Pub/Sub server with ordering keys; its link is the proxied one."""

    name = "pubsub"
    victims = ("jvm", "source_runner", "worker", "fetcher")
    has_clock = True
    key, position = "payload", "offset"

    def __init__(self, services: Services, folder: Path) -> None:
        super().__init__(services, folder)
        self._server, self._proxy = services.pubsub
        topic, subscription = f"projects/{_PROJECT}/topics/{folder.name}", f"projects/{_PROJECT}/subscriptions/"
        self._server.create_topic(topic)
        self._server.create_subscription(f"{subscription}{folder.name}", topic, ordering=True)
        self._topic = topic

    @property
    def proxy(self) -> Proxy:
        """Between the query and the service."""
        return self._proxy

    @property
    def query(self) -> dict[str, Any]:
        """Read the subscription."""
        place = {"projectId": _PROJECT, "subscriptionId": self.folder.name, "endpoint": self._endpoint}
        return self._plan("pubsub", {**place, "maxRecordsPerTrigger": str(_BATCH), **self._spool})

    @property
    def _endpoint(self) -> str:
        return self._proxy.endpoint

    @property
    def _spool(self) -> Mapping[str, str]:
        return {"spoolLocation": str(self.folder / "spool")}

    def publish(self, count: int) -> None:
        """Publish in order, each run of some records with a key of its own turn."""
        made = self._made(count)
        for start in range(0, count, _KEYS):
            payloads, key = made[start : start + _KEYS], f"key-{start // _KEYS % _KEYS}"
            for payload, identity in zip(payloads, self._server.publish(self._topic, payloads, {}, key), strict=True):
                self.published[payload] = {"messageId": identity, "orderingKey": key}

    def jump(self, seconds: float) -> None:
        """Move the clock of the server: all deadlines of acks pass."""
        self._server.jump(seconds)

    def order_key(self, row: Mapping[str, Any]) -> str | None:
        """The ordering key."""
        return str(row["orderingKey"])


class PubSubStoreFlow(PubSubFlow):
    """The same, with the spool on an object store, whose link is the proxied one."""

    name = "pubsub_store"
    stops: ClassVar[Mapping[str, float]] = {"SPOOL_STORE_NO_ANSWER": 120.0}
    has_clock = False

    @property
    def proxy(self) -> Proxy:
        """Between the query and the object store."""
        return self.services.store

    @property
    def _endpoint(self) -> str:
        return str(self._server.process.endpoint)

    @property
    def _spool(self) -> Mapping[str, str]:
        location = VersityServer.location(self.folder.name)
        return {"spoolLocation": location, **VersityServer.access_options(self.proxy.endpoint)}


class EmulatorFlow(PubSubFlow):
    """Google's emulator, without ordering keys."""

    name = "pubsub_emulator"
    has_clock = False

    def __init__(self, services: Services, folder: Path) -> None:
        Flow.__init__(self, services, folder)
        self._client, self._proxy = services.emulator
        self._client.create(folder.name, folder.name)

    def publish(self, count: int) -> None:
        """Publish them."""
        made = self._made(count)
        identities = self._client.publish(self.folder.name, [(payload, {}) for payload in made])
        self.published |= {payload: {"messageId": identity} for payload, identity in zip(made, identities, strict=True)}

    def order_key(self, row: Mapping[str, Any]) -> str | None:  # noqa: ARG002 - none is promised
        """Nothing."""
        return None


class KinesisPollingFlow(Flow):
    """Our Kinesis server, polled over HTTP/1.1."""

    name = "kinesis_polling"
    has_clock = True
    key = "data"
    _mode: ClassVar[Mapping[str, str]] = {"consumerMode": "polling"}

    def __init__(self, services: Services, folder: Path) -> None:
        super().__init__(services, folder)
        self._server, self._proxy = services.kinesis
        self._server.create_stream(folder.name, _PARTITIONS)

    @property
    def proxy(self) -> Proxy:
        """Between the query, driver and tasks, and the service."""
        return self._proxy

    @property
    def query(self) -> dict[str, Any]:
        """Read the stream."""
        options = {
            "streamName": self.folder.name,
            "endpointUrl": f"http://{self._proxy.endpoint}",
            "awsAccessKey": "AKIATEST",
            "awsSecretKey": "test-secret",
            "initialPosition": "trim_horizon",
            "maxRecordsPerTrigger": str(_BATCH),
        }
        return self._plan("kinesis", {**options, **self._mode})

    def publish(self, count: int) -> None:
        """Put them under some partition keys."""
        records = [(f"key-{number % _KEYS}", data) for number, data in enumerate(self._made(count))]
        placed = self._server.put(self.folder.name, records)
        for (key, data), (shard, number) in zip(records, placed, strict=True):
            self.published[data] = {"partitionKey": key, "shardId": shard, "sequenceNumber": str(number)}

    def jump(self, seconds: float) -> None:
        """Move the clock of the server: all iterators expire, and all subscriptions end."""
        self._server.jump(seconds)

    def order_key(self, row: Mapping[str, Any]) -> str | None:
        """The partition key."""
        return str(row["partitionKey"])


class KinesisFanOutFlow(KinesisPollingFlow):
    """The same server by enhanced fan-out over HTTP/2, with a spool."""

    name = "kinesis_efo"
    victims = ("jvm", "source_runner", "worker", "fetcher")

    @property
    def query(self) -> dict[str, Any]:
        """Subscribe to the shards of the stream."""
        plan = super().query
        own = {"consumerMode": "efo", "consumerName": "orders", "spoolLocation": str(self.folder / "spool")}
        return {**plan, "options": {**plan["options"], **own}}


class KafkaFlow(Flow):
    """A broker that is advertised at the proxy."""

    name = "kafka"

    def __init__(self, services: Services, folder: Path) -> None:
        super().__init__(services, folder)
        broker, self._proxy = services.kafka
        self._rig = KafkaRig(broker, folder)
        self._source = self._rig.topic(_PARTITIONS)
        self._ends = Counter[int]()

    @property
    def proxy(self) -> Proxy:
        """Between the query, driver and tasks, and the broker."""
        return self._proxy

    @property
    def query(self) -> dict[str, Any]:
        """Read the topic."""
        return self._plan("kafka_py", self._source_options(self._proxy.endpoint))

    def _source_options(self, servers: str) -> dict[str, str]:
        place = {"kafka.bootstrap.servers": servers, "subscribe": self._source}
        return {**place, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(_BATCH)}

    def publish(self, count: int) -> None:
        """Produce them to the partitions in turn; the key says to which."""
        for place, value in enumerate(self._made(count)):
            self._produce(value, place % _PARTITIONS)
        assert self._rig.producer.flush(60.0) == 0

    def _produce(self, value: bytes, partition: int) -> None:
        self._rig.producer.produce(self._source, value, key=b"key-%d" % partition, partition=partition)
        self.published[value] = {"topic": self._source, "partition": partition, "offset": self._ends[partition]}
        self._ends[partition] += 1

    def order_key(self, row: Mapping[str, Any]) -> str | None:
        """The partition."""
        return str(row["partition"])


class RegistryFlow(KafkaFlow):
    """A topic whose values name schemas in a registry, whose link is the proxied one; each portion has a new schema."""

    name = "registry"
    stops: ClassVar[Mapping[str, float]] = {"SCHEMA_REGISTRY_UNAVAILABLE": 280.0}  # retry.timeout, of four attempts
    victims = ("source_runner", "worker")
    _file = FileDescriptorProto(name="record.proto", package="chaos", syntax="proto3")

    def __init__(self, services: Services, folder: Path) -> None:
        super().__init__(services, folder)
        self._registry, self._proxy = services.registry
        self._schemas = 0
        self._new_schema()

    @property
    def query(self) -> dict[str, Any]:
        """Read the topic, and decode its values."""
        broker, _ = self.services.kafka
        registry = {"address": f"http://{self._proxy.endpoint}", "subject": self.folder.name}
        return {**self._plan("kafka_py", self._source_options(broker.endpoint)), "registry": registry}

    def publish(self, count: int) -> None:
        """Produce them under a schema of their own."""
        schema = self._new_schema()
        for place, content in enumerate(self._made(count)):
            message = b"\x0a" + _varint(len(content)) + content
            value = b"\0" + schema.to_bytes(4, "big") + b"\0" + message
            self._produce(value, place % _PARTITIONS)
            self.published[value]["decoded"] = content.decode()
        assert self._rig.producer.flush(60.0) == 0

    def _new_schema(self) -> int:
        self._schemas += 1
        file = FileDescriptorProto()
        file.CopyFrom(self._file)
        message = file.message_type.add(name="Record")
        for number in range(1, self._schemas + 1):
            message.field.add(name=f"field_{number}", number=number, type=9, label=1)
        files = FileDescriptorSet(file=[file])
        return self._registry.register(self.folder.name, files.SerializeToString(), "record.proto")


class ExactlyOnceFlow(KafkaFlow):
    """An exactly-once query from a topic to a topic, with source and target behind the proxy."""

    name = "kafka_exactly_once"

    def __init__(self, services: Services, folder: Path) -> None:
        super().__init__(services, folder)
        self._target = self._rig.topic(_PARTITIONS)

    @property
    def query(self) -> dict[str, Any]:
        """Copy the topic."""
        servers = {"kafka.bootstrap.servers": self._proxy.endpoint}
        options = {**servers, "topic": self._target, "deliveryGuarantee": "exactly_once"}
        return {**super().query, "sink": {"format": "kafka_py", "options": options}}

    def rows(self) -> int:
        """The records that a careful consumer sees."""
        return len(self._rig.read_committed(self._target, _PARTITIONS, is_open=True))

    def rows_run(self) -> int:
        """Those of transactions that are open too."""
        return sum(self._rig.end(self._target, number) for number in range(_PARTITIONS))

    def judge(self) -> tuple[dict[str, int], list[str]]:
        """Each record once, in the order of its key."""
        seen = self._rig.read_committed(self._target, _PARTITIONS, is_open=True)
        found = Counter(message.value() for message in seen)
        counts = {
            "lost": sum(not found[value] for value in self.published),
            "doubled": sum(count - 1 for count in found.values()),
            "phantom": sum(value not in self.published for value in found),
            "keys_out_of_order": disordered_keys((message.value(), message.key().decode()) for message in seen),
        }
        return counts, [f"{count} {name}" for name, count in counts.items() if count]


FLOWS: dict[str, type[Flow]] = {
    flow.name: flow
    for flow in (
        PubSubFlow,
        EmulatorFlow,
        KinesisPollingFlow,
        KinesisFanOutFlow,
        KafkaFlow,
        ExactlyOnceFlow,
        PubSubStoreFlow,
        RegistryFlow,
    )
}


def _varint(number: int) -> bytes:
    answer = b""
    while number > 0x7F:
        answer += bytes([number & 0x7F | 0x80])
        number >>= 7
    return answer + bytes([number])
