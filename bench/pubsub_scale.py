"""What fetchers, executors and the one ledger of a Pub/Sub spool carry, stage by stage.

Three measurements, and what follows from them:

1. `fetch`: messages a second of 1, 2 and 4 fetch processes into one spool, durable and acked, from the canned server
   (Go, on the same machine), and the processor time of the fetchers and of the server. On a machine of few cores more
   fetchers share what one leaves; so what counts is processor seconds per million messages.
2. `stages`: the same for the other stages, on the segments that were fetched: admit (ids looked up and kept, the record
   appended, runs written), plan (cutting a batch), read (a task: columns verified, mapped and completed).
3. `ledger`: messages a second that the ledger alone admits, on one core, at 100, 1,000 and 50,000 messages a segment.
   At least 5 million are asked for at the last.

Then it computes what N executors carry and where the ledger becomes the limit, and shows the arithmetic. `cluster`
measures one more point: two fetchers on the executors of a cluster of Spark on this machine (`fetch_on_executors`), the
batches of a query beside them; it is held against what the arithmetic says for these cores.

`delay` measures instead: the server waits 20 ms before each response, so that fetchers wait for it, as they would for
a real service, and not for the few cores that all of them share. Counted is what one ledger admits of 1, 2, 4 and
8 fetchers; the ratio is to one of them, and near-linear is asked for. A picture of it is written. `delay-cluster` is
the same with 8 fetchers on 1, 2 and 4 executors of a cluster of Spark, beside one on one, while a query reads it all.

    ./dev bench pubsub_scale [--cases fetch stages ledger cluster delay delay-cluster] [--seconds S] [--size BYTES]
"""

from __future__ import annotations

import resource
import secrets
import shutil
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from _canned_pubsub import CannedPubSub
from _common import Benchmark, Side, file_system_of, fsync_milliseconds, parser
from _fetch_window import Window, wait_for
from _scaling import COUNTS, DELAY_SECONDS, PICTURES, draw, scaling

from connectors.pubsub.datasource import PubSubConnector
from connectors.pubsub.options.client import Transport
from connectors.pubsub.options.kinds import SchemaMode
from connectors.pubsub.source.fetcher import PubSubFetchSettings
from connectors.spool.fetching.group import FetcherGroup
from connectors.spool.fetching.messages import FetchPlan, to_json
from connectors.spool.ledger.identity import SpoolIdentity, open_identity
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.ledger.recovery import open_ledger
from connectors.spool.segments.id_keys import keys_of
from connectors.spool.segments.segment import SegmentWriter, read_slices
from connectors.spool.store.local import LocalStore
from connectors.spool.stream.compaction import Compaction, CompactionSettings
from connectors.spool.stream.slices import plan

CASES = ("fetch", "stages", "ledger", "cluster", "delay", "delay-cluster")
DELAYED_EXECUTORS = (1, 2, 4)
FETCHERS = (1, 2, 4)
LEDGER = {100: 500, 1000: 500, 50_000: 100}
"""Messages a segment: how many segments."""
LEDGER_AT_LEAST = 5e6
DELAYED_MESSAGES = 50
"""In a response that comes after 20 ms: 10,000 messages a second of the four streams of a fetcher."""
CORES_AN_EXECUTOR = 4
EXECUTORS = (1, 2, 4, 8, 16, 32, 64)
SOURCE = CannedPubSub.subscription
SCHEMA = pa.schema([("id", pa.string()), ("payload", pa.binary())])
PUBLISHED = 1_700_000_000_000_000
MILLION = 1e6
WARM_SECONDS = 1.0
ADMIT_SECONDS = 0.05


@dataclass
class Costs:
    """Processor seconds per million messages, by stage; and the rate of the fetchers."""

    seconds: dict[str, float] = field(default_factory=dict)

    def keep(self, stage: str, processor_seconds: float, messages: float) -> None:
        """Keep what a stage took, and print it."""
        self.seconds[stage] = processor_seconds / messages * MILLION
        print(f"{'':16} {stage:28} {self.seconds[stage]:8.3f} processor seconds per million messages", flush=True)


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """A folder that is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="bench-scale-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def own_seconds() -> float:
    """Processor time of this process, user and system."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def new_spool(root: Path) -> tuple[LocalStore, SpoolIdentity]:
    """A spool for the canned subscription."""
    store = LocalStore(str(root), secrets.token_hex(8))
    store.make_root()
    return store, open_identity(store, "pubsub", (SOURCE,))


def fetch_plan(server: CannedPubSub, root: Path, spool: SpoolIdentity) -> FetchPlan:
    """What a stream tells its fetchers by default."""
    settings = PubSubFetchSettings(
        server.subscription,
        Transport(server.address, secure=False, local=True),
        streams=4,
        max_outstanding_bytes=128 << 20,
    )
    return FetchPlan(
        PubSubConnector.target,
        str(root),
        spool.spool,
        spool.hash_key,
        settings=to_json(settings),
        max_held_bytes=128 << 20,
    )


