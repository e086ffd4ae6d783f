"""Spark Connect: a client without Java registers the pack and uses it on a server of the pip package.

Such a client needs pandas and zstandard, which the tests' environment lacks, where pyarrow would import pandas
in every process. So the client has an environment of its own, with the group ``connect`` of pyproject.toml; the server
and its workers have the tests' one. ``./dev chaos connect`` runs this.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from connectors.testing.process import start_bound_process
from connectors.testing.pubsub import PubSubServer
from tests.servers.java import free_port
from tests.support import connect_client
from tools.protos import SOURCES, compile_set
from tools.side_environment import side_environment

pytestmark = pytest.mark.long

MESSAGES = 50
_START_SECONDS = 150


def answers(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[str]:
    """The URL of a Spark Connect server in a process of its own."""
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": tmp_path / "warehouse",
    }
    command = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        *("--master", "local[2]"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
        "spark-internal",
    ]
    log = tmp_path / "server.log"
    with log.open("wb") as written:
        process = start_bound_process(command, stdout=written, stderr=written)
    try:
        end = time.monotonic() + _START_SECONDS
        while not answers(port):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.2)
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def client_python() -> Path:
    """The Python of the client's environment."""
    return side_environment("connect")


def test_a_client_of_spark_connect_reads_each_message_once_and_decodes_protobuf(
    client_python: Path, remote: str, tmp_path: Path
) -> None:
    descriptor_set = tmp_path / "event.desc"
    compile_set(SOURCES / "event.proto", descriptor_set, SOURCES)
    with PubSubServer() as server:
        topic, subscription = "projects/shop/topics/orders", "projects/shop/subscriptions/orders"
        server.create_subscription(subscription, topic)
        published = server.publish(topic, [b"payload"] * MESSAGES)
        job = {
            "remote": remote,
            "folder": str(tmp_path),
            "descriptor_set": str(descriptor_set),
            "options": {
                "subscriptionId": subscription,
                "endpoint": server.endpoint,
                "spoolLocation": str(tmp_path / "spool"),
                "availableNowQuiet": "5s",
            },
        }
        environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
        command = [str(client_python), "-m", connect_client.__name__, json.dumps(job)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["session"].startswith("pyspark.sql.connect.")
    assert sorted(found["messages"]) == sorted(published)
    assert sorted(found["protobuf"]) == ["1", "2", "3"]
    assert sorted(found["sql"]) == ["1", "2", "3"]
    assert "privateKey=*********(redacted)" in found["plan"]
    assert "canary-9f3" not in found["plan"]
    assert "SPARK_SHOWS_SECRETS" not in done.stderr
    assert "spoolLocation" in found["error"]
