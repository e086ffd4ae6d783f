"""Messages per second of one fetch process, durable segments and acks included, against Google's high-level client.

The server is canned: a Go program (bench/servers/canned_pubsub) that answers StreamingPull from memory, with an id of
its own for each message, and counts the acks. What is counted is the acks that reached it in a time window after a
warm-up. Ours acks a message only when the segment that holds it is written, fsynced, named and its folder fsynced; the
other side acks when its callback is called, and writes nothing.

Cases: payloads of 100 B and 1 KB by the fast path, and the same by the plain path (`100B-plain`, `1KB-plain`). Where
the disk gives less than twice what a case needs, the ratio on tmpfs stands beside it (`100B-tmpfs`, ...).
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from _canned_pubsub import CannedPubSub
from _common import Benchmark, disk_rate, file_system_of, fsync_milliseconds, interleaved, memory_folder, parser

from connectors.pubsub.datasource import PubSubConnector
from connectors.pubsub.options.client import Transport
from connectors.pubsub.source.fetcher import PubSubFetchSettings
from connectors.spool.fetching.group import FetcherGroup
from connectors.spool.fetching.messages import FetchPlan, to_json
from connectors.spool.store.local import LocalStore

SIZES = {"100B": 100, "1KB": 1024}
ENOUGH = 2.0
START_LIMIT_SECONDS = 30


@contextmanager
def our_fetcher(server: CannedPubSub, root: Path, *, plain: bool) -> Iterator[None]:
    """One fetch process with the settings that a stream gives it by default."""
    LocalStore(str(root), "bench").make_root()
    settings = PubSubFetchSettings(
        server.subscription,
        Transport(server.address, secure=False, local=True),
        streams=4,
        max_outstanding_bytes=128 << 20,
        plain=plain,
    )
    plan = FetchPlan(
        PubSubConnector.target, str(root), "bench", b"k" * 16, settings=to_json(settings), max_held_bytes=128 << 20
    )
    group = FetcherGroup()
    group.add(plan, 1)
    group.start()
    try:
        yield
    finally:
        group.stop()


@contextmanager
def their_client(server: CannedPubSub) -> Iterator[None]:
    """Google's high-level client in a process of its own."""
    program = Path(__file__).with_name("_high_level_client.py")
    command = [sys.executable, str(program), server.address, server.subscription]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.communicate()


def acked_per_second(server: CannedPubSub, warm_up: float, seconds: float) -> float:
    """Acks that the server counted in a window, per second."""
    begin = time.monotonic()
    while server.stats()["acked"] == 0:
        if time.monotonic() - begin > START_LIMIT_SECONDS:
            raise RuntimeError(f"nothing was acked in {START_LIMIT_SECONDS} s")
        time.sleep(0.05)
    time.sleep(warm_up)
    before, started = server.stats()["acked"], time.monotonic()
    time.sleep(seconds)
    after, ended = server.stats()["acked"], time.monotonic()
    return (after - before) / (ended - started)


def ours(size: int, folder: Path, seconds: float, *, plain: bool) -> Callable[[], float]:
    """A round of ours: messages per second."""

    def run() -> float:
        root = Path(tempfile.mkdtemp(prefix="bench-spool-", dir=folder))
        try:
            with CannedPubSub(size=size) as server, our_fetcher(server, root / "spool", plain=plain):
                return acked_per_second(server, 1.0, seconds)
        finally:
            shutil.rmtree(root)

    return run


def theirs(size: int, seconds: float) -> Callable[[], float]:
    """A round of theirs: messages per second."""

    def run() -> float:
        with CannedPubSub(size=size) as server, their_client(server):
            return acked_per_second(server, 1.0, seconds)

    return run


def main() -> None:
    """Run the cases."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where the spools go")
    arguments.add_argument("--seconds", type=float, default=4.0, help="length of a window")
    command_line = arguments.parse_args()
    disk = disk_rate(command_line.folder)
    memory = memory_folder()
    bench = Benchmark("pubsub_fetch")
    bench.settings(
        server="canned, in Go, same machine (bench/servers/canned_pubsub)",
        streams="4, one fetch process, segments of 64 MB or 100 ms",
        theirs="google.cloud.pubsub_v1 SubscriberClient.subscribe with its defaults, which were its fastest",
        window=f"{command_line.seconds} s after 1 s of warm-up",
        disk=f"{file_system_of(command_line.folder)}, {disk.median:,.0f} MB/s in 64 MB files with fsync",
        small_fsync=f"{fsync_milliseconds(command_line.folder).median:.2f} ms",
    )
    for case, size in SIZES.items():
        for path in ("", "-plain"):
            name = case + path
            if command_line.cases and name not in command_line.cases:
                continue
            sides = {
                "ours, durable and acked": ours(size, command_line.folder, command_line.seconds, plain=bool(path)),
                "high-level client, acked": theirs(size, command_line.seconds),
            }
            needed = 0.0
            if memory is not None:
                sides["ours on tmpfs"] = ours(size, memory, command_line.seconds, plain=bool(path))
            found = interleaved(sides, command_line.rounds)
            bench.compare(name, found[0], found[1], "messages/s")
            needed = found[0].median * size / 1e6
            if memory is not None and disk.median < ENOUGH * statistics.median(found[2].values) * size / 1e6:
                print(f"{name}: the disk gives less than {ENOUGH:g} times what is needed; tmpfs stands beside it")
                bench.compare(f"{name}-tmpfs", replace(found[2], name="ours on tmpfs"), found[1], "messages/s")
            print(f"{name}: {needed:,.0f} MB/s of payload to the disk\n", flush=True)
    bench.finish()


if __name__ == "__main__":
    main()
