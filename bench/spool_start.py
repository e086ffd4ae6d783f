"""How long a query takes to open its spool, by the number of admitted segments that are still there.

Opening is what stands between the start of a query and its first answer: lock, claim, seal, read the ledger, check the
inbox, write the first snapshot, clear away what crashes have left. The segments are one file with many names, since
nothing reads them here; all but the newest have their ids in a run, as in a spool that has run for a while.

    ./dev bench spool_start [--segments N ...] [--folder FOLDER]
"""

from __future__ import annotations

import os
import resource
import secrets
import shutil
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from _common import Benchmark, file_system_of, fsync_milliseconds, parser

from connectors.spool.identity import open_identity
from connectors.spool.ledger import Ledger
from connectors.spool.opening import open_ledger
from connectors.spool.state import SegmentEntry
from connectors.spool.store import LocalStore

ROWS = 100
ROW_BYTES = 1000
FETCHERS = 4
MOST_LINKS = 60_000
"""ext4 allows 65,000 names a file."""
SOURCES = ("projects/p/subscriptions/s",)


def build(root: Path, count: int) -> None:
    """A spool with so many admitted segments, none of them freed."""
    store = LocalStore(str(root), secrets.token_hex(8))
    store.make_root()
    ledger = open_ledger(store, open_identity(store, "pubsub", SOURCES))
    ledger.set_layout(16 << 20, 8)
    state = ledger.state
    for index in range(FETCHERS):
        fetcher = secrets.token_hex(8)
        numbers = range(count // FETCHERS)
        make_files(root, fetcher, len(numbers))
        for number in numbers:
            published = 1_700_000_000_000_000 + state.ordinal * 25_000
            entry = SegmentEntry(
                fetcher,
                number,
                0,
                ROWS,
                secrets.token_hex(8),
                (published, published + 100_000),
                ROWS,
                ROWS * ROW_BYTES,
            )
            placed = replace(entry, base=state.head, bytes_before=state.bytes, ordinal=state.ordinal)
            state.segments.append(placed)
            state.head, state.bytes, state.ordinal = placed.end, state.bytes + placed.bytes, state.ordinal + 1
        if numbers:
            state.fetchers[fetcher] = numbers[-1]
        del index
    state.starts[-1] = replace(state.starts[-1], last=state.head)
    state.runs_through = state.ordinal
    ledger._put_snapshot()  # noqa: SLF001 - what the ledger does itself every 128 records


def make_files(root: Path, fetcher: str, count: int) -> None:
    """Give one file as many names as a fetcher has segments."""
    folder = root / "inbox" / fetcher
    folder.mkdir(parents=True, mode=0o700)
    source = folder / "0.arrow"
    for number in range(count):
        path = folder / f"{number}.arrow"
        if number % MOST_LINKS == 0:
            path.write_bytes(b"segment")
            source = path
        else:
            os.link(source, path)


def open_once(root: Path) -> tuple[float, Ledger]:
    """Open the spool as a query does; the seconds it took."""
    began = time.perf_counter()
    store = LocalStore(str(root), secrets.token_hex(8))
    store.make_root()
    ledger = open_ledger(store, open_identity(store, "pubsub", SOURCES))
    ledger.set_layout(16 << 20, 8)
    ledger.admit()
    return time.perf_counter() - began, ledger


def main() -> None:
    """Measure each size; a fresh process for each start, since that is what a query has."""
    told = parser(__doc__.splitlines()[0])
    told.add_argument("--segments", type=int, nargs="*", default=[1_000, 100_000, 1_000_000], help="admitted segments")
    told.add_argument("--folder", type=Path, help="where to make the spool (default: a temporary folder)")
    options = told.parse_args()
    benchmark = Benchmark("spool_start")
    with tempfile.TemporaryDirectory(prefix="spool-start-", dir=options.folder) as name:
        folder = Path(name)
        benchmark.settings(file_system=file_system_of(folder), fsync_ms=f"{fsync_milliseconds(folder).median:.2f}")
        for count in options.segments:
            root = folder / f"spool-{count}"
            build(root, count)
            seconds = [in_new_process(root) for _ in range(options.rounds)]
            snapshot = max(path.stat().st_size for path in root.glob("ledger/*/0"))
            print(
                f"{count:>10,} segments: {statistics.median(seconds):6.2f} s to open (median of {len(seconds)}, "
                f"{min(seconds):.2f} to {max(seconds):.2f}), snapshot {snapshot / 1e6:,.0f} MB",
                flush=True,
            )
            shutil.rmtree(root)


def in_new_process(root: Path) -> float:
    """Open a spool in a child; the seconds it took there."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        seconds, ledger = open_once(root)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        os.write(write_end, f"{seconds} {peak} {len(ledger.state.segments)}".encode())
        os._exit(0)
    os.close(write_end)
    os.waitpid(child, 0)
    text = os.read(read_end, 100).decode()
    os.close(read_end)
    return float(text.split()[0])


if __name__ == "__main__":
    main()
