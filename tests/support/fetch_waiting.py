"""What tests of fetcher processes share: the status of the only one."""

from __future__ import annotations

from connectors.spool.fetching.group import FetcherGroup, FetcherStatus


def only(group: FetcherGroup) -> FetcherStatus:
    """How the one fetcher of a group stands."""
    (status,) = group.status()
    return status
