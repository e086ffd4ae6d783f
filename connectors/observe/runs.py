"""Which run of a query is the newest: Spark can tell of the end of a run after the start of the next one."""

from __future__ import annotations

from collections import deque

__all__ = ["Runs"]

_REMEMBERED = 8


class Runs:
    """The last runs of each query, in the order in which they were first heard of."""

    def __init__(self) -> None:
        self._runs: dict[str, deque[str]] = {}

    def heard(self, query: str, run: str) -> bool:
        """Note an event of a run, and tell whether no newer run of its query is known."""
        runs = self._runs.setdefault(query, deque(maxlen=_REMEMBERED))
        if run not in runs:
            runs.append(run)
        return runs[-1] == run
