"""The locks of a spool on a local file system: of a file, and of a folder; the end of a process releases them."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import Final

from connectors.spool.errors import OTHER_DISK, foreign_file, not_writable
from connectors.spool.store.base import FolderHold, LockFile
from connectors.spool.store.disk import FILE_MODE, Disk, FolderTree, file_identity

OPEN_FILE: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
"""Without waiting for the other end of what may be a pipe in the place of a file."""
_OPEN_WAY: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def open_lock_file(root: str, disk: Disk, name: str, *, make: bool) -> LockFile:
    """Open a file to lock it, or only to read it without `make`; raises as the interface says."""
    path = f"{root}/{name}"
    try:
        folder = os.open(root, _OPEN_WAY)
        try:
            file = disk.open_or_create(name, folder, FILE_MODE) if make else os.open(name, OPEN_FILE, dir_fd=folder)
        finally:
            os.close(folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:
            raise foreign_file(root, name) from error
        action = "Choose a spoolLocation that is a folder, and that the user of the driver may write to."
        what = "The lock of the spool cannot be opened"
        raise not_writable(what, error, path, action, root=root) from error
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise foreign_file(root, name)
    return _LocalLockFile(disk, path, file)


def lock_folder(tree: FolderTree, name: str) -> int | None:
    """Lock a folder; return its descriptor, or None if another process holds it. Raises `FileNotFoundError`."""
    with tree.open(name) as opened:
        descriptor = os.dup(opened)
    os.set_inheritable(descriptor, False)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


class LockedFolder(FolderHold):
    """A folder whose lock this process has."""

    def __init__(self, path: str, lock: int) -> None:
        self._path = path
        self._lock = lock

    def is_present(self) -> bool:
        """Return whether the folder still has its name."""
        try:
            return file_identity(Path(self._path).lstat()) == file_identity(os.fstat(self._lock))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Release the lock."""
        os.close(self._lock)


class _LocalLockFile(LockFile):
    def __init__(self, disk: Disk, path: str, file: int) -> None:
        self._disk = disk
        self._path = path
        self._file = file

    def try_lock(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise not_writable("The file system of the spool has no locks", error, self._path, OTHER_DISK) from error
        return True

    def read(self, limit: int) -> bytes:
        return os.pread(self._file, limit, 0)

    def write(self, data: bytes) -> None:
        self._disk.truncate(self._file)
        self._disk.write_all(self._file, data)

    def close(self) -> None:
        os.close(self._file)
