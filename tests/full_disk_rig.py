"""The life of a spool on a disk that says "no room" from some call on, and after a while has room again."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from connectors.testing.power_loss import Kind, RecordingDisk
from tests.power_loss_rig import on_disk
from tests.spool_life import SpoolLife

_ROUND = 6
_TAKES_ROOM = frozenset({"create", "write", "fsync", "mkdir", "link"})


class FullDisk(RecordingDisk):
    """A disk that is full for a while.

    Args:
        folder: what is recorded.
        full_at: it is full from this one of the calls that take room on, counted since `arm`; None: never.
        refusals: after so many refused calls there is room again.
    """

    def __init__(self, folder: Path, full_at: int | None, refusals: int) -> None:
        super().__init__(folder)
        self.taking: list[tuple[Kind, str]] = []
        self.refused = 0
        self._full_at, self._refusals = full_at, refusals
        self._armed = False

    def arm(self) -> None:
        """Begin to count."""
        self._armed = True

    def before(self, kind: Kind, path: str) -> None:
        if not self._armed or kind not in _TAKES_ROOM:
            return
        with self.lock:
            place = len(self.taking)
            self.taking.append((kind, path))
            if self._full_at is None or place < self._full_at or self.refused == self._refusals:
                return
            self.refused += 1
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def live_on_full_disk(
    folder: Path, full_at: int | None, refusals: int, look: Callable[[SpoolLife], None] = lambda _: None
) -> FullDisk:
    """Live with one start only on a disk that becomes full, and see that every message came once."""
    folder.mkdir()
    with SpoolLife(folder) as life:
        full = FullDisk(life.disk, full_at, refusals)
        with on_disk(full), life.query() as query:
            life.publish_and_read(query, _ROUND)
            full.arm()
            for _ in range(4):
                life.publish_and_read(query, _ROUND, timeout=20.0)
            life.merge_runs()
            life.publish_and_read(query, _ROUND, timeout=20.0)
            look(life)
        life.assert_each_once()
    return full
