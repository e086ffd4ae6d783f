"""Damage of every kind stops with a named error; no row comes out, and no other file is changed (rule R9)."""

from __future__ import annotations

import json
import os
import pickle
import random
import stat
from collections.abc import Mapping
from itertools import combinations, pairwise
from pathlib import Path

import pytest

from connectors.core.errors import SpoolError
from connectors.spool.admin.verify import verify
from connectors.spool.ledger.data_loss import segment_numbers
from connectors.spool.ledger.identity import open_identity
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.ledger.records import record_name, record_numbers
from connectors.spool.ledger.recovery import open_ledger, read_state, take_over
from connectors.spool.ledger.writer_lock import SpoolLock
from connectors.spool.segments.segment import SEGMENT, SealedReader, SegmentReader
from connectors.spool.store.local import LocalStore
from tests.support.damaged_spool import (
    add_foreign_names,
    live_files,
    lived_in,
    restore,
    use,
    within,
    write_file,
)
from tests.support.spool_writing import SOURCES, HandSpool, fill

BLOCK = 512
OF_A_SNAPSHOT = ("ledger/", "manifests/")
LAST_SEGMENT = "inbox/f0/7.arrow"
WAITING_SEGMENT = "inbox/f1/0.arrow"


@pytest.fixture
def spool(tmp_path: Path) -> HandSpool:
    return lived_in(tmp_path / "spool")


def last_record(spool: HandSpool) -> str:
    return max((name for name in live_files(spool) if name.startswith("ledger/2/")), key=lambda name: int(name[9:]))


def assert_refused(spool: HandSpool, damage: Mapping[str, bytes | None]) -> str:
    """Damage files (None removes one), see the spool refused, put it back as it was; the code of the error."""
    before = spool.files()
    for name, data in damage.items():
        write_file(spool.root / name, data)
    damaged = spool.files()
    with pytest.raises(SpoolError) as caught:
        use(spool)
    assert caught.value.code.startswith("SPOOL_")
    assert caught.value.action
    _assert_untouched(damaged, spool.files(), late=all(name.startswith("inbox/") for name in damage))
    restore(spool, before)
    return caught.value.code


def _assert_untouched(damaged: Mapping[str, bytes], after: Mapping[str, bytes], *, late: bool) -> None:
    """A start leaves all as it is, and may add a claim and seals, which lose nothing.

    A damaged segment may be found late, by a query that has begun: then its own records and manifests are there, and
    those below its snapshot may be gone; but no segment, id run, claim or identity was touched.
    """
    for name, data in damaged.items():
        assert after.get(name) == data or (late and name.startswith(OF_A_SNAPSHOT) and name not in after), name
    for name in after.keys() - damaged.keys():
        if late and name.startswith(OF_A_SNAPSHOT):
            continue
        kind = "claim" if name.startswith("epochs/") else json.loads(after[name].splitlines()[0])["kind"]
        assert kind in {"claim", "seal"}, name


def test_the_spool_of_these_tests_can_be_used(spool: HandSpool) -> None:
    assert use(spool)[-7:] == ["0-a", "0-b", "0-c", "1-a", "1-b", "1-c", "late"]


def test_the_last_record_truncated_at_any_byte_is_refused(spool: HandSpool) -> None:
    name = last_record(spool)
    whole = (spool.root / name).read_bytes()
    for length in range(len(whole)):
        assert assert_refused(spool, {name: whole[:length]}) == "SPOOL_RECORD_DAMAGED", length


@pytest.mark.parametrize("name", [LAST_SEGMENT, WAITING_SEGMENT])
def test_a_segment_truncated_at_any_byte_is_refused(name: str, spool: HandSpool) -> None:
    whole = (spool.root / name).read_bytes()
    for length in range(len(whole)):
        (spool.root / name).write_bytes(whole[:length])
        with pytest.raises(SpoolError, match="SPOOL_SEGMENT_DAMAGED"):
            SegmentReader(spool.store, name)
    write_file(spool.root / name, whole)
    for length in range(0, len(whole), 101):
        assert assert_refused(spool, {name: whole[:length]}) == "SPOOL_SEGMENT_DAMAGED", length


def test_a_bit_flipped_in_any_block_of_any_file_is_refused(spool: HandSpool) -> None:
    seed = random.randrange(1 << 30)
    chooser = random.Random(seed)
    for name in live_files(spool):
        whole = (spool.root / name).read_bytes()
        unread = unread_bytes(spool, name)
        for begin in range(0, len(whole), BLOCK):
            read = [place for place in range(begin, min(begin + BLOCK, len(whole))) if place not in unread]
            data = bytearray(whole)
            place = chooser.choice(read)
            data[place] ^= 1 << chooser.randrange(8)
            assert assert_refused(spool, {name: bytes(data)}), f"{name} at {place}, seed {seed}"


def unread_bytes(spool: HandSpool, name: str) -> set[int]:
    """The mark at the end of the rows, and the index of a segment whose ids are in a run: nothing asks for these."""
    if not name.startswith("inbox/"):
        return set()
    in_a_run = name in {"inbox/f0/4.arrow", "inbox/f0/5.arrow"}
    sections = SealedReader(spool.store, name, SEGMENT, None).sections
    skipped = [each for each in sections if each["kind"] == "end" or (in_a_run and each["kind"] == "index")]
    return {place for each in skipped for place in range(each["offset"], each["offset"] + each["length"])}


