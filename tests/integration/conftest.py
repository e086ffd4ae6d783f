"""What the integration tests share: servers that are started once a run, by the first test that wants them, and rigs.

A module that wants another `server`, `rig` or `workers` has its own, under the same name.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from connectors.kafka.sink.writer import close_sinks
from connectors.kafka.source.consumer_pool import CONSUMERS
from connectors.testing.kinesis import KinesisServer
from connectors.testing.pubsub import PubSubServer
from tests.servers.kafka_broker import KafkaBroker, find_broker
from tests.servers.kinesis_local import KinesisLocal, find_kinesis_local
from tests.servers.pubsub_emulator import Emulator, find_emulator
from tests.support.glue_rig import GlueRig, glue_server
from tests.support.kafka_rig import STEADY, KafkaRig
from tests.support.pubsub_rig import PubSubRig
from tests.support.spark_protocol.driver import TaskWorkers


@pytest.fixture(scope="session")
def pubsub_emulator() -> Iterator[str]:
    """``HOST:PORT`` of the official Pub/Sub emulator: the one that PUBSUB_EMULATOR_HOST names, or one of our own.

    Tests share it, so they use names of their own for projects, topics and subscriptions.
    """
    if named := os.environ.get("PUBSUB_EMULATOR_HOST"):
        yield named
        return
    if reason := find_emulator().reason:
        pytest.skip(reason)
    with Emulator() as emulator:
        yield emulator.endpoint


@pytest.fixture(scope="session")
def embedded_pubsub() -> Iterator[str]:
    """``HOST:PORT`` of a `PubSubServer` without faults, to be held against the emulator; shared as that is."""
    with PubSubServer() as server:
        yield server.endpoint


@pytest.fixture(scope="module")
def workers(request: pytest.FixtureRequest) -> Iterator[TaskWorkers]:
    """Processes that run tasks, as Spark's executors keep them: two, or as many as the module's WORKERS says."""
    shared = TaskWorkers(getattr(request.module, "WORKERS", 2))
    yield shared
    shared.close()


@pytest.fixture
def server() -> Iterator[PubSubServer]:
    """A `PubSubServer` for one test, which may give it faults."""
    with PubSubServer() as running:
        yield running


@pytest.fixture
def rig(server: PubSubServer, tmp_path: Path, workers: TaskWorkers) -> PubSubRig:
    """That server, and short words for what a test does with it."""
    return PubSubRig(server, server.endpoint, tmp_path, workers)


@pytest.fixture(scope="session")
def kinesis_local() -> Iterator[str]:
    """URL of kinesis-local; tests share it, so they use streams of their own."""
    if reason := find_kinesis_local().reason:
        pytest.skip(reason)
    with KinesisLocal() as server:
        yield server.url


@pytest.fixture(scope="session")
def moto_kinesis() -> Iterator[str]:
    """URL of moto's server; shared as kinesis-local is.

    It takes one request after the other: moto's shards lose a record when two arrive at once, as its code says.
    """
    from moto.moto_server.werkzeug_app import (  # noqa: PLC0415 - takes a second that others need not wait
        DomainDispatcherApplication,
        create_backend_app,
    )
    from werkzeug.serving import make_server  # noqa: PLC0415

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it tells of every call
    server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=False)
    serving = Thread(target=server.serve_forever)
    serving.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    serving.join()
    server.server_close()


@pytest.fixture(scope="session")
def moto_glue() -> Iterator[GlueRig]:
    """Moto's Glue, one for the run; `glue` is for tests."""
    with glue_server() as running:
        yield running


@pytest.fixture
def glue(moto_glue: GlueRig) -> Iterator[GlueRig]:
    """Moto's Glue with a registry for one test, which may give it faults."""
    moto_glue.create()
    moto_glue.calls.clear()
    yield moto_glue
    moto_glue.faults.clear()
    moto_glue.drop()


@pytest.fixture(scope="session")
def embedded_kinesis() -> Iterator[str]:
    """URL of a `KinesisServer` without faults, to be held against kinesis-local; shared as that is."""
    with KinesisServer() as server:
        yield server.url


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[KafkaBroker]:
    """One real Kafka broker for the run; tests use topics of their own and leave it running."""
    if reason := find_broker().reason:
        pytest.skip(reason)
    with KafkaBroker(settings=STEADY) as broker:
        yield broker


@pytest.fixture
def kafka(kafka_broker: KafkaBroker, tmp_path: Path) -> Iterator[KafkaRig]:
    """The broker, and short words for what a test does with it."""
    yield KafkaRig(kafka_broker, tmp_path)
    CONSUMERS.close()
    close_sinks()


@pytest.fixture(scope="session")
def guarded_broker() -> Iterator[KafkaBroker]:
    """A broker where only the plain listener's clients may do everything; the user of SASL has no right at all."""
    if reason := find_broker().reason:
        pytest.skip(reason)
    settings = STEADY | {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with KafkaBroker(settings=settings) as broker:
        yield broker


@pytest.fixture
def guarded_kafka(guarded_broker: KafkaBroker, tmp_path: Path) -> Iterator[KafkaRig]:
    """That broker, and short words for what a test does with it."""
    yield KafkaRig(guarded_broker, tmp_path)
    CONSUMERS.close()
    close_sinks()
