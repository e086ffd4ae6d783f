"""The background work of a stream: start the fetchers, admit what they publish, keep the spool in order.

Three threads, beside the one that puts records: one admits, one compacts, one starts the fetchers and then merges id
runs; see `Admission`, `Compaction` and `FetcherStart`. None waits for another, but for its records. An error that a
retry cannot fix is raised to Spark by the next call; a full disk is waited out. An error of the source ends the
fetching, and is raised only when all that came before was served, because the spool has the only copy of it.

What more than one thread uses: `Freshness`, with a lock; the positions of `Backlog`, which calls of Spark write;
`FetcherStart.started`, which is set once; the errors of `Guard`; and `Signals`.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Final

from connectors.core.errors import ConnectorError
from connectors.spool.errors import no_room
from connectors.spool.ledger.data_loss import Losses
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.options import SpoolOptions
from connectors.spool.stream.admission import Admission, Backlog
from connectors.spool.stream.compaction import CompactionSettings
from connectors.spool.stream.fetchers import SOURCE_ERRORS, FetcherStart, StartFetching
from connectors.spool.stream.waiting import DuplicateWatch, Freshness, Guard, Signals

_COMPACT_EVERY: Final = 0.1
_EXPIRE_EVERY: Final = 5.0


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """What a stream reads, and by which options.

    Attributes:
        by_message_id: whether duplicates are recognised by the source's own ids; else producers may publish them.
    """

    options: SpoolOptions
    connector: str
    sources: tuple[str, ...]
    compaction: CompactionSettings
    by_message_id: bool = True

    @property
    def root(self) -> str:
        """Where the spool is."""
        return str(self.options.spool_folder)


class Background:
    """The background threads of one stream, as its calls see them; `check` raises their errors."""

    def __init__(self, settings: StreamSettings, ledger: Ledger, start_fetching: StartFetching) -> None:
        options = settings.options
        self._ledger = ledger
        self._signals = Signals()
        self.backlog = Backlog(ledger, options.max_spool_bytes, self._signals)
        self.losses = Losses(ledger, fail=options.fail_on_data_loss)
        self.freshness = Freshness(options.available_now_quiet, options.available_now_max_wait)
        self._guard = Guard(ledger, self._signals, self.freshness)
        rule = options.outage_rule
        self.fetchers = FetcherStart(ledger, start_fetching, settings.compaction, self._guard, self._signals, rule)
        self.admission = Admission(
            ledger,
            self.fetchers,
            self.backlog,
            losses=self.losses,
            freshness=self.freshness,
            duplicates=DuplicateWatch(ledger.store.root, by_message_id=settings.by_message_id),
            guard=self._guard,
            signals=self._signals,
        )
        self._threads = [
            threading.Thread(target=self.admission.run, name="spool-admission", daemon=True),
            threading.Thread(target=self.fetchers.run, name="spool-start", daemon=True),
            threading.Thread(target=self._compact, name="spool-compaction", daemon=True),
        ]

    def start(self) -> None:
        """Admit all that earlier fetchers left, then start the threads; on a full disk they admit it."""
        try:
            self.losses.quarantining(self._ledger.admit)
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

    def _compact(self) -> None:
        """Compact in rounds, until this is stopped or fails."""
        next_expiry = 0.0

        def do_round() -> None:
            nonlocal next_expiry
            if self.fetchers.started is None:
                return
            compaction, now = self.fetchers.started.compaction, time.monotonic()
            compaction.step(read_from=self.backlog.read_from())
            if now >= next_expiry:
                next_expiry = now + _EXPIRE_EVERY
                compaction.expire()

        while not self._signals.stopping.wait(_COMPACT_EVERY) and self._guard.run(do_round):
            pass
