"""Fetchers beside an executor, which here is a process without Spark: how they start, and what ends them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from connectors.core.processes.table import start_time
from connectors.spool.fetching.detached import start_in_task
from connectors.spool.fetching.messages import FetchPlan, encode
from connectors.spool.fetching.placement import Place, Placement
from tests.support.executor_process import ExecutorProcess
from tests.support.fetch_targets import numbers_of, read_log
from tests.support.spark_protocol.driver import descendants
from tests.support.spool_writing import HandSpool
from tests.support.waiting import wait_for

REPOSITORY = Path(__file__).parents[4]


class Rig:
    """A spool, a driver that wants two fetchers, and executors."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.spool = HandSpool(folder / "spool")
        self.spool.open()
        self.log = folder / "log"
        settings = {"log": str(self.log), "total": 200, "rows": 10, "bytes": 100}
        self.plan = FetchPlan(
            "tests.support.fetch_targets:NumberTarget",
            str(self.spool.root),
            self.spool.identity().spool,
            b"k" * 16,
            settings=settings,
            share_of=2,
            max_spool_bytes=1 << 30,
            max_reader_age=600.0,
        )
        self.placement = Placement(self.spool.store, 2)
        self.placement.announce()
        self._stack = stack
        self.seen: set[int] = set()

    def executor(self, plan: FetchPlan | None = None) -> ExecutorProcess:
        return self._stack.enter_context(ExecutorProcess(plan or self.plan))

    def places(self) -> list[Place]:
        """The places of fetchers that are at work."""
        return [place for place in self.placement.look() if place.folders and not self.placement.is_lost(place)]

    def wait_for_places(self, count: int) -> list[Place]:
        places: list[Place] = wait_for(lambda: found if len(found := self.places()) == count else None)
        self.seen |= {pid for place in places for pid in (place.holder.pid, *descendants(place.holder.pid))}
        return places

    def wait_for_end(self) -> None:
        """Wait until no process that was seen lives."""
        wait_for(lambda: not any(map(start_time, self.seen)))

    def end(self) -> None:
        self.placement.end(60.0)
        self.wait_for_end()


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY), prepend=os.pathsep)
    with ExitStack() as stack:
        made = Rig(tmp_path, stack)
        yield made
        made.end()


def test_a_short_task_starts_a_fetcher_that_outlives_it_and_its_worker(rig: Rig) -> None:
    executor = rig.executor()
    assert executor.run(rig.placement.job, 0)["outcome"] == "started"
    (place,) = rig.wait_for_places(1)
    assert (place.holder.jvm, place.holder.is_here) == (executor.pid, True)
    wait_for(lambda: len(numbers_of(read_log(rig.log), "ack")) == 200)
    wait_for(lambda: not list(descendants(executor.pid)))  # the worker ends after its answer
    assert rig.placement.missing(rig.placement.look()) == [(1, 0)]


def test_an_executor_that_is_killed_takes_its_fetchers_along(rig: Rig) -> None:
    first, second = rig.executor(), rig.executor()
    assert first.run(rig.placement.job, 0)["outcome"] == "started"
    assert second.run(rig.placement.job, 1)["outcome"] == "started"
    rig.wait_for_places(2)
    first.kill()
    wait_for(lambda: rig.placement.missing(rig.placement.look()) == [(0, 1)])
    rig.placement.announce()
    assert second.run(rig.placement.job, 0, 1)["outcome"] == "started"
    assert {place.holder.jvm for place in rig.wait_for_places(2)} == {second.pid}
    second.kill()
    rig.wait_for_end()


def test_a_driver_that_wants_no_fetcher_any_more_ends_it(rig: Rig) -> None:
    executor = rig.executor()
    assert executor.run(rig.placement.job, 0)["outcome"] == "started"
    rig.wait_for_places(1)
    rig.end()
    assert rig.spool.store.list("fetchers") == []
    assert start_time(executor.pid), "only the fetchers have ended"


def test_fetchers_of_a_process_that_is_killed_end_and_are_missed(rig: Rig) -> None:
    executor = rig.executor()
    assert executor.run(rig.placement.job, 0)["outcome"] == "started"
    (place,) = rig.wait_for_places(1)
    os.kill(place.holder.pid, signal.SIGKILL)
    rig.wait_for_end()
    assert rig.placement.missing(rig.placement.look()) == [(0, 1), (1, 0)]


def test_a_task_that_spark_runs_twice_starts_one_fetcher(rig: Rig) -> None:
    executor = rig.executor()
    outcomes = [executor.run(rig.placement.job, 0)["outcome"] for _ in range(2)]
    assert outcomes == ["started", "taken"]
    rig.wait_for_places(1)


def test_an_executor_that_has_its_share_declines(rig: Rig) -> None:
    first, second = rig.executor(), rig.executor()
    assert first.run(rig.placement.job, 0, most=1)["outcome"] == "started"
    assert first.run(rig.placement.job, 1, most=1)["outcome"] == "declined"
    assert second.run(rig.placement.job, 1, most=1)["outcome"] == "started"
    rig.wait_for_places(2)


def test_an_executor_that_cannot_see_the_spool_says_so_and_makes_nothing_there(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    answer = rig.executor(replace(rig.plan, root=str(tmp_path / "empty"))).run(rig.placement.job, 0)
    assert (answer["outcome"], answer["error"]["code"]) == ("failed", "SPOOL_NOT_VISIBLE")
    assert not list((tmp_path / "empty").iterdir())


@pytest.mark.parametrize("version", [0, 2])
def test_a_plan_of_a_driver_with_another_version_is_refused_on_an_executor(rig: Rig, version: int) -> None:
    line = encode(rig.plan).replace(b'"v": 1', f'"v": {version}'.encode())
    order = {"job": rig.placement.job, "number": 0, "round": 0, "at_executor": 9, "on_machine": 9}
    assert "FETCHER_OTHER_VERSION" in start_in_task(order, [line])