def fetch(count: int, size: int, seconds: float, root: Path) -> Window:
    """Fetch into a spool with so many processes."""
    _, spool = new_spool(root)
    with CannedPubSub(size=size) as server:
        group = FetcherGroup()
        group.add(fetch_plan(server, root, spool), count)
        group.start()
        try:
            wait_for(lambda: all(status.fetched_rows for status in group.status()) and server.stats()["acked"] > 0)
            pids = [status.pid for status in group.status() if status.pid is not None]
            return Window.measure(server, pids, seconds)
        finally:
            group.stop()


def admit(ledger: Ledger) -> tuple[float, float]:
    """Admit all there is, as a query does, with its upkeep; seconds of the clock and of the processor."""
    compaction = Compaction(ledger, CompactionSettings())
    began, used = time.perf_counter(), own_seconds()
    while ledger.admit():
        compaction.step()
    while compaction.merge():
        pass
    return time.perf_counter() - began, own_seconds() - used


def delayed(count: int, size: int, seconds: float, parent: Path) -> float:
    """Fetch with so many processes from a server that waits before each response; messages admitted a second."""
    with (
        temporary_folder(parent) as folder,
        CannedPubSub(size=size, batch=DELAYED_MESSAGES, delay=DELAY_SECONDS) as server,
    ):
        store, spool = new_spool(folder / "spool")
        ledger = open_ledger(store, spool)
        compaction = Compaction(ledger, CompactionSettings())
        group = FetcherGroup()
        group.add(fetch_plan(server, folder / "spool", spool), count)
        group.start()

        def admit_for(until: Callable[[], bool]) -> None:
            while not until():
                ledger.admit()
                compaction.step()
                time.sleep(ADMIT_SECONDS)

        try:
            admit_for(lambda: len(ledger.state.fetchers) == count)
            settled = time.monotonic() + WARM_SECONDS
            admit_for(lambda: time.monotonic() > settled)
            rows, began = ledger.state.head, time.monotonic()
            admit_for(lambda: time.monotonic() > began + seconds)
            return (ledger.state.head - rows) / (time.monotonic() - began)
        finally:
            group.stop()


def stages(root: Path, costs: Costs) -> None:
    """Admit, plan and read what was fetched."""
    store, spool = new_spool(root)
    ledger = open_ledger(store, spool)
    ledger.set_layout(16 << 20, 64)
    _, used = admit(ledger)
    rows = ledger.state.head
    costs.keep("admit, with upkeep", used, rows)
    began = own_seconds()
    parts = plan(ledger.state, 0, rows, ledger.row_sizes)
    costs.keep("plan", own_seconds() - began, rows)
    began, found = own_seconds(), 0
    for slices in parts:
        for kept in read_slices(str(root), slices):
            found += len(PubSubConnector().columns(kept, (SOURCE,), SchemaMode.NATIVE))
    costs.keep("read, in the tasks", own_seconds() - began, rows)
    assert found == rows
    print(f"{'':16} {rows:,} messages in {len(ledger.state.segments)} segments, {len(parts)} partitions\n", flush=True)


def write_segments(root: Path, rows: int, count: int) -> int:
    """A spool of segments by hand, of four fetchers; ids grow from segment to segment, as those of the service do."""
    store, spool = new_spool(root)
    chooser = np.random.default_rng(7)
    sizes = np.full(rows, 100, np.int64)
    for number in range(count):
        fetcher, place = f"{number % 4:016x}", number // 4
        ids = 10**16 + (number * rows + chooser.permutation(rows)) * 7
        texts = pc.cast(pa.array(ids), pa.string())
        batch = pa.record_batch([texts, pa.repeat(pa.scalar(b"x"), rows)], schema=SCHEMA)
        published = PUBLISHED + number * 1000
        writer = SegmentWriter(store, spool.spool, fetcher, place, SCHEMA)
        writer.append(batch, keys_of(texts, spool.hash_key, None), sizes, (published, published))
        writer.publish()
    return rows * count


