"""Kafka's own client beside the ``kafka_py`` format: its producer is read by us, and what we write by its consumer."""

from __future__ import annotations

import datetime as dt
import itertools
import random
import struct
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType, TimestampType

from connectors.core.arrow import arrow_schema
from connectors.kafka.datasource import KafkaDataSource
from connectors.kafka.schema import HEADERS_TYPE, source_schema
from tests.chaos.support.spark import SparkJobs
from tests.support.clients import as_bytes, as_field, run_java_client
from tests.support.clients.outcome import out_of_order, outcome
from tests.support.kafka_paths import path_taken
from tests.support.kafka_rig import SOURCE, KafkaRig
from tests.support.kafka_task import TaskPlan, run_commit, run_process
from tests.support.spark_protocol.driver import BatchRead

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS: Final = 3
POM: Final = "kafka-broker"
PROGRAM: Final = "KafkaClient"
PRODUCERS: Final = ("plain", "one", "two", "three")
FAILPOINTS: Final = ("kafka.fenced", "kafka.marker_read", "kafka.rows_sent", "kafka.marked", "kafka.committed")
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_SINK_COLUMNS: Final = {
    "key": BinaryType(),
    "value": BinaryType(),
    "partition": IntegerType(),
    "headers": HEADERS_TYPE,
    "timestamp": TimestampType(),
}
_TIMES: Final = (0, 1, 999, 1_700_000_000_000, 1_799_999_999_999, 4_102_444_800_000)
_NAMES: Final = ("trace", "trace", "", "ключ", "a-b.c", "x" * 200)
_ABORTED_ONE_IN: Final = 3
_LARGE_ONE_IN: Final = 200
_TASKS: Final = 10
_ANY_TIME: Final = str(2**63 - 1)
_SPARK_SECONDS: Final = 120.0
_BATCH_HEAD: Final = struct.Struct(">qiibIh")
_LOG_OVERHEAD: Final = 12
_CODEC_BITS: Final = 7
_TRANSACTIONAL_BIT: Final = 16

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Record:
    """A record as its sender knows it; ``time`` is in milliseconds."""

    partition: int
    time: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    @classmethod
    def random(cls, choose: random.Random, number: int) -> Record:
        """Return one of the shapes that records have."""
        size = choose.choice((0, 1, 20, 300, 5000)) if choose.randrange(_LARGE_ONE_IN) else 900_000
        value = choose.choice((b"compressible ", choose.randbytes(7))) * (size // 7 + 1)
        values = (None, b"", b"\x00\xff", str(number).encode())
        headers = [(choose.choice(_NAMES), choose.choice(values)) for _ in range(choose.randrange(4))]
        time = choose.choice((*_TIMES, 1_600_000_000_000 + number))
        key = choose.choice((None, b"", b"k%d" % (number % 17), "schlüssel".encode()))
        bodies = (None, b"", value[:size], value[:size], value[:size])
        return cls(choose.randrange(PARTITIONS), time, key, choose.choice(bodies), tuple(headers))

    def fields(self) -> list[str]:
        """Return it as fields of the program's input."""
        named = [field for name, value in self.headers for field in (as_field(name.encode()), as_field(value))]
        return [str(self.partition), str(self.time), as_field(self.key), as_field(self.value), *named]


@dataclass(frozen=True)
class Script:
    """What the producers do, and what comes of it.

    Attributes:
        lines: input of the program.
        records: by index.
        aborted: the indexes of those whose transaction is aborted.
    """

    lines: list[list[str]]
    records: list[Record]
    aborted: frozenset[int]

    @classmethod
    def make(cls, seed: int, count: int, *, numbered: bool = False) -> Script:
        """Return a script in which a plain producer and three with transactions take turns, record by record.

        With ``numbered`` each value is its index.
        """
        choose = random.Random(seed)
        lines: list[list[str]] = []
        records, aborted = [], set()
        is_open: dict[str, list[int]] = {}
        for number in range(count):
            name = choose.choice(PRODUCERS)
            if name != "plain" and name not in is_open:
                lines.append(["begin", name])
                is_open[name] = []
            record = Record.random(choose, number)
            records.append(replace(record, value=b"%d" % number) if numbered else record)
            lines.append(["send", name, str(number), *records[-1].fields()])
            is_open.get(name, []).append(number)
            if not choose.randrange(8):
                lines.append(["flush", name])
            if name in is_open and not choose.randrange(12):
                aborted |= _end(choose, name, is_open.pop(name), lines)
        for name in list(is_open):
            aborted |= _end(choose, name, is_open.pop(name), lines)
        return cls(lines, records, frozenset(aborted))


def _end(choose: random.Random, name: str, numbers: Sequence[int], lines: list[list[str]]) -> set[int]:
    """End a transaction; returns the indexes that it takes back."""
    if choose.randrange(_ABORTED_ONE_IN):
        lines.append(["commit", name])
        return set()
    lines.append(["abort", name])
    return set(numbers)


def frozen(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return a row of the source as a tuple."""
    headers = row["headers"] and tuple((each["key"], each["value"]) for each in row["headers"])
    return (*(value for name, value in row.items() if name != "headers"), headers)


def sent_rows(
    script: Script, topic: str, acknowledged: Sequence[Sequence[str]], kind: int
) -> dict[int, tuple[Any, ...]]:
    """Return the row that each record must become, by index, in the order of offsets.

    Args:
        script: of the producers.
        topic: that they wrote to.
        acknowledged: what they printed.
        kind: of the times: 0 for the producers', 1 for the broker's.
    """
    rows = {}
    for index, partition, offset, milliseconds in sorted(acknowledged, key=lambda line: int(line[2])):
        record = script.records[int(index)]
        assert int(partition) == record.partition
        stamp = _EPOCH + dt.timedelta(milliseconds=int(milliseconds))
        assert kind or int(milliseconds) == record.time
        place = (topic, record.partition, int(offset), stamp, kind)
        rows[int(index)] = (record.key, record.value, *place, record.headers or None)
    return rows


def read_batch(kafka: KafkaRig, topic: str, isolation: str) -> list[tuple[Any, ...]]:
    """Return the rows of a batch read."""
    with BatchRead(SOURCE, _reading(kafka, topic, isolation), workers=kafka.workers) as read:
        return _rows(read.collect())


def read_stream(kafka: KafkaRig, topic: str, isolation: str) -> list[tuple[Any, ...]]:
    """Return the rows of a stream that reads all there is, in several batches."""
    options = _reading(kafka, topic, isolation) | {"maxOffsetsPerTrigger": "400"}
    with kafka.query(options, trigger="available_now") as query:
        query.process_available(120)
    return _rows(
        [pa.Table.from_batches([each]) for number in kafka.sink.batch_ids() for each in kafka.sink.partitions(number)]
    )


def _reading(kafka: KafkaRig, topic: str, isolation: str) -> dict[str, str]:
    return kafka.options(topic, includeHeaders="true", kafka__isolation__level=isolation, minPartitions="5")


def _rows(tables: Sequence[pa.Table]) -> list[tuple[Any, ...]]:
    schema = arrow_schema(source_schema(headers=True))
    assert all(table.schema == schema for table in tables), [table.schema for table in tables]
    return [frozen(row) for table in tables for row in table.to_pylist()]


def log_batches(data: Path, topic: str) -> Iterator[int]:
    """Return the attributes of each batch in the broker's log of a topic, as the format of Kafka has them."""
    for log in sorted(data.glob(f"{topic}-*/*.log")):
        content = log.read_bytes()
        place = 0
        while place + _BATCH_HEAD.size < len(content):
            _, length, _, _, _, attributes = _BATCH_HEAD.unpack_from(content, place)
            if not length:
                break  # the rest was allocated, and is not written yet
            yield attributes
            place += _LOG_OVERHEAD + length


def producer_is_read(
    kafka: KafkaRig, codec: str, seed: int, count: int, *, native: bool, broker_time: bool
) -> dict[str, Any]:
    """Let the JVM's producers write a topic, and read it as a batch and as a stream, with both isolation levels."""
    times = {"message_timestamp_type": "LogAppendTime"} if broker_time else {}
    topic = kafka.topic(PARTITIONS, max_message_bytes="4000000", message_timestamp_after_max_ms=_ANY_TIME, **times)
    script = Script.make(seed, count)
    response = run_java_client(POM, PROGRAM, ["produce", kafka.broker.endpoint, topic, codec], script.lines)
    rows = sent_rows(script, topic, response, int(broker_time))
    assert len(rows) == len(script.records)
    kafka.wait_for_ends(topic, PARTITIONS)
    attributes = Counter(log_batches(kafka.broker.data, topic))
    codecs = {CODECS[each & _CODEC_BITS] for each in attributes if each < 32}  # not control batches
    assert codecs == {codec}, codecs
    assert any(each & _TRANSACTIONAL_BIT for each in attributes)
    committed = [row for index, row in rows.items() if index not in script.aborted]
    with path_taken(native=native):
        read = read_batch(kafka, topic, "read_committed") + _marked(
            read_stream(kafka, topic, "read_committed"), "stream"
        )
        read += _marked(read_batch(kafka, topic, "read_uncommitted"), "uncommitted")
    sent = [*committed, *_marked(committed, "stream"), *_marked(list(rows.values()), "uncommitted")]
    batches = {"record_batches": attributes.total(), "aborted": len(script.aborted)}
    return outcome(sent, read, out_of_order(sent, read, lambda row: (row[3], row[8:])), **batches)


def spark_in_between(kafka: KafkaRig, jobs: SparkJobs, seed: int, count: int) -> dict[str, Any]:
    """Let an exactly-once query of Spark copy what the JVM's producers write, and read the copy by its consumer."""
    source, target = kafka.topic(PARTITIONS, message_timestamp_after_max_ms=_ANY_TIME), kafka.topic(PARTITIONS)
    script = Script.make(seed, count, numbered=True)
    run_java_client(POM, PROGRAM, ["produce", kafka.broker.endpoint, source, "zstd"], script.lines)
    kafka.wait_for_ends(source, PARTITIONS)
    records = [record for index, record in enumerate(script.records) if index not in script.aborted]
    servers = {"kafka.bootstrap.servers": kafka.broker.endpoint}
    reading = {"subscribe": source, "startingOffsets": "earliest", "kafka.isolation.level": "read_committed"}
    writing = {"topic": target, "deliveryGuarantee": "exactly_once"}
    plan = {
        "folder": str(kafka.folder),
        "format": "kafka_py",
        "options": {**servers, **reading, "maxOffsetsPerTrigger": str(count // 5)},
        "sink": {"format": "kafka_py", "options": {**servers, **writing}},
    }
    job = jobs.current
    job.run(plan)
    end = time.monotonic() + _SPARK_SECONDS
    while len(kafka.read_committed(target, PARTITIONS)) < len(records) and time.monotonic() < end:
        time.sleep(1)
    job.stop_query()
    assert not job.query_errors(), job.query_errors()
    sent = [(record.key, record.value) for record in records]
    return outcome(sent, [row[4:6] for row in consumed(kafka, target)])


def _marked(rows: Sequence[tuple[Any, ...]], mark: str) -> list[tuple[Any, ...]]:
    return [(*row, mark) for row in rows]


def consumed(kafka: KafkaRig, topic: str) -> list[tuple[Any, ...]]:
    """Return what the JVM's consumer reads: partition, offset, time, type of the time, key, value, headers."""
    lines = run_java_client(POM, PROGRAM, ["consume", kafka.broker.endpoint, topic, "read_committed"], [])
    rows = []
    for partition, offset, milliseconds, kind, key, value, *named in lines:
        pairs = zip(map(as_bytes, named[::2]), map(as_bytes, named[1::2]), strict=True)
        headers = tuple((name.decode(), value) for name, value in pairs if name is not None)
        rows.append(
            (int(partition), int(offset), int(milliseconds), int(kind), as_bytes(key), as_bytes(value), headers)
        )
    return rows


def sink_is_consumed(kafka: KafkaRig, codec: str, seed: int, count: int, *, native: bool) -> dict[str, Any]:
    """Write rows with all columns by our sink, and read them by the JVM's consumer."""
    topic = kafka.topic(PARTITIONS, max_message_bytes="4000000", message_timestamp_after_max_ms=_ANY_TIME)
    made = Script.make(seed, count).records
    records = [replace(each, time=max(each.time, 1)) for each in made]  # 0 is refused: librdkafka takes it for now
    schema = StructType([StructField(name, kind) for name, kind in _SINK_COLUMNS.items()])
    options = kafka.options(kafka__compression__type=codec, kafka__max__request__size="4000000", writeTimestamps="true")
    rows = [
        {
            "key": each.key,
            "value": each.value,
            "partition": each.partition,
            "headers": [{"key": name, "value": value} for name, value in each.headers],
            "timestamp": _EPOCH + dt.timedelta(milliseconds=each.time),
        }
        for each in records
    ]
    with path_taken(native=native):
        table = pa.Table.from_pylist(rows, schema=arrow_schema(schema))
        writer = KafkaDataSource({**options, "topic": topic}).batch_writer(schema)
        writer.commit([writer.write(iter(table.to_batches(max_chunksize=500)))])
    codecs = {CODECS[each & _CODEC_BITS] for each in log_batches(kafka.broker.data, topic)}
    assert codecs <= {codec, "none"}, codecs
    assert codec in codecs
    offsets = [itertools.count() for _ in range(PARTITIONS)]
    sent = [
        (each.partition, next(offsets[each.partition]), each.time, 0, each.key, each.value, each.headers)
        for each in records
    ]
    found = consumed(kafka, topic)
    return outcome(sent, found, out_of_order(sent, found, lambda row: row[0]))


def exactly_once_is_consumed(kafka: KafkaRig, seed: int, count: int) -> dict[str, Any]:
    """Kill a task of an exactly-once sink at each failpoint, run it again, and read by the JVM's consumer."""
    choose = random.Random(seed)
    topic = kafka.topic(PARTITIONS)
    options = {"kafka.bootstrap.servers": kafka.broker.endpoint, "topic": topic}
    sent: list[bytes] = []
    killed = 0
    for batch, point in enumerate(choose.sample(FAILPOINTS, len(FAILPOINTS))):
        for task in range(_TASKS // len(FAILPOINTS)):
            values = [f"{batch}-{task}-{number}" for number in range(count // _TASKS)]
            plan = TaskPlan(options, "query", batch, task, values)
            if task == 0:
                assert run_process(plan, f"{point}=kill") == "killed"
                killed += 1
            done = run_process(plan)
            assert done == ("skipped" if task == 0 and point == "kafka.committed" else "written"), done
            sent += [each.encode() for each in values]
        assert run_commit(options, "query", batch, 2) == "committed"
    kafka.wait_for_ends(topic, PARTITIONS)
    return outcome(sent, [row[5] for row in consumed(kafka, topic)], kills=killed)
