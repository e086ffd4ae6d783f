"""The `pubsub` stream in Spark: rows per second to a noop sink, and the time from publish to sink.

`rows`: a canned server in Go (bench/servers/canned_pubsub) that sends as fast as it can, 1 KB a message; Spark with
local[2] and default options; segments are durable. Counted are the rows of whole batches, as Spark reports them, in
windows after a warm-up. Beside it, without Spark: the acks of Google's high-level client, and those of one of our
fetch processes alone (`rows-fetcher`). `rows-file-manager`: the same query with the setting of Spark that
docs/how-to/latency.md advises (`FILE_MANAGER`). On two cores 150,000 rows/s are asked for. Where the disk gives less
than twice what is needed, a run on tmpfs stands beside it (`rows-tmpfs`).

`latency`: our own server (connectors.testing), 1,000 messages of 1 KB a second, no trigger interval, the sink
foreachBatch with toArrow. The latency of a row is the time from just before its publish request to the return of
toArrow, by one clock. Beside it Google's high-level client, which writes nothing and has no batches: the floor of
server, client and machine. p50 below 400 ms is asked for. `latency-file-manager`: the same with that setting of Spark,
`latency-tuned` with a shorter `maxFetchPeriod` too (`FETCH_PERIOD`). `latency-emulator`: on the official emulator,
which adds delays.

Latency ratios are the client's p50 divided by ours; as everywhere, more is better. Beside the figures by the clock
stands the processor time of each kind of process, which says more on a machine that has other work too.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _canned_pubsub import CannedPubSub
from _common import Benchmark, Side, disk_rate, file_system_of, fsync_milliseconds, interleaved, memory_folder, parser
from _processor import ProcessorMeter, shares
from _program import Program
from _pubsub_latency import TICK_SECONDS
from pubsub_fetch import ENOUGH, ours, theirs

from connectors.testing.pubsub import start_server_process
from connectors.testing.pubsub.client import PubSubTestClient
from tests.servers.pubsub_emulator import Emulator, find_emulator

SIZE = 1024
RATE = 1000
ASKED_ROWS = 150_000
ASKED_P50 = 400
CASES = ("rows", "latency", "latency-file-manager", "latency-tuned", "latency-emulator")
FILE_MANAGER = (
    "spark.sql.streaming.checkpointFileManagerClass",
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
)
"""Writes a file of the checkpoint without starting processes, as Spark's default does on a local disk."""
FETCH_PERIOD = "20ms"


@dataclass(frozen=True)
class Times:
    """How long to measure.

    Attributes:
        windows: how many windows.
        seconds: length of a window; one of whole batches is as much longer as its last batch takes.
        warm_up: seconds from the first rows to the first window.
    """

    windows: int
    seconds: float
    warm_up: float


@contextlib.contextmanager
def query(
    sink: str, subscription: str, endpoint: str, folder: Path, command_line: Namespace, python: str = sys.executable
) -> Iterator[Program]:
    """A query of Spark in a process of its own, with default options of the format."""
    root = Path(tempfile.mkdtemp(prefix="bench-stream-", dir=folder))
    places = {"subscriptionId": subscription, "endpoint": endpoint, "spoolLocation": str(root / "spool")}
    options = {**places, **command_line.options}
    try:
        checkpoint = str(root / "checkpoint")
        plan = {"sink": sink, "options": options, "checkpoint": checkpoint, "configuration": dict(command_line.conf)}
        with Program("_pubsub_query.py", plan=plan, python=python) as program:
            yield program
    finally:
        shutil.rmtree(root)


# Rows per second.


def rows_per_second(case: str, folder: Path, command_line: Namespace) -> list[float]:
    """What a noop sink gets from a saturating server, window by window."""
    with (
        CannedPubSub(size=SIZE) as server,
        query("noop", server.subscription, server.address, folder, command_line) as program,
    ):
        meter = ProcessorMeter()
        found = row_windows(
            case, program.reports(), Times(command_line.rounds, command_line.seconds, command_line.warm_up), meter
        )
        counters = server.stats()
    sent, acked = counters["sent"], counters["acked"]
    print(f"{case}: the server has sent {sent:,}, {acked:,} are acked, load {load()}", flush=True)
    return found


