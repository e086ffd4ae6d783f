"""What a record of the ledger costs, by the number of retained segments: bytes written, and milliseconds.

A spool with so many segments is opened, which is timed. Then, as in a query with a long `spoolRetention`, segments are
admitted, their rows are committed, and the oldest ones are freed, through some snapshots; the number of retained ones
hardly changes. Bytes count what is written to the disk; the numbers are per record, of those and of all the others.

    ./dev bench ledger_growth [--segments N ...] [--folder FOLDER]
"""

from __future__ import annotations

import secrets
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import spool_start
from _common import Benchmark, file_system_of, fsync_milliseconds, parser
from spool_start import ROW_BYTES, ROWS

from connectors.spool.ledger.ledger import SNAPSHOT_EVERY, Ledger
from connectors.spool.store.disk import Disk
from connectors.spool.store.local import LocalStore
from connectors.spool.stream.compaction import Compaction, CompactionSettings

SNAPSHOTS = 8
FREED_TOGETHER = 16
COUNTERS = {"delivered": 1, "duplicates": 0}


class CountingDisk(Disk):
    """Counts the bytes that are written."""

    def __init__(self) -> None:
        self.bytes = 0

    def write(self, file: int, data: bytes | memoryview) -> int:
        """Write, and count."""
        written = super().write(file, data)
        self.bytes += written
        return written


def run(ledger: Ledger, fetcher: str) -> None:
    """Admit, commit and free, through some snapshots; as many segments are freed as are admitted."""
    compaction = Compaction(ledger, CompactionSettings(free_segments=FREED_TOGETHER))
    last, number, position = ledger.state.number + SNAPSHOTS * SNAPSHOT_EVERY, 0, ledger.state.oldest
    while ledger.state.number < last:
        entry = {"fetcher": fetcher, "number": number, "source": 0, "rows": ROWS, "digest": secrets.token_hex(8)}
        entry |= {"published": [number, number], "kept": ROWS, "bytes": ROWS * ROW_BYTES, "struck": None}
        entry |= dict.fromkeys(("base", "bytes_before", "ordinal"), 0)
        ledger.append({"admit": [entry], "counters": COUNTERS})
        number, position = number + 1, position + ROWS
        ledger.commit(position)
        if number % FREED_TOGETHER == 0:
            compaction.step()


def measure(folder: Path, count: int) -> dict[str, float]:
    """Build a spool, open it, and use it."""
    root = folder / secrets.token_hex(8)
    spool_start.build(root, count)
    disk = CountingDisk()
    before, LocalStore.disk = LocalStore.disk, disk
    try:
        start, ledger = spool_start.open_once(root)
        first, disk.bytes = ledger.state.number, 0
        began, spent = time.perf_counter(), time.process_time()
        run(ledger, secrets.token_hex(8))
        seconds, processor = time.perf_counter() - began, time.process_time() - spent
    finally:
        LocalStore.disk = before
        shutil.rmtree(root)
    records = ledger.state.number - first
    return {
        "start-up, s": start,
        "bytes a record": disk.bytes / records,
        "ms a record": seconds / records * 1e3,
        "processor, ms a record": processor / records * 1e3,
    }


def main() -> None:
    """Measure each size some times."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--segments", type=int, nargs="*", default=[1000, 100_000, 1_000_000])
    arguments.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = arguments.parse_args()
    benchmark = Benchmark("ledger_growth")
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        disk = {"disk": file_system_of(folder), "ms_a_fsync": f"{fsync_milliseconds(folder).median:.1f}"}
        benchmark.settings(snapshots=SNAPSHOTS, records_a_snapshot=SNAPSHOT_EVERY, rounds=options.rounds, **disk)
        for count in options.segments:
            found = [measure(folder, count) for _ in range(options.rounds)]
            cells = {key: statistics.median(each[key] for each in found) for key in found[0]}
            benchmark.row("A record of the ledger, by retained segments", {"segments": count, **cells})
    benchmark.finish()


if __name__ == "__main__":
    main()
