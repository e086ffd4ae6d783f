"""The doctor finds what keeps a stream of Kafka from running: each thing is broken here on purpose."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from connectors.cli.doctor import check_source
from connectors.core.diagnostics import Finding, Outcome
from connectors.core.errors import ConnectorError
from connectors.core.formats import CONNECTORS
from connectors.kafka import doctor as diagnosis
from tests.servers.java import free_port
from tests.servers.kafka_broker import USER
from tests.support.kafka_rig import LOG_IN, KafkaRig

[CONNECTOR] = [each for each in CONNECTORS if each.package == "kafka"]


@pytest.fixture
def kafka(guarded_kafka: KafkaRig) -> KafkaRig:
    return guarded_kafka


def look(options: Mapping[str, str]) -> dict[str, Finding]:
    """The findings by check."""
    return {finding.check: finding for finding in check_source(CONNECTOR, options, {})}


def bad(findings: Mapping[str, Finding]) -> dict[str, str]:
    """The codes of what is not ok; each has a fix."""
    found = [each for each in findings.values() if each.outcome in {Outcome.FAILURE, Outcome.WARNING}]
    assert all(each.fix for each in found)
    return {each.check: each.code for each in found}


def test_a_topic_without_faults_has_no_complaint(kafka: KafkaRig) -> None:
    topic = kafka.topic(2)
    kafka.send(topic, range(5))
    findings = look(kafka.options(topic))
    assert bad(findings) == {}
    assert [*findings] == ["packages", "options", "reach", "authenticate", "advertised", "list", "read"]
    assert "5 offsets are retained" in findings["read"].seen


def test_an_illegal_option_and_an_illegal_setting_are_reported(kafka: KafkaRig) -> None:
    assert bad(look(kafka.options("t", subscribes="x"))) == {"options": "OPTION_UNKNOWN"}
    assert bad(look(kafka.options("t", kafka__no__such__setting="1"))) == {"options": "KAFKA_SETTING"}


def test_an_unknown_host_and_a_closed_port_are_reported(kafka: KafkaRig) -> None:
    findings = look(kafka.options("t", kafka__bootstrap__servers="nowhere.invalid:9092"))
    assert bad(findings) == {"reach": "NAME_UNKNOWN"}
    assert findings["authenticate"].outcome is Outcome.SKIPPED
    closed = kafka.options("t", kafka__bootstrap__servers=f"127.0.0.1:{free_port()}")
    assert bad(look(closed)) == {"reach": "TCP_NO_CONNECTION"}


def test_one_of_two_servers_that_is_down_is_a_warning(kafka: KafkaRig) -> None:
    topic = kafka.topic()
    servers = f"127.0.0.1:{free_port()},{kafka.broker.endpoint}"
    findings = look(kafka.options(topic, kafka__bootstrap__servers=servers))
    assert bad(findings) == {"reach": "TCP_NO_CONNECTION"}
    assert findings["reach"].outcome is Outcome.WARNING


def test_certificates_that_one_side_refuses_are_reported(kafka: KafkaRig) -> None:
    topic, folder = kafka.topic(), kafka.broker.certificates
    good = {
        **kafka.options(topic, kafka__bootstrap__servers=kafka.broker.ssl_endpoint, kafka__security__protocol="SSL"),
        "kafka.ssl.ca.location": str(folder / "ca.pem"),
        "kafka.ssl.certificate.location": str(folder / "client.pem"),
        "kafka.ssl.key.location": str(folder / "client.key"),
    }
    assert look(good)["authenticate"].outcome is Outcome.OK
    for left_out in ("ca.location", "certificate.location"):
        options = {name: value for name, value in good.items() if left_out not in name}
        if left_out.startswith("certificate"):
            del options["kafka.ssl.key.location"]
        assert set(bad(look(options))) == {"authenticate"}, left_out


def test_a_wrong_password_is_reported_without_it(kafka: KafkaRig) -> None:
    options = {**kafka.options("t", kafka__bootstrap__servers=kafka.broker.sasl_endpoint), **LOG_IN}
    findings = look({**options, "kafka.sasl.password": "canary-77"})
    assert bad(findings) == {"authenticate": "KAFKA_LOG_IN"}
    assert "canary-77" not in str(findings)


def test_an_address_that_brokers_advertise_and_nobody_reaches_is_reported() -> None:
    with pytest.raises(ConnectorError) as error:
        diagnosis._advertised({"broker 1": ("kafka.internal.invalid", 9092)})
    assert error.value.code == "KAFKA_ADVERTISED_UNREACHABLE"
    assert "advertised.listeners" in error.value.action


def test_a_topic_that_is_absent_is_reported_and_a_pattern_that_matches_none_is_warned_of(kafka: KafkaRig) -> None:
    assert bad(look(kafka.options("no-such-topic"))) == {"list": "KAFKA_UNKNOWN_TOPIC_OR_PARTITION"}
    findings = look(kafka.options(subscribePattern="no-such-.*"))
    assert bad(findings) == {"list": "KAFKA_NO_TOPIC"}
    assert findings["list"].outcome is Outcome.WARNING


def test_a_missing_right_is_reported(kafka: KafkaRig) -> None:
    topic = kafka.topic()
    options = {**kafka.options(topic, kafka__bootstrap__servers=kafka.broker.sasl_endpoint), **LOG_IN}
    assert bad(look(options)) == {"list": "KAFKA_ACCESS_DENIED"}
    kafka.allow(USER, topic, "DESCRIBE")
    assert bad(look(options)) == {"read": "KAFKA_ACCESS_DENIED"}
    kafka.allow(USER, topic, "READ")
    assert bad(look(options)) == {}
