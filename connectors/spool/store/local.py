"""Where a spool lives: named, immutable files that are either whole and durable, or absent.

The interface is small so that an object store can stand behind it: `put` and `StoreWriter.publish` are
put-if-absent, `map` reads a whole file, `list` names a folder's files, `delete` removes one. Names are relative,
with ``/`` between at most three parts. Folders are made as they are needed.

Durable means: the bytes were written to a file in ``tmp/`` and synced, the name was made with ``link``, which never
replaces, and then the folder was synced (rule R1). Symbolic links are never followed below the root (rule R10).

The folder that a spool on a file system lives in, and that it stays the same one while a process uses it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import mmap
import os
import pwd
import socket
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from connectors.core.errors import SpoolError
from connectors.core.failpoints import failpoint
from connectors.spool.errors import foreign_file, full_disk_error, missing_spool, name_in_full, no_room
from connectors.spool.store.disk import disk
from connectors.spool.store.lock_owner import LockedFolder

__all__ = [
    "FOLDER_MODE",
    "FOLDER_NAMES",
    "IDENTITY_NAME",
    "TEMPORARY_FOLDER",
    "LocalStore",
    "RootFolder",
    "StoreWriter",
]


FOLDER_MODE: Final = 0o700
FOLDER_NAMES: Final = ("epochs", "ids", "inbox", "ledger", "tmp")
IDENTITY_NAME: Final = "spool.json"
_ROOT: Final = 0
_PARENT: Final = "a folder that leads to the spool"
_INSIDE: Final = "a folder inside of the spool"
_LOOK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class RootFolder:
    """The folder of a spool.

    Args:
        path: where it is, absolute.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._kept: tuple[int, int] | None = None

    def make(self) -> None:
        """Begin to use what is there now, and make it where it is absent, readable by its owner only.

        Raises:
            SpoolError: it cannot be made, or another user could change it.
        """
        self._kept = None
        try:
            missing = [folder for folder in (Path(self._path), *Path(self._path).parents) if not folder.exists()]
            for folder in reversed(missing):
                parent = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    with contextlib.suppress(FileExistsError):
                        disk().mkdir(folder.name, parent, FOLDER_MODE)
                    disk().fsync(parent)
                finally:
                    os.close(parent)
            self.check_protected()
        except OSError as error:
            if no_room(error):
                raise full_disk_error(self._path) from error
            raise SpoolError(
                "SPOOL_NOT_WRITABLE",
                f"The folder of the spool cannot be made: {error.strerror}",
                self._path,
                "Choose a spoolLocation that the user of the driver may write to.",
            ) from error

    def check_protected(self) -> None:
        """Check that no other user but root can replace the folder, or add, rename or delete files in it.

        Walk from ``/`` by descriptors and look at each folder and link on the way. What is missing is not looked at.

        Raises:
            OSError: this user may not look.
            SpoolError: another user could.
        """
        with contextlib.suppress(FileNotFoundError):
            Path(self._path).stat()  # refuses links that lead in a circle
        with contextlib.ExitStack() as opened:

            def look(name: str, folder: int | None = None) -> int:
                descriptor = os.open(name, _LOOK, dir_fd=folder)
                opened.callback(os.close, descriptor)
                return descriptor

            here, path, parts = look("/"), Path("/"), list(reversed(Path(self._path).parts[1:]))
            while parts:
                part = parts.pop()
                try:
                    below = look(part, here)
                except FileNotFoundError:
                    return
                found = os.fstat(below)
                _check(found, path / part, "the folder of the spool" if not parts else _PARENT)
                if not stat.S_ISLNK(found.st_mode):
                    here, path = below, Path(os.path.normpath(path / part))
                    continue
                target = Path(os.readlink("", dir_fd=below))
                parts += reversed([each for each in target.parts if each != "/"])
                if target.is_absolute():
                    here, path = look("/"), Path("/")
            for name in FOLDER_NAMES:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    _check(os.stat(name, dir_fd=here, follow_symlinks=False), path / name, _INSIDE)

    def keep(self) -> None:
        """From now on open no other folder than the one that is there now: an empty mount point is not the spool."""
        information = Path(self._path).stat()
        self._kept = (information.st_dev, information.st_ino)

    def open(self) -> int:
        """Open it, as a file descriptor.

        Raises:
            SpoolError: it is not the folder that `keep` has seen.
        """
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            if self._kept is not None:
                raise missing_spool(self._path) from None
            raise
        if self._kept is not None:
            information = os.fstat(descriptor)
            if (information.st_dev, information.st_ino) != self._kept:
                os.close(descriptor)
                raise missing_spool(self._path)
        return descriptor

    def check(self) -> None:
        """Raise `SpoolError` if it holds the spool that `keep` has seen no more: before a folder is made there."""
        if self._kept is not None and not os.path.lexists(f"{self._path}/{IDENTITY_NAME}"):
            raise missing_spool(self._path)


