"""What a soak reads and writes: the flows of the network's runs without proxies, and when each record arrives."""

from __future__ import annotations

import os
import random
import threading
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import obstore
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition

from connectors.testing.kinesis import start_server_process as start_kinesis
from connectors.testing.pubsub import start_server_process as start_pubsub
from tests.chaos.rigs.network_flows import ExactlyOnceFlow, Flow, KinesisFanOutFlow, PubSubStoreFlow, Services
from tests.chaos.support.spark_job import SINK_NAME
from tests.servers.kafka_broker import KafkaBroker
from tests.servers.object_stores import VersityServer
from tests.support.kafka_rig import STEADY

_PARTITIONS = 2
_POLL_SECONDS = 0.2
_ACK_DEADLINES = 60.0


def without_marks(files: Iterable[str]) -> int:
    """Count the files of a spool without what each start leaves for ever, so that what it replaced can do no harm.

    That is the claim of an epoch, the seal of the epoch before, and on an object store the closed name of the fetcher
    before. A second object of a sealed epoch, or of a fetcher that is forgotten, counts.
    """
    parts = [file.split("/") for file in files]
    epochs = Counter(int(each[1]) for each in parts if each[0] == "ledger")
    fetchers = Counter(each[1] for each in parts if each[0] == "inbox")
    known = {each[2] for each in parts if each[:2] == ["folders", "inbox"]}
    newest = max(epochs, default=0)
    seals = sum(number == 1 and epoch < newest for epoch, number in epochs.items())
    closed = sum(number == 1 and fetcher not in known for fetcher, number in fetchers.items()) if known else 0
    return len(parts) - sum(each[0] == "epochs" for each in parts) - seals - closed


@dataclass(frozen=True)
class Direct:
    """Stands where a proxy would: there is nothing in between.

    Attributes:
        endpoint: of the service.
    """

    endpoint: str


class DirectServices(Services):
    """The servers of a run without proxies, each started when it is first needed."""

    def __init__(self, stack: ExitStack, seed: int) -> None:
        super().__init__(stack, seed)

    @cached_property
    def pubsub(self) -> tuple[Any, Any]:
        """Our Pub/Sub server."""
        server = self._stack.enter_context(start_pubsub(event_limit=0, seed=self._seed))
        return server, Direct(server.endpoint)

    @cached_property
    def store(self) -> Any:
        """VersityGW, an object store."""
        return Direct(self._stack.enter_context(VersityServer()).endpoint)

    @cached_property
    def kinesis(self) -> tuple[Any, Any]:
        """Our Kinesis server."""
        server = self._stack.enter_context(start_kinesis(call_limit=0))
        return server, Direct(server.endpoint)

    @cached_property
    def kafka(self) -> tuple[KafkaBroker, Any]:
        """A broker."""
        broker = self._stack.enter_context(KafkaBroker(settings=STEADY))
        return broker, Direct(broker.endpoint)


class SoakFlow(Flow):
    """A flow whose records can be followed into the sink; a context manager. Rows arrive in files.

    Args:
        services: the servers.
        folder: for checkpoint, sink and spool; it is made.
    """

    reshards: ClassVar[bool] = False

    def __init__(self, services: Services, folder: Path) -> None:
        super().__init__(services, folder)
        self._files: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def arrivals(self) -> list[tuple[bytes, float]]:
        """What has arrived since the last call, and when; a batch that ran again is not looked at again."""
        found: list[tuple[bytes, float]] = []
        for path in (self.folder / SINK_NAME).glob("*.arrow"):
            if path.name not in self._files:
                self._files.add(path.name)
                arrived = path.stat().st_mtime
                with pa.ipc.open_file(path) as reader:
                    found += [(value, arrived) for value in reader.read_all()[self.key].to_pylist()]
        return found

    @abstractmethod
    def spool_files(self) -> int:
        """How many files or objects the spool has, `without_marks`."""

    def after_kill(self) -> None:
        """Do what time would do: nothing, unless a service waits for long."""

    def reshard(self, kind: str, choose: random.Random) -> None:
        """Split or merge a shard, where there are shards."""
        raise NotImplementedError


class PubSubSoak(SoakFlow, PubSubStoreFlow):
    """Our Pub/Sub server with ordering keys, and a spool on VersityGW."""

    def spool_files(self) -> int:
        """Count the objects."""
        options = {name.removeprefix("spool").lower(): value for name, value in self._spool.items()}
        store = obstore.store.from_url(
            options["location"],
            endpoint=options["endpoint"],
            region=options["region"],
            access_key_id=options["keyid"],
            secret_access_key=options["secret"],
            client_options={"allow_http": True},
        )
        return without_marks(each["path"] for page in obstore.list(store) for each in page)

    def after_kill(self) -> None:
        """Let the deadlines of acks pass: what dead fetchers held comes again, and some of the rest twice."""
        self.jump(_ACK_DEADLINES)


class KinesisSoak(SoakFlow, KinesisFanOutFlow):
    """Our Kinesis server by enhanced fan-out."""

    reshards = True

    def spool_files(self) -> int:
        """Count the files."""
        root = self.folder / "spool"
        return without_marks(
            str((Path(folder) / file).relative_to(root)) for folder, _, files in os.walk(root) for file in files
        )

    def reshard(self, kind: str, choose: random.Random) -> None:
        """Split any open shard, or merge two open neighbours, which there are after a split."""
        name, server = self.folder.name, self._server
        shards = server.shards(name, only_open=True)
        if kind == "split":
            server.split(name, choose.choice(shards))
            return
        pairs = [(first, second) for first in shards for second in shards if first != second]
        for first, second in choose.sample(pairs, len(pairs)):
            try:
                server.merge(name, first, second)
            except ValueError:  # no neighbours
                continue
            return
        raise AssertionError(f"no two of {shards} are neighbours")


class KafkaSoak(SoakFlow, ExactlyOnceFlow):
    """An exactly-once query from a topic to a topic, which a careful consumer follows."""

    def __init__(self, services: Services, folder: Path) -> None:
        super().__init__(services, folder)
        self._lock, self._stopping = threading.Lock(), threading.Event()
        self._found: list[tuple[bytes, float]] = []
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _follow(self) -> None:
        place = {"bootstrap.servers": self._rig.broker.endpoint, "log_level": 0, "group.id": self._rig.name("soak")}
        consumer = Consumer({**place, "isolation.level": "read_committed", "auto.offset.reset": "error"})
        consumer.assign([TopicPartition(self._target, number, 0) for number in range(_PARTITIONS)])
        while not self._stopping.is_set():
            messages = consumer.consume(500, _POLL_SECONDS)
            with self._lock:
                self._found += [(each.value(), time.time()) for each in messages if each.error() is None]
        consumer.close()

    def arrivals(self) -> list[tuple[bytes, float]]:
        """What has become visible since the last call, and when."""
        with self._lock:
            found, self._found = self._found, []
        return found

    def spool_files(self) -> int:
        """None: it has no spool."""
        return 0


SOAKS: dict[str, type[SoakFlow]] = {flow.name: flow for flow in (KafkaSoak, PubSubSoak, KinesisSoak)}
