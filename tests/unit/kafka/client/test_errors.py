"""What errors of librdkafka mean, by their names and texts alone."""

from __future__ import annotations

import pytest

from connectors.core.errors import CredentialsError, ServiceUnavailableError
from connectors.kafka.client.errors import ConnectionErrors, named_error

RECEIVED = "ssl://127.0.0.1:9093/bootstrap: Receive failed: error:0A000412:SSL routines::ssl/tls alert {}"


@pytest.mark.parametrize("name", ["_TRANSPORT", "_SSL"])
@pytest.mark.parametrize("alert", [42, 43, 44, 45, 46, 48, 49, 116])
def test_a_refused_certificate_is_a_refused_authentication_and_names_its_options(name: str, alert: int) -> None:
    text = RECEIVED.format(f"bad certificate: SSL alert number {alert} (after 0ms in state APIVERSION_QUERY)")
    problem = named_error(name, text, "kafka.bootstrap.servers", retriable=True)
    assert isinstance(problem, CredentialsError)
    assert problem.code == "KAFKA_LOG_IN"
    assert f"SSL alert number {alert}" in problem.what
    assert "kafka.ssl.keystore.*" in problem.action


@pytest.mark.parametrize("alert", [0, 10, 20, 40, 47, 80, 90, 110, 420])
def test_other_alerts_of_a_connection_are_of_no_certificate(alert: int) -> None:
    text = RECEIVED.format(f"internal error: SSL alert number {alert}")
    problem = named_error("_TRANSPORT", text, "kafka.bootstrap.servers", retriable=True)
    assert isinstance(problem, ServiceUnavailableError)


def test_a_listener_without_sasl_is_distinguished_from_a_refused_password() -> None:
    text = (
        "sasl_plaintext://b:1/bootstrap: SASL PLAIN mechanism handshake failed: Broker: Request not valid in current "
    )
    text += "SASL state: broker's supported mechanisms: {} (after 2ms in state AUTH_HANDSHAKE)"
    for offered, advice in (("", "This listener does not use SASL"), ("SCRAM-SHA-256", "Correct kafka.sasl.")):
        problem = named_error("_AUTHENTICATION", text.format(offered), "kafka.bootstrap.servers", retriable=False)
        assert problem.code == "KAFKA_LOG_IN"
        assert problem.action.startswith(advice)


@pytest.mark.parametrize(
    ("answer", "passes"),
    [
        ('Expected JSON response with "access_token" field', True),
        ("Failed to connect to 127.0.0.1:401 after 403 ms: Could not connect to server", True),
        ("Could not resolve host: login.invalid", True),
        ("Server did not provide an error string", True),
        ("<html>\n<h1>503 Service Unavailable</h1>\n</html>", True),
        ('{"error":"temporarily_unavailable"}', True),
        ('{"error":"invalid_client"}', False),
        ('{\n  "error": "unauthorized_client"\n}', False),
        ('{"error":"invalid_grant"}', False),
        ('{"error":"invalid_scope"}', False),
        ("<html>\n<h1>401 Unauthorized</h1>\n</html>", False),
    ],
)
def test_a_token_endpoint_that_fails_is_distinguished_from_one_that_refuses_the_client(
    answer: str, passes: bool
) -> None:
    text = f"Failed to acquire SASL OAUTHBEARER token: {answer}"
    problem = named_error("_AUTHENTICATION", text, "kafka.bootstrap.servers", retriable=False)
    assert problem.transient is passes
    assert problem.code == ("KAFKA_UNAVAILABLE" if passes else "KAFKA_LOG_IN")
    assert " ".join(answer.split()) in problem.what


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("_TRANSPORT", "ssl://b:1/bootstrap: error:0A000086:SSL routines::certificate verify failed (after 4ms)"),
        ("_SSL", "SSL handshake failed: certificate verify failed: broker certificate could not be verified"),
        ("_AUTHENTICATION", "Failed to acquire SASL OAUTHBEARER token: SSL certificate problem: self-signed"),
    ],
)
def test_a_certificate_that_is_not_trusted_does_not_pass(name: str, text: str) -> None:
    problem = named_error(name, text, "kafka.bootstrap.servers", retriable=True)
    assert (problem.code, problem.transient) == ("KAFKA_CERTIFICATE_UNTRUSTED", False)
    assert "kafka.ssl.ca.location" in problem.action


REFUSED = ("SASL_AUTHENTICATION_FAILED", "SASL authentication error: no")
UNAVAILABLE = ServiceUnavailableError("KAFKA_UNAVAILABLE", "No answer came", "t")


def test_a_refused_log_in_is_forgotten_by_the_next_question_of_a_client_that_has_worked() -> None:
    word = ConnectionErrors()
    word.forget()
    word.receive(*REFUSED)
    assert word.refusal is not None
    word.begin()
    assert word.refusal is None
    assert isinstance(word.explain(UNAVAILABLE), CredentialsError), "nothing has worked since"
    word.forget()
    assert word.explain(UNAVAILABLE) is UNAVAILABLE


def test_a_client_that_never_worked_keeps_that_its_log_in_was_refused() -> None:
    word = ConnectionErrors()
    word.receive(*REFUSED)
    word.begin()
    assert word.refusal is not None


def test_a_server_that_is_away_after_a_refused_log_in_is_what_is_reported() -> None:
    word = ConnectionErrors()
    word.receive(*REFUSED)
    word.receive("_TRANSPORT", "Connection refused")
    word.receive("_ALL_BROKERS_DOWN", "1/1 brokers are down")
    assert "the client last reported: Connection refused" in str(word.explain(UNAVAILABLE))


OLD_TOKEN = ("SASL_AUTHENTICATION_FAILED", 'SASL authentication error: {"status":"invalid_token"} (after 304ms)')


def test_an_old_token_of_a_client_that_has_worked_is_a_refused_authentication_only_if_no_new_one_comes() -> None:
    word = ConnectionErrors()
    word.forget()
    word.receive(*OLD_TOKEN)
    assert word.refusal is None
    assert isinstance(word.explain(UNAVAILABLE), CredentialsError)


def test_an_old_token_is_no_news_after_there_was_no_new_one() -> None:
    word = ConnectionErrors()
    word.forget()
    word.receive("_AUTHENTICATION", "Failed to acquire SASL OAUTHBEARER token: Could not connect to server")
    word.receive(*OLD_TOKEN)
    assert "last reported: Failed to acquire SASL OAUTHBEARER token" in str(word.explain(UNAVAILABLE))


def test_a_token_that_was_never_accepted_is_a_refused_authentication() -> None:
    word = ConnectionErrors()
    word.receive(*OLD_TOKEN)
    assert word.refusal is not None


def test_that_no_broker_can_be_reached_is_said_once_of_a_client_that_never_worked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    word = ConnectionErrors()
    for _ in range(3):
        word.receive("_ALL_BROKERS_DOWN", "1/1 brokers are down")
        word.receive("_TRANSPORT", "b:1/bootstrap: Connect to ipv4#10.0.0.1:1 failed: Connection refused")
    (line,) = caplog.messages
    assert line.startswith("[KAFKA_BROKERS_DOWN]")
    assert "Connection refused" in line
    assert "Check the brokers, kafka.bootstrap.servers" in line
    worked = ConnectionErrors()
    worked.forget()
    worked.receive("_TRANSPORT", "b:1/1: Disconnected")
    worked.receive("_ALL_BROKERS_DOWN", "1/1 brokers are down")
    assert caplog.messages == [line]
