"""A spool in a folder of a local or shared POSIX file system.

Durable means: the bytes were written to a file in ``tmp/`` and synced, the name was made with ``link``, which never
replaces, and then the folder was synced (rule R1). Links are never followed below the root (rule R10).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import mmap
import os
import pwd
import re
import socket
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from connectors.core.errors import SpoolError
from connectors.core.failpoints import failpoint
from connectors.spool.errors import foreign_file, missing_spool, not_writable
from connectors.spool.store.base import FolderHold, Store, StoreWriting

__all__ = [
    "FILE_MODE",
    "FOLDER_NAMES",
    "IDENTITY_NAME",
    "QUARANTINE_FOLDER",
    "TEMPORARY_FOLDER",
    "Disk",
    "LocalStore",
    "check_protected",
    "is_temporary_name",
]

FOLDER_NAMES: Final = ("epochs", "ids", "inbox", "ledger", "tmp")
IDENTITY_NAME: Final = "spool.json"
QUARANTINE_FOLDER: Final = "quarantine"
TEMPORARY_FOLDER: Final = "tmp"
_FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
_ROOT: Final = 0
_PARENT: Final = "a folder that leads to the spool"
_INSIDE: Final = "a folder inside of the spool"
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
"""Without waiting for the other end of what may be a pipe in the place of a file."""
_OPEN_PATH: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_ROOT: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN_FOLDER: Final = _OPEN_ROOT | os.O_NOFOLLOW
_CLEARED_TIMES: Final = 2
"""So often may a newer writer take the temporary file of a small put for that of a dead process, and delete it."""
_TEMPORARY_NAME: Final = re.compile(r"[0-9a-f]{16}-(?:[0-9]+|reserve|spool\.json)")
"""The owner, which is one process, and what `LocalStore` and `DiskReserve` append to it."""


def is_temporary_name(name: str) -> bool:
    """Return whether a spool gives such names to its temporary files; others may have been there before it."""
    return _TEMPORARY_NAME.fullmatch(name) is not None


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


class LocalStore(Store):
    """A store in a folder: `root` is its absolute path, `owner` what the names of temporary files begin with."""

    disk = Disk()

    def __init__(self, root: str, owner: str) -> None:
        self.root = root
        self.owner = owner
        self._temporary_count = 0
        self._durable_folders: set[str] = set()
        self._root_identity: tuple[int, int] | None = None

    @property
    def location(self) -> str:
        """The folder's real path."""
        return os.path.realpath(self.root)

    def make_root(self) -> None:
        """Make the root where it is absent, for its owner only; raises `SpoolError` if another user could change it."""
        self._root_identity = None
        try:
            missing = [folder for folder in (Path(self.root), *Path(self.root).parents) if not folder.exists()]
            for folder in reversed(missing):
                parent = os.open(folder.parent, _OPEN_ROOT)
                try:
                    with contextlib.suppress(FileExistsError):
                        self.disk.mkdir(folder.name, parent, _FOLDER_MODE)
                    self.disk.fsync(parent)
                finally:
                    os.close(parent)
            check_protected(self.root)
        except OSError as error:
            action = "Choose a spoolLocation that the user of the driver may write to."
            raise not_writable("The folder of the spool cannot be made", error, self.root, action) from error

    def keep_root(self) -> None:
        """From now on refuse another folder than the one that is there now: an empty mount point is not the spool."""
        self._root_identity = _identity(Path(self.root).stat())

    def check_visible(self) -> None:
        """Raise `SpoolError` if this machine cannot see the spool: it may have an empty folder of the same name."""
        if not Path(self.root, IDENTITY_NAME).exists():
            what = f"The host {socket.gethostname()} cannot see the spool"
            action = (
                "Put it on a disk that driver and executors share, or on an object store, or run with master local[*]."
            )
            raise SpoolError("SPOOL_NOT_VISIBLE", what, self.root, action)

    @contextlib.contextmanager
    def folder(self, name: str, *, make: bool = False) -> Iterator[int]:
        """Open a folder of the spool, as a file descriptor; no link is followed. With `make` it is made, durably.

        Raises `SpoolError` if the root is not the folder that `keep_root` has seen, or has lost its identity.
        """
        descriptor = self._open_root()
        path = ""
        try:
            for part in filter(None, name.split("/")):
                if make:
                    self._make_part(f"{path}/{part}", part, descriptor)
                child = os.open(part, _OPEN_FOLDER, dir_fd=descriptor)
                os.close(descriptor)
                descriptor, path = child, f"{path}/{part}"
            yield descriptor
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.ENOTDIR}:
                raise foreign_file(self.root, name) from error
            # Of a link, with two files, the folder of the second one ends first.
            if error.filename2 is not None and not str(error.filename2).startswith("/"):
                error.filename2 = f"{self.root}{path}/{error.filename2}"
            elif isinstance(error.filename, str) and not error.filename.startswith("/"):
                error.filename = f"{self.root}{path}/{error.filename}"
            raise
        finally:
            os.close(descriptor)

    def _open_root(self) -> int:
        try:
            descriptor = os.open(self.root, _OPEN_ROOT)
        except FileNotFoundError:
            if self._root_identity is not None:
                raise missing_spool(self.root) from None
            raise
        if self._root_identity not in {None, _identity(os.fstat(descriptor))}:
            os.close(descriptor)
            raise missing_spool(self.root)
        return descriptor

    def _make_part(self, path: str, part: str, parent: int) -> None:
        """Make a folder if it is absent, durably: whoever made it before may have died before that was synced."""
        try:
            os.stat(part, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            if self._root_identity is not None and not os.path.lexists(f"{self.root}/{IDENTITY_NAME}"):
                raise missing_spool(self.root) from None
            self._durable_folders.discard(path)
            with contextlib.suppress(FileExistsError):
                self.disk.mkdir(part, parent, _FOLDER_MODE)
        if path not in self._durable_folders:
            self.disk.fsync(parent)
            self._durable_folders.add(path)

    def sync_folder(self, name: str) -> None:
        """Make durable which names a folder holds; raises `FileNotFoundError`."""
        with self.folder(name) as descriptor:
            self.disk.fsync(descriptor)

    def put(self, name: str, data: bytes) -> bool:
        """Write a file durably if its name is free; return False, and change nothing, if it is taken."""
        for _ in range(_CLEARED_TIMES):
            with contextlib.suppress(FileNotFoundError):
                return super().put(name, data)
        return super().put(name, data)

    def replace(self, name: str, data: bytes) -> None:
        """Write a file in the place of the one that is there, durably: a reader finds one of the two."""
        folder, _, base = name.rpartition("/")
        temporary = f"{self.owner}-{base}"
        self.delete(f"{TEMPORARY_FOLDER}/{temporary}")
        self.put(f"{TEMPORARY_FOLDER}/{temporary}", data)
        with self.folder(TEMPORARY_FOLDER) as source, self.folder(folder) as target:
            os.replace(temporary, base, src_dir_fd=source, dst_dir_fd=target)
            os.fsync(target)

    def writer(self, name: str) -> _LocalWriter:
        """Begin a file that gets its name only when it is published."""
        self._temporary_count += 1
        return _LocalWriter(self, name, f"{self.owner}-{self._temporary_count}")

    def map(self, name: str) -> memoryview:
        """Return a whole file as read-only memory; raises `FileNotFoundError`, `SpoolDamagedError` if it is no file."""
        folder, _, base = name.rpartition("/")
        with self.folder(folder) as descriptor:
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
        """Return whether there is a file of this name."""
        return os.path.lexists(f"{self.root}/{name}")

    def names(self, folder: str) -> Sequence[str]:
        """Return the names in a folder, in any order: to sort a million names takes as long as to read them."""
        try:
            with self.folder(folder) as descriptor:
                return os.listdir(descriptor)  # noqa: PTH208 - of a descriptor, which pathlib cannot
        except FileNotFoundError:
            return []

    def written(self, folder: str) -> dict[str, float]:
        """Return when each name in a folder was written, in the file system's seconds since 1970."""
        times: dict[str, float] = {}
        absent = contextlib.suppress(FileNotFoundError)
        with absent, self.folder(folder) as descriptor, os.scandir(descriptor) as entries:
            for entry in entries:
                # One that another process deletes meanwhile must not hide the others.
                with contextlib.suppress(FileNotFoundError):
                    times[entry.name] = entry.stat(follow_symlinks=False).st_mtime
        return times

    def temporary_files(self) -> list[str]:
        """Return the names, without the folder, of the temporary files that spools have written."""
        files = []
        for name in filter(is_temporary_name, self.list(TEMPORARY_FOLDER)):
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISREG(Path(self.root, TEMPORARY_FOLDER, name).lstat().st_mode):
                    files.append(name)
        return files

    def delete(self, name: str) -> None:
        """Remove a file; nothing happens if it is absent."""
        folder, _, base = name.rpartition("/")
        with contextlib.suppress(FileNotFoundError), self.folder(folder) as descriptor:
            self.disk.unlink(base, descriptor)

    def make_folder(self, name: str) -> None:
        """Make a folder, durably; nothing happens if it exists."""
        with self.folder(name, make=True):
            pass

    def delete_folder(self, name: str) -> None:
        """Remove an empty folder; nothing happens if it is absent or not empty."""
        folder, _, base = name.rpartition("/")
        with contextlib.suppress(FileNotFoundError), self.folder(folder) as descriptor:
            try:
                self.disk.rmdir(base, descriptor)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise

    def lock_folder(self, name: str) -> int | None:
        """Lock a folder; return its descriptor, or None if another process holds it. Raises `FileNotFoundError`."""
        with self.folder(name) as opened:
            descriptor = os.dup(opened)
        os.set_inheritable(descriptor, False)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def hold_folder(self, name: str) -> _LockedFolder | None:
        """Hold a folder by its lock; None if another process has that. Raises as the interface says."""
        check_protected(self.root)
        lock = self.lock_folder(name)
        return None if lock is None else _LockedFolder(f"{self.root}/{name}", lock)

    def is_locked(self, name: str) -> bool:
        """Return whether a living process holds the lock on a folder; False if there is no such folder."""
        try:
            descriptor = self.lock_folder(name)
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
        """Remove a folder if it is empty and no living process holds its lock."""
        with contextlib.suppress(FileNotFoundError):
            descriptor = self.lock_folder(name)
            if descriptor is not None:
                try:
                    self.delete_folder(name)
                finally:
                    os.close(descriptor)


class _LockedFolder(FolderHold):
    """A folder whose lock this process has."""

    def __init__(self, path: str, lock: int) -> None:
        self._path = path
        self._lock = lock

    def is_present(self) -> bool:
        try:
            return _identity(Path(self._path).lstat()) == _identity(os.fstat(self._lock))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        os.close(self._lock)


class _LocalWriter(StoreWriting):
    """A file that is being written under a temporary name."""

    def __init__(self, store: LocalStore, name: str, temporary: str) -> None:
        self._store = store
        self._name = name
        self._temporary = temporary
        self.length = 0
        with store.folder(TEMPORARY_FOLDER, make=True) as folder:
            self._file = store.disk.create(temporary, folder, FILE_MODE)
        self._open = True

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data).cast("B")
        while view:
            written = self._store.disk.write(self._file, view)
            self.length += written
            view = view[written:]

    def publish(self) -> bool:
        failpoint("store.before_sync")
        store = self._store
        store.disk.fsync(self._file)
        folder, _, base = self._name.rpartition("/")
        failpoint("store.before_link")
        with store.folder(TEMPORARY_FOLDER) as source, store.folder(folder, make=True) as target:
            taken = False
            try:
                store.disk.link(self._temporary, source, base, target)
            except FileExistsError:
                taken = True
            failpoint("store.before_folder_sync")
            # Also of a name that is taken: who gave it, perhaps this process, may not have come to this line.
            store.disk.fsync(target)
        failpoint("store.after_publish")
        return not taken

    def discard(self) -> None:
        if self._open:
            self._open = False
            os.close(self._file)
            self._store.delete(f"{TEMPORARY_FOLDER}/{self._temporary}")