def _check(found: os.stat_result, path: Path, what: str) -> None:
    """Check one folder or link on the way to the spool or in it; ``what`` says which, for the errors.

    Raises:
        SpoolError: another user than this one and root could change what is in it.
    """
    user, is_link = os.geteuid(), stat.S_ISLNK(found.st_mode)
    may_be_roots = is_link or what in {_PARENT, _INSIDE}
    if found.st_uid != user and not (may_be_roots and found.st_uid == _ROOT):
        raise SpoolError(
            "SPOOL_FOREIGN_OWNER",
            f"The owner of {what} is uid {found.st_uid}, who could take the spool away; this process runs as uid "
            f"{user}",
            str(path),
            f"Make uid {user} the owner (chown), run as that user, or choose another spoolLocation.",
        )
    # The sticky bit lets nobody rename or delete what belongs to another user, but anybody may add files.
    if is_link or (found.st_mode & stat.S_ISVTX and what is _PARENT):
        return
    command = f"chmod go-w {path}, or chmod +t {path}" if what is _PARENT else f"chmod -R go-w {path}"
    action = f"Run {command}, or choose another spoolLocation."
    if found.st_mode & stat.S_IWOTH:
        raise SpoolError("SPOOL_WORLD_WRITABLE", f"Everyone may write to {what}", str(path), action)
    if found.st_mode & stat.S_IWGRP and (what is not _PARENT or _has_others(found.st_gid, user, path)):
        raise SpoolError("SPOOL_GROUP_WRITABLE", f"A group ({found.st_gid}) may write to {what}", str(path), action)


