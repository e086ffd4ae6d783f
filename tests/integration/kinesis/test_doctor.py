"""The doctor finds what keeps a stream of Kinesis from running: each thing is broken here on purpose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from connectors.cli.doctor import check_source
from connectors.core.diagnostics import Finding, Outcome
from connectors.core.formats import CONNECTORS
from connectors.testing.kinesis import KinesisServer
from tests.servers.java import free_port
from tests.support.kinesis_rig import KinesisRig

[CONNECTOR] = [each for each in CONNECTORS if each.package == "kinesis"]

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


def look(rig: KinesisRig, **changes: str | None) -> dict[str, Finding]:
    """The findings by check."""
    options = {**rig.options(), "awsSecretKey": SECRET, **changes}
    set_ones = {name: value for name, value in options.items() if value is not None}
    findings = {finding.check: finding for finding in check_source(CONNECTOR, set_ones, {})}
    assert SECRET not in str(findings)
    return findings


def bad(findings: Mapping[str, Finding]) -> dict[str, str]:
    """The codes of what is not ok; each has a fix."""
    found = [each for each in findings.values() if each.outcome in {Outcome.FAILURE, Outcome.WARNING}]
    assert all(each.fix for each in found)
    return {each.check: each.code for each in found}


def test_a_stream_without_faults_has_no_complaint_and_loses_no_record(kinesis: KinesisRig) -> None:
    values = kinesis.put(5)
    findings = look(kinesis)
    assert bad(findings) == {}
    assert [*findings] == ["packages", "options", "reach", "authenticate", "list", "read"]
    assert "2 open and 0 closed shards" in findings["list"].seen
    with kinesis.query() as query:
        kinesis.drain(query, values)


def test_an_illegal_option_and_an_unknown_region_are_reported(kinesis: KinesisRig) -> None:
    assert bad(look(kinesis, shards="x")) == {"options": "OPTION_UNKNOWN"}
    assert bad(look(kinesis, endpointUrl=None)) == {"options": "KINESIS_NO_REGION"}
    arn = "arn:aws:kinesis:eu-west-1:000000000000:stream/orders"
    assert bad(look(kinesis, streamName=None, streamARN=arn, region="us-east-1")) == {"options": "OPTION_CONFLICT"}


def test_absent_credentials_and_a_role_that_may_not_be_assumed_are_reported(kinesis: KinesisRig) -> None:
    none = {"awsAccessKey": None, "awsSecretKey": None}
    findings = look(kinesis, **none)
    assert bad(findings) == {"authenticate": "KINESIS_CREDENTIALS"}
    assert findings["list"].outcome is Outcome.SKIPPED
    assert bad(look(kinesis, **none, profile="nobody")) == {"options": "KINESIS_CREDENTIALS"}
    role = {"roleArn": "arn:aws:iam::123456789012:role/reader", "stsEndpoint": f"http://127.0.0.1:{free_port()}"}
    assert set(bad(look(kinesis, **role))) == {"authenticate"}


@pytest.mark.parametrize("kind", ["ExpiredTokenException", "UnrecognizedClientException", "InvalidSignatureException"])
def test_credentials_that_are_refused_or_have_expired_are_reported(kinesis: KinesisRig, kind: str) -> None:
    kinesis.server.fail(None, kind, None, message=f"The security token {SECRET[:3]} is no good")
    assert bad(look(kinesis)) == {"authenticate": "KINESIS_CREDENTIALS"}


def test_an_unknown_host_a_closed_port_and_a_port_without_tls_are_reported(kinesis: KinesisRig) -> None:
    findings = look(kinesis, endpointUrl="https://nowhere.invalid:4567")
    assert bad(findings) == {"reach": "NAME_UNKNOWN"}
    assert findings["authenticate"].outcome is Outcome.SKIPPED
    assert bad(look(kinesis, endpointUrl=f"http://127.0.0.1:{free_port()}")) == {"reach": "TCP_NO_CONNECTION"}
    assert bad(look(kinesis, endpointUrl=kinesis.server.url.replace("http:", "https:"))) == {"reach": "TLS_NOT_SPOKEN"}


def test_an_unknown_stream_is_reported_as_one_that_may_be_elsewhere(kinesis: KinesisRig) -> None:
    findings = look(kinesis, streamName="absent")
    assert bad(findings) == {"list": "KINESIS_NOT_FOUND"}
    assert "region" in findings["list"].fix


@pytest.mark.parametrize(
    ("operation", "check_name"),
    [
        ("DescribeStreamSummary", "list"),
        ("ListShards", "list"),
        ("GetShardIterator", "read"),
        ("GetRecords", "read"),
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
    assert bad(look(kinesis)) == {"read": "KINESIS_KEY"}