def check_protected(root: str) -> None:
    """Check that no other user but root can replace a folder, or add, rename or delete files in it.

    Walk from ``/`` by descriptors and check each folder and link on the way; stop at the first that is missing. Raises
    `SpoolError` where another user could, and `OSError` where this one may not read.
    """
    with contextlib.suppress(FileNotFoundError):
        Path(root).stat()  # refuses links that lead in a circle
    with contextlib.ExitStack() as opened:

        def descend(name: str, folder: int | None = None) -> int:
            descriptor = os.open(name, _OPEN_PATH, dir_fd=folder)
            opened.callback(os.close, descriptor)
            return descriptor

        here, path, parts = descend("/"), Path("/"), list(reversed(Path(root).parts[1:]))
        while parts:
            part = parts.pop()
            try:
                below = descend(part, here)
            except FileNotFoundError:
                return
            information = os.fstat(below)
            _check_owner(information, path / part, "the folder of the spool" if not parts else _PARENT)
            if not stat.S_ISLNK(information.st_mode):
                here, path = below, Path(os.path.normpath(path / part))
                continue
            target = Path(os.readlink("", dir_fd=below))
            parts += reversed([part for part in target.parts if part != "/"])
            if target.is_absolute():
                here, path = descend("/"), Path("/")
        for name in FOLDER_NAMES:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                _check_owner(os.stat(name, dir_fd=here, follow_symlinks=False), path / name, _INSIDE)


