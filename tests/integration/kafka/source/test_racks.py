"""Reads from the replica in a consumer's own rack, on two real brokers: `kafka.client.rack` by host."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic

from connectors.kafka.options.client import warn_once
from connectors.kafka.source.consumer_pool import CONSUMERS
from tests.servers.kafka_broker import KafkaBroker, find_broker
from tests.support.kafka_proxy import LateRequests
from tests.support.kafka_rig import PATIENCE, KafkaRig
from tests.support.waiting import wait_for

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
ROWS, ROW_BYTES = 2000, 1000
MOST_WITHOUT_ROWS = ROWS * ROW_BYTES // 20
"""A leader that names the preferred replica sends no records with it."""


def replicated_topic(rig: KafkaRig) -> str:
    """Make a topic that the first broker leads and the second follows."""
    name = rig.name()
    rig.admin.create_topics([NewTopic(name, 1, replica_assignment=[[1, 2]])])[name].result(PATIENCE)

    def is_replicated() -> bool:
        partitions = rig.admin.list_topics(name).topics[name].partitions
        return 0 in partitions and sorted(partitions[0].isrs) == [1, 2]

    wait_for(is_replicated, PATIENCE)
    return name


@dataclass
class Racks:
    """Two brokers in the racks ``a`` and ``b``, and a topic that the first leads and the second follows."""

    rig: KafkaRig
    leader: LateRequests
    follower: LateRequests
    topic: str
    second: KafkaBroker

    def read(self, rack: str | None) -> tuple[int, int, list[Any]]:
        """Read the topic; return what leader and follower sent, in bytes, and the values."""
        before = self.leader.fetched_bytes, self.follower.fetched_bytes
        options = self.rig.options(self.topic) | {"kafka.bootstrap.servers": self.leader.endpoint}
        rows = self.rig.batch(options | ({} if rack is None else {"kafka.client.rack": rack}))
        CONSUMERS.close()
        leader, follower = self.leader.fetched_bytes - before[0], self.follower.fetched_bytes - before[1]
        return leader, follower, [row["value"] for row in rows]


@pytest.fixture(scope="module")
def racks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Racks]:
    if reason := find_broker().reason:
        pytest.skip(reason)
    with ExitStack() as stack:
        proxies = [stack.enter_context(LateRequests()) for _ in "ab"]
        brokers: list[KafkaBroker] = []
        for rack, proxy in zip("ab", proxies, strict=True):
            settings = {"broker.rack": rack, "replica.selector.class": SELECTOR}
            first = brokers[0] if brokers else None
            brokers.append(stack.enter_context(KafkaBroker(settings=settings, proxy=proxy.endpoint, joins=first)))
            proxy.lead_to(brokers[-1].proxied_endpoint)
        rig = KafkaRig(brokers[0], tmp_path_factory.mktemp("racks"))
        topic = replicated_topic(rig)
        rig.send(topic, [bytes([97 + number % 26]) * ROW_BYTES for number in range(ROWS)])
        yield Racks(rig, *proxies, topic, brokers[1])


@pytest.mark.usefixtures("both_paths")
@pytest.mark.parametrize("rack", ["b", "env:ZONE"])
def test_rows_come_from_the_replica_in_the_rack_of_the_host(
    racks: Racks, rack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZONE", " b\n")
    leader, follower, values = racks.read(rack)
    assert leader < MOST_WITHOUT_ROWS
    assert follower > ROWS * ROW_BYTES
    assert values == [bytes([97 + number % 26]) * ROW_BYTES for number in range(ROWS)]


@pytest.mark.usefixtures("both_paths")
@pytest.mark.parametrize("rack", [None, "", "elsewhere", "env:ZONE"])
def test_rows_come_from_the_leader_without_a_rack_that_has_a_replica(
    racks: Racks, rack: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("ZONE", raising=False)
    caplog.set_level(logging.WARNING)
    warn_once.cache_clear()
    leader, follower, values = racks.read(rack)
    assert leader > ROWS * ROW_BYTES
    assert follower < MOST_WITHOUT_ROWS
    assert len(values) == ROWS
    lines = [line for line in caplog.messages if "KAFKA_RACK_UNKNOWN" in line]
    assert len(lines) == (rack == "env:ZONE")
    assert all("ZONE" in line and "Set it on each host" in line for line in lines)


@pytest.mark.usefixtures("both_paths")
def test_a_stream_reads_on_from_the_follower_as_records_arrive(
    racks: Racks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZONE", "b")
    rig = KafkaRig(racks.rig.broker, tmp_path)
    topic = replicated_topic(rig)
    before = racks.follower.fetched_bytes
    options = rig.options(topic) | {"kafka.bootstrap.servers": racks.leader.endpoint, "kafka.client.rack": "env:ZONE"}
    with rig.query(options) as query:
        for batch in range(10):
            numbers = range(batch * 100, batch * 100 + 100)
            rig.send(topic, numbers)
            assert rig.values(query, 100) == [str(number) for number in numbers]
    assert racks.follower.fetched_bytes - before > 5_000


@pytest.mark.usefixtures("both_paths")
def test_rows_come_from_the_leader_while_the_replica_of_the_rack_is_down(racks: Racks) -> None:
    assert racks.read("b")[1] > ROWS * ROW_BYTES
    racks.second.kill()
    try:
        leader, _, values = racks.read("b")
    finally:
        racks.second.start()
    assert leader > ROWS * ROW_BYTES
    assert len(values) == ROWS
    wait_for(lambda: racks.read("b")[1] > ROWS * ROW_BYTES, PATIENCE)
