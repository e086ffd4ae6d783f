"""What `connectors.register` does to a session: secrets that no plan shows, and tasks that find the pack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from connectors.core.options.declaration import secret_options
from tests.support import secrets_program
from tests.support.docs_facts import OPTIONS

ROOT = Path(__file__).parents[2]
CANARY = "canary5f1c7e"
JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="{CANARY}";'


def secrets(source: str, verb: str) -> dict[str, str]:
    """Every secret option of a format, under all of its names."""
    return dict.fromkeys(secret_options(OPTIONS[source, verb]), CANARY)


KAFKA = {"kafka.bootstrap.servers": "127.0.0.1:9", "kafka.sasl.mechanism": "PLAIN", "kafka.sasl.jaas.config": JAAS}
KAFKA |= {"kafka.security.protocol": "SASL_PLAINTEXT"}
KINESIS = {"streamName": "s", "region": "eu-west-1", "endpointUrl": "http://127.0.0.1:9"}
KINESIS |= {"roleArn": "arn:aws:iam::123456789012:role/x"}
PUBSUB = {"subscriptionId": "projects/shop/subscriptions/orders"}
KEY_FILES = {"credentialsfile": f"FOLDER/{CANARY}", "spoolcredentialsfile": f"FOLDER/{CANARY}"}
PRIVATE_KEY = {"clientEmail": "a@b.c", "privatekey": CANARY, "privatekeyid": CANARY}
SPOOL_KEYS = {"spoolkeyid": CANARY, "spoolsecret": CANARY, "spoolsessiontoken": CANARY, "spoolRegion": "eu-west-1"}
SPOOL_KEYS |= {"spoolLocation": "s3://bucket/folder", "spoolEndpoint": "http://127.0.0.1:9"}
SETTINGS = {"spark.sql.redaction.options.regex": "mine", "spark.sql.ui.explainMode": "extended"}
VERBS = {False: "read", True: "write"}
CASES: list[tuple[str, bool, dict[str, str]]] = [
    ("kafka_py", False, secrets("kafka_py", "read") | KAFKA | {"subscribe": "t"}),
    ("kafka_py", True, secrets("kafka_py", "write") | KAFKA | {"topic": "t"}),
    ("kinesis", False, secrets("kinesis", "read") | KINESIS),
    ("kinesis", True, secrets("kinesis", "write") | KINESIS),
    ("pubsub", False, PUBSUB | KEY_FILES | {"spoolLocation": "gs://bucket/folder"}),
    ("pubsub", False, PUBSUB | PRIVATE_KEY | SPOOL_KEYS),
    ("pubsub", True, {"topicId": "projects/shop/topics/orders", "credentialsfile": f"FOLDER/{CANARY}"}),
]
"""Format, whether it is written, and options that together hold every secret option."""


def run(command: list[str], folder: Path = ROOT, **environ: str) -> tuple[list[str], str]:
    """The lines that a program prints, and its standard error."""
    environment = {name: value for name, value in {**os.environ, **environ}.items() if value}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines(), done.stderr


def test_no_secret_option_of_any_format_is_shown_in_plans_errors_and_the_log(tmp_path: Path) -> None:
    job = {"folder": str(tmp_path), "settings": SETTINGS, "cases": CASES}
    (tmp_path / CANARY).write_text("{}")
    arguments = json.dumps(job).replace("FOLDER", str(tmp_path))
    lines, log = run([sys.executable, "-m", secrets_program.__name__, arguments])
    shown: Mapping[str, Any] = json.loads(lines[-1])
    assert shown["regex"].endswith("|mine")
    assert shown["again"] == shown["regex"]
    assert "streamName=s" in shown["2 kinesis"]["stream explain"]  # what is not secret is shown, so the plans are there
    assert "topic=t" in shown["user interface"]
    assert not [name for name, text in shown.items() if CANARY in str(text)]
    assert CANARY not in log


@pytest.mark.parametrize("key", OPTIONS, ids=" ".join)
def test_the_walk_has_every_secret_option(key: tuple[str, str]) -> None:
    walked = {name.lower() for source, writes, options in CASES for name in options if key == (source, VERBS[writes])}
    assert secret_options(OPTIONS[key]).keys() <= walked


JOB = """
import json, sys
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from connectors import register

settings = {"spark.ui.enabled": "false", **dict(each.split("=") for each in sys.argv[3:])}
spark = SparkSession.builder.master(sys.argv[1]).config(map=settings).getOrCreate()
register(spark)
register(spark)
columns, python = [], ""
if sys.argv[2] == "use":
    columns = spark.readStream.format("kinesis").options(streamName="s", region="eu-west-1").load().columns
    python = spark.range(1).select(udf(lambda _: __import__("sys").executable)("id")).first()[0]
print(json.dumps([columns, python]))
"""


@pytest.fixture
def bare_path(tmp_path: Path) -> str:
    """A PATH whose python3 has no package, as that of a system."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -I "$@"\n')
    (folder / "python3").chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_a_job_runs_without_activating_its_environment(bare_path: str) -> None:
    lines, log = run([sys.executable, "-c", JOB, "local[1]", "use"], PATH=bare_path, PYSPARK_PYTHON="")
    columns, python = json.loads(lines[-1])
    assert "partitionKey" in columns
    assert python == sys.executable
    assert "SPARK_WORKER_PYTHON" not in log


def test_a_python_that_was_set_and_lacks_the_pack_is_named_with_the_two_lines_that_help(
    bare_path: str, tmp_path: Path
) -> None:
    python = f"{tmp_path}/bin/python3"
    # Elsewhere than in the clone, where Spark's workers would find the pack in the present folder.
    _, log = run([sys.executable, "-c", JOB, "local[1]", "no"], tmp_path, PATH=bare_path, PYSPARK_PYTHON=python)
    assert f"[SPARK_WORKER_PYTHON] Tasks run on {python}, which does not have connectors and pyarrow;" in log
    assert '\n    import os, sys\n    os.environ["PYSPARK_PYTHON"] = sys.executable\n' in log


def test_a_python_of_another_minor_version_is_named(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 3 8\n")  # what such a Python prints when it is asked
    python.chmod(0o755)
    _, log = run([sys.executable, "-c", JOB, "local[1]", "no"], PYSPARK_PYTHON=str(python))
    assert f"[SPARK_WORKER_PYTHON] Tasks run on {python}, which is Python 3.8;" in log