def _check_owner(information: os.stat_result, path: Path, what: str) -> None:
    """Check one folder or link on the way to the spool or in it; errors call it `what`."""
    user, is_link = os.geteuid(), stat.S_ISLNK(information.st_mode)
    may_be_roots = is_link or what in {_PARENT, _INSIDE}
    if information.st_uid != user and not (may_be_roots and information.st_uid == _ROOT):
        text = (
            f"The owner of {what}, uid {information.st_uid}, could take the spool away; this process runs as uid {user}"
        )
        action = f"Make uid {user} the owner (chown), run as that user, or choose another spoolLocation."
        raise SpoolError("SPOOL_FOREIGN_OWNER", text, str(path), action)
    # The sticky bit lets nobody rename or delete what belongs to another user, but anybody may add files.
    if is_link or (information.st_mode & stat.S_ISVTX and what is _PARENT):
        return
    command = f"chmod go-w {path}, or chmod +t {path}" if what is _PARENT else f"chmod -R go-w {path}"
    action = f"Run {command}, or choose another spoolLocation."
    if information.st_mode & stat.S_IWOTH:
        raise SpoolError("SPOOL_WORLD_WRITABLE", f"Everyone may write to {what}", str(path), action)
    group = information.st_gid
    if information.st_mode & stat.S_IWGRP and (what is not _PARENT or _has_others(group, user, path)):
        raise SpoolError("SPOOL_GROUP_WRITABLE", f"A group ({group}) may write to {what}", str(path), action)


def _has_others(group: int, user: int, path: Path) -> bool:
    """Return whether others than a user and root may write to a folder by its group.

    Nobody else is in a group that bears the user's own name, as many systems make one for each user, nor in one of
    this process that has no name here: that of a container's volume.
    """
    with contextlib.suppress(OSError):
        if "system.posix_acl_access" in os.listxattr(path):
            return True
    try:
        name = pwd.getpwuid(user).pw_name
    except KeyError:
        name = ""
    try:
        entry = grp.getgrgid(group)
    except KeyError:
        return group not in {os.getegid(), *os.getgroups()}
    return entry.gr_name not in {name, "root"} or not set(entry.gr_mem) <= {name, "root"}


def _identity(information: os.stat_result) -> tuple[int, int]:
    return information.st_dev, information.st_ino
