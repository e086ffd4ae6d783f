"""The background work of a stream: start the fetchers, admit what they publish, keep the spool in order.

Two threads, so that long merges of id runs never hold up admission: see `FetcherStart` and `Admission`. An error that a
retry cannot fix is raised to Spark by the next call; a full disk is waited out. An error of the source ends the
fetching, and is raised only when all that came before was served, because the spool has the only copy of it.

What more than one thread uses: `Freshness`, with a lock; the positions of `Backlog`, which calls of Spark write;
`FetcherStart.started`, which is set once; the errors of `Guard`; and `Signals`.
"""

from __future__ import annotations

import threading

from connectors.core.errors import ConnectorError
from connectors.spool.errors import no_room
from connectors.spool.ledger.data_loss import Losses
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.stream.admission import Admission
from connectors.spool.stream.backlog import Backlog
from connectors.spool.stream.fetchers import SOURCE_ERRORS, FetcherStart, StartFetching
from connectors.spool.stream.freshness import Freshness
from connectors.spool.stream.guard import Guard, Signals
from connectors.spool.stream.settings import StreamSettings
from connectors.spool.stream.watches import DuplicateWatch

__all__ = ["Background"]


class Background:
    """The background threads of one stream, as its calls see them; `check` raises their errors."""

    def __init__(self, settings: StreamSettings, ledger: Ledger, start_fetching: StartFetching) -> None:
        self._ledger = ledger
        self._signals = Signals()
        self._backlog = Backlog(ledger, settings.max_spool_bytes)
        self.losses = Losses(ledger, fail=settings.fail_on_data_loss)
        self.freshness = Freshness(settings.available_now_quiet, settings.available_now_max_wait)
        self._guard = Guard(ledger, self._signals, self.freshness.changed)
        self.fetchers = FetcherStart(ledger, start_fetching, settings.compaction, self._guard, self._signals)
        self.admission = Admission(
            ledger,
            self.fetchers,
            self._backlog,
            losses=self.losses,
            freshness=self.freshness,
            duplicates=DuplicateWatch(ledger.store.root, by_message_id=settings.by_message_id),
            guard=self._guard,
            signals=self._signals,
        )
        self._threads = [
            threading.Thread(target=self.admission.run, name="spool-admission", daemon=True),
            threading.Thread(target=self.fetchers.run, name="spool-start", daemon=True),
        ]

    def start(self) -> None:
        """Admit all that earlier fetchers left, then start the threads; on a full disk they admit it."""
        try:
            self.losses.going_on(self._ledger.admit)
        except OSError as error:
            if not no_room(error):
                raise
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the fetchers and the threads; nothing is admitted any more when this returns."""
        self._signals.stopping.set()
        self._signals.wake.set()
        self.fetchers.stop()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._guard.close()

    def wake(self) -> None:
        """Begin the next round now."""
        self._signals.wake.set()

    def seen_start(self, position: int) -> None:
        """Note that Spark asks from this position on: rows below it are no backlog any more (rule R6)."""
        if self._backlog.seen_start(position):
            self._signals.wake.set()

    def free_bytes(self) -> int:
        """Return how many bytes more may be fetched; see `Backlog`."""
        return self._backlog.free_bytes()

    @property
    def complete(self) -> bool:
        """Whether all that the source ever delivered is admitted: see `Admission`."""
        return self.admission.complete

    def check(self) -> None:
        """Raise the error that ended the background work or the fetchers, unless it is about the source alone."""
        self._ledger.check()
        if self._guard.error is not None:
            raise self._guard.error
        error = self.fetchers.terminal_error()
        if error is not None and not isinstance(error, SOURCE_ERRORS):
            raise error

    def source_error(self) -> ConnectorError | None:
        """Return why the source delivers nothing more, if so; to be raised when all that came before was served."""
        error = self.fetchers.terminal_error()
        return error if isinstance(error, SOURCE_ERRORS) else None
