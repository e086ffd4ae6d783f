"""The counts of a spool, for those who watch it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from connectors.core.errors import OptionError, SpoolError
from connectors.spool import SpoolRates, rates, stats
from connectors.spool.stream.compaction import Compaction, CompactionSettings
from connectors.testing.object_store import ObjectStoreServer
from tests.support.spool_streams import open_stream
from tests.support.spool_writing import HandSpool, ObjectSpool

SECOND = 1_000_000


@pytest.fixture
def spool(tmp_path: Path) -> HandSpool:
    return HandSpool(tmp_path / "spool")


def test_ready_rows_and_bytes_are_exact_wherever_the_commit_lies(spool: HandSpool) -> None:
    ledger = spool.open()
    spool.write(["a", "b", "a", "c"], size=10)  # positions 0 to 2
    spool.write(["d", "b", "e"], size=7)  # positions 3 and 4
    ledger.admit()
    expected = [44, 34, 24, 14, 7, 0]
    for position, ready in enumerate(expected):
        ledger.commit(position)
        seen = stats(str(spool.root))
        assert (seen.ready_rows, seen.ready_bytes, seen.bytes) == (5 - position, ready, ready)
    assert (seen.delivered, seen.duplicates, seen.rows, seen.committed) == (7, 2, 5, 5)
    assert seen.dropped == {"duplicate": 2, "quarantined": 0, "skipped": 0}


def test_what_waits_for_admission_is_counted_apart_and_then_no_more(spool: HandSpool) -> None:
    ledger = spool.open()
    spool.write(["a", "b"], size=10)
    ledger.admit()
    spool.write(["b", "c", "d"], size=4)
    spool.write(["e"], fetcher="f1", size=3)
    seen = stats(str(spool.root))
    assert (seen.delivered, seen.waiting_segments, seen.waiting_rows, seen.waiting_bytes) == (2, 2, 4, 15)
    ledger.admit()
    seen = stats(str(spool.root))
    assert (seen.delivered, seen.duplicates, seen.waiting_segments, seen.waiting_rows) == (6, 1, 0, 0)


def test_the_oldest_unread_publish_time_moves_with_the_commits_and_knows_what_waits(spool: HandSpool) -> None:
    ledger = spool.open()
    assert stats(str(spool.root)).oldest_unread is None
    for second in (5, 3, 8):
        spool.write([f"{second}-a", f"{second}-b"], published=second * SECOND)
        ledger.admit()
    for position, second in ((0, 3), (2, 3), (3, 3), (4, 8), (5, 8)):
        ledger.commit(position)
        assert stats(str(spool.root)).oldest_unread == second * SECOND, position
    ledger.commit(6)
    assert stats(str(spool.root)).oldest_unread is None
    spool.write(["late"], fetcher="f1", published=SECOND)
    assert stats(str(spool.root)).oldest_unread == SECOND


def test_copies_alone_are_neither_ready_nor_unread(spool: HandSpool) -> None:
    ledger = spool.open()
    spool.write(["a"], published=SECOND)
    ledger.admit()
    ledger.commit(1)
    spool.write(["a"], published=SECOND)
    ledger.admit()
    seen = stats(str(spool.root))
    assert (seen.ready_rows, seen.ready_bytes, seen.oldest_unread) == (0, 0, None)


def test_quarantined_rows_are_dropped_and_not_ready(spool: HandSpool) -> None:
    ledger = spool.open()
    for number in range(3):
        spool.write([f"{number}-a", f"{number}-b"], size=10, published=(number + 1) * SECOND)
        ledger.admit()
    (spool.root / "inbox/f0/0.arrow").write_bytes(b"")
    with open_stream(spool.root, fail_on_data_loss=False):
        pass
    seen = stats(str(spool.root))
    assert (seen.ready_rows, seen.ready_bytes, seen.oldest_unread) == (4, 40, 2 * SECOND)
    assert seen.dropped == {"duplicate": 0, "quarantined": 2, "skipped": 0}


def test_rates_are_what_was_fetched_and_admitted_between_two_looks(spool: HandSpool) -> None:
    ledger = spool.open()
    spool.write(["a", "b"])
    ledger.admit()
    before = replace(stats(str(spool.root)), taken=100.0)
    spool.write(["b", "c", "d"])
    ledger.admit()
    ledger.commit(3)
    spool.write(["e", "f", "g", "h"])
    after = replace(stats(str(spool.root)), taken=102.0)
    assert SpoolRates.between(before, after) == SpoolRates(2.0, fetched=3.5, admitted=1.5, rows=1.0, committed=1.5)
    assert SpoolRates.between(before, replace(before, taken=101.0)).fetched == 0
    with pytest.raises(ValueError, match="the earlier one first"):
        SpoolRates.between(after, before)
    assert rates(str(spool.root), 0.01).admitted == 0


def test_a_look_reads_each_record_of_the_ledger_once() -> None:
    with ObjectStoreServer() as server:
        spool = ObjectSpool(server=server)
        ledger = spool.open()
        for number in range(20):
            spool.write([str(number)])
            ledger.admit()
            ledger.commit(number + 1)
        before = server.counts["GET"]
        assert stats(str(spool.root), spool.access()).rows == 20
        # The identity and the lists come on top.
        assert server.counts["GET"] - before < ledger.state.number + 1 + 10


def test_counts_survive_freeing_and_restarts(spool: HandSpool) -> None:
    ledger = spool.open()
    compaction = Compaction(ledger, CompactionSettings(free_segments=1))
    for batch in range(6):
        spool.write([f"{batch}-a", "copy"])
        ledger.admit()
        ledger.commit(ledger.state.head)
        compaction.step()
    spool.open()
    seen = stats(str(spool.root))
    assert (seen.delivered, seen.dropped["duplicate"], seen.rows, seen.ready_rows) == (12, 5, 7, 0)
    assert seen.segments < 6


def test_a_location_is_taken_as_the_option_takes_it(spool: HandSpool, monkeypatch: pytest.MonkeyPatch) -> None:
    spool.open()
    monkeypatch.chdir(spool.root.parent)
    identity = spool.identity().spool
    for location in (f"file://{spool.root}", f"file:{spool.root}", spool.root, Path(spool.root.name), f"{spool.root}/"):
        assert stats(location).spool == identity
        assert rates(location, 0.01).rows == 0
    for location in ("http://b/x", "file://host/x", "", "s3://me:hunter2@bucket/x"):
        with pytest.raises(OptionError, match=r"^\[SPOOL_LOCATION\]") as caught:
            stats(location)
        assert "hunter2" not in str(caught.value)
    with pytest.raises(SpoolError, match=r"^\[SPOOL_NOT_FOUND\]"):
        stats("nothing")
