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
from connectors.spool.store.base import Space, Store
from connectors.spool.store.disk import TEMPORARY_FOLDER

_logger = logging.getLogger(__name__)
_MOST_BYTES: Final = 32 << 20
"""Enough for the ids that are in memory at most, as a run, and hundreds of records."""
_SHARE: Final = 16
_SUFFIX: Final = "-reserve"


class DiskReserve:
    """The file by which the writer of a spool reserves space. The next writer deletes one that was left behind."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._name = f"{TEMPORARY_FOLDER}/{store.owner}{_SUFFIX}"
        self._held = False
        self._possible = True

    def keep(self) -> None:
        """Reserve the space, unless that was done or the disk has less than twice as much."""
        space = None if self._held or not self._possible else self._store.space()
        if space is None or space.free < 2 * _reserve(space):
            return
        self._held = True
        try:
            self._store.allocate(self._name, _reserve(space))
        except OSError as error:
            self.release()
            self._possible = no_room(error)
            _logger.warning(
                "No disk space could be reserved in the spool %s, and the query continues: %s.",
                self._store.root,
                error.strerror,
            )

    def release(self) -> None:
        if self._held:
            self._held = False
            self._store.delete(self._name)


def release_reserves(store: Store) -> None:
    """Delete the reserves of earlier writers: a start needs space too. The caller holds the spool's lock."""
    for name in store.temporary_files():
        if name.endswith(_SUFFIX):
            store.delete(f"{TEMPORARY_FOLDER}/{name}")


def require_free_space(store: Store) -> None:
    """Raise `OSError` (ENOSPC) if the disk has less free space than the reserve, before something fills it."""
    space = store.space()
    if space is not None and space.free < _reserve(space):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), store.root)


def _reserve(space: Space) -> int:
    return min(_MOST_BYTES, space.size // _SHARE)
