"""A full disk under a running query: nothing unsaved is acked, what is there is served, and it mends by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import full_disk
from tests.support.full_disk_rig import live_on_full_disk

KINDS = ["raised_enospc"] if full_disk.small_disk_refused() else ["tmpfs_running", "tmpfs_restart"]
"""The name says what ran: without user namespaces the error is raised, as tests/unit does at a call of each kind."""


@pytest.mark.guarantee
@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_loses_and_doubles_nothing_and_drains_by_itself(kind: str, tmp_path: Path) -> None:
    if kind == "raised_enospc":
        live_on_full_disk(tmp_path / "life", 20, 10)
        return
    seen = full_disk.run(kind.partition("_")[2], tmp_path)
    assert seen["unsaved_acks"] == 0
    assert seen["same_reader"]
    assert 0 < seen["acked_when_full"] < seen["published"] == seen["rows"]
    assert "[SPOOL_DISK_FULL]" in seen["message"]
    assert str(tmp_path / "disk" / "spool") in seen["message"]
    assert "Free space" in seen["message"]
