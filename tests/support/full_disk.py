"""A disk that is full: a small tmpfs in a user namespace, where the kernel allows that.

Run as a program inside of the namespace, it fills the disk under a running Pub/Sub query, drains it, counts, and prints
what it saw as one line of JSON.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from connectors.spool.segments.segment import SegmentReader
from connectors.spool.store.local import LocalStore
from connectors.testing.pubsub import PubSubServer
from tests.support.pubsub_rig import PubSubRig
from tests.support.spark_protocol.driver import TaskWorkers

MEGABYTES = 24
MESSAGES = 2000
PAYLOAD_BYTES = 20_000

_MOUNT = 'mount -t tmpfs -o size="$1"m,mode=0700 tmpfs "$2" && shift 2 && exec "$@"'
_OPTIONS = {"maxRecordsPerTrigger": "100", "maxFetchPeriod": "20ms"}
_FULL_SECONDS = 30.0
_DRAIN_SECONDS = 90.0
_STEADY_SECONDS = 1.0


def on_small_disk(folder: Path, megabytes: int, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command with a folder on a tmpfs of this size, in a user namespace of its own."""
    unshare = ["unshare", "-Urm", "sh", "-c", _MOUNT, "sh", str(megabytes), str(folder), *command]
    return subprocess.run(unshare, capture_output=True, text=True, check=False)


@functools.cache
def small_disk_refused() -> str:
    """Why the kernel refuses a small disk; empty if it does not."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            done = on_small_disk(Path(folder), 1, ["true"])
    except FileNotFoundError as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"


def fill_and_drain(disk: Path, folder: Path, *, restart: bool) -> dict[str, Any]:
    """Fill a disk to its last byte under a running query, see what is acked, drain it without a word to the query."""
    workers = TaskWorkers(1)
    try:
        with PubSubServer() as server:
            rig = PubSubRig(server, server.endpoint, folder, workers)
            rig.spool = disk / "spool"
            with rig.query(_OPTIONS) as query:
                rig.publish(5, PAYLOAD_BYTES)
                rig.run_until_all(query)
                rig.publish(MESSAGES, PAYLOAD_BYTES)
                rig.wait_for(lambda: any("SPOOL_DISK_FULL" in line for line in query.reader.log), _FULL_SECONDS)
                _fill(disk / "filler")
                acked, durable = _settled(rig)
                if restart:
                    query.kill()
                    query.restart()
                reader = query.reader.pid
                rig.run_until_all(query, _DRAIN_SECONDS)
                seen = {
                    "unsaved_acks": len(acked - durable),
                    "acked_when_full": len(acked),
                    "message": next(line for line in query.reader.log if "SPOOL_DISK_FULL" in line),
                    "same_reader": query.reader.pid == reader,
                }
            rig.assert_each_once()
    finally:
        workers.close()
    return {**seen, "rows": rig.sink.rows(), "published": len(rig.published)}


def _fill(path: Path) -> None:
    """Take all room that is left."""
    try:
        with path.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    except OSError:
        return


def _settled(rig: PubSubRig) -> tuple[set[str], set[str]]:
    """The ids that are acked, and those that are durable, when nothing changes any more."""
    acked = rig.acked()
    while True:
        time.sleep(_STEADY_SECONDS)
        before, acked = acked, rig.acked()
        if acked == before:
            return acked, set(rig.sink.values("messageId")) | _ids(rig.spool)


def _ids(spool: Path) -> set[str]:
    store = LocalStore(str(spool), "look")
    found: set[str] = set()
    for path in spool.glob("inbox/*/*.arrow"):
        reader = SegmentReader(store, str(path.relative_to(spool)))
        for _, rows in reader.batches(0, reader.info.rows):
            found |= set(rows.column("messageId").to_pylist())
    return found


def run(kind: str, folder: Path) -> dict[str, Any]:
    """Run this module on a small disk; what it saw.

    Raises:
        AssertionError: it failed.
    """
    disk, rest = folder / "disk", folder / "rest"
    disk.mkdir()
    rest.mkdir()
    done = on_small_disk(disk, MEGABYTES, [sys.executable, "-m", "tests.support.full_disk", kind, str(disk), str(rest)])
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


if __name__ == "__main__":
    outcome = fill_and_drain(Path(sys.argv[2]), Path(sys.argv[3]), restart=sys.argv[1] == "restart")
    sys.stdout.write(json.dumps(outcome) + "\n")
