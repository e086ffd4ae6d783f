"""The how-to for moving, backing up and restoring a spool: its shell blocks are run as they stand in the page."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pubsub_rig import SUBSCRIPTION, PubSubRig
from tests.support.spark_protocol.driver import DriverCrashedError, ReaderFailedError

PAGE = Path(__file__).parents[3] / "docs/how-to/move-and-restore-a-spool.md"
WORKERS = 1


def blocks(section: str) -> list[str]:
    """The shell blocks of a section of the page."""
    (text,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run(rig: PubSubRig, block: str) -> str:
    """Run a block, each command of which has to succeed."""
    for name in ("new", "backup"):
        (rig.folder / name).mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "CHECKPOINT": str(rig.checkpoint),
        "SPOOL": str(rig.spool),
        "NEW": str(rig.folder / "new"),
        "BACKUP": str(rig.folder / "backup"),
    }
    done = subprocess.run(["bash", "-eu", "-c", block], env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_query_that_is_moved_in_the_middle_of_a_batch_goes_on_at_the_new_place_only(rig: PubSubRig) -> None:
    move, clean = blocks("Move")
    rig.publish(200)
    options = {"maxRecordsPerTrigger": "60"}
    with rig.query(options) as query:
        query.run_batch()
        query.crash_at("tasks_done")
        with pytest.raises(DriverCrashedError):
            rig.run_until_all(query)
    rig.publish(50)
    run(rig, move)
    with (
        rig.query(options, checkpoint=rig.folder / "new/checkpoint", sink=None) as old,
        pytest.raises(ReaderFailedError, match="SPOOL_MOVED"),
    ):
        old.run_batch()
    new = {**options, "spoolLocation": str(rig.folder / "new/spool")}
    with rig.query(new, checkpoint=rig.folder / "new/checkpoint") as query:
        assert query.run_batch().replayed
        rig.run_until_all(query)
    rig.assert_each_once()
    run(rig, clean)
    assert not rig.spool.exists()
    assert not rig.checkpoint.exists()


def test_a_query_is_restored_from_a_backup_and_the_service_sends_again_what_came_after_it(rig: PubSubRig) -> None:
    (back_up,), (restore,) = blocks("Back up"), blocks("Restore")
    rig.publish(100)
    with rig.query() as query:
        rig.run_until_all(query)
        query.stop()
        assert "no damage" in run(rig, back_up)
        shutil.copytree(rig.sink.folder, rig.folder / "backup/sink")
        query.restart()
        rig.publish(50)
        rig.run_until_all(query)
        rig.wait_for(lambda: len(rig.acked()) == 150)
    for folder in (rig.spool, rig.checkpoint, rig.sink.folder):
        shutil.rmtree(folder)
    shutil.copytree(rig.folder / "backup/sink", rig.sink.folder)
    run(rig, restore)
    rig.server.redeliver(SUBSCRIPTION)  # as a seek to a moment before the backup does
    with rig.query() as query:
        rig.run_until_all(query)
        rig.wait_for(rig.delivered(250))
        query.idle(3)
    rig.assert_each_once()


@pytest.mark.parametrize("order", ["checkpoint first", "spool first"])
def test_the_spool_must_be_the_last_of_two_snapshots(order: str, rig: PubSubRig) -> None:
    """A stop stands for each snapshot: batches go on between the two."""
    options = {"maxRecordsPerTrigger": "10", "spoolRetention": "1h"}
    parts = {"checkpoint": rig.checkpoint, "spool": rig.spool, "sink": rig.sink.folder}
    first = "spool" if order == "spool first" else "checkpoint"
    last = "checkpoint" if first == "spool" else "spool"
    rig.publish(30)
    with rig.query(options) as query:
        rig.run_until_all(query)
        query.stop()
        for part in {first, "sink"}:
            shutil.copytree(parts[part], rig.folder / "backup" / part)
        query.restart()
        rig.publish(100)
        rig.run_until_all(query)
        query.stop()
        shutil.copytree(parts[last], rig.folder / "backup" / last)
    for part in parts.values():
        shutil.rmtree(part)
    shutil.copytree(rig.folder / "backup/sink", rig.sink.folder)
    (restore,) = blocks("Restore")
    run(rig, restore)
    with rig.query(options) as query:
        if first == "spool":
            with pytest.raises(ReaderFailedError, match=r"SPOOL_OFFSET_ABOVE_HEAD|SPOOL_OFFSET_UNKNOWN"):
                query.idle(1000)
            return
        rig.run_until_all(query)
        query.idle(3)
    rig.assert_each_once()
