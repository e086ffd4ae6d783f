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

__all__ = ["foreign_file", "full_disk_error", "full_disk_errors", "missing_spool", "no_room", "write_error"]

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextlib.contextmanager
def full_disk_errors(root: str) -> Iterator[None]:
    """Turn the operating system's "no room" into `SpoolFullError`."""
    try:
        yield
    except OSError as error:
        if not no_room(error):
            raise
        raise full_disk_error(root) from error


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
