"""How long Spark waits for a spool on an object store while ids are merged and segments are freed.

Each request of the store, that of `connectors.testing`, takes `--delay` milliseconds. Segments are published all the
time; few are freed together, and runs of ids are merged two by two, so compaction never rests. Batches are planned as
Spark does it: `latestOffset`, `partitions`, and the `commit` of the batch before. Calls that find nothing new count
too. The numbers are milliseconds.

    ./dev bench ledger_latency [--delay MS] [--seconds S] [--segments A_SECOND]
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
from _common import Benchmark, parser

from connectors.core.errors import ConnectorError
from connectors.core.offsets import SENTINEL
from connectors.core.options.kinds import Secret
from connectors.spool.fetching.group import FetcherStatus
from connectors.spool.ledger.identity import SpoolIdentity, read_identity
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.options import SpoolOptions
from connectors.spool.segments.id_keys import keys_of
from connectors.spool.segments.segment import SegmentWriter
from connectors.spool.store import open_store
from connectors.spool.store.base import StoreAccess
from connectors.spool.stream.admission import StreamSettings
from connectors.spool.stream.compaction import CompactionSettings
from connectors.spool.stream.micro_batch import SpoolStream
from connectors.testing.object_store import ObjectStoreServer

ROOT = "s3://spools/latency"
SOURCES = ("projects/p/subscriptions/s",)
SCHEMA = pa.schema([("id", pa.string())])
ROWS, ROW_BYTES = 1000, 100
COMPACTION = CompactionSettings(free_segments=4, merge=2)
KINDS = ("GET", "HEAD", "PUT", "POST", "DELETE", "LIST")
CALLS = ("latestOffset", "partitions", "commit")
WARM_UP_CALLS = 3


class Publisher:
    """A fetcher that publishes segments, in a thread; also what the stream sees of it."""

    def __init__(self, access: StoreAccess, a_second: float) -> None:
        self._store = open_store(ROOT, secrets.token_hex(8), access)
        self._pause = 1 / a_second
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._fetcher = secrets.token_hex(8)

    def start(self, _ledger: Ledger, report: Callable[[], None]) -> tuple[Publisher, float]:
        """Begin to publish."""
        identity = read_identity(self._store)
        assert identity is not None
        self._store.make_folder(f"inbox/{self._fetcher}")
        self._thread = threading.Thread(target=self._publish, args=(identity, report))
        self._thread.start()
        return self, 86_400.0

    def _publish(self, identity: SpoolIdentity, report: Callable[[], None]) -> None:
        number = 0
        while not self._stopping.wait(self._pause):
            writer = SegmentWriter(self._store, identity.spool, self._fetcher, number, SCHEMA)
            ids = pa.array([secrets.token_hex(8) for _ in range(ROWS)], pa.string())
            now = time.time_ns() // 1000
            sizes = np.full(ROWS, ROW_BYTES, np.int64)
            writer.append(pa.record_batch([ids], schema=SCHEMA), keys_of(ids, identity.hash_key), sizes, (now, now))
            writer.publish()
            number += 1
            report()

    def allow(self, free_bytes: int) -> None:
        """Publish whatever there is room for."""

    def status(self) -> Sequence[FetcherStatus]:
        """One healthy fetcher."""
        return [FetcherStatus(index=0, healthy=True)]

    def terminal_error(self) -> ConnectorError | None:
        """None."""
        return None

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()


@contextmanager
def open_stream(access: StoreAccess, publisher: Publisher) -> Iterator[SpoolStream]:
    """The stream of a query."""
    options = SpoolOptions(
        spool_folder=ROOT,
        spool_endpoint=access.endpoint,
        spool_region=access.region,
        spool_key_id=access.key_id,
        spool_secret=access.secret,
        partition_bytes=1 << 20,
        max_partitions=4,
        max_spool_bytes=1 << 30,
        max_fetch_period=0.0,
        start_timeout=0.0,
        available_now_quiet=0.0,
    )
    stream = SpoolStream(StreamSettings(options, "pubsub", SOURCES, COMPACTION), publisher.start)
    try:
        yield stream
    finally:
        stream.stop()


def measure(delay: float, seconds: float, a_second: float) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Run a query for a while; the milliseconds of each call, and what the spool did meanwhile."""
    times: dict[str, list[float]] = {name: [] for name in CALLS}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = work()
        times[name].append((time.perf_counter() - began) * 1e3)
        return result

    with ObjectStoreServer() as server:
        access = StoreAccess(endpoint=server.endpoint, region="us-east-1", key_id="key", secret=Secret("secret"))
        with open_stream(access, Publisher(access, a_second)) as stream:
            for kind in KINDS:
                server.slow(kind, delay)
            at: Mapping[str, Any] = SENTINEL
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                start = at
                until = timed("latestOffset", lambda start=start: stream.latest_offset(start, None))
                if until != start:
                    timed("partitions", lambda start=start, until=until: stream.partitions(start, until))
                    if start != SENTINEL:
                        timed("commit", lambda start=start: stream.commit(start))
                    at = until
                time.sleep(0.01)
            state = stream._ledger.state  # noqa: SLF001
            names = list(server.objects)
            server.heal()
        done = {
            "rows": state.head,
            "segments freed": state.ordinal - len(state.segments),
            "runs of ids": len(state.runs),
            "objects": len(names),
        }
    return times, done


def main() -> None:
    """Measure once; a longer run gives a better p99."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--delay", type=float, default=50.0, help="milliseconds of each request")
    arguments.add_argument("--seconds", type=float, default=40.0)
    arguments.add_argument("--segments", type=float, default=10.0, help="published in a second, at most")
    options = arguments.parse_args()
    benchmark = Benchmark("ledger_latency")
    benchmark.settings(delay=f"{options.delay:g} ms a request", seconds=options.seconds)
    times, done = measure(options.delay / 1e3, options.seconds, options.segments)
    for name, values in times.items():
        p50, p99 = np.percentile(values[WARM_UP_CALLS:], [50, 99])
        cells = {"call": name, "calls": len(values), "p50, ms": p50, "p99, ms": p99, "longest, ms": max(values)}
        benchmark.row("What Spark waits for", cells)
    benchmark.note("meanwhile", ", ".join(f"{count:,} {name}" for name, count in done.items()))
    benchmark.finish()


if __name__ == "__main__":
    main()
