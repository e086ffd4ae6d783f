"""Credentials of AWS, in each way that the Kinesis source may have them; our own servers, also for tokens."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
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
)
from connectors.kinesis.client.client import KinesisClient
from connectors.kinesis.datasource import KinesisBatchWriter, KinesisDataSource
from connectors.kinesis.offsets import TRIM
from connectors.kinesis.options.client import client_options
from connectors.kinesis.options.source import parse_read_options
from connectors.testing.kinesis import KinesisServer
from tests.support.kinesis_rig import KinesisRig

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
        pytest.param(SSO, {}, "SSOTokenLoadError.*Run aws sso login again", id="not-logged-in"),
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
    with pytest.raises(AccessDeniedError, match=f"{WEB} failed with AccessDenied.*sts:{WEB}"):
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


@pytest.mark.usefixtures("files")
def test_29_a_role_is_assumed_by_the_keys_of_a_provider(server: KinesisServer, sts: Sts) -> None:
    role = {"roleArn": ROLE, "stsEndpoint": sts.url, "numRetries": "0"}
    provider = "tests.support.providers:"
    client_without_keys(server, credentialProvider=f"{provider}botocore_dict", **role).describe("orders")
    assert [call.access_key for call in server.calls()] == ["ASIAROLE1"]
    with pytest.raises(ServiceUnavailableError, match="CREDENTIAL_PROVIDER_FAILED"):
        client_without_keys(server, credentialProvider=f"{provider}failing", **role).describe("orders")
    assert len(sts.asked) == 1
