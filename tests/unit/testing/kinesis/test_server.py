"""Each knob of the Kinesis server does what it says; loopback only.

What it has in common with kinesis-local is held by tests/integration/kinesis/test_conformance.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from connectors.testing.kinesis import KinesisServer
from tests.support.kinesis_calls import KinesisCalls, error_kind, kinesis_client

DAY = 86_400
SHARD = "shardId-000000000000"
THROTTLED = "ProvisionedThroughputExceededException"


@pytest.fixture(scope="module")
def shared() -> Iterator[KinesisServer]:
    with KinesisServer() as running:
        yield running


@pytest.fixture(scope="module")
def client(shared: KinesisServer) -> Any:
    return kinesis_client(shared.url)


@pytest.fixture
def server(shared: KinesisServer) -> Iterator[KinesisServer]:
    shared.reset_calls()
    yield shared
    shared.clear_faults()
    shared.set_transition(0)
    shared.set_speed(1)


@pytest.fixture
def calls(client: Any, server: KinesisServer) -> KinesisCalls:
    del server  # cleans up after each test
    return KinesisCalls(client)


@pytest.fixture
def filled(calls: KinesisCalls, server: KinesisServer) -> KinesisCalls:
    """A stream of one shard with the records b"0" to b"9"."""
    calls.create()
    server.put(calls.stream, [("key", b"%d" % number) for number in range(10)])
    return calls


@dataclass
class Refusal:
    """The error of a call; known when the block is left."""

    kind: str = ""
    message: str = ""


@contextlib.contextmanager
def refusing() -> Iterator[Refusal]:
    refusal = Refusal()
    with pytest.raises(ClientError) as raised:
        yield refusal
    refusal.kind, refusal.message = error_kind(raised.value), str(raised.value)


class TestNumbers:
    def test_numbers_grow_from_parents_to_children(self, filled: KinesisCalls, server: KinesisServer) -> None:
        children = server.split(filled.stream, SHARD)
        parent, *rest = filled.shards()
        assert server.shards(filled.stream, only_open=True) == children
        ending = int(parent["SequenceNumberRange"]["EndingSequenceNumber"])
        assert ending > int(filled.read(SHARD)[-1]["SequenceNumber"])
        assert all(int(each["SequenceNumberRange"]["StartingSequenceNumber"]) > ending for each in rest)

    def test_number_between_records_is_a_start(self, filled: KinesisCalls) -> None:
        numbers = [int(each["SequenceNumber"]) for each in filled.read(SHARD)]
        between = str(numbers[4] + (1 << 44))  # what an idle subscription names: the same count, a later time
        assert filled.data(SHARD, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=between) == [
            b"%d" % number for number in range(5, 10)
        ]


class TestTime:
    def test_records_past_the_retention_are_gone(self, filled: KinesisCalls, server: KinesisServer) -> None:
        server.jump(DAY - 60)
        filled.put(b"young")
        assert len(filled.data(SHARD)) == 11
        server.jump(120)
        assert filled.data(SHARD) == [b"young"]
        assert [record.data for record in server.records(filled.stream)] == [b"young"]

    def test_closed_shard_vanishes_after_the_retention(self, filled: KinesisCalls, server: KinesisServer) -> None:
        children = server.split(filled.stream, SHARD)
        assert len(filled.shards()) == 3
        server.jump(DAY + 1)
        assert [each["ShardId"] for each in filled.shards()] == children
        with refusing() as refusal:
            filled.iterator(SHARD)
        assert refusal.kind == "ResourceNotFoundException"

    def test_iterator_expires_by_the_clock_of_the_server(self, filled: KinesisCalls, server: KinesisServer) -> None:
        server.set_speed(0.001)  # only jumps count, whatever the machine does
        iterator = filled.iterator(SHARD)
        server.jump(299)
        following = filled.client.get_records(ShardIterator=iterator)["NextShardIterator"]
        server.jump(2)
        with refusing() as refusal:
            filled.client.get_records(ShardIterator=iterator)
        assert refusal.kind == "ExpiredIteratorException"
        filled.client.get_records(ShardIterator=following)
        server.set_iterator_life(1)
        with refusing() as refusal:
            filled.client.get_records(ShardIterator=following)
        assert refusal.kind == "ExpiredIteratorException"

    def test_reshard_takes_the_time_of_a_transition(self, filled: KinesisCalls, server: KinesisServer) -> None:
        server.set_transition(30)
        assert server.split(filled.stream, SHARD) == []
        assert (filled.summary()["StreamStatus"], len(filled.shards())) == ("UPDATING", 1)
        filled.put(b"still")
        with refusing() as refusal:
            filled.client.update_shard_count(
                StreamName=filled.stream, TargetShardCount=2, ScalingType="UNIFORM_SCALING"
            )
        assert refusal.kind == "ResourceInUseException"
        server.jump(31)
        assert (filled.summary()["StreamStatus"], len(filled.shards())) == ("ACTIVE", 3)
        assert len(filled.data(SHARD)) == 11


class TestTrimming:
    def test_trimmed_start_reads_from_the_horizon_or_is_refused(
        self, filled: KinesisCalls, server: KinesisServer
    ) -> None:
        numbers = [each["SequenceNumber"] for each in filled.read(SHARD)]
        server.trim(filled.stream, SHARD, 5)
        kept = [b"%d" % number for number in range(5, 10)]
        assert filled.data(SHARD) == kept
        start = {"StartingSequenceNumber": numbers[2]}
        assert filled.data(SHARD, "AFTER_SEQUENCE_NUMBER", **start) == kept
        server.refuse_trimmed()
        with refusing() as refusal:
            filled.iterator(SHARD, "AFTER_SEQUENCE_NUMBER", **start)
        assert refusal.kind == "InvalidArgumentException"
        assert filled.data(SHARD, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=numbers[5]) == kept[1:]


class TestLimits:
    def test_large_answer_blocks_the_shard_until_it_is_paid(self, calls: KinesisCalls, server: KinesisServer) -> None:
        calls.create()
        server.fill(calls.stream, 12, 1 << 20)
        server.enforce_limits()
        server.set_speed(0.001)
        iterator = calls.iterator(SHARD)
        following = calls.client.get_records(ShardIterator=iterator)["NextShardIterator"]
        server.jump(3)
        with refusing() as refusal:
            calls.client.get_records(ShardIterator=following)
        assert refusal.kind == THROTTLED
        server.jump(2)
        assert len(calls.client.get_records(ShardIterator=following)["Records"]) == 3

    def test_sixth_call_in_a_second_is_throttled(self, filled: KinesisCalls, server: KinesisServer) -> None:
        server.enforce_limits()
        server.set_speed(0.001)  # all calls fall into one second of the server
        iterator = filled.iterator(SHARD)
        for _ in range(5):
            filled.client.get_records(ShardIterator=iterator)
        with refusing() as refusal:
            filled.client.get_records(ShardIterator=iterator)
        assert refusal.kind == THROTTLED
        server.jump(1)
        filled.client.get_records(ShardIterator=iterator)

    def test_thousand_and_first_record_in_a_second_fails_alone(
        self, calls: KinesisCalls, server: KinesisServer
    ) -> None:
        calls.create()
        server.enforce_limits()
        server.set_speed(0.001)
        for _ in range(2):
            assert calls.put_many([("key", b"x")] * 500)["FailedRecordCount"] <= 1
        answer = calls.put_many([("key", b"x")] * 2)
        assert answer["FailedRecordCount"] >= 1
        assert answer["Records"][-1]["ErrorCode"] == THROTTLED
        with refusing() as refusal:
            calls.put(b"x")
        assert refusal.kind == THROTTLED

    @pytest.mark.parametrize(
        ("entries", "kind"),
        [
            ([("key", b"x")] * 501, "ValidationException"),
            ([("key", b"x" * (1 << 20))], "ValidationException"),
            ([("key", b"x" * 1_000_000)] * 11, "InvalidArgumentException"),
        ],
        ids=["501 records", "a record above 1 MiB", "a request above 10 MiB"],
    )
    def test_request_beyond_the_limits_is_refused_as_a_whole(
        self, calls: KinesisCalls, server: KinesisServer, entries: list[tuple[str, bytes]], kind: str
    ) -> None:
        calls.create()
        with refusing() as refusal:
            calls.put_many(entries)
        assert refusal.kind == kind
        assert server.records(calls.stream) == []


class TestFaults:
    def test_entries_of_a_request_fail_alone(self, calls: KinesisCalls, server: KinesisServer) -> None:
        calls.create()
        server.fail_entries(count=None, every=2)
        answer = calls.put_many([("key", b"%d" % number) for number in range(6)])
        assert answer["FailedRecordCount"] == 3
        assert [each.get("ErrorCode") for each in answer["Records"]] == [None, THROTTLED] * 3
        assert calls.data(SHARD) == [b"0", b"2", b"4"]
        server.clear_faults()
        server.fail_entries("InternalFailure", 1, partition_key="other")
        answer = calls.put_many([("key", b"a"), ("other", b"b"), ("other", b"c")])
        assert [each.get("ErrorCode") for each in answer["Records"]] == [None, "InternalFailure", None]

    def test_order_can_be_required_of_clients(self, calls: KinesisCalls, server: KinesisServer) -> None:
        calls.create()
        server.require_order()
        (first,) = calls.put(b"1", key="a")
        calls.put(b"1", key="b")
        with refusing() as refusal:
            calls.put(b"2", key="a")
        assert refusal.kind == "InvalidArgumentException"
        calls.put(b"2", key="a", SequenceNumberForOrdering=first["SequenceNumber"])
        assert calls.data(SHARD) == [b"1", b"1", b"2"]

    def test_calls_fail_as_often_as_configured(self, filled: KinesisCalls, server: KinesisServer) -> None:
        iterator = filled.iterator(SHARD)
        server.throttle("GetRecords", 2, shard="shardId-000000000007")
        server.throttle("GetRecords", 2, stream=filled.stream)
        for _ in range(2):
            with refusing() as refusal:
                filled.client.get_records(ShardIterator=iterator)
            assert refusal.kind == THROTTLED
        assert len(filled.client.get_records(ShardIterator=iterator)["Records"]) == 10
        server.fail("PutRecord", "InternalFailureException", status=500, after_effect=True)
        with refusing() as refusal:
            filled.put(b"kept")
        assert refusal.kind == "InternalFailureException"
        assert filled.data(SHARD)[-1] == b"kept"

    @pytest.mark.parametrize("after_effect", [False, True])
    def test_cut_connection_is_an_error_of_the_connection(
        self, filled: KinesisCalls, server: KinesisServer, after_effect: bool
    ) -> None:
        server.cut("PutRecord", after_effect=after_effect)
        with pytest.raises(BotoCoreError):
            filled.put(b"perhaps")
        assert (filled.data(SHARD)[-1] == b"perhaps") is after_effect
        assert server.calls("PutRecord")[-1].error == "cut"

    def test_empty_answers_come_although_records_lie_ahead(self, filled: KinesisCalls, server: KinesisServer) -> None:
        server.empty_answers(filled.stream, SHARD, 2)
        pages = list(filled.pages(filled.iterator(SHARD)))
        assert [len(page["Records"]) for page in pages] == [0, 0, 10, 0]
        assert [page["MillisBehindLatest"] > 0 for page in pages] == [True, True, False, False]
