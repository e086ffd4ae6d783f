"""The doctor finds what keeps a stream of Kafka from running: each thing is broken here on purpose."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from connectors.core.diagnostics import Finding, Outcome
from connectors.core.errors import ConnectorError
from connectors.core.formats import CONNECTORS
from connectors.doctor import check_source
from connectors.kafka import doctor as diagnosis
from tests.servers.certificates import make_certificates
from tests.servers.java import free_port
from tests.servers.kafka_broker import USER
from tests.support.kafka_rig import LOG_IN, KafkaRig

[CONNECTOR] = [each for each in CONNECTORS if each.package == "kafka"]


@pytest.fixture
def kafka(guarded_kafka: KafkaRig) -> KafkaRig:
    return guarded_kafka


def look(options: Mapping[str, str], checkpoint: Path | None = None) -> dict[str, Finding]:
    """The findings by check."""
    return {each.check: each for each in check_source(CONNECTOR, options, {}, checkpoint)}


def bad(findings: Mapping[str, Finding]) -> dict[str, str]:
    """The codes of what is not ok; each has a fix."""
    found = [each for each in findings.values() if each.outcome in {Outcome.FAILURE, Outcome.WARNING}]
    assert all(each.fix for each in found)
    return {each.check: each.code for each in found}


def test_a_topic_that_is_well_has_no_complaint(kafka: KafkaRig) -> None:
    topic = kafka.topic(2)
    kafka.send(topic, range(5))
    findings = look(kafka.options(topic))
    assert bad(findings) == {}
    expected = {
        "name",
        "tcp",
        "authentication",
        "advertised",
        "resource",
        "retention",
        "permission",
        "starting position",
    }
    assert set(findings) >= expected
    assert "5 offsets before the end" in findings["starting position"].found


def test_an_illegal_option_and_an_illegal_setting_are_reported(kafka: KafkaRig) -> None:
    assert bad(look(kafka.options("t", subscribes="x"))) == {"options": "OPTION_UNKNOWN"}
    assert bad(look(kafka.options("t", kafka__no__such__setting="1"))) == {"options": "KAFKA_SETTING"}


def test_an_unknown_host_and_a_closed_port_are_reported(kafka: KafkaRig) -> None:
    findings = look(kafka.options("t", kafka__bootstrap__servers="nowhere.invalid:9092"))
    assert bad(findings) == {"name": "NAME_UNKNOWN"}
    assert findings["authentication"].outcome is Outcome.SKIPPED
    closed = kafka.options("t", kafka__bootstrap__servers=f"127.0.0.1:{free_port()}")
    assert bad(look(closed)) == {"tcp": "TCP_NO_CONNECTION"}


def test_one_of_two_servers_that_is_down_is_a_warning(kafka: KafkaRig) -> None:
    topic = kafka.topic()
    servers = f"127.0.0.1:{free_port()},{kafka.broker.endpoint}"
    findings = look(kafka.options(topic, kafka__bootstrap__servers=servers))
    assert bad(findings) == {"tcp": "TCP_NO_CONNECTION"}
    assert findings["tcp"].outcome is Outcome.WARNING


def test_tls_to_a_port_without_it_is_reported(kafka: KafkaRig) -> None:
    assert bad(look(kafka.options("t", kafka__security__protocol="SSL"))) == {"tls": "TLS_NOT_SPOKEN"}


def test_each_fault_of_the_certificates_is_reported(kafka: KafkaRig) -> None:
    topic, folder = kafka.topic(), kafka.broker.certificates
    well = {
        **kafka.options(topic, kafka__bootstrap__servers=kafka.broker.ssl_endpoint, kafka__security__protocol="SSL"),
        "kafka.ssl.ca.location": str(folder / "ca.pem"),
        "kafka.ssl.certificate.location": str(folder / "client.pem"),
        "kafka.ssl.key.location": str(folder / "client.key"),
    }
    assert "tls" not in bad(look(well))
    without_authority = {name: value for name, value in well.items() if "ca.location" not in name}
    assert bad(look(without_authority)) == {"tls": "TLS_CERTIFICATE"}
    without_certificate = {name: value for name, value in well.items() if "tificate" not in name and "key" not in name}
    assert bad(look(without_certificate)) == {"tls": "TLS_CLIENT_CERTIFICATE"}
    wrong_key = {**well, "kafka.ssl.key.location": str(folder / "server.key")}
    assert set(bad(look(wrong_key))) & {"options", "tls"}


def by_tls(kafka: KafkaRig, **more: str) -> dict[str, str]:
    """Options for the listener that wants a certificate of the client, without one."""
    secure = {"kafka__security__protocol": "SSL", "kafka__ssl__ca__location": str(kafka.broker.certificates / "ca.pem")}
    return kafka.options("t", kafka__bootstrap__servers=kafka.broker.ssl_endpoint, **secure, **more)


def certificate(kafka: KafkaRig, name: str = "client") -> dict[str, str]:
    """The options of a certificate that stands in the options themselves."""
    folder = kafka.broker.certificates
    return {
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": (folder / f"{name}.pem").read_text(),
        "kafka.ssl.keystore.key": (folder / f"{name}.key").read_text(),
    }


def test_a_certificate_in_the_options_themselves_is_tried(kafka: KafkaRig) -> None:
    findings = look(by_tls(kafka) | certificate(kafka))
    assert (findings["tls"].outcome, findings["authentication"].outcome) == (Outcome.OK, Outcome.OK)


def in_pkcs12(folder: Path, store: Path) -> dict[str, str]:
    """The options of the client's certificate of this folder, in a store that only librdkafka opens."""
    pkcs12 = pytest.importorskip("cryptography.hazmat.primitives.serialization.pkcs12")
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    x509 = pytest.importorskip("cryptography.x509")
    key = serialization.load_pem_private_key((folder / "client.key").read_bytes(), None)
    own = x509.load_pem_x509_certificate((folder / "client.pem").read_bytes())
    encryption = serialization.BestAvailableEncryption(b"store-canary-5")
    store.write_bytes(pkcs12.serialize_key_and_certificates(b"client", key, own, None, encryption))
    return {
        "kafka.ssl.keystore.type": "PKCS12",
        "kafka.ssl.keystore.location": str(store),
        "kafka.ssl.keystore.password": "store-canary-5",
    }


