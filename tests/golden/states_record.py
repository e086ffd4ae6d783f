"""Records what this version leaves on disk in the middle of its work: ``python -m tests.golden.states_record VERSION``.

Each state is a tar file in ``tests/golden/states/VERSION``; `tests/integration/test_golden_states.py` goes on from all
of them. A new version adds a folder and changes none of the older ones.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from connectors.spool.admin.repair import quarantine_named
from connectors.testing.kinesis import start_server_process
from connectors.testing.pubsub import PubSubServer
from tests.support.kinesis_rig import KinesisRig, wait_until
from tests.support.pubsub_rig import SUBSCRIPTION, PubSubRig
from tests.support.spark_protocol.driver import DriverCrashedError, TaskWorkers

STATES = Path(__file__).parent / "states"
_BATCHES = 40  # enough that committed segments are freed and their ids are written as runs
_FEW = 5
_MESSAGES = 40


def pack(name: str, folder: Path, facts: Mapping[str, object]) -> None:
    """Write a folder, and what is known of it, as a tar file; names of owners are left out."""

    def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        is_kept = entry.isdir() or (entry.isfile() and not entry.name.endswith("-reserve"))
        return entry if is_kept else None

    STATES.joinpath(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    with tarfile.open(STATES / sys.argv[1] / f"{name}.tar.gz", "w:gz") as archive:
        archive.add(folder, ".", filter=anonymous)
        text = json.dumps(facts, indent=1, sort_keys=True).encode()
        entry = tarfile.TarInfo("facts.json")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))


def pubsub(folder: Path, workers: TaskWorkers) -> None:
    """A spool of several writers, with duplicates, id runs and freed segments; its last batch is not committed."""
    with PubSubServer() as server:
        rig = PubSubRig(server, server.endpoint, folder, workers)
        options = {"dedupAttribute": "key"}
        query = rig.query(options)
        with query:
            for number in range(_BATCHES):
                rig.publish(_FEW, attributes={"region": "eu"})
                rig.run_until_all(query)
                server.redeliver(SUBSCRIPTION, count=_FEW)
                if number in {10, 30}:
                    query.restart()
            rig.publish(_MESSAGES)
            rig.wait_for(rig.delivered(len(rig.published)))
            query.crash_at("tasks_done")
            try:
                query.run_batch()
            except DriverCrashedError:
                pass
            else:
                raise AssertionError("no crash")
        pack("pubsub", folder, {"published": rig.published, "in_sink": rig.sink.rows(), "options": options})


def quarantined(folder: Path, workers: TaskWorkers) -> None:
    """A spool of which one segment is damaged and quarantined, after a batch that read it."""
    with PubSubServer() as server:
        rig = PubSubRig(server, server.endpoint, folder, workers)
        with rig.query() as query:
            rig.publish(_MESSAGES)
            rig.run_until_all(query)
            rig.publish(_MESSAGES)
            rig.run_until_all(query)
        segment = max(rig.spool.glob("inbox/*/*.arrow"))
        segment.write_bytes(segment.read_bytes()[:-100])
        lost = quarantine_named(str(rig.spool), [segment.relative_to(rig.spool).as_posix()])
        facts = {
            "published": rig.published,
            "in_sink": rig.sink.rows(),
            "lost": [[each.first, each.end] for each in lost],
        }
        pack("pubsub-quarantined", folder, facts)


def fan_out(folder: Path) -> None:
    """The spool and the checkpoint of a query with subscriptions, after a split of one of its shards."""
    server = start_server_process()
    try:
        server.set_takeover(0)
        rig = KinesisRig(server, folder, shards=2)
        spool = folder / "spool"
        options = {
            "consumerMode": "efo",
            "consumerName": "golden",
            "spoolLocation": str(spool),
            "maxFetchPeriod": "20ms",
        }
        with rig.query(**options) as query:
            values = rig.put(_MESSAGES)
            rig.drain(query, values)
            server.split(rig.stream, server.shards(rig.stream)[0])
            values += rig.put(_MESSAGES)
            rig.drain(query, values)
            wait_until(lambda: len(list(spool.glob("inbox/*/*.arrow"))) > 0)
        offsets = [text for batch in rig.sink.batch_ids() for text in query.checkpoint.offsets(batch) if text]
        pack("kinesis-fan-out", folder, {"offsets": offsets, "in_sink": rig.sink.rows()})
    finally:
        server.close()


def main() -> None:
    """Record all states."""
    workers = TaskWorkers(2)
    try:
        for state in (pubsub, quarantined):
            with tempfile.TemporaryDirectory() as folder:
                state(Path(folder), workers)
    finally:
        workers.close()
    with tempfile.TemporaryDirectory() as folder:
        fan_out(Path(folder))


if __name__ == "__main__":
    main()
