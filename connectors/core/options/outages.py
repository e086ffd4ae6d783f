"""The option that says how long an outage of the service is waited for, the same for all sources and sinks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from connectors.core.options.declaration import conflict, option
from connectors.core.options.kinds import DURATION
from connectors.core.retry import OutageRule

RETRY_TIMEOUT: Final = "retryTimeout"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageOptions:
    """How long a query waits for a service that fails; the base of the options of all sources and sinks."""

    retry_timeout: float = option(
        RETRY_TIMEOUT,
        DURATION,
        "How long calls that fail for now (no response, throttled, an error of the service) are tried again, on the "
        "driver, in tasks and in fetchers, with a warning after 5 s and each minute; then the query stops with the "
        "error of the service. Errors that do not pass, such as a missing right, stop it at once.",
        default="10m",
        minimum="100ms",
        maximum="7d",
    )

    @property
    def outage_rule(self) -> OutageRule:
        """When the service is given up."""
        return OutageRule(self.retry_timeout, RETRY_TIMEOUT)


def refuse_second_limit(raw: Mapping[str, str], name: str, connector: str, *, is_set: bool) -> None:
    """Raise an `OptionError` for ``retryTimeout`` beside an option that limits the same calls, if ``is_set``."""
    if is_set and RETRY_TIMEOUT.lower() in map(str.lower, raw):
        raise conflict(connector, name, RETRY_TIMEOUT, "both limit the same retries", "Give one of them.")