def row_windows(case: str, batches: Iterator[Mapping[str, Any]], times: Times, meter: ProcessorMeter) -> list[float]:
    """Rows per second in windows of whole batches: from the end of one batch to the end of another."""
    durations: Counter[str] = Counter()
    count = 0
    warm_at = next(batches)["ended"] + times.warm_up
    found: list[float] = []
    begin, rows, all_rows = 0.0, 0, 0
    for batch in batches:
        if begin:
            rows += batch["rows"]
            all_rows += batch["rows"]
            durations.update(batch["durations"])
            count += 1
            if batch["ended"] - begin >= times.seconds:
                found.append(rows / (batch["ended"] - begin))
                begin, rows = batch["ended"], 0
        elif batch["ended"] >= warm_at:
            begin = batch["ended"]
            meter.begin()
        if len(found) == times.windows:
            break
    print(f"{case}: processor time a row {shares(meter.seconds(), each=all_rows / 1e6, unit='us')}")
    print(f"{case}: a batch of {all_rows / count:,.0f} rows, ms: {steps_of(durations, count)}", flush=True)
    return found


def steps_of(durations: Mapping[str, float], batches: int) -> str:
    """What the steps of a batch took on average, in ms, the longest first."""
    longest = sorted(durations.items(), key=lambda item: -item[1])
    return ", ".join(f"{step} {total / batches:.0f}" for step, total in longest)


def measure_rows(bench: Benchmark, command_line: Namespace, disk: Side) -> None:
    """The cases `rows`, `rows-fetcher` and, on a slow disk, `rows-tmpfs`."""
    client, fetcher = interleaved(
        {
            "high-level client, acked, no Spark": theirs(SIZE, command_line.seconds),
            "one fetch process, acked, no Spark": ours(SIZE, command_line.folder, command_line.seconds, plain=False),
        },
        command_line.rounds,
    )
    found = Side("ours, rows of the sink", rows_per_second("rows", command_line.folder, command_line))
    bench.compare("rows", found, client, "rows/s")
    bench.compare("rows-fetcher", found, fetcher, "rows/s")
    tuned = Side(
        "ours, rows of the sink",
        rows_per_second("rows-file-manager", command_line.folder, with_file_manager(command_line)),
    )
    bench.compare("rows-file-manager", tuned, client, "rows/s")
    memory = memory_folder()
    if memory is not None and disk.median < ENOUGH * max(found.median, ASKED_ROWS) * SIZE / 1e6:
        print(f"rows: the disk gives less than {ENOUGH:g} times what is needed; tmpfs stands beside it")
        found = Side("ours, rows of the sink, tmpfs", rows_per_second("rows-tmpfs", memory, command_line))
        bench.compare("rows-tmpfs", found, client, "rows/s")
    print(f"rows: asked for at least {ASKED_ROWS:,} rows/s on two cores, found {found.median:,.0f}\n", flush=True)


# Latency.


@dataclass(frozen=True)
class Latencies:
    """What the windows gave, in ms, the rows of a window per second, and what a batch of them took.

    Attributes:
        durations: mean times of the steps of a batch, ms, as Spark reports them; empty without batches.
        processor: shares of the processors, by kind of process.
    """

    p50: list[float]
    p99: list[float]
    rates: list[float]
    durations: dict[str, float]
    processor: str


