"""A local file system, as a spool in a folder uses it: its calls, its tree of folders, and who may change them.

Links are never followed below the root (rule R10), and a folder is made durably.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import os
import pwd
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import ClassVar, Final

from connectors.core.errors import SpoolError
from connectors.spool.errors import foreign_file, missing_spool, not_writable

FOLDER_NAMES: Final = ("epochs", "fetchers", "ids", "inbox", "ledger", "tmp")
IDENTITY_NAME: Final = "spool.json"
QUARANTINE_FOLDER: Final = "quarantine"
TEMPORARY_FOLDER: Final = "tmp"
_FOLDER_MODE: Final = 0o700
OPEN_ROOT: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN_FOLDER: Final = OPEN_ROOT | os.O_NOFOLLOW
FILE_MODE: Final = 0o600
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_OR_CREATE: Final = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_ROOT: Final = 0
_PARENT: Final = "a folder that leads to the spool"
_INSIDE: Final = "a folder inside of the spool"
_NO_SUCH_COMMAND: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTTY})
_ZEROS: Final = memoryview(bytes(1 << 20))


class Disk:
    """The calls that change the disk, all in one place for tests. Folders are descriptors, names are within them.

    Attributes:
        full_sync: the command of fcntl(2) that makes a file durable, where fsync(2) does not. On a Mac, fsync only
            hands the bytes to the drive, which may lose them with the power.
        reserves: whether the system reserves space without writing it.
    """

    full_sync: ClassVar[int | None] = getattr(fcntl, "F_FULLFSYNC", None)
    reserves: ClassVar[bool] = hasattr(os, "posix_fallocate")

    def create(self, name: str, folder: int, mode: int) -> int:
        return os.open(name, _CREATE, mode, dir_fd=folder)

    def write(self, file: int, data: bytes | memoryview) -> int:
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
        os.ftruncate(file, 0)
        os.lseek(file, 0, os.SEEK_SET)

    def allocate(self, file: int, size: int) -> None:
        """Reserve space for a file that is empty."""
        if self.reserves:
            os.posix_fallocate(file, 0, size)
            return
        written = 0
        while written < size:
            written += os.write(file, _ZEROS[: size - written])

    def fsync(self, opened: int) -> None:
        """Make the bytes of a file durable, or the names in a folder."""
        if self.full_sync is not None:
            try:
                fcntl.fcntl(opened, self.full_sync)
            except OSError as error:
                if error.errno not in _NO_SUCH_COMMAND:
                    raise
            else:
                return
        os.fsync(opened)

    def mkdir(self, name: str, folder: int, mode: int) -> None:
        os.mkdir(name, mode, dir_fd=folder)

    def link(self, source: str, source_folder: int, name: str, folder: int) -> None:
        """Give a file a second name, if that is free."""
        os.link(source, name, src_dir_fd=source_folder, dst_dir_fd=folder, follow_symlinks=False)

    def rename(self, source: str, source_folder: int, name: str, folder: int) -> None:
        """Give a file another name, in the place of the file that has it."""
        os.replace(source, name, src_dir_fd=source_folder, dst_dir_fd=folder)

    def unlink(self, name: str, folder: int) -> None:
        os.unlink(name, dir_fd=folder)

    def rmdir(self, name: str, folder: int) -> None:
        os.rmdir(name, dir_fd=folder)


class LockFile:
    """An open file that one process at a time can lock, until it closes the file or ends."""

    def __init__(self, disk: Disk, path: str, file: int) -> None:
        self._disk = disk
        self._path = path
        self._file = file

    def try_lock(self) -> bool:
        """Lock it; return False if another process has the lock. Raises `SpoolError` if its disk has no locks."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise not_writable("The file system of the spool has no locks", error, self._path) from error
        return True

    def read(self, limit: int) -> bytes:
        return os.pread(self._file, limit, 0)

    def write(self, data: bytes) -> None:
        """Replace what is written there; not durably, as no lock outlives its machine."""
        self._disk.truncate(self._file)
        self._disk.write_all(self._file, data)

    def close(self) -> None:
        os.close(self._file)


