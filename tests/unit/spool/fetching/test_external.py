"""What a reader and fetchers that run elsewhere tell each other through the ledger (rules R2 and R6)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from connectors.core.errors import SpoolDamagedError
from connectors.spool.fetching.external import ExternalFetching
from connectors.spool.fetching.messages import FetchPlan
from connectors.spool.fetching.process import PublishedBytes, ReaderWatch
from connectors.spool.fetching.room import FetcherFolder, heartbeat_seconds, share_of
from connectors.spool.ledger.recovery import clear_temporary, read_state
from connectors.spool.store.base import Holder, StoreWriting
from connectors.spool.store.local import LocalStore
from connectors.spool.stream.compaction import Compaction, CompactionSettings
from connectors.testing.object_store import ObjectStoreServer
from tests.support.spool_writing import HandSpool, ObjectSpool

FETCHER = "f0"


@pytest.fixture
def server() -> Iterator[ObjectStoreServer]:
    with ObjectStoreServer() as running:
        yield running


@pytest.fixture(params=["folder", "object store"])
def spool(request: pytest.FixtureRequest, tmp_path: Path) -> HandSpool:
    if request.param == "folder":
        return HandSpool(tmp_path / "spool")
    return ObjectSpool(server=request.getfixturevalue("server"))


def plan_of(spool: HandSpool, most: int = 1000, fetchers: int = 2) -> FetchPlan:
    plan = FetchPlan("none", str(spool.root), spool.identity().spool, b"k", share_of=fetchers, max_spool_bytes=most)
    return replace(plan, max_reader_age=600.0)


def watch_of(spool: HandSpool, **arguments: int) -> ReaderWatch:
    spool.store.make_folder(f"inbox/{FETCHER}")
    return ReaderWatch(spool.store, plan_of(spool, **arguments), FETCHER)


def published(*segments: int) -> PublishedBytes:
    made = PublishedBytes()
    for each in segments:
        made.add(each)
    return made


def test_a_share_is_never_nothing_while_there_is_room() -> None:
    assert [share_of(room, 4) for room in (0, 1, 3, 4, 400)] == [0, 1, 1, 1, 100]
    assert [heartbeat_seconds(age) for age in (4, 600, 86_400)] == [1, 60, 60]


def test_before_anything_is_announced_a_fetcher_may_fill_its_share_of_the_spool(spool: HandSpool) -> None:
    spool.open()
    assert watch_of(spool).check(published())[1] == 500
    assert watch_of(spool).check(published(300, 150))[1] == 500


def test_a_fetcher_adds_its_share_of_the_room_to_what_was_admitted_of_it(spool: HandSpool) -> None:
    ledger = spool.open()
    watch = watch_of(spool)
    spool.write(["1", "2"], FETCHER, size=100)
    spool.write(["3"], "other", size=100)
    ledger.admit()
    ExternalFetching(ledger, 600.0).allow(700)
    # Two segments are published and one is admitted: the share counts from there.
    assert watch.check(published(200, 150))[1] == 200 + 350


def test_of_what_was_admitted_a_fetcher_keeps_only_the_sum(spool: HandSpool) -> None:
    ledger = spool.open()
    watch, fetching, made = watch_of(spool), ExternalFetching(ledger, 0.0), PublishedBytes()
    for number in range(1, 31):
        made.add(100)
        spool.write([str(number)], FETCHER, size=100)
        if number % 10 == 0:
            ledger.admit()
            fetching.allow(2 * number)
            # One more is published, and perhaps admitted, before the record is seen.
            made.add(100)
            spool.write([f"more {number}"], FETCHER, size=100)
            assert watch.check(made)[1] == made.bytes - 100 + number
            assert made.up_to(made.segments) == made.bytes
            assert len(made._totals) == 1


def test_bytes_up_to_a_number_are_those_of_all_below_it_also_when_some_are_forgotten() -> None:
    made = published(1, 10, 100, 1000)
    assert [made.up_to(segments) for segments in range(6)] == [0, 1, 11, 111, 1111, 1111]
    made.forget(2)
    assert [made.up_to(segments) for segments in range(6)] == [11, 11, 11, 111, 1111, 1111]
    made.forget(1)
    made.forget(9)
    made.add(10_000)
    assert (made.segments, made.bytes, made.up_to(4), made.up_to(5)) == (5, 11_111, 1111, 11_111)


def test_no_room_is_none_until_there_is_room_again(spool: HandSpool) -> None:
    ledger = spool.open()
    watch, fetching = watch_of(spool), ExternalFetching(ledger, 0.004)
    spool.write(["1"], FETCHER, size=100)
    ledger.admit()
    fetching.allow(0)
    assert watch.check(published(100))[1] == 100
    for room in (0, 1000):
        number = ledger.state.number
        while ledger.state.number == number:
            fetching.allow(room)
        assert watch.check(published(100))[1] == 100 + room // 2


def test_the_room_is_found_among_many_records_and_after_a_takeover(spool: HandSpool) -> None:
    ledger = spool.open("first")
    watch = watch_of(spool)
    ExternalFetching(ledger, 600.0).allow(100)
    for position in range(20):
        ledger.append({"commit": position})
    assert watch.check(published())[1] == 50
    second = spool.open("second")
    ExternalFetching(second, 600.0).allow(40)
    # It looks for a newer epoch when the one it knows is still for a while, or at once when it has just begun.
    assert watch_of(spool).check(published())[1] == 20


def test_an_announcement_changes_nothing_that_the_ledger_says(spool: HandSpool) -> None:
    ledger = spool.open()
    spool.write(["1"], FETCHER)
    ledger.admit()
    before = ledger.state.snapshot()
    ExternalFetching(ledger, 600.0).allow(5)
    assert ledger.state.snapshot() == before
    assert read_state(spool.store, spool.identity().spool).snapshot() == before


def test_a_quiet_reader_writes_a_sign_of_life_and_a_busy_one_no_more_than_it_must(spool: HandSpool) -> None:
    ledger = spool.open()
    busy, quiet = ExternalFetching(ledger, 600.0), ExternalFetching(ledger, 0.0)
    busy.allow(1000)
    number = ledger.state.number
    for _ in range(10):
        busy.allow(1000)
    assert ledger.state.number == number
    for _ in range(3):
        quiet.allow(1000)
    assert ledger.state.number == number + 3


def test_the_age_of_the_newest_record_is_by_the_file_systems_own_times(tmp_path: Path) -> None:
    spool = HandSpool(tmp_path / "spool")
    spool.open()
    for record in (tmp_path / "spool/ledger").rglob("*"):
        os.utime(record, (0, 0))
    watch = watch_of(spool)
    assert watch.check(published())[0] > 1e9
    assert spool.ledger is not None
    spool.ledger.append({"commit": 0})
    assert watch.check(published())[0] < 60


def test_the_age_is_by_the_object_stores_clock_whatever_this_machines_says(server: ObjectStoreServer) -> None:
    spool = ObjectSpool(server=server)
    server.ahead = -1e6
    spool.open()
    assert watch_of(spool).check(published())[0] < 60
    server.ahead = -1e6 + 1200
    spool.store.make_folder("inbox/f1")
    plan = plan_of(spool)
    assert 1100 < ReaderWatch(spool.store, plan, "f1").check(published())[0] < 1300


def test_nobody_is_seen_at_work_until_a_fetcher_holds_a_folder(spool: HandSpool) -> None:
    ledger = spool.open()
    assert not ExternalFetching(ledger, 600.0).status()[0].healthy
    spool.store.make_folder(f"inbox/{FETCHER}")
    assert len(ExternalFetching(ledger, 600.0).status()) == 1
    hold = spool.store.hold_folder(f"inbox/{FETCHER}")
    assert hold is not None
    assert not ExternalFetching(ledger, 600.0).status()
    hold.release()
    assert len(ExternalFetching(ledger, 600.0).status()) == 1


def elsewhere() -> bytes:
    return json.dumps({**asdict(Holder.this_process()), "machine": "another"}).encode()


def test_a_fetcher_of_another_machine_that_has_nothing_to_do_keeps_its_folder_for_a_while(
    server: ObjectStoreServer,
) -> None:
    spool = ObjectSpool(server=server)
    ledger = spool.open()
    spool.write(["1"], FETCHER)
    spool.store.overwrite(f"folders/inbox/{FETCHER}", elsewhere())
    for number in range(2, 7):
        spool.write([str(number)], "f1")
        ledger.admit()
        ledger.commit(ledger.state.head)
    now = [0.0]
    keeper = Compaction(ledger, CompactionSettings(free_segments=1), lambda: now[0])
    keeper.step()
    now[0] = 500.0
    keeper.step()
    assert FETCHER not in {entry.fetcher for entry in ledger.state.segments}
    assert not spool.store.is_closed("inbox/f0/1.arrow")
    now[0] = 700.0
    keeper.step()
    assert spool.store.is_closed("inbox/f0/1.arrow")
    assert not ObjectSpool(server=server).store.exists("inbox/f0/1.arrow")


def half_written(folder: FetcherFolder) -> StoreWriting:
    """A segment that a fetcher has begun."""
    writer = folder.store.writer(f"{folder.name}/0.arrow")
    writer.write(b"half of it")
    return writer


def owners(spool: HandSpool) -> set[str]:
    return {name.partition("-")[0] for name in spool.store.list("tmp")}


@pytest.mark.guarantee
def test_what_killed_fetchers_had_half_written_goes_while_the_query_runs(tmp_path: Path) -> None:
    spool = HandSpool(tmp_path / "spool")
    ledger = spool.open()
    live, killed = (FetcherFolder(str(spool.root)) for _ in range(2))
    now = [0.0]
    keeper = Compaction(ledger, CompactionSettings(), lambda: now[0])
    with half_written(live) as lives, half_written(killed), spool.store.writer("ids/0"):
        killed.release()
        keeper.step()
        assert killed.fetcher in owners(spool), "there is no hurry"
        now[0] = 61.0
        keeper.step()
        assert owners(spool) == {live.fetcher, spool.store.owner}
        lives.publish()
    assert spool.store.exists(f"{live.name}/0.arrow")


def test_a_fetcher_that_begins_while_temporary_files_are_looked_through_keeps_its_own(tmp_path: Path) -> None:
    spool = HandSpool(tmp_path / "spool")
    spool.open()
    began: list[FetcherFolder] = []

    class Watched(LocalStore):
        def list(self, folder: str) -> list[str]:
            if folder == "tmp" and not began:
                began.append(FetcherFolder(str(spool.root)))
                stack.enter_context(half_written(began[0]))
            return super().list(folder)

    with ExitStack() as stack:
        clear_temporary(Watched(str(spool.root), "reader"))
        assert owners(spool) == {began[0].fetcher}


def test_room_that_makes_no_sense_in_a_record_with_a_right_checksum_is_a_named_error(spool: HandSpool) -> None:
    ledger = spool.open()
    watch = watch_of(spool)
    ledger.append({"room": {"bytes": "much", "through": {}}})
    with pytest.raises(SpoolDamagedError, match=r"SPOOL_RECORD_DAMAGED.*room.bytes"):
        watch.check(published())
