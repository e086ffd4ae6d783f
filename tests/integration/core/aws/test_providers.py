"""Credentials of AWS from a user's code: their shapes, when it is asked, where it runs, and what never shows."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from connectors.core.errors import ConnectorError, CredentialsError, OptionError, ServiceUnavailableError
from connectors.kinesis.client.client import KinesisClient
from connectors.kinesis.datasource import KinesisBatchWriter, KinesisDataSource
from connectors.kinesis.options.client import client_options
from connectors.kinesis.options.sink import parse_write_options
from connectors.kinesis.options.source import parse_read_options
from connectors.registry.glue.options import parse_schema_registry
from connectors.testing.kinesis import KinesisServer
from tests.support import providers
from tests.support.kinesis_rig import KinesisRig
from tests.support.providers import CANARY, calls
from tests.support.spark_protocol.driver import descendants
from tests.support.waiting import wait_for

MODULE = "tests.support.providers"


@pytest.fixture
def server() -> Iterator[KinesisServer]:
    with KinesisServer() as made:
        made.create_stream("orders")
        yield made


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "calls"


def client_of(server: KinesisServer, provider: str, **options: str) -> KinesisClient:
    raw = {"streamName": "orders", "endpointUrl": server.url, "credentialProvider": f"{MODULE}:{provider}"} | options
    return KinesisClient(client_options(parse_read_options(raw, {})))


@pytest.mark.parametrize(
    "provider",
    [
        "botocore_dict",
        "obstore_dict",
        "sts_response",
        "without_expiry",
        "boto_credentials",
        "boto_refreshable",
        "boto_session",
        "BotocoreClass",
        "BotocoreClass.Inner",
        "NO_FUNCTION",
    ],
)
def test_a_provider_may_return_keys_in_each_shape_of_boto_and_obstore(server: KinesisServer, provider: str) -> None:
    client_of(server, provider).describe("orders")
    assert [call.access_key for call in server.calls()] == ["ASIAPROVIDED1"]


@pytest.mark.parametrize("provider", ["botocore_dict", "obstore_dict", "BotocoreClass", "boto_refreshable"])
def test_keys_are_asked_for_again_before_they_expire_and_not_before_that(
    server: KinesisServer, log: Path, provider: str
) -> None:
    fresh = client_of(server, f"{provider}?log={log}")
    for _ in range(3):
        fresh.describe("orders")
    assert len(calls(log)) == 1
    near = client_of(server, f"{provider}?log={log}&seconds=60")  # botocore's limit is ten minutes
    for _ in range(3):
        near.describe("orders")
    used = [call.access_key for call in server.calls()][3:]
    assert len(set(used)) == 3


def test_a_class_is_made_once_in_a_process(server: KinesisServer, log: Path) -> None:
    before = providers.BotocoreClass.made
    for _ in range(3):
        client_of(server, f"BotocoreClass?log={log}&seconds=61").describe("orders")
    assert providers.BotocoreClass.made == before + 1


@pytest.mark.parametrize("provider", ["without_expiry", "boto_credentials", "botocore_dict"])
def test_refused_keys_are_asked_for_again(server: KinesisServer, log: Path, provider: str) -> None:
    client = client_of(server, f"{provider}?log={log}")
    client.describe("orders")
    server.fail("DescribeStreamSummary", "ExpiredTokenException")
    client.describe("orders")
    assert [call.access_key for call in server.calls()] == ["ASIAPROVIDED1", "ASIAPROVIDED1", "ASIAPROVIDED2"]


# Where it runs


def test_a_pickled_writer_has_the_path_alone_and_its_tasks_call_the_provider(server: KinesisServer, log: Path) -> None:
    path = f"{MODULE}:botocore_dict?log={log}"
    given = {"streamName": "orders", "endpointUrl": server.url, "credentialProvider": path}
    schema = StructType([StructField("partitionKey", StringType()), StructField("data", StringType())])
    planned = KinesisDataSource(given).batch_writer(schema)
    pickled = pickle.dumps(planned)
    assert CANARY.encode() not in pickled
    assert path.encode() in pickled
    before = len(calls(log))
    writer: KinesisBatchWriter = pickle.loads(pickled)
    writer.write(iter([pa.RecordBatch.from_pydict({"partitionKey": ["a"], "data": ["1"]})]))
    assert len(calls(log)) > before
    assert {call.access_key[:12] for call in server.calls("PutRecords")} == {"ASIAPROVIDED"}


@pytest.mark.parametrize("mode", ["polling", "efo"])
def test_no_secret_of_a_provider_is_in_plans_offsets_spool_processes_or_logs(
    server: KinesisServer,
    tmp_path: Path,
    log: Path,
    mode: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.INFO)
    rig = KinesisRig(server, tmp_path)  # type: ignore[arg-type] - the same knobs
    values = rig.put(20)
    options = {"credentialProvider": f"{MODULE}:botocore_dict?log={log}"}
    if mode == "efo":
        options |= {"consumerMode": "efo", "consumerName": "c", "spoolLocation": str(tmp_path / "spool")}
    source = KinesisDataSource(rig.options(**options))
    reader = source.streamReader(source.schema())
    shown = [repr(reader).encode(), repr(vars(source)).encode(), pickle.dumps(source), pickle.dumps(reader)]
    with rig.query(**options) as query:
        rig.drain(query, values)
        fetchers = {*map(str, descendants(query.reader.pid))}
        if mode == "efo":
            wait_for(lambda: {*calls(log)} & fetchers)
        for pid in {*calls(log)} - {str(os.getpid())}:
            shown += [Path(f"/proc/{pid}/cmdline").read_bytes(), Path(f"/proc/{pid}/environ").read_bytes()]
    shown += [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    shown += [text.encode() for text in (caplog.text, *capfd.readouterr())]
    assert {call.access_key[:12] for call in server.calls(stream=rig.stream)} == {"ASIAPROVIDED"}
    assert [text for text in shown if CANARY.encode() in text] == []


def test_a_fetcher_imports_a_provider_that_lies_beside_the_job_in_the_present_folder(
    server: KinesisServer, tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys_beside_the_job.py").write_text("from tests.support.providers import without_expiry as keys\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    rig = KinesisRig(server, tmp_path)  # type: ignore[arg-type] - the same knobs
    values = rig.put(5)
    options = {"consumerMode": "efo", "consumerName": "c", "spoolLocation": str(tmp_path / "spool")}
    with rig.query(credentialProvider=f"keys_beside_the_job:keys?log={log}", **options) as query:
        rig.drain(query, values)
        wait_for(lambda: {*calls(log)} & {*map(str, descendants(query.reader.pid))})


# Failures


@pytest.mark.parametrize(
    ("provider", "transient"),
    [
        ("failing", True),
        ("failing?kind=TimeoutError", True),
        ("failing?kind=PermissionError", False),
        ("failing?kind=KeyError", False),
        ("failing?kind=TypeError", False),
        ("failing?nothing=1", False),
        ("NotMade", True),
    ],
)
def test_a_provider_that_fails_is_named_with_the_place_and_without_its_text(
    server: KinesisServer, provider: str, transient: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConnectorError) as caught:
        client_of(server, provider, numRetries="0").describe("orders")
    error = caught.value
    assert (error.code, error.transient) == ("CREDENTIAL_PROVIDER_FAILED", transient)
    assert isinstance(error, ServiceUnavailableError if transient else CredentialsError)
    assert f"credentialProvider={MODULE}:{provider.partition('?')[0]}" in str(error)
    assert CANARY not in f"{error!r} {error} {pickle.dumps(error)!r} {caplog.text}"
    if "nothing" not in provider:
        assert "providers.py:" in str(error)


def test_a_refresh_that_fails_early_is_logged_without_its_text_and_the_old_keys_are_used(
    server: KinesisServer, log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client_of(server, f"failing?log={log}&good=1", numRetries="0").describe("orders")
    assert "CREDENTIAL_PROVIDER_FAILED" in caplog.text
    assert CANARY not in caplog.text
    assert [call.access_key for call in server.calls()] == ["ASIAPROVIDED1"]


@pytest.mark.parametrize("provider", ["nothing", "only_text", "no_secret_key", "bad_expiry", "line_break"])
def test_a_result_that_is_no_credentials_is_refused_with_the_shapes(server: KinesisServer, provider: str) -> None:
    with pytest.raises(OptionError, match=r"^\[CREDENTIAL_PROVIDER\] ") as caught:
        client_of(server, provider).describe("orders")
    assert "access_key, secret_key, token and expiry_time" in str(caught.value)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("no.such.module:Keys", "ModuleNotFoundError (no)"),
        (f"{MODULE}:Nothing", "the module has no Nothing"),
        (f"{MODULE}:BotocoreClass.Nothing", "the module has no BotocoreClass.Nothing"),
        ("tests.support.provider_that_breaks:keys", "RuntimeError at provider_that_breaks.py:"),
    ],
)
def test_code_that_cannot_be_imported_is_named(server: KinesisServer, path: str, why: str) -> None:
    raw = {"streamName": "orders", "endpointUrl": server.url, "credentialProvider": path}
    with pytest.raises(OptionError, match=r"^\[CREDENTIAL_PROVIDER\] ") as caught:
        KinesisClient(client_options(parse_read_options(raw, {}))).describe("orders")
    assert path in str(caught.value)
    assert why in str(caught.value)
    assert CANARY not in str(caught.value)


# Options


@pytest.mark.parametrize(
    "path", ["keys", "shop:", ":keys", "shop:keys?", "shop:keys?role", "shop:keys?a=1?b=2", "shop keys:a", ""]
)
def test_a_path_that_names_nothing_is_refused(path: str) -> None:
    with pytest.raises(OptionError, match=r"OPTION_ILLEGAL.*credentialProvider.*module:Class"):
        parse_read_options({"streamName": "orders", "credentialProvider": path}, {})


@pytest.mark.parametrize("name", ["secret", "clientSecret", "password", "api_token", "apiKey"])
@pytest.mark.parametrize("before", ["", "role=a&"])
def test_an_argument_named_like_a_secret_is_refused_and_not_shown(name: str, before: str) -> None:
    path = f"shop:keys?{before}{name}={CANARY}"
    with pytest.raises(OptionError, match=r"OPTION_ILLEGAL.*credentialProvider.*named like a secret") as caught:
        parse_read_options({"streamName": "orders", "credentialProvider": path}, {})
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize("other", [{"awsAccessKey": "AKIA", "awsSecretKey": "x"}, {"profile": "shop"}])
def test_other_credentials_beside_a_provider_conflict(other: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=r"OPTION_CONFLICT.*credentialProvider"):
        parse_read_options({"streamName": "orders", "credentialProvider": "shop:keys"} | other, {})
    with pytest.raises(OptionError, match=r"OPTION_CONFLICT.*credentialProvider"):
        parse_schema_registry({"type": "glue", "credentialProvider": "shop:keys"} | other)


@pytest.mark.parametrize("name", ["kinesis.credentialProviderClass", "credentialProviderClass", "serviceCredential"])
def test_what_other_products_call_a_provider_is_refused_with_our_option_and_its_form(name: str) -> None:
    for parse in (lambda raw: parse_read_options(raw, {}), lambda raw: parse_write_options(raw, {})):
        with pytest.raises(OptionError, match=r"OPTION_UNKNOWN.*Use credentialProvider instead\. Give module:Class"):
            parse({"streamName": "orders", name: "com.shop.Keys"})
    with pytest.raises(OptionError, match=r"OPTION_UNKNOWN.*Use credentialProvider instead\. Give module:Class"):
        parse_schema_registry({"type": "glue", name: "com.shop.Keys"})
