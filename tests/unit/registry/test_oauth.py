"""OAuth for a registry as Confluent Cloud has it: tokens, headers, refresh, refusals, and secrets that show nowhere."""

from __future__ import annotations

import json
import logging
import pickle
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.core.errors import (
    AccessDeniedError,
    ConnectorError,
    CredentialsError,
    OptionError,
    ServiceUnavailableError,
)
from connectors.protobuf.confluent.registry import ProtobufRegistry, protobuf_registry
from connectors.registry.options import RegistryOptions, parse_registry_options
from connectors.testing.schema_registry import SchemaRegistryServer
from tests.servers.certificates import make_certificates
from tests.support.hostile_answers import BASIC
from tests.support.protobuf_rig import compiled

SECRET = "canary-secret/+:9"
CLOUD = {"target-sr-cluster": "lsrc-1", "Confluent-Identity-Pool-Id": "pool-1,pool-2"}


@pytest.fixture
def server() -> Iterator[SchemaRegistryServer]:
    with SchemaRegistryServer() as running:
        running.register("basic", compiled(BASIC), "main.proto")
        running.clients = {"reader": SECRET}
        yield running


def login(token_url: str, **changes: str) -> dict[str, str]:
    """As Confluent's clients have it, with their names."""
    return {
        "bearer.auth.credentials.source": "OAUTHBEARER",
        "bearer.auth.client.id": "reader",
        "bearer.auth.client.secret": SECRET,
        "bearer.auth.scope": "schema:read schema:write",
        "bearer.auth.issuer.endpoint.url": token_url,
        "bearer.auth.logical.cluster": "lsrc-1",
        "bearer.auth.identity.pool.id": "pool-1,pool-2",
        **changes,
    }


def options(server: SchemaRegistryServer, **changes: str) -> RegistryOptions:
    raw = {"address": server.address, "retry.timeout": "0", **login(server.token_url, **changes)}
    return parse_registry_options({name: text for name, text in raw.items() if text})


def registry(server: SchemaRegistryServer, **changes: str) -> ProtobufRegistry:
    return protobuf_registry(options(server, **changes))


def failure(server: SchemaRegistryServer, **changes: str) -> ConnectorError:
    with pytest.raises(ConnectorError) as caught:
        registry(server, **changes).latest("basic")
    assert "canary" not in f"{caught.value!r} {caught.value}"
    return caught.value


def test_a_client_gets_one_token_and_sends_it_with_cluster_and_pool(server: SchemaRegistryServer) -> None:
    server.required_headers = dict(CLOUD)
    found = registry(server)
    for _ in range(3):
        found.latest("basic")
    assert server.token_forms == [{"grant_type": "client_credentials", "scope": "schema:read schema:write"}]
    assert server.authorizations == [f"Bearer {next(iter(server.tokens))}"] * len(server.authorizations)
    assert server.authorizations


def test_the_short_form_needs_no_source_no_scope_no_cluster_and_no_pool(server: SchemaRegistryServer) -> None:
    names = ("credentials.source", "scope", "logical.cluster", "identity.pool.id")
    registry(server, **{f"bearer.auth.{name}": "" for name in names}).latest("basic")
    assert server.token_forms == [{"grant_type": "client_credentials"}]
    assert not {"target-sr-cluster", "confluent-identity-pool-id"} & set(server.headers[0])


def test_the_long_names_of_databricks_do_the_same(server: SchemaRegistryServer) -> None:
    server.required_headers = dict(CLOUD)
    long = {f"confluent.schema.registry.{name}": text for name, text in login(server.token_url).items()}
    protobuf_registry(parse_registry_options({"address": server.address, **long})).latest("basic")


@pytest.mark.parametrize("missing", CLOUD)
def test_a_registry_that_misses_cluster_or_pool_refuses(server: SchemaRegistryServer, missing: str) -> None:
    server.required_headers = dict(CLOUD)
    name = {"target-sr-cluster": "logical.cluster", "Confluent-Identity-Pool-Id": "identity.pool.id"}[missing]
    error = failure(server, **{f"bearer.auth.{name}": ""})
    assert isinstance(error, AccessDeniedError)
    assert "identity pool" in error.action


