"""The life of a spool on a disk that says "no room" from some call on, and after a while has room again."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from tests.support.power_loss import Kind, RecordingDisk
from tests.support.power_loss_rig import on_disk
from tests.support.spool_life import SpoolLife

_ROUND = 6
_ROUNDS_UNTIL_FULL = 50
_TAKES_ROOM = frozenset({"create", "write", "allocate", "fsync", "mkdir", "link", "rename"})


@dataclass(frozen=True)
class Taking:
    """A call that takes room: what it does, and in which folder of the spool."""

    kind: Kind
    folder: str


class FullDisk(RecordingDisk):
    """A disk that is full for a while.

    Args:
        folder: what is recorded.
        full_at: it is full from this one of the calls that take room on, counted since `arm`; None: never.
        refusals: after so many refused calls there is room again.
        alike: only calls like this one are counted, not all that take room.
    """

    def __init__(self, folder: Path, full_at: int | None, refusals: int, alike: Taking | None = None) -> None:
        super().__init__(folder)
        self.taking: list[Taking] = []
        self.refused = 0
        self._calls_before, self._refusals, self._alike = full_at, refusals, alike
        self._armed = False

    @property
    def is_over(self) -> bool:
        """Whether it was full, and has room again."""
        return self.refused == self._refusals

    def arm(self) -> None:
        """Begin to count."""
        self._armed = True

    def before(self, kind: Kind, path: str) -> None:
        if not self._armed or kind not in _TAKES_ROOM:
            return
        with self.lock:
            taking = Taking(kind, path.split("/")[1] if "/" in path else "")
            self.taking.append(taking)
            if self.is_over or not self._is_full(taking):
                return
            self.refused += 1
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def _is_full(self, taking: Taking) -> bool:
        if self._calls_before is None or self.refused:
            return self.refused > 0
        if self._alike not in {None, taking}:
            return False
        self._calls_before -= 1
        return self._calls_before < 0


def live_on_full_disk(folder: Path, full_at: int | None, refusals: int, alike: Taking | None = None) -> FullDisk:
    """Live with one start only on a disk that becomes full, and see that every message came once.

    How many calls a life has hangs on what comes together in time, so it goes on until the disk was full and has room.
    """
    folder.mkdir()
    with SpoolLife(folder) as life:
        full = FullDisk(life.disk, full_at, refusals, alike)
        with on_disk(full), life.query() as query:
            life.publish_and_read(query, _ROUND)
            full.arm()
            for _ in range(4):
                life.publish_and_read(query, _ROUND)
            life.compact()
            life.publish_and_read(query, _ROUND)
            for _ in range(_ROUNDS_UNTIL_FULL):
                if full.is_over:
                    break
                life.compact()
                life.publish_and_read(query, _ROUND)
        life.assert_each_once()
    assert full.is_over, f"refused {full.refused} of {refusals} calls"
    return full