def ledger_alone(rows: int, count: int, told_rounds: int, folder: Path) -> tuple[Side, float]:
    """The ledger on segments of so many messages: messages a second, and processor seconds a million."""
    with temporary_folder(folder) as temporary:
        root = temporary / "spool"
        total = write_segments(root, rows, count)
        rates, used = [], []
        for _ in range(told_rounds):
            for part in ("ledger", "epochs", "ids"):
                shutil.rmtree(root / part, ignore_errors=True)
            store, spool = new_spool(root)
            ledger = open_ledger(store, spool)
            seconds, processor = admit(ledger)
            assert ledger.state.head == total
            rates.append(total / seconds)
            used.append(processor / total * MILLION)
        return Side(f"ledger alone, {count} segments", rates), sorted(used)[len(used) // 2]


def show_arithmetic(costs: Costs, ledger: float | None) -> None:
    """What N executors carry, and where the ledger is the limit."""
    one = costs.seconds
    if not {"fetch, 1 process", "admit, with upkeep", "plan", "read, in the tasks"} <= one.keys():
        return
    fetching, reading = one["fetch, 1 process"], one["read, in the tasks"]
    driver = one["admit, with upkeep"] + one["plan"]
    a_core = MILLION / (fetching + reading)
    limit = MILLION / driver
    print("What follows, for segments as they were fetched:")
    print(f"  an executor's core: 1 / (fetch {fetching:.3f} + read {reading:.3f}) s = {a_core:,.0f} messages/s")
    print(f"  the driver's core: 1 / (admit and plan {driver:.3f}) s = {limit:,.0f} messages/s")
    for count in EXECUTORS:
        carried = count * CORES_AN_EXECUTOR * a_core
        bound = "the ledger is the limit" if carried > limit else ""
        print(f"  {count:3} executors of {CORES_AN_EXECUTOR} cores: {min(carried, limit):14,.0f} messages/s {bound}")
    print(f"  the ledger is the limit from {limit / a_core / CORES_AN_EXECUTOR:.1f} executors on", flush=True)
    if ledger is not None:
        print(
            f"  with 50,000 messages a segment it carries {ledger:,.0f}: from {ledger / a_core / 4:.1f} on", flush=True
        )
    print("  Not in it: the work of the query itself, the network, the disk, and the latency of an object store.\n")


def measure_executors(bench: Benchmark, command_line: Namespace) -> None:
    """One fetcher on one executor, and as many as there are in `COUNTS` on 1, 2 and 4 of them."""
    from _scale_cluster import windows_of  # noqa: PLC0415 - starts Spark

    def measure(executors: int, count: int) -> Side:
        with (
            temporary_folder(command_line.folder) as folder,
            CannedPubSub(size=command_line.size, batch=DELAYED_MESSAGES, delay=DELAY_SECONDS) as server,
        ):
            return windows_of(executors, count, server, folder, command_line.seconds, command_line.rounds)

    one = measure(1, 1)
    for executors in DELAYED_EXECUTORS:
        bench.compare(f"executors-{executors}", measure(executors, COUNTS[-1]), one, "messages/s")


def main() -> None:
    """Measure, compute, print."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where the spools go")
    arguments.add_argument("--seconds", type=float, default=3.0, help="length of a window")
    arguments.add_argument("--size", type=int, default=1024, help="bytes of a payload")
    arguments.add_argument("--picture", type=Path, default=PICTURES / "pubsub-scale.svg", help="of the case delay")
    command_line = arguments.parse_args()
    cases = command_line.cases or CASES
    bench = Benchmark("pubsub_scale")
    bench.settings(
        server="canned, in Go, same machine (bench/servers/canned_pubsub)",
        messages=f"{command_line.size} B of payload, segments of 64 MB or 100 ms, 4 streams a fetcher",
        disk=f"{file_system_of(command_line.folder)}, fsync {fsync_milliseconds(command_line.folder).median:.2f} ms",
    )
    costs, ledger = Costs(), None
    with temporary_folder(command_line.folder) as folder:
        for count in FETCHERS if "fetch" in cases or "stages" in cases else ():
            root = folder / f"spool-{count}"
            found = fetch(count, command_line.size, command_line.seconds, root)
            bench.show("fetch", Side(f"{count} fetchers", [found.acked / found.seconds]), "messages/s")
            costs.keep(f"fetch, {count} process{'es' if count > 1 else ''}", found.fetchers, found.acked)
            costs.keep("the canned server", found.server, found.acked)
            if count == 1:
                stages(root, costs)
            shutil.rmtree(root)
    if "ledger" in cases:
        for rows, count in LEDGER.items():
            side, used = ledger_alone(rows, count, command_line.rounds, command_line.folder)
            bench.show(f"{rows} a segment", side, "messages/s")
            costs.keep(f"admit at {rows} a segment", used, MILLION)
            ledger = MILLION / used
        print(
            f"50,000 a segment: {side.median:,.0f} messages/s of the clock, {ledger:,.0f} in a processor second, which "
            f"is what a machine with nothing else to do has; {LEDGER_AT_LEAST:,.0f} are asked for\n"
        )
    show_arithmetic(costs, ledger)
    if "cluster" in cases:
        from _scale_cluster import on_cluster  # noqa: PLC0415 - starts Spark

        with temporary_folder(command_line.folder) as folder:
            on_cluster(folder, command_line.size, command_line.seconds, costs.seconds)
    if "delay" in cases:
        rates = scaling(
            bench,
            "fetchers",
            lambda count: delayed(count, command_line.size, command_line.seconds, command_line.folder),
            command_line.rounds,
            "messages/s",
        )
        draw(command_line.picture, "Pub/Sub, by fetchers", rates, "messages/s")
    if "delay-cluster" in cases:
        measure_executors(bench, command_line)
    bench.finish()


if __name__ == "__main__":
    main()
