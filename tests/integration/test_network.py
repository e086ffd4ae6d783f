"""A bad network between a query and a service, through toxiproxy: a few cells of ``./dev chaos network``.

Each query is there when the fault comes and goes on by itself: every record once, in order.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.kafka.source.consumer_pool import CONSUMERS
from connectors.testing.kinesis import KinesisServer
from connectors.testing.pubsub import PubSubServer
from tests.chaos.rigs.network_faults import FAULTS, applied, connections
from tests.servers.kafka_broker import KafkaBroker, find_broker
from tests.servers.toxiproxy import Toxic, Toxiproxy, find_toxiproxy
from tests.support.kafka_rig import KafkaRig
from tests.support.kinesis_rig import KinesisRig
from tests.support.pubsub_rig import PubSubRig
from tests.support.spark_protocol.driver import TaskWorkers

SECONDS = 3.0
RESET_SECONDS = 0.5
RESET = Toxic("reset_peer")
SILENT = Toxic("timeout", {"timeout": 0})


@pytest.fixture(scope="module")
def toxiproxy() -> Iterator[Toxiproxy]:
    if reason := find_toxiproxy().reason:
        pytest.skip(reason)
    with Toxiproxy(seed=1) as running:
        yield running


def test_a_pubsub_query_goes_on_after_an_outage_of_the_service(
    toxiproxy: Toxiproxy, tmp_path: Path, workers: TaskWorkers
) -> None:
    with PubSubServer() as server:
        proxy = toxiproxy.proxy("pubsub", server.endpoint)
        rig = PubSubRig(server, proxy.endpoint, tmp_path, workers)
        rig.publish(50)
        with rig.query() as query:
            rig.run_until_all(query)
            with applied(FAULTS["outage_5_s"], proxy):
                rig.publish(50)
                time.sleep(SECONDS)
                assert rig.sink.rows() == 50
            rig.publish(50)
            rig.run_until_all(query)
    rig.assert_each_once()


def test_a_kinesis_query_goes_on_while_connections_are_reset(toxiproxy: Toxiproxy, tmp_path: Path) -> None:
    with KinesisServer() as server:
        proxy = toxiproxy.proxy("kinesis", server.endpoint)
        rig = KinesisRig(server, tmp_path, shards=2)
        values = rig.put(50)
        with rig.query(endpointUrl=f"http://{proxy.endpoint}") as query:
            rig.drain(query, values)
            connected = connections(proxy)
            for _ in range(3):
                proxy.add(RESET)
                values += rig.put(50)
                time.sleep(RESET_SECONDS)
                proxy.remove(RESET)
                rig.drain(query, values)
            assert connected - connections(proxy)


def test_a_kafka_query_goes_on_when_answers_do_not_come_for_a_while(toxiproxy: Toxiproxy, tmp_path: Path) -> None:
    if reason := find_broker().reason:
        pytest.skip(reason)
    proxy = toxiproxy.proxy("kafka", "127.0.0.1:9")
    with KafkaBroker(proxy=proxy.endpoint) as broker:
        proxy.lead_to(broker.proxied_endpoint)
        rig = KafkaRig(broker, tmp_path)
        topic = rig.topic()
        rig.send(topic, range(50))
        with rig.query(rig.options(topic, kafka__bootstrap__servers=proxy.endpoint)) as query:
            values = rig.values(query, 50)
            proxy.add(SILENT)
            rig.send(topic, range(50, 100))
            time.sleep(SECONDS)
            proxy.heal()
            rig.send(topic, range(100, 150))
            values += rig.values(query, 100)
        CONSUMERS.close()
    assert values == [str(number) for number in range(150)]