def latency_windows(reports: Iterator[Mapping[str, Any]], times: Times) -> Latencies:
    """Percentiles of windows of equal length; a row belongs to the one in which it arrived."""
    windows: list[list[int]] = [[] for _ in range(times.windows)]
    durations: Counter[str] = Counter()
    meter, begin, batches, number = ProcessorMeter(), 0.0, 0, -1
    for report in reports:
        if "durations" in report:
            if number >= 0:
                batches += 1
                durations.update(report["durations"])
            continue
        if not report["latencies"]:
            continue
        begin = begin or report["ended"] / 1e9 + times.warm_up
        before, number = number, int((report["ended"] / 1e9 - begin) // times.seconds)
        if number >= times.windows:
            break
        if number >= 0:
            if before < 0:
                meter.begin()
            windows[number] += report["latencies"]
    processor = shares(meter.seconds(), each=times.windows * times.seconds, unit="processors")
    p50, p99 = np.array([np.percentile(window, (50, 99)) for window in windows]).T / 1e3
    rates = [len(window) / times.seconds for window in windows]
    means = {step: total / batches for step, total in durations.items()}
    return Latencies(p50.tolist(), p99.tolist(), rates, means, processor)


def measure_latency(bench: Benchmark, command_line: Namespace, case: str, endpoint: str) -> None:
    """Our query and the high-level client, one after the other, each with a topic of its own."""
    times = Times(command_line.rounds, command_line.seconds, command_line.latency_warm_up)
    with (
        published(endpoint, "ours") as subscription,
        query("latency", subscription, endpoint, command_line.folder, command_line) as program,
    ):
        mine = latency_windows(program.reports(), times)
    print(f"{case}: load {load()}; {mine.processor}\n{case}: a batch, ms: {steps_of(mine.durations, 1)}", flush=True)
    with (
        published(endpoint, "client") as subscription,
        Program("_pubsub_latency.py", "subscribe", endpoint, subscription) as program,
    ):
        other = latency_windows(program.reports(), times)
    bench.compare(
        case, Side("ours, p50", mine.p50), Side("high-level client, p50", other.p50), "ms", less_is_better=True
    )
    bench.show(case, Side("ours, p99", mine.p99), "ms")
    bench.show(case, Side("high-level client, p99", other.p99), "ms")
    bench.show(case, Side("ours, rows of the sink", mine.rates), "rows/s")
    bench.show(case, Side("high-level client, messages", other.rates), "messages/s")


@contextlib.contextmanager
def published(endpoint: str, name: str) -> Iterator[str]:
    """A subscription whose topic is published to evenly."""
    with PubSubTestClient(endpoint, "bench") as client:
        client.create(name, name)
        topic, subscription = client.topic(name), client.subscription(name)
    with Program("_pubsub_latency.py", "publish", endpoint, topic, str(RATE), str(SIZE)):
        yield subscription


def setting(text: str) -> tuple[str, str]:
    """A setting of Spark as given on the command line."""
    key, _, value = text.partition("=")
    return key, value


def with_file_manager(command_line: Namespace) -> Namespace:
    """The same arguments with the setting of Spark that makes its log writes cheap."""
    return Namespace(**{**vars(command_line), "conf": [*command_line.conf, FILE_MANAGER]})


def load() -> str:
    """The load average of the machine: numbers of a busy one are of little use."""
    return ", ".join(f"{value:.1f}" for value in os.getloadavg())


def main() -> None:
    """Run the cases."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where the spools go")
    arguments.add_argument("--seconds", type=float, default=5.0, help="length of a window")
    arguments.add_argument("--warm-up", type=float, default=30.0, help="seconds from the first batch of `rows`")
    # Two minutes after its start the compiler of the JVM still takes a part of one of two cores.
    arguments.add_argument("--latency-warm-up", type=float, default=60.0, help="seconds from the first row")
    arguments.add_argument(
        "--conf", type=setting, action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark"
    )
    command_line = arguments.parse_args()
    command_line.options = {}
    # So that everything is ended and removed also then.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    disk = disk_rate(command_line.folder)
    bench = Benchmark("pubsub_stream")
    bench.settings(
        spark="local[2], default options of the format, no trigger interval, one query a process",
        spark_settings=", ".join(map("=".join, command_line.conf)) or "none but those of local[2] without UI",
        rows="canned server in Go (bench/servers/canned_pubsub), 1 KB, noop sink; counted by Spark's numInputRows",
        latency=f"{RATE} messages/s of 1 KB, a request each {TICK_SECONDS * 1e3:g} ms; foreachBatch with toArrow",
        theirs="google.cloud.pubsub_v1 SubscriberClient.subscribe, in a process of its own",
        windows=f"{command_line.rounds} of {command_line.seconds:g} s, for rows of whole batches, "
        f"after {command_line.warm_up:g} s (rows) and {command_line.latency_warm_up:g} s (latency) of warm-up",
        disk=f"{file_system_of(command_line.folder)}, {disk.median:,.0f} MB/s in 64 MB files with fsync",
        small_fsync=f"{fsync_milliseconds(command_line.folder).median:.2f} ms",
    )
    wanted = [case for case in CASES if case in (command_line.cases or CASES)]
    if "rows" in wanted:
        measure_rows(bench, command_line, disk)
    if "latency" in wanted:
        with start_server_process() as server:
            measure_latency(bench, command_line, "latency", server.endpoint)
        print(f"latency: asked for a p50 below {ASKED_P50} ms\n", flush=True)
    if "latency-file-manager" in wanted:
        with start_server_process() as server:
            measure_latency(bench, with_file_manager(command_line), "latency-file-manager", server.endpoint)
    if "latency-tuned" in wanted:
        with start_server_process() as server:
            tuned = with_file_manager(command_line)
            tuned.options = {"maxFetchPeriod": FETCH_PERIOD}
            measure_latency(bench, tuned, "latency-tuned", server.endpoint)
    if "latency-emulator" in wanted:
        if reason := find_emulator().reason:
            print(f"latency-emulator: skipped: {reason}")
        else:
            with Emulator() as emulator:
                measure_latency(bench, command_line, "latency-emulator", emulator.endpoint)
    bench.finish()


if __name__ == "__main__":
    main()
