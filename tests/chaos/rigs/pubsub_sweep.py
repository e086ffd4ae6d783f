"""The crash sweep with a replay across each crash: a batch has run when its reader dies, and runs again afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from connectors.pubsub.datasource import PubSubDataSource
from connectors.testing.object_store import ObjectStoreServer
from connectors.testing.pubsub import PubSubServer
from tests.support.external_rig import ExternalRig
from tests.support.pubsub_rig import PubSubRig
from tests.support.pubsub_sweep import all_crashes, sweep
from tests.support.spark_protocol.driver import (
    Batch,
    DriverCrashedError,
    ReaderDiedError,
    StreamingQuery,
    TaskWorkers,
)
from tests.support.spark_protocol.stream import Trigger
from tests.support.spool_writing import object_store_options

_MESSAGES_TO_REPLAY = 6
_BATCH_SECONDS = 60.0


class ReplayingQuery(StreamingQuery):
    """A query in which every restart begins with a replay, whose digest the driver compares.

    Before it restarts it runs a batch up to the point where its tasks are done, and dies there.
    """

    def __init__(self, rig: PubSubRig, options: Mapping[str, str], environment: Mapping[str, str]) -> None:
        super().__init__(
            PubSubDataSource,
            options,
            checkpoint=rig.checkpoint,
            sink=rig.sink,
            workers=rig.workers,
            reader_environment=environment,
        )
        self.replays_compared = 0
        self._rig = rig

    def restart(self, *, trigger: Trigger | None = None, reader_environment: Mapping[str, str] | None = None) -> None:
        """Leave a batch between its tasks and its commit, then restart."""
        if not self._spoils(reader_environment or {}):
            self._leave_batch_undone()
        super().restart(trigger=trigger, reader_environment=reader_environment)

    def _spoils(self, environment: Mapping[str, str]) -> bool:
        """Whether a run in between would do, unharmed, what the next run is to die in.

        That is merging the runs of ids, and closing the folder of a fetcher that died.
        """
        asked_for = environment.get("CONNECTORS_FAILPOINTS", "")
        return not self.is_running and any(point in asked_for for point in ("swap", "store.after_close"))

    def _leave_batch_undone(self) -> None:
        if not self.is_running:
            self.reader_environment = {}
            self.start()
        self._rig.publish(_MESSAGES_TO_REPLAY)
        self.crash_at("tasks_done")
        # The reader may still come to the failpoint of the run that ends here.
        with contextlib.suppress(DriverCrashedError, ReaderDiedError):
            self.run_batch(_BATCH_SECONDS)
        self._crash = None

    def _compare_with_earlier_attempt(self, batch: Batch) -> None:
        self.replays_compared += batch.replayed and self.checkpoint.attempt(batch.batch_id) is not None
        super()._compare_with_earlier_attempt(batch)


class ReplayingRig(PubSubRig):
    """A rig whose queries replay."""

    def query(
        self, options: Mapping[str, str] | None = None, failpoints: str = "", **_arguments: Any
    ) -> ReplayingQuery:
        """A query on the rig's checkpoint and sink."""
        self.last = ReplayingQuery(self, self.options(**(options or {})), {"CONNECTORS_FAILPOINTS": failpoints})
        return self.last


class ReplayingExternalRig(ReplayingRig, ExternalRig):
    """A rig whose queries replay what fetchers outside of them fetch."""


Spool = Callable[[ExitStack], Mapping[str, str]]
"""Gives the options that say where a spool goes; what it starts for that is closed with the stack."""


def own_object_store(stack: ExitStack) -> Mapping[str, str]:
    """A spool on an object store server of our own."""
    return object_store_options(stack.enter_context(ObjectStoreServer()))


def run_sweep(folder: Path, *, spool: Spool | None = None, external: bool = False) -> dict[str, Any]:
    """Crash the fetcher and the reader at every failpoint; the outcome for the record.

    Args:
        folder: for checkpoint, sink and spool.
        spool: where the spool goes instead, which is an object store.
        external: ``connectors fetch`` fetches; it dies with its fetchers before each of their crashes, and outlives
            those of the reader.

    Raises:
        AssertionError, ProtocolError: rows were lost or doubled, a replay differed, or a batch did not come.
    """
    crashes = all_crashes(objects=spool is not None)
    workers = TaskWorkers(1)
    try:
        with PubSubServer() as server, ExitStack() as stack:
            options = None if spool is None else spool(stack)
            kind = ReplayingExternalRig if external else ReplayingRig
            rig = kind(server, server.endpoint, folder, workers, options)
            if isinstance(rig, ExternalRig):
                stack.enter_context(rig)
            missed = sweep(rig, crashes)
    finally:
        workers.close()
    return {
        "ok": not missed,
        "faults": [f"not reached: {crash.role} at {crash.point}" for crash in missed],
        "killed_at": [f"{crash.role} {crash.point}" for crash in crashes],
        "counts": {
            "kills": len(crashes) - len(missed),
            "messages": len(rig.published),
            "replays_compared": rig.last.replays_compared,
            "replays_differing": 0,
            "lost": 0,
            "doubled": 0,
        },
    }
