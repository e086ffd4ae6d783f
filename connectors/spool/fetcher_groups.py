"""The fetchers of several sources of one spool, as one."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from connectors.core.errors import ConnectorError
from connectors.spool.fetch_child import FetcherStatus
from connectors.spool.fetcher import FetcherGroup

__all__ = ["FetcherGroups"]


class FetcherGroups:
    """A group for each source; see `connectors.spool.admission.Fetching`."""

    def __init__(self) -> None:
        self._groups: list[FetcherGroup] = []

    def add(self, group: FetcherGroup) -> None:
        """Add the fetchers of one more source, before `start`."""
        self._groups.append(group)

    def start(self) -> None:
        """Start all of them; returns at once."""
        for group in self._groups:
            group.start()

    def running_beside(self, group: FetcherGroup | None) -> set[str]:
        """The fetchers that run for other sources than that of a group."""
        others = [status for other in self._groups if other is not group for status in other.status()]
        return {status.fetcher for status in others if status.fetcher is not None}

    def allow(self, free_bytes: int) -> None:
        """Share what may be fetched among the sources: at least one byte each while anything is free."""
        share = max(free_bytes // len(self._groups), 1) if free_bytes > 0 else 0
        for group in self._groups:
            group.allow(share)

    def status(self) -> Sequence[FetcherStatus]:
        """How each fetcher stands, source by source."""
        return [status for group in self._groups for status in group.status()]

    def terminal_error(self) -> ConnectorError | None:
        """The first error that stops the query."""
        return next((error for group in self._groups if (error := group.terminal_error()) is not None), None)

    def stop(self) -> None:
        """End all of them, at the same time."""
        with ThreadPoolExecutor(len(self._groups)) as pool:
            list(pool.map(FetcherGroup.stop, self._groups))
