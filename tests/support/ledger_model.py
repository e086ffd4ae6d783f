"""What a ledger must do, without files, locks or crashes: rules R2 to R6 of docs/explanation/spool.md in one class.

Fetchers publish segments, each a list of message ids. The ledger admits every segment once, those of a fetcher in their
order, and gives each id that it has not seen the next position. A position never changes its id. What is committed may
be freed, from the oldest segment on, but for the last two batches.

The model does not say which fetcher comes first, nor whether a step that a crash interrupted took effect: it takes
either from the ledger (`observe`), and holds everything else against it.
"""

from __future__ import annotations

from collections.abc import Sequence

from connectors.spool.ledger.state import LedgerState


class LedgerModel:
    """The history of one spool, whatever writers it had.

    Attributes:
        rows: the id at each position, from 0 on.
        delivered: rows of all admitted segments, duplicates included.
        commits: positions that were committed, ascending.
    """

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.delivered = 0
        self.commits: list[int] = []
        self._published: dict[str, list[list[str]]] = {}
        self._admitted: dict[str, int] = {}
        self._bases: list[tuple[str, int]] = []
        self._seen: set[str] = set()
        self._oldest = 0
        self._uncertain_commit: int | None = None

    @property
    def head(self) -> int:
        """The position after the last row."""
        return len(self.rows)

    @property
    def waiting(self) -> int:
        """How many published segments are not admitted."""
        return sum(len(segments) - self._admitted.get(name, 0) for name, segments in self._published.items())

    def was_admitted(self, fetcher: str) -> bool:
        """Return whether any segment of a fetcher was admitted."""
        return fetcher in self._admitted

    def publish(self, fetcher: str, ids: Sequence[str]) -> None:
        """Note a durable segment."""
        self._published.setdefault(fetcher, []).append(list(ids))

    def commit(self, position: int, *, interrupted: bool = False) -> None:
        """Note a commit; one that was interrupted may have taken effect."""
        if interrupted:
            self._uncertain_commit = position
        elif position > (self.commits[-1] if self.commits else 0):
            self.commits.append(position)

    def observe(self, state: LedgerState) -> None:
        """Follow a ledger to its present state; AssertionError where it does what no ledger may."""
        self._observe_commits(state)
        for index, entry in enumerate(state.segments, state.ordinal - len(state.segments)):
            if index < len(self._bases):
                assert (entry.name, entry.base) == self._bases[index], "an admitted segment moved"
                continue
            assert index == len(self._bases), "a segment was freed before anything saw it"
            number = self._admitted.get(entry.fetcher, 0)
            assert entry.number == number, "a segment was left out, or admitted twice"
            ids = self._published[entry.fetcher][number]
            assert entry.rows == len(ids)
            assert entry.base == self.head, "positions are not dense"
            fresh = [text for text in dict.fromkeys(ids) if text not in self._seen]
            assert entry.admitted_rows == len(fresh), "a duplicate was admitted, or a row was dropped"
            self._admitted[entry.fetcher] = number + 1
            self._bases.append((entry.name, entry.base))
            self._seen.update(fresh)
            self.rows += fresh
            self.delivered += len(ids)
        assert state.ordinal == len(self._bases)
        assert state.head == self.head
        assert state.counters.get("delivered", 0) == self.delivered
        assert state.counters.get("duplicates", 0) == self.delivered - self.head
        assert self._oldest <= state.oldest, "freed rows came back"
        self._oldest = state.oldest
        assert self._oldest <= (self.commits[-3] if len(self.commits) > 2 else 0), "rows of the last batches were freed"

    def _observe_commits(self, state: LedgerState) -> None:
        if self._uncertain_commit is not None and state.committed == self._uncertain_commit:
            self.commit(self._uncertain_commit)
        self._uncertain_commit = None
        assert state.committed == (self.commits[-1] if self.commits else 0), "a commit was lost, or made up"

    def readable(self) -> range:
        """Return the positions that can be read."""
        return range(self._oldest, self.head)
