"""Where a spool lives: a local file system or an object store."""

from __future__ import annotations

import secrets

from connectors.spool.store.base import Store, StoreAccess
from connectors.spool.store.local import LocalStore
from connectors.spool.store.object_store import ObjectStore

_OWNER_BYTES = 8


def open_store(root: str, owner: str = "", access: StoreAccess | None = None) -> Store:
    """Return the store at an absolute path or a URL; `owner` is a name that no other process uses, or empty."""
    owner = owner or secrets.token_hex(_OWNER_BYTES)
    if "://" not in root:
        return LocalStore(root, owner)
    return ObjectStore(root, owner, access or StoreAccess())
