"""The rows that no batch has begun on: they decide how much more may be fetched (rule R6)."""

from __future__ import annotations

from connectors.spool.ledger.ledger import Ledger
from connectors.spool.ledger.state import COMMITS_KEPT
from connectors.spool.stream.slices import bytes_between

__all__ = ["Backlog"]


class Backlog:
    """The positions that Spark asks from, and what lies above them.

    Calls of Spark write, one at a time; the admitting thread reads. Each attribute is replaced as a whole.
    """

    def __init__(self, ledger: Ledger, max_spool_bytes: int) -> None:
        self._ledger = ledger
        self._max_spool_bytes = max_spool_bytes
        self._highest_asked = 0
        self._last_asked: tuple[int, ...] = ()

    def seen_start(self, position: int) -> bool:
        """Note that Spark asks from this position on: rows below it are no backlog; return whether it is a new one."""
        if position not in self._last_asked[-1:]:
            self._last_asked = (*self._last_asked, position)[-COMMITS_KEPT:]
        is_new = position > self._highest_asked
        self._highest_asked = max(position, self._highest_asked)
        return is_new

    @property
    def is_unread(self) -> bool:
        """Whether there are rows above the highest start that Spark has asked for."""
        return self._ledger.state.head > self._highest_asked

    def read_from(self) -> int:
        """Return the position from which on Spark may still read: of the newest batch and the two before.

        It is 0, for all rows, until Spark has asked for a batch.
        """
        return min(self._last_asked, default=0)

    def free_bytes(self) -> int:
        """Return how many bytes more may be fetched: at least one when nothing is above the highest start (rule R6)."""
        state = self._ledger.state
        start = min(max(self._highest_asked, state.oldest), state.head)
        if start == state.head:
            return max(self._max_spool_bytes, 1)
        used = bytes_between(state, start, state.head, self._ledger.row_sizes)
        return max(self._max_spool_bytes - used, 0)
