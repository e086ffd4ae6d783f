"""Streams of one session: when each has its first row, whether one ends, and what they cost while nothing comes.

`start`: ten streams, started one behind the other in a new session with local[2], each with a row that waits for it;
the default options. The seconds are those from the first `start()` to the last first row. Each format is beside ten
streams of a source in Python that does nothing but what Spark demands of one (`ready_rows`), whose row is there: what
Spark itself takes on this machine. The formats take turns. A stream that ended is counted, with what it said.

`first`: where the seconds before the first row go, for one stream at a time: the first of a new session (cold), and
more behind it (warm). `start() to the trigger with rows` has the start of the source process and its imports (with
Pub/Sub those of the fetcher too), `latestOffset` the listing and the search, `in it to the rows` the partitions, the
start of workers and the task; `processor` is that of all the session consists of. `ready_rows` shows what Spark itself
takes.

`idle`: so many streams (`--streams`) of a format in one session, started ten at a time, each ten when those before have
their rows, and left alone after that. Counted are the processor time and the memory of all that the session consists
of: JVM, Python, source processes, fetchers, workers.

`zip`: one stream, and ten, in a new session as in `start`, once as Spark comes and once with workers that import
PySpark as it is installed instead of from Spark's `pyspark.zip`, of which Python keeps no compiled files.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from _common import Benchmark, Side, parser
from _kafka import OURS
from _program import Program
from _ready_rows import READY
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from connectors.testing.kinesis import start_server_process as start_kinesis
from connectors.testing.pubsub import start_server_process as start_pubsub
from connectors.testing.pubsub.client import PubSubTestClient
from tests.servers.kafka_broker import KafkaBroker
from tests.support.processes import RUN_MARK
from tests.support.quick_python import leave_out_zip

Options = list[dict[str, str]]
Servers = Callable[[int], contextlib.AbstractContextManager[Options]]
AT_ONCE = 10
MINUTE = 60.0
WARM_UP_SECONDS = 15.0
WARM_STREAMS = 3


@contextlib.contextmanager
def ready(count: int) -> Iterator[Options]:
    """Sources whose only batch is there."""
    yield [{"rows": "1", "size": "16", "batches": "1", "partitions": "1", "rowsPerBatch": "1"}] * count


@contextlib.contextmanager
def kafka(count: int) -> Iterator[Options]:
    """Topics of one partition with one record."""
    with KafkaBroker(fast=True) as broker:
        names = [f"stream-{number}" for number in range(count)]
        admin = AdminClient({"bootstrap.servers": broker.endpoint})
        for future in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
            future.result(60)
        producer = Producer({"bootstrap.servers": broker.endpoint})
        for name in names:
            producer.produce(name, b"row")
        producer.flush()
        common = {"kafka.bootstrap.servers": broker.endpoint, "startingOffsets": "earliest"}
        yield [common | {"subscribe": name} for name in names]


@contextlib.contextmanager
def kinesis(count: int) -> Iterator[Options]:
    """Streams of one shard with one record."""
    with start_kinesis() as server:
        names = [f"stream-{number}" for number in range(count)]
        for name in names:
            server.create_stream(name, 1)
            server.put(name, [("a", b"row")])
        common = {"endpointUrl": server.url, "initialPosition": "earliest"}
        common |= {"awsAccessKey": "AKIATEST", "awsSecretKey": "test-secret"}
        yield [common | {"streamName": name} for name in names]


@contextlib.contextmanager
def pubsub(count: int) -> Iterator[Options]:
    """Subscriptions with one message, each with a spool."""
    with (
        start_pubsub() as server,
        PubSubTestClient(server.endpoint, "shop") as client,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as spools,
    ):
        names = [f"stream-{number}" for number in range(count)]
        for name in names:
            client.create(name, name)
            client.publish(name, [(b"row", {})])
        yield [
            {
                "subscriptionId": client.subscription(name),
                "endpoint": server.endpoint,
                "spoolLocation": str(Path(spools, name)),
            }
            for name in names
        ]


FORMATS: Mapping[str, Servers] = {READY: ready, OURS: kafka, "kinesis": kinesis, "pubsub": pubsub}


@contextlib.contextmanager
def streams(name: str, count: int) -> Iterator[tuple[Program, float, list[str]]]:
    """Start streams in a new session; the session, the seconds until all had a row, and what those said that ended."""
    with (
        FORMATS[name](count) as options,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        Program("_streams_side.py") as program,
    ):
        next(program.reports())
        what = {"do": "start", "name": name, "options": options, "checkpoints": folder, "at_once": AT_ONCE}
        found = program.ask(what)
        if not found["ended"] and len(found["rows_after"]) < count:
            found["ended"].append(f"{count - len(found['rows_after'])} had no row")
        yield program, max(found["rows_after"], default=0.0), found["ended"]


def start(benchmark: Benchmark, names: list[str], tries: int) -> None:
    """Ten streams of each format, so many times."""
    seconds: dict[str, list[float]] = {name: [] for name in names}
    ended: dict[str, list[str]] = {name: [] for name in names}
    for number in range(tries):
        for name in names if number % 2 else reversed(names):
            with streams(name, AT_ONCE) as (_, took, texts):
                print(f"# try {number} of {name}: {took:.1f} s, {len(texts)} ended", flush=True)
                seconds[name].append(took)
                ended[name] += texts
    for name in names:
        benchmark.note(f"start-{name}", f"{len(ended[name])} streams of {tries * AT_ONCE} ended: {ended[name] or '-'}")
        if name != READY and READY in names:
            sides = (Side(each, seconds[each]) for each in (name, READY))
            benchmark.compare(f"start-{name}", *sides, "s to the last first row", less_is_better=True)


def first(benchmark: Benchmark, name: str, tries: int) -> None:
    """The stages before the first row: so many new sessions, each with streams behind the first."""
    found: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    for _ in range(tries):
        with (
            FORMATS[name](1 + WARM_STREAMS) as options,
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
            Program("_streams_side.py") as program,
        ):
            next(program.reports())
            for number, each in enumerate(options):
                command = {"do": "first", "name": name, "options": each, "checkpoint": f"{folder}/{number}"}
                before = program.cpu_seconds()
                stages = program.ask(command)
                found["warm" if number else "cold"].append(stages | {"processor": program.cpu_seconds() - before})
    for session, runs in found.items():
        stages = {stage: statistics.median(run[stage] for run in runs) for stage in runs[0]}
        cells: dict[str, str | float] = {"format": name, "session": session, "streams": float(len(runs))}
        benchmark.row("Seconds before the first row, medians", cells | stages)


@contextlib.contextmanager
def installed_package() -> Iterator[None]:
    """Have the Python processes of sessions that start now leave Spark's zip out of their path."""
    leave_out_zip()
    os.environ[RUN_MARK] = "bench"
    try:
        yield
    finally:
        del os.environ[RUN_MARK]