def test_a_certificate_in_pkcs12_is_left_to_the_log_in_and_that_is_reported(kafka: KafkaRig, tmp_path: Path) -> None:
    findings = look(by_tls(kafka) | in_pkcs12(kafka.broker.certificates, tmp_path / "client.p12"))
    assert (findings["tls"].outcome, findings["authentication"].outcome) == (Outcome.OK, Outcome.OK)
    assert "PKCS12 is not checked here" in findings["tls"].found
    assert "store-canary-5" not in str(findings)


def test_a_certificate_that_only_the_log_in_tries_and_the_broker_refuses_is_reported(
    kafka: KafkaRig, tmp_path: Path
) -> None:
    pytest.importorskip("cryptography")
    of_another_authority = make_certificates(tmp_path / "another")
    findings = look(by_tls(kafka) | in_pkcs12(of_another_authority, tmp_path / "client.p12"))
    assert findings["tls"].outcome is Outcome.OK
    assert bad(findings) == {"authentication": "KAFKA_LOG_IN"}
    assert "kafka.ssl.keystore" in findings["authentication"].fix


@pytest.mark.parametrize("word", ["false", "f", "0", "False"])
def test_a_server_that_need_not_be_verified_is_not(kafka: KafkaRig, word: str) -> None:
    options = by_tls(kafka, kafka__enable__ssl__certificate__verification=word) | certificate(kafka)
    del options["kafka.ssl.ca.location"]
    assert look(options)["tls"].outcome is Outcome.OK


