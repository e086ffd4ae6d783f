"""The entry point of the image, as Spark on Kubernetes calls it: what it starts runs a job. No container is needed."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from tests.servers.java import free_port
from tests.support.documents import environment
from tests.support.quick_java import OPTIONS

ROOT = Path(__file__).parents[2]
ENTRYPOINT = ROOT / "docker" / "entrypoint.sh"
SPARK_HOME = str(Path(pyspark.__file__).parent)
# Its tasks can only run on the executor that the entry point has started.
JOB = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("image").getOrCreate()
context = spark.sparkContext
options = context.getConf().get("spark.executor.extraJavaOptions")
print("DRIVER", context.getConf().get("spark.driver.port"), context.applicationId, options, flush=True)
print("ROWS", context.parallelize(range(4), 2).map(lambda number: number * 2).collect(), flush=True)
"""


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in reversed(started):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def started(command: list[str], folder: Path, **changes: str) -> subprocess.Popen[str]:
    with (folder / f"{Path(command[-1]).name}.log").open("w") as log:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=environment(SPARK_HOME=SPARK_HOME, **changes),
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )


def test_any_other_command_runs_as_it_stands(tmp_path: Path) -> None:
    done = subprocess.run([ENTRYPOINT, "echo", "a b", "$c"], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == "a b $c\n"


def test_a_driver_and_an_executor_of_the_entry_point_run_a_job(
    tmp_path: Path, processes: list[subprocess.Popen[str]]
) -> None:
    """Spark's own master plays the part of Kubernetes for the driver: it has no workers, so no other executor comes."""
    (tmp_path / "job.py").write_text(JOB)
    port = str(free_port())
    master = [f"{SPARK_HOME}/bin/spark-class", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1"]
    place = ["--webui-port", str(free_port()), "--port", port]
    processes.append(started([*master, *place], tmp_path, SPARK_DAEMON_JAVA_OPTS=OPTIONS))
    quick = f"spark.executor.extraJavaOptions={OPTIONS}"
    settings = [quick, "spark.ui.enabled=false", "spark.driver.host=127.0.0.1", "spark.python.worker.reuse=true"]
    flags = [part for setting in settings for part in ("--conf", setting)]
    command = [str(ENTRYPOINT), "driver", "--master", f"spark://127.0.0.1:{port}", *flags, "job.py"]
    driver = started(command, tmp_path, SPARK_DRIVER_BIND_ADDRESS="127.0.0.1")
    processes.append(driver)
    assert driver.stdout is not None
    words = next(line for line in driver.stdout if line.startswith("DRIVER ")).split(maxsplit=3)
    java_options = shlex.split(words[3])
    executor = {
        "SPARK_DRIVER_URL": f"spark://CoarseGrainedScheduler@127.0.0.1:{words[1]}",
        "SPARK_APPLICATION_ID": words[2],
        "SPARK_EXECUTOR_ID": "7",
        "SPARK_EXECUTOR_CORES": "1",
        "SPARK_EXECUTOR_MEMORY": "512m",
        "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
        "SPARK_EXECUTOR_POD_NAME": "orders-exec-7",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "PYSPARK_PYTHON": sys.executable,
        **{f"SPARK_JAVA_OPT_{number}": option for number, option in enumerate(java_options)},
    }
    processes.append(started([str(ENTRYPOINT), "executor"], tmp_path, **executor))
    printed = driver.stdout.read()  # what Python prints to standard error is there too
    assert "ROWS [0, 2, 4, 6]" in printed.splitlines(), printed
    assert driver.wait(60) == 0
