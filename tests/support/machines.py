"""Machines that differ from this one: by their clock, by what they can reach, and as holders of a spool."""

from __future__ import annotations

import os
import runpy
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

from connectors.pubsub.datasource import PubSubDataSource
from connectors.spool.fetching.messages import FetchPlan
from connectors.spool.fetching.placement import Place, Placement, beat_seconds
from connectors.spool.store.base import Store
from tests.support.executor_process import ExecutorProcess
from tests.support.waiting import wait_for

REPOSITORY = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "other_machine"


def machine(name: str, ahead: float = 0.0) -> dict[str, str]:
    """Return what tells a process of another machine, whose clock is so many seconds ahead of this one's."""
    return {"CLOCK_AHEAD": str(ahead), "BOOT_ID": f"boot-of-{name}"}


def executor_on(machine: Mapping[str, str], plan: FetchPlan) -> ExecutorProcess:
    """Return an executor on another machine; its fetchers are there too."""
    paths = [str(FOLDER), str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    return ExecutorProcess(plan, {**machine, "PYTHONPATH": os.pathsep.join(paths)})


class PubSubElsewhere(PubSubDataSource):
    """The source, whose reader process moves to the `machine` of its environment: it is forked, not started."""

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if "CLOCK_AHEAD" in os.environ:  # it is not in a task worker, which Spark asks for the plan
            runpy.run_path(str(FOLDER / "sitecustomize.py"))
        return super().streamReader(schema)


class FetcherDriver(AbstractContextManager["FetcherDriver"]):
    """The driver's side of fetchers beside executors, without the jobs of Spark that start them.

    Args:
        store: the driver's own.
        fetchers: how many are wanted.
    """

    def __init__(self, store: Store, fetchers: int) -> None:
        self.placement = Placement(store, fetchers)
        self.placement.announce()
        self._store = store
        self._ended = threading.Event()
        self._beat = threading.Thread(target=self._announce, daemon=True)

    def __enter__(self) -> Self:
        self._beat.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._beat.join()
        self.placement.end(20.0)

    def _announce(self) -> None:
        while not self._ended.wait(beat_seconds(self._store)):
            self.placement.announce()

    def wait_for_places(self, count: int) -> Sequence[Place]:
        """Wait until so many fetchers have their folders and are healthy."""
        places: Sequence[Place] = wait_for(lambda: found if len(found := self._healthy()) == count else None)
        return places

    def _healthy(self) -> list[Place]:
        return [place for place in self.placement.look() if place.healthy and not self.placement.is_lost(place)]

    def missing_within(self, seconds: float) -> list[tuple[int, int]]:
        """Look until a fetcher is missing, at most for so long; return which are, with their next round."""
        end = time.monotonic() + seconds
        missing: list[tuple[int, int]] = []
        while not missing and time.monotonic() < end:
            missing = self.placement.missing(self.placement.look())
            time.sleep(0.5)
        return missing
