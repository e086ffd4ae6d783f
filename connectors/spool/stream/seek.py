"""Moving a source to another point in time, so that dedup does not drop what is redelivered then.

The order is: record what is wanted; see that all that was received is admitted; move the source; record that it is
done, and with it a new epoch of ids. After a crash in between the next start repeats it: until then nothing is fetched.
What is done is not repeated until something else is wanted, so the options may stay in the script; wanting only a part
of it is wanting nothing else: one option may be removed and restored while another stays.

What the service refuses is withdrawn, so that a start without it continues as if it had never been wanted. Whether an
earlier start had moved the source by it is unknown then; ids stay known, so no row comes twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from connectors.core.errors import ConnectorError, SpoolInUseError
from connectors.core.failpoints import failpoint
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.segments.dedup_index import run_name

__all__ = ["carry_out_seek"]

_log = logging.getLogger(__name__)
_POLL_SECONDS: Final = 0.05
_PATIENCE_SECONDS: Final = 60.0


def carry_out_seek(ledger: Ledger, wanted: Mapping[str, Any], move: Callable[[Mapping[str, Any]], None]) -> bool:
    """Move the source if that is wanted and not done, before anything is fetched; return whether it was moved.

    Args:
        ledger: of the spool; another thread admits what earlier fetchers have published.
        wanted: JSON values; empty when nothing is wanted.
        move: moves the source; may be called again with the same value after a crash.

    Raises:
        SpoolInUseError: a fetcher of an earlier start does not end.
        ConnectorError: the service refuses what is wanted now, or cannot be reached.
    """
    ledger.settle()  # a full disk may have come between: this is called again then
    last = ledger.state.seek
    value = dict(wanted)
    if not value and last is not None and not last["done"]:
        # The options are gone, but the source may have been moved already: finish what was begun.
        value = last["value"]
    if not value or (last is not None and last["done"] and value.items() <= last["value"].items()):
        return False
    if last is None or last["done"] or last["value"] != value:
        failpoint("seek.before_intent")
        ledger.append({"seek": {"value": value, "done": False}})
        failpoint("seek.after_intent")
    _wait_for_earlier_fetchers(ledger)
    try:
        move(value)
    except ConnectorError as error:
        if error.transient:
            raise
        ledger.append({"seek": last if last is not None and last["done"] else {"value": {}, "done": True}})
        if wanted:
            raise
        _log.warning("[SPOOL_SEEK_GIVEN_UP] A seek that was begun with earlier options is given up: %s", error)
        return False
    failpoint("seek.after_move")
    runs = [run.name for run in ledger.state.runs]

    def forget() -> None:
        failpoint("seek.after_record")
        ledger.index.clear()
        for name in runs:
            ledger.store.delete(run_name(name))

    with ledger.lock:
        ledger.append({"seek": {"value": value, "done": True}, "dedup_epoch": ledger.state.dedup_epoch + 1}, forget)
    failpoint("seek.after_forget")
    return True


def _wait_for_earlier_fetchers(ledger: Ledger) -> None:
    """Wait until all that was received before is in the ledger."""
    give_up_at = time.monotonic() + _PATIENCE_SECONDS
    while not ledger.earlier_fetchers_done():
        if time.monotonic() > give_up_at:
            raise SpoolInUseError(
                "SPOOL_FETCHERS_BUSY",
                f"A seek waits for fetchers of an earlier start, which have not ended in {_PATIENCE_SECONDS:g} s",
                f"{ledger.store.root}/inbox",
                "End the processes that hold the folders there, and start the query again.",
            )
        time.sleep(_POLL_SECONDS)
