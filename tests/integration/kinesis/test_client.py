"""How the Kinesis source reaches the service: credentials, errors, times and pace, on our own server."""

from __future__ import annotations

import dataclasses
import os
import pickle
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

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
from connectors.kinesis.datasource import KinesisBatchWriter, KinesisDataSource
from connectors.kinesis.offsets import TRIM, after, at_time
from connectors.kinesis.options.client import client_options
from connectors.kinesis.options.source import parse_read_options
from connectors.kinesis.shards import ShardRange
from connectors.kinesis.sink.requests import put_results
from connectors.kinesis.source.reader import ReadSettings, read_range
from connectors.testing.kinesis import KinesisServer
from tests.support.kinesis_rig import KinesisRig, wait_until

SHARD = "shardId-000000000000"
ROLE = "arn:aws:iam::123456789012:role/reader"


@pytest.fixture
def server() -> Iterator[KinesisServer]:
    with KinesisServer() as made:
        made.create_stream("orders")
        yield made


def client_of(server: KinesisServer, **options: str) -> KinesisClient:
    raw = {"streamName": "orders", "endpointUrl": server.url, "awsAccessKey": "AKIATEST", "awsSecretKey": "x"} | options
    return KinesisClient(client_options(parse_read_options(raw, {})))


class Sts(ThreadingHTTPServer):
    """A token service: gives keys that are numbered, and keeps what it was asked."""

    def __init__(self, seconds: float) -> None:
        super().__init__(("127.0.0.1", 0), _StsHandler)
        self.seconds = seconds
        self.refuses: str | None = None
        self.asked: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _StsHandler(BaseHTTPRequestHandler):
    server: Sts

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.asked.append({key: value[0] for key, value in parse_qs(body).items()})
        until = (datetime.now(UTC) + timedelta(seconds=self.server.seconds)).isoformat()
        number = len(self.server.asked)
        answer = (
            '<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>'
            f"<AccessKeyId>ASIAROLE{number}</AccessKeyId><SecretAccessKey>role-secret</SecretAccessKey>"
            f"<SessionToken>role-token</SessionToken><Expiration>{until}</Expiration></Credentials>"
            "</AssumeRoleResult></AssumeRoleResponse>"
        ).encode()
        if (kind := self.server.refuses) is not None:
            answer = f"<ErrorResponse><Error><Code>{kind}</Code><Message>no</Message></Error></ErrorResponse>".encode()
        if kind in {"", "nonsense"}:
            answer = b"<html>not here</html>" if kind == "" else b"not here"
        self.send_response(200 if kind in {None, "", "nonsense"} else 400)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_arguments: object) -> None:
        """Nothing: tests print nothing."""


@pytest.fixture
def sts() -> Iterator[Sts]:
    with Sts(seconds=3600) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


# Credentials


def test_29_a_role_is_assumed_with_external_id_and_session_name(
    server: KinesisServer, sts: Sts, tmp_path: Path
) -> None:
    rig = KinesisRig(server, tmp_path)  # type: ignore[arg-type] - the same knobs
    values = rig.put(3)
    role = {"roleArn": ROLE, "roleExternalId": "shop-7", "roleSessionName": "reader-1", "stsEndpoint": sts.url}
    with rig.query(**role) as query:
        rig.drain(query, values)
    asked = sts.asked[0]
    assert (asked["Action"], asked["RoleArn"]) == ("AssumeRole", ROLE)
    assert (asked["ExternalId"], asked["RoleSessionName"]) == ("shop-7", "reader-1")
    keys = {call.access_key for call in server.calls(stream=rig.stream)}
    assert keys <= {f"ASIAROLE{number + 1}" for number in range(len(sts.asked))}


