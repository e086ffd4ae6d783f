"""What `bench/pubsub_scale.py` measures on a cluster of Spark on this machine, with a query that reads."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from _canned_pubsub import CannedPubSub
from _common import Side
from _fetch_window import Window, wait_for
from pyspark.sql import SparkSession

from connectors import register
from connectors.executors import fetch_on_executors
from connectors.spool import stats
from tests.support.spark_protocol.driver import descendants

FETCHERS = 2
MASTER = "local-cluster[2,2,1024]"
"""Two executors with a core for a fetcher and one for the batches each."""
START_SECONDS = 120
WARM_SECONDS = 20.0
_MILLION = 1e6


def fetchers() -> list[int]:
    """The pids of the fetchers on the executors."""
    jvms = {str(pid).encode() for pid in descendants(os.getpid())}
    commands = {int(path.parent.name): path.read_bytes().split(b"\0") for path in Path("/proc").glob("[0-9]*/cmdline")}
    detached = b"connectors.spool.fetching.detached"
    beside = [pid for pid, words in commands.items() if detached in words and not jvms.isdisjoint(words)]
    return [pid for each in beside for pid in descendants(each)]


@contextmanager
def fetching(master: str, count: int, server: CannedPubSub, folder: Path) -> Iterator[str]:
    """Fetch with so many processes on the executors of a new cluster while a query reads; yields the spool."""
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.executorEnv.PYTHONPATH", str(Path(__file__).resolve().parent.parent))
        .config("spark.executorEnv.PYSPARK_PYTHON", sys.executable)
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    register(spark)
    spool = str(folder / "spool")
    options = {
        "subscriptionId": server.subscription,
        "endpoint": server.address,
        "spoolLocation": spool,
        "fetch": "external",
        "dedupHorizon": "10m",
    }
    rows = spark.readStream.format("pubsub").options(**options).load()
    query = rows.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint")).start()
    with fetch_on_executors(spark, "pubsub", options, fetchers=count, query=query):
        end = time.monotonic() + START_SECONDS
        while len(fetchers()) < count and time.monotonic() < end:
            time.sleep(0.1)
        wait_for(lambda: server.stats()["acked"] > 0)
        yield spool
    query.stop()
    spark.stop()


def windows_of(executors: int, count: int, server: CannedPubSub, folder: Path, seconds: float, rounds: int) -> Side:
    """Return the messages that the ledger admits a second, in windows behind each other."""
    found = []
    with fetching(f"local-cluster[{executors},2,1024]", count, server, folder) as spool:
        time.sleep(WARM_SECONDS)
        for _ in range(rounds):
            before, began = stats(spool).rows, time.monotonic()
            time.sleep(seconds)
            found.append((stats(spool).rows - before) / (time.monotonic() - began))
    return Side(f"{count} fetchers on {executors} executors", found)


def on_cluster(folder: Path, size: int, seconds: float, costs: Mapping[str, float]) -> None:
    """Fetch on executors while a query reads; print what came, beside what the stages say.

    Args:
        folder: for spool and checkpoint.
        size: bytes of a payload.
        seconds: of the window.
        costs: processor seconds per million messages, by stage.
    """
    with CannedPubSub(size=size) as server, fetching(MASTER, FETCHERS, server, folder) as spool:
        before = stats(spool)
        found = Window.measure(server, fetchers(), seconds)
        after = stats(spool)
    rate, spent = found.acked / found.seconds, found.fetchers / found.acked * _MILLION
    print(f"cluster          {FETCHERS} fetchers on {MASTER}: {rate:,.0f} messages/s acked")
    print(f"{'':16} {after.rows - before.rows:,} rows admitted, {found.acked:,} acked in the window")
    print(f"{'':16} fetch on executors {spent:.3f} processor seconds per million messages")
    parts = ("fetch, 1 process", "the canned server", "admit, with upkeep", "plan", "read, in the tasks")
    if set(parts) <= costs.keys():
        cores, used = len(os.sched_getaffinity(0)), sum(costs[part] for part in parts)
        print(
            f"{'':16} computed for all stages and the server on these {cores} cores: {cores} / "
            f"{used:.3f} s = {cores / used * _MILLION:,.0f} messages/s; Spark's own work is not in it",
            flush=True,
        )