class FolderTree:
    """The folders below a root, an absolute path; `disk` returns the one that makes and syncs them."""

    def __init__(self, root: str, disk: Callable[[], Disk]) -> None:
        self.root = root
        self._disk = disk
        self._durable: set[str] = set()
        self._root_identity: tuple[int, int] | None = None

    def make_root(self) -> None:
        """Make the root where it is absent, for its owner only; raises `SpoolError` if another user could change it."""
        self._root_identity = None
        try:
            missing = [folder for folder in (Path(self.root), *Path(self.root).parents) if not folder.exists()]
            for folder in reversed(missing):
                parent = os.open(folder.parent, OPEN_ROOT)
                try:
                    with contextlib.suppress(FileExistsError):
                        self._disk().mkdir(folder.name, parent, _FOLDER_MODE)
                    self._disk().fsync(parent)
                finally:
                    os.close(parent)
            check_protected(self.root, FOLDER_NAMES)
        except OSError as error:
            raise not_writable("The folder of the spool cannot be made", error, self.root) from error

    def keep_root(self) -> None:
        """From now on refuse another folder than the one that is there now: an empty mount point is not the spool."""
        self._root_identity = file_identity(Path(self.root).stat())

    @contextlib.contextmanager
    def open(self, name: str, *, make: bool = False) -> Iterator[int]:
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
            descriptor = os.open(self.root, OPEN_ROOT)
        except FileNotFoundError:
            if self._root_identity is not None:
                raise missing_spool(self.root) from None
            raise
        if self._root_identity not in {None, file_identity(os.fstat(descriptor))}:
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
            self._durable.discard(path)
            with contextlib.suppress(FileExistsError):
                self._disk().mkdir(part, parent, _FOLDER_MODE)
        if path not in self._durable:
            self._disk().fsync(parent)
            self._durable.add(path)


def file_identity(information: os.stat_result) -> tuple[int, int]:
    return information.st_dev, information.st_ino


def check_protected(root: str, inside: Iterable[str]) -> None:
    """Check that no other user but root can replace a folder, or add, rename or delete files in it or in those inside.

    Check each folder and link from ``/`` on, and stop at the first that is missing. Raises `SpoolError` where another
    user could, and `OSError` where this one may not read.
    """
    with contextlib.suppress(FileNotFoundError):
        Path(root).stat()  # refuses links that lead in a circle
    # No link is in `path`, and nobody else can put one there: each folder of it has been checked.
    path, parts = Path("/"), list(reversed(Path(root).parts[1:]))
    while parts:
        part = parts.pop()
        try:
            information = (path / part).lstat()
        except FileNotFoundError:
            return
        _check_owner(information, path / part, "the folder of the spool" if not parts else _PARENT)
        if not stat.S_ISLNK(information.st_mode):
            path = Path(os.path.normpath(path / part))
            continue
        target = (path / part).readlink()
        parts += reversed([part for part in target.parts if part != "/"])
        if target.is_absolute():
            path = Path("/")
    for name in inside:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            _check_owner((path / name).lstat(), path / name, _INSIDE)


def _check_owner(information: os.stat_result, path: Path, what: str) -> None:
    """Check one folder or link on the way to the spool or in it; errors call it `what`."""
    user, is_link = os.geteuid(), stat.S_ISLNK(information.st_mode)
    may_be_roots = is_link or what in {_PARENT, _INSIDE}
    if information.st_uid != user and not (may_be_roots and information.st_uid == _ROOT):
        owner = information.st_uid
        text = f"Another user owns {what}: uid {owner}, but this process runs as uid {user}"
        action = f"Make uid {user} the owner (chown), run as uid {owner}, or choose another spoolLocation."
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
    list_attributes = getattr(os, "listxattr", None)  # of Linux alone
    with contextlib.suppress(OSError):
        if list_attributes is not None and "system.posix_acl_access" in list_attributes(path):
            return True
    try:
        name = pwd.getpwuid(user).pw_name
    except KeyError:
        name = ""
    try:
        entry = grp.getgrgid(group)
    except KeyError:
        return group not in {os.getegid(), *os.getgroups()}
    return (group != _ROOT and entry.gr_name != name) or not set(entry.gr_mem) <= {name, "root"}
