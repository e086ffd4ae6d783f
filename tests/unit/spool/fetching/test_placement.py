"""Which fetchers run beside executors, by the files that driver and fetchers leave in the spool."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from connectors.core.errors import SourceGoneError
from connectors.spool.fetching.placement import Claim, Place, Placement, lost_seconds, places_now
from connectors.spool.store.base import Holder
from connectors.testing.object_store import ObjectStoreServer
from tests.support.spool_writing import HandSpool, ObjectSpool

ELSEWHERE = replace(Holder.this_process(os.getpid()), machine="another", host="worker-7")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["folder", "object store"])
def spool(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HandSpool]:
    if request.param == "folder":
        made = HandSpool(tmp_path / "spool")
        made.open()
        yield made
        return
    with ObjectStoreServer() as server:
        made = ObjectSpool(server=server)
        made.open()
        yield made


def claim(spool: HandSpool, placement: Placement, number: int, round_: int = 0, holder: Holder = ELSEWHERE) -> Claim:
    return Claim(spool.store, placement.job, Place(number, round_, holder, "3"))


def test_a_place_is_taken_once_and_seen_with_its_host(spool: HandSpool, clock: Clock) -> None:
    placement = Placement(spool.store, 2, clock)
    placement.announce()
    assert placement.missing(placement.look()) == [(0, 0), (1, 0)]
    first = claim(spool, placement, 1)
    assert first.take()
    assert not claim(spool, placement, 1, holder=replace(ELSEWHERE, pid=1)).take()
    first.keep(folders=("f0",), healthy=True)
    (place,) = placement.look()
    assert (place.number, place.holder.host, place.executor, place.folders, place.healthy) == (
        *(1, "worker-7", "3"),
        *(("f0",), True),
    )
    assert placement.missing([place]) == [(0, 0)]
    assert str(place) == f"1 on worker-7 (executor 3, pid {os.getpid()})"


def test_a_fetcher_that_gives_no_sign_is_lost_and_wanted_in_the_next_round(spool: HandSpool, clock: Clock) -> None:
    placement = Placement(spool.store, 1, clock)
    placement.announce()
    lost = claim(spool, placement, 0)
    assert lost.take()
    for _ in range(3):
        clock.now += lost_seconds(spool.store) - 1
        lost.keep()
        assert placement.missing(placement.look()) == []
    clock.now += lost_seconds(spool.store) + 1
    assert placement.missing(placement.look()) == [(0, 1)]
    assert lost.is_wanted(), "it is not known yet"
    placement.announce()
    assert not lost.is_wanted()
    assert claim(spool, placement, 0, 1).is_wanted()


def test_a_fetcher_whose_process_is_gone_on_this_machine_is_lost_at_once(spool: HandSpool, clock: Clock) -> None:
    placement = Placement(spool.store, 1, clock)
    gone = replace(Holder.this_process(), start=1)
    assert claim(spool, placement, 0, holder=gone).take()
    assert placement.missing(placement.look()) == [(0, 1)]


def test_a_fetcher_that_has_left_is_wanted_again(spool: HandSpool, clock: Clock) -> None:
    placement = Placement(spool.store, 1, clock)
    leaving = claim(spool, placement, 0)
    assert leaving.take()
    assert placement.missing(placement.look()) == []
    leaving.leave()
    leaving.keep()
    assert placement.look() == []
    assert placement.missing([]) == [(0, 1)]


def test_the_error_of_a_fetcher_arrives(spool: HandSpool, clock: Clock) -> None:
    placement = Placement(spool.store, 1, clock)
    failed = claim(spool, placement, 0)
    assert failed.take()
    failed.keep(ended=True, error=SourceGoneError("GONE", "It is gone", "there", "Make it."))
    (place,) = placement.look()
    assert isinstance(place.error, SourceGoneError)
    assert places_now(spool.store) == []
    assert placement.missing([place]) == [(0, 1)]


def test_a_driver_that_gives_no_sign_wants_nothing(spool: HandSpool, clock: Clock) -> None:
    placement = Placement(spool.store, 1, clock)
    placement.announce()
    fetcher = Claim(spool.store, placement.job, Place(0, 0, ELSEWHERE), clock)
    for _ in range(3):
        clock.now += 4 * lost_seconds(spool.store)
        placement.announce()
        assert fetcher.is_wanted()
    clock.now += 6 * lost_seconds(spool.store)
    assert not fetcher.is_wanted()


def test_nothing_of_a_job_is_left_at_its_end(spool: HandSpool) -> None:
    other = Placement(spool.store, 1)
    other.announce()
    placement = Placement(spool.store, 1)
    placement.announce()
    fetcher = claim(spool, placement, 0)
    assert fetcher.take()
    placement.end(0.0)
    assert not fetcher.is_wanted()
    assert spool.store.list("fetchers") == [f"{other.job}.wanted"]


def test_files_of_a_driver_that_died_long_ago_are_removed(tmp_path: Path) -> None:
    spool = HandSpool(tmp_path / "spool")
    spool.open()
    dead, present, placement = (Placement(spool.store, 1) for _ in range(3))
    for each in (dead, present):
        each.announce()
        assert claim(spool, each, 0).take()
    for path in (spool.root / "fetchers").glob(f"{dead.job}.*"):
        os.utime(path, (0, 0))
    placement.announce()
    placement.forget_others()
    assert {name.partition(".")[0] for name in spool.store.list("fetchers")} == {present.job, placement.job}
    assert [place.holder for place in places_now(spool.store)] == [ELSEWHERE]


def test_a_damaged_file_is_no_place(spool: HandSpool) -> None:
    placement = Placement(spool.store, 1)
    spool.store.overwrite(f"fetchers/{placement.job}.0.0", b"{}")
    assert places_now(spool.store) == []
    assert placement.missing(placement.look()) == [(0, 1)]
