"""A disk that says "no room" at any call: nothing unsaved is acked, nothing is lost, and the query mends by itself.

Errors are raised where the operating system would; tests/integration/pubsub/test_full_disk.py has a disk that is full.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from connectors.core.errors import SpoolFullError
from connectors.spool.store.disk_space import DiskReserve, release_reserves
from connectors.spool.store.local import LocalStore
from tests.support.full_disk_rig import FullDisk, Taking, live_on_full_disk
from tests.support.power_loss_rig import on_disk
from tests.support.spool_life import SpoolLife

pytestmark = pytest.mark.guarantee


def test_raised_enospc_at_a_call_of_each_kind_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """``./dev chaos power_loss`` does it at every call."""
    seed = random.randrange(1 << 30)
    sys.stdout.write(f"seed {seed}\n")
    choose = random.Random(seed)
    alike = Counter(live_on_full_disk(tmp_path / "room", None, 0).taking)
    assert {
        Taking("link", "inbox"),
        Taking("link", "ledger"),
        Taking("link", "ids"),
        Taking("write", "tmp"),
    } <= alike.keys()
    for number, (taking, count) in enumerate(alike.items()):
        full_at = choose.randrange(count)
        sys.stdout.write(f"{taking}, number {full_at} of {count}\n")
        live_on_full_disk(tmp_path / f"full-{number}", full_at, 2, taking)


def test_a_query_that_starts_on_a_full_disk_says_so_and_names_the_way_on(tmp_path: Path) -> None:
    with SpoolLife(tmp_path) as life:
        full = FullDisk(life.disk, 0, 1)
        full.arm()
        with on_disk(full):
            with pytest.raises(SpoolFullError, match=r"^\[SPOOL_DISK_FULL\]") as caught:
                life.open_stream()
            assert (caught.value.where, caught.value.transient) == (str(life.spool), True)
            assert "Free space" in caught.value.action
            with life.query() as query:
                life.publish_and_read(query, 5)
        life.assert_each_once()


def test_room_is_held_until_it_is_let_go_of_or_the_next_writer_comes(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path), "ab" * 8)
    reserve = DiskReserve(store)
    reserve.keep()
    reserve.keep()
    (path,) = tmp_path.glob("tmp/*")
    assert path.stat().st_blocks * 512 >= path.stat().st_size > 1 << 20
    reserve.release()
    assert store.list("tmp") == []
    reserve.keep()
    release_reserves(LocalStore(str(tmp_path), "cd" * 8))
    assert store.list("tmp") == []
