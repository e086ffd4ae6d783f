"""The sink of the ``kinesis`` format with ``aggregation=true``, by its tasks alone, read as the KCL and we read it."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from aws_kinesis_agg.deaggregator import deaggregate_records
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from connectors.core.errors import ConnectorError, OptionError
from connectors.kinesis.datasource import KinesisBatchWriter, KinesisDataSource, _record_limit
from connectors.kinesis.sink.writer import put_batches
from connectors.testing.kinesis import KinesisServer, KinesisServerProcess, start_server_process
from tests.support.kinesis_calls import kinesis_client
from tests.support.kpl_reader import UserRecord, kcl_records, user_records
from tests.support.waiting import wait_for

MIB = 1 << 20
HASH_KEYS = 1 << 128
SCHEMA = StructType(
    [StructField(name, BinaryType() if name == "data" else StringType()) for name in ("partitionKey", "data")]
    + [StructField(name, StringType()) for name in ("explicitHashKey", "stream")]
)
EVENT_FIELDS = (
    "eventID",
    "eventName",
    "eventSource",
    "eventSourceARN",
    "eventVersion",
    "invokeIdentityArn",
    "awsRegion",
)


@pytest.fixture
def server(shared: KinesisServer) -> Iterator[KinesisServer]:
    shared.create_stream("orders", shards=4)
    shared.reset_calls()
    _record_limit.cache_clear()
    yield shared
    shared.clear_faults()
    shared.delete_stream("orders")


def options(url: str, **more: object) -> dict[str, str]:
    given: dict[str, object] = {"endpointUrl": url, "awsAccessKey": "AKIASINK", "awsSecretKey": "not-shown"}
    given |= {"streamName": "orders", "maxRetryInterval": "100ms", "aggregation": "true", **more}
    return {name: str(value) for name, value in given.items() if value is not None}


def batch(rows: list[UserRecord], streams: list[str] | None = None) -> pa.RecordBatch:
    columns = {
        "partitionKey": pa.array([each.key for each in rows], pa.string()),
        "data": pa.array([each.data for each in rows], pa.binary()),
        "explicitHashKey": pa.array([each.hash_key for each in rows], pa.string()),
        "stream": pa.array(streams or ["-"] * len(rows), pa.string()),
    }
    return pa.RecordBatch.from_pydict(columns)


def sink(url: str, *, aggregate_bytes: int | None = None, **more: object) -> KinesisBatchWriter:
    writer = KinesisDataSource(options(url, **more)).batch_writer(SCHEMA)
    if aggregate_bytes is not None:
        writer.settings = replace(writer.settings, aggregate_bytes=aggregate_bytes)
    return writer


def write(server: KinesisServer, *batches: pa.RecordBatch, **more: Any) -> int:
    return sink(server.url, **more).write(iter(batches)).rows


def write_with(server: KinesisServer, sleep: Callable[[float], object], *batches: pa.RecordBatch, **more: Any) -> int:
    """Write with a sleep of the test's own."""
    writer = sink(server.url, **more)
    return put_batches(batches, writer.columns, writer.settings, sleep)


def numbered(count: int, keys: int = 97, size: int = 0, first: int = 0) -> list[UserRecord]:
    numbers = range(first, first + count)
    return [UserRecord(f"key-{number % keys}", str(number).encode().rjust(size, b".")) for number in numbers]


def ranges(server: KinesisServer, stream: str = "orders") -> dict[str, tuple[int, int]]:
    listed = kinesis_client(server.url).list_shards(StreamName=stream)["Shards"]
    keys = {each["ShardId"]: each["HashKeyRange"] for each in listed}
    return {shard: (int(one["StartingHashKey"]), int(one["EndingHashKey"])) for shard, one in keys.items()}


def by_kcl(server: KinesisServer, stream: str = "orders") -> list[UserRecord]:
    return kcl_records(server.records(stream), ranges(server, stream))


def by_our_source(server: KinesisServer, stream: str = "orders") -> list[UserRecord]:
    source = {"streamName": stream, "aggregation": None, "maxRetryInterval": "100ms", "initialPosition": "trim_horizon"}
    source_ = KinesisDataSource(options(server.url, **source) | {"minFetchPeriod": "1ms"})
    reader = source_.reader(source_.schema())
    rows = [row for part in reader.partitions() for found in reader.read(part) for row in found.to_pylist()]
    return [UserRecord(row["partitionKey"], row["data"], row["explicitHashKey"]) for row in rows]


def has_put(server: KinesisServerProcess, calls: int) -> bool:
    return server.call_counts("orders").get("PutRecords", 0) >= calls


def by_key(rows: list[UserRecord]) -> dict[str, list[UserRecord]]:
    found: dict[str, list[UserRecord]] = {}
    for each in rows:
        found.setdefault(each.key, []).append(each)
    return found


