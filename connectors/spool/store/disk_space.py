"""Room on a spool's disk for what frees space (rule R10).

Before a segment can be deleted a record has to be written, and often a run of ids. So the reader holds some room by a
file that it can let go of, and fetchers leave as much alone: they stop while the records still find room.

The files in ``tmp/`` of a spool's folder: those without a name of their own yet, and room that is held (rule R1).

A folder may have had a ``tmp/`` before it was made a spool: only what a spool has written itself is ever deleted.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import stat
from pathlib import Path

from connectors.spool.errors import no_room
from connectors.spool.store.base import Store
from connectors.spool.store.disk import disk
from connectors.spool.store.local import TEMPORARY_FOLDER, LocalStore

__all__ = ["DiskReserve", "is_temporary_name", "release_reserves", "spare_the_reserve", "temporary_files"]


_OWN = re.compile(r"[0-9a-f]{16}-(?:[0-9]+|reserve|spool\.json)")
"""The owner, which is a process life, and what `LocalStore` and `DiskReserve` put after it."""


def is_temporary_name(name: str) -> bool:
    """Whether a spool gives its temporary files such names; without the folder."""
    return _OWN.fullmatch(name) is not None


def temporary_files(store: Store) -> list[str]:
    """The names, without the folder, of the temporary files that a spool has written; an object store has none."""
    if not isinstance(store, LocalStore):
        return []
    return [name for name in store.list(TEMPORARY_FOLDER) if is_temporary_name(name) and _is_file(store, name)]


def _is_file(store: LocalStore, name: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return stat.S_ISREG(Path(store.root, TEMPORARY_FOLDER, name).lstat().st_mode)
    return False


_logger = logging.getLogger(__name__)
_MOST_BYTES = 32 << 20
"""Enough for the ids that are in memory at most, as a run, and hundreds of records."""

_SHARE = 16
_SUFFIX = "-reserve"
_FILE_MODE = 0o600


class DiskReserve:
    """The file that holds room, by the writer of a spool. The next writer clears it away if it is left behind.

    Args:
        store: of the spool.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._name = f"{store.owner}{_SUFFIX}"
        self._held = False
        self._possible = True

    def keep(self) -> None:
        """Hold the room, if it is not held and the disk has more than twice as much; a bucket always has room."""
        if self._held or not self._possible or not isinstance(self._store, LocalStore):
            return
        size, left = _reserve_and_room(self._store.root)
        if left < 2 * size:
            return
        try:
            self._take(self._store, size)
        except OSError as error:
            self.release()
            self._possible = no_room(error)
            _logger.warning("No room is held in the spool %s: %s.", self._store.root, error.strerror)

    def release(self) -> None:
        """Let go of the room."""
        self._held = False
        if isinstance(self._store, LocalStore):
            self._store.delete(f"{TEMPORARY_FOLDER}/{self._name}")

    def _take(self, store: LocalStore, size: int) -> None:
        with store.folder(TEMPORARY_FOLDER, make=True) as folder:
            file = disk().create(self._name, folder, _FILE_MODE)
        self._held = True
        try:
            os.posix_fallocate(file, 0, size)
        finally:
            os.close(file)


def release_reserves(store: Store) -> None:
    """Let go of what earlier writers of a spool held: a start needs room too. The caller holds the spool's lock."""
    for name in temporary_files(store):
        if name.endswith(_SUFFIX):
            store.delete(f"{TEMPORARY_FOLDER}/{name}")


def spare_the_reserve(store: Store) -> None:
    """For what fills the disk; does nothing where there is none.

    Raises:
        OSError: ENOSPC, when no more than the reserve is left.
    """
    if not isinstance(store, LocalStore):
        return
    size, left = _reserve_and_room(store.root)
    if left < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), store.root)


def _reserve_and_room(root: str) -> tuple[int, int]:
    """The size of the reserve on a folder's disk, and what is left of the disk, in bytes."""
    found = os.statvfs(root)
    return min(_MOST_BYTES, found.f_blocks * found.f_frsize // _SHARE), found.f_bavail * found.f_frsize
