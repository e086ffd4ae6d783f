"""Spools are looked at beside their queries, and hold up none."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from connectors.core.errors import CredentialsError, OptionError
from connectors.observe.lag import (
    Measurement,
    PartitionLag,
    SourceMeasurement,
    SpoolMeasurement,
)
from connectors.observe.spool_probe import SpoolWatch, SpoolWatches
from connectors.observe.watch import Observer, watch
from connectors.spool.fetching.placement import Claim, Place, Placement
from connectors.spool.store.base import Holder
from tests.support.observed import Spool, heard, kafka, progress, session
from tests.support.spool_writing import SOURCES, HandSpool
from tests.support.waiting import wait_for


def test_a_spool_is_looked_at_beside_its_query_with_rates(tmp_path: Path) -> None:
    spool = HandSpool(tmp_path / "spool")
    ledger = spool.open()
    watcher = SpoolWatch(str(spool.root))
    first = watcher.look()
    assert (first.sources, first.delivered, first.oldest_unread_ms, first.admitted_per_second) == (SOURCES, 0, 0, None)
    spool.write(["a", "b", "a"], published=2_000_000)
    ledger.admit()
    second = watcher.look()
    assert (second.delivered, second.duplicates, second.rows, second.bytes) == (3, 1, 2, 20)
    assert second.oldest_unread_ms > 0
    assert second.admitted_per_second is not None
    assert second.kept_per_second is not None
    assert second.admitted_per_second == pytest.approx(second.kept_per_second * 1.5)
    ledger.commit(2)
    assert watcher.look().oldest_unread_ms == 0


def test_an_observer_shows_where_fetchers_on_executors_run(tmp_path: Path) -> None:
    spool = HandSpool(tmp_path / "spool")
    spool.open()
    watcher = SpoolWatch(str(spool.root))
    assert watcher.look().executor_fetchers == ()
    placement = Placement(spool.store, 1)
    placement.announce()
    holder = replace(Holder.this_process(), host="worker-7", pid=42)
    claim = Claim(spool.store, placement.job, Place(0, 0, holder, "3"))
    assert claim.take()
    seen = watcher.look()
    assert seen.executor_fetchers == ("0 on worker-7 (executor 3, pid 42)",)
    source = SourceMeasurement("spool", 1, 1, 1, {"": PartitionLag(1, 1)}, seen)
    assert (
        "fetchers on executors: 0 on worker-7 (executor 3, pid 42)"
        in Measurement(1, "q", "r", "", 1, 1, 1, 1.0, (source,)).line()
    )
    claim.leave()
    assert watcher.look().executor_fetchers == ()


def fails(error: Exception) -> Callable[[], SpoolMeasurement]:
    def look() -> SpoolMeasurement:
        raise error

    return look


@pytest.mark.parametrize(
    "error",
    [CredentialsError("SPOOL_REFUSED", "No"), PermissionError(13, "no"), TimeoutError("no answer"), ValueError("odd")],
    ids=lambda error: type(error).__name__,
)
def test_a_spool_that_cannot_be_seen_hides_no_batch(
    error: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool = Spool(fails(error))

    def act(observer: Observer) -> None:
        for batch in range(3):
            observer._listener._put(("progress", progress(kafka(10, 15), batch=batch)))

    lines = heard(tmp_path, act, spools=SpoolWatches([spool]))
    assert [line["batch"] for line in lines] == [0, 1, 2]
    assert spool.looks == 1
    assert caplog.text.count("[OBSERVE_SPOOL]") == 1


def test_a_spool_that_could_not_be_seen_is_looked_at_again_after_a_while() -> None:
    now = 100.0
    spool = Spool(fails(TimeoutError()))
    watches = SpoolWatches([spool], clock=lambda: now)
    looks = []
    for seconds in (0, 29, 2):
        now += seconds
        assert watches.look() == {}
        looks.append(spool.looks)
    assert looks == [1, 1, 2]


class Store:
    """A store whose looks take so many seconds, of a clock of the test's."""

    def __init__(self, takes: float) -> None:
        self.now = 100.0
        self.rows = 0
        self.spool = Spool(partial(self._look, takes))
        self.watches = SpoolWatches([self.spool], clock=lambda: self.now, patience=1000.0)

    def _look(self, takes: float) -> SpoolMeasurement:
        self.now += takes
        return SpoolMeasurement("s0", (), 9, 2, self.rows, 4, 100, 1500)


