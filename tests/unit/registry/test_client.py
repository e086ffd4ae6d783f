"""What a request to a schema registry may cost, and where it may go: real servers on loopback."""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.core.errors import ConnectorError, OptionError, ServiceUnavailableError
from connectors.protobuf.confluent.registry import ProtobufRegistry, protobuf_registry
from connectors.registry.options import parse_registry_options
from connectors.testing.schema_registry import SchemaRegistryServer
from tests.servers.certificates import make_certificates
from tests.support.hostile_answers import BASIC, ODD_SCHEMAS
from tests.support.protobuf_rig import compiled, schema_by_id

LOGINS = (
    {"basic.auth.user.info": "canary-user:canary-password"},
    {"bearer.auth.token": "canary-token"},
)
LATEST = "/subjects/basic/versions/latest"


@pytest.fixture
def server() -> Iterator[SchemaRegistryServer]:
    with SchemaRegistryServer() as running:
        running.register("basic", compiled(BASIC), "main.proto")
        yield running


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("cryptography")
    return make_certificates(tmp_path_factory.mktemp("tls") / "certificates")


def tls(certificates: Path, *, mutual: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server-all.pem")
    if mutual:
        context.load_verify_locations(certificates / "ca.pem")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def registry(address: str, **options: str) -> ProtobufRegistry:
    return protobuf_registry(parse_registry_options({"address": address, "retry.timeout": "0", **options}))


def refusal(found: ProtobufRegistry) -> ConnectorError:
    with pytest.raises(ConnectorError) as caught:
        found.latest("basic")
    assert "canary" not in str(caught.value)
    return caught.value


# -- redirects --------------------------------------------------------------------------------------------------


def assert_stays_home(home: SchemaRegistryServer, target: SchemaRegistryServer, path: str, **options: str) -> None:
    """The registry redirects to the target, which must learn nothing; the error names both."""
    home.respond(LATEST, 302, headers={"Location": f"{target.address}{path}?canary=1"})
    error = refusal(registry(home.address, **options))
    assert target.authorizations == []
    assert error.code == "SCHEMA_REGISTRY_REDIRECT"
    assert home.address in str(error)
    assert target.address in str(error)
    assert home.authorizations[-1] is not None


@pytest.mark.parametrize("login", LOGINS, ids=["basic", "bearer"])
def test_a_login_never_follows_a_redirect_to_another_port(server: SchemaRegistryServer, login: dict[str, str]) -> None:
    with SchemaRegistryServer() as target:
        target.register("basic", compiled(BASIC), "main.proto")
        assert_stays_home(server, target, LATEST, **login)


@pytest.mark.parametrize("login", LOGINS, ids=["basic", "bearer"])
def test_a_login_never_follows_a_redirect_to_another_host(server: SchemaRegistryServer, login: dict[str, str]) -> None:
    with SchemaRegistryServer("127.0.0.2", urlsplit(server.address).port or 0) as target:
        assert_stays_home(server, target, LATEST, **login)


@pytest.mark.parametrize("login", LOGINS, ids=["basic", "bearer"])
@pytest.mark.parametrize("secure_first", [True, False], ids=["https to http", "http to https"])
def test_a_login_never_follows_a_redirect_to_another_scheme(
    certificates: Path, login: dict[str, str], secure_first: bool
) -> None:
    with SchemaRegistryServer(tls=tls(certificates)) as secure, SchemaRegistryServer() as plain:
        home, target = (secure, plain) if secure_first else (plain, secure)
        ca_file = {"ssl.ca.location": str(certificates / "ca.pem")} if secure_first else {}
        assert_stays_home(home, target, LATEST, **login, **ca_file)


@pytest.mark.parametrize("login", LOGINS, ids=["basic", "bearer"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("relative", [True, False])
def test_a_redirect_on_the_same_server_is_followed_with_the_login(
    server: SchemaRegistryServer, login: dict[str, str], status: int, relative: bool
) -> None:
    there = "/subjects/basic/versions/1?format=serialized"
    server.respond(LATEST, status, headers={"Location": there if relative else server.address + there})
    assert registry(server.address, **login).latest("basic").schema_id == 1
    assert len(set(server.authorizations)) == 1
    assert len(server.requests) == 2


def test_a_redirect_with_a_user_in_its_url_is_refused_and_does_not_replace_the_login(
    server: SchemaRegistryServer,
) -> None:
    there = server.address.replace("http://", "http://other:canary@") + "/subjects/basic/versions/1"
    server.respond(LATEST, 302, headers={"Location": there})
    assert refusal(registry(server.address)).code == "SCHEMA_REGISTRY_REDIRECT"
    assert server.authorizations == [None]


def test_redirects_in_a_circle_end(server: SchemaRegistryServer) -> None:
    server.respond(LATEST, 302, headers={"Location": LATEST})
    assert refusal(registry(server.address)).code == "SCHEMA_REGISTRY_REDIRECT"
    assert len(server.requests) < 20


@pytest.mark.parametrize(
    "location",
    [
        "",
        "http://",
        "http://[",
        "//127.0.0.1:1/x",
        "http:\\\\evil",
        "javascript:x",
        "http://127.0.0.1:99999/",
        "\x7f",
        "*",
    ],
)
def test_a_redirect_to_nowhere_is_a_named_error(server: SchemaRegistryServer, location: str) -> None:
    server.respond(LATEST, 302, headers={"Location": location})
    error = refusal(registry(server.address))
    assert error.code in {"SCHEMA_REGISTRY_REDIRECT", "SCHEMA_REGISTRY_UNAVAILABLE", "SCHEMA_NOT_FOUND"}


# -- the way to the registry ------------------------------------------------------------------------------------


@pytest.mark.parametrize("subject", ["a/b", "a b", "100%", "%2F", "?x=1#y", "\xe9\u20ac", ":.ctx:basic", "a+b&c;d"])
def test_any_subject_can_be_asked_for(server: SchemaRegistryServer, subject: str) -> None:
    schema = server.register(subject, compiled(BASIC), "main.proto")
    assert registry(server.address).latest(subject).schema_id == schema


def test_a_registry_is_found_by_its_name(server: SchemaRegistryServer) -> None:
    assert registry(server.address.replace("127.0.0.1", "localhost")).latest("basic").schema_id == 1


def test_a_registry_is_asked_from_within_a_running_event_loop_as_in_a_notebook(server: SchemaRegistryServer) -> None:
    async def cell() -> int:
        return registry(server.address).latest("basic").schema_id

    assert asyncio.run(cell()) == 1


def test_the_proxy_of_the_environment_is_used_and_left_out_for_the_hosts_that_it_names(
    server: SchemaRegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SchemaRegistryServer() as proxy:
        proxy.register("basic", compiled(BASIC), "main.proto")
        monkeypatch.setenv("http_proxy", proxy.address)
        monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:1")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert registry("http://registry.invalid:8081").latest("basic").schema_id == 1
        assert [path.partition("?")[0] for path in proxy.requests] == [f"http://registry.invalid:8081{LATEST}"]
        assert registry(server.address).latest("basic").schema_id == 1
        assert (len(proxy.requests), len(server.requests)) == (1, 1)


def test_asking_a_registry_loads_nothing_that_executors_do_not_need(server: SchemaRegistryServer) -> None:
    asked = "from connectors.protobuf.confluent.registry import protobuf_registry\nimport json, sys\n"
    asked += "from connectors.registry.options import RegistryOptions\n"
    asked += f"protobuf_registry(RegistryOptions(address={server.address!r})).latest('basic')\n"
    asked += "print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", asked], check=True, capture_output=True, text=True)
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout)}
    assert "httpx2" in loaded
    assert not loaded & {"pydantic", "typer", "rich", "click", "prometheus_client"}


