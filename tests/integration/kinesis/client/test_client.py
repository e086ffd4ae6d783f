"""How the Kinesis source reaches the service: credentials, errors, times and pace, on our own server."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from connectors.core.errors import (
    AccessDeniedError,
    ConnectorError,
    CredentialsError,
    OptionError,
    ServiceUnavailableError,
    SourceGoneError,
)
from connectors.core.retry import wait_out
from connectors.kinesis.client.client import KinesisClient, parse_page
from connectors.kinesis.offsets import TRIM, after, at_time
from connectors.kinesis.options.client import client_options
from connectors.kinesis.options.source import parse_read_options
from connectors.kinesis.shards import ShardRange
from connectors.kinesis.sink.requests import put_results
from connectors.kinesis.source.reader import ReadSettings, read_range
from connectors.testing.kinesis import KinesisServer
from tests.support.kinesis_rig import wait_until

SHARD = "shardId-000000000000"


@pytest.fixture
def server() -> Iterator[KinesisServer]:
    with KinesisServer() as made:
        made.create_stream("orders")
        yield made


def client_of(server: KinesisServer, **options: str) -> KinesisClient:
    raw = {"streamName": "orders", "endpointUrl": server.url, "awsAccessKey": "AKIATEST", "awsSecretKey": "x"} | options
    return KinesisClient(client_options(parse_read_options(raw, {})))


# Errors


@pytest.mark.parametrize(
    ("kind", "status", "error", "code"),
    [
        ("ProvisionedThroughputExceededException", 400, ServiceUnavailableError, "KINESIS_THROTTLED"),
        ("LimitExceededException", 400, ServiceUnavailableError, "KINESIS_THROTTLED"),
        ("InternalFailure", 500, ServiceUnavailableError, "KINESIS_UNAVAILABLE"),
        ("SomethingNew", 503, ServiceUnavailableError, "KINESIS_UNAVAILABLE"),
        ("ExpiredIteratorException", 400, ServiceUnavailableError, "KINESIS_ITERATOR_EXPIRED"),
        ("ResourceNotFoundException", 400, SourceGoneError, "KINESIS_NOT_FOUND"),
        ("InvalidArgumentException", 400, ConnectorError, "KINESIS_INVALID_ARGUMENT"),
        ("AccessDeniedException", 400, AccessDeniedError, "KINESIS_ACCESS_DENIED"),
        ("KMSAccessDeniedException", 400, AccessDeniedError, "KINESIS_ACCESS_DENIED"),
        ("KMSDisabledException", 400, AccessDeniedError, "KINESIS_KEY"),
        ("ExpiredTokenException", 400, CredentialsError, "KINESIS_CREDENTIALS"),
        ("SomethingNew", 400, ConnectorError, "KINESIS_CALL_FAILED"),
    ],
)
def test_each_error_of_the_service_has_its_meaning(
    server: KinesisServer, kind: str, status: int, error: type[ConnectorError], code: str
) -> None:
    server.fail("DescribeStreamSummary", kind, status=status, message="for AKIAABCDEFGH12345678. Signature=abc")
    with pytest.raises(error) as caught:
        client_of(server).describe("orders")
    assert caught.value.code == code
    assert caught.value.where == "orders"
    assert kind in str(caught.value)
    assert "AKIAABC" not in str(caught.value)
    assert "abc" not in str(caught.value)


def test_a_service_that_is_not_there_is_an_error_that_may_pass() -> None:
    server = KinesisServer()
    with server:
        client = client_of(server)
    with pytest.raises(ServiceUnavailableError, match="KINESIS_UNAVAILABLE"):
        client.describe("orders")


@pytest.mark.parametrize("operation", ["ListShards", "DescribeStreamSummary", "GetShardIterator", "GetRecords"])
def test_17_an_answer_that_is_cut_short_is_an_error_that_may_pass(server: KinesisServer, operation: str) -> None:
    client = client_of(server)
    calls = {
        "ListShards": lambda: client.listing("orders"),
        "DescribeStreamSummary": lambda: client.describe("orders"),
        "GetShardIterator": lambda: client.iterator("orders", SHARD, TRIM),
        "GetRecords": lambda: client.records(client.iterator("orders", SHARD, TRIM), 10, "orders", SHARD),
    }
    server.cut(operation, after_effect=True, after_bytes=20)
    with pytest.raises(ServiceUnavailableError):
        calls[operation]()
    calls[operation]()


def test_an_answer_that_cannot_be_read_says_where_and_what_to_do() -> None:
    with pytest.raises(ServiceUnavailableError, match="KINESIS_ANSWER_MALFORMED") as caught:
        parse_page(b'{"Records": 1}', 0, f"orders, {SHARD}")
    assert "GetRecords" in caught.value.what
    assert caught.value.where == f"orders, {SHARD}"
    assert "endpointUrl" in caught.value.action
    for body in (b"<html>", b'{"FailedRecordCount":0,"Records":[]}', b'{"FailedRecordCount":1,"Records":[{}]}'):
        with pytest.raises(ServiceUnavailableError, match=r"KINESIS_ANSWER_MALFORMED.*PutRecords") as refused:
            put_results(body, 1, "orders")
        assert refused.value.where == "orders"
        assert refused.value.action


def test_an_iterator_that_has_expired_says_where_and_what_to_do(server: KinesisServer) -> None:
    server.fail("GetRecords", "ExpiredIteratorException", 1)
    client = client_of(server)
    with pytest.raises(ServiceUnavailableError, match=r"KINESIS_ITERATOR_EXPIRED.*GetRecords") as caught:
        client.records(client.iterator("orders", SHARD, TRIM), 10, "orders", SHARD)
    assert caught.value.where == f"orders, {SHARD}"
    assert "five minutes" in caught.value.action


def test_17_retries_that_go_on_are_logged(server: KinesisServer, caplog: pytest.LogCaptureFixture) -> None:
    server.fail("DescribeStreamSummary", "LimitExceededException", 30)
    raw = {"streamName": "orders", "endpointUrl": server.url, "awsAccessKey": "AKIATEST", "awsSecretKey": "x"}
    options = client_options(parse_read_options({**raw, "numRetries": "30"}, {}))
    client = KinesisClient(options)
    wait_out(lambda: client.describe("orders"), options.outage_rule, sleep=lambda _seconds: None)
    lines = [line for line in caplog.messages if line.startswith("[RETRYING]")]
    assert len(lines) == 1
    assert "KINESIS_THROTTLED" in lines[0]
    assert "(orders)" in lines[0]


def test_without_a_region_nothing_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    raw = {"streamName": "orders", "awsAccessKey": "AKIATEST", "awsSecretKey": "x"}
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.delenv("AWS_REGION", raising=False)
    with pytest.raises(OptionError, match="KINESIS_NO_REGION"):
        KinesisClient(client_options(parse_read_options(raw, {}))).describe("orders")


def test_17_a_call_is_made_again_so_often_and_waits_are_random_and_bounded(server: KinesisServer) -> None:
    client = client_of(server, numRetries="5", maxRetryInterval="400ms")
    options = client_options(
        parse_read_options({"streamName": "a", "numRetries": "5", "maxRetryInterval": "400ms"}, {})
    )
    waits: list[float] = []
    server.throttle("DescribeStreamSummary", 5)
    summary = wait_out(lambda: client.describe("orders"), options.outage_rule, sleep=waits.append)
    assert summary["StreamName"] == "orders"
    assert len(waits) == 5
    assert max(waits) <= 0.4
    assert len(set(waits)) == 5
    server.throttle("DescribeStreamSummary", 6)
    with pytest.raises(ServiceUnavailableError, match="KINESIS_THROTTLED"):
        wait_out(lambda: client.describe("orders"), options.outage_rule, sleep=waits.append)


# Times and lists


def test_an_iterator_by_time_is_exact_to_the_millisecond(server: KinesisServer) -> None:
    client = client_of(server)
    server.put("orders", [("k", b"early")])
    server.jump(0.3)
    server.put("orders", [("k", b"late")])
    early, late = server.records("orders")
    for stored, expected in ((early, b"early"), (late, b"late")):
        iterator = client.iterator("orders", stored.shard, at_time(int(stored.arrival * 1000)))
        assert client.records(iterator, 1, "orders", stored.shard).records[0].Data == expected


def test_shards_are_listed_page_by_page(server: KinesisServer) -> None:
    server.create_stream("wide", 7)
    server.split("wide", "shardId-000000000003")
    before = server.now()
    listing = client_of(server).listing("wide", page_size=2)
    assert sorted(listing.shards) == [f"shardId-{number:012}" for number in range(9)]
    assert [each.shard_id for each in listing.shards.values() if each.closed] == ["shardId-000000000003"]
    assert listing.shards["shardId-000000000008"].parents == ("shardId-000000000003",)
    assert before - 1 <= listing.at_ms / 1000 <= server.now(), "the service tells its time in whole seconds"


# Pace


def reading(server: KinesisServer, stream: str, **changes: Any) -> tuple[ShardRange, ReadSettings]:
    """All that a stream of one shard has, and how a task reads it."""
    stored = server.records(stream)
    settings = ReadSettings(
        client=client_options(parse_read_options({"streamName": stream, "maxRetryInterval": "100ms"}, {})),
        page_records=10_000,
        period=0.5,
        rate=2e6,
        deaggregate=True,
        fail_on_data_loss=True,
    )
    part = ShardRange(stream, stream, stored[0].shard, TRIM, after(stored[-1].sequence_number))
    return part, dataclasses.replace(settings, **changes)


def test_16_a_task_whose_iterator_expires_goes_on_behind_its_last_row(server: KinesisServer) -> None:
    server.create_stream("long")
    server.fill("long", 50, 20)
    part, settings = reading(server, "long", page_records=7, period=0.0)
    settings = dataclasses.replace(
        settings, client=dataclasses.replace(settings.client, num_retries=0)
    )  # it is no failure that counts
    before = server.call_counts("long").get("GetRecords", 0)
    rows: list[bytes] = []
    for number, batch in enumerate(read_range(part, settings, client_of(server)), 1):
        rows += batch.column("data").to_pylist()
        # The task has asked for the next of the 8 pages already, so the one after that fails, once.
        calls = before + min(number + 1, 8) + min(number - 1, 6)
        wait_until(lambda calls=calls: server.call_counts("long")["GetRecords"] == calls)
        server.fail("GetRecords", "ExpiredIteratorException", 1)
    assert rows == [each.data for each in server.records("long")]


def test_13_a_task_reads_on_through_empty_answers(server: KinesisServer) -> None:
    server.create_stream("sparse")
    server.fill("sparse", 5, 20)
    part, settings = reading(server, "sparse", period=0.0)
    server.empty_answers("sparse", part.shard, 30)
    assert sum(batch.num_rows for batch in read_range(part, settings, client_of(server))) == 5


def test_18_after_a_large_answer_the_next_call_waits_for_as_long_as_it_would_be_refused(server: KinesisServer) -> None:
    server.create_stream("large")
    server.fill("large", 30, 1_000_000, keys=1)
    client = client_of(server)
    part, settings = reading(server, "large")
    waits: list[float] = []
    began = time.monotonic()
    sizes = [batch.num_rows for batch in read_range(part, settings, client, waits.append)]
    passed = time.monotonic() - began  # which the service does not wait for again
    assert sum(sizes) == 30
    assert len(waits) == len(sizes) - 1
    saved = 1.0  # what a bucket of the service holds, in seconds
    # No wait is waited for, so each has those before it.
    for total, wait in zip(accumulate(sizes), waits, strict=False):
        assert total * 0.5 - passed - saved <= wait <= total * 0.5
    assert max(sizes) * 1_000_000 <= 10 << 20
