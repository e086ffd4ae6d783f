"""The crash sweep: kill the reader or a fetcher at a named failpoint, restart, go on; in the end count by ids.

Each death is followed by the next run on the same spool and checkpoint, so every recovery is itself interrupted by the
next crash. A replayed batch must be equal bit for bit: the protocol driver compares its digest.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.fetch_targets import FAILPOINTS as FETCHER_POINTS
from tests.support.pubsub_rig import PubSubRig
from tests.support.spark_protocol.driver import ReaderDiedError, StreamingQuery

LOCAL_POINTS = ("store.before_sync", "store.before_link", "store.before_folder_sync")
"""What only a local store passes."""

OBJECT_POINTS = ("store.before_put", "store.before_close", "store.after_close", "lease.before_put", "lease.after_put")
"""What only an object store passes; a fetcher passes the first."""

READER_POINTS = (
    "fence.before_claim",
    "fence.after_claim",
    "fence.before_seal",
    "fence.after_seal",
    "ledger.before_put",
    "ledger.after_put",
    "manifest.before_write",
    "manifest.after_write",
    "ledger.after_first_snapshot",
    "manifest.before_delete",
    "manifest.after_delete",
    "opening.before_clear",
    "opening.after_clear",
    "ledger.before_admit",
    "ledger.after_admit",
    "ledger.before_commit",
    "ledger.after_commit",
    *LOCAL_POINTS,
    "store.after_publish",
    "ids.before_write",
    "ids.after_write",
    "ids.after_record",
    "free.before_record",
    "free.after_record",
    "free.after_delete",
    "ids.before_swap_record",
    "ids.after_swap_record",
)
"""Every failpoint that the reader process passes with a local spool; those that need many runs of ids stand last."""

REPAIR_POINTS = (
    "quarantine.before_copy",
    "quarantine.after_copy",
    "quarantine.before_delete",
    "quarantine.after_delete",
    "adopt.before_replace",
    "store.before_rename",
    "adopt.after_replace",
    "wipe.before_identity",
    "wipe.after_identity",
    "wipe.before_end",
)
"""Failpoints that need a damaged spool or the command line; swept in tests/unit/spool."""

_OPTIONS = {
    "maxOutstandingBytes": "50",
    "maxRecordsPerTrigger": "8",
    "maxFetchPeriod": "1ms",
    "streams": "1",
}
"""Small segments and batches: much happens to few messages."""

_TIMEOUT = 60.0


@dataclass(frozen=True)
class Crash:
    """One crash of the sweep: which process, at which failpoint, at which pass of it."""

    role: str
    point: str
    passes: int = 1

    def failpoints(self, flag: Path) -> str:
        """As ``CONNECTORS_FAILPOINTS`` has it; the process that dies creates the flag."""
        return f"{self.role}/{self.point}=kill_once:{flag}:{self.passes}"

    @property
    def messages(self) -> int:
        """The most messages it may take until it happens.

        Runs of ids are merged when there are four of one size. A manifest becomes useless by a snapshot, which comes
        after 128 records; each batch of 8 messages puts one at least.
        """
        if "swap" in self.point:
            return 4000
        return 1200 if self.point.startswith("manifest.") and self.point.endswith("_delete") else 80


def all_crashes(passes: int = 1, *, objects: bool = False) -> list[Crash]:
    """One crash at each failpoint, fetchers first.

    Args:
        passes: at which pass of it.
        objects: whether the spool is on an object store.
    """
    fetchers, readers = FETCHER_POINTS, READER_POINTS
    if objects:
        fetchers = (*OBJECT_POINTS[:1], *(point for point in fetchers if point not in LOCAL_POINTS))
        readers = (*OBJECT_POINTS, *(point for point in readers if point not in LOCAL_POINTS))
    crashes = [Crash("fetcher", point, passes) for point in fetchers if not point.endswith("_nack")]
    return crashes + [Crash("reader", point, passes) for point in readers]


def points_in_code() -> set[str]:
    """Every failpoint that the code of the spool and of Pub/Sub names."""
    root = Path(__file__).parents[2] / "connectors"
    files = [*root.glob("spool/**/*.py"), *root.glob("pubsub/**/*.py")]
    return {point for file in files for point in re.findall(r'failpoint\(\s*"([^"]+)"', file.read_text())}


def sweep(rig: PubSubRig, crashes: Sequence[Crash]) -> list[Crash]:
    """Crash at each failpoint in turn, then run to the end; the crashes that did not happen."""
    missed = []
    with rig.query(_OPTIONS) as query:
        for number, crash in enumerate(crashes):
            flag = rig.folder / f"crash-{number}"
            failpoints = crash.failpoints(flag)
            rig.before_crash(failpoints if crash.role == "fetcher" else "", _OPTIONS)
            query.restart(reader_environment={"CONNECTORS_FAILPOINTS": failpoints})
            _run_into(rig, query, crash, flag)
            if not flag.exists():
                missed.append(crash)
            # What a dead fetcher held comes again at its deadline.
            rig.server.jump(15)
        rig.before_crash("", _OPTIONS)
        query.restart(reader_environment={"CONNECTORS_FAILPOINTS": ""})
        rig.run_until_all(query, _TIMEOUT)
        query.idle(3)
    rig.assert_each_once()
    return missed


def _run_into(rig: PubSubRig, query: StreamingQuery, crash: Crash, flag: Path) -> None:
    """Publish and run batches until the crash has happened, or all went through without it."""
    portion = rig.portion_of(crash.messages)
    rig.publish(portion)
    left = crash.messages - portion
    end = time.monotonic() + _TIMEOUT
    with contextlib.suppress(ReaderDiedError):
        while time.monotonic() < end and not (crash.role == "fetcher" and flag.exists()):
            if query.run_trigger() is None:
                time.sleep(query.poll_interval)
            if rig.sink.rows() < len(rig.published):
                continue
            if left > 0:
                rig.publish(portion)
                left -= portion
            else:
                # A last commit, and what follows from it, needs one more batch.
                rig.publish(4)
                end = min(end, time.monotonic() + 30)
