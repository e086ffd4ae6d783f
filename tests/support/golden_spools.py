"""The spools of `tests.golden.spools_record`, put into a store; and what has to be true of them."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import dataclass
from typing import Any

from connectors.spool.ledger.identity import SpoolIdentity, open_identity, read_identity
from connectors.spool.ledger.recovery import open_ledger, read_state
from connectors.spool.ledger.state import LedgerState
from connectors.spool.segments.segment import checksum, read_slices
from connectors.spool.store import open_store
from connectors.spool.store.base import Store, StoreAccess
from connectors.spool.stream.slices import plan
from tests.golden.spools_record import SPOOLS
from tests.support.spool_writing import SOURCES

PRESENT = 2


@dataclass
class GoldenSpool:
    """A golden spool that can be put back as it was."""

    name: str
    location: str
    access: StoreAccess | None = None

    def __post_init__(self) -> None:
        with tarfile.open(SPOOLS / f"{self.name}.tar.gz") as archive:
            members = {entry.name: archive.extractfile(entry) for entry in archive}
            files = {name: file.read() for name, file in members.items() if isinstance(file, io.BufferedIOBase)}
        self.facts: dict[str, Any] = json.loads(files.pop("facts.json"))
        store = self.store()
        store.make_root()
        text = json.dumps(
            json.loads(files["spool.json"].splitlines()[0]) | {"location": store.location},
            sort_keys=True,
            separators=(",", ":"),
        ).encode()
        self.files = files | {"spool.json": text + b"\n" + checksum(text).encode() + b"\n"}
        for folder in {name.rpartition("/")[0] for name in files if name.startswith("inbox/")}:
            store.make_folder(folder)
        self.restore()

    def store(self, owner: str = "ab") -> Store:
        return open_store(self.location, owner.encode().hex().zfill(16), self.access)

    def present(self) -> dict[str, bytes]:
        """The files of the spool, but for those that a store makes itself."""
        store = self.store()
        names = [name for name in store.sizes() if not name.startswith(("folders/", "tmp/"))]
        return {name: store.read(name) for name in names}

    def restore(self) -> None:
        """Put it back: only the identity is ever overwritten."""
        store = self.store()
        names = set(store.sizes())
        for name in names - self.files.keys():
            store.delete(name)
        for name in self.files.keys() - names:
            store.create(name, self.files[name])
        store.overwrite("spool.json", self.files["spool.json"])

    def identity(self) -> SpoolIdentity:
        found = read_identity(self.store())
        assert found is not None
        return found

    def look(self) -> LedgerState:
        """The state as those see it who only look."""
        return read_state(self.store("look"), self.identity().spool)

    def open(self, owner: str = "ab") -> LedgerState:
        """Open it as the writer of a query does."""
        store = self.store(owner)
        self.ledger = open_ledger(store, open_identity(store, "pubsub", SOURCES))
        return self.ledger.state

    def assert_is_whole(self, state: LedgerState) -> None:
        """Every row of the golden spool is where it was, and nothing else is."""
        facts = self.facts
        assert (state.head, state.committed, state.counters) == (facts["head"], facts["committed"], facts["counters"])
        assert len(state.segments) == facts["segments"]
        assert self.rows(state) == [tuple(row) for row in facts["rows"]]
        [gap] = [entry for entry in state.segments if entry.quarantined]
        assert [gap.base, gap.end] == facts["lost"]

    def rows(self, state: LedgerState) -> list[tuple[int, str]]:
        parts = plan(state, state.oldest, state.head, lambda entry: [entry.bytes // entry.admitted_rows] * entry.rows)
        return [
            (kept.position + index, text)
            for slices in parts
            for kept in read_slices(self.location, slices, self.access)
            for index, text in enumerate(kept.rows["id"].to_pylist())
        ]
