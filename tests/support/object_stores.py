"""A spool's store on the object store of the tests, and the errors of one that cannot be used."""

from __future__ import annotations

import pytest

from connectors.core.errors import ConnectorError
from connectors.spool.store import open_store
from connectors.spool.store.object_store import ObjectStore
from connectors.testing.object_store import ObjectStoreServer
from tests.support.spool_writing import KEY_ID, SECRET, access_to

ROOT = "s3://spools/a/b"


def store_of(server: ObjectStoreServer, owner: str = "ab") -> ObjectStore:
    opened = open_store(ROOT, owner, access_to(server))
    assert isinstance(opened, ObjectStore)
    return opened


def refused(store: ObjectStore) -> ConnectorError:
    with pytest.raises(ConnectorError) as caught:
        store.make_root()
    assert SECRET not in str(caught.value)
    assert KEY_ID not in str(caught.value)
    assert caught.value.action
    return caught.value