# -- time and size ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", [True, False], ids=["head", "body"])
def test_a_response_that_comes_byte_by_byte_ends_at_the_request_timeout(
    server: SchemaRegistryServer, head: bool
) -> None:
    # 10 ms is far less than the timeout of one read, and the whole takes minutes.
    padding = b" " * 50_000
    server.respond(
        LATEST, body=b"" if head else padding, headers={"X": f"x{padding.decode()}x"} if head else {}, byte_seconds=0.01
    )
    error = refusal(registry(server.address, **{"request.timeout": "1500ms"}))
    assert isinstance(error, ServiceUnavailableError)
    assert "no complete response within 1.5 s" in str(error)


def test_the_request_timeout_is_for_all_redirects_together(server: SchemaRegistryServer) -> None:
    for step in range(5):
        here = LATEST if step == 0 else f"/step{step}"
        server.respond(here, 302, headers={"Location": f"/step{step + 1}", "X": "x" * 20}, byte_seconds=0.01)
    error = refusal(registry(server.address, **{"request.timeout": "2s"}))
    assert "within 2 s" in str(error)


@pytest.mark.parametrize("length", [True, False], ids=["announced", "endless"])
def test_a_response_of_more_than_4_mb_is_refused(server: SchemaRegistryServer, length: bool) -> None:
    body = b'{"schema":"' + b"x" * (4 << 20) + b'"}'
    server.respond(LATEST, 200, body, None if length else {"Content-Length": str(1 << 40)})
    error = refusal(registry(server.address))
    assert (error.code, "4 MB" in str(error)) == ("SCHEMA_UNUSABLE", True)


