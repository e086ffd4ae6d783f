"""What a row costs in each stage of each connector, by processor time (us a row). Prints one table a case.

- `kafka-read`, `kafka-write`: librdkafka's threads, then what turns its records into Arrow columns or rows into its
  messages, in this process without Spark; then a job of Spark with our format beside one with a ceiling
  (`_ready_rows.py`): what workers and JVM take for ready rows is Spark's own.
- `kinesis-read`: HTTP, parsing, columns, in this process without Spark; the server is that of `connectors.testing`.
- `pubsub`: a raw gRPC stub, decoding, encoding of acks, in this process; then a whole fetch process, whose rest is
  writing, hashing and fsync; then a query of Spark into its noop sink, by kinds of process.
- `protobuf`: decoding and encoding as Spark's workers call them, in this process; then an Arrow UDF that gives back
  what it gets, in Spark: what is Spark's own.

Rows of Kafka and Kinesis have 100 bytes and 1 KB, those of Pub/Sub too; the protobuf message is that of protobuf.py.
Processor time counts all cores, so stages add up, whatever runs beside what. What a stage is measured with is in its
row, so that a difference of two measurements can be told from one.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import protobuf
import pubsub_decode
import pyarrow as pa
from _canned_pubsub import CannedPubSub
from _common import Benchmark, parser, per_cpu_second
from _kafka import OURS, Rig
from _processor import ProcessorMeter
from _program import Program
from _ready_rows import ARROW_ROWS, READY, ready_options
from confluent_kafka.admin import AdminClient
from kafka_read import options as read_options
from kafka_write import EQUAL
from kinesis_read import KEYS
from pubsub_fetch import acked_per_second, our_fetcher
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BinaryType

from connectors.kafka.datasource import KafkaDataSource
from connectors.kafka.options.client import ClientSettings
from connectors.kafka.options.source import KafkaReadOptions
from connectors.kafka.source.consumer_pool import CONSUMERS
from connectors.kafka.source.planning import OffsetRange
from connectors.kafka.source.reader import read_range as read_kafka
from connectors.kinesis.client.client import KinesisClient, parse_page
from connectors.kinesis.offsets import TRIM
from connectors.kinesis.options.client import client_options
from connectors.kinesis.options.source import parse_read_options
from connectors.kinesis.source.batch import plan_batch
from connectors.kinesis.source.reader import ReadSettings as KinesisSettings
from connectors.kinesis.source.reader import read_range as read_kinesis
from connectors.protobuf.options import ProtobufOptions
from connectors.protobuf.worker import DecodeCall, EncodeCall, Engine
from connectors.pubsub.source.records import FastDecoder
from connectors.testing.kinesis import start_server_process
from tests.servers.kafka_broker import KafkaBroker
from tools.protos import SOURCES, compile_set

CASES = ("kafka-read", "kafka-write", "kinesis-read", "pubsub", "protobuf")
SIZES = {"100 B": 100, "1 KB": 1024}
ROWS = {100: 1_000_000, 1024: 300_000}
KINESIS_ROWS = 50_000
PARTITIONS = 2
SPARK_ROUNDS = 3
MICRO = 1e6
SPARK, OWN = "Spark", "the connector"


class Stages:
    """The table of one case and size.

    Args:
        benchmark: prints it.
        title: of the table.
        size: of a row.
    """

    def __init__(self, benchmark: Benchmark, title: str, size: str) -> None:
        self._benchmark, self._title, self._size = benchmark, title, size

    def add(self, stage: str, whose: str, values: list[float], how: str) -> float:
        """Print a stage by its rounds; the median."""
        found = statistics.median(values)
        cells = {"row": self._size, "stage": stage, "whose": whose, "us a row": found}
        spread = f"{min(values):.3g} to {max(values):.3g}"
        self._benchmark.row(self._title, {**cells, "spread": spread, "measured": how})
        return found


def thread_seconds() -> Counter[str]:
    """Processor time of this process so far: of librdkafka's threads, and of all others."""
    found: Counter[str] = Counter()
    for task in Path("/proc/self/task").iterdir():
        name, _, rest = task.joinpath("stat").read_text(encoding="utf-8").partition("(")[2].rpartition(")")
        user, system = rest.split()[11:13]
        kind = "librdkafka" if name.startswith("rdk:") else "Python"
        found[kind] += (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return found


def by_thread(work: Callable[[], int], rounds: int) -> tuple[list[float], list[float]]:
    """What a row costs librdkafka's threads, and the others, after one round of warm-up."""
    client, own = [], []
    for number in range(rounds + 1):
        before = thread_seconds()
        rows = work()
        spent = thread_seconds() - before
        if number:
            client.append(spent["librdkafka"] / rows * MICRO)
            own.append(spent["Python"] / rows * MICRO)
    return client, own


def in_spark(program: Program, command: dict[str, Any], rows: int) -> dict[str, float]:
    """What a row costs each kind of process of a side, by the median of some rounds after one of warm-up."""
    found: dict[str, list[float]] = {}
    for number in range(SPARK_ROUNDS + 1):
        meter = ProcessorMeter()
        meter.begin()
        program.ask(dict(command))
        for kind, seconds in meter.seconds().items():
            if number:
                found.setdefault(kind.removeprefix("children of "), []).append(seconds / rows * MICRO)
    return {kind: sum(values) / SPARK_ROUNDS for kind, values in found.items() if kind != "server"}


def through_spark(stages: Stages, own: float, sides: dict[str, dict[str, Any]], rows: int, work: str) -> None:
    """Add the stages of Spark: what a ceiling takes is Spark's own, and the rest is what our job takes more."""
    spent = {}
    for name, command in sides.items():
        # One at a time, so that a kind of process is that of this side.
        with Program("_kafka_side.py", name) as program:
            next(program.reports())
            if "frame" in command:
                program.ask(command.pop("frame"))
            spent[name] = in_spark(program, command, rows)
    ceiling = spent[READY]
    stages.add("worker: socket and IPC", SPARK, [ceiling.get("workers", 0.0)], f"workers of the ceiling, {work}")
    stages.add("JVM", SPARK, [ceiling.get("JVM", 0.0)], f"JVM of the ceiling, {work}")
    rest = sum(spent[OURS].values()) - sum(ceiling.values()) - own
    stages.add("rest", OWN, [rest], f"all of our job, {work}, less the rows above")


def kafka_read(benchmark: Benchmark, rounds: int, label: str, size: int) -> None:
    """Kafka into Spark."""
    stages, rows = Stages(benchmark, "Kafka read", label), ROWS[size]
    with KafkaBroker(fast=True) as broker:
        made = Rig(broker, {}, AdminClient({"bootstrap.servers": broker.endpoint}))
        topic = made.topic("stages", PARTITIONS)
        made.fill(topic, PARTITIONS, rows, size)
        client = ClientSettings((("bootstrap.servers", broker.endpoint), ("isolation.level", "read_uncommitted")))
        settings = KafkaReadOptions(client=client, group="bench", poll_timeout_ms=60_000)
        part = OffsetRange(topic, 0, 0, rows // PARTITIONS)
        threads, own = by_thread(lambda: sum(each.num_rows for each in read_kafka(part, settings)), rounds)
        CONSUMERS.close()
        spent = stages.add("client: fetch, CRC, parse", "librdkafka", threads, "its threads, no Spark")
        spent += stages.add("Arrow columns", OWN, own, "the other threads, no Spark")
        limited = read_options(made, topic) | {"maxOffsetsPerTrigger": str(rows // 4)}
        ready = ready_options(rows, size, 4, PARTITIONS)
        sides = {OURS: {"do": "stream", "options": limited}, READY: {"do": "stream", "options": ready}}
        through_spark(stages, spent, sides, rows, "a stream of four batches")


def kafka_write(benchmark: Benchmark, rounds: int, label: str, size: int) -> None:
    """Spark into Kafka."""
    stages, rows = Stages(benchmark, "Kafka write", label), ROWS[size]
    with KafkaBroker(fast=True) as broker:
        made = Rig(broker, {}, AdminClient({"bootstrap.servers": broker.endpoint}))
        topic = made.topic("stages", PARTITIONS)
        options = {"kafka.bootstrap.servers": broker.endpoint, "topic": topic, **EQUAL[OURS]}
        values = pa.array([b"x" * size] * ARROW_ROWS, pa.binary())
        batch = pa.RecordBatch.from_arrays([values], ["value"])
        writer = KafkaDataSource(options).writer(from_arrow_schema(batch.schema), overwrite=False)

        def write() -> int:
            writer.write(iter([batch] * (rows // ARROW_ROWS)))
            return rows

        threads, own = by_thread(write, rounds)
        spent = stages.add("client: batches, CRC, send", "librdkafka", threads, "its threads, no Spark")
        spent += stages.add("messages out of Arrow", OWN, own, "the other threads, no Spark")
        frame = {"do": "frame", "size": size, "rows": rows, "keys": False}
        sides = {
            OURS: {"do": "write", "options": options, "frame": frame},
            READY: {"do": "write", "options": {}, "frame": dict(frame)},
        }
        through_spark(stages, spent, sides, rows, "a batch write")


def kinesis_read(benchmark: Benchmark, rounds: int, label: str, size: int) -> None:
    """Kinesis into Arrow columns."""
    stages = Stages(benchmark, "Kinesis read", label)
    with start_server_process() as server:
        server.create_stream("stages")
        server.fill("stages", KINESIS_ROWS, size)
        given = {"streamName": "stages", "endpointUrl": server.url} | KEYS
        options = parse_read_options(given, {}, streaming=False)
        client = KinesisClient(client_options(options))
        (part,) = plan_batch(options)
        settings = KinesisSettings(
            client_options(options), 10_000, period=0.0, rate=1e15, deaggregate=True, fail_on_data_loss=True
        )
        shard = server.shards("stages")[0]
        reads = (
            lambda: read_pages(client, shard),
            lambda: sum(one.num_rows for one in read_kinesis(part, settings, client)),
        )
        pages, whole = ([each / KINESIS_ROWS * MICRO for each in spent_by(read, rounds)] for read in reads)
    body = page_body(size)
    parsing = [MICRO / per_cpu_second(lambda: len(parse_page(body, 0, "").records)) for _ in range(rounds)]
    stages.add("parsing JSON and base64", OWN, parsing, "parse_page of a page of 10,000 records")
    http = [page - parse for page, parse in zip(pages, parsing, strict=True)]
    stages.add("client: HTTP, signature", "botocore", http, "all pages by the client, less parsing")
    columns = [one - page for one, page in zip(whole, pages, strict=True)]
    stages.add("Arrow columns", OWN, columns, "read_range as in a task, less all pages by the client")


def read_pages(client: KinesisClient, shard: str) -> int:
    """Read a shard page by page, and drop the pages."""
    iterator, count = client.iterator("stages", shard, TRIM), 0
    while True:
        page = client.records(iterator, 10_000, "stages", shard)
        count += len(page.records)
        if count >= KINESIS_ROWS or page.following is None:
            return count
        iterator = page.following


def page_body(size: int) -> bytes:
    """A response of GetRecords as the service writes it."""
    data = b64encode(os.urandom(size)).decode()
    first = 49590338271490256608559692538361571095921575989136588898
    record = {"Data": data, "PartitionKey": "key-123", "ApproximateArrivalTimestamp": 1.7e9}
    records = [{**record, "SequenceNumber": str(first + number)} for number in range(10_000)]
    page = {"Records": records, "MillisBehindLatest": 0, "NextShardIterator": "A" * 240}
    return msgspec.json.encode(page)


def spent_by(work: Callable[[], Any], rounds: int) -> Iterator[float]:
    """Seconds of this process's processor time, in rounds after one of warm-up."""
    for number in range(rounds + 1):
        begin = time.process_time()
        work()
        if number:
            yield time.process_time() - begin


def pubsub(benchmark: Benchmark, rounds: int, label: str, size: int) -> None:
    """Pub/Sub into the spool, and on into Spark."""
    stages = Stages(benchmark, "Pub/Sub", label)
    blocks = pubsub_decode.in_blocks(pubsub_decode.recorded(size, 0))
    decoder = FastDecoder()
    raw = []
    for _ in range(rounds):
        with CannedPubSub(size=size) as server:
            begin = time.process_time()
            rate = pubsub_decode.reading(server)
            raw.append((time.process_time() - begin) / (rate * 2.0) * MICRO)
    spent = stages.add("client: gRPC", "grpcio", raw, "a raw stub that drops responses")
    decoding = [MICRO / pubsub_decode.decoding(decoder, blocks) for _ in range(rounds)]
    spent += stages.add("decoding into Arrow", OWN, decoding, "the fast decoder, blocks of 4 MB")
    ids = decoder.decode(blocks[0]).ack_ids
    acks = [MICRO / pubsub_decode.encoding(ids) for _ in range(rounds)]
    spent += stages.add("encoding acks", OWN, acks, "requests out of the column of ack ids")
    fetched = [fetching(size) for _ in range(rounds)]
    rest = statistics.median(fetched) - spent
    stages.add("writing, hashing, fsync, keys", OWN, [rest], "a whole fetch process, less the rows above")
    for kind, seconds in query_of_pubsub(size).items():
        whose = SPARK if kind in {"JVM", "query's Python"} else f"{SPARK} and {OWN}"
        if kind not in {"server", "fetchers"}:
            stages.add(kind, whose, [seconds], "a query of Spark into its noop sink, while it fetches")


def fetching(size: int) -> float:
    """What a message costs a fetch process, us."""
    with (
        tempfile.TemporaryDirectory() as folder,
        CannedPubSub(size=size) as server,
        our_fetcher(server, Path(folder) / "spool", plain=False),
    ):
        acked_per_second(server, 0.5, 0.5)
        meter, before = ProcessorMeter(), server.stats()["acked"]
        meter.begin()
        time.sleep(3)
        return meter.seconds()["fetchers"] / (server.stats()["acked"] - before) * MICRO


def query_of_pubsub(size: int) -> dict[str, float]:
    """What a row costs each kind of process of a query of Spark that has caught up with nothing."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, CannedPubSub(size=size) as server:
        options = {"subscriptionId": server.subscription, "endpoint": server.address}
        options["spoolLocation"] = f"{folder}/spool"
        plan = {"sink": "noop", "options": options, "checkpoint": f"{folder}/checkpoint", "configuration": {}}
        with Program("_pubsub_query.py", plan=plan) as program:
            reports = program.reports()
            warm_at = next(reports)["ended"] + 15
            rows, end, meter = 0, 0.0, ProcessorMeter()
            for report in reports:
                if end:
                    rows += report["rows"]
                    if report["ended"] > end:
                        return {kind: seconds / rows * MICRO for kind, seconds in meter.seconds().items()}
                elif report["ended"] > warm_at:
                    meter.begin()
                    end = report["ended"] + 10
    raise RuntimeError("the query ended")


def protobuf_calls(benchmark: Benchmark, rounds: int, label: str, _size: int) -> None:
    """Decoding and encoding protobuf in a worker of Spark."""
    stages = Stages(benchmark, "Protobuf", label)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "event.desc")
        compile_set(SOURCES / "event.proto", Path(path), SOURCES)
        messages = protobuf.events(protobuf.BATCH, path)
        descriptors = Path(path).read_bytes()
        column = pa.array(messages, pa.binary())
        decode = DecodeCall(descriptors, "bench.Event", ProtobufOptions(), None, Engine.AUTO)
        structs = decode(column)
        encode = EncodeCall(descriptors, "bench.Event", ProtobufOptions(), Engine.AUTO)
        for name, call, given in (("decoding", decode, column), ("encoding", encode, structs)):
            values = [MICRO / per_cpu_second(lambda call=call, given=given: len(call(given))) for _ in range(rounds)]
            stages.add(name, OWN, values, f"a worker's call, {protobuf.BATCH:,} messages, no Spark")
        spark = protobuf.session()
        frame = protobuf.frame_of(spark, messages, 40)
        rows = protobuf.BATCH * 40
        same = sf.arrow_udf(lambda values: values, BinaryType())
        found: dict[str, list[float]] = {}
        for number in range(SPARK_ROUNDS + 1):
            meter = ProcessorMeter()
            meter.begin()
            frame.select(same("value")).write.format("noop").mode("overwrite").save()
            for kind, seconds in meter.seconds().items():
                if number:
                    found.setdefault(kind, []).append(seconds / rows * MICRO)
        for kind in ("workers", "JVM"):
            stages.add(f"{kind}: an Arrow UDF that does nothing", SPARK, found[kind], "Spark's noop sink, cached input")
        spark.stop()


def main() -> None:
    """Run the cases."""
    command_line = parser(__doc__ or "").parse_args()
    benchmark = Benchmark("stages")
    benchmark.settings(rows=ROWS, kinesis_rows=KINESIS_ROWS, partitions=PARTITIONS, master="local[2]")
    kinds = (kafka_read, kafka_write, kinesis_read, pubsub, protobuf_calls)
    for case, run in zip(CASES, kinds, strict=True):
        if case in (command_line.cases or CASES):
            for label, size in ({"190 B": 190} if case == "protobuf" else SIZES).items():
                run(benchmark, command_line.rounds, label, size)
    benchmark.finish()


if __name__ == "__main__":
    main()
