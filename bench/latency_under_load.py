"""Time from publish to sink under load: Kafka beside Spark's own source, Pub/Sub, Kinesis fan-out.

Cases are `SYSTEM-RATE`, `SYSTEM-RATE-async` (asynchronous progress tracking) and `SYSTEM-RATE-stateful`
(dropDuplicatesWithinWatermark over 10 s, RocksDB), with `kafka-10k`, `kafka-50k`, `kafka-100k`, `pubsub-10k`,
`pubsub-50k`, `kinesis-10k` and `kinesis-50k`: events of 100 B a second. Options of the formats and of Spark are the
defaults, without trigger interval; local[2], the sink is foreachBatch with toArrow. Each side is one query in a process
of its own, which stands still (SIGSTOP) while the other one is measured. Kafka has two partitions; a shard of Kinesis
takes 1,000 records a second, as at AWS.

Events come from a process of its own at a steady rate, sent whether or not those before have arrived, and carry the
time at which they were sent: `_load_generator.py`, and for Pub/Sub the canned server in Go, whose messages carry the
time at which they were due. How late the generator was itself is printed; where it was later than `LATE_MS` at p99, a
line says so: it shares the machine with the query. Every event of a round counts that was sent after the first second
of the round, and a side that has not all of them `PATIENCE` later did not keep up, which a line says too.

The ratio is Spark's own divided by ours, so more is better.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from _canned_pubsub import CannedPubSub
from _common import Benchmark, Side, parser
from _kafka import JVM_VERSION, OURS, THEIRS
from _load_generator import SIZE
from _load_side import ASYNC, PLAIN, STATEFUL
from _program import Program
from confluent_kafka.admin import AdminClient, NewTopic

from connectors.testing.kinesis import start_server_process
from tests.servers.kafka_broker import KafkaBroker, find_broker
from tests.servers.maven import class_path

RATES = {"kafka": (10_000, 50_000, 100_000), "pubsub": (10_000, 50_000), "kinesis": (10_000, 50_000)}
KINDS = {PLAIN: "", ASYNC: "-async", STATEFUL: "-stateful"}
COLUMNS = {
    OURS: ("value", "timestamp"),
    THEIRS: ("value", "timestamp"),
    "pubsub": ("payload", "publishTimestamp"),
    "kinesis": ("data", "approximateArrivalTimestamp"),
}
SHARD_RATE = 1000
SETTLE_SECONDS = 1.0
WARM_SECONDS = 15.0
PATIENCE = 20.0
LATE_MS = 20.0
Send = Callable[[str, int, float], dict[str, Any]]


@dataclass
class Query:
    """A query that runs.

    Attributes:
        program: its process.
        topic: what it reads.
        send: sends into that.
    """

    program: Program
    topic: str
    send: Send

    def round(self, rate: int, seconds: float) -> dict[str, Any]:
        """Send, and wait for the rows; what the generator and the query say."""
        found = self.send(self.topic, rate, SETTLE_SECONDS + seconds)
        begin = found["begin"] + int(SETTLE_SECONDS * 1e9)
        # The rows of the first second are a few more or less, as the generator sends by ticks.
        expected = found["messages"] * seconds / (SETTLE_SECONDS + seconds)
        span = {"begin": begin, "end": begin + int((seconds + PATIENCE) * 1e9), "count": int(expected * 0.999)}
        arrived = self.program.ask({"do": "arrivals", **span, "patience": PATIENCE})
        return {**arrived, "expected": expected, "late_p99_ms": found["late_p99_ms"]}


@contextlib.contextmanager
def kafka(kind: str, _rate: int) -> Iterator[dict[str, Query]]:
    """Both sides on one broker, each with a topic of its own."""
    for reason in (find_broker().reason, class_path("kafka-spark").reason):
        if reason:
            sys.exit(reason)
    with contextlib.ExitStack() as stack:
        programs = {name: side(stack, name, kind) for name in (OURS, THEIRS)}
        broker = stack.enter_context(KafkaBroker(fast=True))
        generator = stack.enter_context(Program("_load_generator.py", "kafka", broker.endpoint))
        admin = AdminClient({"bootstrap.servers": broker.endpoint})
        queries = {}
        for name in (OURS, THEIRS):
            topic = f"load-{name}"
            admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(60)
            options = {"kafka.bootstrap.servers": broker.endpoint, "subscribe": topic, "startingOffsets": "earliest"}
            queries[name] = Query(started(stack, programs[name], name, options), topic, by(generator))
        yield queries


@contextlib.contextmanager
def pubsub(kind: str, _rate: int) -> Iterator[dict[str, Query]]:
    """A query on the canned server."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(CannedPubSub(size=SIZE, timed=True))
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        options = {
            "subscriptionId": server.subscription,
            "endpoint": server.address,
            "spoolLocation": f"{folder}/spool",
        }
        program = started(stack, side(stack, "pubsub", kind), "pubsub", options)
        yield {"pubsub": Query(program, "", lambda _topic, rate, seconds: server.generate(rate, seconds))}


