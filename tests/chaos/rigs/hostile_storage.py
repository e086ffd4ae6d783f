"""Hostile attempts on what lies in files: checkpoints, spools, and folders of ``.proto`` files."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from typer.testing import CliRunner

from connectors.cli.main import app
from connectors.core.errors import ConnectorError
from connectors.spool.admin.verify import verify
from connectors.spool.segments.id_keys import keys_of
from connectors.spool.segments.segment import SegmentReader, SegmentWriter
from connectors.spool.store.local import LocalStore
from tests.chaos.rigs.hostile_attempts import SAME, Attempt, Kind, assert_clean
from tests.contract.harness import SourceHarness
from tests.contract.kafka_harness import KafkaHarness
from tests.contract.kinesis_harness import KinesisHarness
from tests.contract.pubsub_harness import PubSubHarness
from tests.support.altered_offsets import AlterableBatches
from tests.support.damaged_spool import (
    add_foreign_names,
    altered_values,
    live_files,
    lived_in,
    resealed,
    restore,
    use,
    with_altered_section,
    write_file,
)
from tests.support.hostile_answers import hostile_text
from tests.support.spark_protocol.driver import InProcessWorkers
from tests.support.spool_writing import SCHEMA, HandSpool

__all__ = ["STORAGE"]


@contextmanager
def offsets(make: type[SourceHarness], folder: Path) -> Iterator[Attempt]:
    """Altered offsets in a checkpoint."""
    (folder / "source").mkdir()
    harness = make(folder / "source")
    batches = AlterableBatches(harness, InProcessWorkers())

    def attempt() -> dict[str, int]:
        altered = random.choice(batches.cases)
        assert batches.has_same_rows(altered), altered
        return SAME

    yield attempt
    batches.reader.stop()
    harness.close()


@contextmanager
def on_spool(folder: Path, harm: Callable[[HandSpool, dict[str, bytes]], None]) -> Iterator[Attempt]:
    """A spool that is harmed, used, and put back as it was."""
    spool = lived_in(folder / "spool")
    wanted, before = use(spool), spool.files()

    def attempt() -> dict[str, int]:
        try:
            harm(spool, before)
            found = use(spool)
            assert found == wanted, found
        finally:
            _clear(spool.root)
            restore(spool, before)
        return SAME

    yield attempt


def _clear(root: Path) -> None:
    """Remove all that is not a file of its own: links, pipes, devices, and folders in the place of files."""
    for path in sorted(root.rglob("*"), reverse=True):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def ledger(folder: Path) -> AbstractContextManager[Attempt]:
    """JSON of ledger, claims, segments and id runs, altered under right checksums."""
    cases: list[tuple[str, str, object]] = []

    def harm(spool: HandSpool, before: dict[str, bytes]) -> None:
        cases.extend(() if cases else altered_values(before))
        name, _, altered = random.choice(cases)
        write_file(spool.root / name, resealed(name, before[name], lambda _: altered))

    return on_spool(folder, harm)


def damage(folder: Path) -> AbstractContextManager[Attempt]:
    """Flipped, cut, doubled and foreign bytes, without right checksums."""

    def harm(spool: HandSpool, before: dict[str, bytes]) -> None:
        name = random.choice(live_files(spool))
        data = bytearray(before[name])
        match random.randrange(4):
            case 0:
                for _ in range(random.randint(1, 4)):
                    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
            case 1:
                # What ends a ledger or waits in a folder leaves no trace if it is cut to nothing, but a file is there.
                del data[random.randrange(len(data)) :]
            case 2:
                data += random.randbytes(random.randint(1, 100))
            case 3:
                data[:] = random.choice([b"", b"\0" * 4096, random.randbytes(len(data))])
        write_file(spool.root / name, bytes(data))

    return on_spool(folder, harm)


def kinds_of_files(folder: Path) -> AbstractContextManager[Attempt]:
    """Pipes, sockets, links, devices and folders in the place of files, and files of foreign names."""
    kinds = [stat.S_IFIFO, stat.S_IFSOCK, *([stat.S_IFCHR] if os.geteuid() == 0 else [])]

    def harm(spool: HandSpool, _before: dict[str, bytes]) -> None:
        path = spool.root / random.choice(live_files(spool))
        what = random.choice([*kinds, "link", "loop", "folder", "names"])
        if what == "names":
            add_foreign_names(spool.root)
            return
        path.rename(folder / "elsewhere")
        match what:
            case "link":
                path.symlink_to(random.choice([folder / "elsewhere", Path("/dev/zero"), folder]))
            case "loop":
                path.symlink_to(path.name)
            case "folder":
                path.mkdir()
            case kind:
                os.mknod(path, int(kind) | 0o600, os.makedev(1, 5))  # a device is that of endless zeros
        try:
            assert verify(str(spool.root)).findings
        except ConnectorError as error:
            assert_clean(str(error))

    return on_spool(folder, harm)


@contextmanager
def segments(folder: Path) -> Iterator[Attempt]:
    """Arrow altered under right checksums: who can write the spool can forge rows, and ends no process."""
    store = LocalStore(str(folder / "spool"), "ab")
    store.make_root()
    wholes = []
    for fetcher, compression in (("f0", ""), ("f1", "lz4")):
        writer = SegmentWriter(store, "spool", fetcher, 0, SCHEMA, compression=compression)
        for first, rows in ((0, 50), (50, 7)):
            ids = pa.array([str(number) for number in range(first, first + rows)])
            block = pa.record_batch([ids, pa.array([b"text " * 40] * rows)], schema=SCHEMA)
            writer.append(block, keys_of(ids, b"k" * 16), np.full(rows, 100, np.int64), (1, 2))
        name = writer.publish().name
        wholes.append((name, (folder / "spool" / name).read_bytes()))
    wanted = _rows(store, wholes[0][0])

    def attempt() -> dict[str, int]:
        name, whole = random.choice(wholes)
        write_file(folder / "spool" / name, with_altered_section(whole, random.choice(["block", "index", "schema"])))
        return SAME if _rows(store, name) == wanted else {"forged": 1}

    yield attempt


def _rows(store: LocalStore, name: str) -> list[object]:
    reader = SegmentReader(store, name)
    reader.index()
    return [row for _, batch in reader.batches(0, 57) for row in batch.to_pylist()]


_numbers = itertools.count()


@contextmanager
def protos(folder: Path) -> Iterator[Attempt]:
    """Folders of ``.proto`` files with hostile names, kinds and texts, for ``connectors protos build``."""
    ran, plugin = folder / "ran", folder / "plugin"
    plugin.write_text(f"#!/bin/sh\ntouch {ran}\n")
    plugin.chmod(0o755)
    start = Path.cwd()

    def attempt() -> dict[str, int]:
        root = folder / f"protos-{next(_numbers)}"
        root.mkdir()
        for _ in range(random.randint(1, 4)):
            _plant(root, plugin)
        os.chdir(root)
        try:
            done = CliRunner().invoke(app, ["protos", "build", ".", "--output", str(folder / "x.desc")])
        finally:
            os.chdir(start)
            shutil.rmtree(root)
        assert not ran.exists(), "a program was run"
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert_clean(done.output)
        if done.exit_code == 0:
            return SAME
        assert done.exit_code == 2, done.exit_code
        assert done.stderr.startswith("["), done.stderr
        return {done.stderr[1:].partition("]")[0]: 1}

    yield attempt


def _plant(root: Path, plugin: Path) -> None:
    """Put a hostile file into a folder."""
    parts = [
        "@",
        "-",
        "--plugin=protoc-gen-x=",
        "a",
        "..",
        " ",
        "é",
        "\x1b[2J",
        "\udcff",
        "\n",
        "grpc_tools",
        "x" * 100,
    ]
    folders = ["".join(random.choices(parts, k=random.randint(1, 2))) for _ in range(random.randint(0, 3))]
    path = root.joinpath(*(each for each in folders if each != ".."))
    path.mkdir(parents=True, exist_ok=True)
    path /= "".join(random.choices(parts, k=random.randint(0, 2))) + ".proto"
    if os.path.lexists(path):
        return
    arguments = f"--plugin=protoc-gen-x={plugin}\n--x_out=.\n"
    right = 'syntax = "proto3"; message M { int64 id = 1; }'
    match random.randrange(8):
        case 0:
            path.symlink_to(random.choice(["/dev/zero", "/etc/passwd", path.name, ".."]))
        case 1:
            os.mkfifo(path)
        case 2:
            path.mkdir()
        case 3:
            path.write_bytes(random.randbytes(200))
        case 4:
            path.write_text(arguments)
        case 5:
            imported = random.choice(["/etc/passwd", "../x.proto", "@x.proto", "-x.proto", path.name])
            path.write_text(f'syntax = "proto3"; import "{imported}"; // {hostile_text()}', errors="replace")
        case _:
            path.write_text(right)


STORAGE = {
    "pubsub_offsets": Kind("altered offsets of `pubsub`", partial(offsets, PubSubHarness)),
    "kinesis_offsets": Kind("altered offsets of `kinesis`", partial(offsets, KinesisHarness)),
    "kafka_offsets": Kind("altered offsets of `kafka_py`", partial(offsets, KafkaHarness)),
    "ledger": Kind("a spool's JSON altered, checksums right", ledger),
    "spool_damage": Kind("a spool's files damaged", damage),
    "segments": Kind("Arrow in segments altered, checksums right", segments),
    "kinds_of_files": Kind("pipes, links, devices, folders, foreign names in a spool", kinds_of_files),
    "protos": Kind("folders for `connectors protos build`", protos),
}
