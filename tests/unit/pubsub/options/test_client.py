from __future__ import annotations

import pytest

from connectors.core.errors import OptionError
from connectors.pubsub.options.client import GOOGLE, Transport, decide_transport
from connectors.pubsub.options.sink import parse_write_options
from connectors.pubsub.options.source import PubSubReadOptions, parse_read_options

LEAST = {"projectid": "shop", "subscriptionid": "orders", "spoollocation": "/data/spool"}


def parse(raw: dict[str, str], environ: dict[str, str] | None = None) -> PubSubReadOptions:
    return parse_read_options(raw, environ or {})


def refused(raw: dict[str, str], environ: dict[str, str] | None = None) -> OptionError:
    with pytest.raises(OptionError) as caught:
        parse(raw, environ)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("key", ["clientEmail", "clientId", "privateKey", "privateKeyId"])
def test_credentials_of_the_closed_product_are_refused_by_the_sink_with_ours(key: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_write_options({"topicid": "projects/shop/topics/orders", key.lower(): "do-not-show"}, {})
    assert "Use credentialsFile instead." in str(caught.value)
    assert "do-not-show" not in str(caught.value)


def test_a_credential_that_no_option_takes_is_refused_with_ours() -> None:
    error = refused(LEAST | {"servicecredential": "do-not-show"})
    assert "Use credentialProvider instead. Give module:Class" in str(error)
    assert "do-not-show" not in str(error)


def plain(target: str, *, local: bool = True) -> Transport:
    return Transport(target, secure=False, local=local)


@pytest.mark.parametrize(
    ("endpoint", "emulator", "allow_insecure", "transport"),
    [
        (None, None, False, GOOGLE),
        (None, "", False, GOOGLE),
        (None, None, True, GOOGLE),
        (None, "localhost:8085", False, plain("localhost:8085")),
        (None, "emulator:8085", False, plain("emulator:8085")),
        (None, "[::1]:8085", False, plain("[::1]:8085")),
        (None, "http://emulator:8085", False, plain("emulator:8085")),
        ("localhost:9000", None, False, plain("localhost:9000")),
        ("127.0.0.1:9000", "other:1", False, plain("127.0.0.1:9000")),
        ("127.9.9.9:9000", None, False, plain("127.9.9.9:9000")),
        ("[::1]:9000", None, False, plain("[::1]:9000")),
        ("http://localhost:9000/", None, False, plain("localhost:9000")),
        ("emulator:8085", "emulator:8085", False, plain("emulator:8085")),
        ("emulator:8085", None, True, plain("emulator:8085", local=False)),
        ("http://emulator:8085", None, True, plain("emulator:8085", local=False)),
        (
            "us-central1-pubsub.googleapis.com",
            None,
            False,
            Transport("us-central1-pubsub.googleapis.com:443", secure=True, local=False),
        ),
        (
            "us-central1-pubsub.googleapis.com:443",
            None,
            False,
            Transport("us-central1-pubsub.googleapis.com:443", secure=True, local=False),
        ),
        ("https://proxy:8443", None, True, Transport("proxy:8443", secure=True, local=False)),
        ("https://localhost:8443", None, False, Transport("localhost:8443", secure=True, local=True)),
        ("localhost.example.com:1", None, False, Transport("localhost.example.com:1", secure=True, local=False)),
        ("127.0.0.1.example.com:1", None, False, Transport("127.0.0.1.example.com:1", secure=True, local=False)),
        ("10.0.0.1:1", None, False, Transport("10.0.0.1:1", secure=True, local=False)),
    ],
)
def test_plaintext_only_to_loopback_an_emulator_or_where_it_is_allowed(
    endpoint: str | None,
    emulator: str | None,
    allow_insecure: bool,
    transport: Transport,
) -> None:
    assert decide_transport(endpoint, emulator, allow_insecure=allow_insecure) == transport


def test_plaintext_to_anywhere_else_is_refused() -> None:
    error = refused(LEAST | {"endpoint": "http://emulator:8085"})
    assert "allowInsecure=true" in str(error)
    assert "endpoint" in str(error)
    assert parse(LEAST | {"endpoint": "http://emulator:8085", "allowinsecure": "true"}).transport.secure is False


def test_emulator_of_the_environment_is_honoured_and_the_option_wins() -> None:
    environ = {"PUBSUB_EMULATOR_HOST": "localhost:8085"}
    assert parse(LEAST, environ).transport.target == "localhost:8085"
    assert parse(LEAST | {"endpoint": "localhost:1"}, environ).transport.target == "localhost:1"


def test_emulator_on_another_machine_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        assert parse(LEAST, {"PUBSUB_EMULATOR_HOST": "warned.example:8085"}).transport.target == "warned.example:8085"
        parse(LEAST, {"PUBSUB_EMULATOR_HOST": "localhost:8085"})
    (line,) = caplog.messages
    assert line.startswith("[PUBSUB_EMULATOR] PUBSUB_EMULATOR_HOST names the emulator warned.example:8085")


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("credentialsFile", {"credentialsfile": "/key.json"}),
        ("clientEmail", {"clientemail": "a@example.com", "privatekey": "x"}),
    ],
)
def test_emulator_never_beats_credentials_in_silence(
    name: str, more: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    raw = {**LEAST, **more, "schemamode": "databricks"} if name == "clientEmail" else {**LEAST, **more}
    with pytest.raises(OptionError, match=rf"OPTION_CONFLICT.*{name}.*PUBSUB_EMULATOR_HOST") as caught:
        parse_read_options(raw, {"PUBSUB_EMULATOR_HOST": "emulator.example:8085"})
    assert "emulator.example:8085" in caught.value.what
    port = 1 + len(name)
    parse_read_options(raw, {"PUBSUB_EMULATOR_HOST": f"localhost:{port}"})
    (line,) = caplog.messages
    assert f"localhost:{port}, so the option {name} is not used" in line
    parse_read_options({**raw, "endpoint": "https://pubsub.googleapis.com"}, {"PUBSUB_EMULATOR_HOST": "localhost:9"})
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("value", ["localhost", "localhost:x", "a b:1", "localhost:99999"])
def test_malformed_emulator_variable_is_named(value: str) -> None:
    assert "PUBSUB_EMULATOR_HOST" in str(refused(LEAST, {"PUBSUB_EMULATOR_HOST": value}))


@pytest.mark.parametrize(
    "endpoint", ["", "host:port", "host:70000", "a/b:1", "ftp://host:1", "user:pw@host:1", "unix:/a", ":80"]
)
def test_malformed_endpoint_is_refused(endpoint: str) -> None:
    error = refused(LEAST | {"endpoint": endpoint})
    assert error.code == "OPTION_ILLEGAL"
    assert "endpoint" in str(error)


def test_plaintext_endpoint_needs_a_port() -> None:
    assert "no port" in str(refused(LEAST | {"endpoint": "localhost"}))


def test_credentials_and_plaintext_to_another_machine_are_a_conflict_that_names_both() -> None:
    raw = LEAST | {"endpoint": "emulator:8085", "allowinsecure": "true", "credentialsfile": "/key.json"}
    error = refused(raw)
    assert error.code == "OPTION_CONFLICT"
    assert "credentialsFile" in str(error)
    assert "allowInsecure" in str(error)


def test_key_pasted_into_credentials_file_is_not_shown() -> None:
    assert "do-not-show" not in str(refused(LEAST | {"credentialsfile": '{"private_key": "do-not-show"}'}))