def test_29_the_sink_assumes_the_role_on_the_driver_and_in_its_tasks_and_keys_are_made_anew(
    server: KinesisServer, sts: Sts
) -> None:
    sts.seconds = 60  # within the time in which botocore makes them anew at once
    role = {"roleArn": ROLE, "roleExternalId": "shop-7", "roleSessionName": "writer-1", "stsEndpoint": sts.url}
    given = {"streamName": "orders", "endpointUrl": server.url, "awsAccessKey": "AKIATEST", "awsSecretKey": "secret"}
    schema = StructType([StructField("partitionKey", StringType()), StructField("data", StringType())])
    planned = KinesisDataSource(given | role).batch_writer(schema)
    writer: KinesisBatchWriter = pickle.loads(pickle.dumps(planned))
    rows = pa.RecordBatch.from_pydict({"partitionKey": ["a", "b"], "data": ["1", "2"]})
    for _ in range(3):
        writer.write(iter([rows]))
    assert {(each["ExternalId"], each["RoleSessionName"]) for each in sts.asked} == {("shop-7", "writer-1")}
    keys = [call.access_key for call in server.calls("PutRecords")]
    assert len(set(keys)) == len(keys) == 3
    assert {call.access_key for call in server.calls()} <= {f"ASIAROLE{number + 1}" for number in range(len(sts.asked))}


def test_29_keys_of_a_role_are_made_anew_before_they_expire(server: KinesisServer, sts: Sts) -> None:
    sts.seconds = 60  # within the time in which botocore makes them anew at once
    client = client_of(server, roleArn=ROLE, stsEndpoint=sts.url)
    for _ in range(3):
        client.describe("orders")
    assert len(sts.asked) >= 3
    assert len({call.access_key for call in server.calls("DescribeStreamSummary")}) >= 3


