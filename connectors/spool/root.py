"""The folder that a spool on a file system lives in, and that it stays the same one while a process uses it."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

from connectors.core.errors import SpoolError
from connectors.spool.disk import disk
from connectors.spool.store_errors import full_disk_error, missing_spool, no_room

__all__ = ["FOLDER_MODE", "IDENTITY_NAME", "RootFolder"]

FOLDER_MODE: Final = 0o700
IDENTITY_NAME: Final = "spool.json"


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
            SpoolError: it cannot be made, or everyone may write to it.
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
            mode = Path(self._path).stat().st_mode
        except OSError as error:
            if no_room(error):
                raise full_disk_error(self._path) from error
            raise SpoolError(
                "SPOOL_NOT_WRITABLE",
                f"The folder of the spool cannot be made: {error.strerror}",
                self._path,
                "Choose a spoolLocation that the user of the driver may write to.",
            ) from error
        if mode & stat.S_IWOTH:
            raise SpoolError(
                "SPOOL_WORLD_WRITABLE",
                "Everyone may write to the folder of the spool",
                self._path,
                "Take the right away (chmod o-w), or choose another spoolLocation.",
            )

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
