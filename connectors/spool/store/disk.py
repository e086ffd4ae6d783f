"""The calls by which a spool in a folder changes its disk."""

from __future__ import annotations

import os
from typing import Final

__all__ = ["FILE_MODE", "Disk"]

FILE_MODE: Final = 0o600

_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_OR_CREATE: Final = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


class Disk:
    """The calls by which a store changes its disk, in one place, so that a test can stand between.

    Nothing else of the spool writes, names, syncs or deletes anything. Folders are descriptors, names are within them.
    """

    def create(self, name: str, folder: int, mode: int) -> int:
        """Make a new, empty file; return a descriptor to write it."""
        return os.open(name, _CREATE, mode, dir_fd=folder)

    def write(self, file: int, data: bytes | memoryview) -> int:
        """Append bytes to a file that `create` opened; return how many were taken."""
        return os.write(file, data)

    def write_all(self, file: int, data: bytes | memoryview) -> int:
        """Append all of some bytes; return how many."""
        view = memoryview(data).cast("B")
        length = len(view)
        while view:
            view = view[self.write(file, view) :]
        return length

    def open_or_create(self, name: str, folder: int, mode: int) -> int:
        """Open a file to read and write it, a new and empty one if there is none; return a descriptor."""
        return os.open(name, _OPEN_OR_CREATE, mode, dir_fd=folder)

    def truncate(self, file: int) -> None:
        """Remove all bytes of a file; the next ones are written at its begin."""
        os.ftruncate(file, 0)
        os.lseek(file, 0, os.SEEK_SET)

    def allocate(self, file: int, size: int) -> None:
        """Take space for so many bytes, which are zeros."""
        os.posix_fallocate(file, 0, size)

    def fsync(self, opened: int) -> None:
        """Make the bytes of a file durable, or the names in a folder."""
        os.fsync(opened)

    def mkdir(self, name: str, folder: int, mode: int) -> None:
        """Make a folder."""
        os.mkdir(name, mode, dir_fd=folder)

    def link(self, source: str, source_folder: int, name: str, folder: int) -> None:
        """Give a file a second name, if that is free."""
        os.link(source, name, src_dir_fd=source_folder, dst_dir_fd=folder, follow_symlinks=False)

    def rename(self, source: str, source_folder: int, name: str, folder: int) -> None:
        """Give a file another name, in the place of the file that has it."""
        os.replace(source, name, src_dir_fd=source_folder, dst_dir_fd=folder)

    def unlink(self, name: str, folder: int) -> None:
        """Take a name away from a file."""
        os.unlink(name, dir_fd=folder)

    def rmdir(self, name: str, folder: int) -> None:
        """Remove an empty folder."""
        os.rmdir(name, dir_fd=folder)
