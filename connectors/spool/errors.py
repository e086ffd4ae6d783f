"""What the disk under a spool refuses, as errors of this pack."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from connectors.core.errors import (
    ConnectorError,
    ServiceUnavailableError,
    SpoolDamagedError,
    SpoolError,
    SpoolFullError,
)

__all__ = [
    "disk_errors",
    "foreign_file",
    "foreign_folder",
    "full_disk_error",
    "missing_spool",
    "name_in_full",
    "no_lock_error",
    "no_room",
    "reading_errors",
    "write_error",
]

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_REFUSALS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})
_OTHER_DISK = "Choose a spoolLocation on one file system that has hard links and locks, or on an object store."


@contextlib.contextmanager
def disk_errors(root: str) -> Iterator[None]:
    """Turn what the operating system refuses to the writer of a spool at its start into errors of this pack."""
    try:
        yield
    except OSError as error:
        if no_room(error):
            raise full_disk_error(root) from error
        if error.filename2 is not None and error.errno in _NO_LINKS:
            raise SpoolError(
                "SPOOL_NOT_WRITABLE",
                f"The file system of the spool makes no hard links between its folders: {error.strerror}",
                str(error.filename2),
                _OTHER_DISK,
            ) from error
        if error.errno not in _REFUSALS:
            raise
        raise SpoolError(
            "SPOOL_NOT_WRITABLE",
            f"The spool cannot be used by the user of the driver: {error.strerror}",
            str(error.filename or root),
            "Make that user the owner of all of the spool, on a file system that can be written to: a start or a "
            "repair by another user leaves files of that one (chown -R mends it).",
        ) from error


@contextlib.contextmanager
def reading_errors(root: str) -> Iterator[None]:
    """Turn a missing right of one who only reads into an error of this pack."""
    try:
        yield
    except PermissionError as error:
        raise SpoolError(
            "SPOOL_UNREADABLE",
            f"The spool cannot be read by this user: {error.strerror}",
            str(error.filename or root),
            "Only its owner may read a spool. Run driver, executors and tools as the user of the query; a start or a "
            "repair by another user leaves files of that one (chown -R mends it).",
        ) from error


def name_in_full(error: OSError, folder: str) -> None:
    """Give an error the whole path of a file that was named within a folder.

    An error of two files passes the folder of the second one first.
    """
    if error.filename2 is not None and not str(error.filename2).startswith("/"):
        error.filename2 = f"{folder}/{error.filename2}"
    elif isinstance(error.filename, str) and not error.filename.startswith("/"):
        error.filename = f"{folder}/{error.filename}"


def no_lock_error(error: OSError, path: str) -> SpoolError:
    """The error of a file system that has no locks."""
    return SpoolError(
        "SPOOL_NOT_WRITABLE", f"The file system of the spool takes no locks: {error.strerror}", path, _OTHER_DISK
    )


def no_room(error: OSError) -> bool:
    """Whether the operating system says that the disk, or the user's share of it, is full."""
    return error.errno in _NO_ROOM


def full_disk_error(root: str) -> SpoolFullError:
    """The error of a full disk under a spool."""
    return SpoolFullError(
        "SPOOL_DISK_FULL",
        "The disk of the spool is full; nothing unsaved was acked, and what is there is still served",
        root,
        "Make room on that disk; a running query goes on by itself.",
    )


def write_error(error: OSError, root: str) -> ConnectorError:
    """The error that says what the disk under a spool refuses, and that this passes."""
    if no_room(error):
        return full_disk_error(root)
    return ServiceUnavailableError(
        "SPOOL_WRITE_FAILED",
        f"The spool cannot be written to: {error.strerror}",
        root,
        "Nothing unsaved was acked; fetching goes on by itself when the disk works again.",
    )


def missing_spool(root: str) -> SpoolError:
    """The error of a process whose spool is not in its place any more: removed, or its disk was unmounted."""
    return SpoolError(
        "SPOOL_MISSING",
        "The spool that was here is not there any more",
        root,
        "Mount its disk again, or restore it from a backup, and start again; acked messages were only there.",
    )


def foreign_file(root: str, name: str) -> SpoolDamagedError:
    """The error of a link, or another thing, in the place of a file or folder of the spool."""
    return SpoolDamagedError(
        "SPOOL_FOREIGN_FILE",
        "A link or another thing stands where the spool keeps a file or folder of its own; it was not followed",
        f"{root}/{name}",
        "Find out who put it there, and remove it or restore the spool.",
    )


def foreign_folder(root: str, name: str) -> SpoolDamagedError:
    """The error of a folder that is no spool, and has files where one would keep its own."""
    return SpoolDamagedError(
        "SPOOL_FOREIGN_FILE",
        "The folder is no spool, and holds something under a name that a spool would use; nothing was changed",
        f"{root}/{name}",
        "Give spoolLocation a folder of its own, such as a new one.",
    )
