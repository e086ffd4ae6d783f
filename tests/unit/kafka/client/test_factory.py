"""Tokens of a class of the user's that fails: what the user is told, and what goes on."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from connectors.core.errors import ConnectorError, CredentialsError, OptionError, ServiceUnavailableError
from connectors.kafka.client.admin import KafkaLookup
from connectors.kafka.client.errors import connector_error
from connectors.kafka.client.factory import TokenCallback, open_consumer, sdk
from connectors.kafka.client.group_offsets import GroupCommitter
from connectors.kafka.offsets import TopicPartition
from connectors.kafka.options.client import ClientSettings
from connectors.kafka.options.source import parse_read_options
from connectors.testing.kafka.mock import MockKafka
from tests.support.waiting import wait_for


class Tokens:
    """Gives tokens that live for seconds, or raises; what it does next is said before."""

    failure: Exception | None = None
    seconds = 600.0

    def token(self) -> tuple[str, float, str]:
        if Tokens.failure is not None:
            raise Tokens.failure
        return "a-token", time.time() + Tokens.seconds, "shop"


class NotMade:
    """A class that needs what is not there."""

    def __init__(self) -> None:
        raise ConnectionError("no route to the token service")


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tokens, "failure", None)
    monkeypatch.setattr(Tokens, "seconds", 600.0)


def settings(provider: str = "Tokens") -> ClientSettings:
    given = {
        "kafka.bootstrap.servers": "127.0.0.1:9",
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.reconnect.backoff.ms": "5000",
        "tokenProvider": f"{__name__}:{provider}",
        "subscribe": "t",
    }
    return parse_read_options(given, {}, streaming=True).client


def test_a_token_that_fails_first_is_an_error_that_passes_with_the_text_of_its_class() -> None:
    Tokens.failure = TimeoutError("the token service does not answer: https://sso/?client_secret=hunter2&scope=kafka")
    with pytest.raises(ServiceUnavailableError) as caught:
        open_consumer(settings(), {"group.id": "g"})
    text = str(caught.value)
    assert text.startswith("[KAFKA_TOKEN_FAILED]")
    assert "TimeoutError: the token service does not answer: https://sso/?client_secret=...&scope=kafka" in text
    assert "hunter2" not in text


def without_token() -> Any:
    """What a client says that waited for a token in vain."""
    return sdk().KafkaError(sdk().KafkaError.SASL_AUTHENTICATION_FAILED, "OAuth token not set")


def test_a_token_that_the_client_does_not_take_is_no_error_of_a_setting() -> None:
    callback = TokenCallback(f"{__name__}:Tokens")
    callback("")
    problem = callback.problem(without_token())
    assert isinstance(problem, CredentialsError)
    assert str(problem).startswith("[KAFKA_TOKEN_UNUSABLE] The token has expired")


def test_a_provider_that_nobody_asks_is_an_error_of_the_options() -> None:
    problem = TokenCallback(f"{__name__}:Tokens").problem(without_token())
    assert isinstance(problem, OptionError)
    assert str(problem).startswith("[KAFKA_TOKEN_PROVIDER] The client never asks for a token")


def test_a_setting_that_the_client_refuses_is_still_one() -> None:
    with pytest.raises(OptionError, match=r"^\[KAFKA_SETTING\]"):
        open_consumer(settings(), {"group.id": "g", "nothing.such": "1"})


def test_a_class_that_cannot_be_made_now_is_an_error_that_passes() -> None:
    with pytest.raises(ServiceUnavailableError, match="ConnectionError: no route to the token service"):
        open_consumer(settings("NotMade"), {"group.id": "g"})


@pytest.mark.parametrize(
    ("failure", "passes"),
    [
        (TimeoutError("late"), True),
        (ConnectionError("refused"), True),
        (RuntimeError("503"), True),
        (PermissionError("denied"), False),
        (FileNotFoundError("/var/run/token"), False),
        (KeyError("CLIENT_ID"), False),
        (TypeError("no such argument"), False),
    ],
)
def test_what_may_pass_is_distinguished_from_what_is_wrong(failure: Exception, passes: bool) -> None:
    Tokens.failure = failure
    callback = TokenCallback(f"{__name__}:Tokens")
    with pytest.raises(type(failure)):
        callback("")
    with pytest.raises(ConnectorError) as caught:
        callback.serve_first(None)
    assert caught.value.transient is passes


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer hunter2hunter2",
        '{"access_token": "hunter2"}',
        "password=hunter2",
        "X-Amz-Signature=hunter2&X-Amz-Date=1",
        "refused: eyJhbGciOiJub25lIn0.hunter2.hunter2",
    ],
)
def test_the_text_of_a_provider_shows_no_secret(text: str) -> None:
    Tokens.failure = RuntimeError(text)
    callback = TokenCallback(f"{__name__}:Tokens")
    with pytest.raises(RuntimeError):
        callback("")
    with pytest.raises(ServiceUnavailableError) as caught:
        callback.serve_first(None)
    assert "hunter2" not in str(caught.value)


def test_a_token_that_cannot_be_renewed_is_no_refused_authentication(caplog: pytest.LogCaptureFixture) -> None:
    Tokens.seconds = 5.0  # it must still live when the client takes it, and is renewed when 4 are over
    errors: list[Any] = []
    consumer = open_consumer(settings(), {"group.id": "g", "error_cb": errors.append})
    Tokens.failure = TimeoutError("late")

    def renewal() -> list[Any]:
        consumer.poll(0.1)
        return [error for error in errors if error.name() == "_AUTHENTICATION"]

    problem = connector_error(wait_for(renewal)[0], "kafka.bootstrap.servers")
    consumer.close()
    assert isinstance(problem, ServiceUnavailableError)
    assert problem.code == "KAFKA_UNAVAILABLE"
    assert "TimeoutError: late" in caplog.text


class Later(ClientSettings):
    """Settings with which no client can be made, the first times."""

    failures: list[ConnectorError]

    def revealed(self) -> dict[str, str]:
        if Later.failures:
            raise Later.failures.pop()
        return super().revealed()


@pytest.mark.parametrize("kind", [ServiceUnavailableError, CredentialsError])
def test_offsets_are_committed_after_a_client_could_not_be_made(
    kind: type[ConnectorError], caplog: pytest.LogCaptureFixture
) -> None:
    orders = TopicPartition("orders", 0)
    with MockKafka() as kafka:
        kafka.create_topic("orders", 1)
        plain = parse_read_options(
            {"kafka.bootstrap.servers": kafka.endpoint, "subscribe": "orders"}, {}, streaming=True
        )
        later = Later(plain.client.plain)
        Later.failures = [kind("KAFKA_TOKEN_FAILED", "The class failed to return a token")] * 2
        committer = GroupCommitter(later, "g", pause_seconds=0.05)
        with caplog.at_level(logging.WARNING), KafkaLookup(plain.client, "g") as lookup:
            committer.commit({orders: 3})
            if kind is CredentialsError:  # then the next batch tries again
                for batch in (1, 0):
                    wait_for(lambda batch=batch: len(Later.failures) <= batch)
                    committer.commit({orders: 3})
            wait_for(lambda: lookup.committed([orders]) == {orders: 3})
            committer.stop()
    assert caplog.text.count("KAFKA_GROUP_COMMIT") == 1


@pytest.mark.parametrize(
    "given",
    [
        ("tok\0en", "shop", {}),
        ("token", "sh\0op", {}),
        ("token", "shop", {"a\0b": "c"}),
        ("token", "shop", {"a": "b\0c"}),
    ],
    ids=["token", "principal", "name of an extension", "value of an extension"],
)
def test_a_token_with_a_nul_is_not_given_to_the_client(
    given: tuple[str, str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    token, principal, extensions = given
    monkeypatch.setattr(Tokens, "token", lambda _: (token, time.time() + 600, principal, extensions))
    with pytest.raises(OptionError, match="KAFKA_NUL"):
        TokenCallback(f"{__name__}:Tokens")("")


class TokensOf:
    """A class with an argument."""

    def __init__(self, region: str) -> None:
        self.region = region

    def token(self) -> tuple[str, float, str]:
        return "a-token", time.time() + 600, self.region


def test_a_class_gets_the_arguments_of_its_path() -> None:
    callback = TokenCallback(f"{__name__}:TokensOf?region=eu-west-1")
    assert callback("")[2] == "eu-west-1"
    open_consumer(settings("TokensOf?region=eu-west-1"), {"group.id": "g"}).close()


@pytest.mark.parametrize("path", ["no.such:Tokens", f"{__name__}:Nothing", "tests.support.provider_that_breaks:T"])
def test_code_that_cannot_be_imported_is_named_whatever_it_raises(path: str) -> None:
    with pytest.raises(OptionError, match=r"^\[KAFKA_TOKEN_PROVIDER\] .*cannot be imported") as caught:
        TokenCallback(path)
    assert path in str(caught.value)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("name", ["databricks.serviceCredential", "serviceCredential", "credentialProvider"])
def test_what_is_called_otherwise_elsewhere_is_refused_with_the_option_and_its_form(name: str) -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "t", name: "orders"}
    with pytest.raises(OptionError, match=r"Use tokenProvider instead\. Give module:Class"):
        parse_read_options(given, {}, streaming=True)
