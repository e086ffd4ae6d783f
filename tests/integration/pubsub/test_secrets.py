"""The secrets of a key file, and its path, show nowhere: spool, offsets, processes, plans, logs, errors."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.core.offsets import SENTINEL
from connectors.pubsub.datasource import PubSubDataSource
from connectors.testing.pubsub import PubSubServer
from tests.support.pubsub_rig import PubSubRig
from tests.support.spark_protocol.driver import ReaderFailedError, TaskWorkers

CANARY = "canary-5f1c7e"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[PubSubRig]:
    workers = TaskWorkers(1)
    with PubSubServer() as server:
        yield PubSubRig(server, server.endpoint, tmp_path, workers)
    workers.close()


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    """A key file of a user, with the canary for each of its secrets."""
    path = tmp_path / "key.json"
    secrets = {"client_id": "id", "client_secret": CANARY, "refresh_token": CANARY, "private_key": CANARY}
    path.write_text(json.dumps({"type": "authorized_user", **secrets}))
    return path


def test_the_secrets_of_a_running_query_show_nowhere(
    rig: PubSubRig, key_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = rig.options(credentialsFile=str(key_file))
    rig.publish(20)
    shown: list[bytes] = []
    with rig.query({"credentialsFile": str(key_file)}) as query:
        batch = query.run_batch()
        shown += query.reader.partitions(SENTINEL, batch.ends[0])
        for pid in [query.reader.pid, *rig.fetchers(query)]:
            shown += [Path(f"/proc/{pid}/cmdline").read_bytes(), Path(f"/proc/{pid}/environ").read_bytes()]
        source = PubSubDataSource(options)
        reader = source.streamReader(source.schema())
    shown += [repr(reader).encode()]
    for folder in (rig.spool, rig.checkpoint):
        shown += [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    shown += [text.encode() for text in capfd.readouterr()]
    assert not [text for text in shown if CANARY.encode() in text or os.fsencode(key_file) in text]


def test_the_secrets_of_a_key_file_that_cannot_be_used_show_nowhere(
    rig: PubSubRig, key_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    key_file.write_text(f'{{"type": "service_account", "private_key": "{CANARY}"}}')
    endpoint = f"https://{rig.endpoint}"
    with (
        pytest.raises(ReaderFailedError) as raised,
        rig.query({"credentialsFile": str(key_file), "endpoint": endpoint}) as query,
    ):
        query.run_batch()
    assert "CREDENTIALS_UNREADABLE" in str(raised.value)
    assert CANARY not in f"{raised.value!r} {raised.value} {capfd.readouterr()}"
