"""What lies in a spool's folder or bucket, whatever it is: for those who check or delete all of it."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from connectors.spool.store_objects import ObjectStore
from connectors.spool.stores import Store

__all__ = ["file_sizes", "is_known", "is_there"]

_KNOWN = (
    r"spool\.json|wiping|epochs/\d+|ledger/\d+/\d+|ids/[^/]+|inbox/[^/]+/\d+\.arrow|quarantine/[^/]+\.(?:arrow|json)"
)
_FILE = re.compile(rf"{_KNOWN}|lock|tmp/[^/]+")
_OBJECT = re.compile(rf"{_KNOWN}|lease|folders/inbox/[^/]+|probe/[^/]+")


def is_known(store: Store, name: str) -> bool:
    """Whether a name is one that a file of a spool may have."""
    return (_OBJECT if isinstance(store, ObjectStore) else _FILE).fullmatch(name) is not None


def file_sizes(store: Store) -> dict[str, int]:
    """The sizes of all files below the root, by name, strangers too; links are not followed."""
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
    """Whether a location may hold a spool: a folder that is there, or any URL, which only a request can tell."""
    return "://" in location or Path(location).is_dir()