def test_a_fixed_token_may_have_cluster_and_pool_too(server: SchemaRegistryServer) -> None:
    server.required_headers, server.clients, server.credentials = dict(CLOUD), {}, "Bearer canary-token"
    cloud = {"bearer.auth.logical.cluster": "lsrc-1", "bearer.auth.identity.pool.id": "pool-1,pool-2"}
    for source in ({}, {"bearer.auth.credentials.source": "STATIC_TOKEN"}):
        raw = {"address": server.address, "bearer.auth.token": "canary-token", **cloud, **source}
        protobuf_registry(parse_registry_options(raw)).latest("basic")


def test_a_token_is_renewed_before_it_expires(server: SchemaRegistryServer) -> None:
    server.token_seconds = 1.0
    found = registry(server)
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        found.latest("basic")
        time.sleep(0.05)
    assert 3 <= len(server.tokens) <= 4  # each lives for 0.8 s of its second
    assert len(server.headers) == len(server.authorizations)


def test_a_token_that_is_refused_early_is_replaced_once(server: SchemaRegistryServer) -> None:
    found = registry(server)
    found.latest("basic")
    server.tokens.clear()
    found.latest("basic")
    assert len(server.token_forms) == 2
    server.required_headers = {"never": "sent"}
    with pytest.raises(AccessDeniedError, match="SCHEMA_REGISTRY_ACCESS_DENIED"):
        found.latest("basic")
    assert len(server.token_forms) == 3


def test_a_token_is_used_to_its_end_if_there_is_no_newer_one(server: SchemaRegistryServer) -> None:
    server.token_seconds = 4.0
    found = registry(server)
    found.latest("basic")
    server.respond("/token", 503)
    while len(server.token_forms) == 1:  # until a newer one is asked for, in the last fifth of its life
        time.sleep(0.05)
        found.latest("basic")
    time.sleep(0.2 * server.token_seconds)
    with pytest.raises(ServiceUnavailableError, match=r"token endpoint responds with HTTP 503.*/token"):
        found.latest("basic")


