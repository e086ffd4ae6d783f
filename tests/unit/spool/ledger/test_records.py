"""One writer: whoever is paused, races or dies, one writer goes on, and nothing is lost or changed (rule R7).

A second writer acts inside of a disk call of the first one, so every order of two writers is tried without threads.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from connectors.core.errors import SpoolError, SpoolFencedError
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.ledger.records import while_newest
from connectors.spool.stream.compaction import Compaction, CompactionSettings
from tests.support.power_loss import Kind, RecordingDisk
from tests.support.power_loss_rig import UnsyncedDisk, on_disk
from tests.support.spool_writing import HandSpool

pytestmark = pytest.mark.guarantee

BATCHES = 1000
FIRST = ["1", "2", "3"]
WAITING = ["3", "4", "x"]


class Died(BaseException):
    """Ends a writer where it is, as a kill does."""


class Interrupted(RecordingDisk):
    """Does something before one of the calls of what runs on it.

    Args:
        root: of the spool.
        at: before which call, from 0.
        action: what to do, on another disk; the calls of that do not count.
    """

    def __init__(self, root: Path, at: int, action: Callable[[], None]) -> None:
        super().__init__(root)
        self.seen: list[Kind] = []
        self._at, self._action = at, action

    def before(self, kind: Kind, path: str) -> None:  # noqa: ARG002 - the path decides nothing
        self.seen.append(kind)
        if len(self.seen) == self._at + 1:
            with on_disk(UnsyncedDisk()):
                self._action()


@pytest.fixture(autouse=True)
def _unsynced() -> Iterator[None]:
    with on_disk(UnsyncedDisk()):
        yield


@pytest.fixture
def spool(tmp_path: Path) -> HandSpool:
    """A spool of two epochs, with one segment that waits for admission."""
    made = HandSpool(tmp_path / "spool")
    made.open()
    made.write(FIRST)
    ledger = made.open()
    ledger.admit()
    made.write(WAITING, fetcher="f1")
    return made


def batches(spool: HandSpool, compaction: Compaction, count: int, fetcher: str) -> None:
    """Publish, admit, commit and free, so often."""
    ledger = spool.ledger
    assert ledger is not None
    for number in range(count):
        spool.write([f"{fetcher}-{number}"], fetcher=fetcher)
        ledger.admit()
        ledger.commit(ledger.state.head)
        compaction.step()
        compaction.merge()


def restored(spool: HandSpool, copy: Path) -> HandSpool:
    shutil.rmtree(spool.root)
    shutil.copytree(copy, spool.root)
    return HandSpool(spool.root)


def can_write(ledger: Ledger) -> bool:
    try:
        ledger.commit(ledger.state.committed + 1)
    except SpoolFencedError:
        return False
    return True


ACTIONS: dict[str, Callable[[Ledger], object]] = {
    "commit": lambda ledger: ledger.commit(ledger.state.head),
    "admit": lambda ledger: ledger.admit(),
    "free": lambda ledger: Compaction(ledger, CompactionSettings(free_segments=1)).step(),
    "merge": lambda ledger: Compaction(ledger, CompactionSettings(merge=2)).merge(),
}


@pytest.fixture
def busy(spool: HandSpool) -> HandSpool:
    """A spool in which every action has something to do."""
    ledger = spool.open()
    compaction = Compaction(ledger, CompactionSettings(free_segments=1, merge=99))
    for number in range(6):
        spool.write([f"{number}-a", f"{number}-b"], fetcher="f2")
        ledger.admit()
        ledger.commit(ledger.state.head)
        compaction.step()
    spool.write(["one more batch"], fetcher="f2")
    ledger.admit()
    ledger.commit(ledger.state.head)
    spool.write(["not committed"], fetcher="f2")
    ledger.admit()
    spool.write(["not admitted"], fetcher="f2")
    return spool


@dataclass
class Takeover:
    """What a second writer did, and what it left."""

    spool: HandSpool
    count: int
    files: dict[str, bytes] = field(default_factory=dict)
    compaction: Compaction | None = None

    def __call__(self) -> None:
        ledger = self.spool.open("bb")
        ledger.admit()
        self.compaction = Compaction(ledger, CompactionSettings(free_segments=2, merge=3))
        batches(self.spool, self.compaction, self.count, "f3")
        self.files = self.spool.files()


def resume_after_a_takeover(busy: HandSpool, action: str, at: int, count: int) -> list[Kind]:
    """Pause the first writer before a call of an action, take over, resume; the calls of that action."""
    old = busy.ledger
    assert old is not None
    takeover = Takeover(HandSpool(busy.root), count)
    disk = Interrupted(busy.root, at, takeover)
    fenced = None
    with on_disk(disk):
        try:
            with while_newest(old.store, old.claim):
                ACTIONS[action](old)
        except SpoolFencedError as error:
            fenced = error
    if not takeover.files:
        return disk.seen
    put_before = any(call.kind == "link" and call.path.startswith("ledger/") for call in disk.calls[:at])
    assert fenced is not None or put_before, f"{action}, paused before call {at}: {disk.seen[at]}"
    after = busy.files()
    # A record that stood before the takeover says what may go; else nothing does, and a run of ids is not part of it.
    changed = {name for name, data in takeover.files.items() if after.get(name) != data and not name.startswith("tmp/")}
    assert not changed or put_before, changed
    assert all(name.startswith("ids/") for name in after.keys() - takeover.files.keys())
    assert not can_write(old)
    with pytest.raises(SpoolFencedError):
        old.check()
    assert takeover.compaction is not None
    batches(takeover.spool, takeover.compaction, 3, "f4")
    shutil.rmtree(busy.root / "tmp")
    HandSpool(busy.root).open("cc").admit()
    return disk.seen


@pytest.mark.parametrize("action", ACTIONS)
def test_a_writer_paused_before_any_call_and_taken_over_writes_and_deletes_nothing_more(
    action: str, busy: HandSpool, tmp_path: Path
) -> None:
    shutil.copytree(busy.root, tmp_path / "copy")
    at, calls = 0, 1
    while at < calls:
        shutil.rmtree(busy.root)
        shutil.copytree(tmp_path / "copy", busy.root)
        one = HandSpool(busy.root)
        one.open("aa")
        calls = len(resume_after_a_takeover(one, action, at, 3))
        at += 1
    assert calls > 5


@pytest.mark.long
def test_a_writer_paused_before_its_put_is_fenced_after_a_thousand_batches_with_freeing(busy: HandSpool) -> None:
    link = 3  # after create, write, fsync
    seen = resume_after_a_takeover(busy, "commit", link, BATCHES)
    assert seen[link] == "link"


def test_two_claimants_at_once_leave_one_writer_whatever_their_order(spool: HandSpool, tmp_path: Path) -> None:
    shutil.copytree(spool.root, tmp_path / "copy")
    at, calls = 0, 1
    outcomes = set()
    while at <= calls:
        one, other = restored(spool, tmp_path / "copy"), HandSpool(spool.root)
        disk = Interrupted(spool.root, at, lambda other=other: other.open("bb").admit())
        with on_disk(disk):
            try:
                first: Ledger | None = one.open("aa")
            except SpoolFencedError:
                first = None
        calls = len(disk.seen)
        if other.ledger is None:
            other.open("bb").admit()
        writers = [spool for spool in (one, other) if spool.ledger is not None and can_write(spool.ledger)]
        assert len(writers) == 1, f"interrupted before call {at}: {disk.seen[at : at + 1]}"
        writers[0].ledger.admit()
        assert writers[0].all_ids() == ["1", "2", "3", "4", "x"]
        outcomes.add((first is None, writers[0] is one))
        third = HandSpool(spool.root)
        third.open("cc").admit()
        assert third.all_ids() == ["1", "2", "3", "4", "x"]
        assert not can_write(writers[0].ledger)
        at += 1
    assert calls > 20
    assert outcomes == {(True, False), (False, True), (False, False)}


def test_a_claimant_that_dies_at_any_call_leaves_work_that_the_next_one_does(spool: HandSpool, tmp_path: Path) -> None:
    shutil.copytree(spool.root, tmp_path / "copy")

    def die() -> None:
        raise Died

    at, died = 0, True
    while died:
        one = restored(spool, tmp_path / "copy")
        with on_disk(Interrupted(spool.root, at, die)):
            try:
                one.open("aa")
            except Died:
                pass
            else:
                died = False
        # The dead one is followed by one that dies too, and that one by one that lives.
        with on_disk(Interrupted(spool.root, at // 2, die)), pytest.raises(Died):
            HandSpool(spool.root).open("bb")
        ledger = HandSpool(spool.root).open("cc")
        ledger.admit()
        left = {epoch: len(list((spool.root / f"ledger/{epoch}").glob("*"))) for epoch in range(1, ledger.claim.epoch)}
        assert set(left.values()) <= {0, 1}, f"records of older epochs after a death at call {at}: {left}"
        at += 1
    assert at > 20


def test_a_place_that_takes_no_lock_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder" / "lock").mkdir(parents=True)
    for root in (tmp_path / "file", tmp_path / "folder"):
        with pytest.raises(SpoolError, match=f"SPOOL_NOT_WRITABLE.*{root}/lock.*spoolLocation"):
            HandSpool(root).lock(0).acquire()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SpoolError, match="SPOOL_FOREIGN_FILE"):
        HandSpool(tmp_path / "linked").lock(0).acquire()
    assert not (tmp_path / "elsewhere").exists()
