"""The order of what a local store asks of the disk."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from connectors.core.errors import SpoolError
from connectors.spool.fetching.room import FetcherFolder
from connectors.spool.ledger.identity import open_identity, read_identity
from connectors.spool.segments.segment import read_slices
from connectors.spool.store.disk import Disk
from connectors.spool.store.local import LocalStore
from tests.support.power_loss_rig import on_disk
from tests.support.spool_writing import SOURCES

pytestmark = pytest.mark.guarantee

WATCHED = {os.write: "write", os.fsync: "fsync", os.link: "link", os.unlink: "unlink", os.mkdir: "mkdir"}


def disk_calls(action: Callable[[], object]) -> list[str]:
    """The names of the calls to the disk that this thread makes, in order."""
    found: list[str] = []

    def note(_frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call" and (name := WATCHED.get(function)) is not None:
            found.append(name)

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return found


def test_a_file_is_synced_before_it_has_its_name_and_its_folder_after(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "spool"), "ab")
    store.make_root()
    store.create("ids/first", b"1")
    assert disk_calls(lambda: store.create("ids/second", b"2")) == ["write", "fsync", "link", "fsync", "unlink"]


def test_a_new_folder_is_durable_before_a_file_in_it_has_its_name(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "spool"), "ab")
    store.make_root()
    store.create("ids/first", b"1")
    calls = disk_calls(lambda: store.create("ledger/1/0", b"record"))
    assert calls == ["write", "fsync", "mkdir", "fsync", "mkdir", "fsync", "link", "fsync", "unlink"]


def test_a_name_that_is_taken_keeps_its_file(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "spool"), "ab")
    store.make_root()
    assert store.create("ids/a", b"first")
    assert not store.create("ids/a", b"second")
    assert store.read("ids/a") == b"first"
    assert store.list("tmp") == []


def test_a_task_that_cannot_see_the_spool_says_where_it_runs_and_what_to_do(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for root in (tmp_path / "absent", empty):
        with pytest.raises(SpoolError, match=f"SPOOL_NOT_VISIBLE.*{socket.gethostname()}.*{root}.*share") as caught:
            list(read_slices(str(root), []))
        assert caught.value.action


def test_a_name_that_is_found_taken_is_made_durable_before_anyone_relies_on_it(tmp_path: Path) -> None:
    """Who gave it may have died before it was synced; or the answer to one's own call was lost."""
    store = LocalStore(str(tmp_path / "spool"), "ab")
    store.make_root()
    store.create("ids/first", b"1")
    assert disk_calls(lambda: store.create("ids/first", b"1")) == ["write", "fsync", "link", "fsync", "unlink"]


def test_a_folder_that_another_process_made_is_made_durable_before_a_file_is_in_it(tmp_path: Path) -> None:
    made = LocalStore(str(tmp_path / "spool"), "ab")
    made.make_root()
    made.create("ids/first", b"1")
    store = LocalStore(str(tmp_path / "spool"), "cd")
    calls = disk_calls(lambda: store.create("ids/second", b"2"))
    assert calls == ["fsync", "write", "fsync", "fsync", "link", "fsync", "unlink"], "tmp, data, root, name"
    assert disk_calls(lambda: store.create("ids/third", b"3")) == ["write", "fsync", "link", "fsync", "unlink"]


class ClearedDisk(Disk):
    """A disk on which another process clears a temporary file away, so often."""

    def __init__(self, times: int) -> None:
        self.left = times

    def link(self, source: str, source_folder: int, name: str, folder: int) -> None:
        if self.left:
            self.left -= 1
            self.unlink(source, source_folder)
        super().link(source, source_folder, name, folder)


def test_a_small_file_survives_that_its_temporary_name_is_cleared_away(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "spool"), "ab")
    store.make_root()
    with on_disk(ClearedDisk(2)):
        assert store.create("ids/first", b"1")
    assert store.read("ids/first") == b"1"
    with on_disk(ClearedDisk(3)), pytest.raises(FileNotFoundError):
        store.create("ids/second", b"2")


def test_a_file_that_is_deleted_while_times_are_read_takes_no_other_along(tmp_path: Path) -> None:
    """A fetcher that runs elsewhere looks at a folder of records while the reader trims it."""
    store = LocalStore(str(tmp_path / "spool"), "ab")
    store.make_root()
    names = {"0", "1", "2", "3"}
    for name in names:
        store.create(f"ledger/1/{name}", b"record")
    deleted: set[str] = set()

    def trim(_frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call" and isinstance(entry := getattr(function, "__self__", None), os.DirEntry) and not deleted:
            deleted.add(entry.name)
            store.delete(f"ledger/1/{entry.name}")

    sys.setprofile(trim)
    try:
        times = store.written("ledger/1")
    finally:
        sys.setprofile(None)
    assert deleted
    assert set(times) == names - deleted


@pytest.fixture
def used(tmp_path: Path) -> LocalStore:
    """The store of a process that uses a spool."""
    store = LocalStore(str(tmp_path / "spool"), "ab")
    store.make_root()
    open_identity(store, "pubsub", SOURCES)
    store.create("ledger/1/0", b"record")
    return store


CALLS: dict[str, Callable[[LocalStore], Any]] = {
    "put": lambda store: store.create("ledger/1/1", b"record"),
    "make_folder": lambda store: store.make_folder("inbox/f0"),
    "list": lambda store: store.list("ledger/1"),
    "read": lambda store: store.read("ledger/1/0"),
    "delete": lambda store: store.delete("ledger/1/0"),
    "is_locked": lambda store: store.is_locked("inbox/f0"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("empty_place", [True, False])
def test_a_spool_whose_disk_went_away_is_neither_read_nor_written_until_it_is_back(
    used: LocalStore, tmp_path: Path, call: str, *, empty_place: bool
) -> None:
    root = Path(used.root)
    root.rename(tmp_path / "disk")
    if empty_place:
        root.mkdir()
    with pytest.raises(SpoolError, match=rf"\[SPOOL_MISSING\].*{root}.*Mount its disk again"):
        CALLS[call](used)
    assert not root.exists() or list(root.iterdir()) == []
    if empty_place:
        root.rmdir()
    (tmp_path / "disk").rename(root)
    CALLS[call](used)


@pytest.mark.parametrize("call", ["put", "make_folder"])
def test_a_spool_whose_files_were_removed_is_not_begun_anew(used: LocalStore, call: str) -> None:
    root = Path(used.root)
    for path in root.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(SpoolError, match=r"\[SPOOL_MISSING\]"):
        CALLS[call](used)
    assert list(root.iterdir()) == []


def test_a_fetcher_makes_its_folder_in_its_own_spool_only(used: LocalStore) -> None:
    root = Path(used.root)
    found = read_identity(used)
    assert found is not None
    FetcherFolder(used.root, spool=found.spool).release()
    before = sorted(root.rglob("*"))
    with pytest.raises(SpoolError, match=rf"\[SPOOL_OTHER\] Spool {found.spool} is here"):
        FetcherFolder(used.root, spool="another")
    assert sorted(root.rglob("*")) == before
    root.rename(root.parent / "disk")
    root.mkdir()
    with pytest.raises(SpoolError, match=r"\[SPOOL_MISSING\]"):
        FetcherFolder(used.root, spool=found.spool)
    assert list(root.iterdir()) == []
