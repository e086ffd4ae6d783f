"""What counts as a copy, and for how long (rule R8): ids, values of an attribute, portions of the horizon."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.core.errors import SpoolFullError
from connectors.spool import stats
from connectors.spool.segments import dedup_index
from connectors.spool.segments.dedup_index import DedupIndex, IdRun, RunEntry, merge_runs, write_run
from connectors.spool.segments.id_keys import OtherIds, keys_of
from connectors.spool.stream.compaction import Compaction, CompactionSettings, runs_to_merge
from tests.support.spool_writing import HandSpool, much_later

HOUR = 3_600_000_000
DAY = 24 * HOUR
SPACE = "0.0"


@pytest.fixture
def spool(tmp_path: Path) -> HandSpool:
    return HandSpool(tmp_path / "spool")


def values(attribute: str, *texts: str | None) -> OtherIds:
    return OtherIds(attribute, pa.array(texts, pa.string()))


def test_different_ids_with_one_value_are_one_row_in_a_segment_across_segments_and_after_a_restart(
    spool: HandSpool,
) -> None:
    ledger = spool.open()
    spool.write(["1", "2", "3"], other=values("uid", "a", "a", "b"))
    spool.write(["4", "5"], other=values("uid", "b", "c"))
    ledger.admit()
    assert spool.all_ids() == ["1", "3", "5"]
    ledger = spool.open()
    spool.write(["6", "7"], fetcher="f1", other=values("uid", "c", "d"))
    ledger.admit()
    assert spool.all_ids() == ["1", "3", "5", "7"]


def test_a_copy_whose_id_is_known_is_dropped_whatever_was_dropped_by_value(spool: HandSpool) -> None:
    ledger = spool.open()
    spool.write(["1", "2"], other=values("uid", "a", "a"))
    spool.write(["2", "1"], other=values("uid", "a", "a"))
    ledger.admit()
    assert spool.all_ids() == ["1"]


def test_rows_without_a_value_count_by_their_ids_only(spool: HandSpool) -> None:
    ledger = spool.open()
    spool.write(["1", "2", "1", "x", "x"], other=values("uid", None, None, None, None, None))
    ledger.admit()
    assert spool.all_ids() == ["1", "2", "x"]


def test_a_value_is_no_copy_of_an_id_or_of_another_attributes_value(spool: HandSpool) -> None:
    ledger = spool.open()
    spool.write(["1", "x"])
    spool.write(["2", "3"], other=values("uid", "1", "x"))
    spool.write(["4", "5"], other=values("order", "1", "x"))
    ledger.admit()
    assert spool.all_ids() == ["1", "x", "2", "3", "4", "5"]


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize(
    ("before", "after"),
    [(None, values("uid", "a")), (values("uid", "a"), None), (values("uid", "a"), values("order", "b"))],
    ids=["set", "taken back", "changed"],
)
def test_a_copy_is_known_by_its_id_when_the_attribute_changes_in_between(
    before: OtherIds | None, after: OtherIds | None, durable: bool, spool: HandSpool
) -> None:
    ledger = spool.open()
    spool.write(["17"], other=before)
    ledger.admit()
    if durable:
        Compaction(ledger, CompactionSettings(recent_ids=1)).step()
    ledger = spool.open()
    spool.write(["17"], fetcher="f1", other=after)
    ledger.admit()
    assert spool.all_ids() == ["17"]


@pytest.mark.parametrize("durable", [False, True])
def test_one_value_is_one_row_within_the_horizon_and_two_outside(durable: bool, spool: HandSpool) -> None:
    ledger = spool.open()
    compaction = Compaction(ledger, CompactionSettings(recent_ids=1 if durable else 1 << 20, horizon=3600.0))

    def publish(text: str, at: int) -> list[str]:
        spool.write([text], published=at, other=values("uid", "same"))
        ledger.admit()
        compaction.step()
        return spool.all_ids()

    assert publish("1", DAY) == ["1"]
    assert publish("2", DAY + HOUR) == ["1"]
    assert publish("3", DAY + HOUR * 5 // 2) == ["1", "3"]


def test_ids_in_memory_expire_in_portions_and_not_only_when_all_are_old(spool: HandSpool) -> None:
    ledger = spool.open()
    compaction = Compaction(ledger, CompactionSettings(horizon=8 * 3600.0), much_later)
    for hour in range(20):
        spool.write([str(hour)], published=DAY + hour * HOUR)
        ledger.admit()
        compaction.step()
        compaction.note_admitted()
        compaction.expire()
    held = sum(len(recent) for _, recent in ledger.index.recent())
    assert 8 <= held <= 10


def test_a_late_copy_does_not_keep_runs_from_being_merged() -> None:
    """A run expires with its last message; eight of them that each hold a copy of long ago are one portion."""
    runs = [RunEntry(str(number), SPACE, 100, 0, (0, 7 * DAY + number), "") for number in range(8)]
    assert len(runs_to_merge(runs, CompactionSettings(horizon=7 * 86_400.0, merge=8))) == 8
    apart = [RunEntry(str(number), SPACE, 100, 0, (0, number * DAY), "") for number in range(8)]
    assert runs_to_merge(apart, CompactionSettings(horizon=7 * 86_400.0, merge=8)) == []


def test_a_merge_takes_no_more_room_than_it_is_allowed() -> None:
    runs = [RunEntry(str(number), SPACE, 1000, 0, (0, 1), "") for number in range(8)]
    assert len(runs_to_merge(runs, CompactionSettings(merged_ids=8000, merge=8))) == 8
    assert runs_to_merge(runs, CompactionSettings(merged_ids=7999, merge=8)) == []


@pytest.mark.parametrize("ids", [1 << 20, 1_100_000, 1_500_000, 2_000_000])
def test_a_hundred_million_ids_never_take_more_than_1_2_gb_in_a_dozen_or_two_runs(ids: int) -> None:
    """By the rules alone, without the files: runs of so many ids come one after the other, and are merged when due."""
    runs: list[RunEntry] = []
    settings, largest = CompactionSettings(), 0
    for number in range(-(-100_000_000 // ids)):
        runs.append(RunEntry(f"{number}", SPACE, ids, 0, (0, 1), ""))
        while chosen := runs_to_merge(runs, settings):
            merged = RunEntry(f"m{number}", SPACE, sum(run.ids for run in chosen), 0, (0, 1), "")
            largest = max(largest, sum(run.bytes for run in [*runs, merged]))
            runs = [run for run in runs if run not in chosen] + [merged]
        largest = max(largest, sum(run.bytes for run in runs))
        assert len(runs) <= 20
    assert largest <= 1_200_000_000
    assert sum(run.ids for run in runs) >= 100_000_000


def test_a_run_on_disk_takes_eight_bytes_an_id(spool: HandSpool) -> None:
    spool.open()
    numbers = np.arange(200_000, dtype=np.uint64)
    entries = [
        write_run(spool.store, f"r{first}", SPACE, [numbers[first::3]], [np.empty(0, "S16")], None)
        for first in range(3)
    ]
    merged = merge_runs(spool.store, "merged", [IdRun.load(spool.store, entry) for entry in entries])
    assert np.array_equal(IdRun.load(spool.store, merged).numbers, numbers)
    assert (spool.root / "ids/merged").stat().st_size <= len(numbers) * 8 * 1.01


def test_a_merge_holds_a_bounded_part_of_the_ids_whatever_their_ranges_are() -> None:
    apart = [np.arange(first, first + 1_500_000, dtype=np.uint64) for first in (0, 1_500_000, 3_000_000)]
    for arrays in (apart, [np.arange(first, 4_500_000, 3, dtype=np.uint64) for first in range(3)]):
        lengths = [len(chunk) for chunk in dedup_index._merged(arrays)]
        assert sum(lengths) == 4_500_000
        assert max(lengths) <= 2 << 20


@given(st.lists(st.lists(st.integers(0, 40), max_size=30), max_size=12), st.data())
def test_the_index_strikes_what_a_set_of_all_ids_would(segments: list[list[int]], data: st.DataObject) -> None:
    """Numbers and other texts, in a few arrays or in many, long and short ones."""
    index, known = DedupIndex(), set()
    for numbers in segments:
        ids = [str(number) if number % 3 else f"id-{number}" for number in numbers]
        keys = keys_of(pa.array(ids, pa.string()), b"k" * 16)
        wanted = [text in known or text in ids[:place] for place, text in enumerate(ids)]
        assert index.duplicates(SPACE, keys, None).tolist() == wanted
        index.add(SPACE, keys, None)
        known.update(ids)
        if data.draw(st.booleans()):
            index.set_horizon(data.draw(st.sampled_from([600.0, 86_400.0])))


def test_a_short_array_and_a_long_one_find_the_same_copies() -> None:
    seed = random.randrange(1 << 30)
    chooser = np.random.default_rng(seed)
    for size in (1, 10, 1000, 30_000):
        ids = chooser.integers(0, 40_000, 20_000).astype(np.uint64)
        known = np.unique(chooser.integers(0, 40_000, size).astype(np.uint64))
        index = DedupIndex()
        array = pa.array(known).cast(pa.string())
        index.add(SPACE, keys_of(array, b"k" * 16), None)
        duplicates = index.duplicates(SPACE, keys_of(pa.array(ids).cast(pa.string()), b"k" * 16), None)
        first = np.zeros(len(ids), np.bool_)
        first[np.unique(ids, return_index=True)[1]] = True
        assert np.array_equal(duplicates, np.isin(ids, known) | ~first), f"seed {seed}, size {size}"


def fill_index(spool: HandSpool, compaction: Compaction, ids: int, first: int = 0, published: int = DAY) -> None:
    assert spool.ledger is not None
    spool.write([str(number) for number in range(first, first + ids)], published=published)
    spool.ledger.admit()
    compaction.note_admitted()
    compaction.step()


def test_at_its_limit_the_index_stops_the_query_and_forgets_nothing(spool: HandSpool) -> None:
    ledger = spool.open()
    compaction = Compaction(ledger, CompactionSettings(recent_ids=100, max_id_bytes=1600))
    fill_index(spool, compaction, 100)
    fill_index(spool, compaction, 100, first=100)
    with pytest.raises(SpoolFullError, match=r"SPOOL_ID_INDEX_FULL.*take 2400 bytes. The limit is 1600.*Shorten"):
        fill_index(spool, compaction, 100, first=200)
    with pytest.raises(SpoolFullError):
        compaction.step()
    ledger = spool.open()
    compaction = Compaction(ledger, CompactionSettings(recent_ids=100, max_id_bytes=8000))
    fill_index(spool, compaction, 300)
    assert ledger.state.head == 300
    assert stats(str(spool.root)).duplicates == 300


def test_ids_that_have_expired_do_not_count_towards_the_limit(spool: HandSpool) -> None:
    ledger = spool.open()
    compaction = Compaction(ledger, CompactionSettings(recent_ids=100, max_id_bytes=1600, horizon=3600.0), much_later)
    for hour in range(20):
        fill_index(spool, compaction, 100, first=hour * 100, published=DAY + hour * HOUR)
    assert sum(run.ids for run in ledger.state.runs) == 200
