"""What a query of each format costs a minute while nothing comes, beside Spark's own Kafka source.

All queries run at the same time, each in a process and a Spark session of its own and with a server of its own: default
options, no trigger interval, local[2]. Each got one row, and was left alone for `--warm-up` seconds. Then come windows
of `--seconds`, together a minute or more. A window counts, scaled to a minute: the processor time of all that the query
consists of (JVM, Python, source process, workers, fetchers), that of its server or broker, and the calls that reach the
service: those of Kinesis and Pub/Sub cost money. The server of `connectors.testing` for Kinesis and the canned one of
Pub/Sub count calls themselves; before the broker stands a proxy that counts requests (`_kafka_counter.py`), and a
broker alone (`broker`) is beside those with a query. Spark's trigger asks its own source for the latest offsets each
10 ms.

A stream of Kinesis has two shards, a topic of Kafka two partitions, Pub/Sub one subscription. The ratio of a format is
the processor time of Spark's own source divided by that of the format (the query without its server): more is better.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from _canned_pubsub import CannedPubSub
from _common import Benchmark, Side, parser
from _kafka import JVM_VERSION, OURS, THEIRS
from _load_side import PLAIN
from _program import Program, cpu_seconds
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from latency_under_load import started

from connectors.testing.kinesis import start_server_process as start_kinesis
from tests.servers.kafka_broker import KafkaBroker

ROW = bytes(16)
FORMATS = (OURS, THEIRS, "pubsub", "kinesis", "kinesis-efo")
BROKER = "broker"
MINUTE = 60.0


@dataclass
class Idle:
    """A query that has nothing to do, and its server.

    Attributes:
        query: its processor time so far.
        server: the processor time of its server so far.
        calls: the calls so far, by kind.
        windows: what was measured: query, server and calls in each window.
    """

    query: Callable[[], float]
    server: Callable[[], float]
    calls: Callable[[], Mapping[str, int]]
    windows: list[tuple[float, float, Counter[str]]] = field(default_factory=list)

    def sample(self) -> tuple[float, float, Counter[str]]:
        """All so far."""
        return self.query(), self.server(), Counter(self.calls())


def kafka(stack: contextlib.ExitStack, name: str, program: Program | None) -> Idle:
    """A query of Kafka; for `BROKER` a broker without one."""
    counter = stack.enter_context(Program("_kafka_counter.py"))
    address = next(counter.reports())["address"]
    broker = stack.enter_context(KafkaBroker(fast=True, proxy=address))
    counter.ask({"do": "lead", "to": broker.proxied_endpoint})
    admin = AdminClient({"bootstrap.servers": broker.endpoint})  # by a name: its end would end the call
    admin.create_topics([NewTopic("idle", 2, 1)])["idle"].result(60)
    if program is None:
        return Idle(lambda: 0.0, lambda: cpu_seconds(broker.java_pid), dict)
    options = {"kafka.bootstrap.servers": address, "subscribe": "idle", "startingOffsets": "earliest"}
    producer = Producer({"bootstrap.servers": broker.endpoint})
    for number in range(2):
        producer.produce("idle", ROW, partition=number)
    producer.flush()
    start(stack, program, name, options)
    return Idle(program.cpu_seconds, lambda: cpu_seconds(broker.java_pid), lambda: counter.ask({"do": "counts"}))


def pubsub(stack: contextlib.ExitStack, name: str, program: Program) -> Idle:
    """A query of a subscription."""
    server = stack.enter_context(CannedPubSub(size=len(ROW), timed=True))
    spool = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
    options = {"subscriptionId": server.subscription, "endpoint": server.address, "spoolLocation": spool}
    server.generate(1000, 0.01)
    start(stack, program, name, options)
    return Idle(program.cpu_seconds, lambda: server.stats()["cpu_seconds"], lambda: server.stats()["calls"])


def kinesis(stack: contextlib.ExitStack, name: str, program: Program) -> Idle:
    """A query of a stream, by polling or by enhanced fan-out."""
    server = stack.enter_context(start_kinesis())
    server.create_stream("idle", 2)
    server.put("idle", [("a", ROW)])
    options = {"streamName": "idle", "endpointUrl": server.url, "initialPosition": "earliest"}
    options |= {"awsAccessKey": "AKIATEST", "awsSecretKey": "test-secret"}
    if name == "kinesis-efo":
        spool = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        options |= {"consumerMode": "efo", "consumerName": "bench", "spoolLocation": spool}
    start(stack, program, "kinesis", options)
    pid = server.process.pid
    return Idle(program.cpu_seconds, lambda: cpu_seconds(pid), lambda: server.call_counts("idle"))


def start(stack: contextlib.ExitStack, program: Program, name: str, options: Mapping[str, str]) -> None:
    """Start a query, and let it have its first row."""
    started(stack, program, name, options).ask({"do": "first"})


def measure(idle: Mapping[str, Idle], windows: int, seconds: float) -> None:
    """Count in windows, all at the same time."""
    for _ in range(windows):
        begin = time.monotonic()
        before = {name: each.sample() for name, each in idle.items()}
        time.sleep(seconds)
        scale = MINUTE / (time.monotonic() - begin)
        for name, each in idle.items():
            query, server, calls = each.sample()
            counts = Counter({kind: round(count * scale) for kind, count in (calls - before[name][2]).items()})
            each.windows.append(((query - before[name][0]) * scale, (server - before[name][1]) * scale, counts))


def show(benchmark: Benchmark, idle: Mapping[str, Idle]) -> None:
    """Print all of it."""
    queries = {name: Side(name, [window[0] for window in each.windows]) for name, each in idle.items()}
    for name, each in idle.items():
        unit = "s of processor time a minute"
        if name in FORMATS and name != THEIRS and THEIRS in queries:
            benchmark.compare(name, queries[name], queries[THEIRS], unit, less_is_better=True)
        calls = Counter({kind: 0 for window in each.windows for kind in window[2]})
        for window in each.windows:
            calls.update(window[2])
        kinds = {kind: count / len(each.windows) for kind, count in calls.most_common()}
        server = Side("its server", [window[1] for window in each.windows])
        cells = {
            "query": name,
            "query, s of processor a minute": queries[name].median,
            "its server, s of processor a minute": server.median,
            "calls a minute": float(sum(kinds.values())),
            "of these": ", ".join(f"{kind} {count:,.0f}" for kind, count in kinds.items() if count >= 1) or "-",
        }
        benchmark.row("What a query costs while nothing comes", cells)


def main() -> None:
    """Run the benchmark."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--seconds", type=float, default=15.0, help="length of a window")
    arguments.add_argument("--warm-up", type=float, default=45.0, help="seconds before the first window")
    command_line = arguments.parse_args()
    benchmark = Benchmark("idle")
    benchmark.settings(peer=JVM_VERSION, windows=f"{command_line.rounds} of {command_line.seconds:g} s", trigger="none")
    starts = {OURS: kafka, THEIRS: kafka, BROKER: kafka, "pubsub": pubsub, "kinesis": kinesis, "kinesis-efo": kinesis}
    with contextlib.ExitStack() as stack:
        wanted = [name for name in starts if name in (command_line.cases or starts)]
        # All at once, since each takes a while to come up.
        programs = {
            name: stack.enter_context(Program("_load_side.py", name.removesuffix("-efo"), PLAIN))
            for name in wanted
            if name != BROKER
        }
        idle = {name: starts[name](stack, name, programs.get(name)) for name in wanted}
        time.sleep(command_line.warm_up)
        measure(idle, command_line.rounds, command_line.seconds)
        show(benchmark, idle)
    benchmark.finish()


if __name__ == "__main__":
    main()
