"""How the background threads of a stream work: until they are stopped, and with their errors kept.

An error that a retry cannot fix is raised to Spark by its next call; a full disk and a store that does not answer are
waited out.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from connectors.core.errors import ConnectorError, SpoolError
from connectors.spool.errors import full_disk_error, no_room
from connectors.spool.ledger.fencing import while_newest
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.store.disk_space import DiskReserve
from connectors.spool.stream.freshness import Freshness

_log = logging.getLogger(__name__)
RETRY_SECONDS: Final = 1.0
"""So long a disk without room, or a store that does not answer, is waited for."""


@dataclass(frozen=True, slots=True)
class Signals:
    """What the threads of a stream let each other know.

    Attributes:
        stopping: all of them are to end.
        wake: the next round of admission is to begin now.
        reported: a fetcher says that it has published, so the inbox is to be listed.
    """

    stopping: threading.Event = field(default_factory=threading.Event)
    wake: threading.Event = field(default_factory=threading.Event)
    reported: threading.Event = field(default_factory=threading.Event)

    def segment_reported(self) -> None:
        """List the inbox now: a fetcher reports that it has published."""
        self.reported.set()
        self.wake.set()


class Guard:
    """Runs the work of the background threads; each of them may call `run`.

    Attributes:
        error: the first one that a retry cannot fix; set within `Freshness.changing`, and then for good.
        disk_is_full: work of one of the threads found no room, and no round of admission has ended well since.
    """

    def __init__(self, ledger: Ledger, signals: Signals, freshness: Freshness) -> None:
        self.error: ConnectorError | None = None
        self.disk_is_full = False
        self._ledger = ledger
        self._signals = signals
        self._freshness = freshness
        self._reserve = DiskReserve(ledger.store)

    def run(self, work: Callable[[], None]) -> bool:
        """Do background work; False if it ended with an error that a retry cannot fix, which is `error` then."""
        try:
            with while_newest(self._ledger.store, self._ledger.claim):
                work()
        except ConnectorError as error:
            self._fail(error)
        except BaseException as error:  # noqa: BLE001 - nothing may end in silence in a thread; it is raised to Spark
            if isinstance(error, OSError) and no_room(error):
                self._make_room()
                return True
            if isinstance(error, OSError) and error.errno == errno.ETIMEDOUT:  # an object store that does not answer
                _log.warning("[SPOOL_STORE_NO_ANSWER] %s; waiting.", error)
                self._signals.stopping.wait(RETRY_SECONDS)
                return True
            wrapped = SpoolError(
                "SPOOL_BACKGROUND_FAILED",
                f"The background work of the spool ended with {type(error).__name__}: {error}",
                self._ledger.store.root,
                "Restart the query. If it happens again, report it with the driver's log.",
            )
            wrapped.__cause__ = error
            self._fail(wrapped)
        return self.error is None

    def round_ended(self) -> None:
        """Note that a round of admission ended well: the disk takes data, so the reserve is taken again."""
        self.disk_is_full = False
        self._reserve.keep()

    def close(self) -> None:
        """Release the reserve, when the threads have ended."""
        with contextlib.suppress(OSError, SpoolError):
            # The next writer clears it away.
            self._reserve.release()

    def _make_room(self) -> None:
        """Release the reserve, so that the next round can record what it frees; wait when that is not enough."""
        if not self.disk_is_full:
            _log.warning("%s", full_disk_error(self._ledger.store.root))
            self.disk_is_full = True
            self._reserve.release()
            self._signals.wake.set()
        else:
            self._signals.stopping.wait(RETRY_SECONDS)

    def _fail(self, error: ConnectorError) -> None:
        with self._freshness.changing():
            self.error = self.error or error
