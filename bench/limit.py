"""A warm stream beside the limit of any source in Python: ready rows that the vendor's client has fetched before.

The limit fetches as our reader does (librdkafka's messages; GetRecords with JSON and base64; StreamingPull as bytes),
drops what came, and hands Spark as many ready rows (`_ready_rows.py`). What ours takes more is what makes columns of
messages, plans and, for Pub/Sub, keeps them in the spool. `ready` is the same without the fetch.

All sides are measured in the same rounds, each in a process and a warm session of its own: it has read
`WARM_ROWS` ready rows before. A round of a side has three queries with Trigger.AvailableNow: many rows, as many in more
batches, and a hundredth of them in as few batches. Their differences are what a row, a batch and the start of a query
take, in processor time (of driver, JVM, workers and fetchers) and in wall clock. `session` is the start of a session,
and what its first query takes more than a warm one.

A shard of Kinesis has no offsets: off AWS a limit on the rows of a batch makes the driver count them, by reading them
too. So a query of Kinesis has one batch, and what a batch takes is part of the start of a query.

A spool fetches while it is read, so Pub/Sub is measured by a running query with a trigger each `TRIGGER_SECONDS`: many
messages come between two triggers and are one batch, then a hundredth of them. Its limit is the sum of a raw stub and
ready rows.

`to-kafka`, `to-kinesis`, `to-pubsub`: ready rows into each sink, beside a sink in Python that drops them.

The ratio is the processor time of a row of the limit divided by ours: 0.91 is asked for, which is 1.10 the other way
round.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pubsub_decode
from _canned_pubsub import CannedPubSub
from _common import Benchmark, Side, parser
from _kafka import Rig
from _program import Program
from _ready_rows import FETCHED, READY, ready_options
from confluent_kafka.admin import AdminClient

from connectors.testing.kinesis import start_server_process
from tests.servers.kafka_broker import KafkaBroker

PARTITIONS = 2
WARM_ROWS = 5_000_000
SIZES = {"100": 100, "1024": 1024}
ROWS = {"kafka": {100: 6_000_000, 1024: 2_000_000}, "kinesis": {100: 3_200_000, 1024: 900_000}}
ROWS["pubsub"] = {100: 1_400_000, 1024: 400_000}
SECOND_ROWS = 1_000 * PARTITIONS
"""What shards of AWS take in a second: the driver of ours reads on to the newest record only near it."""
SINK_ROWS = {"kafka": 2_000_000, "kinesis": 400_000, "pubsub": 800_000}
FEW, MANY, LESS = 2, 10, 100
TRIGGER_SECONDS, FETCH_SECONDS, SETTLE_SECONDS = 10.0, 7.0, 0.5
LONGEST_SECONDS = 3600.0
MICRO, MILLI = 1e6, 1e3
KEYS = {"awsAccessKey": "AKIATEST", "awsSecretKey": "test-secret"}
Command = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """A query: so many rows, in so many batches."""

    rows: int
    batches: int


@dataclass
class Costs:
    """What a side took in each round: processor seconds and seconds of a row, a batch, and the start of a query.

    Attributes:
        found: by ``row``, ``batch`` and ``query``, pairs of both.
        first: of the first query of the session.
        second: of the same query when the session was warm.
    """

    found: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: {"row": [], "batch": [], "query": []})
    first: tuple[float, float] = (0.0, 0.0)
    second: tuple[float, float] = (0.0, 0.0)

    def processor(self, what: str) -> list[float]:
        """Processor seconds by rounds."""
        return [spent for spent, _ in self.found[what]]

    def cells(self) -> dict[str, str | float]:
        """The medians, as cells of a table."""
        cells: dict[str, str | float] = {}
        for what, unit, times in (("row", "us", MICRO), ("batch", "ms", MILLI), ("query", "ms", MILLI)):
            if not self.found[what]:
                cells |= {f"a {what}: processor, {unit}": "-", f"a {what}: wall clock, {unit}": "-"}
                continue
            spent, took = (statistics.median(each) * times for each in zip(*self.found[what], strict=True))
            cells |= {f"a {what}: processor, {unit}": spent, f"a {what}: wall clock, {unit}": took}
        return cells

    def first_cells(self) -> dict[str, str | float]:
        """What the first query took more than a warm one, as cells of a table."""
        spent, took = (one - other for one, other in zip(self.first, self.second, strict=True))
        return {"more processor, s": spent, "more wall clock, s": took}


@dataclass
class Measured:
    """A side: its process, and the query of each shape."""

    program: Program
    command: Callable[[Shape], Command]
    costs: Costs = field(default_factory=Costs)

    def run(self, command: Command, rows: int) -> tuple[float, float]:
        """Run a query; its processor seconds, and its seconds."""
        before = self.program.cpu_seconds()
        answer = self.program.ask(command)
        assert answer["rows"] == rows, f"{answer['rows']} rows instead of {rows}"
        return self.program.cpu_seconds() - before, float(answer["whole"])

    def warm(self, shape: Shape) -> None:
        """Run the first query, and then as many rows as it takes until all code is compiled."""
        self.costs.first = self.run(self.command(shape), shape.rows)
        self.run({"do": "stream", "name": READY, "options": ready(Shape(WARM_ROWS, FEW), 100)}, WARM_ROWS)
        self.costs.second = self.run(self.command(shape), shape.rows)

    def round(self, large: Shape) -> None:
        """Run all shapes; those of one batch do not tell a batch from a query."""
        shapes = [large, Shape(large.rows // LESS, large.batches)]
        shapes += [Shape(large.rows, MANY)] if large.batches > 1 else []
        spent = [self.run(self.command(shape), shape.rows) for shape in shapes]
        values: list[dict[str, float]] = []
        for whole, less, *in_many in zip(*spent, strict=True):
            row = (whole - less) / (large.rows - shapes[1].rows)
            value = {"row": row, "query": whole - large.rows * row}
            for many in in_many:
                value["batch"] = (many - whole) / (MANY - large.batches)
                value["query"] -= large.batches * value["batch"]
            values.append(value)
        for what in values[0]:
            self.costs.found[what].append((values[0][what], values[1][what]))


def ready(shape: Shape, size: int, columns: str = "kafka", **more: str) -> dict[str, str]:
    """The options of ready and of fetched rows."""
    return ready_options(shape.rows, size, shape.batches, PARTITIONS) | {"columns": columns, **more}


def streams(
    name: str, ours: Callable[[Shape], dict[str, str]], size: int, client: Callable[[Shape], Any]
) -> dict[str, Any]:
    """The query of each side by a shape."""
    return {
        "ours": lambda shape: {"do": "stream", "options": ours(shape)},
        "limit": lambda shape: {"do": "stream", "options": ready(shape, size, name, client=json.dumps(client(shape)))},
        "ready": lambda shape: {"do": "stream", "options": ready(shape, size, name)},
    }


@contextlib.contextmanager
def kafka(size: int) -> Iterator[tuple[str, Shape, dict[str, Any]]]:
    """Both sides on a topic of a broker; the last rows of it where a query has fewer."""
    rows = ROWS["kafka"][size]
    with KafkaBroker(fast=True) as broker:
        made = Rig(broker, {}, AdminClient({"bootstrap.servers": broker.endpoint}))
        topic = made.topic("limit", PARTITIONS)
        made.fill(topic, PARTITIONS, rows, size)
        options = {"kafka.bootstrap.servers": broker.endpoint, "subscribe": topic, "kafka.check.crcs": "true"}

        def ours(shape: Shape) -> dict[str, str]:
            first = (rows - shape.rows) // PARTITIONS
            start = json.dumps({topic: {str(number): first for number in range(PARTITIONS)}})
            return options | {"startingOffsets": start, "maxOffsetsPerTrigger": str(shape.rows // shape.batches)}

        client = {"servers": broker.endpoint, "topic": topic}
        yield "kafka_py", Shape(rows, FEW), streams("kafka", ours, size, lambda _: client)


@contextlib.contextmanager
def kinesis(size: int) -> Iterator[tuple[str, Shape, dict[str, Any]]]:
    """Both sides on a stream of the server of `connectors.testing`, and on a shorter one."""
    rows = ROWS["kinesis"][size]
    with start_server_process(call_limit=0) as server:
        for count in (rows, rows // LESS):
            server.create_stream(f"limit-{count}", PARTITIONS)
            for done in range(0, count, SECOND_ROWS):
                server.fill(f"limit-{count}", min(SECOND_ROWS, count - done), size, keys=SECOND_ROWS)
                server.jump(1)
        fast = {"initialPosition": "trim_horizon", "minFetchPeriod": "1ms", "maxFetchRate": "1000"}

        def stream(shape: Shape) -> dict[str, str]:
            return {"streamName": f"limit-{shape.rows}", "endpointUrl": server.url, **KEYS}

        commands = streams(
            "kinesis", lambda shape: stream(shape) | fast, size, lambda shape: {"options": stream(shape)}
        )
        yield "kinesis", Shape(rows, 1), commands


def compare(benchmark: Benchmark, name: str, label: str, rounds: int) -> None:
    """Measure a source beside its limit."""
    case, size = f"{name}-{label}", SIZES[label]
    with {"kafka": kafka, "kinesis": kinesis}[name](size) as (kind, large, commands), contextlib.ExitStack() as stack:
        formats = {"ours": kind, "limit": FETCHED, "ready": READY}
        sides = {
            side: Measured(stack.enter_context(Program("_kafka_side.py", formats[side])), command)
            for side, command in commands.items()
        }
        costs = in_rounds(sides, large, rounds)
    show(benchmark, case, costs)
    ratio(benchmark, case, *(costs[side].processor("row") for side in ("ours", "limit")))


def in_rounds(sides: Mapping[str, Measured], large: Shape, rounds: int) -> dict[str, Costs]:
    """Warm all sides, and run them by turns."""
    for measured in sides.values():
        next(measured.program.reports())
    for measured in sides.values():
        measured.warm(large)
    for _ in range(rounds):
        for measured in sides.values():
            measured.round(large)
    return {side: measured.costs for side, measured in sides.items()}


def show(benchmark: Benchmark, case: str, costs: Mapping[str, Costs]) -> None:
    """Print the table of a case."""
    for side, found in costs.items():
        benchmark.row("A warm stream", {"case": case, "side": side, **found.cells()})
        benchmark.row("The first query of a session", {"case": case, "side": side, **found.first_cells()})


def ratio(benchmark: Benchmark, case: str, ours: list[float], limit: list[float]) -> None:
    """Print how much of the processor time of a row the limit takes."""
    sides = (Side(name, [value * MICRO for value in values]) for name, values in (("ours", ours), ("limit", limit)))
    benchmark.compare(case, *sides, "us of processor time a row", less_is_better=True)


def pubsub(benchmark: Benchmark, label: str, rounds: int) -> None:
    """Measure a running query by turns with the parts of its limit, while it stands still."""
    size = SIZES[label]
    ours: list[float] = []
    limit: list[float] = []
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        server = stack.enter_context(CannedPubSub(size=size, timed=True, max_seconds=LONGEST_SECONDS))
        options = {"subscriptionId": server.subscription, "endpoint": server.address}
        options["spoolLocation"] = f"{folder}/spool"
        side = Measured(
            stack.enter_context(Program("_kafka_side.py", READY)),
            lambda shape: {"do": "stream", "options": ready(shape, size, "pubsub")},
        )
        next(side.program.reports())
        large = Shape(ROWS["pubsub"][size], 1)
        side.warm(large)
        query = stack.enter_context(Program("_paced_side.py", "pubsub"))
        next(query.reports())
        query.ask({"do": "start", "options": options, "checkpoint": f"{folder}/checkpoint", "seconds": TRIGGER_SECONDS})
        for _ in range(WARM_ROWS // large.rows + 1):
            messages = server.generate(int(large.rows / FETCH_SECONDS), FETCH_SECONDS)["messages"]
            query.ask({"do": "read", "rows": messages})
        for _ in range(rounds):
            (many, spent), (few, less) = (batch(query, server, rows) for rows in (large.rows, large.rows // LESS))
            ours.append((spent - less) / (many - few))
            with query.stopped():
                side.round(large)
                limit.append(stub(size) + side.costs.processor("row")[-1])
    show(benchmark, f"pubsub-{label}", {"ready": side.costs})
    ratio(benchmark, f"pubsub-{label}", ours, limit)


def batch(query: Program, server: CannedPubSub, rows: int) -> tuple[int, float]:
    """Let about so many messages come between two triggers; how many they were, and what it took to read them.

    Spark's triggers are at multiples of their interval, so a batch of many rows and one of few take equally long to
    come, and what a fetch process takes meanwhile without messages is the same.
    """
    time.sleep((SETTLE_SECONDS - time.time()) % TRIGGER_SECONDS)
    spent = query.cpu_seconds()
    expected = server.generate(int(rows / FETCH_SECONDS), FETCH_SECONDS)["messages"]
    found = query.ask({"do": "read", "rows": expected})
    assert found == {"rows": expected, "batches": 1}, f"{found} instead of one batch of {expected} rows"
    time.sleep(-time.time() % TRIGGER_SECONDS)
    return expected, query.cpu_seconds() - spent


def stub(size: int) -> float:
    """The processor seconds of a message that a raw gRPC stub reads and drops."""
    with CannedPubSub(size=size) as server:
        begin, spent = time.perf_counter(), time.process_time()
        rate = pubsub_decode.reading(server)
        return (time.process_time() - spent) / (rate * (time.perf_counter() - begin))


@contextlib.contextmanager
def sink(name: str) -> Iterator[dict[str, str]]:
    """The options of a sink, whose server runs meanwhile."""
    if name == "kafka":
        with KafkaBroker(fast=True) as broker:
            made = Rig(broker, {}, AdminClient({"bootstrap.servers": broker.endpoint}))
            topic = made.topic("limit", PARTITIONS)
            yield {"kafka.bootstrap.servers": broker.endpoint, "topic": topic}
    elif name == "kinesis":
        with start_server_process(call_limit=0) as server:
            server.create_stream("limit", PARTITIONS)
            yield {"streamName": "limit", "endpointUrl": server.url, **KEYS}
    else:
        with CannedPubSub(size=SIZES["100"]) as canned:
            yield {"topicId": canned.topic, "endpoint": canned.address}


def write(benchmark: Benchmark, name: str, rounds: int) -> None:
    """Measure ready rows into a sink, beside a sink that drops them."""
    kind, rows = {"kafka": "kafka_py"}.get(name, name), SINK_ROWS[name]
    with sink(name) as to, contextlib.ExitStack() as stack:
        formats: dict[str, tuple[str, dict[str, str]]] = {"ours": (kind, to), "dropped": (READY, {})}
        sides = {
            side: Measured(
                stack.enter_context(Program("_kafka_side.py", READY)),
                partial(writing, name, form, options),
            )
            for side, (form, options) in formats.items()
        }
        costs = in_rounds(sides, Shape(rows, FEW), rounds)
    show(benchmark, f"to-{name}", costs)
    ratio(benchmark, f"to-{name}", *(costs[side].processor("row") for side in formats))


def writing(name: str, form: str, to: dict[str, str], shape: Shape) -> Command:
    """The query of a sink by a shape."""
    return {"do": "stream", "options": ready(shape, SIZES["100"], name), "sink": form, "to": to}


def session(benchmark: Benchmark, rounds: int) -> None:
    """Measure how long a session takes until it takes commands."""
    spent: list[float] = []
    took: list[float] = []
    for _ in range(rounds):
        begin = time.perf_counter()
        with Program("_kafka_side.py", READY) as program:
            next(program.reports())
            took.append(time.perf_counter() - begin)
            spent.append(program.cpu_seconds())
    cells = {"processor, s": statistics.median(spent), "wall clock, s": statistics.median(took)}
    benchmark.row("The start of a session, up to its first command", cells)


def main() -> None:
    """Run the cases."""
    command_line = parser(__doc__ or "").parse_args()
    benchmark = Benchmark("limit")
    shapes = {"batches": (FEW, MANY), "rows": f"1/{LESS}"}
    benchmark.settings(rows=ROWS, sink_rows=SINK_ROWS, shapes=shapes, warm=WARM_ROWS, partitions=PARTITIONS)
    cases: dict[str, Callable[[], None]] = {"session": lambda: session(benchmark, command_line.rounds)}
    for label in SIZES:
        for name in ("kafka", "kinesis"):
            cases[f"{name}-{label}"] = partial(compare, benchmark, name, label, command_line.rounds)
        cases[f"pubsub-{label}"] = partial(pubsub, benchmark, label, command_line.rounds)
    for name in SINK_ROWS:
        cases[f"to-{name}"] = partial(write, benchmark, name, command_line.rounds)
    for case, run in cases.items():
        if not command_line.cases or case in command_line.cases:
            run()
    benchmark.finish()


if __name__ == "__main__":
    main()