@contextlib.contextmanager
def kinesis(kind: str, rate: int) -> Iterator[dict[str, Query]]:
    """A query with enhanced fan-out on the server of `connectors.testing`."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(start_server_process())
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        generator = stack.enter_context(Program("_load_generator.py", "kinesis", server.endpoint))
        server.create_stream("load", rate // SHARD_RATE)
        options = {"streamName": "load", "endpointUrl": server.url, "initialPosition": "earliest"}
        options |= {"awsAccessKey": "AKIATEST", "awsSecretKey": "test-secret", "spoolLocation": f"{folder}/spool"}
        options |= {"consumerMode": "efo", "consumerName": "bench"}
        program = started(stack, side(stack, "kinesis", kind), "kinesis", options)
        yield {"kinesis": Query(program, "load", by(generator))}


SYSTEMS = {"kafka": kafka, "pubsub": pubsub, "kinesis": kinesis}


def by(generator: Program) -> Send:
    """Sends by a generator."""
    return lambda topic, rate, seconds: generator.ask({"topic": topic, "rate": rate, "seconds": seconds})


def side(stack: contextlib.ExitStack, name: str, kind: str) -> Program:
    """The process of a query, which takes a while to come up."""
    return stack.enter_context(Program("_load_side.py", name, kind))


def started(stack: contextlib.ExitStack, program: Program, name: str, options: Mapping[str, str]) -> Program:
    """A process, with its query started."""
    next(program.reports())
    folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
    column, event_time = COLUMNS[name]
    command = {"do": "start", "options": options, "checkpoint": folder, "column": column, "event_time": event_time}
    program.ask(command)
    return program


@contextlib.contextmanager
def alone(queries: Mapping[str, Query], name: str) -> Iterator[Query]:
    """A query, while the others stand still."""
    with contextlib.ExitStack() as stack:
        for other in queries.keys() - {name}:
            stack.enter_context(queries[other].program.stopped())
        yield queries[name]


def measure(benchmark: Benchmark, case: str, rate: int, queries: Mapping[str, Query], command_line: Any) -> None:
    """The rounds of a case, of all sides in turn."""
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in queries}
    for number in range(command_line.rounds + 1):
        for name in rounds if number % 2 else reversed(rounds):
            with alone(queries, name) as query:
                found = query.round(rate, command_line.seconds)
            print(f"# {case} {name}{'' if number else ' (warm-up)'}: {json.dumps(found)}", flush=True)
            if number:
                rounds[name].append(found)
    for name, found in rounds.items():
        late = max(each["late_p99_ms"] for each in found)
        if late > LATE_MS:
            benchmark.note(case, f"{name}: the generator itself was late, by {late:.0f} ms at p99 of a round")
        if missing := [each for each in found if each["rows"] < each["expected"] * 0.99]:
            share = min(each["rows"] / each["expected"] for each in missing)
            text = f"did not keep up in {len(missing)} of {len(found)} rounds"
            benchmark.note(case, f"{name} {text}: {share:.0%} of the rows came within {PATIENCE:g} s")
    for word in ("p50", "p99"):
        sides = [Side(name, [each[word] for each in found]) for name, found in rounds.items()]
        if len(sides) == 1:
            benchmark.show(f"{case}-{word}", sides[0], "ms")
        else:
            benchmark.compare(f"{case}-{word}", *sides, "ms", less_is_better=True)


def main() -> None:
    """Run the cases."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--seconds", type=float, default=3.0, help="how long a round counts")
    arguments.add_argument("--warm-up", type=float, default=WARM_SECONDS, help="seconds before the first round")
    command_line = arguments.parse_args()
    benchmark = Benchmark("latency_under_load")
    benchmark.settings(
        peer=JVM_VERSION, bytes=SIZE, seconds_a_round=command_line.seconds, trigger="none", master="local[2]"
    )
    for (system, rates), kind in itertools.product(RATES.items(), KINDS):
        cases = {rate: f"{system}-{rate // 1000}k{KINDS[kind]}" for rate in rates}
        wanted = [rate for rate, case in cases.items() if case in (command_line.cases or cases.values())]
        # A stream of Kinesis has as many shards as its rate needs; the others take all rates by one query.
        for some in [[rate] for rate in wanted] if system == "kinesis" else [wanted] if wanted else []:
            with SYSTEMS[system](kind, some[0]) as queries:
                for name in queries:
                    with alone(queries, name) as query:
                        query.send(query.topic, some[0], command_line.warm_up)
                        query.program.ask({"do": "first"})
                for rate in some:
                    measure(benchmark, cases[rate], rate, queries, command_line)
    benchmark.finish()


if __name__ == "__main__":
    main()
