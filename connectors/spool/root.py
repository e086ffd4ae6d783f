"""The folder that a spool on a file system lives in, and that it stays the same one while a process uses it."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from pathlib import Path
from typing import Final

from connectors.core.errors import SpoolError
from connectors.spool.disk import disk
from connectors.spool.store_errors import full_disk_error, missing_spool, no_room

__all__ = ["FOLDER_MODE", "FOLDER_NAMES", "IDENTITY_NAME", "RootFolder"]

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
