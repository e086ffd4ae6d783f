"""Finds the part of a connector that knows its fetchers, for those who run them outside of a query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, cast

from connectors.core.errors import OptionError
from connectors.core.formats import modules_named
from connectors.spool.fetch_target import FetchPlan

__all__ = ["OutsideFetchers", "fetching_of"]


class OutsideFetchers(Protocol):
    """What the module ``outside`` of a connector holds whose fetchers can run outside of the query."""

    FORMAT: str
    """The name of the format."""
    OPTIONS: type
    """Where its options are declared."""

    def outside_plans(
        self, raw: Mapping[str, str], environ: Mapping[str, str], fetchers: int | None
    ) -> list[FetchPlan]:
        """What fetchers are told, for each source of the spool; waits until there is a spool."""


def fetching_of(source: str) -> OutsideFetchers:
    """The part of a connector that knows its fetchers.

    Raises:
        OptionError: there is no such format, or it has no fetchers that run outside of a query.
    """
    found = {module.FORMAT: cast("OutsideFetchers", module) for module in modules_named("outside")}
    if source not in found:
        raise OptionError(
            "FORMAT_UNKNOWN",
            f"There are no fetchers of a format {source!r} to run outside of a query",
            "fetch",
            f"Give one of {', '.join(sorted(found))}.",
        )
    return found[source]
