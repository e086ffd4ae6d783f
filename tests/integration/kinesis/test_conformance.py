"""Our own Kinesis server and kinesis-local behave the same to boto3, wherever kinesis-local is right.

Where it is not, our server follows the service, and tests/unit/testing/kinesis/test_server.py holds it: kinesis-local
has no throttling and no cap of 500 records, trims nothing, refuses sequence numbers that are no record's, answers an
iterator that makes no sense with status 500, scales to uneven ranges, and lists open shards by AT_TRIM_HORIZON.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.support.kinesis_calls import KinesisCalls, error_kind, kinesis_client

SERVERS = ("embedded_kinesis", "kinesis_local")
HASH_KEYS = 1 << 128


@pytest.fixture(params=SERVERS, scope="module")
def client(request: pytest.FixtureRequest) -> Any:
    return kinesis_client(request.getfixturevalue(request.param))


@pytest.fixture
def calls(client: Any) -> KinesisCalls:
    return KinesisCalls(client)


def refused(kind: str, call: Callable[..., Any], **arguments: Any) -> None:
    with pytest.raises(ClientError) as raised:
        call(**arguments)
    assert error_kind(raised.value) == kind


class TestStreams:
    def test_summary_describes_a_new_stream(self, calls: KinesisCalls) -> None:
        calls.create(3)
        summary = calls.summary()
        assert summary["StreamARN"].endswith(f":stream/{calls.stream}")
        assert (summary["OpenShardCount"], summary["RetentionPeriodHours"]) == (3, 24)
        assert summary["StreamModeDetails"] == {"StreamMode": "PROVISIONED"}
        described = calls.client.describe_stream(StreamName=calls.stream)["StreamDescription"]
        assert described["StreamCreationTimestamp"] == summary["StreamCreationTimestamp"]
        assert [each["ShardId"] for each in described["Shards"]] == [each["ShardId"] for each in calls.shards()]
        assert not described["HasMoreShards"]

    def test_stream_is_found_by_arn_too(self, calls: KinesisCalls) -> None:
        calls.create()
        by_arn = calls.client.list_shards(StreamARN=calls.summary()["StreamARN"])
        assert by_arn["Shards"] == calls.shards()

    def test_list_of_streams_comes_in_pages(self, client: Any) -> None:
        names = sorted(KinesisCalls(client).create() for _ in range(3))
        found: list[str] = []
        more: dict[str, Any] = {"ExclusiveStartStreamName": names[0]}
        while more:
            answer = client.list_streams(Limit=1, **more)
            found += answer["StreamNames"]
            more = {"ExclusiveStartStreamName": found[-1]} if answer["HasMoreStreams"] else {}
        assert [name for name in found if name in names] == names[1:]

    def test_absent_and_present_streams_are_distinguished(self, calls: KinesisCalls) -> None:
        refused("ResourceNotFoundException", calls.summary)
        with pytest.raises(ClientError, match="ResourceNotFoundException"):
            calls.put(b"data")
        calls.create()
        refused("ResourceInUseException", calls.client.create_stream, StreamName=calls.stream, ShardCount=1)
        calls.client.delete_stream(StreamName=calls.stream)
        calls.client.get_waiter("stream_not_exists").wait(
            StreamName=calls.stream, WaiterConfig={"Delay": 1, "MaxAttempts": 30}
        )
        refused("ResourceNotFoundException", calls.shards)


class TestRecords:
    def test_records_come_back_as_they_were_put_in_order(self, calls: KinesisCalls) -> None:
        calls.create()
        entries = [("a", bytes(range(256))), ("\N{SNOWMAN}", b""), ('quo"te', b"x" * 5000)]
        answer = calls.put_many(entries)
        assert answer["FailedRecordCount"] == 0
        (shard,) = calls.open_ids()
        records = calls.read(shard)
        assert [(each["PartitionKey"], each["Data"]) for each in records] == entries
        assert [each["SequenceNumber"] for each in records] == [each["SequenceNumber"] for each in answer["Records"]]
        numbers = [int(each["SequenceNumber"]) for each in records]
        assert numbers == sorted(set(numbers))
        assert all(each["ApproximateArrivalTimestamp"] for each in records)

    def test_key_decides_the_shard(self, calls: KinesisCalls) -> None:
        calls.create(4)
        ranges = {each["ShardId"]: each["HashKeyRange"] for each in calls.shards()}
        edges = sorted((int(each["StartingHashKey"]), int(each["EndingHashKey"])) for each in ranges.values())
        assert [edges[0][0], edges[-1][1]] == [0, HASH_KEYS - 1]
        assert all(low[1] + 1 == high[0] for low, high in pairwise(edges))
        for key in ("a", "b", "\N{SNOWMAN}", "customer-17"):
            (put,) = calls.put(b"data", key=key)
            hashed = int.from_bytes(hashlib.md5(key.encode()).digest(), "big")
            low, high = ranges[put["ShardId"]].values()
            assert sorted((int(low), hashed, int(high)))[1] == hashed
        for hash_key in (0, HASH_KEYS // 4, HASH_KEYS - 1):
            (put,) = calls.put(b"data", ExplicitHashKey=str(hash_key))
            low, high = sorted(int(edge) for edge in ranges[put["ShardId"]].values())
            assert low <= hash_key <= high

    @pytest.mark.guarantee
    @pytest.mark.parametrize("limit", [1, 7, 10_000])
    def test_range_between_two_records_replays_exactly(self, calls: KinesisCalls, limit: int) -> None:
        calls.create()
        calls.put_many([("key", b"%d" % number) for number in range(15)])
        (shard,) = calls.open_ids()
        numbers = [each["SequenceNumber"] for each in calls.read(shard, limit=limit)]
        after = calls.data(shard, "AFTER_SEQUENCE_NUMBER", limit=limit, StartingSequenceNumber=numbers[9])
        assert after == [b"%d" % number for number in range(10, 15)]
        at = calls.data(shard, "AT_SEQUENCE_NUMBER", limit=limit, StartingSequenceNumber=numbers[9])
        assert at == [b"%d" % number for number in range(9, 15)]

    def test_latest_sees_only_what_comes_later(self, calls: KinesisCalls) -> None:
        calls.create()
        calls.put(b"early")
        (shard,) = calls.open_ids()
        iterator = calls.iterator(shard, "LATEST")
        calls.put(b"late")
        data = [record["Data"] for page in calls.pages(iterator) for record in page["Records"]]
        assert data == [b"late"]

    def test_time_of_arrival_is_a_start(self, calls: KinesisCalls) -> None:
        calls.create()
        (shard,) = calls.open_ids()
        calls.put(b"first")
        (first,) = calls.read(shard)
        arrival = first["ApproximateArrivalTimestamp"]
        assert calls.data(shard, "AT_TIMESTAMP", Timestamp=arrival) == [b"first"]
        assert calls.data(shard, "AT_TIMESTAMP", Timestamp=0) == [b"first"]

    def test_reader_behind_the_tip_is_reported_so(self, calls: KinesisCalls) -> None:
        calls.create()
        calls.put_many([("key", b"1"), ("key", b"2")])
        (shard,) = calls.open_ids()
        first, second = [page for page in calls.pages(calls.iterator(shard), limit=1) if page["Records"]]
        assert [first["Records"][0]["Data"], second["Records"][0]["Data"]] == [b"1", b"2"]
        assert second["MillisBehindLatest"] == 0
        assert first["MillisBehindLatest"] >= 0

    def test_record_above_the_limit_of_the_stream_is_refused(self, calls: KinesisCalls) -> None:
        calls.create()
        with pytest.raises(ClientError):
            calls.put(b"x" * ((1 << 20) + 1))
        arn = calls.summary()["StreamARN"]
        calls.client.update_max_record_size(StreamARN=arn, MaxRecordSizeInKiB=3 << 10)
        calls.wait_until_active()
        calls.put(b"x" * ((1 << 20) + 1))
        assert len(calls.data(*calls.open_ids())[0]) == (1 << 20) + 1

    def test_shard_that_does_not_exist_is_refused(self, calls: KinesisCalls) -> None:
        calls.create()
        refused("ResourceNotFoundException", calls.iterator, shard="shardId-000000000099")


class TestResharding:
    def test_split_closes_the_parent_and_names_the_children(self, calls: KinesisCalls) -> None:
        calls.create()
        (parent,) = calls.open_ids()
        put = calls.put(b"1", b"2")
        calls.client.split_shard(StreamName=calls.stream, ShardToSplit=parent, NewStartingHashKey=str(HASH_KEYS // 2))
        calls.wait_until_active()
        closed, *children = calls.shards()
        assert closed["ShardId"] == parent
        assert {each["ParentShardId"] for each in children} == {parent}
        assert all("AdjacentParentShardId" not in each for each in children)
        (child_put,) = calls.put(b"3")
        assert child_put["ShardId"] in {each["ShardId"] for each in children}
        assert int(child_put["SequenceNumber"]) > int(put[-1]["SequenceNumber"])
        pages = list(calls.pages(calls.iterator(parent)))
        assert [record["Data"] for page in pages for record in page["Records"]] == [b"1", b"2"]
        assert "NextShardIterator" not in pages[-1]
        named = pages[-1]["ChildShards"]
        assert sorted(each["ShardId"] for each in named) == sorted(each["ShardId"] for each in children)
        assert all(each["ParentShards"] == [parent] for each in named)
        assert {each["ShardId"]: each["HashKeyRange"] for each in named} == {
            each["ShardId"]: each["HashKeyRange"] for each in children
        }

    def test_merge_has_two_parents(self, calls: KinesisCalls) -> None:
        calls.create(2)
        low, high = calls.open_ids()
        calls.client.merge_shards(StreamName=calls.stream, ShardToMerge=low, AdjacentShardToMerge=high)
        calls.wait_until_active()
        child = calls.shards()[-1]
        assert {child["ParentShardId"], child["AdjacentParentShardId"]} == {low, high}
        assert calls.open_ids() == [child["ShardId"]]
        for parent in (low, high):
            (page,) = calls.pages(calls.iterator(parent))
            (named,) = page["ChildShards"]
            assert named["ShardId"] == child["ShardId"]
            assert sorted(named["ParentShards"]) == sorted([low, high])

    @pytest.mark.parametrize("target", [1, 4])
    def test_shard_count_is_changed_to_even_ranges(self, calls: KinesisCalls, target: int) -> None:
        calls.create(2)
        answer = calls.client.update_shard_count(
            StreamName=calls.stream, TargetShardCount=target, ScalingType="UNIFORM_SCALING"
        )
        assert (answer["CurrentShardCount"], answer["TargetShardCount"]) == (2, target)
        calls.wait_until_active()
        opened = [each for each in calls.shards() if each["ShardId"] in calls.open_ids()]
        widths = [
            int(each["HashKeyRange"]["EndingHashKey"]) - int(each["HashKeyRange"]["StartingHashKey"]) + 1
            for each in opened
        ]
        assert len(widths) == target
        assert sum(widths) == HASH_KEYS
        assert max(widths) - min(widths) <= target

    def test_closed_shard_takes_no_part_in_another_reshard(self, calls: KinesisCalls) -> None:
        calls.create(2)
        low, high = calls.open_ids()
        calls.client.merge_shards(StreamName=calls.stream, ShardToMerge=low, AdjacentShardToMerge=high)
        calls.wait_until_active()
        with pytest.raises(ClientError):
            calls.client.split_shard(StreamName=calls.stream, ShardToSplit=low, NewStartingHashKey="1000")

    def test_shards_are_listed_by_filter_and_in_pages(self, calls: KinesisCalls) -> None:
        calls.create(2)
        low, high = calls.open_ids()
        calls.client.merge_shards(StreamName=calls.stream, ShardToMerge=low, AdjacentShardToMerge=high)
        calls.wait_until_active()
        (child,) = calls.open_ids()
        ids = {
            kind: [each["ShardId"] for each in calls.shards(ShardFilter={"Type": kind})]
            for kind in ("AT_LATEST", "FROM_TRIM_HORIZON")
        }
        assert ids["AT_LATEST"] == [child]
        assert ids["FROM_TRIM_HORIZON"] == [low, high, child]
        after = calls.shards(ShardFilter={"Type": "AFTER_SHARD_ID", "ShardId": low})
        assert [each["ShardId"] for each in after] == [high, child]
        assert [each["ShardId"] for each in calls.shards(ExclusiveStartShardId=high)] == [child]
        answer = calls.client.list_shards(StreamName=calls.stream, MaxResults=2)
        assert [each["ShardId"] for each in answer["Shards"]] == [low, high]
        rest = calls.client.list_shards(NextToken=answer["NextToken"])
        assert [each["ShardId"] for each in rest["Shards"]] == [child]
        assert "NextToken" not in rest
