"""Writes spools by hand, for tests that need no service."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from connectors.core.options.kinds import Secret
from connectors.spool.ledger.identity import SpoolIdentity, open_identity
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.ledger.recovery import open_ledger
from connectors.spool.ledger.writer_lock import SpoolLease, SpoolLock
from connectors.spool.segments.id_keys import OtherIds, keys_of
from connectors.spool.segments.segment import SegmentInfo, SegmentWriter, read_slices
from connectors.spool.store.base import Store, StoreAccess
from connectors.spool.store.local import LocalStore
from connectors.spool.store.object_store import ObjectStore
from connectors.spool.stream.compaction import Compaction, CompactionSettings
from connectors.spool.stream.slices import plan
from connectors.testing.object_store import ObjectStoreServer

SOURCES = ("projects/p/subscriptions/s",)
SCHEMA = pa.schema([("id", pa.string()), ("payload", pa.binary())])


def much_later() -> float:
    """A clock by which all that was admitted or committed since a start was so long ago: only publish times decide."""
    return time.monotonic() + 1e9


@dataclass
class HandSpool:
    """A spool whose segments are written by hand."""

    root: Path
    layout: tuple[int, int] = (1 << 20, 4)
    ledger: Ledger | None = None
    owner: str = "ab"
    sources: tuple[str, ...] = SOURCES
    _numbers: dict[str, int] = field(default_factory=dict)
    stores: dict[str, Store] = field(default_factory=dict)

    @property
    def store(self) -> Store:
        """The store of the present owner; one a life, as in a process."""
        process = self.owner.encode().hex().zfill(16)  # as long as the names of real ones
        return self.stores.setdefault(self.owner, LocalStore(str(self.root), process))

    def identity(self) -> SpoolIdentity:
        self.store.make_root()
        return open_identity(self.store, "pubsub", self.sources)

    def open(self, owner: str = "ab") -> Ledger:
        """Open the ledger as a new writer would, without the lock."""
        self.owner = owner
        self.ledger = open_ledger(self.store, self.identity())
        self.ledger.set_layout(*self.layout)
        return self.ledger

    def access(self) -> StoreAccess | None:
        return None

    def lock(self, jvm: int) -> SpoolLock:
        self.store.make_root()
        return SpoolLock(self.store, jvm)

    def write(
        self,
        ids: Sequence[str],
        fetcher: str = "f0",
        size: int = 10,
        published: int = 1_000_000,
        other: OtherIds | None = None,
    ) -> SegmentInfo:
        """Publish one segment with these ids; each row counts `size` bytes."""
        identity = self.identity()
        number = self._numbers.get(fetcher, 0)
        writer = SegmentWriter(self.store, identity.spool, fetcher, number, SCHEMA)
        if ids:
            array = pa.array(ids, pa.string())
            payloads = pa.array([text.encode() for text in ids], pa.binary())
            rows = pa.record_batch([array, payloads], schema=SCHEMA)
            sizes = np.full(len(ids), size, np.int64)
            writer.append(rows, keys_of(array, identity.hash_key, other), sizes, (published, published))
        info = writer.publish()
        self._numbers[fetcher] = number + 1
        return info

    def read(self, first: int, end: int) -> list[list[tuple[int, str]]]:
        """(position, id) of the rows of each partition of a batch."""
        assert self.ledger is not None
        parts = plan(self.ledger.state, first, end, self.ledger.row_sizes)
        return [self.read_partition(slices) for slices in parts]

    def read_partition(self, slices: Sequence) -> list[tuple[int, str]]:
        return [
            (kept.position + index, text)
            for kept in read_slices(str(self.root), slices, self.access())
            for index, text in enumerate(kept.rows["id"].to_pylist())
        ]

    def age(self, folder: str, seconds: float) -> None:
        """Let the files of a folder be so many seconds older than they are."""
        for path in (self.root / folder).glob("*"):
            state = path.stat()
            os.utime(path, (state.st_atime, state.st_mtime - seconds))

    def all_ids(self) -> list[str]:
        assert self.ledger is not None
        state = self.ledger.state
        return [text for part in self.read(state.oldest, state.head) for _, text in part]

    def files(self) -> dict[str, bytes]:
        """Every file of the spool but the lock, by name."""
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in sorted(self.root.rglob("*"))
            if path.is_file() and path.name != "lock"
        }


KEY_ID = "key-of-the-spool"
SECRET = "wJalr-secret-of-the-spool"


def object_store_options(server: ObjectStoreServer) -> dict[str, str]:
    """The options of a spool on this server."""
    return {
        "spoolLocation": "s3://spools/orders",
        "spoolEndpoint": server.endpoint,
        "spoolRegion": "us-east-1",
        "spoolKeyId": KEY_ID,
        "spoolSecret": SECRET,
    }


def access_of(options: Mapping[str, str]) -> StoreAccess:
    """How to reach the object store that the options of a query name."""
    return StoreAccess(
        endpoint=options.get("spoolEndpoint"),
        region=options.get("spoolRegion"),
        key_id=options.get("spoolKeyId"),
        secret=Secret(options["spoolSecret"]) if "spoolSecret" in options else None,
    )


def access_to(server: ObjectStoreServer) -> StoreAccess:
    return access_of(object_store_options(server))


@dataclass
class ObjectSpool(HandSpool):
    """The same on an object store; its root is a URL, which `Path` would spoil."""

    server: ObjectStoreServer = field(kw_only=True)
    retries: Mapping[str, Any] | None = None
    root: str = "s3://spools/of/tests"  # type: ignore[assignment]

    @property
    def store(self) -> ObjectStore:
        return self.stores.setdefault(self.owner, ObjectStore(self.root, self.owner, self.access(), self.retries))  # type: ignore[return-value]

    def access(self) -> StoreAccess:
        return access_to(self.server)

    def lease(self, *, take_over: bool = False, jvm: int = 0, **times: float) -> SpoolLease:
        self.store.make_root()
        return SpoolLease(self.store, jvm or os.getpid(), take_over=take_over, **times)

    def write(self, ids: Sequence[str], fetcher: str = "f0", size: int = 10, published: int = 1_000_000) -> SegmentInfo:
        self.store.make_folder(f"inbox/{fetcher}")
        return super().write(ids, fetcher, size, published)

    def files(self) -> dict[str, bytes]:
        """Every object of the spool but the lease, by name."""
        start = len("spools/of/tests/")
        return {path[start:]: data for path, data in sorted(self.server.objects.items()) if not path.endswith("/lease")}


def fill(made: HandSpool) -> None:
    """Three admitted segments of two rows, the ids of the first two in a run, three rows committed; one waits."""
    ledger = made.open()
    for number in range(2):
        made.write([f"{number}-a", f"{number}-b"])
    ledger.admit()
    Compaction(ledger, CompactionSettings(recent_ids=1)).step()
    made.write(["2-a", "2-b", "0-a"])
    ledger.admit()
    ledger.commit(3)
    made.write(["late"], fetcher="f1", published=5_000_000)
