"""Formats that Spark finds by itself, in real sessions that have both wheels installed, alone and among neighbours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from connectors.testing.kinesis import KinesisServer

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
MESSAGES = 3
NEIGHBOUR = """
from pyspark.sql.datasource import DataSource

class DefaultSource(DataSource):
    @classmethod
    def name(cls):
        return "{name}"
"""

# Reads as a user would who has never heard of register; then registers too, and reads again.
PROGRAM = """
import json, sys
import connectors
from pyspark.sql import SparkSession

options = json.loads(sys.argv[1])
settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1"}
spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()

def outcome(action):
    try:
        return action()
    except Exception as error:
        return str(error)

def read():
    return spark.read.format("kinesis").options(**options).load().count()

def columns():
    options = {"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "t"}
    return spark.readStream.format("kafka_py").options(**options).load().columns[:2]

found = {"pack": connectors.__file__, "read": outcome(read), "columns": outcome(columns)}
connectors.register(spark)
found |= {"read registered": outcome(read), "columns registered": outcome(columns)}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both wheels installed."""
    folder = tmp_path_factory.mktemp("installed")
    for project in (ROOT, ROOT / "autoload"):
        build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder / "dist")]
        subprocess.run(build, cwd=project, check=True, capture_output=True)
    wheels = [str(each) for each in (folder / "dist").glob("*.whl")]
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--offline", "--target"]
    subprocess.run([*uv, str(folder / "site"), *wheels], check=True, capture_output=True)
    return folder / "site"


def run(folder: Path, *path: Path) -> Mapping[str, Any]:
    """What the program saw, started in `folder` with these folders first in the path of driver and workers."""
    with KinesisServer() as server:
        server.create_stream("orders")
        server.put("orders", [("key", b"payload")] * MESSAGES)
        options = {"streamName": "orders", "region": "us-east-1", "endpointUrl": server.url}
        options |= {"awsAccessKey": "test", "awsSecretKey": "test"}
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
        command = [sys.executable, "-c", PROGRAM, json.dumps(options)]
        done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_session_with_both_wheels_knows_the_formats_and_register_takes_them_from_a_namesake(
    installed: Path, tmp_path: Path
) -> None:
    (tmp_path / "pyspark_alpha.py").write_text(NEIGHBOUR.format(name="alpha"))
    (tmp_path / "pyspark_kafka_py.py").write_text(NEIGHBOUR.format(name="kafka_py"))  # in front of ours
    found = run(tmp_path, tmp_path, installed)
    assert Path(found["pack"]).is_relative_to(installed)
    assert found["read"] == MESSAGES
    assert found["columns"] != ["key", "value"]
    assert found["read registered"] == MESSAGES
    assert found["columns registered"] == ["key", "value"]


def test_beside_a_broken_neighbour_only_register_works(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "pyspark_broken.py").write_text("raise RuntimeError('no licence')")
    found = run(tmp_path, tmp_path, installed)
    assert "DATA_SOURCE_NOT_FOUND" in found["read"]
    assert found["read registered"] == MESSAGES
    assert found["columns registered"] == ["key", "value"]
