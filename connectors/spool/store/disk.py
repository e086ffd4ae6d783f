"""The calls by which a local store changes its disk, in one place, so that a test can stand between.

Nothing else of the spool writes, names, syncs or deletes anything. `connectors.testing.power_loss` puts a disk here
that records every call; outside of tests it is the operating system's.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Disk", "disk", "set_disk"]

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Disk:
    """The operating system's calls; folders are descriptors, names are within them. All raise `OSError`."""

    def create(self, name: str, folder: int, mode: int) -> int:
        """Make a new, empty file; return a descriptor to write it."""
        return os.open(name, _CREATE, mode, dir_fd=folder)

    def write(self, file: int, data: Buffer) -> int:
        """Append bytes to a file that `create` opened; return how many were taken."""
        return os.write(file, data)

    def fsync(self, opened: int) -> None:
        """Make the bytes of a file durable, or the names in a folder."""
        os.fsync(opened)

    def mkdir(self, name: str, folder: int, mode: int) -> None:
        """Make a folder."""
        os.mkdir(name, mode, dir_fd=folder)

    def link(self, source: str, source_folder: int, name: str, folder: int) -> None:
        """Give a file a second name, if that is free."""
        os.link(source, name, src_dir_fd=source_folder, dst_dir_fd=folder, follow_symlinks=False)

    def unlink(self, name: str, folder: int) -> None:
        """Take a name away from a file."""
        os.unlink(name, dir_fd=folder)

    def rmdir(self, name: str, folder: int) -> None:
        """Remove an empty folder."""
        os.rmdir(name, dir_fd=folder)


_disk = Disk()


def disk() -> Disk:
    """Return the disk of this process."""
    return _disk


def set_disk(other: Disk) -> None:
    """Replace the disk of this process."""
    global _disk  # noqa: PLW0603 - one for the process, as the operating system it stands for
    _disk = other
