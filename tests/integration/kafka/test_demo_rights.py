"""``connectors demo kafka`` without rights or with a wrong password: a named error, and nothing is left behind."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner, Result

from connectors.cli.main import app
from tests.servers.kafka_broker import PASSWORD, USER, KafkaBroker

SASL = ("-o", "kafka.security.protocol=SASL_PLAINTEXT", "-o", "kafka.sasl.mechanism=PLAIN")
LOGIN = ("-o", f"kafka.sasl.username={USER}", "-o", "kafka.sasl.password=env:DEMO_PASSWORD")


def demo(broker: KafkaBroker) -> Result:
    return CliRunner().invoke(app, ["demo", "kafka", "--bootstrap", broker.sasl_endpoint, *SASL, *LOGIN])


def test_a_missing_right_to_create_a_topic_is_named(
    guarded_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEMO_PASSWORD", PASSWORD)
    done = demo(guarded_broker)
    assert done.exit_code == 2, done.output
    assert "[KAFKA_ACCESS_DENIED]" in done.stderr
    assert "Allow Create, Delete on topic connectors-demo-" in done.stderr
    assert PASSWORD not in done.output


def test_a_refused_password_is_named(guarded_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEMO_PASSWORD", "wrong-word")
    done = demo(guarded_broker)
    assert (done.exit_code, "[KAFKA_LOG_IN]" in done.stderr) == (2, True), done.output
    assert "wrong-word" not in done.output