@pytest.mark.parametrize(("takes", "pause"), [(0.01, 1.0), (0.25, 1.0), (2.0, 6.0), (4.0, 12.0)])
def test_after_a_look_the_last_answer_is_reported_for_a_second_or_three_times_what_it_took(
    takes: float, pause: float
) -> None:
    store = Store(takes)
    assert store.watches.look()["s0"].rows == 0
    store.rows, ended = 7, store.now
    for part in (0.0, 0.5, 0.99):
        store.now = ended + pause * part
        assert store.watches.look()["s0"].rows == 0
    assert store.spool.looks == 1
    store.now = ended + pause * 1.001
    assert store.watches.look()["s0"].rows == 7


def test_what_is_reported_of_batches_keeps_up_with_a_slow_store() -> None:
    store = Store(3.0)
    behind = []
    for batch in range(200):
        # A batch ends each half second; it is told when that is over, and all before it is told.
        ended = 100.0 + batch / 2
        store.now = max(store.now, ended)
        store.watches.look()
        behind.append(store.now - ended)
    assert max(behind) <= 3.0
    assert store.spool.looks in range(7, 11)


def test_spools_are_looked_at_side_by_side() -> None:
    both = threading.Barrier(2)

    def look() -> SpoolMeasurement:
        both.wait(30)
        return SpoolMeasurement(threading.current_thread().name, (), 9, 2, 7, 4, 100, 1500)

    SpoolWatches([Spool(look), Spool(look)], patience=60.0).look()
    assert not both.broken


def test_the_time_of_a_batch_is_that_at_which_it_was_reported(tmp_path: Path) -> None:
    began, answer = threading.Event(), threading.Event()

    class Slow(SpoolWatches):
        def look(self) -> dict[str, SpoolMeasurement]:
            began.set()
            answer.wait(30)
            return {}

    heard_by: list[int] = []

    def act(observer: Observer) -> None:
        for batch in range(2):
            observer._listener._put(("progress", progress(kafka(10, 15), batch=batch)))
        began.wait(30)
        heard_by.append(time.time_ns() // 1_000_000)
        wait_for(lambda: time.time_ns() // 1_000_000 > heard_by[0])
        answer.set()

    lines = heard(tmp_path, act, spools=Slow([]))
    assert [line["batch"] for line in lines] == [0, 1]
    assert max(line["time_ms"] for line in lines) <= heard_by[0]


def test_a_store_that_does_not_answer_holds_up_no_batch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    answer = threading.Event()
    found = SpoolMeasurement("s1", (), 9, 2, 7, 4, 100, 1500)

    def hang() -> SpoolMeasurement:
        answer.wait()
        return found

    spool = Spool(hang)
    watches = SpoolWatches([spool], clock=lambda: now, patience=0.05)

    def act(observer: Observer) -> None:
        for batch in range(20):
            observer._listener._put(("progress", progress(kafka(10, 15), batch=batch)))

    assert [line["batch"] for line in heard(tmp_path, act, spools=watches)] == list(range(20))
    assert caplog.text.count("[OBSERVE_SPOOL]") == 1
    now += 31
    assert watches.look() == {}
    assert spool.looks == 1, "the look that hangs is still under way"
    answer.set()
    watches._looks[spool].join(30)
    now += 31
    assert SpoolWatches([spool]).look() == {"s1": found}
    assert watches.look() == {"s1": found}


def test_a_spool_that_is_not_made_yet_is_looked_at_again_a_second_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = 100.0
    watches = SpoolWatches([SpoolWatch(tmp_path / "spool")], clock=lambda: now)
    assert watches.look() == {}
    HandSpool(tmp_path / "spool").open()
    now += 1
    assert len(watches.look()) == 1
    assert "OBSERVE_SPOOL" not in caplog.text


@pytest.mark.parametrize("form", ["path", "text", "file:", "file://", "list"])
def test_spools_are_given_as_spool_location_is_or_as_a_single_one(form: str, tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    HandSpool(folder).open()
    given: Any = {"path": folder, "text": str(folder), "list": [folder]}.get(form, f"{form}{folder}")
    with watch(session(), spools=given) as observer:
        assert observer._spools is not None
        assert len(observer._spools.look()) == 1


@pytest.mark.parametrize("location", ["", "http://host/spool", "s3://", "spool"])
def test_a_place_where_no_spool_can_be_is_reported_at_once(location: str) -> None:
    with pytest.raises(OptionError, match="OBSERVE_SPOOLS"):
        watch(session(), spools=[location])