def test_a_wrong_password_is_reported_without_it(kafka: KafkaRig) -> None:
    options = {**kafka.options("t", kafka__bootstrap__servers=kafka.broker.sasl_endpoint), **LOG_IN}
    findings = look({**options, "kafka.sasl.password": "canary-77"})
    assert bad(findings) == {"authentication": "KAFKA_LOG_IN"}
    assert "canary-77" not in str(findings)


def test_an_address_that_brokers_advertise_and_nobody_reaches_is_reported() -> None:
    class Elsewhere(diagnosis.KafkaLookup):
        def __init__(self) -> None:
            """It asks nobody."""

        def brokers(self) -> dict[str, tuple[str, int]]:
            return {"broker 1": ("kafka.internal.invalid", 9092)}

    with pytest.raises(ConnectorError) as error:
        diagnosis._advertised(Elsewhere())
    assert error.value.code == "KAFKA_ADVERTISED_UNREACHABLE"
    assert "advertised.listeners" in error.value.action


def test_a_topic_that_is_absent_is_reported_and_a_pattern_that_matches_none_is_warned_of(kafka: KafkaRig) -> None:
    assert bad(look(kafka.options("no-such-topic"))) == {"resource": "KAFKA_UNKNOWN_TOPIC_OR_PARTITION"}
    pattern = kafka.options(subscribePattern="no-such-.*")
    assert bad(look(pattern)) == {"resource": "KAFKA_NO_TOPIC"}


def test_a_missing_right_is_reported(kafka: KafkaRig) -> None:
    topic = kafka.topic()
    options = {**kafka.options(topic, kafka__bootstrap__servers=kafka.broker.sasl_endpoint), **LOG_IN}
    assert bad(look(options)) == {"resource": "KAFKA_ACCESS_DENIED"}
    kafka.allow(USER, topic, "DESCRIBE")
    assert bad(look(options)) == {"permission": "KAFKA_ACCESS_DENIED"}
    kafka.allow(USER, topic, "READ")
    assert bad(look(options)) == {}


def test_a_start_that_retention_has_taken_and_one_beyond_the_end_are_reported(kafka: KafkaRig) -> None:
    topic = kafka.topic()
    kafka.send(topic, range(10))
    kafka.delete_records(topic, 4)
    assert bad(look(kafka.options(topic, startingOffsets={topic: {"0": 3}}))) == {
        "starting position": "KAFKA_START_AGED_OUT"
    }
    assert bad(look(kafka.options(topic, startingOffsets={topic: {"0": 4}}))) == {}
    assert bad(look(kafka.options(topic, startingOffsets={topic: {"0": 11}}))) == {
        "starting position": "KAFKA_START_BEYOND_END"
    }


def test_a_checkpoint_is_so_far_behind_and_a_group_without_commits_is_not(kafka: KafkaRig, tmp_path: Path) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, range(5))
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text(
        "v1\n{}\n" + json.dumps({topic: {"0": 2}})
    )  # as Spark's own source wrote it
    findings = look(kafka.options(topic, **{"kafka.group.id": kafka.name("job")}), tmp_path)
    assert bad(findings) == {}
    assert "starting position" not in findings, "the query does not begin there"
    assert "3 offsets before the end" in findings["checkpoint"].found
    assert "has committed nothing" in findings["consumer group"].found


def test_a_checkpoint_that_retention_has_left_behind_is_reported(kafka: KafkaRig, tmp_path: Path) -> None:
    topic = kafka.topic()
    kafka.send(topic, range(10))
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text("v1\n{}\n" + json.dumps({topic: {"0": 2}, "v": 1}))
    assert bad(look(kafka.options(topic), tmp_path)) == {}
    kafka.delete_records(topic, 4)
    assert bad(look(kafka.options(topic), tmp_path)) == {"checkpoint": "KAFKA_START_AGED_OUT"}


def test_a_group_that_has_committed_nothing_is_warned_of(kafka: KafkaRig) -> None:
    topic = kafka.topic()
    options = kafka.options(topic, startingOffsets="group", commitOffsetsToGroup=kafka.name("group"))
    assert bad(look(options)) == {"consumer group": "KAFKA_GROUP_EMPTY"}
