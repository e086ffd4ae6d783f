"""The files in the folder or bucket of a spool, foreign ones too: for making, checking and deleting a spool."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from connectors.core.errors import SpoolDamagedError
from connectors.spool.ledger.data_loss import QUARANTINE_FOLDER
from connectors.spool.ledger.fencing import LOCK_NAME, MOST_OF_A_LOCK, is_holder
from connectors.spool.ledger.identity import read_identity
from connectors.spool.store.base import Store
from connectors.spool.store.local import TEMPORARY_FOLDER, LocalStore, is_temporary_name
from connectors.spool.store.object_store import ObjectStore

__all__ = ["WIPING", "file_sizes", "is_known", "is_there", "refuse_foreign_folder"]

WIPING = "wiping"
"""The name of the empty file that marks an interrupted deletion."""

_KNOWN = (
    r"spool\.json|wiping|epochs/\d+|ledger/\d+/\d+|ids/[^/]+|inbox/[^/]+/\d+\.arrow|quarantine/[^/]+\.(?:arrow|json)"
)
_FILE = re.compile(rf"{_KNOWN}|lock")
_OBJECT = re.compile(rf"{_KNOWN}|lease|folders/inbox/[^/]+|probe/[^/]+")


def is_known(store: Store, name: str) -> bool:
    """Return whether a file of a spool may have this name."""
    if isinstance(store, ObjectStore):
        return _OBJECT.fullmatch(name) is not None
    folder, _, base = name.partition("/")
    return _FILE.fullmatch(name) is not None or (folder == TEMPORARY_FOLDER and is_temporary_name(base))


def refuse_foreign_folder(store: Store) -> None:
    """Raise `SpoolDamagedError` if a folder without a spool has foreign files under the names that a spool uses."""
    if isinstance(store, LocalStore):
        foreign = next(_foreign(store), None)
        if foreign is not None and read_identity(store) is None:
            raise SpoolDamagedError(
                "SPOOL_FOREIGN_FILE",
                "The folder is no spool, and has something under a name that a spool would use; nothing was changed",
                f"{store.root}/{foreign}",
                "Give spoolLocation a folder of its own, such as a new one.",
            )


def _foreign(store: LocalStore) -> Iterator[str]:
    """Yield what is foreign where no spool is; an interrupted start leaves its lock and temporary files."""
    names = store.list(TEMPORARY_FOLDER)
    yield from (f"{TEMPORARY_FOLDER}/{name}" for name in names if not is_temporary_name(name))
    yield from (f"{QUARANTINE_FOLDER}/{name}" for name in store.list(QUARANTINE_FOLDER))
    yield from (name for name in (LOCK_NAME, WIPING) if not _is_own(Path(store.root, name)))


def _is_own(path: Path) -> bool:
    """Return whether a file is absent, empty, or a lock file; also if it cannot be read."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return False
        with path.open("rb") as file:
            data = file.read(MOST_OF_A_LOCK).rstrip(b"\0")  # zeros: what a loss of power can leave
        return not data or (path.name == LOCK_NAME and is_holder(json.loads(data)))
    except ValueError:
        return False
    except OSError:
        return True


def file_sizes(store: Store) -> dict[str, int]:
    """Return the sizes of all files below the root, by name, foreign files too; links are not followed."""
    if isinstance(store, ObjectStore):
        return store.client.sizes()
    sizes = {}
    for folder, folders, names in os.walk(store.root):
        for path in (Path(folder, name) for name in (*names, *folders)):
            if path.is_dir() and not path.is_symlink():
                continue
            with contextlib.suppress(FileNotFoundError):
                sizes[str(path.relative_to(store.root))] = path.lstat().st_size
    return sizes


def is_there(location: str) -> bool:
    """Return whether a location may have a spool: an existing folder, or any URL, of which only a request can tell."""
    return "://" in location or Path(location).is_dir()
