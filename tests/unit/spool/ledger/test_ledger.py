"""Admission, positions, plans, commits and freeing, on spools written by hand."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from connectors.core.errors import DataLossError, OffsetError, SpoolDamagedError, SpoolError, SpoolFencedError
from connectors.core.processes.failpoints import set_failpoints
from connectors.spool import stats
from connectors.spool.ledger.identity import open_identity
from connectors.spool.ledger.records import claim_epoch, put_seal
from connectors.spool.store.local import lock_folder
from connectors.spool.stream.compaction import Compaction, CompactionSettings
from connectors.spool.stream.slices import check_range, cut_by_bytes, offset_at, plan, position_of
from tests.support.spool_writing import HandSpool, much_later


def numbers(first: int, end: int) -> list[str]:
    return [str(16_000_000_000_000_000 + number) for number in range(first, end)]


@pytest.fixture
def spool(tmp_path: Path) -> HandSpool:
    return HandSpool(tmp_path / "spool")


def test_every_durable_segment_is_admitted_once(spool: HandSpool) -> None:
    ledger = spool.open()
    spool.write(numbers(0, 5))
    spool.write(numbers(5, 7), fetcher="f1")
    assert ledger.admit() == 2
    assert ledger.admit() == 0
    assert sorted(spool.all_ids()) == numbers(0, 7)


def test_copies_are_dropped_within_a_segment_across_segments_and_after_a_restart(spool: HandSpool) -> None:
    ledger = spool.open()
    spool.write(["1", "2", "1", "x", "x"])
    spool.write(["2", "3", "x", "01"], fetcher="f1")
    ledger.admit()
    assert spool.all_ids() == ["1", "2", "x", "3", "01"]
    ledger = spool.open()
    spool.write(["3", "01", "4"], fetcher="f2")
    ledger.admit()
    assert spool.all_ids() == ["1", "2", "x", "3", "01", "4"]
    assert ledger.state.counters == {"delivered": 12, "duplicates": 6}


def test_positions_are_dense_over_segments_and_duplicates(spool: HandSpool) -> None:
    ledger = spool.open()
    for start in (0, 3, 2, 9):
        spool.write(numbers(start, start + 5))
        ledger.admit()
    rows = [row for part in spool.read(0, ledger.state.head) for row in part]
    assert [position for position, _ in rows] == list(range(ledger.state.head))
    assert [text for _, text in rows] == list(dict.fromkeys(numbers(0, 5) + numbers(3, 8) + numbers(9, 14)))


def test_any_cut_of_a_batch_gives_the_same_rows(spool: HandSpool) -> None:
    ledger = spool.open()
    seed = random.randrange(1 << 30)
    chooser = random.Random(seed)
    for _ in range(20):
        spool.write([str(chooser.randrange(60)) for _ in range(chooser.randrange(12))], size=chooser.randrange(1, 99))
        ledger.admit()
    head = ledger.state.head
    whole = [row for part in spool.read(0, head) for row in part]
    for _ in range(50):
        first, end = sorted((chooser.randrange(head + 1), chooser.randrange(head + 1)))
        rows = [row for part in spool.read(first, end) for row in part]
        assert rows == whole[first:end], f"seed {seed}"


def test_a_plan_is_the_same_after_a_restart_and_after_later_admissions(spool: HandSpool) -> None:
    spool.layout = (100, 3)
    ledger = spool.open()
    spool.write(numbers(0, 20))
    spool.write(numbers(15, 30))
    ledger.admit()
    before = plan(ledger.state, 3, 27, ledger.row_sizes)
    assert len(before) == 3
    spool.write(numbers(30, 90))
    ledger.admit()
    ledger = spool.open()
    assert plan(ledger.state, 3, 27, ledger.row_sizes) == before


def test_positions_keep_their_rows_over_restarts_whatever_the_names_of_the_segments(spool: HandSpool) -> None:
    ledger = spool.open()
    for number in range(12):
        spool.write([f"{number}-a", f"{number}-b"], fetcher=("f9", "f1", "f5")[number % 3])
        ledger.admit()
    wanted = spool.read(0, 24)
    for _ in range(3):  # the first start after it reads records, the second one a snapshot
        spool.open()
        assert spool.read(0, 24) == wanted


def test_partitions_are_near_equal_and_as_many_as_bytes_ask_for_up_to_the_limit(spool: HandSpool) -> None:
    spool.layout = (100, 4)
    ledger = spool.open()
    spool.write(numbers(0, 100), size=10)
    ledger.admit()
    assert [len(part) for part in spool.read(0, 10)] == [10]
    assert [len(part) for part in spool.read(0, 11)] == [5, 6]
    assert [len(part) for part in spool.read(0, 100)] == [25, 25, 25, 25]
    assert spool.read(7, 7) == []


def test_a_changed_layout_holds_for_batches_that_end_after_it(spool: HandSpool) -> None:
    spool.layout = (50, 8)
    ledger = spool.open()
    spool.write(numbers(0, 10))
    ledger.admit()
    spool.layout = (1000, 8)
    ledger = spool.open()
    spool.write(numbers(10, 20))
    ledger.admit()
    assert len(spool.read(0, 10)) == 2
    assert len(spool.read(0, 11)) == 1
    assert len(spool.read(0, 20)) == 1


def test_bytes_cut_at_any_row_and_a_row_larger_than_the_limit_passes_alone(spool: HandSpool) -> None:
    ledger = spool.open()
    spool.write(numbers(0, 10), size=10)
    spool.write(numbers(10, 12), size=1000)
    spool.write(numbers(12, 20), size=10)
    ledger.admit()
    state = ledger.state
    assert cut_by_bytes(state, 0, 20, 35, ledger.row_sizes) == 3
    assert cut_by_bytes(state, 3, 20, 70, ledger.row_sizes) == 10
    assert cut_by_bytes(state, 10, 20, 35, ledger.row_sizes) == 11
    assert cut_by_bytes(state, 11, 20, 1005, ledger.row_sizes) == 12
    assert cut_by_bytes(state, 12, 20, 1 << 30, ledger.row_sizes) == 20
    assert cut_by_bytes(state, 12, 14, 1 << 30, ledger.row_sizes) == 14
    assert cut_by_bytes(state, 20, 20, 5, ledger.row_sizes) == 20


def test_an_offset_is_known_only_within_the_positions_of_its_start(spool: HandSpool) -> None:
    ledger = spool.open()
    spool.write(numbers(0, 5))
    ledger.admit()
    first = offset_at(ledger.state, 5)
    ledger = spool.open()
    spool.write(numbers(5, 8))
    ledger.admit()
    assert offset_at(ledger.state, 5) == first
    assert position_of(ledger.state, offset_at(ledger.state, 8), "here") == 8
    with pytest.raises(OffsetError, match="SPOOL_OFFSET_ABOVE_HEAD"):
        position_of(ledger.state, {**first, "position": 6}, "here")
    with pytest.raises(OffsetError, match="SPOOL_OFFSET_UNKNOWN"):
        position_of(ledger.state, {**first, "epoch": "another"}, "here")
    with pytest.raises(OffsetError, match="SPOOL_OTHER"):
        position_of(ledger.state, {**first, "spool": "another"}, "here")


def commit_batches(spool: HandSpool, compaction: Compaction, batches: int, rows: int = 4) -> None:
    ledger = spool.ledger
    assert ledger is not None
    for _ in range(batches):
        head = ledger.state.head
        spool.write(numbers(head, head + rows))
        ledger.admit()
        ledger.commit(ledger.state.head)
        compaction.step()


def test_committed_segments_are_freed_but_for_the_last_two_batches(spool: HandSpool) -> None:
    ledger = spool.open()
    commit_batches(spool, Compaction(ledger, CompactionSettings(free_segments=1)), 5)
    assert ledger.state.oldest == 12
    assert len(list(spool.root.glob("inbox/f0/*"))) == 2
    check_range(ledger.state, 12, 20, "here")
    with pytest.raises(DataLossError, match="SPOOL_ROWS_FREED"):
        check_range(ledger.state, 11, 20, "here")


def test_retention_keeps_rows_for_so_long_after_their_commit_whenever_they_were_published(spool: HandSpool) -> None:
    ledger, hour, now = spool.open(), 3600.0, [1e6]
    compaction = Compaction(ledger, CompactionSettings(free_segments=1, retention=hour), clock=lambda: now[0])
    # The messages of ten days, in a few seconds, and a commit each six minutes from then on.
    for batch in range(10):
        spool.write(numbers(batch * 2, batch * 2 + 2), published=batch * 86_400_000_000)
    ledger.admit()
    for batch in range(10):
        ledger.commit(2 * batch + 2)
        compaction.step()
        assert ledger.state.oldest == 0
        now[0] += hour / 10
    compaction.step()
    assert ledger.state.oldest == 2
    now[0] += 0.45 * hour
    compaction.step()
    assert ledger.state.oldest == 10
    now[0] += hour
    compaction.step()
    # Less the last two batches.
    assert ledger.state.oldest == 16


def test_rows_committed_before_the_start_are_out_of_retention_when_their_files_are(spool: HandSpool) -> None:
    ledger, now = spool.open(), [1e6]
    commit_batches(spool, Compaction(ledger, CompactionSettings()), 6)
    ledger = spool.open()
    compaction = Compaction(ledger, CompactionSettings(free_segments=1, retention=3600.0), clock=lambda: now[0])
    compaction.step()
    now[0] += 3500.0
    compaction.step()
    assert ledger.state.oldest == 0
    # Short runs come to the same: an hour by the times of the files, and a moment by this process.
    spool.age("inbox/f0", 3590.0)
    ledger = spool.open()
    compaction = Compaction(ledger, CompactionSettings(free_segments=1, retention=3600.0), clock=lambda: now[0])
    compaction.step()
    assert ledger.state.oldest == 0
    now[0] += 11.0
    compaction.step()
    assert ledger.state.oldest == 16


def test_ids_outlive_their_segments_and_a_restart(spool: HandSpool) -> None:
    ledger = spool.open()
    commit_batches(spool, Compaction(ledger, CompactionSettings(free_segments=2, merge=3)), 30)
    for _ in range(9):
        Compaction(ledger, CompactionSettings(merge=3))
    ledger = spool.open()
    spool.write([*numbers(0, 120), "1"], fetcher="f9")
    ledger.admit()
    assert ledger.state.head == 121


@pytest.mark.guarantee
@pytest.mark.parametrize("point", ["free.before_record", "free.after_record", "free.after_delete", "ids.after_record"])
def test_a_crash_while_segments_are_freed_forgets_no_id(point: str, spool: HandSpool) -> None:
    ledger = spool.open()
    commit_batches(spool, Compaction(ledger, CompactionSettings()), 5)
    set_failpoints(f"{point}=raise:5")
    try:
        with pytest.raises(OSError, match="Input/output"):
            Compaction(ledger, CompactionSettings(free_segments=1)).step()
    finally:
        set_failpoints("")
    ledger = spool.open()
    spool.write(numbers(0, 20), fetcher="f9")
    ledger.admit()
    assert ledger.state.head == 20


def test_runs_of_one_size_are_merged_and_nothing_is_forgotten(spool: HandSpool) -> None:
    ledger = spool.open()
    compaction = Compaction(ledger, CompactionSettings(free_segments=1, merge=3))
    commit_batches(spool, compaction, 30)
    before = sum(run.ids for run in ledger.state.runs)
    while compaction.merge():
        pass
    assert len(ledger.state.runs) < 9
    assert sum(run.ids for run in ledger.state.runs) == before
    assert sorted(path.name for path in spool.root.glob("ids/*")) == sorted(run.name for run in ledger.state.runs)
    spool.write(numbers(0, 121))
    ledger.admit()
    assert ledger.state.head == 121


def test_a_run_goes_when_its_last_publish_time_is_older_than_the_horizon(spool: HandSpool) -> None:
    ledger = spool.open()
    compaction = Compaction(ledger, CompactionSettings(free_segments=1, recent_ids=1, horizon=10.0), clock=much_later)
    spool.write(["1", "2"], published=1_000_000)
    ledger.admit()
    compaction.step()
    spool.write(["3"], published=10_900_000)
    ledger.admit()
    compaction.note_admitted()
    compaction.expire()
    assert len(ledger.state.runs) == 1
    spool.write(["4"], published=11_100_000)
    ledger.admit()
    compaction.note_admitted()
    compaction.expire()
    assert ledger.state.runs == []
    spool.write(["1"], published=11_200_000)
    ledger.admit()
    assert spool.all_ids() == ["1", "2", "3", "4", "1"]


@pytest.mark.parametrize("durable", [True, False], ids=["run", "memory"])
def test_ids_of_a_backlog_are_known_for_the_horizon_after_their_admission(durable: bool, spool: HandSpool) -> None:
    # Three hours of messages are read in a moment, and some are delivered again in the next one.
    ledger, late = spool.open(), [0.0]
    settings = CompactionSettings(recent_ids=1 if durable else 1 << 20, horizon=600.0, merge=2)
    compaction = Compaction(ledger, settings, clock=lambda: time.monotonic() + late[0])

    def read(ids: list[str], fetcher: str, published: int) -> None:
        spool.write(ids, fetcher=fetcher, published=published)
        ledger.admit()
        compaction.step()
        compaction.merge()
        compaction.note_admitted()
        compaction.expire()

    for minute in range(0, 180, 5):
        read([str(minute)], "f0", minute * 60_000_000)
    late[0] = 500.0
    for minute in range(0, 50, 5):
        read([str(minute)], "f1", minute * 60_000_000)
    assert ledger.state.head == 36
    late[0] = 1200.0
    compaction.note_admitted()
    compaction.expire()
    # Those of the last ten minutes by publish time stay, and are no more than four.
    assert sum(run.ids for run in ledger.state.runs) + sum(len(ids) for _, ids in ledger.index.recent()) <= 4


def test_ids_that_were_admitted_before_the_start_go_by_the_age_of_their_run(spool: HandSpool) -> None:
    settings = CompactionSettings(recent_ids=1, horizon=600.0)
    ledger = spool.open()
    compaction = Compaction(ledger, settings)
    for published in (1, 3600):
        spool.write([str(published)], published=published * 1_000_000)
        ledger.admit()
        compaction.step()
    spool.age("ids", 500.0)
    ledger, late = spool.open(), [0.0]
    compaction = Compaction(ledger, settings, clock=lambda: time.monotonic() + late[0])
    compaction.note_admitted()
    compaction.expire()
    late[0] = 90.0
    compaction.note_admitted()
    compaction.expire()
    assert len(ledger.state.runs) == 2
    late[0] = 110.0
    compaction.note_admitted()
    compaction.expire()
    assert len(ledger.state.runs) == 1


def test_fetchers_are_forgotten_when_their_folder_is_unlocked_and_empty(spool: HandSpool) -> None:
    ledger = spool.open()
    compaction = Compaction(ledger, CompactionSettings(free_segments=1))
    spool.write(["a"], fetcher="gone")
    spool.write(["b"], fetcher="alive")
    alive = lock_folder(spool.store.tree, "inbox/alive")
    assert alive is not None
    commit_batches(spool, compaction, 6)
    compaction.step()
    assert set(ledger.state.fetchers) == {"alive", "f0"}
    assert not (spool.root / "inbox/gone").exists()
    assert (spool.root / "inbox/alive").exists()


def test_a_start_reads_one_snapshot_and_a_bounded_number_of_records(spool: HandSpool) -> None:
    ledger = spool.open()
    compaction = Compaction(ledger, CompactionSettings())
    counts = []
    for _ in range(8):
        commit_batches(spool, compaction, 100, rows=1)
        while compaction.merge():
            pass
        counts.append(len(list(spool.root.glob("ledger/1/*"))))
    assert max(counts[2:]) - min(counts[2:]) <= 1
    before = list(ledger.state.segments)
    assert spool.open().state.segments == before


def test_a_writer_that_was_taken_over_writes_and_deletes_nothing_more(spool: HandSpool) -> None:
    old = spool.open("aa")
    compaction = Compaction(old, CompactionSettings(free_segments=1))
    commit_batches(spool, compaction, 3)
    new = spool.open("bb")
    new.admit()
    before = spool.files()
    with pytest.raises(SpoolFencedError, match="SPOOL_FENCED"):
        old.commit(old.state.head + 1)
    spool.write(["late"], fetcher="zz")
    with pytest.raises(SpoolFencedError):
        old.admit()
    with pytest.raises(SpoolFencedError):
        compaction.step()
    after = {name: data for name, data in spool.files().items() if "zz" not in name}
    assert after == before
    assert new.admit() == 1


def test_seals_of_a_claimant_that_died_are_finished_by_the_next_one(spool: HandSpool) -> None:
    spool.open()
    spool.write(["1"])
    claim = claim_epoch(spool.store, spool.identity().spool)
    assert claim.epoch == 2
    assert put_seal(spool.store, spool.identity().spool, 1, 2, claim)
    ledger = spool.open()
    assert ledger.claim.epoch == 3
    ledger.admit()
    assert spool.all_ids() == ["1"]
    ledger = spool.open()
    assert spool.all_ids() == ["1"]
    assert len(ledger.state.starts) == 3


def test_a_record_whose_answer_was_lost_is_recognised_as_ones_own(spool: HandSpool) -> None:
    ledger = spool.open()
    spool.write(["1", "2"])
    set_failpoints("store.after_publish=raise:5:1")
    try:
        with pytest.raises(OSError, match="Input/output"):
            ledger.admit()
    finally:
        set_failpoints("")
    spool.write(["2", "3"])
    assert ledger.admit() == 1
    assert spool.all_ids() == ["1", "2", "3"]


def test_a_failed_put_admits_nothing_and_the_next_round_admits_all(spool: HandSpool) -> None:
    ledger = spool.open()
    spool.write(["1", "2"])
    set_failpoints("store.before_link=raise:28:1")
    try:
        with pytest.raises(OSError, match="No space"):
            ledger.admit()
        assert ledger.state.head == 0
    finally:
        set_failpoints("")
    ledger.admit()
    assert spool.all_ids() == ["1", "2"]


def test_a_missing_segment_between_two_others_stops_the_start(spool: HandSpool) -> None:
    spool.open()
    for text in ("1", "2", "3"):
        spool.write([text])
    (spool.root / "inbox/f0/1.arrow").unlink()
    with pytest.raises(SpoolDamagedError, match="SPOOL_SEGMENT_DAMAGED"):
        spool.open()


@pytest.mark.parametrize("name", ["epochs/1", "ledger/1/0", "ledger/1/1", "spool.json", "inbox/f0/0.arrow"])
def test_a_damaged_file_stops_the_start_with_a_named_error_and_changes_no_other(spool: HandSpool, name: str) -> None:
    ledger = spool.open()
    spool.write(numbers(0, 3))
    ledger.admit()
    path = spool.root / name
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    before = spool.files()
    if name == "inbox/f0/0.arrow":
        with pytest.raises(SpoolDamagedError):
            spool.all_ids()
    else:
        with pytest.raises(SpoolError, match=r"^\[SPOOL_"):
            spool.open()
    assert spool.files() == before


def test_a_moved_spool_and_another_subscriptions_spool_stop_the_start(spool: HandSpool, tmp_path: Path) -> None:
    spool.open()
    spool.root.rename(tmp_path / "elsewhere")
    with pytest.raises(SpoolError, match="SPOOL_MOVED"):
        HandSpool(tmp_path / "elsewhere").open()
    (tmp_path / "elsewhere").rename(spool.root)
    with pytest.raises(SpoolError, match="SPOOL_OTHER_SOURCE"):
        open_identity(spool.store, "pubsub", ("projects/p/subscriptions/other",))


def test_links_are_not_followed(spool: HandSpool, tmp_path: Path) -> None:
    ledger = spool.open()
    info = spool.write(["1"])
    path = spool.root / info.name
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    with pytest.raises(SpoolDamagedError, match="SPOOL_FOREIGN_FILE"):
        ledger.admit()


def test_folders_and_files_are_private(spool: HandSpool) -> None:
    ledger = spool.open()
    spool.write(["1"])
    ledger.admit()
    for path in [spool.root, *spool.root.rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_stats_read_beside_a_running_writer(spool: HandSpool) -> None:
    ledger = spool.open()
    spool.write(["1", "1", "2"])
    ledger.admit()
    ledger.commit(1)
    seen = stats(str(spool.root))
    assert (seen.delivered, seen.duplicates, seen.rows, seen.committed) == (3, 1, 2, 1)
    ledger.commit(2)
    assert stats(str(spool.root)).committed == 2
    with pytest.raises(SpoolError, match="SPOOL_NOT_FOUND"):
        stats(str(spool.root / "nothing"))
