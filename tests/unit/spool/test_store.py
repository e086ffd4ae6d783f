"""The order of what a local store asks of the disk."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from connectors.core.errors import SpoolError
from connectors.spool.read import read_slices
from connectors.spool.store import LocalStore

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
    store.put("ids/first", b"1")
    assert disk_calls(lambda: store.put("ids/second", b"2")) == ["write", "fsync", "link", "fsync", "unlink"]


def test_a_new_folder_is_durable_before_a_file_in_it_has_its_name(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "spool"), "ab")
    store.make_root()
    store.put("ids/first", b"1")
    calls = disk_calls(lambda: store.put("ledger/1/0", b"record"))
    assert calls == ["write", "fsync", "mkdir", "fsync", "mkdir", "fsync", "link", "fsync", "unlink"]


def test_a_name_that_is_taken_keeps_its_file(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "spool"), "ab")
    store.make_root()
    assert store.put("ids/a", b"first")
    assert not store.put("ids/a", b"second")
    assert store.read("ids/a") == b"first"
    assert store.list("tmp") == []


def test_a_task_that_cannot_see_the_spool_says_where_it_runs_and_what_to_do(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for root in (tmp_path / "absent", empty):
        with pytest.raises(SpoolError, match=f"SPOOL_NOT_VISIBLE.*{socket.gethostname()}.*{root}.*share") as caught:
            list(read_slices(str(root), []))
        assert caught.value.action