def before_the_first_put(
    server: KinesisServer, reshard: Callable[[], object], call: str = "PutRecords"
) -> Callable[[float], object]:
    """Refuse the first call of each shard, and return a sleep that reshards once before any of them is made again."""
    server.throttle(call, 4)
    lock, done = threading.Lock(), []

    def sleep(_seconds: float) -> None:
        with lock:
            if not done:
                done.append(reshard())

    return sleep


class TestAggregates:
    def test_rows_of_a_shard_share_records_and_are_read_by_the_kcl_and_by_us(self, server: KinesisServer) -> None:
        rows = numbered(20_000, size=100)
        assert write(server, batch(rows[:10_000]), batch(rows[10_000:])) == 20_000
        assert sorted(by_kcl(server)) == sorted(by_our_source(server)) == sorted(rows)
        assert len(server.records("orders")) <= 4 * (1 + 20_000 * 110 // 4 // (256 << 10))
        assert server.call_counts("orders")["PutRecords"] == 1
        assert server.call_counts("orders")["ListShards"] == 1 + 2  # by the task, and by the two readers

    def test_explicit_hash_keys_stay_with_their_rows(self, server: KinesisServer) -> None:
        chosen = [None, "0", str(HASH_KEYS - 1), str(HASH_KEYS // 3), str(HASH_KEYS // 3)]
        rows = [UserRecord(f"key-{n % 3}", b"%d" % n, chosen[n % 5]) for n in range(100)]
        write(server, batch(rows))
        assert Counter(by_kcl(server)) == Counter(by_our_source(server)) == Counter(rows)

    def test_other_reader_of_the_format_agrees(self, server: KinesisServer) -> None:
        rows = numbered(5000, size=100)
        write(server, batch(rows), aggregate_bytes=MIB)
        events = [
            {
                "kinesis": {
                    "kinesisSchemaVersion": "1.0",
                    "data": base64.b64encode(each.data),
                    "partitionKey": each.partition_key,
                    "sequenceNumber": str(each.sequence_number),
                    "approximateArrivalTimestamp": each.arrival,
                },
                **dict.fromkeys(EVENT_FIELDS, ""),
            }
            for each in server.records("orders")
        ]
        found = [each["kinesis"] for each in deaggregate_records(events)]
        read = [UserRecord(each["partitionKey"], base64.b64decode(each["data"])) for each in found]
        assert sorted(read) == sorted(rows)

    @pytest.mark.parametrize("limit", [1 << 10, None, MIB])
    def test_aggregate_has_at_most_its_bytes(self, server: KinesisServer, limit: int | None) -> None:
        rows = numbered(3000, size=700)
        write(server, batch(rows), aggregate_bytes=limit)
        limit = limit or 256 << 10
        sizes = [len(each.data) + len(each.partition_key) for each in server.records("orders")]
        assert max(sizes) <= limit
        assert sorted(by_kcl(server)) == sorted(rows)
        assert len(sizes) <= 3000 * 720 // max(limit - 720, 720) + 4

    def test_row_that_is_larger_than_an_aggregate_is_put_as_it_is(self, server: KinesisServer) -> None:
        rows = [*numbered(10), UserRecord("large", b"x" * (MIB - 5)), *numbered(10, first=10)]
        write(server, batch(rows))
        assert sorted(by_kcl(server)) == sorted(rows)
        assert ("large", MIB - 5) in [(each.partition_key, len(each.data)) for each in server.records("orders")]

    def test_single_row_is_put_as_it_is(self, server: KinesisServer) -> None:
        write(server, batch([UserRecord("alone", b"1")]))
        (record,) = server.records("orders")
        assert (record.partition_key, record.data) == ("alone", b"1")

    def test_streams_of_a_column_have_aggregates_of_their_own(self, server: KinesisServer) -> None:
        server.create_stream("refunds", shards=2)
        rows = numbered(3000)
        streams = ["orders" if number % 3 else "refunds" for number in range(3000)]
        write(server, batch(rows, streams), streamName=None)
        found = sorted(by_kcl(server)), sorted(by_kcl(server, "refunds"))
        server.delete_stream("refunds")
        assert found[1] == sorted(rows[::3])
        assert found[0] == sorted(row for row, stream in zip(rows, streams, strict=True) if stream == "orders")

    def test_peer_names_are_taken(self, server: KinesisServer) -> None:
        write(server, batch(numbered(100)), aggregation=None, **{"kinesis.sink.aggregationEnabled": "true"})
        assert len(server.records("orders")) == 4

    def test_stream_that_ignores_keys_is_refused(self, server: KinesisServer) -> None:
        server.ignore_keys("orders")
        with pytest.raises(OptionError, match=r"KINESIS_KEYS_IGNORED.*aggregation"):
            KinesisDataSource(options(server.url)).batch_writer(SCHEMA)
        with pytest.raises(OptionError, match="KINESIS_KEYS_IGNORED"):
            write(server, batch(numbered(3), ["orders"] * 3), streamName=None)


@pytest.mark.guarantee
class TestFailures:
    def test_refused_aggregates_are_put_again_whole(self, server: KinesisServer) -> None:
        server.fail_entries(count=20, every=2)
        server.throttle("PutRecord", 20)
        rows = numbered(20_000)
        write(server, batch(rows[:9000]), batch(rows[9000:]), aggregate_bytes=4096)
        assert sorted(by_kcl(server)) == sorted(rows)
        assert sum(len(user_records(each.data) or [each]) for each in server.records("orders")) == len(rows)

    @pytest.mark.parametrize("after_bytes", [0, 30])
    def test_cut_connection_loses_nothing(self, server: KinesisServer, after_bytes: int) -> None:
        operation = "PutRecords"
        server.cut(operation)
        server.cut(operation, after_effect=True, after_bytes=after_bytes)
        rows = numbered(1000)
        write(server, batch(rows))
        assert set(by_kcl(server)) == set(rows)
        assert len(by_kcl(server)) > len(rows)  # at least once: the second request had taken effect

    def test_limits_of_a_shard_only_slow_it_down(self, server: KinesisServer) -> None:
        server.enforce_limits()
        rows = numbered(6000, size=1000)
        write(server, batch(rows), aggregate_bytes=MIB)
        assert sorted(by_kcl(server)) == sorted(rows)
        assert server.call_counts("orders")["PutRecords"] > 2

    def test_no_row_is_dropped_by_age(self, server: KinesisServer) -> None:
        server.throttle("PutRecords", 40)
        server.throttle("PutRecord", 40)
        rows = numbered(100)
        write_with(server, lambda _seconds: server.jump(60), batch(rows), numRetries=100)
        assert sorted(by_kcl(server)) == sorted(rows)

    def test_error_names_a_row_and_not_its_aggregate(self, server: KinesisServer) -> None:
        server.throttle("PutRecords", 1000)
        server.throttle("PutRecord", 1000)
        with pytest.raises(ConnectorError, match=r"100 rows were not written") as raised:
            write(server, batch(numbered(100, keys=1)), numRetries=1)
        assert "partitionKey 'key-0'" in raised.value.where

    def test_killed_tasks_lose_nothing_when_they_run_again(self) -> None:
        rows = numbered(30_000, size=800)
        with start_server_process() as server:
            server.create_stream("orders", shards=4)
            server.delay_calls("PutRecords", 0.02)
            program = [sys.executable, "-m", __name__, server.url]
            for calls in (2, 6):
                server.reset_calls()
                with subprocess.Popen(program) as task:
                    wait_for(partial(has_put, server, calls), 60)
                    os.kill(task.pid, signal.SIGKILL)
            subprocess.run(program, check=True)
            found = kcl_records(server.records("orders"), ranges(server))
            assert set(found) == set(rows)
            assert len(found) > len(rows)


@pytest.mark.guarantee
class TestReshards:
    def test_split_between_packing_and_putting_is_packed_anew(self, server: KinesisServer) -> None:
        """The KCL drops an aggregate in a child with rows of the other child."""
        reshard = before_the_first_put(server, lambda: [server.split("orders", shard) for shard in shards])
        shards = server.shards("orders")
        rows = numbered(2000)
        write_with(server, reshard, batch(rows[:1500]), batch(rows[1500:]))
        assert len(server.shards("orders")) == 12
        assert sorted(by_kcl(server)) == sorted(rows)  # each once
        assert set(by_our_source(server)) == set(rows)
        assert len(by_our_source(server)) == 2 * len(rows)  # we read those of the other child too

    def test_merge_between_packing_and_putting_puts_nothing_twice(self, server: KinesisServer) -> None:
        reshard = before_the_first_put(server, lambda: server.merge("orders", *server.shards("orders")[1:3]))
        rows = numbered(2000)
        write_with(server, reshard, batch(rows[:1500]), batch(rows[1500:]))
        assert len(server.shards("orders")) == 5
        assert sorted(by_our_source(server)) == sorted(by_kcl(server)) == sorted(rows)

    def test_reshards_while_a_task_writes_lose_nothing(self, server: KinesisServer) -> None:
        rows = numbered(6000)

        def batches() -> Iterator[pa.RecordBatch]:
            for number in range(12):
                yield batch(rows[number * 500 : (number + 1) * 500])
                shards = server.shards("orders", only_open=True)
                server.split("orders", shards[number % len(shards)])

        writer = sink(server.url, aggregate_bytes=2048)
        assert writer.write(batches()).rows == len(rows)
        assert sorted(by_kcl(server)) == sorted(rows)

    def test_shards_that_are_never_as_listed_end_the_task(self, server: KinesisServer) -> None:
        writer = KinesisDataSource(options(server.url, numRetries=0)).batch_writer(SCHEMA)
        server.ignore_keys("orders")
        with pytest.raises(ConnectorError, match="KINESIS_AGGREGATE_MISPLACED") as raised:
            writer.write(iter([batch(numbered(1000))]))
        assert raised.value.transient


ORDERED: dict[str, Any] = {"ordered": "true", "aggregate_bytes": 2048}


@pytest.mark.guarantee
class TestOrder:
    """By the KCL, each row once, and those of a key as they were written."""

    def test_rows_of_a_key_keep_their_order_though_calls_are_refused(self, server: KinesisServer) -> None:
        rows = numbered(6000)
        server.throttle("PutRecord", 20)
        write(server, *[batch(rows[start : start + 1000]) for start in range(0, 6000, 1000)], **ORDERED)
        assert by_key(by_kcl(server)) == by_key(by_our_source(server)) == by_key(rows)
        calls = server.call_counts("orders")
        assert "PutRecords" not in calls
        assert calls["PutRecord"] < len(rows) / 5

    def test_row_that_is_put_as_it_is_keeps_its_place(self, server: KinesisServer) -> None:
        rows = [UserRecord("key", b"%d" % number + b"." * (3000 if number % 5 == 2 else 0)) for number in range(40)]
        write(server, batch(rows), **ORDERED)
        assert by_kcl(server) == by_our_source(server) == rows

    def test_split_between_packing_and_putting_keeps_the_order(self, server: KinesisServer) -> None:
        shards = server.shards("orders")
        reshard = before_the_first_put(
            server, lambda: [server.split("orders", shard) for shard in shards], call="PutRecord"
        )
        rows = numbered(2000)
        write_with(server, reshard, batch(rows[:1500]), batch(rows[1500:]), **ORDERED)
        assert len(server.shards("orders")) == 12
        assert by_key(by_kcl(server)) == by_key(rows)

    def test_merge_between_packing_and_putting_puts_nothing_twice(self, server: KinesisServer) -> None:
        merged = server.shards("orders")[1:3]
        reshard = before_the_first_put(server, lambda: server.merge("orders", *merged), call="PutRecord")
        rows = numbered(2000)
        write_with(server, reshard, batch(rows[:1500]), batch(rows[1500:]), **ORDERED)
        assert by_key(by_kcl(server)) == by_key(by_our_source(server)) == by_key(rows)

    def test_reshards_while_a_task_writes_keep_the_order(self, server: KinesisServer) -> None:
        rows = numbered(6000)

        def batches() -> Iterator[pa.RecordBatch]:
            for number in range(12):
                yield batch(rows[number * 500 : (number + 1) * 500])
                shards = sorted(server.shards("orders", only_open=True), key=ranges(server).__getitem__)
                if number % 3 == 2:
                    server.merge("orders", *shards[1:3])
                else:
                    server.split("orders", shards[number % len(shards)])

        writer = sink(server.url, **ORDERED)
        assert writer.write(batches()).rows == len(rows)
        assert by_key(by_kcl(server)) == by_key(rows)

    def test_cut_connection_repeats_an_aggregate_in_its_place(self, server: KinesisServer) -> None:
        server.cut("PutRecord")
        server.cut("PutRecord", after_effect=True)
        rows = numbered(1000, keys=1)
        write(server, batch(rows), **ORDERED)
        found = by_kcl(server)
        assert list(dict.fromkeys(found)) == rows
        assert len(found) > len(rows)  # the second call had taken effect

    def test_error_names_a_row_and_not_its_aggregate(self, server: KinesisServer) -> None:
        server.throttle("PutRecord", 1000)
        with pytest.raises(ConnectorError, match=r"rows were not written") as raised:
            write(server, batch(numbered(100, keys=1)), numRetries=1, **ORDERED)
        assert "partitionKey 'key-0'" in raised.value.where

    def test_shards_that_are_never_as_listed_end_the_task(self, server: KinesisServer) -> None:
        writer = sink(server.url, numRetries=0, **ORDERED)
        server.ignore_keys("orders")
        with pytest.raises(ConnectorError, match="KINESIS_AGGREGATE_MISPLACED") as raised:
            writer.write(iter([batch(numbered(1000))]))
        assert raised.value.transient


if __name__ == "__main__":
    # A task that writes 30,000 rows, for the test that kills it.
    task_rows = numbered(30_000, size=800)
    sink(sys.argv[1], aggregate_bytes=4096).write(
        batch(task_rows[start : start + 1000]) for start in range(0, len(task_rows), 1000)
    )
