"""A Python without what only Linux has, as a Mac's is; PYTHONPATH names this folder, so that children are so too.

It shows that code runs without these calls, and nothing of how a Mac's kernel or file system behaves.
"""

import errno
import fcntl
import os
import resource
import sys

FULL_FSYNC = 51
"""F_FULLFSYNC, a command of a Mac that Linux refuses, as some file systems of a Mac do."""

for module, names in {
    os: (
        "O_DIRECT O_PATH O_TMPFILE copy_file_range eventfd fdatasync getxattr listxattr memfd_create pidfd_open"
        " posix_fadvise posix_fallocate sched_getaffinity setxattr splice waitid"
    ),
    fcntl: "F_GET_SEALS F_OFD_SETLK F_OFD_SETLKW F_SETLEASE F_SETPIPE_SZ",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
fcntl.F_FULLFSYNC = FULL_FSYNC

_set_limit = resource.setrlimit


def _set_no_limit_of_memory(kind: int, limits: tuple[int, int]) -> None:
    if kind == resource.RLIMIT_AS:
        raise ValueError("current limit exceeds maximum limit")
    _set_limit(kind, limits)


def _without_proc(event: str, arguments: tuple[object, ...]) -> None:
    if event in {"open", "os.listdir", "os.scandir"} and str(arguments[0]).startswith("/proc"):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), arguments[0])


resource.setrlimit = _set_no_limit_of_memory
sys.addaudithook(_without_proc)