def test_a_schema_of_almost_4_mb_is_read(server: SchemaRegistryServer) -> None:
    schema = server.register("large", text=BASIC + "//" + "x" * (4 * 1000 * 1000))
    assert registry(server.address).latest("large").schema_id == schema


# -- odd answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", ODD_SCHEMAS, ids=range(len(ODD_SCHEMAS)))
def test_an_odd_answer_is_one_error(server: SchemaRegistryServer, body: str) -> None:
    server.respond("*", 200, body.encode())
    error = refusal(registry(server.address))
    assert error.code == "SCHEMA_UNUSABLE"
    str(error).encode()  # what travels to the JVM must be text


@pytest.fixture(scope="module")
def odd() -> Iterator[tuple[SchemaRegistryServer, ProtobufRegistry]]:
    with SchemaRegistryServer() as running:
        yield running, registry(running.address)


def code_of(ask: Callable[[], object]) -> str:
    """The code of the error, if there is one; another error than ours is raised."""
    try:
        ask()
    except ConnectorError as error:
        return error.code
    return ""


IDS = itertools.count(1)  # a schema that was given once is not asked for again
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["PROTOBUF", BASIC]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["schema", "id", "name", "subject", "version", "references"]), inner)
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(
    base=st.dictionaries(st.sampled_from(["id", "schema", "references", "subject", "guid"]), JSON),
    kind=st.sampled_from(["PROTOBUF", None, 1]),
    noise=st.binary(max_size=20),
    status=st.sampled_from([200, 200, 200, 100, 204, 206, 302, 304, 400, 401, 404, 407, 418, 500, 599, 999]),
)
def test_no_response_makes_another_error_than_ours(
    odd: tuple[SchemaRegistryServer, ProtobufRegistry], base: dict[str, object], kind: object, noise: bytes, status: int
) -> None:
    server, asking = odd
    allowed = {"SCHEMA_UNUSABLE", "SCHEMA_REGISTRY_UNAVAILABLE", "SCHEMA_NOT_FOUND", "SCHEMA_REGISTRY_ACCESS_DENIED"}
    for body in (json.dumps({"schema": "", "id": 1, "schemaType": kind, **base}).encode(), noise):
        server.respond("*", status, body)
        assert code_of(lambda: asking.latest("basic")) in {*allowed, ""}
        assert code_of(lambda: schema_by_id(asking, next(IDS))) in {*allowed, ""}


# -- TLS --------------------------------------------------------------------------------------------------------


