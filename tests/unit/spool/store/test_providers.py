"""Credentials of object stores from a user's code: the shapes of each cloud, refresh, failures, secrets."""

from __future__ import annotations

import json
import logging
import pickle
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.core.errors import ConnectorError, CredentialsError, OptionError
from connectors.pubsub.options.source import parse_read_options
from connectors.spool.store import open_store
from connectors.spool.store.base import StoreAccess
from connectors.spool.store.object_store import ObjectStore
from connectors.testing.object_store import ObjectStoreServer
from tests.support.providers import CANARY, calls

MODULE = "tests.support.providers"
PATHS = {"s3": "", "gs": "", "az": "/account"}


@pytest.fixture
def server() -> Iterator[ObjectStoreServer]:
    with ObjectStoreServer() as running:
        yield running


@pytest.fixture
def asked(server: ObjectStoreServer) -> list[str]:
    """How each request authenticates."""
    authorizations: list[str] = []
    server.interrupt = lambda request: authorizations.append(request.authorization)
    return authorizations


def store_of(server: ObjectStoreServer, provider: str, kind: str = "s3") -> ObjectStore:
    access = StoreAccess(
        server.endpoint + PATHS[kind],
        "eu-west-1" if kind == "s3" else None,
        "account" if kind == "az" else None,
        credential_provider=f"{MODULE}:{provider}",
    )
    opened = open_store(f"{kind}://spools/a", "ab", access)
    assert isinstance(opened, ObjectStore)
    return opened


@pytest.mark.parametrize(
    ("kind", "provider", "authorization"),
    [
        *(
            ("s3", name, "AWS4-HMAC-SHA256 Credential=ASIAPROVIDED1/")
            for name in ("obstore_dict", "botocore_dict", "sts_response", "boto_refreshable", "boto_session")
        ),
        ("s3", "BotocoreClass", "AWS4-HMAC-SHA256 Credential=ASIAPROVIDED1/"),
        ("s3", "without_expiry", "AWS4-HMAC-SHA256 Credential=ASIAPROVIDED1/"),
        ("gs", "token_dict", f"Bearer {CANARY}-1"),
        ("gs", "google_credentials", f"Bearer {CANARY}-1"),
        ("az", "token_dict", f"Bearer {CANARY}-1"),
        ("az", "AzureCredential", f"Bearer {CANARY}-azure"),
        ("az", "account_key", "SharedKey account:"),
    ],
)
def test_each_cloud_takes_its_shapes(
    server: ObjectStoreServer, asked: list[str], kind: str, provider: str, authorization: str
) -> None:
    store = store_of(server, provider, kind)
    store.create("ids/a", b"first")
    assert bytes(store.read("ids/a")) == b"first"
    assert [text[: len(authorization)] for text in asked] == [authorization] * len(asked)
    assert asked


def test_a_shared_access_signature_is_in_the_query_and_not_in_the_error(server: ObjectStoreServer) -> None:
    """The server does not know it, and says so."""
    queries: list[str] = []
    server.interrupt = lambda request: queries.append(request.query)
    with pytest.raises(TimeoutError) as caught:
        store_of(server, "sas_token", "az").create("ids/a", b"first")
    assert f"sig={CANARY}" in queries[0]
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(("kind", "provider"), [("s3", "obstore_dict"), ("s3", "botocore_dict"), ("gs", "token_dict")])
def test_credentials_are_asked_for_once_and_again_before_they_expire(
    server: ObjectStoreServer, asked: list[str], tmp_path: Path, kind: str, provider: str
) -> None:
    log = tmp_path / "calls"
    fresh = store_of(server, f"{provider}?log={log}", kind)
    for number in range(3):
        fresh.create(f"ids/{number}", b"x")
    assert len(calls(log)) == 1
    near = store_of(server, f"{provider}?log={log}&seconds=60", kind)
    before = len(asked)
    for number in range(3, 6):
        time.sleep(0.15)  # obstore asks at most every tenth of a second
        near.create(f"ids/{number}", b"x")
    assert len({*asked[before:]}) == 3
    assert len(calls(log)) >= 4


