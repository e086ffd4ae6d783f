"""What the Kafka benchmarks share: a broker, topics, and one Spark session with Spark's own connector beside ours."""

from __future__ import annotations

import contextlib
import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from connectors import register
from connectors.testing.kafka_broker import KafkaBroker, find_broker
from connectors.testing.maven import class_path

OURS = "kafka_py"
THEIRS = "kafka"
JVM_VERSION = "Spark's own connector 4.2.0 (4.3.0 is not served), kafka-clients 3.9.1"


@dataclass
class Rig:
    """A broker and a session."""

    broker: KafkaBroker
    spark: SparkSession

    def topic(self, name: str, partitions: int) -> str:
        """Make a topic."""
        admin = AdminClient({"bootstrap.servers": self.broker.endpoint})
        for future in admin.create_topics([NewTopic(name, partitions, 1)]).values():
            future.result(60)
        return name

    def fill(self, name: str, partitions: int, count: int, size: int) -> None:
        """Produce so many records of a size, evenly."""
        producer = Producer(
            {"bootstrap.servers": self.broker.endpoint, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000}
        )
        value = os.urandom(size)
        for number in range(count):
            while True:
                try:
                    producer.produce(name, value, b"key-%d" % (number % 1000), number % partitions)
                except BufferError:
                    producer.poll(0.1)
                else:
                    break
        producer.flush()


@contextlib.contextmanager
def rig() -> Iterator[Rig]:
    """Start both; says why not, and ends, if they cannot be had."""
    for reason in (find_broker().reason, class_path("kafka-spark").reason):
        if reason:
            sys.exit(reason)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with KafkaBroker(fast=True) as broker:
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.jars", ",".join(class_path("kafka-spark").jars))
            .config("spark.ui.enabled", "false")
            .config("spark.driver.memory", "2g")
            # A query that is stopped inside of foreachBatch has a long error, and Spark's pattern for it recurses.
            .config("spark.driver.extraJavaOptions", "-Xss64m")
            .config("spark.sql.streaming.stopTimeout", "20s")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("OFF")
        register(spark)
        try:
            yield Rig(broker, spark)
        finally:
            spark.stop()


def wanted(told: Namespace, case: str) -> bool:
    """Whether a case was asked for."""
    return not told.cases or case in told.cases
