"""A loss of power at every point of a spool's life: record the life, rebuild what could be left, go on, compare.

The service, Spark's checkpoint and the sink are elsewhere: they are as they were when the power went.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from connectors.core.errors import ConnectorError
from connectors.spool.store.disk import Disk
from connectors.spool.store.local import LocalStore
from tests.support.in_process_query import InProcessQuery
from tests.support.power_loss import DiskCall, DiskModel, Kind, RecordingDisk, Tree, Way, write_tree
from tests.support.spark_protocol.driver import DriverCrashedError, ProtocolError
from tests.support.spool_life import SpoolLife

_GAP_SECONDS = 0.5
_ROUND_SECONDS = 0.2
_SECONDS = 20.0
_PATIENCE = 2.0


class LifeDisk(RecordingDisk):
    """Records a life. Every second segment is admitted between its name and the sync of that.

    Args:
        life: whose disk it is.
        dies_at: the process dies before this call: this and all later ones fail, until `revive`.
    """

    def __init__(self, life: SpoolLife, dies_at: int | None = None) -> None:
        super().__init__(life.disk)
        self.died = False
        self._life = life
        self.dies_at = dies_at
        self._segments = 0
        self._waits_for: tuple[str, int] | None = None

    def revive(self) -> None:
        self.dies_at = None

    def before(self, kind: Kind, path: str) -> None:
        if self.dies_at is not None and len(self.calls) >= self.dies_at:
            self.died = True
            raise OSError(errno.EIO, "the process is dead")
        if threading.current_thread().name == "publish":
            self._hold_up(kind, path)

    def _hold_up(self, kind: Kind, path: str) -> None:
        """Let the ledger admit a segment that has its name, before its fetcher syncs that."""
        parts = path.split("/")
        if kind == "link" and parts[1] == "inbox":
            self._segments += 1
            self._waits_for = (parts[2], int(parts[3].partition(".")[0])) if self._segments % 2 else None
        elif kind == "fsync" and self._waits_for is not None and parts[1:2] == ["inbox"]:
            fetcher, number = self._waits_for
            end = time.monotonic() + _GAP_SECONDS
            while time.monotonic() < end and (stream := self._life.stream) is not None:
                if stream._ledger.state.fetchers.get(fetcher, -1) >= number:
                    break
                stream._background.wake()
                time.sleep(0.001)


class UnsyncedDisk(Disk):
    """Syncs nothing: what runs on it is not asked what a loss of power would leave."""

    def fsync(self, opened: int) -> None:
        pass


@contextlib.contextmanager
def on_disk(other: Disk) -> Iterator[None]:
    """Work on another disk for a while."""
    before = LocalStore.disk
    LocalStore.disk = other
    try:
        yield
    finally:
        LocalStore.disk = before


@dataclass(frozen=True)
class Outside:
    """What was elsewhere, from some call on: files of checkpoint and sink."""

    since: int
    files: dict[str, bytes]


@dataclass(frozen=True)
class Recording:
    """A life, call by call.

    Attributes:
        calls: of the disk.
        outsides: what was elsewhere, ascending.
        published: every message, and before which call it was published.
        acked: every message that was acked, and before which call.
    """

    calls: Sequence[DiskCall]
    outsides: Sequence[Outside]
    published: Sequence[tuple[str, int]]
    acked: dict[str, int]


@dataclass(frozen=True)
class Left:
    """What was left by one loss of power, and what was elsewhere then."""

    at: int
    way: Way
    tree: Tree
    files: dict[str, bytes]
    published: list[str]
    acked: dict[str, int]

    def key(self) -> bytes:
        """Equal for what makes no difference."""
        answer = hashlib.blake2b(digest_size=16)
        for files in (self.tree, self.files):
            for path, data in sorted(files.items()):
                answer.update(f"{path}\0{-1 if data is None else len(data)}\0".encode() + (data or b""))
        answer.update(repr((self.published, sorted(self.acked))).encode())
        return answer.digest()


def record(folder: Path, dies_at: int | None = None) -> Recording:
    """Live a whole life and record it: fetch, admit, commit, free, merge runs, restart, replay; die once if asked."""
    folder.mkdir()
    outsides: list[Outside] = []
    published: list[tuple[str, int]] = []
    with SpoolLife(folder) as life:
        recorded = LifeDisk(life, dies_at)
        outsides.append(Outside(0, {}))
        life.service.now = lambda: len(recorded.calls)

        def note() -> None:
            outsides.append(Outside(len(recorded.calls), _files(folder)))

        with on_disk(recorded), life.query() as query:
            query.on_step = note
            for step in _Script(life, query, recorded, published).steps():
                try:
                    step()
                except DriverCrashedError:
                    pass  # that of `leave_batch_undone`, which a death before it has put off
                except (ConnectorError, OSError, ProtocolError):
                    if not recorded.died:
                        raise
                    query.stop()
                    recorded.revive()
                    recorded.died = False
        life.assert_each_once()
        note()
    return Recording(recorded.calls, outsides, published, dict(life.service.acked))


@dataclass
class _Script:
    """A life, step by step; each goes on whatever became of the one before."""

    life: SpoolLife
    query: InProcessQuery
    recorded: LifeDisk
    published: list[tuple[str, int]]

    def steps(self) -> Iterator[Callable[[], object]]:
        """Fetch, admit, commit, free, merge runs, replay, deliver again, restart."""
        yield from (partial(self.publish_and_read, 7),) * 3
        yield self.merge
        yield self.leave_batch_undone
        yield partial(self.publish_and_read, 0)
        yield partial(self.life.service.redeliver, 6)
        yield from (partial(self.publish_and_read, 6),) * 3
        yield self.merge
        yield self.rest
        yield self.query.restart
        yield from (partial(self.publish_and_read, 6),) * 3
        yield self.rest
        yield self.merge
        yield self.query.stop
        yield partial(self.publish_and_read, 0)
        yield self.query.stop

    def publish(self, count: int) -> None:
        before, at = len(self.life.service.published), len(self.recorded.calls)
        self.life.service.publish(count)
        self.published += [(each, at) for each in self.life.service.published[before:]]

    def publish_and_read(self, count: int) -> None:
        self.publish(count)
        if not self.query.is_running:
            self.query.start()
        self.life.read_all(self.query, _SECONDS if self.recorded.dies_at is None else _PATIENCE)

    def leave_batch_undone(self) -> None:
        self.publish(6)
        if not self.query.is_running:
            self.query.start()
        self.query.crash_at("tasks_done")
        self.query.run_batch(_PATIENCE)

    def merge(self) -> None:
        if self.query.is_running:
            self.life.compact()

    def rest(self) -> None:
        """Let what follows from the last commit be done."""
        if self.life.stream is not None:
            self.life.stream._background.wake()
            time.sleep(_ROUND_SECONDS)


def _files(folder: Path) -> dict[str, bytes]:
    roots = (folder / "checkpoint", folder / "sink")
    paths = (path for root in roots for path in root.rglob("*") if path.is_file() and not path.name.endswith(".new"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(paths)}


def losses(recording: Recording, ways: Sequence[Way], seed: int = 0) -> Iterator[Left]:
    """What a loss of power at each point of a life could leave, in these ways; what makes no difference only once."""
    model, seen, outsides = DiskModel(), set(), list(recording.outsides)
    for at, call in enumerate([*recording.calls, None]):
        while len(outsides) > 1 and outsides[1].since <= at:
            outsides.pop(0)
        published = [each for each, since in recording.published if since <= at]
        acked = {each: since for each, since in recording.acked.items() if since <= at}
        for way in ways:
            tree = model.left(way, random.Random(f"{seed} {at}"))
            left = Left(at, way, tree, outsides[0].files, published, acked)
            key = left.key()
            if key not in seen:
                seen.add(key)
                yield left
        if call is not None:
            model.apply(call)


def check(folder: Path, left: Left) -> None:
    """Start on what was left, read all, and see that nothing is lost or doubled and every replay is equal.

    Raises:
        AssertionError, ProtocolError: it is not so.
    """
    for name in ("checkpoint", "sink"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir()
    write_tree(folder / "disk", left.tree)
    for path, data in left.files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(data)
    with on_disk(UnsyncedDisk()), SpoolLife(folder) as life:
        life.service.published += left.published
        life.service.acked |= left.acked
        with life.query() as query:
            life.publish_and_read(query, 1)
        life.assert_each_once()
