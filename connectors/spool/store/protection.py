"""Whether the folder of a spool is safe from other users of its machine (rule R10)."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from connectors.core.errors import SpoolError

_ROOT: Final = 0
_PARENT: Final = "a folder that leads to the spool"
_INSIDE: Final = "a folder inside of the spool"
_OPEN_PATH: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def check_protected(root: str, inside: Iterable[str]) -> None:
    """Check that no other user but root can replace a folder, or add, rename or delete files in it or in those inside.

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
        for name in inside:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                _check_owner(os.stat(name, dir_fd=here, follow_symlinks=False), path / name, _INSIDE)


def _check_owner(information: os.stat_result, path: Path, what: str) -> None:
    """Check one folder or link on the way to the spool or in it; errors call it `what`."""
    user, is_link = os.geteuid(), stat.S_ISLNK(information.st_mode)
    may_be_roots = is_link or what in {_PARENT, _INSIDE}
    if information.st_uid != user and not (may_be_roots and information.st_uid == _ROOT):
        owner = information.st_uid
        text = f"The owner of {what}, uid {owner}, could take the spool away; this process runs as uid {user}"
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
