"""Messages per second of from_mixed beside the same messages split by hand, each type with its own from_avro.

Records of five Avro schemas in frames of a registry, in batches of 10,000 rows. On one side a batch has all five
types, in random order, and goes through one call of from_mixed, by the names of the records. On the other one a batch
has one type alone, as if each had a topic of its own. Both give the same values.

Without ``--spark``, the calls get columns of Arrow and return them. With it, cached frames go to the noop sink, in one
session, local[2]. There one query of from_mixed is compared, by the clock and by the processor time of Spark and its
workers, with what users write without it:

* filtered: the same messages, filtered by the id in the frame, with a query of from_avro for each type.
* union: the messages of five topics, each with its from_avro, in one query of their union.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import pyarrow as pa
from _avro_cases import messages_of, schema_of
from _common import Benchmark, Side, interleaved, parser
from _processor import ProcessorMeter
from pyspark.sql import DataFrame

from connectors.avro import from_avro
from connectors.avro.functions import decode_call
from connectors.mixed import from_mixed
from connectors.mixed.functions import decode_call as mixed_call
from connectors.mixed.selection import By
from connectors.registry.frames import ID_END
from connectors.testing.schema_registry import SchemaRegistryServer

BATCH = 10_000
BASES = ("order", "flat", "order", "flat", "order")
DISTINCT = 10_000


class Topic:
    """Five types in a registry, with messages of each.

    Attributes:
        members: what from_mixed is given.
        registry: where the schemas are.
        by_type: messages of each type, in their frames.
    """

    def __init__(self, server: SchemaRegistryServer) -> None:
        self.registry = {"address": server.address}
        self.members: dict[str, Mapping[str, Any]] = {}
        self.by_type: dict[str, list[bytes]] = {}
        for number, base in enumerate(BASES):
            name = f"{base}{number}"
            schema = {**schema_of(base), "name": name}
            schema_id = server.register(name, text=json.dumps(schema), schema_type="AVRO")
            frame = b"\0" + schema_id.to_bytes(4, "big")
            self.members[name] = {"format": "avro", "recordName": name}
            self.by_type[name] = [frame + message for message in messages_of(schema, DISTINCT)]

    def shuffled(self, count: int) -> list[tuple[str, bytes]]:
        """Return as many messages of each type, in random order, with the names of their types."""
        each = count // len(BASES)
        rows = [(name, messages[n % DISTINCT]) for name, messages in self.by_type.items() for n in range(each)]
        random.Random(1).shuffle(rows)
        return rows


def batches(messages: Sequence[bytes]) -> list[pa.Array]:
    """Return columns of `BATCH` messages."""
    return [pa.array(messages[begin : begin + BATCH], pa.binary()) for begin in range(0, len(messages), BATCH)]


def rate(rows: int, work: Callable[[], object]) -> float:
    """Messages per second."""
    begin = time.perf_counter()
    work()
    return rows / (time.perf_counter() - begin)


def alone(bench: Benchmark, topic: Topic, count: int, rounds: int) -> None:
    """Run the calls without Spark."""
    rows = topic.shuffled(count)
    mixed, _ = mixed_call(topic.members, By.RECORD_NAME, schema_registry=topic.registry)
    together = batches([message for _, message in rows])
    split = []
    for name in topic.by_type:
        call, _ = decode_call(None, None, name, schema_registry=topic.registry)
        split.append((call, batches([message for kind, message in rows if kind == name])))
        ours = [row[name] for row in mixed(together[0]).to_pylist() if row["type"] == name]
        assert ours == call(split[-1][1][0]).to_pylist()[: len(ours)], name
    runs = {
        "from_mixed": lambda: rate(len(rows), lambda: [mixed(batch) for batch in together]),
        "from_avro of each type alone": lambda: rate(
            len(rows), lambda: [call(batch) for call, columns in split for batch in columns]
        ),
    }
    mixed_side, split_side = interleaved(runs, rounds)
    bench.compare("arrow", mixed_side, split_side, "messages/s")


def through_spark(bench: Benchmark, topic: Topic, count: int, rounds: int) -> None:
    """Run the functions in Spark."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the calls alone need no session

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    rows = topic.shuffled(count)
    # As many tasks for all types together as for five topics of two partitions each.
    together = spark.createDataFrame(rows, "type STRING, value BINARY").repartition(2 * len(BASES)).cache()
    split = {name: together.where(f"type = '{name}'").select("value").coalesce(2).cache() for name in topic.by_type}
    for frame in (together, *split.values()):
        frame.count()

    def write(frame: DataFrame) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def decoded(name: str, frame: DataFrame) -> DataFrame:
        return frame.select(from_avro("value", subject=name, schemaRegistry=topic.registry).alias(name))

    def run_mixed() -> None:
        event = from_mixed("value", topic.members, schemaRegistry=topic.registry)
        write(together.select(event.alias("event")))

    def run_filtered() -> None:
        for name, messages in topic.by_type.items():
            write(decoded(name, together.where(f"substring(value, 2, 4) = X'{messages[0][1:ID_END].hex()}'")))

    def run_union() -> None:
        parts = (decoded(name, frame) for name, frame in split.items())
        write(reduce(partial(DataFrame.unionByName, allowMissingColumns=True), parts))

    runs = {
        "from_mixed": run_mixed,
        "from_avro of each type, a filter and a query each": run_filtered,
        "from_avro of each topic, in one union": run_union,
    }
    compare(bench, runs, len(rows), rounds)
    spark.stop()


def compare(bench: Benchmark, runs: Mapping[str, Callable[[], None]], count: int, rounds: int) -> None:
    """Compare the first run with each other one."""
    meter, processor = ProcessorMeter(), {name: list[float]() for name in runs}

    def measured(name: str) -> float:
        meter.begin()
        found = rate(count, runs[name])
        processor[name].append(count / sum(meter.seconds().values()))
        return found

    for run in runs.values():
        run()
    clock = interleaved({name: partial(measured, name) for name in runs}, rounds)
    for unit, sides in (("s", clock), ("CPU s", [Side(name, values) for name, values in processor.items()])):
        for case, other in zip(("filtered", "union"), sides[1:], strict=True):
            bench.compare(f"{case} by {unit}", sides[0], other, f"messages/{unit}")


def main() -> None:
    """Run the benchmark."""
    made = parser(__doc__ or "")
    made.add_argument("--messages", type=int, default=1_000_000, help="of all types together")
    made.add_argument("--spark", action="store_true", help="also through Spark, local[2]")
    options = made.parse_args()
    bench = Benchmark("mixed")
    bench.settings(rounds=options.rounds, messages=options.messages, batch=BATCH, types=", ".join(BASES))
    with SchemaRegistryServer() as server:
        topic = Topic(server)
        alone(bench, topic, options.messages, options.rounds)
        if options.spark:
            through_spark(bench, topic, options.messages, options.rounds)
    bench.finish()


if __name__ == "__main__":
    main()
