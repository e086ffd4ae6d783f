"""The index of admitted ids at size: time of a look-up, bytes on disk, private memory.

Cases: `5M` looks 20,000 ids up among 5 million numbers (message ids), half of them known; `5M-hashes` the same for
hashes (values of an attribute, ids that are no numbers). The index has grown as a query lets it grow: segments are
added, runs written and merged. Ids are random, so every run has to be searched; those of the service grow with time,
and most runs are left out. The other side is sqlite: one table with the id as its primary key, in memory.

`100M` fills an index with 100 million numbers (`--ids`) and prints the most bytes that its folder held at any time,
also while runs were merged, and the most private memory of the process; mapped runs are not private. It needs 1.2 GB
of disk, and has no other side.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from _common import Benchmark, Side, file_system_of, interleaved, parser

from connectors.spool.ledger.identity import open_identity
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.ledger.recovery import open_ledger
from connectors.spool.segments.id_keys import HASH_TYPE, IdKeys
from connectors.spool.store.local import LocalStore
from connectors.spool.stream.compaction import Compaction, CompactionSettings

SPACE = "0.0"
LOOKED_UP = 20_000
KNOWN = 5_000_000
SEGMENT = 50_000
PUBLISHED = 1_700_000_000_000_000
NO_ROWS = np.empty(0, np.int64)
NO_HASHES = np.empty(0, HASH_TYPE)


class Index:
    """An index that grows by segments, as that of a query does."""

    def __init__(self, folder: Path) -> None:
        store = LocalStore(str(folder / "spool"), "bench")
        store.make_root()
        self.ledger: Ledger = open_ledger(store, open_identity(store, "bench", ("bench",)))
        self._compaction = Compaction(self.ledger, CompactionSettings())

    def add(self, keys: IdKeys) -> None:
        """Admit a segment's ids, and do what is due then."""
        self.ledger.index.add(SPACE, keys, (PUBLISHED, PUBLISHED))
        self._compaction.step()
        while self._compaction.merge():
            pass

    @property
    def runs(self) -> int:
        """How many runs it has."""
        return len(self.ledger.state.runs)


def number_keys(numbers: np.ndarray) -> IdKeys:
    """Keys of ids that are these numbers."""
    return IdKeys(numbers, NO_ROWS, NO_HASHES)


