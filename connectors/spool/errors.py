"""The errors of a spool that are raised in more than one place, and what the disk under a spool refuses."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Final

from connectors.core.errors import (
    ConnectorError,
    ServiceUnavailableError,
    SpoolDamagedError,
    SpoolError,
    SpoolFencedError,
    SpoolFullError,
    SpoolInUseError,
    SpoolVersionError,
)

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_REFUSALS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})
RESTORE: Final = "Restore the spool from a backup; no record of the ledger is ever skipped."
OTHER_DISK: Final = "Choose a spoolLocation on one file system that has hard links and locks, or on an object store."
_OWNERS = "a start or a repair by another user leaves files of that user (chown -R fixes it)."


@contextlib.contextmanager
def disk_errors(root: str) -> Iterator[None]:
    """Turn what the operating system refuses to the writer of a spool at its start into errors of this pack."""
    try:
        yield
    except OSError as error:
        if error.filename2 is not None and error.errno in _NO_LINKS:
            what = "The file system of the spool has no hard links between its folders"
            raise not_writable(what, error, str(error.filename2), OTHER_DISK) from error
        if error.errno not in _REFUSALS | _NO_ROOM:
            raise
        what = "The user of the driver cannot use the spool"
        action = f"Make that user the owner of all of the spool, on a file system that can be written to: {_OWNERS}"
        raise not_writable(what, error, str(error.filename or root), action, root=root) from error


@contextlib.contextmanager
def reading_errors(root: str) -> Iterator[None]:
    """Turn a missing permission to read into an error of this pack."""
    try:
        yield
    except PermissionError as error:
        what = f"This user cannot read the spool: {error.strerror}"
        action = f"Only its owner may read a spool. Run driver, executors and tools as the user of the query; {_OWNERS}"
        raise SpoolError("SPOOL_UNREADABLE", what, str(error.filename or root), action) from error


def no_room(error: OSError) -> bool:
    """Return whether the disk, or the user's share of it, is full."""
    return error.errno in _NO_ROOM


def not_writable(what: str, error: OSError, where: str, action: str, *, root: str | None = None) -> SpoolError:
    """Return the error of a disk that refuses; that of a full disk names `root`, or `where` without one."""
    if no_room(error):
        return full_disk_error(root or where)
    return SpoolError("SPOOL_NOT_WRITABLE", f"{what}: {error.strerror}", where, action)


def full_disk_error(root: str) -> SpoolFullError:
    """Return the error of a full disk under a spool."""
    what = "The disk of the spool is full; nothing unsaved was acked, and what it holds is still served"
    return SpoolFullError("SPOOL_DISK_FULL", what, root)


def write_error(error: OSError, root: str) -> ConnectorError:
    """Return the error of a failed write, after which fetching is tried again."""
    if no_room(error):
        return full_disk_error(root)
    what = f"The spool cannot be written to: {error.strerror}"
    action = "Nothing unsaved was acked; fetching continues by itself when the disk works again."
    return ServiceUnavailableError("SPOOL_WRITE_FAILED", what, root, action)


def missing_spool(root: str) -> SpoolError:
    """Return the error of a process whose spool was removed, or whose disk was unmounted."""
    action = "Mount its disk again, or restore it from a backup, and start again; acked messages were only there."
    return SpoolError("SPOOL_MISSING", "The spool that was here is not there any more", root, action)


def foreign_file(root: str, name: str) -> SpoolDamagedError:
    """Return the error of a link, or another foreign thing, in the place of a file or folder of the spool."""
    what = "A file or folder of the spool was replaced by a link or something else, which was not followed"
    action = "Find out who put it there, and remove it or restore the spool."
    return SpoolDamagedError("SPOOL_FOREIGN_FILE", what, f"{root}/{name}", action)


def record_damaged(what: str, where: str) -> SpoolDamagedError:
    """Return the error of a ledger record that cannot be trusted."""
    return SpoolDamagedError("SPOOL_RECORD_DAMAGED", what, where, RESTORE)


def other_version(code: str, what: str, version: object, supported: int, where: str) -> SpoolVersionError:
    """Return the error of a file in the format of another version."""
    text = f"{what} has format version {version} and this version reads {supported}"
    action = "Run the version of pyspark-stream-connectors that wrote it, or a newer one."
    return SpoolVersionError(code, text, where, action)


def fenced_error(where: str, new_holder: object = None) -> SpoolFencedError:
    """Return the error of a writer whose spool another one took over."""
    holder = f": {new_holder}" if new_holder else "; this one writes, serves and deletes nothing more"
    action = "Let one query only use the spool. Nothing is lost: the other query continues where this one stopped."
    return SpoolFencedError("SPOOL_FENCED", f"Another query took this spool over{holder}", where, action)


def in_use_error(holder: object, where: str, *, can_take_over: bool) -> SpoolInUseError:
    """Return the error of a query whose spool another one, or itself, is using."""
    more = (
        "takeOver=true takes the spool from it: that query then stops with an error, and nothing is lost."
        if can_take_over
        else "If both are queries on one DataFrame: each query reads its source again, so use one query with "
        "foreachBatch that writes to both sinks."
    )
    return SpoolInUseError(
        "SPOOL_IN_USE",
        f"Another query uses this spool: {holder or 'it is not named'}",
        where,
        f"Stop that query, or give this one a source and a spoolLocation of its own. {more} "
        "If it is this query itself: a join or union of a stream with itself reads it twice, so join in foreachBatch, "
        "or use two sources of the same messages, such as two subscriptions, with a spool each.",
    )


def fetcher_ended(code: int, pid: int) -> ServiceUnavailableError:
    """Return the error of a fetcher process that has ended and did not say why."""
    return ServiceUnavailableError(
        "FETCHER_ENDED",
        f"A fetcher process ended with code {code}",
        f"pid {pid}",
        "It is restarted; the log of the driver, or of the executor where it ran, has what it wrote.",
    )


def fetcher_failed(error: BaseException) -> ServiceUnavailableError:
    """Return the error of this process, a fetcher that fails with an error that is none of this pack."""
    return ServiceUnavailableError(
        "FETCHER_FAILED",
        f"A fetcher failed: {type(error).__name__}",
        f"pid {os.getpid()}",
        "It is restarted; the log of the driver, or of the executor where it ran, has the stack.",
    )
