"""The options of the Kinesis source: names and aliases, what goes together, and what is refused."""

from __future__ import annotations

import pytest

from connectors.core.errors import OptionError
from connectors.kinesis.client.client import shared_client
from connectors.kinesis.offsets import LATEST, TRIM, ShardPositions, after, at, at_time
from connectors.kinesis.options.client import client_options
from connectors.kinesis.options.source import KinesisReadOptions, parse_read_options

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
OTHER = "arn:aws:kinesis:eu-west-1:123456789012:stream/bills"


def parse(streaming: bool | None = None, environ: dict[str, str] | None = None, **raw: str) -> KinesisReadOptions:
    options = raw if "streamARN" in raw else {"streamName": "orders"} | raw
    return parse_read_options(options, environ or {}, streaming=streaming)


def test_the_defaults() -> None:
    options = parse()
    assert options.streams == ("orders",)
    assert (options.min_fetch_period, options.max_records_per_fetch, options.fail_on_data_loss) == (0.4, 10000, True)
    assert parse(streaming=True).start == ShardPositions(LATEST)
    assert parse(streaming=False).start == ShardPositions(TRIM)
    assert parse(streaming=False).end == ShardPositions(LATEST)


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("endpoint", "http://127.0.0.1:4567/", "endpoint_url", "http://127.0.0.1:4567"),
        ("startingPosition", "earliest", "start", ShardPositions(TRIM)),
        ("startingposition", "TRIM_HORIZON", "start", ShardPositions(TRIM)),
        ("consumerType", "GetRecords", "consumer_mode", "polling"),
        ("readerType", "polling", "consumer_mode", "polling"),
        ("fetchIntervalMs", "250", "min_fetch_period", 0.25),
        ("kinesis.fetchIntervalMs", "250", "min_fetch_period", 0.25),
        ("describeShardInterval", "2s", "shard_fetch_interval", 2.0),
        ("stsRoleArn", "arn:aws:iam::123456789012:role/reader", "role_arn", "arn:aws:iam::123456789012:role/reader"),
        ("awsSTSRoleARN", "arn:aws:iam::123456789012:role/r", "role_arn", "arn:aws:iam::123456789012:role/r"),
    ],
)
def test_names_of_other_connectors_are_understood(name: str, value: str, field: str, expected: object) -> None:
    assert getattr(parse(**{name: value}), field) == expected


