"""Quarantine: a damaged or missing segment is moved aside, and its rows are recorded as empty (rule R9).

    quarantine/<fetcher>-<n>.arrow   the file as it was found; absent if it was missing
    quarantine/<fetcher>-<n>.json    what was lost, when and why

The rows keep their positions, so every other row keeps its own, and a replay has the same rows less the lost ones.
The order is: copy aside, record, delete. A crash in between leaves a copy too many, and the next one does it again.

The records are those that were there before: a segment that was never admitted is admitted without rows; an admitted
one loses its digest in a snapshot. An older version of this pack stops at the second kind, with an error that names it.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import Any

from connectors.core.errors import ConnectorError, SpoolDamagedError
from connectors.core.failpoints import failpoint
from connectors.spool.ledger.records import FORMAT_VERSION, decode, encode
from connectors.spool.ledger.state import LedgerState
from connectors.spool.segments.segment import SEGMENT, SegmentReader, segment_name
from connectors.spool.store.base import Store

__all__ = [
    "QUARANTINE_FOLDER",
    "can_be_quarantined",
    "move_aside",
    "quarantined_rows",
    "read_notes",
    "rows_in_footer",
    "waiting_names",
    "what_is_wrong",
]

QUARANTINE_FOLDER = "quarantine"
_logger = logging.getLogger(__name__)


def can_be_quarantined(error: ConnectorError) -> bool:
    """Whether an error says that a segment is damaged or missing.

    Foreign files and files of other versions are not meant: someone has to look at these.
    """
    return error.code == f"{SEGMENT.code}_DAMAGED"


def move_aside(store: Store, name: str, error: SpoolDamagedError, positions: tuple[int, int], rows: int) -> None:
    """Copy a segment to the quarantine, durably, with a note; the caller records the loss and deletes the segment.

    Args:
        store: where the spool lives.
        name: of the segment.
        error: what is wrong with it.
        positions: of its rows, end excluded; equal if it was never admitted.
        rows: how many rows are lost; 0 if that is not known.

    Raises:
        OSError: the disk refused; nothing else was changed.
    """
    base = _base_name(name)
    failpoint("quarantine.before_copy")
    with contextlib.suppress(FileNotFoundError), store.writer(f"{base}.arrow") as file:
        file.write(store.map(name))
        file.publish()
    note = {
        "v": FORMAT_VERSION,
        "segment": name,
        "first": positions[0],
        "end": positions[1],
        "rows": rows,
        "error": what_is_wrong(error),
        "time": time.time_ns() // 1000,
    }
    store.put(f"{base}.json", encode(note))
    failpoint("quarantine.after_copy")
    found = what_is_wrong(error)
    _logger.warning("[SPOOL_SEGMENT_QUARANTINED] %s is recorded as empty: %s. %s", name, _loss(positions, rows), found)


def what_is_wrong(error: ConnectorError) -> str:
    """Return the text of an error without its advice, which is of no use once the segment is quarantined."""
    return str(ConnectorError(error.code, error.what, error.where))


def quarantined_rows(store: Store) -> dict[str, int]:
    """The names of all segments that were quarantined, and how many rows each had.

    Raises:
        SpoolDamagedError: a note is damaged.
    """
    return {note["segment"]: note["rows"] for note in read_notes(store)}


def read_notes(store: Store) -> Iterator[dict[str, Any]]:
    """What was quarantined, by name; see `move_aside` for what a note holds.

    Raises:
        SpoolDamagedError: a note is damaged.
    """
    for file in store.list(QUARANTINE_FOLDER):
        if file.endswith(".json"):
            name = f"{QUARANTINE_FOLDER}/{file}"
            note = decode(store.read(name), f"{store.root}/{name}", "A note of the quarantine")
            text, place, _ = note["error"].partition(f"{note['segment']}).")  # older notes have advice after it
            yield note | {"error": text + place}


def rows_in_footer(store: Store, name: str) -> int:
    """How many rows a segment says that it has; 0 if even that cannot be read."""
    with contextlib.suppress(SpoolDamagedError):
        return SegmentReader(store, name).info.rows
    return 0


def waiting_names(store: Store, state: LedgerState) -> Iterator[str]:
    """The names of all segments that are not admitted, those that are missing between others too."""
    for fetcher in store.list("inbox"):
        numbers = (name.partition(".")[0] for name in store.list(f"inbox/{fetcher}"))
        highest = max((int(number) for number in numbers if number.isdigit()), default=-1)
        for number in range(state.fetchers.get(fetcher, -1) + 1, highest + 1):
            yield segment_name(fetcher, number)


def _base_name(name: str) -> str:
    """The name in the quarantine, without its ending, of ``inbox/<fetcher>/<n>.arrow``."""
    _, fetcher, file = name.split("/")
    return f"{QUARANTINE_FOLDER}/{fetcher}-{file.partition('.')[0]}"


def _loss(positions: tuple[int, int], rows: int) -> str:
    first, end = positions
    if first < end:
        return f"the rows at positions {first} to {end - 1} are lost"
    return f"its {rows or 'unknown number of'} rows were never given a position and are lost, unless they come again"
