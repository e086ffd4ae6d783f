"""What errors of librdkafka mean, by their names and texts alone."""

from __future__ import annotations

import pytest

from connectors.core.errors import CredentialsError, ServiceUnavailableError
from connectors.kafka.client_errors import named_error

RECEIVED = "ssl://127.0.0.1:9093/bootstrap: Receive failed: error:0A000412:SSL routines::ssl/tls alert {}"


@pytest.mark.parametrize("name", ["_TRANSPORT", "_SSL"])
@pytest.mark.parametrize("alert", [42, 43, 44, 45, 46, 48, 49, 116])
def test_a_refused_certificate_is_a_refused_log_in_and_names_its_options(name: str, alert: int) -> None:
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