def test_several_streams_by_name_or_by_arn() -> None:
    assert parse(streamName=" a, b ,c").streams == ("a", "b", "c")
    for name in ("streamName", "streamARN", "streamARNs", "kinesis.streamArn"):
        options = parse_read_options({name: f"{ARN},{OTHER}"}, {})
        assert options.streams == (ARN, OTHER)
        assert options.region == "eu-west-1"
    options = parse(streamName=f"a,{ARN}")
    assert (options.streams, options.region) == (("a", ARN), "eu-west-1")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"streamName": "a", "streamARN": ARN}, "streamName and streamARN conflict.*Give only streamName"),
        ({"streamName": "a,"}, "cannot hold ''"),
        ({"streamName": "a,a"}, "names a stream twice"),
        ({"streamName": "a b"}, "cannot hold 'a b'"),
        ({"streamName": "arn:orders"}, "cannot hold 'arn:orders'"),
        ({"streamARN": f"{ARN},{ARN.replace('west', 'east')}"}, "several regions"),
        ({"streamARN": ARN, "region": "us-east-1"}, "the stream is in eu-west-1"),
        ({"streamName": "a", "awsAccessKey": "x"}, "awsSecretKey is missing"),
        ({"streamName": "a", "awsSecretKey": "x"}, "awsAccessKey is missing"),
        ({"streamName": "a", "awsSessionToken": "x"}, "awsSessionToken needs"),
        ({"streamName": "a", "awsAccessKey": "x", "awsSecretKey": "y", "profile": "p"}, "both give credentials"),
        ({"streamName": "a", "roleExternalId": "x"}, "roleExternalId needs roleArn"),
        ({"streamName": "a", "roleArn": "reader"}, "not the ARN of a role"),
        ({"streamName": "a", "shardsPerTask": "2"}, r"shardsPerTask is not supported.*Use minPartitions instead"),
        ({"streamName": "a", "consumerMode": "efo"}, "consumerMode=efo needs consumerName"),
        ({"streamName": "a", "endpointUrl": "localhost:4567"}, "not a URL"),
        ({"streamName": "a", "endpointUrl": "http://user:secret@host"}, "holds a user's name"),
        ({"streamName": "a", "endpointUrl": "http://host:abc"}, "OPTION_ILLEGAL.*port"),
        ({"streamName": "a", "endpointUrl": "http://host:99999"}, "OPTION_ILLEGAL.*port"),
        ({"streamName": "a", "endpointUrl": "http://ho st/"}, "OPTION_ILLEGAL.*white space"),
        ({"streamName": "a", "maxRecordsPerFetch": "10001"}, "cannot be '10001'"),
        ({"streamName": "a", "maxRecordPerTrigger": "1"}, "Did you mean maxRecordsPerTrigger"),
        ({}, "OPTION_MISSING.*streamName is required"),
        ({"streamName": "a", "initialTimestamp": "1"}, "initialTimestamp is not supported.*Use initialPosition"),
        ({"streamName": "a", "endingTimestamp": "1"}, "endingTimestamp is not supported.*Use endingPosition"),
    ],
)
def test_what_cannot_be_is_refused(raw: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_read_options(raw, {})


# Positions


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"initialPosition": "latest"}, ShardPositions(LATEST)),
        ({"initialPosition": "at_timestamp  2026-05-17T10:30:00Z"}, ShardPositions(at_time(1779013800000))),
        ({"initialPosition": "at_timestamp 2026-05-17T10:30:00"}, ShardPositions(at_time(1779013800000))),
        ({"initialPosition": "at_timestamp 1779013800123"}, ShardPositions(at_time(1779013800123))),
        ({"initialPosition": "AT_TIMESTAMP 2026-05-17T12:30:00+02:00"}, ShardPositions(at_time(1779013800000))),
        ({"initialPosition": '{"at_timestamp": "2026-05-17T10:30:00Z"}'}, ShardPositions(at_time(1779013800000))),
        (
            {
                "initialPosition": '{"metadata":{"streamName":"orders","batchId":"7"},"shardId-1":{"iteratorType":'
                '"AFTER_SEQUENCE_NUMBER","iteratorPosition":"495"},"shardId-2":"49","shardId-3":"LATEST",'
                '"shardId-4":{"iteratorType":"AT_SEQUENCE_NUMBER","iteratorPosition":"7"}}'
            },
            ShardPositions(
                named={"": {"shardId-1": after(495), "shardId-2": after(49), "shardId-3": LATEST, "shardId-4": at(7)}}
            ),
        ),
        (
            {"initialPosition": '{"orders":{"shardId-1":"TRIM_HORIZON"}}'},
            ShardPositions(named={"orders": {"shardId-1": TRIM}}),
        ),
    ],
)
def test_positions_in_all_their_forms(raw: dict[str, str], expected: ShardPositions) -> None:
    assert parse(**raw).start == expected


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"initialPosition": "now"}, "Give latest, trim_horizon"),
        ({"initialPosition": "at_timestamp"}, "needs a time"),
        ({"initialPosition": "latest 2026-05-17T10:30:00Z"}, "Give latest, trim_horizon"),
        ({"initialPosition": "at_timestamp yesterday"}, "ISO 8601"),
        ({"initialPosition": "at_timestamp 1905-01-01T00:00:00Z"}, "after 1970"),
        ({"initialPosition": "at_timestamp 20260517"}, "that is 1970-01-01"),
        ({"initialPosition": "at_timestamp 1763800000"}, "that is 1970-01-21"),
        ({"initialPosition": "{"}, "not JSON"),
        ({"initialPosition": "{}"}, "names no shard"),
        ({"initialPosition": '{"shardId-1": 5}'}, "Give each shard a position"),
        ({"initialPosition": '{"shardId-1": {"iteratorType": "AFTER_SEQUENCE_NUMBER"}}'}, "Give each shard a position"),
        ({"initialPosition": '{"bills": {"shardId-1": "LATEST"}}'}, "names the stream bills"),
        ({"initialPosition": '{"at_timestamp": "1", "format": "x"}'}, "leave its format out"),
        ({"streamName": "a,b", "initialPosition": '{"shardId-1": "LATEST"}'}, "under its name"),
        ({"endingPosition": "soon"}, "endingPosition"),
    ],
)
def test_22_positions_that_cannot_be_are_refused(raw: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse(**raw)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(OptionError, match="no endingPosition"):
        parse(streaming=True, endingPosition="latest")


def test_a_worker_keeps_the_clients_of_the_last_options_only() -> None:
    """A job that fetches new keys for each batch has ever new options, and each client takes some 10 MB."""
    several = [client_options(parse_read_options({"streamName": "s", "region": f"r-{n}"}, {})) for n in range(6)]
    clients = [shared_client(each) for each in several]
    assert shared_client(several[-1]) is clients[-1]
    assert shared_client(several[0]) is not clients[0]


@pytest.mark.parametrize("name", ["initialPosition", "endingPosition"])
def test_json_that_is_nested_too_deep_is_an_error_of_its_option(name: str) -> None:
    for text in ('{"a":' * 100_000, '{"at_timestamp":' + "[" * 900 + "]" * 900 + "}"):
        with pytest.raises(OptionError, match=f"The option {name} cannot be"):
            parse(streaming=False, **{name: text})


@pytest.mark.parametrize("number", ["253402300800000", "9" * 15])
def test_a_time_after_the_year_9999_is_refused(number: str) -> None:
    with pytest.raises(OptionError, match=r"The option initialPosition cannot be .* after the year 9999"):
        parse(initialPosition=f"at_timestamp {number}")
    with pytest.raises(OptionError, match=r"The option initialPosition cannot be .* after the year 9999"):
        parse(
            initialPosition=f'{{"shardId-000000000000":{{"iteratorType":"AT_TIMESTAMP","iteratorPosition":"{number}"}}}}'
        )
    assert parse(initialPosition="at_timestamp 253402300799999").start == ShardPositions(at_time(253_402_300_799_999))


EFO = {"consumerName": "c", "consumerARN": f"{ARN}/consumer/c:1", "fetchers": "2"}
EFO |= {"spoolLocation": "/data/spool", "requireConsumerDeregistration": "true"}


@pytest.mark.parametrize("name", EFO)
def test_an_option_of_fan_out_is_refused_without_a_mode(name: str) -> None:
    with pytest.raises(OptionError, match=f"The options {name} and consumerMode conflict"):
        parse(streaming=True, **{name: EFO[name]})


def test_options_of_fan_out_are_named_as_ignored_where_polling_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        assert parse(streaming=True, readerType="polling", **EFO).consumers == ()
    [record] = caplog.records
    assert record.getMessage() == (
        "[KINESIS_OPTION_IGNORED] consumerMode=polling does not use consumerName, consumerARN, "
        "requireConsumerDeregistration, spoolLocation, fetchers."
    )
