"""The pipeline beside this file, twice, on servers that come with the package: 60 messages, 30 more, then a count.

    pip install '.[spark,all,testing]' 'pyspark[pipelines]'    # in a clone
    python examples/pipeline/run.py

Prints the exit code of each run, and the messages and rows that each table and the sink then have.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow.dataset as tables
import pyspark
from confluent_kafka import Consumer, Producer, TopicPartition

from connectors.testing.kafka.mock import MockKafka
from connectors.testing.kinesis import KinesisServer
from connectors.testing.pubsub import PubSubServer

PROJECT = Path(__file__).resolve().parent
TOPIC, SUBSCRIPTION = "projects/shop/topics/clicks", "projects/shop/subscriptions/clicks"


def new_project(folder: Path) -> Path:
    """Copy the project, with this folder in its specification, where Spark wants absolute paths."""
    project = folder / "shop"
    shutil.copytree(PROJECT, project)
    specification = project / "spark-pipeline.yml"
    specification.write_text(specification.read_text().replace("FOLDER", str(project)))
    return project


def run_pipeline(project: Path, environment: dict[str, str]) -> int:
    """Run the pipeline as the command line does; return its exit code."""
    spark = Path(environment.get("SPARK_HOME") or pyspark.__path__[0])
    catalog = "spark.sql.catalogImplementation=hive"  # one that outlives the run, in metastore_db and spark-warehouse
    command = [str(spark / "bin" / "spark-pipelines"), "--remote", "local[2]", "--conf", catalog, "run"]
    variables = {**os.environ, "SPARK_HOME": str(spark), "PYSPARK_PYTHON": sys.executable, **environment}
    variables["PYSPARK_DRIVER_PYTHON"] = variables["PYSPARK_PYTHON"]
    return subprocess.run(command, cwd=project, env=variables, check=False).returncode


def publish(pubsub: PubSubServer, kinesis: KinesisServer, kafka: MockKafka, numbers: range) -> None:
    """Put these numbers into each source."""
    texts = [b"%d" % number for number in numbers]
    pubsub.publish(TOPIC, texts)
    kinesis.put("payments", [(text.decode(), text) for text in texts])
    producer = Producer({"bootstrap.servers": kafka.endpoint})
    for text in texts:
        producer.produce("orders", text)
    producer.flush()


def rows_of(project: Path, table: str) -> list[str]:
    """Return the texts in a table, from its files."""
    files = tables.dataset(project / "spark-warehouse" / table, format="parquet")
    return [str(text) for text in files.to_table(columns=["text"])["text"].to_pylist()]


def rows_of_topic(kafka: MockKafka, topic: str) -> list[str]:
    """Return the texts in a topic."""
    consumer = Consumer({"bootstrap.servers": kafka.endpoint, "group.id": "count", "enable.partition.eof": False})
    partitions = [TopicPartition(topic, number, 0) for number in consumer.list_topics(topic).topics[topic].partitions]
    consumer.assign(partitions)
    ends = [consumer.get_watermark_offsets(partition)[1] for partition in partitions]
    texts = [str((message.value() or b"").decode()) for message in consumer.consume(sum(ends), 10)]
    consumer.close()
    return texts


def main(folder: Path, environment: dict[str, str]) -> dict[str, list[str]]:
    """Run the pipeline twice; return the texts by table, those of the sink under ``sink``."""
    project = new_project(folder)
    with PubSubServer() as pubsub, KinesisServer() as kinesis, MockKafka() as kafka:
        pubsub.create_subscription(SUBSCRIPTION, TOPIC)
        kinesis.create_stream("payments", shards=2)
        kafka.create_topic("orders", 2)
        kafka.create_topic("clicks", 1)
        servers = {
            "SHOP_PUBSUB": pubsub.endpoint,
            "SHOP_KINESIS": kinesis.url,
            "SHOP_KAFKA": kafka.endpoint,
            "SHOP_SPOOL": str(folder / "spool"),
            "SHOP_KEY": "any",
        }
        for numbers in (range(20), range(20, 30)):
            publish(pubsub, kinesis, kafka, numbers)
            code = run_pipeline(project, {**environment, **servers})
            print(f"exit code {code}", flush=True)
            if code:
                raise SystemExit(code)
        texts = {table: rows_of(project, table) for table in ("clicks", "payments", "orders")}
        return {**texts, "sink": rows_of_topic(kafka, "clicks")}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        for name, texts in main(Path(temporary), {}).items():
            print(f"{name}: {len(texts)} rows, {len(set(texts))} different")
