"""The files in ``tmp/`` of a spool's folder: those without a name of their own yet, and room that is held (rule R1).

A folder may have had a ``tmp/`` before it was made a spool: only what a spool has written itself is ever deleted.
"""

from __future__ import annotations

import contextlib
import re
import stat
from pathlib import Path

from connectors.spool.store import TEMPORARY_FOLDER, LocalStore
from connectors.spool.stores import Store

__all__ = ["is_temporary_name", "temporary_files"]

_OWN = re.compile(r"[0-9a-f]{16}-(?:[0-9]+|reserve|spool\.json)")
"""The owner, which is a process life, and what `LocalStore` and `DiskReserve` put after it."""


def is_temporary_name(name: str) -> bool:
    """Whether a spool gives its temporary files such names; without the folder."""
    return _OWN.fullmatch(name) is not None


def temporary_files(store: Store) -> list[str]:
    """The names, without the folder, of the temporary files that a spool has written; an object store has none."""
    if not isinstance(store, LocalStore):
        return []
    return [name for name in store.list(TEMPORARY_FOLDER) if is_temporary_name(name) and _is_file(store, name)]


def _is_file(store: LocalStore, name: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return stat.S_ISREG(Path(store.root, TEMPORARY_FOLDER, name).lstat().st_mode)
    return False