def without_zip(benchmark: Benchmark, name: str, tries: int) -> None:
    """One stream, and ten, with and without Spark's zip in turn."""
    ways = {"as installed": installed_package, "from the zip": contextlib.nullcontext}
    for count in (1, AT_ONCE):
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        processor: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(tries):
            for way in ways if number % 2 else reversed(ways):
                with ways[way](), streams(name, count) as (program, took, ended):
                    print(f"# {count} of {name} {way}: {took:.1f} s, {len(ended)} ended", flush=True)
                    seconds[way].append(took)
                    processor[way].append(program.cpu_seconds())
        for part, what, found in (("", "s to the last first row", seconds), ("-cpu", "processor, s", processor)):
            sides = (Side(way, runs) for way, runs in found.items())
            benchmark.compare(f"zip-{name}-{count}{part}", *sides, what, less_is_better=True)


def idle(benchmark: Benchmark, name: str, count: int, seconds: float) -> None:
    """So many streams that have nothing to do."""
    with streams(name, count) as (program, took, ended):
        time.sleep(WARM_UP_SECONDS)
        before, begin = program.cpu_seconds(), time.monotonic()
        time.sleep(seconds)
        processor = (program.cpu_seconds() - before) * MINUTE / (time.monotonic() - begin)
        cells: dict[str, str | float] = {
            "format": name,
            "streams": float(count),
            "first rows after, s": took,
            "ended": float(len(ended)),
            "processor, s a minute": processor,
            "memory, MB": program.memory_bytes() / 1e6,
        }
    benchmark.row("Streams of one session while nothing comes", cells)


def main() -> None:
    """Run the benchmark."""
    made = parser(__doc__ or "")
    made.add_argument("--tries", type=int, default=20, help="sessions of each format, of `start` and `first`")
    made.add_argument("--streams", type=int, nargs="*", default=[1, 10, 50], help="streams of a session, of `idle`")
    made.add_argument("--formats", nargs="*", default=list(FORMATS), choices=FORMATS, help="only these")
    made.add_argument("--seconds", type=float, default=MINUTE, help="how long they are left alone, of `idle`")
    options = made.parse_args()
    benchmark = Benchmark("many_streams")
    benchmark.settings(master="local[2]", at_once=AT_ONCE, tries=options.tries, trigger="none")
    if not options.cases or "start" in options.cases:
        start(benchmark, options.formats, options.tries)
    if not options.cases or "first" in options.cases:
        for name in options.formats:
            first(benchmark, name, options.tries)
    if not options.cases or "zip" in options.cases:
        for name in options.formats:
            without_zip(benchmark, name, options.tries)
    if not options.cases or "idle" in options.cases:
        for name in options.formats:
            for count in options.streams:
                idle(benchmark, name, count, options.seconds)
    benchmark.finish()


if __name__ == "__main__":
    main()
