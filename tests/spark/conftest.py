"""What the Spark tests share: servers, some with the integration tests, and a session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from connectors import register
from tests.integration.conftest import pubsub_emulator
from tests.servers.kafka_broker import KafkaBroker, find_broker
from tests.support.kafka_rig import STEADY, KafkaRig
from tests.support.spark_session import quick_session

__all__ = ["broker", "kafka", "pubsub_emulator"]


def pytest_configure(config: pytest.Config) -> None:
    """Let tests pass over the sockets that PySpark before 4.2 leaves open."""
    if tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 2):
        config.addinivalue_line("filterwarnings", "ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = quick_session({"spark.log.level": "OFF"})
    register(session)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    if reason := find_broker().reason:
        pytest.skip(reason)
    with KafkaBroker(settings=STEADY) as made:
        yield made


@pytest.fixture
def kafka(broker: KafkaBroker, tmp_path: Path) -> KafkaRig:
    return KafkaRig(broker, tmp_path)