def _has_others(group: int, user: int, path: Path) -> bool:
    """Whether others than a user and root may write to a folder by its group.

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


TEMPORARY_FOLDER = "tmp"
_FILE_MODE = 0o600
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CLEARED_TIMES = 2
"""So often may a newer writer take the temporary file of a small put for that of a dead process, and clear it away."""


class LocalStore:
    """A store in a folder of a local or shared POSIX file system.

    Args:
        root: the folder of the spool, absolute.
        owner: a name of this process life, which no other uses; its temporary files begin with it.
    """

    look_seconds = 0.0
    """A look costs next to nothing."""

    def __init__(self, root: str, owner: str) -> None:
        self.root = root
        self.owner = owner
        self._temporary_count = 0
        self._durable_folders: set[str] = set()
        self._folder = RootFolder(root)

    @property
    def location(self) -> str:
        """The folder's real path."""
        return os.path.realpath(self.root)

    def keep_root(self) -> None:
        """From now on use no other folder than the one that is there now: an empty mount point is not the spool."""
        self._folder.keep()

    def check_visible(self) -> None:
        """Raise `SpoolError` if this machine cannot see the spool: it may have an empty folder of the same name."""
        if not Path(self.root, IDENTITY_NAME).exists():
            raise SpoolError(
                "SPOOL_NOT_VISIBLE",
                f"The host {socket.gethostname()} cannot see the spool",
                self.root,
                "Put spoolLocation on a file system that the driver and all executors share, or on an object store, or "
                "run with master local[*].",
            )

    def make_root(self) -> None:
        """Make the root folder where it is absent, readable by its owner only.

        Raises:
            SpoolError: it cannot be made, or another user could change it.
        """
        self._folder.make()

    @contextlib.contextmanager
    def folder(self, name: str, *, make: bool = False) -> Iterator[int]:
        """Open a folder of the spool, as a file descriptor; every part is opened without following links.

        With `make` a part that is missing is made, durably.

        Raises:
            SpoolError: the root is not the folder that `keep_root` has seen, or has lost the identity of the spool.
        """
        descriptor = self._folder.open()
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
            name_in_full(error, f"{self.root}{path}")
            raise
        finally:
            os.close(descriptor)

    def _make_part(self, path: str, part: str, parent: int) -> None:
        """Make a folder if it is not there, durably: who made it before may have died before that was synced."""
        try:
            os.stat(part, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            self._folder.check()
            self._durable_folders.discard(path)
            with contextlib.suppress(FileExistsError):
                disk().mkdir(part, parent, FOLDER_MODE)
        if path not in self._durable_folders:
            disk().fsync(parent)
            self._durable_folders.add(path)

    def make_folder(self, name: str) -> None:
        """Make a folder, durably; nothing happens if it is there."""
        with self.folder(name, make=True):
            pass

    def sync_folder(self, name: str) -> None:
        """Make durable what is in a folder and what is not: names that another process gave or took may not be yet.

        Raises:
            FileNotFoundError: there is no such folder.
        """
        with self.folder(name) as descriptor:
            disk().fsync(descriptor)

    def put(self, name: str, data: bytes) -> bool:
        """Write a file if its name is free, durably.

        Returns:
            False, and nothing is changed, if the name is taken.
        """
        for _ in range(_CLEARED_TIMES):
            with contextlib.suppress(FileNotFoundError):
                return self._put(name, data)
        return self._put(name, data)

    def _put(self, name: str, data: bytes) -> bool:
        with self.writer(name) as writer:
            writer.write(data)
            return writer.publish()

    def replace(self, name: str, data: bytes) -> None:
        """Write a file in the place of the one that is there, durably: a reader finds the one or the other.

        Only for the identity, when a spool is adopted; everything else is put where nothing is.
        """
        folder, _, base = name.rpartition("/")
        temporary = f"{self.owner}-{base}"
        self.delete(f"{TEMPORARY_FOLDER}/{temporary}")
        self.put(f"{TEMPORARY_FOLDER}/{temporary}", data)
        with self.folder(TEMPORARY_FOLDER) as source, self.folder(folder) as target:
            os.replace(temporary, base, src_dir_fd=source, dst_dir_fd=target)
            os.fsync(target)

    def writer(self, name: str) -> StoreWriter:
        """Begin a file that gets its name only when it is published."""
        self._temporary_count += 1
        return StoreWriter(self, name, f"{self.owner}-{self._temporary_count}")

    def map(self, name: str) -> memoryview:
        """A whole file as read-only memory; empty for an empty file.

        Raises:
            FileNotFoundError: there is no such file.
            SpoolDamagedError: the name belongs to something that is not a file.
        """
        folder, _, base = name.rpartition("/")
        with self.folder(folder) as descriptor:
            try:
                file = os.open(base, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
            except OSError as error:
                if error.errno == errno.ELOOP:
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

    def pieces(self, name: str) -> memoryview:
        """As `map`: only what is looked at is read."""
        return self.map(name)

    def read(self, name: str) -> bytes:
        """A copy of a whole file.

        Raises:
            FileNotFoundError: there is no such file.
        """
        with self.map(name) as view:
            return bytes(view)

    def lock_folder(self, name: str) -> int | None:
        """Lock a folder for the life of this process, or until the returned descriptor is closed.

        Returns:
            A descriptor that holds the lock; None if another process holds it.

        Raises:
            FileNotFoundError: there is no such folder.
        """
        with self.folder(name) as opened:
            descriptor = os.dup(opened)
        os.set_inheritable(descriptor, False)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def hold_folder(self, name: str) -> LockedFolder | None:
        """Hold a folder by its lock; None if another process has that.

        Raises:
            FileNotFoundError: there is no such folder.
            SpoolError: another user could change the spool.
        """
        self._folder.check_protected()
        lock = self.lock_folder(name)
        return None if lock is None else LockedFolder(f"{self.root}/{name}", lock)

    def close_folder(self, name: str, next_file: str) -> bool:
        """Whether nothing more is published in a folder: its lock is free, and this file is not there.

        A lock that is free stays so, because each folder is made and locked by one process life.
        """
        return not self.is_locked(name) and not self.exists(next_file)

    def is_locked(self, name: str) -> bool:
        """Whether a living process holds the lock on a folder; False if there is no such folder."""
        try:
            descriptor = self.lock_folder(name)
        except FileNotFoundError:
            return False
        if descriptor is None:
            return True
        os.close(descriptor)
        return False

    def held_elsewhere(self, name: str) -> bool:  # noqa: ARG002 - as object stores have it
        """Never: locks are seen on every machine that shares the file system."""
        return False

    def is_closed(self, name: str) -> bool:  # noqa: ARG002 - as object stores have it
        """Never: no name is taken to close a folder."""
        return False

    def written(self, folder: str) -> dict[str, float]:
        """When each name in a folder was written, in the file system's seconds since 1970; empty without a folder."""
        times: dict[str, float] = {}
        absent = contextlib.suppress(FileNotFoundError)
        with absent, self.folder(folder) as descriptor, os.scandir(descriptor) as entries:
            for entry in entries:
                # One that another process deletes meanwhile takes no other along.
                with contextlib.suppress(FileNotFoundError):
                    times[entry.name] = entry.stat(follow_symlinks=False).st_mtime
        return times

    def remove_unlocked_folder(self, name: str) -> None:
        """Remove a folder if it is empty and no living process holds its lock."""
        with contextlib.suppress(FileNotFoundError):
            descriptor = self.lock_folder(name)
            if descriptor is not None:
                try:
                    self.delete_folder(name)
                finally:
                    os.close(descriptor)

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name."""
        return os.path.lexists(f"{self.root}/{name}")

    def list(self, folder: str) -> list[str]:
        """The names in a folder, without their path, sorted; empty if there is no such folder."""
        return sorted(self.names(folder))

    def names(self, folder: str) -> Sequence[str]:
        """As `list`, in no order: to sort a million names takes as long as to get them."""
        try:
            with self.folder(folder) as descriptor:
                return os.listdir(descriptor)  # noqa: PTH208 - of a descriptor, which pathlib cannot
        except FileNotFoundError:
            return []

    def delete(self, name: str) -> None:
        """Remove a file; nothing happens if it is not there."""
        folder, _, base = name.rpartition("/")
        with contextlib.suppress(FileNotFoundError), self.folder(folder) as descriptor:
            disk().unlink(base, descriptor)

    def delete_folder(self, name: str) -> None:
        """Remove an empty folder; nothing happens if it is not there or not empty."""
        folder, _, base = name.rpartition("/")
        with contextlib.suppress(FileNotFoundError), self.folder(folder) as descriptor:
            try:
                disk().rmdir(base, descriptor)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise


class StoreWriter:
    """A file that is being written under a temporary name; `publish` gives it its own."""

    def __init__(self, store: LocalStore, name: str, temporary: str) -> None:
        self._store = store
        self._name = name
        self._temporary = temporary
        self.length = 0
        with store.folder(TEMPORARY_FOLDER, make=True) as folder:
            self._file = disk().create(temporary, folder, _FILE_MODE)
        self._open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes; any buffer of bytes does."""
        view = memoryview(data).cast("B")
        while view:
            written = disk().write(self._file, view)
            self.length += written
            view = view[written:]

    def publish(self) -> bool:
        """Make the file durable under its name if that is free.

        Returns:
            False, and the file is gone, if the name is taken, durably.
        """
        failpoint("store.before_sync")
        disk().fsync(self._file)
        folder, _, base = self._name.rpartition("/")
        store = self._store
        failpoint("store.before_link")
        with store.folder(TEMPORARY_FOLDER) as source, store.folder(folder, make=True) as target:
            taken = False
            try:
                disk().link(self._temporary, source, base, target)
            except FileExistsError:
                taken = True
            failpoint("store.before_folder_sync")
            # Also of a name that is taken: who gave it, perhaps this process, may not have come to this line.
            disk().fsync(target)
        failpoint("store.after_publish")
        return not taken

    def discard(self) -> None:
        """Close the file and remove its temporary name; a published file stays."""
        if self._open:
            self._open = False
            os.close(self._file)
            self._store.delete(f"{TEMPORARY_FOLDER}/{self._temporary}")
