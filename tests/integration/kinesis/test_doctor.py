"""The doctor finds what keeps a stream of Kinesis from running: each thing is broken here on purpose."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from connectors.core.diagnostics import Finding, Outcome
from connectors.core.formats import CONNECTORS
from connectors.core.retry import RetryPolicy, retry
from connectors.doctor import check_source
from connectors.kinesis.client.client import KinesisClient
from connectors.kinesis.fan_out.consumers import active_consumer
from connectors.kinesis.options.client import client_options
from connectors.kinesis.options.source import parse_read_options
from connectors.testing.kinesis import KinesisServer
from tests.servers.java import free_port
from tests.support.kinesis_rig import PATIENCE, KinesisRig

[CONNECTOR] = [each for each in CONNECTORS if each.package == "kinesis"]

HOUR = 3600.0
SECRET = "canary-77"


@pytest.fixture
def kinesis(tmp_path: Path) -> Iterator[KinesisRig]:
    """A server of its own: clocks are moved."""
    with KinesisServer() as server:
        rig = KinesisRig(server, tmp_path, shards=2)  # type: ignore[arg-type] # the same knobs
        yield rig


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials and no region but those of the test."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "absent"))


def look(rig: KinesisRig, checkpoint: Path | None = None, **options: str | None) -> dict[str, Finding]:
    """The findings by check."""
    given = {**rig.options(), "awsSecretKey": SECRET, **options}
    findings = {
        each.check: each
        for each in check_source(CONNECTOR, {k: v for k, v in given.items() if v is not None}, {}, checkpoint)
    }
    assert SECRET not in str(findings)
    return findings


def bad(findings: Mapping[str, Finding]) -> dict[str, str]:
    """The codes of what is not ok; each has a fix."""
    found = [each for each in findings.values() if each.outcome in {Outcome.FAILURE, Outcome.WARNING}]
    assert all(each.fix for each in found)
    return {each.check: each.code for each in found}


def test_a_stream_that_is_well_has_no_complaint_and_loses_no_record(kinesis: KinesisRig) -> None:
    values = kinesis.put(5)
    findings = look(kinesis)
    assert bad(findings) == {}
    expected = {
        "credentials",
        "endpoint",
        "name",
        "tcp",
        "authentication",
        "resource",
        "permission",
        "shards",
        "retention",
    }
    assert set(findings) >= expected | {"starting position"}
    assert "2 open shards, 0 closed" in findings["shards"].found
    assert "ACTIVE" in findings["resource"].found
    with kinesis.query() as query:
        kinesis.drain(query, values)


def test_an_illegal_option_is_reported(kinesis: KinesisRig) -> None:
    assert bad(look(kinesis, shards="x")) == {"options": "OPTION_UNKNOWN"}


def test_absent_credentials_an_unknown_profile_and_an_unknown_region_are_reported(kinesis: KinesisRig) -> None:
    none = {"awsAccessKey": None, "awsSecretKey": None}
    findings = look(kinesis, **none)
    assert bad(findings) == {"credentials": "KINESIS_CREDENTIALS"}
    assert findings["authentication"].outcome is Outcome.SKIPPED
    assert bad(look(kinesis, **none, profile="nobody")) == {"credentials": "KINESIS_CREDENTIALS"}
    assert bad(look(kinesis, endpointUrl=None)) == {"endpoint": "KINESIS_NO_REGION"}


@pytest.mark.parametrize("kind", ["ExpiredTokenException", "UnrecognizedClientException", "InvalidSignatureException"])
def test_credentials_that_are_refused_or_have_expired_are_reported(kinesis: KinesisRig, kind: str) -> None:
    kinesis.server.fail(None, kind, None, message=f"The security token {SECRET[:3]} is no good")
    assert bad(look(kinesis)) == {"authentication": "KINESIS_CREDENTIALS"}


def test_a_role_that_may_not_be_assumed_is_reported(kinesis: KinesisRig) -> None:
    role = {"roleArn": "arn:aws:iam::123456789012:role/reader", "stsEndpoint": f"http://127.0.0.1:{free_port()}"}
    assert set(bad(look(kinesis, **role))) == {"credentials"}


def test_an_unknown_host_a_closed_port_and_a_port_without_tls_are_reported(kinesis: KinesisRig) -> None:
    findings = look(kinesis, endpointUrl="https://nowhere.invalid:4567")
    assert bad(findings) == {"name": "NAME_UNKNOWN"}
    assert findings["authentication"].outcome is Outcome.SKIPPED
    assert bad(look(kinesis, endpointUrl=f"http://127.0.0.1:{free_port()}")) == {"tcp": "TCP_NO_CONNECTION"}
    assert bad(look(kinesis, endpointUrl=kinesis.server.url.replace("http:", "https:"))) == {"tls": "TLS_NOT_SPOKEN"}


def test_an_unknown_stream_is_reported_as_one_that_may_be_elsewhere(kinesis: KinesisRig) -> None:
    findings = look(kinesis, streamName="absent")
    assert bad(findings) == {"resource": "KINESIS_NOT_FOUND"}
    assert "region" in findings["resource"].fix


def test_the_region_of_an_arn_that_the_option_contradicts_is_reported(kinesis: KinesisRig) -> None:
    arn = "arn:aws:kinesis:eu-west-1:000000000000:stream/orders"
    assert bad(look(kinesis, streamName=None, streamARN=arn, region="us-east-1")) == {"options": "OPTION_CONFLICT"}


@pytest.mark.parametrize(
    ("operation", "check_name"),
    [
        ("DescribeStreamSummary", "resource"),
        ("ListShards", "permission"),
        ("GetShardIterator", "permission"),
        ("GetRecords", "permission"),
    ],
)
def test_each_right_that_is_missing_is_reported_by_its_name(
    kinesis: KinesisRig, operation: str, check_name: str
) -> None:
    kinesis.server.fail(operation, "AccessDeniedException", None)
    findings = look(kinesis)
    assert bad(findings) == {check_name: "KINESIS_ACCESS_DENIED"}
    assert f"kinesis:{operation}" in findings[check_name].fix


def test_a_key_that_does_not_decrypt_is_reported(kinesis: KinesisRig) -> None:
    kinesis.server.fail("GetRecords", "KMSDisabledException", None)
    assert bad(look(kinesis)) == {"permission": "KINESIS_KEY"}


def test_a_starting_time_that_the_retention_has_passed_is_warned_of(kinesis: KinesisRig) -> None:
    now = kinesis.server.now()
    position = {"initialPosition": "at_timestamp", "initialTimestamp": str(round((now - 25 * HOUR) * 1000))}
    findings = look(kinesis, **position)
    assert bad(findings) == {"starting position": "KINESIS_START_AGED_OUT"}
    assert findings["starting position"].outcome is Outcome.WARNING
    position["initialTimestamp"] = str(round((now - 20 * HOUR) * 1000))
    assert bad(look(kinesis, **position)) == {}
    position["initialTimestamp"] = str(round((now + 20 * HOUR) * 1000))
    assert bad(look(kinesis, **position)) == {"starting position": "OPTION_ILLEGAL"}


def test_a_start_by_number_that_is_gone_or_of_another_shard_is_reported(kinesis: KinesisRig) -> None:
    first, second = kinesis.server.shards(kinesis.stream)
    kinesis.put_to(first, 2)
    number = str(kinesis.server.records(kinesis.stream)[0].sequence_number)
    assert bad(look(kinesis, initialPosition=json.dumps({first: number}))) == {}
    codes = bad(look(kinesis, initialPosition=json.dumps({second: number})))
    assert codes == {"starting position": "KINESIS_FOREIGN_SEQUENCE_NUMBER"}
    codes = bad(look(kinesis, initialPosition=json.dumps({"shardId-000000000077": "TRIM_HORIZON"})))
    assert codes == {"starting position": "KINESIS_UNKNOWN_SHARD"}


def test_what_a_checkpoint_goes_on_from_is_held_against_what_is_kept(kinesis: KinesisRig) -> None:
    values = kinesis.put(6)
    with kinesis.query() as query:
        kinesis.drain(query, values)
    checkpoint = kinesis.folder / "logs"
    (checkpoint / "offsets").mkdir(parents=True)
    offset = query.checkpoint.offsets(query.batch_id - 1)[0]
    text = offset if isinstance(offset, str) else json.dumps(offset)
    (checkpoint / "offsets" / "0").write_text(f"v1\n{{}}\n{text}")
    assert bad(look(kinesis, checkpoint)) == {}
    kinesis.put(4)
    kinesis.server.jump(30 * HOUR)
    kinesis.put(50)
    findings = look(kinesis, checkpoint)
    assert bad(findings) == {"checkpoint": "KINESIS_DATA_LOSS.TRIMMED"}
    assert findings["checkpoint"].outcome is Outcome.FAILURE
    assert look(kinesis, checkpoint, failOnDataLoss="false")["checkpoint"].outcome is Outcome.WARNING
    kinesis.server.recreate_stream(kinesis.stream)
    assert bad(look(kinesis, checkpoint)) == {"checkpoint": "KINESIS_STREAM_RECREATED"}


def test_a_child_that_was_trimmed_before_its_first_read_is_reported(kinesis: KinesisRig) -> None:
    kinesis.put(6)
    kinesis.server.split(kinesis.stream, kinesis.server.shards(kinesis.stream)[0])
    with kinesis.query() as query:
        query.run_batch(PATIENCE)
        offset = query.checkpoint.offsets(0)[0]
    checkpoint = kinesis.folder / "logs"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / "0").write_text(f"v1\n{{}}\n{offset}")
    assert bad(look(kinesis, checkpoint)) == {}
    kinesis.server.jump(40 * HOUR)
    kinesis.server.put(kinesis.stream, [("key", b"late")], explicit_hash_key=0)  # the other shards stay empty
    assert bad(look(kinesis, checkpoint)) == {"checkpoint": "KINESIS_DATA_LOSS.TRIMMED"}


def test_a_folder_without_offsets_is_reported(kinesis: KinesisRig, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert bad(look(kinesis, tmp_path / "full")) == {"checkpoint": "CHECKPOINT_UNREADABLE"}


def test_a_checkpoint_that_is_not_there_yet_is_that_of_a_new_query(kinesis: KinesisRig, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for checkpoint in (tmp_path / "absent", tmp_path / "empty"):
        findings = look(kinesis, checkpoint)
        assert bad(findings) == {}
        assert findings["checkpoint"].found == f"{checkpoint} is not there yet: a new query"


# The consumer


def test_a_consumer_that_a_query_would_register_is_reported_and_not_registered(kinesis: KinesisRig) -> None:
    findings = look(kinesis, consumerMode="efo", consumerName="mine")
    assert bad(findings) == {}
    assert "mine is not registered" in findings["consumer"].found
    assert "RegisterStreamConsumer" in findings["consumer"].found
    assert "RegisterStreamConsumer" not in kinesis.server.call_counts(kinesis.stream)
    assert "consumer" not in look(kinesis)


def test_a_stream_that_takes_no_other_consumer_is_warned_of(kinesis: KinesisRig) -> None:
    client = KinesisClient(client_options(parse_read_options(kinesis.options(), {})))
    stream_arn = client.listing(kinesis.stream).arn
    for number in range(20):
        client.call("register_stream_consumer", "", StreamARN=stream_arn, ConsumerName=f"other-{number}")
    assert bad(look(kinesis, consumerMode="efo", consumerName="mine")) == {"consumer": "KINESIS_CONSUMER_LIMIT"}
    assert bad(look(kinesis, consumerMode="efo", consumerName="other-7")) == {}


def test_a_consumer_that_is_there_is_reported_with_its_status(kinesis: KinesisRig) -> None:
    client = KinesisClient(client_options(parse_read_options(kinesis.options(), {})))
    stream_arn = client.listing(kinesis.stream).arn
    arn = retry(lambda: active_consumer(client, stream_arn, "mine", register=True), RetryPolicy())
    for named in ({"consumerName": "mine"}, {"consumerARN": arn}):
        findings = look(kinesis, consumerMode="efo", **named)
        assert bad(findings) == {}
        assert f"mine of {kinesis.stream} is ACTIVE" in findings["consumer"].found
    kinesis.server.set_transition(HOUR)
    client.call("deregister_stream_consumer", "mine", ConsumerARN=arn)
    findings = look(kinesis, consumerMode="efo", consumerName="mine")
    assert bad(findings) == {"consumer": "KINESIS_CONSUMER_NOT_ACTIVE"}
    assert findings["consumer"].outcome is Outcome.WARNING
    assert "DELETING" in findings["consumer"].found


def test_a_consumer_that_is_named_and_not_there_is_reported(kinesis: KinesisRig) -> None:
    named = {"consumerARN": "gone"}
    assert bad(look(kinesis, consumerMode="efo", **named)) == {"consumer": "KINESIS_NO_CONSUMER"}


def test_a_consumer_that_may_not_be_described_is_reported_with_the_rights_it_takes(kinesis: KinesisRig) -> None:
    kinesis.server.fail("DescribeStreamConsumer", "AccessDeniedException", None)
    findings = look(kinesis, consumerMode="efo", consumerName="mine")
    assert bad(findings) == {"consumer": "KINESIS_ACCESS_DENIED"}
    for right in ("DescribeStreamConsumer", "RegisterStreamConsumer", "SubscribeToShard"):
        assert f"kinesis:{right}" in findings["consumer"].fix
