"""The doctor finds what is wrong with a spool's folder: each thing is broken here on purpose."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from connectors.core.diagnostics import Finding, Outcome, Steps
from connectors.spool.admin.doctor import check_spool
from connectors.spool.stream.slices import offset_at
from tests.support.spool_writing import SOURCES, HandSpool


@pytest.fixture
def spool(tmp_path: Path) -> HandSpool:
    return HandSpool(tmp_path / "spool")


def look(root: Path, *, wanted: int = 1, checkpoint: Path | None = None) -> dict[str, Finding]:
    """The findings by check; a test's folder is a volatile one, and known to be."""
    findings = {each.check: each for each in check_spool(root, "pubsub", SOURCES, wanted, checkpoint)}
    findings.pop("kind of disk")
    return findings


def bad(findings: Mapping[str, Finding]) -> dict[str, str]:
    """The codes of what is not ok; each has a fix."""
    found = [each for each in findings.values() if each.outcome in {Outcome.FAILURE, Outcome.WARNING}]
    assert all(each.fix for each in found)
    return {each.check: each.code for each in found}


def filled(spool: HandSpool) -> dict[str, Any]:
    """Fill a spool with four rows; the offset behind them."""
    ledger = spool.open()
    spool.write(["a", "b", "c", "d"])
    ledger.admit()
    return offset_at(ledger.state, 4)


def checkpoint_with(folder: Path, offset: Mapping[str, Any]) -> Path:
    """A checkpoint of Spark at an offset."""
    (folder / "offsets").mkdir(parents=True)
    (folder / "offsets" / "0").write_text('v1\n{"batchWatermarkMs":0}\n{}')
    (folder / "offsets" / "10").write_text(f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps(offset)}')
    return folder


def test_a_folder_that_is_not_there_yet_is_well_and_is_not_made(spool: HandSpool) -> None:
    assert bad(look(spool.root)) == {}
    assert not spool.root.exists()


def test_a_used_spool_is_well_and_nothing_of_it_changes(spool: HandSpool) -> None:
    filled(spool)
    before = {str(path): path.stat().st_mtime_ns for path in spool.root.rglob("*") if path.is_file()}
    findings = look(spool.root)
    assert bad(findings) == {}
    assert "4 rows" in findings["content"].found
    assert {str(path): path.stat().st_mtime_ns for path in spool.root.rglob("*") if path.is_file()} == before


def test_a_volatile_disk_is_warned_of(tmp_path: Path) -> None:
    [kind] = [each for each in check_spool(tmp_path, "pubsub", SOURCES, 1, None) if each.check == "kind of disk"]
    assert (kind.outcome, kind.code) == (Outcome.WARNING, "SPOOL_VOLATILE")
    assert "which may be emptied with the machine" in kind.found


def test_a_place_that_takes_no_files_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    findings = look(tmp_path / "file" / "spool")
    assert bad(findings) == {"writable": "SPOOL_NOT_WRITABLE"}
    assert findings["content"].outcome is Outcome.SKIPPED
    assert bad(look(Path("/proc/spool"))) == {"writable": "SPOOL_NOT_WRITABLE"}


