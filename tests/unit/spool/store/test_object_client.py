"""Clients of object stores: credentials, addresses and emulators of each cloud."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
from obstore.exceptions import GenericError

from connectors.core.errors import ConnectorError, CredentialsError
from connectors.core.options.kinds import Secret
from connectors.spool.store import object_client, open_store
from connectors.spool.store.base import ObjectUrl, StoreAccess
from connectors.spool.store.object_store import ObjectStore
from connectors.testing.object_store import ObjectStoreServer
from tests.support.object_stores import ROOT, refused, store_of
from tests.support.spool_writing import KEY_ID, SECRET, access_to

ONCE = {"max_retries": 0}


@pytest.fixture
def server() -> Iterator[ObjectStoreServer]:
    with ObjectStoreServer() as running:
        yield running


@pytest.fixture
def store(server: ObjectStoreServer) -> ObjectStore:
    return store_of(server)


@pytest.fixture
def nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials in the environment."""
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("nothing_given")
def test_where_no_credentials_are_given_and_the_machine_has_none_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with ObjectStoreServer() as server, ObjectStoreServer(buckets=["no-role"]) as machine:
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", machine.endpoint)
        store = ObjectStore(ROOT, "ab", StoreAccess(server.endpoint, "eu-west-1", None, None, None, None), ONCE)
        error = refused(store)
        assert server.counts.total() == 0
    assert (error.code, error.transient) == ("SPOOL_CREDENTIALS_MISSING", False)
    assert "spoolKeyId and spoolSecret" in error.action


@pytest.mark.usefixtures("nothing_given")
def test_a_machine_that_cannot_tell_its_credentials_now_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its metadata service is asked too often, or it is asked for newer ones while a query runs."""
    with ObjectStoreServer() as server, ObjectStoreServer() as machine:
        machine.refuse("PUT", 503, "SlowDown")
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", machine.endpoint)
        store = ObjectStore(ROOT, "ab", StoreAccess(server.endpoint, "eu-west-1", None, None, None, None), ONCE)
        assert refused(store).code == "SPOOL_STORE_NO_ANSWER"


def test_a_machine_that_had_credentials_is_not_said_to_have_none(store: ObjectStore) -> None:
    store.make_root()
    asked = GenericError(
        "Error performing PUT http://169.254.169.254/latest/api/token in 2ms - Server returned non-2xx status code: 403"
    )
    with pytest.raises(OSError, match="does not answer"):
        store.client._failed(asked, "x")


@pytest.mark.parametrize(
    ("kind", "said", "advice"),
    [
        ("gs", "http://169.254.169.254/computeMetadata/v1/instance/service-accounts/default/token", "CREDENTIALS"),
        ("az", "http://169.254.169.254/metadata/identity/oauth2/token?api-version=2019-08-01", "spoolKeyId"),
    ],
)
def test_the_credentials_of_each_cloud_are_named(kind: str, said: str, advice: str) -> None:
    """By what obstore was seen to say where there are none."""
    client = object_client.ObjectClient(ObjectUrl(kind, "spools", "a", "account"), StoreAccess())
    error = GenericError(f"Error performing token request: Error performing GET {said} in 2ms")
    with pytest.raises(CredentialsError, match="SPOOL_CREDENTIALS_MISSING") as caught:
        client._failed(error, "x")
    assert advice in caught.value.action


def test_access_keeps_its_secrets_to_itself_and_travels_by_pipe() -> None:
    access = StoreAccess("https://store.example", "eu", KEY_ID, None, None, None)
    assert KEY_ID not in repr(access)
    with ObjectStoreServer() as server:
        access = access_to(server)
    assert SECRET not in repr(access)
    assert StoreAccess.from_json(access.to_json()) == access


@pytest.mark.parametrize(
    ("root", "access"),
    [
        ("az://data/x", StoreAccess(key_id="account", secret=Secret("a2V5"))),
        ("abfss://data@account.dfs.core.windows.net/x", StoreAccess(secret=Secret("a2V5"))),
    ],
)
def test_an_azure_container_is_reached_by_either_url(root: str, access: StoreAccess) -> None:
    store = open_store(root, "ab", access)
    assert isinstance(store, ObjectStore)
    assert "account" in str(store.client._bucket)


@pytest.mark.parametrize(
    ("root", "access"),
    [
        ("gs://bucket/x", StoreAccess(credentials_file="/nowhere/key.json")),
        ("az://data/x", StoreAccess(key_id="account", secret=Secret("s3cr3t, and no base64"))),
    ],
)
def test_access_that_a_cloud_does_not_take_is_named_and_not_shown(root: str, access: StoreAccess) -> None:
    store = open_store(root, "ab", access)
    assert isinstance(store, ObjectStore)
    error = refused(store)
    assert error.code == "SPOOL_STORE_MISCONFIGURED"
    assert "s3cr3t" not in str(error)


def test_an_endpoint_on_this_machine_may_have_a_path_as_those_of_azurite_have(server: ObjectStoreServer) -> None:
    access = replace(access_to(server), endpoint=f"{server.endpoint}/devstoreaccount1", secret=Secret("c2VjcmV0"))
    open_store("az://spools/a", "ab", access).create("ids/a", b"first")
    assert server.objects == {"devstoreaccount1/spools/a/ids/a": b"first"}


@pytest.mark.parametrize(
    ("root", "variable", "path", "access"),
    [
        ("gs://spools/a", "STORAGE_EMULATOR_HOST", "", StoreAccess()),
        ("az://spools/a", "AZURE_STORAGE_ENDPOINT", "/account", StoreAccess(key_id="account", secret=Secret("a2V5"))),
        ("s3://spools/a", "AWS_ENDPOINT_URL", "", StoreAccess(region="r", key_id=KEY_ID, secret=Secret(SECRET))),
    ],
)
def test_an_emulator_is_found_by_the_variable_of_its_cloud(
    server: ObjectStoreServer,
    monkeypatch: pytest.MonkeyPatch,
    root: str,
    variable: str,
    path: str,
    access: StoreAccess,
) -> None:
    monkeypatch.setenv(variable, server.endpoint + path)
    server.objects[f"{path[1:]}/spools/a/ids/a".lstrip("/")] = b"there"
    assert open_store(root, "ab", access).read("ids/a") == b"there"


@pytest.mark.parametrize("scheme", ["", "http://"])
def test_an_emulator_of_gcs_is_asked_without_credentials(
    server: ObjectStoreServer, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """By the option, and by the variable, which Google's clients take without a scheme too."""
    asked: list[str] = []
    server.interrupt = lambda request: asked.append(request.authorization)
    server.objects["spools/a/ids/a"] = b"there"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"{scheme}{server.address}")
    assert open_store("gs://spools/a", "ab").read("ids/a") == b"there"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:1")
    assert open_store("gs://spools/a", "ab", StoreAccess(server.endpoint)).read("ids/a") == b"there"
    assert asked == ["", ""]


def test_plain_http_to_another_machine_is_refused_with_what_allows_it(
    server: ObjectStoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP", raising=False)
    with pytest.raises(ConnectorError, match="plain http") as caught:
        open_store(ROOT, "ab", replace(access_to(server), endpoint="http://minio.shop.test:9000")).make_root()
    assert caught.value.code == "SPOOL_STORE_MISCONFIGURED"
    assert "AWS_ALLOW_HTTP=true" in str(caught.value)
