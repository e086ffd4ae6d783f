"""Which fetchers have told nothing for long: a process that hangs is no reason not to look at its shards."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from connectors.spool.fetching.child import FetcherStatus

__all__ = ["SilentFetchers"]

_log = logging.getLogger(__name__)
_LEAST_SECONDS: Final = 3.0
"""A fetcher that works tells how it stands twice a second."""


@dataclass(slots=True)
class _Told:
    """What a fetcher has told last.

    Attributes:
        health: something that changes with each report of a fetcher that works.
        looks: how often in a row it was found unchanged.
    """

    health: object = None
    looks: int = 0


class SilentFetchers:
    """The fetchers that tell nothing, each by its index.

    It counts looks and not time: while this process is stopped itself, it hears nothing either.

    Args:
        patience: seconds in which a fetcher may tell nothing; no less than 3 are taken.
        period: seconds between two looks.
    """

    def __init__(self, patience: float, period: float) -> None:
        self._patience = max(patience, _LEAST_SECONDS)
        self._most = self._patience / period
        self._told: dict[int, _Told] = defaultdict(_Told)

    def __contains__(self, index: int) -> bool:
        """Whether a fetcher is silent."""
        return self._told[index].looks >= self._most

    def look(self, statuses: Iterable[FetcherStatus]) -> None:
        """Look at what all of them have told; one that falls silent is logged once."""
        for status in statuses:
            told, health = self._told[status.index], (status.pid, status.settled_at, status.fetched_bytes)
            if status.fetcher is None or health != told.health:
                told.health, told.looks = health, 0
                continue
            was_silent = status.index in self
            told.looks += 1
            if status.index in self and not was_silent:
                _log.warning(
                    "[KINESIS_FETCHER_SILENT] A fetcher has told nothing for %g s; its shards are polled until it does "
                    "(pid %s).",
                    self._patience,
                    status.pid,
                )
