"""Disk space for the writes that free disk space (rule R10).

Before a segment can be deleted a record has to be written, and often a run of ids. So the reader reserves space by a
file that it can delete, and fetchers leave as much alone: they stop while there is still space for the records. An
object store needs none of this.
"""

from __future__ import annotations

import errno
import logging
import os
from typing import Final

from connectors.spool.errors import no_room
from connectors.spool.store.base import Store
from connectors.spool.store.local import FILE_MODE, TEMPORARY_FOLDER, LocalStore

__all__ = ["DiskReserve", "release_reserves", "spare_the_reserve"]

_logger = logging.getLogger(__name__)
_MOST_BYTES: Final = 32 << 20
"""Enough for the ids that are in memory at most, as a run, and hundreds of records."""
_SHARE: Final = 16
_SUFFIX: Final = "-reserve"


class DiskReserve:
    """The file by which the writer of a spool reserves space. The next writer deletes one that was left behind."""

    def __init__(self, store: Store) -> None:
        self._store = store if isinstance(store, LocalStore) else None
        self._name = f"{store.owner}{_SUFFIX}"
        self._held = False
        self._possible = True

    def keep(self) -> None:
        """Reserve the space, unless that was done or the disk has less than twice as much."""
        if self._held or not self._possible or self._store is None:
            return
        size, left = _reserve_and_room(self._store.root)
        if left < 2 * size:
            return
        try:
            with self._store.folder(TEMPORARY_FOLDER, make=True) as folder:
                file = self._store.disk.create(self._name, folder, FILE_MODE)
            self._held = True
            try:
                os.posix_fallocate(file, 0, size)
            finally:
                os.close(file)
        except OSError as error:
            self.release()
            self._possible = no_room(error)
            _logger.warning("No disk space is reserved in the spool %s: %s.", self._store.root, error.strerror)

    def release(self) -> None:
        """Delete the file."""
        self._held = False
        if self._store is not None:
            self._store.delete(f"{TEMPORARY_FOLDER}/{self._name}")


def release_reserves(store: Store) -> None:
    """Delete the reserves of earlier writers: a start needs space too. The caller holds the spool's lock."""
    for name in store.temporary_files():
        if name.endswith(_SUFFIX):
            store.delete(f"{TEMPORARY_FOLDER}/{name}")


def spare_the_reserve(store: Store) -> None:
    """Raise `OSError` (ENOSPC) when the disk has no more space than the reserve; for what fills the disk."""
    if isinstance(store, LocalStore):
        size, left = _reserve_and_room(store.root)
        if left < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), store.root)


def _reserve_and_room(root: str) -> tuple[int, int]:
    """Return the size of the reserve on a folder's disk, and what is free on that disk, in bytes."""
    status = os.statvfs(root)
    return min(_MOST_BYTES, status.f_blocks * status.f_frsize // _SHARE), status.f_bavail * status.f_frsize
