"""A file of a spool on a local file system: written under a temporary name, synced, and then named (rule R1)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Final, TypeVar

from connectors.core.processes.failpoints import failpoint
from connectors.spool.store.base import StoreWriting
from connectors.spool.store.disk import Disk
from connectors.spool.store.folder_tree import TEMPORARY_FOLDER, FolderTree

__all__ = ["FILE_MODE", "LocalWriter", "repeated", "write_all"]

FILE_MODE: Final = 0o600
_CLEARED_TIMES: Final = 2
"""So often may a newer writer take the temporary file of a small put for that of a dead process, and delete it."""


class LocalWriter(StoreWriting):
    """A file that is being written under a temporary name."""

    def __init__(self, tree: FolderTree, disk: Disk, name: str, temporary: str) -> None:
        self._tree = tree
        self._disk = disk
        self._name = name
        self._temporary = temporary
        self.length = 0
        with self._tree.open(TEMPORARY_FOLDER, make=True) as folder:
            self._file = self._disk.create(temporary, folder, FILE_MODE)
        self._open = True

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        self.length += write_all(self._disk, self._file, data)

    def publish(self) -> bool:
        """Make the file durable under its name; return False if that is taken."""
        failpoint("store.before_sync")
        self._disk.fsync(self._file)
        folder, _, base = self._name.rpartition("/")
        failpoint("store.before_link")
        with self._tree.open(TEMPORARY_FOLDER) as source, self._tree.open(folder, make=True) as target:
            taken = False
            try:
                self._disk.link(self._temporary, source, base, target)
            except FileExistsError:
                taken = True
            failpoint("store.before_folder_sync")
            # Also of a name that is taken: who gave it, perhaps this process, may not have come to this line.
            self._disk.fsync(target)
        failpoint("store.after_publish")
        return not taken

    def publish_over(self) -> None:
        """Make the file durable under its name, in the place of the file that has it."""
        failpoint("store.before_sync")
        self._disk.fsync(self._file)
        folder, _, base = self._name.rpartition("/")
        failpoint("store.before_rename")
        with self._tree.open(TEMPORARY_FOLDER) as source, self._tree.open(folder, make=True) as target:
            self._disk.rename(self._temporary, source, base, target)
            failpoint("store.before_folder_sync")
            self._disk.fsync(target)
        failpoint("store.after_publish")

    def discard(self) -> None:
        """Close the file, and delete the temporary name; nothing happens at a second call."""
        if self._open:
            self._open = False
            os.close(self._file)
            with contextlib.suppress(FileNotFoundError), self._tree.open(TEMPORARY_FOLDER) as folder:
                self._disk.unlink(self._temporary, folder)


_Result = TypeVar("_Result")


def repeated(write: Callable[[], _Result]) -> _Result:
    """Write again what lost its temporary file to a newer writer."""
    for _ in range(_CLEARED_TIMES):
        with contextlib.suppress(FileNotFoundError):
            return write()
    return write()


def write_all(disk: Disk, file: int, data: bytes | memoryview) -> int:
    """Append all of some bytes; return how many."""
    view = memoryview(data).cast("B")
    length = len(view)
    while view:
        view = view[disk.write(file, view) :]
    return length
