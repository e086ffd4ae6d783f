"""The file of an observer: one JSON object a line, appended."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from connectors.core.errors import ConnectorError

_log = logging.getLogger(__name__)
_NEW_LINE = b"\n"
_OWNER_ALONE = 0o600


class LineFile:
    """Appends lines. A failed write is a warning in the log, and later lines are tried all the same.

    Raises:
        ConnectorError: the file cannot be opened or created.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            # Without a buffer: what a full disk refuses would stay in it and be tried again by close().
            self._file = os.fdopen(_open_private(path), "ab", buffering=0)
        except OSError as error:
            raise ConnectorError(
                "OBSERVE_FILE", f"The file cannot be written: {error.strerror or error}", str(path)
            ) from None
        self._torn = _is_torn(path)
        self._missing = 0

    def write(self, value: Mapping[str, Any]) -> None:
        """Append an object as one line."""
        line = (_NEW_LINE if self._torn else b"") + json.dumps(value).encode() + _NEW_LINE
        try:
            written = self._file.write(line) or 0
            if written:
                # A disk that gets full may take a part.
                self._torn = line[written - 1 : written] != _NEW_LINE
            why = "" if written == len(line) else "the disk took only part of a line"
        except OSError as error:
            why = error.strerror or str(error)
        if why:
            if not self._missing:
                _log.warning("[OBSERVE_FILE] %s: %s; lines are missing from now on", self._path, why)
            self._missing += 1
        elif self._missing:
            _log.warning("[OBSERVE_FILE] %s can be written again; %d lines are missing", self._path, self._missing)
            self._missing = 0

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):  # each line was written, or told of, before
            self._file.close()


def _open_private(path: Path) -> int:
    """Open a file for its owner alone, and return its descriptor: events hold whole exceptions, which hold data.

    An existing file that everybody may read is closed to others; one that lets in only its group stays as it is.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _OWNER_ALONE)
    try:
        state = os.fstat(descriptor)
        if stat.S_ISREG(state.st_mode) and state.st_mode & stat.S_IRWXO:
            os.fchmod(descriptor, _OWNER_ALONE)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _is_torn(path: Path) -> bool:
    """Return whether a file ends in the middle of a line, as a loss of power or a full disk leaves it."""
    if not path.is_file() or not path.stat().st_size:
        return False
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read() != _NEW_LINE
    except OSError:  # it may be written and not read
        return False