def test_threads_share_a_token(server: SchemaRegistryServer) -> None:
    found = registry(server)
    threads = [threading.Thread(target=found.latest, args=("basic",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.token_forms) == 1


@pytest.mark.parametrize(
    ("status", "body", "kind", "text"),
    [
        (
            401,
            b'{"error": "invalid_client", "error_description": "canary"}',
            CredentialsError,
            "HTTP 401: invalid_client",
        ),
        (400, b'{"error": "invalid_scope"}', CredentialsError, "HTTP 400: invalid_scope"),
        (400, b'{"error": "canary-secret/+:9"}', CredentialsError, "(HTTP 400)"),
        (403, b"canary", CredentialsError, "(HTTP 403)"),
        (404, b"", CredentialsError, "(HTTP 404)"),
        (302, b"", CredentialsError, "(HTTP 302)"),
        (503, b"canary", ServiceUnavailableError, "HTTP 503"),
        (429, b"", ServiceUnavailableError, "HTTP 429"),
        (200, b"canary", CredentialsError, "no access_token"),
        (200, b"[1]", CredentialsError, "no access_token"),
        (200, b'{"access_token": 1}', CredentialsError, "no access_token"),
        (200, b'{"access_token": "canary\\nX-Evil: 1"}', CredentialsError, "no access_token"),
        (200, b"[" * 100_000, CredentialsError, "no access_token"),
    ],
)
def test_a_token_endpoint_that_refuses_or_is_odd_is_named(
    server: SchemaRegistryServer, status: int, body: bytes, kind: type[ConnectorError], text: str
) -> None:
    server.respond("/token", status, body, {"Location": "http://127.0.0.1:9/canary"})
    error = failure(server)
    assert isinstance(error, kind)
    assert text in str(error)
    assert server.token_url in str(error)
    assert server.requests == []


@pytest.mark.parametrize("life", ["null", '"soon"', "-1", "1e400", '"60"', "60"])
def test_an_odd_life_of_a_token_is_no_error(server: SchemaRegistryServer, life: str) -> None:
    server.clients = {}
    server.respond("/token", 200, b'{"access_token": "a", "expires_in": %s}' % life.encode())
    registry(server).latest("basic")


def test_wrong_secrets_are_refused_and_not_shown(
    server: SchemaRegistryServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    error = failure(server, **{"bearer.auth.client.secret": "canary-other"})
    assert error.code == "SCHEMA_REGISTRY_CREDENTIALS"
    assert "bearer.auth.client.secret" in error.action
    assert "canary" not in caplog.text


def test_a_token_endpoint_that_is_not_there_or_slow_is_transient(server: SchemaRegistryServer) -> None:
    error = failure(server, **{"bearer.auth.issuer.endpoint.url": "http://127.0.0.1:9/token"})
    assert (error.code, error.transient) == ("SCHEMA_REGISTRY_UNAVAILABLE", True)
    assert "token endpoint" in str(error)
    server.respond("/token", 200, b"{}", byte_seconds=1.0)
    error = failure(server, **{"request.timeout": "300ms"})
    assert "no complete response within 0.3 s" in str(error)


def test_the_secret_goes_to_the_token_endpoint_alone_and_the_token_to_the_registry_alone(
    server: SchemaRegistryServer,
) -> None:
    with SchemaRegistryServer() as issuer:
        issuer.clients = {"reader": SECRET}
        server.clients, server.credentials = {}, None
        registry(server, **{"bearer.auth.issuer.endpoint.url": issuer.token_url}).latest("basic")
        assert issuer.requests == []
        assert [text and text[:13] for text in server.authorizations] == ["Bearer token-"]
        server.respond("/subjects/basic/versions/latest", 302, headers={"Location": f"{issuer.address}/x"})
        assert failure(server, **{"bearer.auth.issuer.endpoint.url": issuer.token_url}).code == (
            "SCHEMA_REGISTRY_REDIRECT"
        )
        assert issuer.requests == []


def test_a_token_endpoint_by_tls_is_trusted_by_the_authority_of_the_options(
    server: SchemaRegistryServer, tmp_path: Path
) -> None:
    folder = make_certificates(tmp_path / "certificates")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server-all.pem")
    with SchemaRegistryServer(tls=context) as issuer:
        issuer.register("basic", compiled(BASIC), "main.proto")
        issuer.clients = {"reader": SECRET}
        assert failure(issuer).code == "SCHEMA_REGISTRY_UNTRUSTED"
        registry(issuer, **{"ssl.ca.location": str(folder / "ca.pem")}).latest("basic")
        server.clients, server.credentials = {}, None
        error = failure(server, **{"bearer.auth.issuer.endpoint.url": issuer.token_url})
        assert (error.code, issuer.token_url in str(error)) == ("SCHEMA_REGISTRY_UNTRUSTED", True)


def test_no_secret_and_no_token_is_in_reprs_and_the_token_is_in_no_pickle(server: SchemaRegistryServer) -> None:
    parsed = options(server)
    found = protobuf_registry(parsed)
    found.latest("basic")
    token = next(iter(server.tokens))
    assert "canary" not in f"{parsed!r} {found!r} {vars(found)!r}"
    assert token.encode() not in pickle.dumps(parsed)
    assert json.dumps(server.token_forms).find("canary") == -1


@pytest.mark.parametrize(
    ("changes", "code", "names"),
    [
        ({"bearer.auth.client.id": ""}, "OPTION_MISSING", ["bearer.auth.client.id"]),
        ({"bearer.auth.client.secret": ""}, "OPTION_MISSING", ["bearer.auth.client.secret"]),
        ({"bearer.auth.issuer.endpoint.url": ""}, "OPTION_MISSING", ["bearer.auth.issuer.endpoint.url"]),
        ({"bearer.auth.token": "canary"}, "OPTION_CONFLICT", ["bearer.auth.token"]),
        ({"basic.auth.user.info": "me:canary"}, "OPTION_CONFLICT", ["basic.auth.user.info", "bearer.auth.client.id"]),
        ({"bearer.auth.credentials.source": "STATIC_TOKEN"}, "OPTION_MISSING", ["bearer.auth.token"]),
        ({"bearer.auth.credentials.source": "CUSTOM"}, "OPTION_ILLEGAL", ["OAUTHBEARER or STATIC_TOKEN"]),
        (
            {"bearer.auth.issuer.endpoint.url": "http://idp.shop.test/token"},
            "OPTION_CONFLICT",
            ["endpoint.url", "http"],
        ),
        ({"bearer.auth.issuer.endpoint.url": "https://me:canary@idp/t"}, "OPTION_ILLEGAL", ["endpoint.url"]),
        ({"bearer.auth.issuer.endpoint.url": "idp"}, "OPTION_ILLEGAL", ["endpoint.url", "https://"]),
        ({"bearer.auth.logical.cluster": "lsrc 1"}, "OPTION_ILLEGAL", ["logical.cluster"]),
        ({"bearer.auth.identity.pool.id": "pool\t1"}, "OPTION_ILLEGAL", ["identity.pool.id"]),
    ],
)
def test_options_that_contradict_or_miss_another_are_refused(
    server: SchemaRegistryServer, changes: dict[str, str], code: str, names: list[str]
) -> None:
    with pytest.raises(OptionError) as caught:
        options(server, **changes)
    assert caught.value.code == code
    assert not [name for name in names if name not in str(caught.value)]
    assert "canary" not in str(caught.value)


def test_a_cluster_without_a_bearer_token_is_refused() -> None:
    for login_ in ({}, {"basic.auth.user.info": "me:canary"}):
        with pytest.raises(OptionError, match=r"OPTION_CONFLICT.*logical\.cluster.*bearer token"):
            parse_registry_options({"address": "https://r", "bearer.auth.logical.cluster": "lsrc-1", **login_})


def provided(kind: str = "") -> object:
    """A credential provider for the registry's tests."""
    results: dict[str, object] = {
        "text": "canary-token",
        "bytes": {"token": b"canary-token", "expires_at": None},
        "line": {"token": "canary-token\n", "expires_at": None},
    }
    return results.get(kind, {"token": "canary-token", "expires_at": None})


def test_a_credential_provider_gives_the_token_with_cluster_and_pool(server: SchemaRegistryServer) -> None:
    server.required_headers, server.clients, server.credentials = dict(CLOUD), {}, "Bearer canary-token"
    cloud = {"bearer.auth.logical.cluster": "lsrc-1", "bearer.auth.identity.pool.id": "pool-1,pool-2"}
    raw = {"address": server.address, "credentialProvider": f"{__name__}:provided", **cloud}
    protobuf_registry(parse_registry_options(raw)).latest("basic")
    for other in ("bearer.auth.token", "basic.auth.user.info", "bearer.auth.client.id"):
        with pytest.raises(OptionError, match=r"OPTION_CONFLICT.*one authentication"):
            parse_registry_options({**raw, other: "canary:x"})
    with pytest.raises(OptionError, match=r"OPTION_CONFLICT.*plain http"):
        parse_registry_options({**raw, "address": "http://registry.example"})


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("text", "CREDENTIAL_PROVIDER"),
        ("bytes", "SCHEMA_REGISTRY_CREDENTIALS"),
        ("line", "SCHEMA_REGISTRY_CREDENTIALS"),
    ],
)
def test_what_a_credential_provider_cannot_return_is_named_and_not_shown(
    server: SchemaRegistryServer, kind: str, code: str
) -> None:
    raw = {"address": server.address, "credentialProvider": f"{__name__}:provided?kind={kind}", "retry.timeout": "0"}
    with pytest.raises(ConnectorError) as caught:
        protobuf_registry(parse_registry_options(raw)).latest("basic")
    assert (caught.value.code, "credentialProvider" in str(caught.value)) == (code, True)
    assert "canary" not in f"{caught.value!r} {caught.value}"
