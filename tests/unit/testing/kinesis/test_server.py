"""Each knob of the Kinesis server does what it says; loopback only.

What it has in common with kinesis-local is held by tests/integration/kinesis/test_conformance.py.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from connectors.testing.kinesis import KinesisControl, KinesisServer, start_server_process
from tests.support.kinesis_calls import KinesisCalls, error_kind, kinesis_client

DAY = 86_400
HASH_KEYS = 1 << 128
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
    def test_next_numbers_are_set_and_may_have_more_digits(self, calls: KinesisCalls, server: KinesisServer) -> None:
        calls.create()
        server.number_from(calls.stream, SHARD, 99)
        server.put(calls.stream, [("key", b"a"), ("key", b"b"), ("key", b"c")])
        assert [each["SequenceNumber"] for each in calls.read(SHARD)] == ["99", "100", "101"]
        assert calls.data(SHARD, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber="99") == [b"b", b"c"]
        with pytest.raises(ValueError, match="above 101"):
            server.number_from(calls.stream, SHARD, 101)

    def test_numbers_grow_from_parents_to_children(self, filled: KinesisCalls, server: KinesisServer) -> None:
        children = server.split(filled.stream, SHARD)
        parent, *rest = filled.shards()
        assert server.shards(filled.stream, only_open=True) == children
        ending = int(parent["SequenceNumberRange"]["EndingSequenceNumber"])
        assert ending > int(filled.read(SHARD)[-1]["SequenceNumber"])
        assert all(int(each["SequenceNumberRange"]["StartingSequenceNumber"]) > ending for each in rest)

    def test_number_of_another_shard_or_stream_is_refused(self, calls: KinesisCalls) -> None:
        calls.create(20)
        other = KinesisCalls(calls.client)
        other.create()
        foreign = [*calls.put(b"a", ExplicitHashKey=str((1 << 128) - 1)), *other.put(b"b")]
        assert foreign[0]["ShardId"] == "shardId-000000000019"
        # The index of this shard is the same in the bits that stand before the count.
        for shard in (SHARD, "shardId-000000000003"):
            for put in foreign[:1] if shard != SHARD else foreign:
                with refusing() as refusal:
                    calls.iterator(shard, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=put["SequenceNumber"])
                assert refusal.kind == "InvalidArgumentException"
                assert "did not come from this stream" in refusal.message

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

    def test_walk_makes_empty_answers_over_an_idle_time(self, filled: KinesisCalls, server: KinesisServer) -> None:
        server.jump(1000)
        filled.put(b"late")
        server.walk(300)
        pages = list(filled.pages(filled.iterator(SHARD)))
        assert [len(page["Records"]) for page in pages[:5]] == [10, 0, 0, 1, 0]
        assert all(page["MillisBehindLatest"] > 0 for page in pages[:3])
        assert pages[-1]["MillisBehindLatest"] == 0

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

    def test_recreated_stream_is_another_one(self, filled: KinesisCalls, server: KinesisServer) -> None:
        before = filled.summary()["StreamCreationTimestamp"]
        number = filled.read(SHARD)[-1]["SequenceNumber"]
        iterator = filled.iterator(SHARD)
        server.recreate_stream(filled.stream)
        assert filled.summary()["StreamCreationTimestamp"] > before
        assert filled.data(SHARD) == []
        with refusing() as refusal:
            filled.iterator(SHARD, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=number)
        assert refusal.kind == "InvalidArgumentException"
        with refusing() as refusal:
            filled.client.get_records(ShardIterator=iterator)
        assert refusal.kind == "InvalidArgumentException"


class TestShards:
    @pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (4, 7), (7, 4)])
    def test_scaling_makes_even_ranges_by_splits_and_merges(
        self, calls: KinesisCalls, server: KinesisServer, before: int, after: int
    ) -> None:
        calls.create(before)
        calls.client.update_shard_count(StreamName=calls.stream, TargetShardCount=after, ScalingType="UNIFORM_SCALING")
        opened = server.shards(calls.stream, only_open=True)
        ranges = sorted(
            tuple(sorted(map(int, each["HashKeyRange"].values())))
            for each in calls.shards()
            if each["ShardId"] in opened
        )
        widths = [high - low + 1 for low, high in ranges]
        assert (len(widths), sum(widths)) == (after, HASH_KEYS)
        assert max(widths) - min(widths) <= 1
        assert all(low[1] + 1 == high[0] for low, high in pairwise(ranges))
        parents = {each["ShardId"]: each.get("ParentShardId") for each in calls.shards()}
        assert all(parents[shard] for shard in opened if int(shard[-12:]) >= before)

    def test_shards_are_listed_as_they_were_at_a_time(self, filled: KinesisCalls, server: KinesisServer) -> None:
        server.jump(100)
        middle = server.now()
        server.jump(100)
        children = server.split(filled.stream, SHARD)

        def listed(kind: str, **more: Any) -> list[str]:
            return [each["ShardId"] for each in filled.shards(ShardFilter={"Type": kind, **more})]

        assert listed("AT_TRIM_HORIZON") == [SHARD]
        assert listed("AT_TIMESTAMP", Timestamp=middle) == [SHARD]
        assert listed("FROM_TIMESTAMP", Timestamp=middle) == [SHARD, *children]
        server.jump(100)
        assert listed("FROM_TIMESTAMP", Timestamp=server.now()) == children
        assert listed("AT_TIMESTAMP", Timestamp=server.now()) == children

    def test_page_token_expires_and_goes_without_a_name(self, calls: KinesisCalls, server: KinesisServer) -> None:
        calls.create(3)
        token = calls.client.list_shards(StreamName=calls.stream, MaxResults=1)["NextToken"]
        with refusing() as refusal:
            calls.shards(NextToken=token)
        assert refusal.kind == "InvalidArgumentException"
        server.jump(301)
        with refusing() as refusal:
            calls.client.list_shards(NextToken=token)
        assert refusal.kind == "ExpiredNextTokenException"

    def test_iterator_that_makes_no_sense_is_refused(self, calls: KinesisCalls) -> None:
        with refusing() as refusal:
            calls.client.get_records(ShardIterator="nonsense")
        assert refusal.kind == "InvalidArgumentException"


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
    def test_one_answer_has_at_most_ten_mebibytes(self, calls: KinesisCalls, server: KinesisServer) -> None:
        calls.create()
        server.fill(calls.stream, 12, 1 << 20)
        first, second, *_ = calls.pages(calls.iterator(SHARD))
        assert [len(first["Records"]), len(second["Records"])] == [9, 3]
        assert first["MillisBehindLatest"] > 0

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

    def test_stream_can_ignore_keys(self, calls: KinesisCalls, server: KinesisServer) -> None:
        calls.create(2)
        server.ignore_keys(calls.stream)
        assert {put["ShardId"] for put in calls.put(b"a", b"b")} == set(calls.open_ids())
        assert calls.summary()["RecordDistributionStrategy"] == "AUTO"
        calls.client.update_stream_record_distribution_strategy(
            StreamARN=calls.summary()["StreamARN"], RecordDistributionStrategy="USER_PARTITION_KEY"
        )
        assert len({put["ShardId"] for put in calls.put(b"a", b"b")}) == 1


class TestCalls:
    def test_calls_are_counted_by_operation_and_shard(self, filled: KinesisCalls, server: KinesisServer) -> None:
        server.reset_calls()
        filled.data(SHARD)
        with pytest.raises(ClientError):
            filled.iterator("shardId-000000000005")
        assert server.call_counts(filled.stream) == {"GetShardIterator": 2, "GetRecords": 2}
        assert server.call_counts(filled.stream, SHARD) == {"GetShardIterator": 1, "GetRecords": 2}
        assert server.call_counts("another") == {}
        failed = server.calls("GetShardIterator")[-1]
        assert (failed.error, failed.access_key) == ("ResourceNotFoundException", "AKIATEST")
        first = server.calls("GetRecords", stream=filled.stream, shard=SHARD)[0]
        assert first.answer_bytes > 100
        since = server.next_call()
        filled.shards()
        assert [call.operation for call in server.calls(since=since)] == ["ListShards"]


class TestProtocol:
    def test_answer_can_be_cut_in_its_middle(self, server: KinesisServer) -> None:
        # By http.client: boto3 takes the part for an answer that says nothing.
        server.cut("ListStreams", after_effect=True, after_bytes=7)
        headers = {"X-Amz-Target": "Kinesis_20131202.ListStreams", "Content-Type": "application/x-amz-json-1.1"}
        with pytest.raises(http.client.IncompleteRead) as raised:
            self.post(server, headers, b"{}")
        assert raised.value.partial == b'{"Strea'

    def post(self, server: KinesisServer, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection(server.endpoint, timeout=20)
        signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=A/x"}
        with contextlib.closing(connection):
            connection.request("POST", "/", body, {**signed, **headers})
            response = connection.getresponse()
            return response.status, json.loads(response.read())


class TestLife:
    def test_streams_and_port_survive_a_stop(self) -> None:
        server = KinesisServer()
        with server:
            server.create_stream("orders")
            server.put("orders", [("key", b"data")])
            endpoint = server.endpoint
        with pytest.raises(BotoCoreError):
            kinesis_client(server.url).list_streams()
        server.put("orders", [("key", b"more")])
        with server:
            assert server.endpoint == endpoint
            calls = KinesisCalls(kinesis_client(server.url), "orders")
            assert calls.data(SHARD) == [b"data", b"more"]

    def test_process_has_the_same_knobs_and_ends(self) -> None:
        with start_server_process(speed=10, region="eu-west-1") as server:
            server.create_stream("orders", shards=2)
            assert server.put("orders", [("key", b"data")])[0][0] in server.shards("orders")
            calls = KinesisCalls(kinesis_client(server.url), "orders")
            assert ":eu-west-1:" in calls.summary()["StreamARN"]
            assert [record.data for record in server.records("orders")] == [b"data"]
            assert server.calls()[0].operation == "DescribeStreamSummary"
            with pytest.raises(ValueError, match="no command"):
                server._command("explode")
            with pytest.raises(ValueError, match="not found"):
                server.trim("absent", SHARD, 1)
            with KinesisControl(server.endpoint) as other:
                assert other.shards("orders") == server.shards("orders")
            pid = server.process.pid
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
