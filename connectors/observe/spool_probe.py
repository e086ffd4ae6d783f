"""Looks at the spools of running queries, beside them, and tells how fast they move."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from connectors.core.errors import ConnectorError, OptionError
from connectors.observe.lag import SpoolMeasurement
from connectors.spool.admin.survey import SpoolRates, SpoolStats, stats
from connectors.spool.options import LOCATION

_log = logging.getLogger(__name__)
_PAUSE_SECONDS: Final = 30.0
_PATIENCE_SECONDS: Final = 5.0
_SOONEST_SECONDS: Final = 1.0
_SHARE: Final = 3.0
"""After a look, that many times what it took passes before the next one: else what is told of batches would fall behind
where a store is slow, for good."""


class SpoolWatches:
    """Reads the statistics of some spools now and then; one that does not answer in time is left out for a while.

    All are read side by side, for ``patience`` seconds at most, so that a slow store does not hold up reports on all
    queries; and then not for a second, or for three times what the slowest took.
    """

    def __init__(
        self,
        watches: Sequence[SpoolWatch],
        clock: Callable[[], float] = time.monotonic,
        patience: float = _PATIENCE_SECONDS,
    ) -> None:
        self._watches = watches
        self._clock = clock
        self._patience = patience
        self._looks: dict[SpoolWatch, _Look] = {}
        self._next_round = 0.0
        self._seen: dict[str, SpoolMeasurement] = {}

    def look(self) -> dict[str, SpoolMeasurement]:
        """Return the spools as they were last seen, by id; log those that cannot be read."""
        began = self._clock()
        if began < self._next_round:
            return self._seen
        looks = [_Look(watch, self._clock) for watch in self._watches if self._is_due(watch, began)]
        for look in looks:
            self._looks[look.watch] = look
            look.start()
        self._seen = {}
        for look in looks:
            look.join(max(began + self._patience - self._clock(), 0.0))
            if why := f"no answer in {self._patience:g} s" if look.is_alive() else look.why:
                path = look.watch.path
                _log.warning(
                    "[OBSERVE_SPOOL] %s cannot be read; the next try is in %d s: %s", path, _PAUSE_SECONDS, why
                )
                look.pause_until = self._clock() + _PAUSE_SECONDS
            elif look.measurement is not None:
                self._seen[look.measurement.spool] = look.measurement
        # One that did not answer is left out for longer anyway, and need not hold up the others.
        took = max((look.took for look in looks if not look.is_alive()), default=0.0)
        self._next_round = self._clock() + max(_SOONEST_SECONDS, _SHARE * took)
        return self._seen

    def _is_due(self, watch: SpoolWatch, now: float) -> bool:
        before = self._looks.get(watch)
        return before is None or not (before.is_alive() or now < before.pause_until)


class _Look(threading.Thread):
    def __init__(self, watch: SpoolWatch, clock: Callable[[], float]) -> None:
        super().__init__(name="connectors-spool-look", daemon=True)
        self.watch = watch
        self._clock = clock
        self.measurement: SpoolMeasurement | None = None
        self.why = ""
        self.took = self.pause_until = 0.0

    def run(self) -> None:
        began = self._clock()
        try:
            self.measurement = self.watch.look()
        except (ConnectorError, OSError, ValueError) as error:
            # A spool that is not there is made when its query starts.
            if not isinstance(error, FileNotFoundError) and getattr(error, "code", "") != "SPOOL_NOT_FOUND":
                self.why = str(error) or type(error).__name__
        finally:
            self.took = self._clock() - began


class SpoolWatch:
    """Reads the statistics of the spool at a ``spoolLocation``, which may be created later.

    Raises:
        OptionError: the location is not legal.
    """

    def __init__(self, location: str | Path) -> None:
        try:
            self.path = str(LOCATION.parse(str(location)))
        except ValueError as error:
            # Not repeated: a URL may hold a secret.
            raise OptionError(
                "OBSERVE_SPOOLS", f"No spool can be there: {error}", "spools", f"Give {LOCATION.legal}."
            ) from None
        self._before: SpoolStats | None = None

    def look(self) -> SpoolMeasurement:
        """Return the spool as it is now, with rates since the last call.

        Raises:
            ConnectorError: there is no spool, it is damaged, or its store refuses.
            OSError: it cannot be read, or its store does not answer.
        """
        seen = stats(self.path)
        measurement = SpoolMeasurement(
            seen.spool,
            seen.sources,
            seen.delivered,
            seen.duplicates,
            seen.rows,
            seen.committed,
            seen.bytes,
            _age_ms(seen.oldest_unread),
            executor_fetchers=seen.executor_fetchers,
        )
        before, self._before = self._before, seen
        if before is None or before.spool != seen.spool or seen.taken <= before.taken:
            return measurement
        rates = SpoolRates.between(before, seen)
        return replace(
            measurement,
            fetched_per_second=rates.fetched,
            admitted_per_second=rates.admitted,
            kept_per_second=rates.rows,
            committed_per_second=rates.committed,
        )


def _age_ms(published: int | None) -> int:
    return 0 if published is None else max(0, time.time_ns() // 1_000_000 - published // 1000)
