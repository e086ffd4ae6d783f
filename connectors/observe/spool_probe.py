"""Looks at the spools of running queries, beside them, and tells how fast they move."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from connectors.core.errors import ConnectorError, OptionError, SpoolError
from connectors.observe.lag import SpoolMeasurement
from connectors.spool.admin.survey import SpoolRates, SpoolStats, stats
from connectors.spool.options import LOCATION

__all__ = ["SpoolWatch", "SpoolWatches"]

_log = logging.getLogger(__name__)
_PAUSE_SECONDS: Final = 30.0
_PATIENCE_SECONDS: Final = 5.0
_SOONEST_SECONDS: Final = 1.0
_SHARE: Final = 3.0
"""After a look, so many times what it took passes before the next one: else what is told of batches would fall behind
where a store is slow, for good."""


class SpoolWatches:
    """Reads the statistics of some spools now and then; one that does not answer in time is left out for a while.

    All are read side by side, and then not for a second, or for three times what the slowest took.

    Args:
        watches: of each spool.
        clock: seconds of a monotonic clock.
        patience: seconds that a read may take, so that a slow store does not hold up reports on all queries.
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
        self._next = [0.0] * len(watches)
        self._looks: list[_Look | None] = [None] * len(watches)
        self._next_round = 0.0
        self._seen: dict[str, SpoolMeasurement] = {}

    def look(self) -> dict[str, SpoolMeasurement]:
        """Return the spools as they were last seen, by id; log those that cannot be read."""
        began = self._clock()
        if began >= self._next_round:
            looks = [self._begin(number, watch, began) for number, watch in enumerate(self._watches)]
            patience_ends = began + self._patience
            seen = [self._found(number, each, patience_ends) for number, each in enumerate(looks) if each is not None]
            self._seen = {each.spool: each for each in seen if each is not None}
            ended = self._clock()
            # One that did not answer is left out for longer anyway, and need not hold up the others.
            took = max((each.took for each in looks if each is not None and not each.is_alive()), default=0.0)
            self._next_round = ended + max(_SOONEST_SECONDS, _SHARE * took)
        return self._seen

    def _begin(self, number: int, watch: SpoolWatch, now: float) -> _Look | None:
        before = self._looks[number]
        if now < self._next[number] or (before is not None and before.is_alive()):
            return None
        look = self._looks[number] = _Look(watch, self._clock)
        look.start()
        return look

    def _found(self, number: int, look: _Look, patience_ends: float) -> SpoolMeasurement | None:
        look.join(max(patience_ends - self._clock(), 0.0))
        why = f"no answer in {self._patience:g} s" if look.is_alive() else look.why
        if why:
            path = self._watches[number].path
            _log.warning("[OBSERVE_SPOOL] %s cannot be looked at, next in %d s: %s", path, _PAUSE_SECONDS, why)
            self._next[number] = self._clock() + _PAUSE_SECONDS
            return None
        return look.found


class _Look(threading.Thread):
    def __init__(self, watch: SpoolWatch, clock: Callable[[], float]) -> None:
        super().__init__(name="connectors-spool-look", daemon=True)
        self._watch = watch
        self._clock = clock
        self.found: SpoolMeasurement | None = None
        self.why = ""
        self.took = 0.0

    def run(self) -> None:
        began = self._clock()
        try:
            self._look()
        finally:
            self.took = self._clock() - began

    def _look(self) -> None:
        try:
            self.found = self._watch.look()
        except FileNotFoundError:
            return
        except (ConnectorError, OSError, ValueError) as error:
            if not isinstance(error, SpoolError) or error.code != "SPOOL_NOT_FOUND":  # made when its query starts
                self.why = str(error) or type(error).__name__


class SpoolWatch:
    """Reads the statistics of one spool again and again.

    Args:
        location: its ``spoolLocation``, as that option takes it; the spool may be created later.

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
        found = SpoolMeasurement(
            seen.spool,
            seen.sources,
            seen.delivered,
            seen.duplicates,
            seen.rows,
            seen.committed,
            seen.bytes,
            _age_ms(seen.oldest_unread),
        )
        before, self._before = self._before, seen
        if before is None or before.spool != seen.spool or seen.taken <= before.taken:
            return found
        rates = SpoolRates.between(before, seen)
        return replace(
            found,
            fetched_per_second=rates.fetched,
            admitted_per_second=rates.admitted,
            kept_per_second=rates.kept,
            committed_per_second=rates.committed,
        )


def _age_ms(published: int | None) -> int:
    return 0 if published is None else max(0, time.time_ns() // 1_000_000 - published // 1000)