def test_a_registry_with_a_certificate_of_ones_own_authority_is_asked_over_tls(certificates: Path) -> None:
    with SchemaRegistryServer(tls=tls(certificates)) as server:
        server.register("basic", compiled(BASIC), "main.proto")
        trusting = registry(server.address, **{"ssl.ca.location": str(certificates / "ca.pem")})
        assert trusting.latest("basic").schema_id == 1
        assert server.address.startswith("https://")


def test_an_untrusted_certificate_is_no_transient_error_and_names_the_option(certificates: Path) -> None:
    with SchemaRegistryServer(tls=tls(certificates)) as server:
        error = refusal(registry(server.address, **{"retry.timeout": "1h", **LOGINS[1]}))
        assert (error.code, error.transient) == ("SCHEMA_REGISTRY_UNTRUSTED", False)
        assert "confluent.schema.registry.ssl.ca.location" in str(error)
        assert server.authorizations == []


def test_a_registry_that_asks_for_a_certificate_gets_the_clients(certificates: Path, tmp_path: Path) -> None:
    ca_file = {"ssl.ca.location": str(certificates / "ca.pem")}
    apart = {"ssl.certificate.location": str(certificates / "client.pem")}
    apart["ssl.key.location"] = str(certificates / "client.key")
    with SchemaRegistryServer(tls=tls(certificates, mutual=True)) as server:
        server.register("basic", compiled(BASIC), "main.proto")
        assert registry(server.address, **ca_file, **apart).latest("basic").schema_id == 1
        together = {"ssl.certificate.location": str(certificates / "client-all.pem")}
        assert registry(server.address, **ca_file, **together).latest("basic").schema_id == 1
        assert refusal(registry(server.address, **ca_file)).code == "SCHEMA_REGISTRY_UNAVAILABLE"
        locked = {**apart, "ssl.key.location": str(locked_key(certificates / "client.key", tmp_path))}
        unlocked = {**locked, "ssl.key.password": "canary-key"}
        assert registry(server.address, **ca_file, **unlocked).latest("basic").schema_id == 1
    for bad in (locked, {**locked, "ssl.key.password": "canary-other"}, {**apart, "ssl.key.location": "/nowhere"}):
        with pytest.raises(OptionError, match=r"OPTION_ILLEGAL.*ssl\.certificate\.location") as caught:
            registry(server.address, **ca_file, **bad)
        assert "canary" not in str(caught.value)


def locked_key(path: Path, folder: Path) -> Path:
    """The same private key behind a password."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - not everybody has it

    key = serialization.load_pem_private_key(path.read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"canary-key")
    form = serialization.PrivateFormat.PKCS8
    (folder / "locked.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, locked))
    return folder / "locked.key"


def test_authorities_that_cannot_be_read_are_named_with_their_option(tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("no certificate")
    for path in (tmp_path / "nowhere.pem", tmp_path / "no.pem", tmp_path):
        with pytest.raises(OptionError, match=r"OPTION_ILLEGAL.*ssl\.ca\.location") as caught:
            registry("https://127.0.0.1:1", **{"ssl.ca.location": str(path)})
        assert str(path) in str(caught.value)


def test_a_login_from_the_environment_with_a_line_end_is_sent_without_it(
    server: SchemaRegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGISTRY_TOKEN", "canary-token\n")
    assert registry(server.address, **{"bearer.auth.token": "env:REGISTRY_TOKEN"}).latest("basic").schema_id == 1
    assert server.authorizations == ["Bearer canary-token"]
    user = {"basic.auth.user.info": "me:p\xe4ss:word", "basic.auth.credentials.source": "USER_INFO"}
    assert registry(server.address, **user).latest("basic").schema_id == 1
    assert server.authorizations[-1] == "Basic bWU6cMOkc3M6d29yZA=="


def test_a_login_for_this_machine_does_not_go_through_a_proxy(
    server: SchemaRegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SchemaRegistryServer() as proxy:
        monkeypatch.setenv("http_proxy", proxy.address)
        monkeypatch.delenv("no_proxy", raising=False)
        options = {"address": server.address, "basic.auth.user.info": "me:canary"}
        assert protobuf_registry(parse_registry_options(options)).latest("basic").schema_id == 1
        assert proxy.requests == []
