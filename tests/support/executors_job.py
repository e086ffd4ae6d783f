"""A cluster of two executors on this machine, for `tests/spark/test_pubsub_executors.py`: arguments CASE FOLDER.

Its executors are processes of their own with a working directory of their own. So a spool under ``/proc/self/cwd`` is
seen by the driver and its children only.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from connectors import register
from connectors.executors import fetch_on_executors
from connectors.testing.pubsub import start_server_process
from tests.support.spark_protocol.driver import descendants

TOPIC, SUBSCRIPTION = "projects/shop/topics/orders", "projects/shop/subscriptions/orders"
MESSAGES = 2000


MARK = "EXECUTORS_JOB"
"""A variable in the environment of all processes of this cluster, and of no other test's."""


JVM_OPTIONS = "SPARK_SUBMIT_OPTS"
"""The options of the driver's JVM, see `tests/support/quick_java.py`; those of the executors are the same."""


def session(cores: int, **settings: str) -> SparkSession:
    root = str(Path(__file__).parents[2])
    spark = (
        SparkSession.builder.master(f"local-cluster[2,{cores},1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.executorEnv.PYTHONPATH", root)
        .config(f"spark.executorEnv.{MARK}", os.environ[MARK])
        .config("spark.executorEnv.PYSPARK_PYTHON", sys.executable)
        .config("spark.executor.extraJavaOptions", os.environ.get(JVM_OPTIONS, ""))
        .config("spark.log.level", "ERROR")
        .config(map=settings)
        .getOrCreate()
    )
    register(spark)
    return spark


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.1)


def executors() -> list[int]:
    """The JVMs of the executors: children of the driver's JVM, as a standalone worker starts them."""
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(os.getpid())}
    return [pid for pid, command in commands.items() if b"CoarseGrainedExecutorBackend" in command]


def fetchers() -> list[int]:
    """All processes of this cluster that fetch, and those that started them, also when their parent has ended."""
    mark, found = f"{MARK}={os.environ[MARK]}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            fetches = b"connectors.spool.fetching." in (folder / "cmdline").read_bytes()
            if fetches and mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


class Job:
    """A query with ``fetch=external`` and what came out of it."""

    def __init__(self, spark: SparkSession, endpoint: str, spool: str, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.found: list[str] = []
        self.options = {
            "subscriptionId": SUBSCRIPTION,
            "endpoint": endpoint,
            "spoolLocation": spool,
            "fetch": "external",
            "maxOutstandingBytes": "20000",
        }

    def start(self) -> StreamingQuery:
        def write(batch: DataFrame, _: int) -> None:
            self.found.extend(batch.toArrow()["messageId"].to_pylist())

        rows = self.spark.readStream.format("pubsub").options(**self.options).load()
        writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(self.folder / "checkpoint"))
        return writer.start()


def kill(folder: Path, server: Any) -> None:
    """Two fetchers, four slots; the executor of a fetcher is killed in the middle."""
    spark = session(2)
    job = Job(spark, server.endpoint, str(folder / "spool"), folder)
    published = server.publish(TOPIC, [b"first"] * MESSAGES)
    query = job.start()
    with fetch_on_executors(spark, "pubsub", job.options, fetchers=2, query=query) as fetching:
        wait_for(lambda: len(set(job.found)) >= MESSAGES, "the first messages")
        victim = executors()[0]
        published += server.publish(TOPIC, [b"second"] * MESSAGES)
        os.kill(victim, signal.SIGKILL)
        say("killed an executor")
        published += server.publish(TOPIC, [b"third"] * MESSAGES)
        server.jump(15)
        wait_for(lambda: len(set(job.found)) >= len(published), f"all messages: {len(job.found)} of {len(published)}")
        time.sleep(1)  # no event shows that no row comes twice
        assert sorted(job.found) == sorted(published), "doubled"
        say("each once")
        query.stop()
        assert fetching.await_end(30)
        say("ended with the query")
    wait_for(lambda: not server.streams(SUBSCRIPTION), "the end of the streams")
    spark.stop()


def few(folder: Path, server: Any, mode: str = "FIFO") -> None:
    """As many fetchers as slots: batches are read all the same, also after the loss of an executor."""
    spark = session(1, **{"spark.scheduler.mode": mode})
    job = Job(spark, server.endpoint, str(folder / "spool"), folder)
    published = server.publish(TOPIC, [b"first"] * MESSAGES)
    query = job.start()
    with fetch_on_executors(spark, "pubsub", job.options, fetchers=2, query=query) as fetching:
        wait_for(lambda: len(set(job.found)) >= MESSAGES, "the first messages", 120)
        say("read the first")
        wait_for(lambda: len(places := fetching.status()) == 2 and all(one.healthy for one in places), "both fetchers")
        first = {one.number: one for one in fetching.status()}
        assert len({one.executor for one in first.values()}) == 2, first
        assert len({one.pid for one in first.values()} & set(fetchers())) == 2, first
        say("one beside each executor")
        os.kill(executors()[0], signal.SIGKILL)
        server.jump(15)
        wait_for(lambda: sum(one.starts == 2 for one in fetching.status()) == 1, "another fetcher")
        server.jump(15)
        published += server.publish(TOPIC, [b"second"] * MESSAGES)
        wait_for(
            lambda: len(set(job.found)) >= len(published), f"all messages: {len(job.found)} of {len(published)}", 120
        )
        time.sleep(1)  # no event shows that no row comes twice
        assert sorted(job.found) == sorted(published), "doubled"
        say("each once")
        query.stop()
        assert fetching.await_end(60)
        assert fetching.status() == ()
    wait_for(lambda: not fetchers(), "the end of the fetchers")
    assert list((folder / "spool/fetchers").iterdir()) == []
    say("nothing left")
    spark.stop()


def fair(folder: Path, server: Any) -> None:
    """The same with the other scheduler."""
    few(folder, server, "FAIR")


def unseen(folder: Path, server: Any) -> None:
    """The fetchers, and later the tasks of a query that the driver fetches for, do not see the spool."""
    os.chdir(folder)
    spark = session(1)
    job = Job(spark, server.endpoint, "/proc/self/cwd/spool", folder)
    query = job.start()
    with fetch_on_executors(spark, "pubsub", job.options, fetchers=1, query=query) as fetching:
        wait_for(lambda: not fetching.is_active, "the end of the fetchers")
        assert fetching.error is not None
        say(f"fetchers: {fetching.error.code}: {fetching.error}")
    query.stop()
    job.options |= {"fetch": "driver"}
    server.publish(TOPIC, [b"first"] * 10)
    query = job.start()
    wait_for(lambda: not query.isActive, "the end of the query")
    text = str(query.exception())
    say("query: " + ("SPOOL_NOT_VISIBLE" if "[SPOOL_NOT_VISIBLE]" in text else text))
    spark.stop()


def main() -> None:
    # Where it hangs, if it does: the test that started it shows that.
    faulthandler.dump_traceback_later(240, exit=True)
    case, folder = {"kill": kill, "unseen": unseen, "few": few, "fair": fair}[sys.argv[1]], Path(sys.argv[2])
    os.environ[MARK] = str(folder)
    with start_server_process() as server:
        server.create_subscription(SUBSCRIPTION, TOPIC)
        case(folder, server)


if __name__ == "__main__":
    main()
