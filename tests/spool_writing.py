"""Writes spools by hand, for tests that need no service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from connectors.spool.fence import SpoolLock
from connectors.spool.identity import SpoolIdentity, open_identity
from connectors.spool.keys import OtherIds, keys_of
from connectors.spool.ledger import Ledger
from connectors.spool.opening import open_ledger
from connectors.spool.plan import plan
from connectors.spool.read import read_slices
from connectors.spool.segment import SegmentInfo, SegmentWriter
from connectors.spool.store import LocalStore

SOURCES = ("projects/p/subscriptions/s",)
SCHEMA = pa.schema([("id", pa.string()), ("payload", pa.binary())])


@dataclass
class HandSpool:
    """A spool whose segments are written by hand."""

    root: Path
    layout: tuple[int, int] = (1 << 20, 4)
    ledger: Ledger | None = None
    owner: str = "ab"
    _numbers: dict[str, int] = field(default_factory=dict)

    @property
    def store(self) -> LocalStore:
        return LocalStore(str(self.root), self.owner)

    def identity(self) -> SpoolIdentity:
        self.store.make_root()
        return open_identity(self.store, "pubsub", SOURCES)

    def open(self, owner: str = "ab") -> Ledger:
        """Open the ledger as a new writer would, without the lock."""
        self.owner = owner
        self.ledger = open_ledger(self.store, self.identity())
        self.ledger.set_layout(*self.layout)
        return self.ledger

    def lock(self, jvm: int) -> SpoolLock:
        self.store.make_root()
        return SpoolLock(str(self.root), jvm)

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
        parts = plan(self.ledger.state, first, end, self.ledger.kept_sizes)
        return [self.read_partition(slices) for slices in parts]

    def read_partition(self, slices: Sequence) -> list[tuple[int, str]]:
        return [
            (kept.position + index, text)
            for kept in read_slices(str(self.root), slices)
            for index, text in enumerate(kept.rows["id"].to_pylist())
        ]

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
