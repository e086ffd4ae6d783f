"""What the doctor says of a checkpoint of ``kafka_py``, on librdkafka's mock cluster."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.core.diagnostics import Finding, Outcome
from connectors.core.formats import CONNECTORS
from connectors.core.options.kinds import Secret
from connectors.doctor import check_source
from connectors.kafka import doctor as diagnosis
from connectors.kafka.options.client import ClientSettings
from connectors.testing.kafka.mock import MockKafka

[CONNECTOR] = [each for each in CONNECTORS if each.package == "kafka"]


@pytest.fixture(scope="module")
def mock() -> Iterator[MockKafka]:
    with MockKafka() as made:
        made.create_topic("t", 1)
        yield made


def look(mock: MockKafka, checkpoint: Path) -> Finding:
    options = {"kafka.bootstrap.servers": mock.endpoint, "subscribe": "t"}
    return next(each for each in check_source(CONNECTOR, options, {}, checkpoint) if each.check == "checkpoint")


def test_a_checkpoint_that_is_not_there_yet_is_that_of_a_new_query(mock: MockKafka, tmp_path: Path) -> None:
    for checkpoint in (tmp_path / "not" / "there", tmp_path):
        found = look(mock, checkpoint)
        assert (found.outcome, found.found) == (Outcome.OK, f"{checkpoint} is not there yet: a new query")


def test_what_is_no_checkpoint_of_this_machine_is_a_failure(mock: MockKafka, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for checkpoint in (tmp_path, tmp_path / "file", Path("s3://bucket/checkpoint")):
        found = look(mock, checkpoint)
        assert (found.outcome, found.code) == (Outcome.FAILURE, "CHECKPOINT_UNREADABLE")


class Reading:
    """Notes what it is told to load, and who may read it."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.paths: list[Path] = []
        self.modes: list[int] = []

    def load_cert_chain(self, certificate: str, key: str, password: str) -> None:
        self.paths = [Path(certificate), Path(key)]
        self.texts = [*(each.read_text() for each in self.paths), password]
        self.modes = [stat.S_IMODE(each.stat().st_mode) for each in self.paths]


def test_a_certificate_in_the_options_is_in_a_file_of_the_owner_only_while_it_is_loaded() -> None:
    secrets = (("ssl.key.password", Secret("p")), ("ssl.key.pem", Secret("the key")))
    reading = Reading()
    diagnosis._load_client_certificate(reading, ClientSettings((("ssl.certificate.pem", "the chain"),), secrets))
    assert reading.texts == ["the chain", "the key", "p"]
    assert reading.modes == [0o600, 0o600]
    assert not any(each.exists() for each in reading.paths)
