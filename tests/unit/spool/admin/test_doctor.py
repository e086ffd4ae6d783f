"""The doctor finds what is wrong with a spool's folder: each thing is broken here on purpose."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from connectors.core.diagnostics import Finding, Outcome
from connectors.spool.admin.doctor import check_spool
from tests.support.spool_writing import SOURCES, HandSpool


@pytest.fixture
def spool(tmp_path: Path) -> HandSpool:
    return HandSpool(tmp_path / "spool")


def look(root: Path, *, wanted: int = 1) -> dict[str, Finding]:
    """The findings by check."""
    return {finding.check: finding for finding in check_spool(str(root), "pubsub", SOURCES, wanted)}


def bad(findings: Mapping[str, Finding]) -> dict[str, str]:
    """The codes of what is not ok; each has a fix. A test's folder is a volatile one, and known to be."""
    wrong = [finding for finding in findings.values() if finding.outcome in {Outcome.FAILURE, Outcome.WARNING}]
    assert all(finding.fix for finding in wrong)
    return {finding.check: finding.code for finding in wrong if finding.code != "SPOOL_VOLATILE"}


def filled(spool: HandSpool) -> None:
    """Fill a spool with four rows."""
    ledger = spool.open()
    spool.write(["a", "b", "c", "d"])
    ledger.admit()


def test_a_folder_that_is_not_there_yet_is_ok_and_is_not_made(spool: HandSpool) -> None:
    assert bad(look(spool.root)) == {}
    assert not spool.root.exists()


def test_a_used_spool_is_ok_and_nothing_of_it_changes(spool: HandSpool) -> None:
    filled(spool)
    before = {str(path): path.stat().st_mtime_ns for path in spool.root.rglob("*") if path.is_file()}
    findings = look(spool.root)
    assert bad(findings) == {}
    assert "4 rows" in findings["content"].seen
    assert {str(path): path.stat().st_mtime_ns for path in spool.root.rglob("*") if path.is_file()} == before


def test_a_volatile_disk_is_warned_of(tmp_path: Path) -> None:
    disk = look(tmp_path)["disk"]
    assert (disk.outcome, disk.code) == (Outcome.WARNING, "SPOOL_VOLATILE")
    assert "may be emptied with the machine" in disk.seen


def test_a_disk_with_less_room_than_the_spool_may_take_is_warned_of(tmp_path: Path) -> None:
    assert bad(look(tmp_path, wanted=1 << 60)) == {"room": "SPOOL_LITTLE_ROOM"}


def test_a_place_that_takes_no_files_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for root in (tmp_path / "file" / "spool", Path("/proc/spool"), tmp_path / "link", tmp_path / "link" / "spool"):
        findings = look(root)
        assert bad(findings) == {"writable": "SPOOL_NOT_WRITABLE"}, root
        assert findings["content"].outcome is Outcome.SKIPPED


def test_a_lock_that_cannot_be_checked_is_reported(spool: HandSpool) -> None:
    filled(spool)
    lock = spool.root / "lock"
    lock.mkdir()
    assert bad(look(spool.root)) == {"held by": "SPOOL_FOREIGN_FILE"}
    lock.rmdir()
    lock.symlink_to("elsewhere")
    assert bad(look(spool.root)) == {"held by": "SPOOL_FOREIGN_FILE"}


def test_a_folder_that_everyone_may_write_to_is_reported(spool: HandSpool) -> None:
    filled(spool)
    spool.root.chmod(0o777)
    assert bad(look(spool.root)) == {"writable": "SPOOL_WORLD_WRITABLE"}


def test_who_holds_a_spool_is_reported(spool: HandSpool) -> None:
    filled(spool)
    lock = spool.lock(os.getpid())
    lock.acquire()
    findings = look(spool.root)
    assert bad(findings) == {"held by": "SPOOL_IN_USE"}
    assert f"reader process {os.getpid()}" in findings["held by"].seen
    lock.release()


def test_a_spool_of_another_source_and_one_that_was_moved_are_reported(spool: HandSpool, tmp_path: Path) -> None:
    filled(spool)
    other = {finding.check: finding.code for finding in check_spool(str(spool.root), "pubsub", ("another",), 1)}
    assert other["content"] == "SPOOL_OTHER_SOURCE"
    spool.root.rename(tmp_path / "moved")
    assert bad(look(tmp_path / "moved")) == {"content": "SPOOL_MOVED"}


def test_a_damaged_ledger_is_reported(spool: HandSpool) -> None:
    filled(spool)
    [*_, last] = sorted((spool.root / "ledger" / "1").iterdir())
    last.write_bytes(b"torn")
    assert list(bad(look(spool.root))) == ["content"]
