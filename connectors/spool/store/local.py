"""A spool in a folder of a local or shared POSIX file system.

Durable means: the bytes were written to a file in ``tmp/`` and synced, the name was made with ``link``, which never
replaces, and then the folder was synced (rule R1).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import re
import socket
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from connectors.core.errors import SpoolError
from connectors.core.processes.failpoints import failpoint
from connectors.spool.errors import foreign_file, not_writable
from connectors.spool.store.base import FolderHold, Space, Store, StoreWriting, Version
from connectors.spool.store.disk import (
    FILE_MODE,
    FOLDER_NAMES,
    IDENTITY_NAME,
    OPEN_ROOT,
    TEMPORARY_FOLDER,
    Disk,
    FolderTree,
    LockFile,
    check_protected,
    file_identity,
)

_OPEN_FILE: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
"""Without waiting for the other end of a pipe, if someone put one in the place of a file."""
_OPEN_WAY: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
"""On Linux, a folder that this process may not list is enough."""
_TEMPORARY_NAME: Final = re.compile(r"[0-9a-f]{16}-(?:[0-9]+|reserve|spool\.json)")
"""The owner, which is one process, and what `LocalStore` and `DiskReserve` append to it."""
_CLEARED_TIMES: Final = 2
"""How often a newer writer may delete the temporary file of a small put, which it takes for a dead process's."""
_Result = TypeVar("_Result")


def lock_folder(tree: FolderTree, name: str) -> int | None:
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
        try:
            return file_identity(Path(self._path).lstat()) == file_identity(os.fstat(self._lock))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        os.close(self._lock)


def is_temporary_name(name: str) -> bool:
    """Return whether a spool gives such names to its temporary files; others may have been there before it."""
    return _TEMPORARY_NAME.fullmatch(name) is not None


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
        self.length += self._disk.write_all(self._file, data)

    def publish(self) -> bool:
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
        if self._open:
            self._open = False
            os.close(self._file)
            with contextlib.suppress(FileNotFoundError), self._tree.open(TEMPORARY_FOLDER) as folder:
                self._disk.unlink(self._temporary, folder)