def test_a_bit_flipped_where_no_row_is_read_changes_no_row_and_is_found_by_a_check(spool: HandSpool) -> None:
    wanted, before = use(spool), spool.files()
    for name in (name for name in before if name.startswith("inbox/")):
        for place in sorted(unread_bytes(spool, name))[::7]:
            data = bytearray(before[name])
            data[place] ^= 1
            write_file(spool.root / name, bytes(data))
            with pytest.raises(SpoolError, match="SPOOL_SEGMENT_DAMAGED"):
                SegmentReader(spool.store, name).verify()
            spool.ledger = open_ledger(spool.store, spool.identity())
            assert spool.all_ids() == wanted
            restore(spool, before)


@pytest.mark.parametrize("folder", ["ledger/2/", "inbox/f0/", "ids/"])
def test_two_files_of_a_kind_swapped_are_refused(folder: str, spool: HandSpool) -> None:
    names = [name for name in live_files(spool) if name.startswith(folder)]
    assert len(names) > 1
    for first, second in combinations(names, 2):
        found = spool.files()
        assert_refused(spool, {first: found[second], second: found[first]})


def test_files_from_an_older_copy_are_refused(spool: HandSpool) -> None:
    """What an older copy of the spool has under the same name is whole, and yet not what the ledger means."""
    found = spool.files()
    records = sorted(name for name in found if name.startswith("ledger/2/"))
    for older, newer in pairwise(records):
        assert assert_refused(spool, {newer: found[older]}) == "SPOOL_RECORD_DAMAGED"
    assert_refused(spool, {LAST_SEGMENT: found["inbox/f0/6.arrow"]})


def test_files_of_another_spool_are_refused(spool: HandSpool, tmp_path: Path) -> None:
    other = HandSpool(tmp_path / "other")
    ledger = other.open()
    for number in range(8):
        other.write([f"foreign-{number}"])
        ledger.admit()
    ledger = other.open()
    other.write(["foreign"], fetcher="f1")
    ledger.admit()
    theirs = other.files()
    for name in live_files(spool):
        if name in theirs:
            assert_refused(spool, {name: theirs[name]})


def test_a_missing_file_is_refused(spool: HandSpool) -> None:
    for name in live_files(spool):
        # A spool without its identity is a new one's place; a claim alone says who may write, not what is there; the
        # last record and a waiting segment leave no trace: nothing that came after them is there.
        if name not in {"spool.json", "epochs/2", last_record(spool), WAITING_SEGMENT}:
            assert_refused(spool, {name: None})


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_a_link_or_a_folder_in_the_place_of_a_file_is_refused(kind: str, spool: HandSpool, tmp_path: Path) -> None:
    before = spool.files()
    for name in live_files(spool):
        path = spool.root / name
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere") if kind == "link" else path.mkdir()
        with pytest.raises(SpoolError, match=r"^\[SPOOL_"):
            use(spool)
        path.unlink() if kind == "link" else path.rmdir()
        restore(spool, before)


def test_a_pickle_or_nothing_in_a_file_is_refused_and_no_pickle_is_loaded(spool: HandSpool, tmp_path: Path) -> None:
    mark = tmp_path / "went off"
    for name in live_files(spool):
        for data in (pickle.dumps(_Bomb(str(mark))), b""):
            assert_refused(spool, {name: data})
    assert not mark.exists()


class _Bomb:
    """A pickle that leaves a mark when it is loaded."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return Path(self._mark).touch, ()


def test_a_look_at_a_damaged_ledger_from_outside_is_refused_too(spool: HandSpool) -> None:
    name = last_record(spool)
    (spool.root / name).write_bytes(b"")
    with pytest.raises(SpoolError, match="SPOOL_RECORD_DAMAGED"):
        read_state(spool.store, spool.identity().spool)


def test_a_file_whose_name_is_no_number_is_nobodys(spool: HandSpool) -> None:
    wanted = use(spool)
    add_foreign_names(spool.root)
    assert use(spool) == wanted
    assert verify(str(spool.root)).sound
    assert segment_numbers(spool.store, "f1") == [0]


@pytest.mark.parametrize("kind", [stat.S_IFIFO, stat.S_IFSOCK])
def test_a_pipe_in_the_place_of_any_file_is_refused_and_not_waited_for(kind: int, spool: HandSpool) -> None:
    before = spool.files()
    (spool.root / "lock").touch()
    for name in [*live_files(spool), "lock"]:
        (spool.root / name).unlink()
        os.mknod(spool.root / name, kind | 0o600)
        with within(10), pytest.raises(SpoolError, match=r"^\[SPOOL_FOREIGN_FILE\]"):
            SpoolLock(spool.store, os.getpid()).acquire() if name == "lock" else use(spool)
        (spool.root / name).unlink()
        restore(spool, before)


class _Overtaken(LocalStore):
    """The store of a start that another one comes before: it claims an epoch, and begins while this one reads."""

    other: Ledger | None = None
    began = False

    def create(self, name: str, data: bytes) -> bool:
        if name == "epochs/2" and self.other is None:
            store = LocalStore(self.root, "01" * 8)
            self.other = take_over(store, open_identity(store, "pubsub", SOURCES))
        return super().create(name, data)

    def read(self, name: str) -> bytes:
        if self.other is not None and not self.began and name.startswith("ledger/1/"):
            self.began = True
            self.other.begin()
            for number in record_numbers(self, 1)[:-1]:
                self.delete(record_name(1, number))
        return super().read(name)


def test_a_start_that_comes_after_one_that_has_just_begun_reads_what_that_has_written(tmp_path: Path) -> None:
    spool = HandSpool(tmp_path / "spool")
    fill(spool)
    store = _Overtaken(str(spool.root), "23" * 8)
    ledger = open_ledger(store, open_identity(store, "pubsub", SOURCES))
    assert store.began
    assert ledger.claim.epoch == 3
    assert ledger.state.head == 6
