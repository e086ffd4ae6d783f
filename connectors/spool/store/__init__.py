"""Where a spool lives: a local file system or an object store."""

from __future__ import annotations

from connectors.spool.store.base import Store, StoreAccess
from connectors.spool.store.local import LocalStore
from connectors.spool.store.object_store import ObjectStore

__all__ = ["open_store"]


def open_store(root: str, owner: str, access: StoreAccess | None = None) -> Store:
    """Return the store at a location; nothing is read or written yet.

    Args:
        root: an absolute path, or the URL of an object store.
        owner: a name that no other process uses.
        access: how to reach an object store.
    """
    if "://" not in root:
        return LocalStore(root, owner)
    return ObjectStore(root, owner, access or StoreAccess())