class LocalStore(Store):
    """A store in a folder: `root` is its absolute path, `owner` what the names of temporary files begin with."""

    has_locks = True
    disk = Disk()

    def __init__(self, root: str, owner: str) -> None:
        self.root = root
        self.owner = owner
        self.tree = FolderTree(root, lambda: self.disk)
        self._temporary_count = 0

    @property
    def location(self) -> str:
        return os.path.realpath(self.root)

    def make_root(self) -> None:
        self.tree.make_root()

    def keep_root(self) -> None:
        self.tree.keep_root()

    def check_visible(self) -> None:
        """Raise `SpoolError` if this machine cannot see the spool: it may have an empty folder of the same name."""
        if not Path(self.root, IDENTITY_NAME).exists():
            what = f"The host {socket.gethostname()} cannot see the spool"
            raise SpoolError("SPOOL_NOT_VISIBLE", what, self.root)

    def sync_folder(self, name: str) -> None:
        with self.tree.open(name) as descriptor:
            self.disk.fsync(descriptor)

    def create(self, name: str, data: bytes) -> bool:
        return _repeated(lambda: super(LocalStore, self).create(name, data))

    def overwrite(self, name: str, data: bytes) -> None:
        def write() -> None:
            with self.writer(name) as writer:
                writer.write(data)
                writer.publish_over()

        _repeated(write)

    def read_version(self, name: str) -> tuple[bytes, Version] | None:
        try:
            data = self.read(name)
        except FileNotFoundError:
            return None
        return data, {"content": data}

    def swap(self, name: str, data: bytes, version: Version) -> Version | None:
        """Overwrite a file that has this content, under a lock that everyone who swaps takes."""
        with self.tree.open(TEMPORARY_FOLDER, make=True) as folder:
            fcntl.flock(folder, fcntl.LOCK_EX)
            present = self.read_version(name)
            if present is None or present[1] != version:
                return None
            self.overwrite(name, data)
        return {"content": data}

    def writer(self, name: str) -> LocalWriter:
        self._temporary_count += 1
        return LocalWriter(self.tree, self.disk, name, f"{self.owner}-{self._temporary_count}")

    def map(self, name: str) -> memoryview:
        folder, _, base = name.rpartition("/")
        with self.tree.open(folder) as descriptor:
            try:
                file = os.open(base, _OPEN_FILE, dir_fd=descriptor)
            except OSError as error:
                if error.errno in {errno.ELOOP, errno.ENXIO}:
                    raise foreign_file(self.root, name) from error
                raise
        try:
            information = os.fstat(file)
            if not stat.S_ISREG(information.st_mode):
                raise foreign_file(self.root, name)
            if information.st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file, 0, access=mmap.ACCESS_READ))
        finally:
            os.close(file)

    def exists(self, name: str) -> bool:
        return os.path.lexists(f"{self.root}/{name}")

    def names(self, folder: str) -> Sequence[str]:
        """Return the names in a folder, in any order: to sort a million names takes as long as to read them."""
        try:
            with self.tree.open(folder) as descriptor:
                return os.listdir(descriptor)  # noqa: PTH208 - of a descriptor, which pathlib cannot
        except FileNotFoundError:
            return []

    def written(self, folder: str) -> dict[str, float]:
        times: dict[str, float] = {}
        absent = contextlib.suppress(FileNotFoundError)
        with absent, self.tree.open(folder) as descriptor, os.scandir(descriptor) as entries:
            for entry in entries:
                # One that another process deletes meanwhile must not hide the others.
                with contextlib.suppress(FileNotFoundError):
                    times[entry.name] = entry.stat(follow_symlinks=False).st_mtime
        return times

    def sizes(self) -> dict[str, int]:
        sizes = {}
        for folder, folders, names in os.walk(self.root):
            for path in (Path(folder, name) for name in (*names, *folders)):
                if path.is_dir() and not path.is_symlink():
                    continue
                with contextlib.suppress(FileNotFoundError):
                    sizes[str(path.relative_to(self.root))] = path.lstat().st_size
        return sizes

    def is_own_name(self, name: str) -> bool:
        folder, _, base = name.partition("/")
        return folder == TEMPORARY_FOLDER and is_temporary_name(base)

    def permissions(self, name: str) -> int | None:
        mode = Path(self.root, name).lstat().st_mode
        return stat.S_IMODE(mode) if stat.S_ISREG(mode) else None

    def name_of(self, path: str) -> str:
        """Return the name of a file from its whole path, which may lead through links."""
        name = super().name_of(path)
        return os.path.realpath(name).removeprefix(f"{self.location.rstrip('/')}/") if name.startswith("/") else name

    def space(self) -> Space:
        status = os.statvfs(self.root)
        return Space(status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize)

    def allocate(self, name: str, size: int) -> None:
        folder, _, base = name.rpartition("/")
        with self.tree.open(folder, make=True) as descriptor:
            file = self.disk.create(base, descriptor, FILE_MODE)
        try:
            self.disk.allocate(file, size)
        finally:
            os.close(file)

    def temporary_files(self) -> list[str]:
        files = []
        for name in filter(is_temporary_name, self.list(TEMPORARY_FOLDER)):
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISREG(Path(self.root, TEMPORARY_FOLDER, name).lstat().st_mode):
                    files.append(name)
        return files

    def delete(self, name: str) -> None:
        folder, _, base = name.rpartition("/")
        with contextlib.suppress(FileNotFoundError), self.tree.open(folder) as descriptor:
            self.disk.unlink(base, descriptor)

    def make_folder(self, name: str) -> None:
        with self.tree.open(name, make=True):
            pass

    def delete_folder(self, name: str) -> None:
        folder, _, base = name.rpartition("/")
        with contextlib.suppress(FileNotFoundError), self.tree.open(folder) as descriptor:
            try:
                self.disk.rmdir(base, descriptor)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise

    def folders(self, name: str) -> list[str]:
        paths = {below: Path(self.root, name, below) for below in self.list(name)}
        return [below for below, path in paths.items() if path.is_dir() and not path.is_symlink()]

    def remove_empty_folders(self, name: str) -> None:
        for path, _, _ in os.walk(Path(self.root, name), topdown=False):
            self.delete_folder(os.path.relpath(path, self.root))

    def remove_root(self) -> list[str]:
        root = Path(self.root)
        try:
            parent = os.open(root.parent, OPEN_ROOT)
            try:
                self.disk.rmdir(root.name, parent)
            finally:
                os.close(parent)
        except OSError:
            return sorted(entry.name for entry in root.iterdir()) or [self.root]
        return []

    def open_lock(self, name: str, *, make: bool) -> LockFile:
        path = f"{self.root}/{name}"
        try:
            folder = os.open(self.root, _OPEN_WAY)
            try:
                if make:
                    file = self.disk.open_or_create(name, folder, FILE_MODE)
                else:
                    file = os.open(name, _OPEN_FILE, dir_fd=folder)
            finally:
                os.close(folder)
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.ENXIO}:
                raise foreign_file(self.root, name) from error
            raise not_writable("The lock of the spool cannot be opened", error, path, root=self.root) from error
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise foreign_file(self.root, name)
        return LockFile(self.disk, path, file)

    def hold_folder(self, name: str) -> LockedFolder | None:
        check_protected(self.root, FOLDER_NAMES)
        lock = lock_folder(self.tree, name)
        return None if lock is None else LockedFolder(f"{self.root}/{name}", lock)

    def is_locked(self, name: str) -> bool:
        try:
            descriptor = lock_folder(self.tree, name)
        except FileNotFoundError:
            return False
        if descriptor is None:
            return True
        os.close(descriptor)
        return False

    def close_folder(self, name: str, next_file: str) -> bool:
        """Return whether its lock is free, which then stays free: a folder is locked by one process only."""
        return not self.is_locked(name) and not self.exists(next_file)

    def remove_unlocked_folder(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            descriptor = lock_folder(self.tree, name)
            if descriptor is not None:
                try:
                    self.delete_folder(name)
                finally:
                    os.close(descriptor)


def _repeated(write: Callable[[], _Result]) -> _Result:
    """Write again what lost its temporary file to a newer writer."""
    for _ in range(_CLEARED_TIMES):
        with contextlib.suppress(FileNotFoundError):
            return write()
    return write()