def hash_keys(numbers: np.ndarray) -> IdKeys:
    """Keys of ids that are no numbers; each has a hash of its own, made of its number."""
    pairs = np.stack([numbers, ~numbers], axis=1)
    return IdKeys(np.zeros(len(numbers), np.uint64), np.arange(len(numbers)), pairs.view(HASH_TYPE).ravel())


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """A folder that is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="bench-dedup-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def random_numbers(generator: np.random.Generator, count: int) -> np.ndarray:
    """Random numbers of up to 63 bits."""
    return generator.integers(1, 1 << 63, count, dtype=np.uint64)


def look_ups(bench: Benchmark, case: str, keys: Callable[[np.ndarray], IdKeys], folder: Path, rounds: int) -> None:
    """Compare the time of a look-up with that of sqlite."""
    generator = np.random.default_rng(1)
    known = random_numbers(generator, KNOWN)
    index = Index(folder)
    for start in range(0, KNOWN, SEGMENT):
        index.add(keys(known[start : start + SEGMENT]))
    database = sqlite3.connect(":memory:")
    kind = "INTEGER" if case == "5M" else "BLOB"
    database.execute(f"CREATE TABLE ids (id {kind} PRIMARY KEY) WITHOUT ROWID")
    database.executemany("INSERT OR IGNORE INTO ids VALUES (?)", ((value,) for value in sql_values(keys(known))))

    def asked() -> np.ndarray:
        half = LOOKED_UP // 2
        return np.concatenate([generator.choice(known, half, replace=False), random_numbers(generator, half)])

    def ours() -> float:
        ids = keys(asked())
        begin = time.perf_counter()
        duplicates = index.ledger.index.duplicates(SPACE, ids, (PUBLISHED, PUBLISHED))
        spent = time.perf_counter() - begin
        assert int(duplicates.sum()) == LOOKED_UP // 2
        return spent * 1e3

    def theirs() -> float:
        ids = sql_values(keys(asked()))
        begin = time.perf_counter()
        found = sum(database.execute("SELECT 1 FROM ids WHERE id = ?", (one,)).fetchone() is not None for one in ids)
        spent = time.perf_counter() - begin
        assert found == LOOKED_UP // 2
        return spent * 1e3

    print(f"{case}: {index.runs} runs, {sum(len(recent) for _, recent in index.ledger.index.recent())} ids in memory")
    names = {f"ours, {LOOKED_UP} look-ups": ours, f"sqlite, {LOOKED_UP} look-ups": theirs}
    bench.compare(case, *interleaved(names, rounds), "ms", less_is_better=True)


def sql_values(keys: IdKeys) -> list[int] | list[bytes]:
    """Keys as sqlite takes them."""
    return keys.numbers.tolist() if not len(keys.hash_rows) else keys.hashes.tolist()


def at_size(bench: Benchmark, count: int, folder: Path) -> None:
    """Fill an index and print what it takes."""
    generator = np.random.default_rng(2)
    segment = min(SEGMENT * 10, count)
    with watched(folder) as most:
        index = Index(folder)
        before = private_bytes()
        begin = time.perf_counter()
        for _ in range(0, count, segment):
            index.add(number_keys(random_numbers(generator, segment)))
        spent = time.perf_counter() - begin
    stored = sum(run.bytes for run in index.ledger.state.runs)
    case = f"{count // 1_000_000}M"
    print(f"{case}: {index.runs} runs, filled in {spent:.0f} s")
    bench.show(case, Side("ids in runs at the end", [stored / 1e6]), "MB")
    bench.show(case, Side("most on disk at any time", [most["disk"] / 1e6]), "MB")
    bench.show(case, Side("most private memory, less that at the start", [(most["memory"] - before) / 1e6]), "MB")
    times = []
    for _ in range(9):
        ids = number_keys(random_numbers(generator, LOOKED_UP))
        begin = time.perf_counter()
        index.ledger.index.duplicates(SPACE, ids, (PUBLISHED, PUBLISHED))
        times.append((time.perf_counter() - begin) * 1e3)
    bench.show(case, Side(f"{LOOKED_UP} look-ups, none of them known", times), "ms")


@contextmanager
def watched(folder: Path) -> Iterator[dict[str, int]]:
    """The most bytes of a folder and of the private memory of this process, looked at ten times a second."""
    most = {"disk": 0, "memory": 0}
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.1):
            most["disk"] = max(most["disk"], disk_bytes(folder))
            most["memory"] = max(most["memory"], private_bytes())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield most
    finally:
        ended.set()
        thread.join()


def disk_bytes(folder: Path) -> int:
    """The bytes of all files; a file that has two names while it gets its own counts once."""
    files = {}
    for path in folder.rglob("*"):
        try:
            found = path.stat()
        except FileNotFoundError:
            continue
        if path.is_file():
            files[found.st_ino] = found.st_size
    return sum(files.values())


def private_bytes() -> int:
    """The private memory of this process, without files that are mapped (proc(5), smaps_rollup)."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return int(fields["Anonymous"].split()[0]) * 1024


def main() -> None:
    """Run the cases."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where the index goes")
    arguments.add_argument("--ids", type=int, default=100_000_000, help="ids of the case 100M")
    command_line = arguments.parse_args()
    bench = Benchmark("pubsub_dedup")
    bench.settings(folder=f"{command_line.folder} ({file_system_of(command_line.folder)})", segment=f"{SEGMENT} ids")
    cases = command_line.cases or ["5M", "5M-hashes", "100M"]
    for case, keys in {"5M": number_keys, "5M-hashes": hash_keys}.items():
        if case in cases:
            with temporary_folder(command_line.folder) as folder:
                look_ups(bench, case, keys, folder, command_line.rounds)
    if "100M" in cases:
        with temporary_folder(command_line.folder) as folder:
            at_size(bench, command_line.ids, folder)
    bench.finish()


if __name__ == "__main__":
    main()
