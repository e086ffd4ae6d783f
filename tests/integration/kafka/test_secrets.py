"""The secrets of an authentication that succeeds show nowhere: checkpoint, processes, representations, output, logs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from connectors.kafka.datasource import KafkaDataSource
from tests.integration.kafka.source.test_batch import OIDC, secured
from tests.servers.kafka_broker import PASSWORD
from tests.support.kafka_paths import path_taken
from tests.support.kafka_rig import KafkaRig
from tests.support.kafka_tokens import TokenEndpoint

JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="shop" password="{PASSWORD}";'
AUTHENTICATIONS: dict[str, dict[str, str]] = {
    "password": {
        "kafka__sasl__mechanism": "PLAIN",
        "kafka__sasl__username": "shop",
        "kafka__sasl__password": PASSWORD,
    },
    "jaas": {"kafka__sasl__mechanism": "PLAIN", "kafka__sasl__jaas__config": JAAS},
    **{f"oidc, {words}": {"kafka__sasl__mechanism": "OAUTHBEARER", **options} for words, options in OIDC.items()},
}
CLIENT_SECRET = "canary-41"


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("way", AUTHENTICATIONS)
def test_the_secrets_of_a_successful_run_show_nowhere(
    way: str,
    native: bool,
    kafka: KafkaRig,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, [1, 2, 3])
    shown: list[bytes] = []
    with TokenEndpoint("me", CLIENT_SECRET) as endpoint, path_taken(native=native), caplog.at_level(logging.DEBUG):
        options = secured(kafka, topic, **AUTHENTICATIONS[way])
        if "oidc" in way:
            options["kafka.sasl.oauthbearer.token.endpoint.url"] = endpoint.url
        with kafka.query(options) as query:
            assert query.run_batch().rows == 3
            shown += [Path(f"/proc/{query.reader.pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
        source = KafkaDataSource(options)
        shown += [repr(each).encode() for each in (source, source.streamReader(source.schema()))]
    shown += [path.read_bytes() for path in kafka.folder.rglob("*") if path.is_file()]
    shown += [text.encode() for text in (*capfd.readouterr(), caplog.text)]
    secrets = [PASSWORD.encode(), CLIENT_SECRET.encode()]
    assert any(topic.encode() in text for text in shown), "the checkpoint is among it"
    assert not [text for text in shown if any(secret in text for secret in secrets)]