@pytest.mark.parametrize("kind", ["s3", "gs", "az"])
@pytest.mark.parametrize("failure", ["failing", "failing?kind=TimeoutError"])
def test_a_provider_that_may_pass_is_a_store_that_does_not_answer(
    server: ObjectStoreServer, kind: str, failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(TimeoutError) as caught:
        store_of(server, failure, kind).create("ids/a", b"x")
    assert "[CREDENTIAL_PROVIDER_FAILED] The credential provider failed: " in str(caught.value)
    assert f"spoolCredentialProvider={MODULE}:failing" in str(caught.value)
    assert CANARY not in f"{caught.value!r} {caught.value} {caplog.text}"
    assert server.counts.total() == 0


@pytest.mark.parametrize("kind", ["s3", "gs", "az"])
@pytest.mark.parametrize(
    ("provider", "code"),
    [
        ("failing?kind=TypeError", "CREDENTIAL_PROVIDER_FAILED"),
        ("nothing", "CREDENTIAL_PROVIDER"),
        ("only_text", "CREDENTIAL_PROVIDER"),
        ("no_secret_key", "CREDENTIAL_PROVIDER"),
        ("bad_expiry", "CREDENTIAL_PROVIDER"),
        ("missing", "CREDENTIAL_PROVIDER"),
    ],
)
def test_a_provider_that_is_wrong_is_an_error_of_its_own(
    server: ObjectStoreServer, kind: str, provider: str, code: str
) -> None:
    with pytest.raises(ConnectorError) as caught:
        store_of(server, provider, kind).make_root()
    assert (caught.value.code, caught.value.transient) == (code, False)
    assert isinstance(caught.value, CredentialsError | OptionError)
    assert CANARY not in f"{caught.value!r} {caught.value} {pickle.dumps(caught.value)!r}"


def test_a_provider_that_recovers_is_asked_again(server: ObjectStoreServer, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    store = store_of(server, f"recovering?log={log}")
    with pytest.raises(TimeoutError):
        store.create("ids/a", b"x")
    assert store.create("ids/a", b"x")
    server.refuse("PUT", 403, "AccessDenied")
    with pytest.raises(ConnectorError, match="SPOOL_ACCESS_DENIED"):
        store.create("ids/b", b"x")


def test_the_path_alone_travels(server: ObjectStoreServer) -> None:
    access = StoreAccess(server.endpoint, credential_provider=f"{MODULE}:obstore_dict")
    open_store("s3://spools/a", "ab", StoreAccess(**{**access.to_json(), "region": "r"})).create("ids/a", b"x")
    sent = json.dumps(access.to_json())
    assert StoreAccess.from_json(json.loads(sent)) == access == pickle.loads(pickle.dumps(access))
    assert CANARY not in f"{sent} {access!r} {pickle.dumps(access)!r}"


def parse(**options: str) -> StoreAccess:
    raw = {"subscriptionId": "projects/p/subscriptions/s", "spoolLocation": "s3://spools/a"} | options
    return parse_read_options(raw, {}).store_access


def test_the_option_is_for_object_stores_and_conflicts_with_other_secrets() -> None:
    assert parse(spoolCredentialProvider="shop:keys").credential_provider == "shop:keys"
    for other in (
        {"spoolLocation": "/spool"},
        {"spoolKeyId": "a", "spoolSecret": "b"},
        {"spoolSessionToken": "t"},
        {"spoolLocation": "gs://spools/a", "spoolCredentialsFile": "/key.json"},
    ):
        with pytest.raises(OptionError, match=r"OPTION_CONFLICT.*spoolCredentialProvider"):
            parse(spoolCredentialProvider="shop:keys", **other)
