"""How long a query takes to open its spool, by the number of admitted segments that are still there.

Opening is what stands between the start of a query and its first answer: lock, claim, seal, read the ledger, check the
inbox, write the first snapshot, clear away what crashes have left. The segments are one file with many names, since
nothing reads them here; all but the newest have their ids in a run, as in a spool that has run for a while.

    ./dev bench spool_start [--segments N ...] [--folder FOLDER]
"""

from __future__ import annotations

import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from _common import Benchmark, file_system_of, fsync_milliseconds, parser

from connectors.spool.ledger.identity import open_identity
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.ledger.recovery import open_ledger
from connectors.spool.ledger.segment_log import COLUMNS, MOST_ENTRIES, LogOffset, Manifest, SegmentLog
from connectors.spool.ledger.state import LedgerState
from connectors.spool.store.local import LocalStore

ROWS = 100
ROW_BYTES = 1000
FETCHERS = 4
CONSTANT = {"source": 0, "rows": ROWS, "kept": ROWS, "bytes": ROWS * ROW_BYTES}
MOST_LINKS = 60_000
"""ext4 allows 65,000 names a file."""
_OPEN = "--open"
SOURCES = ("projects/p/subscriptions/s",)


def build(root: Path, count: int) -> None:
    """A spool with so many admitted segments, none of them freed."""
    store = LocalStore(str(root), secrets.token_hex(8))
    store.make_root()
    ledger = open_ledger(store, open_identity(store, "pubsub", SOURCES))
    ledger.set_layout(16 << 20, 8)
    names: list[str] = []
    for _ in range(FETCHERS):
        fetcher = secrets.token_hex(8)
        make_files(root, fetcher, count // FETCHERS)
        names += [fetcher] * (count // FETCHERS)
    ledger.replace_state(lambda state: retain(state, names))


def retain(state: LedgerState, fetchers: list[str]) -> LedgerState:
    """Add a segment of each of these fetchers to a state; as columns, since entry by entry a million take long."""
    manifests, numbers = [], dict.fromkeys(fetchers, 0)
    for first in range(0, len(fetchers), MOST_ENTRIES):
        some = fetchers[first : first + MOST_ENTRIES]
        values: dict[str, Any] = {
            "fetcher": some,
            "number": [],
            "digest": [secrets.token_hex(8) for _ in some],
            "published_first": 1_700_000_000_000_000 + np.arange(first, first + len(some)) * 25_000,
            "published_last": 1_700_000_000_100_000 + np.arange(first, first + len(some)) * 25_000,
            "struck": [None] * len(some),
        }
        values |= {name: np.full(len(some), one) for name, one in CONSTANT.items()}
        for fetcher in some:
            values["number"].append(numbers[fetcher])
            numbers[fetcher] += 1
        columns = pa.record_batch([pa.array(values[field.name], field.type) for field in COLUMNS], COLUMNS)
        manifests.append(Manifest(LogOffset(first, first * ROWS, first * ROWS * ROW_BYTES), columns))
    count, head = len(fetchers), len(fetchers) * ROWS
    return replace(
        state,
        segments=SegmentLog.of_manifests(manifests, 0),
        fetchers={fetcher: number - 1 for fetcher, number in numbers.items()},
        ordinal=count,
        runs_through=count,
        head=head,
        bytes=head * ROW_BYTES,
        starts=[*state.starts[:-1], state.starts[-1]._replace(last=head)],
    )


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
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument(
        "--segments", type=int, nargs="*", default=[1_000, 100_000, 1_000_000], help="admitted segments"
    )
    arguments.add_argument("--folder", type=Path, help="where to make the spool (default: a temporary folder)")
    options = arguments.parse_args()
    benchmark = Benchmark("spool_start")
    with tempfile.TemporaryDirectory(prefix="spool-start-", dir=options.folder) as name:
        folder = Path(name)
        benchmark.settings(file_system=file_system_of(folder), fsync_ms=f"{fsync_milliseconds(folder).median:.2f}")
        for count in options.segments:
            root = folder / f"spool-{count}"
            build(root, count)
            check(root, count)
            runs = [in_new_process(root) for _ in range(options.rounds)]
            seconds = [each for each, _ in runs]
            snapshot = max(path.stat().st_size for path in root.glob("ledger/*/0"))
            print(
                f"{count:>10,} segments: {statistics.median(seconds):6.2f} s to open (median of {len(seconds)}, "
                f"{min(seconds):.2f} to {max(seconds):.2f}), "
                f"{statistics.median(each for _, each in runs):.2f} s of the processor, "
                f"snapshot {snapshot / 1e6:,.0f} MB",
                flush=True,
            )
            shutil.rmtree(root)


def check(root: Path, count: int) -> None:
    """See that the spool is what it should be."""
    _, ledger = open_once(root)
    segments = ledger.state.segments
    assert (len(segments), segments[-1].end, segments[count // 2].ordinal) == (count, count * ROWS, count // 2)


def in_new_process(root: Path) -> tuple[float, float]:
    """Open a spool in a process of its own, as a query does; the seconds it took, and those of the processor."""
    done = subprocess.run([sys.executable, __file__, _OPEN, str(root)], check=True, capture_output=True, text=True)
    seconds, processor = map(float, done.stdout.split())
    return seconds, processor


if __name__ == "__main__":
    if sys.argv[1:2] == [_OPEN]:
        before = time.process_time()
        print(open_once(Path(sys.argv[2]))[0], time.process_time() - before)
    else:
        main()
