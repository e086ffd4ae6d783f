"""The errors of a spool that are raised in more than one place, and what the disk under a spool refuses."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

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


@contextlib.contextmanager
def disk_errors(root: str) -> Iterator[None]:
    """Turn what the operating system refuses to the writer of a spool at its start into errors of this pack."""
    try:
        yield
    except OSError as error:
        if error.filename2 is not None and error.errno in _NO_LINKS:
            what = "The spool's file system has no hard links between its folders"
            raise not_writable(what, error, str(error.filename2)) from error
        if error.errno not in _REFUSALS | _NO_ROOM:
            raise
        what = "The user of the driver cannot use the spool"
        raise not_writable(what, error, str(error.filename or root), root=root) from error


@contextlib.contextmanager
def reading_errors(root: str) -> Iterator[None]:
    """Turn a missing permission to read into an error of this pack."""
    try:
        yield
    except PermissionError as error:
        what = f"This user cannot read the spool: {error.strerror}"
        raise SpoolError("SPOOL_UNREADABLE", what, str(error.filename or root)) from error


def no_room(error: OSError) -> bool:
    return error.errno in _NO_ROOM


def not_writable(what: str, error: OSError, where: str, *, root: str | None = None) -> SpoolError:
    """Return the error of a disk that refuses; that of a full disk names `root`, or `where` without one."""
    if no_room(error):
        return full_disk_error(root or where)
    return SpoolError("SPOOL_NOT_WRITABLE", f"{what}: {error.strerror}", where)


def full_disk_error(root: str) -> SpoolFullError:
    what = "The spool's disk is full. Nothing unsaved was acked, and rows in the spool are still served"
    return SpoolFullError("SPOOL_DISK_FULL", what, root)


def write_error(error: OSError, root: str) -> ConnectorError:
    """Return the error of a failed write, after which fetching is tried again."""
    if no_room(error):
        return full_disk_error(root)
    return ServiceUnavailableError("SPOOL_WRITE_FAILED", f"The spool cannot be written to: {error.strerror}", root)


def missing_spool(root: str) -> SpoolError:
    return SpoolError("SPOOL_MISSING", "The spool that was here is gone", root)


def foreign_file(root: str, name: str) -> SpoolDamagedError:
    what = "A file or folder of the spool was replaced by a link or something else, which the query does not follow"
    return SpoolDamagedError("SPOOL_FOREIGN_FILE", what, f"{root}/{name}")


def record_damaged(what: str, where: str) -> SpoolDamagedError:
    return SpoolDamagedError("SPOOL_RECORD_DAMAGED", what, where)


def other_version(code: str, what: str, version: object, supported: int, where: str) -> SpoolVersionError:
    return SpoolVersionError(code, f"{what} has format version {version} and this version reads {supported}", where)


def fenced_error(where: str, new_holder: object = None) -> SpoolFencedError:
    holder = f": {new_holder}" if new_holder else "; this one writes, serves and deletes nothing more"
    return SpoolFencedError("SPOOL_FENCED", f"Another query has taken over this spool{holder}", where)


def in_use_error(holder: object, where: str) -> SpoolInUseError:
    """Return the error of a query whose spool another one, or itself, is using."""
    return SpoolInUseError("SPOOL_IN_USE", f"Another query is using this spool: {holder or 'it is not named'}", where)


def fetcher_ended(code: int, pid: int) -> ServiceUnavailableError:
    return ServiceUnavailableError("FETCHER_ENDED", f"A fetcher process ended with code {code}", f"pid {pid}")


def fetcher_failed(error: BaseException) -> ServiceUnavailableError:
    """Return the error of this process, a fetcher that fails with an error that is not of this pack."""
    return ServiceUnavailableError("FETCHER_FAILED", f"A fetcher failed: {type(error).__name__}", f"pid {os.getpid()}")