def test_29_keys_come_from_a_profile(server: KinesisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    shared = tmp_path / "credentials"
    shared.write_text("[shop]\naws_access_key_id = AKIAPROFILE\naws_secret_access_key = x\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(shared))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    raw = {"streamName": "orders", "endpointUrl": server.url, "profile": "shop", "region": "us-east-1"}
    KinesisClient(client_options(parse_read_options(raw, {}))).describe("orders")
    assert [call.access_key for call in server.calls()] == ["AKIAPROFILE"]
    missing = KinesisClient(client_options(parse_read_options(raw | {"profile": "nobody"}, {})))
    with pytest.raises(CredentialsError, match=r"KINESIS_CREDENTIALS.*nobody"):
        missing.describe("orders")


def write_keys(shared: Path, key: str) -> None:
    shared.write_text(f"[shop]\naws_access_key_id = {key}\naws_secret_access_key = x\naws_session_token = y\n")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the shared files of AWS, and no other credentials."""
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return tmp_path


def client_without_keys(server: KinesisServer, **options: str) -> KinesisClient:
    raw = {"streamName": "orders", "endpointUrl": server.url, "region": "us-east-1"} | options
    return KinesisClient(client_options(parse_read_options(raw, {})))


@pytest.mark.parametrize("kind", ["ExpiredTokenException", "UnrecognizedClientException"])
def test_29_keys_that_somebody_changes_in_a_shared_file_are_read_again_when_they_are_refused(
    server: KinesisServer, files: Path, kind: str
) -> None:
    client = client_without_keys(server, profile="shop")
    for key in ("AKIAOLD", "AKIANEW"):
        write_keys(files / "credentials", key)
        client.describe("orders")
        if key == "AKIAOLD":
            server.fail("DescribeStreamSummary", kind)
    assert [call.access_key for call in server.calls()] == ["AKIAOLD", "AKIAOLD", "AKIANEW"]
    server.fail("DescribeStreamSummary", kind, 3)
    with pytest.raises(CredentialsError, match="KINESIS_CREDENTIALS"):
        client.describe("orders")  # which asks once more, and no oftener
    assert len(server.calls()) == 5


def test_29_keys_of_the_options_are_not_asked_for_again(server: KinesisServer) -> None:
    server.fail("DescribeStreamSummary", "ExpiredTokenException", 2)
    with pytest.raises(CredentialsError, match="KINESIS_CREDENTIALS"):
        client_of(server).describe("orders")
    assert len(server.calls()) == 1


def test_29_keys_come_from_the_environment(server: KinesisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAENVIRONMENT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    raw = {"streamName": "orders", "endpointUrl": server.url}
    KinesisClient(client_options(parse_read_options(raw, {}))).describe("orders")
    assert [call.access_key for call in server.calls()] == ["AKIAENVIRONMENT"]


# Plain http


def refused_plaintext(client: KinesisClient, operation: str) -> None:
    for ask in (
        lambda: client.describe("orders"),
        lambda: client.subscription("arn:aws:kinesis:us-east-1:123456789012:stream/orders/consumer/c:1", SHARD, TRIM),
    ):
        with pytest.raises(OptionError, match=rf"OPTION_CONFLICT.*{operation}.*plain http to .*allowInsecure=true"):
            ask()


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_KINESIS"])
def test_plain_http_to_another_machine_that_the_environment_asks_for_is_refused(
    variable: str, server: KinesisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"region": "us-east-1", "awsAccessKey": "AKIATEST", "awsSecretKey": "x"}
    raw = {"streamName": "orders", **keys}
    monkeypatch.setenv(variable, "http://kinesis.invalid:4567")
    refused_plaintext(KinesisClient(client_options(parse_read_options(raw, {}))), "(DescribeS|S)")
    allowed = KinesisClient(client_options(parse_read_options({**raw, "allowInsecure": "true"}, {})))
    with pytest.raises(ServiceUnavailableError, match="KINESIS_UNAVAILABLE"):
        allowed.describe("orders")
    monkeypatch.setenv(variable, server.url)
    assert KinesisClient(client_options(parse_read_options(raw, {}))).describe("orders")["StreamName"] == "orders"


def test_plain_http_to_another_machine_that_a_shared_file_asks_for_is_refused(files: Path) -> None:
    (files / "config").write_text("[profile shop]\nregion = us-east-1\nendpoint_url = http://kinesis.invalid\n")
    (files / "credentials").write_text("[shop]\naws_access_key_id = AKIATEST\naws_secret_access_key = x\n")
    raw = {"streamName": "orders", "profile": "shop"}
    refused_plaintext(KinesisClient(client_options(parse_read_options(raw, {}))), "(DescribeS|S)")


def test_role_is_not_assumed_by_plain_http_of_another_machine(
    server: KinesisServer, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", "http://sts.invalid")
    refused_plaintext(client_of(server, roleArn=ROLE), "AssumeRole")
    monkeypatch.setenv("AWS_ROLE_ARN", ROLE)
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(files / "token"))
    (files / "token").write_text("web-token")
    refused_plaintext(client_without_keys(server), "AssumeRoleWithWebIdentity")
    assert server.calls() == []


# Errors of credentials


NO_FILE = {"AWS_ROLE_ARN": ROLE, "AWS_WEB_IDENTITY_TOKEN_FILE": "absent/token"}
WEB = "AssumeRoleWithWebIdentity"
SSO = "sso_start_url = https://a.example\nsso_region = us-east-1\nsso_account_id = 1\nsso_role_name = r"


@pytest.mark.parametrize(
    ("profile", "environ", "said"),
    [
        pytest.param(f"role_arn = {ROLE}\nsource_profile = gone", {}, "InvalidConfigError", id="no-source"),
        pytest.param(f"role_arn = {ROLE}\ncredential_source = Moon", {}, "InvalidConfigError", id="odd-source"),
        pytest.param(SSO, {}, "SSOTokenLoadError.*Log in again", id="not-logged-in"),
        pytest.param("credential_process = /absent/program", {}, "FileNotFoundError", id="no-program"),
        pytest.param("credential_process = echo nonsense", {}, "JSONDecodeError", id="nonsense"),
        pytest.param(
            'credential_process = echo {"Version":1,"AccessKeyId":"A","SecretAccessKey":"secret-1","SessionToken":"c",'
            '"Expiration":"2020-01-01T00:00:00Z"}',
            {},
            "JSONDecodeError|RuntimeError.*expired",
            id="expired",
        ),
        pytest.param(None, NO_FILE, "FileNotFoundError.*token", id="no-token-file"),
        pytest.param(None, {"AWS_WEB_IDENTITY_TOKEN_FILE": "x"}, "InvalidConfigError", id="no-role"),
        pytest.param(None, {"AWS_PROFILE": "nobody"}, "ProfileNotFound", id="unknown-profile"),
        pytest.param(None, {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://a.example/"}, "ValueError", id="container"),
    ],
)
def test_29_credentials_that_cannot_be_had_are_an_error_by_name(
    server: KinesisServer,
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
    profile: str | None,
    environ: dict[str, str],
    said: str,
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    named = {"profile": "shop"} if profile else {}
    (files / "config").write_text(f"[profile shop]\n{profile}\n" if profile else "")
    for ask in (lambda made: made.describe("orders"), lambda made: made.credentials()):
        with pytest.raises(CredentialsError, match=rf"(?s)KINESIS_CREDENTIALS.*({said})") as caught:
            ask(client_without_keys(server, **named))
        assert not caught.value.transient
        assert "secret-1" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "error", "code"),
    [
        ("AccessDenied", AccessDeniedError, "KINESIS_ACCESS_DENIED"),
        ("ExpiredToken", CredentialsError, "KINESIS_CREDENTIALS"),
        ("RegionDisabledException", CredentialsError, "KINESIS_CREDENTIALS"),
        ("ValidationError", ConnectorError, "KINESIS_INVALID_ARGUMENT"),
        ("Throttling", ServiceUnavailableError, "KINESIS_THROTTLED"),
        ("", CredentialsError, "KINESIS_CREDENTIALS"),
        ("nonsense", ServiceUnavailableError, "KINESIS_UNAVAILABLE"),
    ],
)
def test_29_a_role_that_cannot_be_assumed_is_an_error_by_name(
    server: KinesisServer,
    sts: Sts,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    error: type[ConnectorError],
    code: str,
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")  # of botocore, which waits between
    sts.refuses = kind
    client = client_of(server, roleArn=ROLE, stsEndpoint=sts.url)
    for ask in (lambda: client.describe("orders"), client.credentials):
        with pytest.raises(error) as caught:
            ask()
        assert caught.value.code == code
    if code in {"KINESIS_ACCESS_DENIED", "KINESIS_THROTTLED"}:
        assert caught.value.where == ROLE
        assert "kinesis:" not in caught.value.action
        assert "minFetchPeriod" not in caught.value.action
    assert server.calls() == []


def test_29_a_web_identity_that_is_refused_is_reported_as_that(
    server: KinesisServer, sts: Sts, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (files / "token").write_text("a token of the cluster")
    for name, value in {**NO_FILE, "AWS_WEB_IDENTITY_TOKEN_FILE": str(files / "token")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.url)
    sts.refuses = "AccessDenied"
    with pytest.raises(AccessDeniedError, match=f"{WEB} was answered AccessDenied.*sts:{WEB}"):
        client_without_keys(server).describe("orders")


@pytest.mark.parametrize("option", ["awsAccessKey", "awsSecretKey", "awsSessionToken"])
@pytest.mark.parametrize("key", ["canary\n7", "canary 7", "canary-\u20ac7"])
def test_29_a_key_that_no_request_can_hold_is_refused_and_not_shown(option: str, key: str) -> None:
    given = {"awsAccessKey": "AKIATEST", "awsSecretKey": "x", option: key}
    with pytest.raises(OptionError, match=f"OPTION_ILLEGAL.*{option}") as caught:
        parse_read_options({"streamName": "orders", **given}, {})
    assert "canary" not in str(caught.value)


def test_29_keys_of_a_file_that_no_request_can_hold_are_not_shown(server: KinesisServer, files: Path) -> None:
    write_keys(files / "credentials", "AKIAOLD")
    with (files / "credentials").open("a") as file:
        file.write("  canary-7\n")  # a line that goes on
    with pytest.raises(ConnectorError) as caught:
        client_without_keys(server, profile="shop").describe("orders")
    assert "canary" not in str(caught.value)


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