def test_a_link_to_nowhere_is_reported(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for root in (tmp_path / "link", tmp_path / "link" / "spool"):
        assert bad(look(root)) == {"writable": "SPOOL_NOT_WRITABLE"}


def test_a_lock_that_cannot_be_looked_at_is_reported(spool: HandSpool) -> None:
    filled(spool)
    lock = spool.root / "lock"
    lock.mkdir()
    assert bad(look(spool.root)) == {"held by": "SPOOL_FOREIGN_FILE"}
    lock.rmdir()
    lock.symlink_to("elsewhere")
    assert bad(look(spool.root)) == {"held by": "SPOOL_FOREIGN_FILE"}


def test_what_the_system_refuses_is_a_finding_and_skips_what_stands_on_it() -> None:
    def refused() -> str:
        raise PermissionError(errno.EACCES, "Permission denied", "/spools/orders/spool.json")

    steps = Steps("spool")
    finding = steps.step("content", refused)
    assert (finding.outcome, finding.code) == (Outcome.FAILURE, "SYSTEM_REFUSES")
    assert "Permission denied: '/spools/orders/spool.json'" in finding.found
    assert finding.fix
    assert steps.step("checkpoint", refused).outcome is Outcome.SKIPPED


def test_a_folder_that_everyone_may_write_to_is_reported(spool: HandSpool) -> None:
    filled(spool)
    spool.root.chmod(0o777)
    assert bad(look(spool.root)) == {"writable": "SPOOL_WORLD_WRITABLE"}


def test_a_folder_that_is_a_link_to_elsewhere_is_reported(spool: HandSpool, tmp_path: Path) -> None:
    filled(spool)
    (spool.root / "inbox").rename(tmp_path / "inbox")
    (spool.root / "inbox").symlink_to(tmp_path / "inbox")
    assert bad(look(spool.root)) == {"one file system": "SPOOL_FOREIGN_FILE"}


def test_a_disk_with_less_room_than_the_spool_may_take_is_reported(tmp_path: Path) -> None:
    assert bad(look(tmp_path, wanted=1 << 60)) == {"room": "SPOOL_LITTLE_ROOM"}


def test_who_holds_a_spool_is_reported(spool: HandSpool) -> None:
    filled(spool)
    lock = spool.lock(os.getpid())
    lock.acquire()
    findings = look(spool.root)
    assert bad(findings) == {"held by": "SPOOL_IN_USE"}
    assert f"reader process {os.getpid()}" in findings["held by"].found
    lock.release()


def test_a_spool_of_another_source_and_one_that_was_moved_are_reported(spool: HandSpool, tmp_path: Path) -> None:
    filled(spool)
    other = {each.check: each.code for each in check_spool(spool.root, "pubsub", ("another",), 1, None)}
    assert other["content"] == "SPOOL_OTHER_SOURCE"
    spool.root.rename(tmp_path / "moved")
    assert bad(look(tmp_path / "moved")) == {"content": "SPOOL_MOVED"}


def test_a_damaged_ledger_is_reported(spool: HandSpool) -> None:
    filled(spool)
    [*_, last] = sorted((spool.root / "ledger" / "1").iterdir())
    last.write_bytes(b"torn")
    assert list(bad(look(spool.root))) == ["content"]


def test_a_checkpoint_that_fits_is_well(spool: HandSpool, tmp_path: Path) -> None:
    checkpoint = checkpoint_with(tmp_path / "checkpoint", filled(spool))
    findings = look(spool.root, checkpoint=checkpoint)
    assert bad(findings) == {}
    assert "ends at 4 of 4 rows" in findings["checkpoint"].found


def test_a_checkpoint_of_a_spool_that_is_not_there_is_reported(spool: HandSpool, tmp_path: Path) -> None:
    """As when spoolLocation is misspelt: the query would make a spool there, and stop at its checkpoint."""
    offset = filled(spool)
    checkpoint = checkpoint_with(tmp_path / "checkpoint", offset)
    for place in (tmp_path / "spol", tmp_path / "empty"):
        if place.name == "empty":
            place.mkdir()
        findings = look(place, checkpoint=checkpoint)
        assert bad(findings) == {"checkpoint": "SPOOL_OTHER"}
        assert offset["spool"] in findings["checkpoint"].found
        assert str(place) in findings["checkpoint"].found
        assert "spoolLocation" in findings["checkpoint"].fix


def test_a_checkpoint_that_is_not_there_yet_is_that_of_a_new_query(spool: HandSpool, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for fill in (False, True):
        if fill:
            filled(spool)
        for checkpoint in (tmp_path / "checkpoint", tmp_path / "empty"):
            findings = look(spool.root, checkpoint=checkpoint)
            assert bad(findings) == {}
            assert "a new query" in findings["checkpoint"].found


def test_a_checkpoint_is_not_looked_at_where_the_spool_is_not_well(spool: HandSpool, tmp_path: Path) -> None:
    checkpoint = checkpoint_with(tmp_path / "checkpoint", filled(spool))
    spool.root.rename(tmp_path / "moved")
    findings = look(tmp_path / "moved", checkpoint=checkpoint)
    assert bad(findings) == {"content": "SPOOL_MOVED"}
    assert findings["checkpoint"].outcome is Outcome.SKIPPED


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"spool": "0123"}, "SPOOL_OTHER"),
        ({"position": 5}, "SPOOL_OFFSET_ABOVE_HEAD"),
        ({"epoch": "nobody"}, "SPOOL_OFFSET_UNKNOWN"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_reported(
    spool: HandSpool, tmp_path: Path, change: dict[str, Any], code: str
) -> None:
    checkpoint = checkpoint_with(tmp_path / "checkpoint", {**filled(spool), **change})
    assert bad(look(spool.root, checkpoint=checkpoint)) == {"checkpoint": code}


def test_what_is_no_checkpoint_is_reported(spool: HandSpool, tmp_path: Path) -> None:
    filled(spool)
    (tmp_path / "file").touch()
    assert bad(look(spool.root, checkpoint=tmp_path)) == {"checkpoint": "CHECKPOINT_UNREADABLE"}
