"""The fetchers of a stream, and the thread that starts them and then merges runs of ids.

Both may take long, and never hold up admission.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

from connectors.core.errors import (
    AccessDeniedError,
    ConnectorError,
    CredentialsError,
    ServiceUnavailableError,
    SourceGoneError,
)
from connectors.core.retry import Outage, OutageRule
from connectors.spool.errors import no_room
from connectors.spool.fetching.group import FetcherStatus
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.stream.compaction import Compaction, CompactionSettings
from connectors.spool.stream.waiting import RETRY_SECONDS, Guard, Signals

SOURCE_ERRORS: Final = (AccessDeniedError, CredentialsError, SourceGoneError)
"""What ends the fetching, and is no reason not to serve what was fetched before."""
_MERGE_EVERY: Final = 1.0
_MERGE_LATER: Final = 60.0


class Fetching(Protocol):
    """The fetchers of a spool, as the stream sees them."""

    def allow(self, free_bytes: int) -> None:
        """Let the fetchers fetch this many bytes more, in all, from now."""

    def status(self) -> Sequence[FetcherStatus]:
        """Return the state of each, from memory."""

    def terminal_error(self) -> ConnectorError | None:
        """Return the error that stops the query, if there is one."""

    def stop(self) -> None:
        """End the fetchers; what they hold is published or handed back."""


@dataclass(frozen=True, slots=True)
class StartedFetching:
    """What the start of the fetchers returns.

    Attributes:
        fetching: the fetchers.
        dedup_horizon: seconds for which ids are retained.
    """

    fetching: Fetching
    dedup_horizon: float


StartFetching = Callable[[Ledger, Callable[[], None]], StartedFetching]
"""Starts the fetchers of a ledger's spool; returns them, and how long ids are retained.

The second argument is to be called when a segment was published.
"""


@dataclass(frozen=True, slots=True)
class Started:
    """What a start has made; either there are fetchers, or an error of the source that they could not start for."""

    compaction: Compaction
    fetching: Fetching | None = None
    source_error: ConnectorError | None = None

    def terminal_error(self) -> ConnectorError | None:
        """Return the error that ended the fetchers, or did not let them start."""
        return self.source_error if self.fetching is None else self.fetching.terminal_error()


class FetcherStart:
    """The work of the thread that starts fetchers and then merges; other threads only read `started`.

    `start_fetching` is called in this thread, because it calls the service; again in an outage of the service, and
    where a full disk or a store that does not answer ends it with `OSError`.

    Attributes:
        started: None before; set once, by this thread.
        outage_rule: when the service is given up.
    """

    def __init__(
        self,
        ledger: Ledger,
        start_fetching: StartFetching,
        compaction: CompactionSettings,
        guard: Guard,
        signals: Signals,
        outage_rule: OutageRule,
    ) -> None:
        self.started: Started | None = None
        self._ledger = ledger
        self._start_fetching = start_fetching
        self._settings = compaction
        self._guard = guard
        self._signals = signals
        self.outage_rule = outage_rule
        self._outage = Outage(outage_rule)

    def run(self) -> None:
        """Start the fetchers, then merge until this is stopped or fails."""
        stopping = self._signals.stopping
        while self._guard.run(self._start) and self.started is None:
            # A full disk, or a store that does not answer: it is waited out, and nothing is fetched before.
            if stopping.wait(0.0 if self.is_out else RETRY_SECONDS):
                return
        while self.started is not None and not stopping.wait(_MERGE_EVERY):
            if not self._guard.run(partial(self._merge, self.started.compaction)):
                return

    @property
    def is_out(self) -> bool:
        """Whether the fetchers could not be started yet, because of the service."""
        return self._outage.failures > 0

    def terminal_error(self) -> ConnectorError | None:
        """Return the error that ended the fetchers, or did not let them start; None also before the start."""
        return None if self.started is None else self.started.terminal_error()

    def stop(self) -> None:
        """End the fetchers; what they hold is published or handed back."""
        if self.started is not None and self.started.fetching is not None:
            self.started.fetching.stop()

    def _start(self) -> None:
        try:
            started = self._start_fetching(self._ledger, self._signals.segment_reported)
        except SOURCE_ERRORS as error:
            # How long ids count is unknown, so the longest time there is.
            self.started = Started(Compaction(self._ledger, self._settings), source_error=error)
        except ServiceUnavailableError as error:
            self._signals.stopping.wait(self._outage.next_delay_seconds(error))
        else:
            self._outage.reset()
            compaction = Compaction(self._ledger, replace(self._settings, horizon=started.dedup_horizon))
            self.started = Started(compaction, started.fetching)
            if self._signals.stopping.is_set():
                started.fetching.stop()
        self._signals.wake.set()

    def _merge(self, compaction: Compaction) -> None:
        try:
            while not self._signals.stopping.is_set() and compaction.merge():
                pass
        except OSError as error:
            if not no_room(error):
                raise
            # Merged runs are searched faster, and nothing depends on that.
            self._signals.stopping.wait(_MERGE_LATER)
