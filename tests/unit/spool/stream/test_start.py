"""A start costs what is new, not what is there: no file of an admitted segment is opened, few entries are decoded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from connectors.core.errors import SpoolDamagedError
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.ledger.recovery import open_ledger
from connectors.spool.ledger.segment_log import SegmentLog
from connectors.spool.store.local import LocalStore
from connectors.spool.stream.compaction import Compaction, CompactionSettings
from tests.support.power_loss_rig import UnsyncedDisk, on_disk
from tests.support.spool_writing import HandSpool

pytestmark = pytest.mark.guarantee

FEW, MANY = 3, 300
ENTRIES_LOOKED_AT = 20


class CountingStore(LocalStore):
    """Counts what is asked of it, by call and folder."""

    def __init__(self, root: str) -> None:
        super().__init__(root, "counting")
        self.asked: Counter[str] = Counter()

    def map(self, name: str) -> memoryview:
        self.asked[f"map {name.split('/', maxsplit=1)[0]}"] += 1
        return super().map(name)

    def exists(self, name: str) -> bool:
        self.asked["exists"] += 1
        return super().exists(name)

    def names(self, folder: str) -> Sequence[str]:
        self.asked[f"names {folder.split('/', maxsplit=1)[0]}"] += 1
        return super().names(folder)

    def delete(self, name: str) -> None:
        self.asked["delete"] += 1
        super().delete(name)


def filled(root: Path, segments: int) -> HandSpool:
    """A spool with so many admitted segments, their ids in runs, and two after them whose ids are in none."""
    spool = HandSpool(root)
    ledger = spool.open()
    for number in range(segments):
        spool.write([f"{number}-a", f"{number}-b"])
    ledger.admit()
    Compaction(ledger, CompactionSettings(recent_ids=1)).step()
    spool.open()
    spool.write(["new"], fetcher="f1")
    spool.open().admit()
    return spool


def start(spool: HandSpool) -> tuple[Counter[str], Ledger]:
    store = CountingStore(str(spool.root))
    spool.ledger = open_ledger(store, spool.identity())
    return store.asked, spool.ledger


@pytest.fixture(autouse=True)
def _unsynced() -> object:
    with on_disk(UnsyncedDisk()):
        yield


def test_a_start_asks_the_store_as_much_whatever_the_number_of_admitted_segments(tmp_path: Path) -> None:
    few, _ = start(filled(tmp_path / "few", FEW))
    spool = filled(tmp_path / "many", MANY)
    many, ledger = start(spool)
    assert few == many
    assert many["map inbox"] == 1, "the one segment whose ids are in no run"
    log = ledger.state.segments
    assert isinstance(log, SegmentLog)
    assert sum(len(manifest._decoded) for manifest in log._manifests) < ENTRIES_LOOKED_AT
    assert len(spool.all_ids()) == 2 * MANY + 1
    spool.write(["0-a", f"{MANY - 1}-b", "new", "newer"], fetcher="f2")
    ledger.admit()
    assert spool.all_ids()[-1] == "newer"
    assert len(spool.all_ids()) == 2 * MANY + 2


def test_a_start_asks_the_store_as_much_whatever_the_number_of_starts_before(tmp_path: Path) -> None:
    spool = filled(tmp_path / "spool", FEW)
    spool.open().admit()
    after_few, _ = start(spool)
    for _ in range(20):
        spool.open().admit()
    after_many, _ = start(spool)
    assert after_few["names ledger"] == after_many["names ledger"] > 1


def test_a_segment_that_is_gone_stops_the_batch_that_needs_it(tmp_path: Path) -> None:
    spool = filled(tmp_path / "spool", FEW)
    (spool.root / "inbox/f0/1.arrow").unlink()
    start(spool)
    assert [text for part in spool.read(0, 2) for _, text in part] == ["0-a", "0-b"]
    with pytest.raises(SpoolDamagedError, match="SPOOL_SEGMENT_DAMAGED"):
        spool.read(2, 4)


def test_a_start_passes_over_names_in_the_inbox_that_are_no_segments(tmp_path: Path) -> None:
    spool = filled(tmp_path / "spool", FEW)
    (spool.root / "inbox/f0/probe").write_bytes(b"")
    _, ledger = start(spool)
    assert (spool.root / "inbox/f0/probe").exists()
    assert len(ledger.state.segments) == FEW + 1
    (spool.root / "inbox/f1/2.arrow").write_bytes(b"")
    with pytest.raises(SpoolDamagedError, match=r"SPOOL_SEGMENT_DAMAGED.*missing"):
        start(spool)
