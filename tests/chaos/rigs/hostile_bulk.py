"""Hostile bulk by who sends one message or names a query: few bytes that become many, within time and memory."""

from __future__ import annotations

import hashlib
import json
import random
import socket
import threading
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from typer.testing import CliRunner

from connectors.cli.main import app
from connectors.kinesis.aggregates import MAGIC
from connectors.kinesis.client.client import Record
from connectors.kinesis.source.records import MAX_BYTES, MAX_ROWS, aggregates, batches
from connectors.observe.jsonl import LineFile
from connectors.observe.lag import Measurement, PartitionLag, SourceMeasurement, SpoolMeasurement
from connectors.observe.prometheus import Exporter
from connectors.protobuf.worker import Engine
from connectors.registry.glue.frames import HEADER_BYTES, find_glue_frames
from tests.chaos.rigs.hostile_attempts import SAME, Attempt, Kind, assert_clean
from tests.support.hostile_answers import hostile_text, samples_of
from tests.support.protobuf_generated import varint
from tests.support.protobuf_rig import Rig, compiled

__all__ = ["BULK"]

EXPLODING = compiled(
    f"""syntax = "proto3"; package p; enum E {{ {"LONG_NAME_" * 20} = 0; }} message N {{ N n = 1; int32 x = 2; }}
message W {{ {" ".join(f"int64 w{number} = {number};" for number in range(1, 51))} }}
message M {{ int32 id = 1; repeated E enums = 2; repeated W wide = 3; map<int32, W> map = 4; string text = 5;
repeated double doubles = 6; W one = 7; repeated string texts = 8; }}"""
)
MARKUP = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"'><b onclick=x>",
    "<!--",
    "\u2028",
    "\n",
)


def _field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


@contextmanager
def kpl_bulk(_folder: Path) -> Iterator[Attempt]:
    """Aggregates of up to 1 MB full of one thing, with a right checksum: bounded batches, or one row."""
    record = _field(3, b"\x08\0\x1a\0")
    units = [
        record,
        _field(3, b"\x08\0\x10\0\x1a\0"),
        b"\x28\0",
        _field(1, b"k"),
        _field(2, b"1"),
        _field(1, b""),
        b"\x1a\0",
    ]
    heads = [
        b"",
        _field(1, b"k"),
        _field(1, b"k" * 256),
        _field(1, b"k") + _field(2, b"9" * 38),
        _field(2, b"9" * 10**5),
    ]
    tails = [
        b"",
        record,
        _field(3, b"\x08\x01\x1a\0"),
        b"\x1a\x05\x08",
        b"\x28" + b"\xff" * 11,
        b"\x1b",
        _field(3, b""),
    ]

    def attempt() -> dict[str, int]:
        body = random.choice(heads) + random.choice(units) * random.randint(1, 150_000) + random.choice(tails)
        data = MAGIC + body[: 1 << 20] + hashlib.md5(body[: 1 << 20]).digest()
        records = [Record("1" * 56, data, "k", 1.0), Record("2", b"x", "key", None)]
        last: Any = None
        for batch in batches(records, aggregates(records), "orders", "shard"):
            assert len(batch) <= MAX_ROWS
            assert batch.nbytes <= MAX_BYTES or len(batch) == 1
            last = batch
        assert last is not None
        assert last["data"][-1].as_py() == b"x"
        return SAME

    yield attempt


def _protobuf_bomb() -> bytes:
    """Return a message of up to 1 MB that is one of the ways to cost more than its bytes."""
    size = random.randint(1, 300_000)
    unknown = random.choice([b"\xa8\x01\0", b"\xaa\x01\0", b"\xa3\x01\xa4\x01", b"\xa3\x01"])
    makers: list[Callable[[], bytes]] = [
        lambda: _field(2, bytes(size)),
        lambda: _field(random.choice([3, 4, 7, 8]), b"") * (size // 20),
        lambda: b"".join(_field(4, b"\x08" + varint(random.randrange(9))) for _ in range(size // 100)),
        lambda: unknown * (size // 4),
        lambda: _field(6, bytes(8 * (size // 8) + random.randrange(8))),
        lambda: _field(2, b"\x80" * size),
        lambda: b"\x5b" * size + b"\x5c" * size,
        lambda: random.choice([b"\x1a", b"\0", b"\x08"]) + varint(random.choice([0, 2**31, 2**63, 2**64 - 1])),
        lambda: random.randbytes(size),
    ]
    return random.choice(makers)()


@contextmanager
def protobuf_bulk(_folder: Path) -> Iterator[Attempt]:
    """Messages of protobuf whose values are far larger, nested, packed oddly, or unknown by the million."""
    calls = [Rig(engine, EXPLODING).call("M", {"mode": "PERMISSIVE"}) for engine in (Engine.PYTHON, Engine.FAST)]
    good = b"\x08\x05" + _field(2, b"\0") + _field(5, b"text")
    wanted = calls[0].decoder.decode(pa.array([good])).values

    def attempt() -> dict[str, int]:
        rows = [each for _ in range(random.randint(1, 8)) for each in (good, _protobuf_bomb())]
        found = []
        for call in calls:
            decoded = call.bounded.decode(pa.array(rows))
            assert all(decoded.values.slice(row, 1).equals(wanted) for row in range(0, len(rows), 2)), rows
            assert not any(row % 2 == 0 for row in decoded.errors)
            found.append(decoded.errors)
        assert found[0] == found[1]
        return {"same": 1, "bad_rows": len(found[0])}

    yield attempt


@contextmanager
def glue_bulk(_folder: Path) -> Iterator[Attempt]:
    """Frames of Glue that become 16 MB each or more, are damaged or cut, beside good ones, which are read."""
    header = bytes([3, 5]) + bytes(16)
    packed = [zlib.compress(bytes(size)) for size in (1 << 20, 16 << 20, (16 << 20) + 1, 64 << 20)]
    good = [header + zlib.compress(b"\2a"), bytes([3, 0]) + bytes(16) + b"\2b"]

    def bomb() -> bytes:
        data = bytearray(header + random.choice(packed))
        match random.randrange(6):
            case 0:
                del data[random.randrange(len(data)) :]
            case 1:
                data[random.randrange(len(data))] ^= 1 << random.randrange(8)
            case 2:
                data += random.randbytes(9)
        return bytes(data)

    def attempt() -> dict[str, int]:
        rows = [each for _ in range(random.randint(1, 30)) for each in (*good, bomb())]
        frames = find_glue_frames(pa.array(rows))
        for place, message in ((0, b"\2a"), (1, b"\2b")):
            for row in range(place, len(rows), 3):
                assert row not in frames.errors
                assert frames.column[row].as_py()[HEADER_BYTES:] == message
        assert frames.column.nbytes < 300 << 20
        return {"same": 1, "bad_rows": len(frames.errors)}

    yield attempt


def _name() -> str:
    return "".join(random.choices([*MARKUP, hostile_text(), "\ud800", '"', "\\", "x"], k=random.randint(0, 4)))


def _measurement(batch: int, name: str, other: str) -> Measurement:
    spool = SpoolMeasurement(other, (name,), 1, 2, 3, 4, 5, 6)
    sources = (
        SourceMeasurement(other, 1, 2, 3, {name: PartitionLag(2, 3)}),
        SourceMeasurement("spool", 1, 2, 3, {other: PartitionLag(2, 3)}, spool),
    )
    return Measurement(1_700_000_000_000 + batch, f"q{name}", "r", name, batch, 6, 250, 8.0, sources)


@contextmanager
def lines(folder: Path) -> Iterator[Attempt]:
    """Names and errors in an observer's lines, and on the screen of ``connectors watch``: text, and no other line."""
    source = folder / "lines.jsonl"

    def attempt() -> dict[str, int]:
        name, other = _name(), _name()
        source.unlink(missing_ok=True)
        file = LineFile(source)
        events = [_measurement(number, name, other).to_json() for number in range(2)]
        common = {"v": 1, "event": "terminated", "time_ms": 1_700_000_000_009, "query": f"q{name}", "run": "r"}
        for event in (*events, {**common, "exception": _name()}):
            file.write(event)
        file.close()
        assert [json.loads(line)["v"] for line in source.read_bytes().split(b"\n")[:-1]] == [1, 1, 1]
        done = CliRunner().invoke(app, ["watch", "--once", str(source)], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        assert_clean(done.output)
        return SAME

    yield attempt


@contextmanager
def observer(_folder: Path) -> Iterator[Attempt]:
    """Names in metrics, and clients that are slow, half open, or send without end: the next one gets all metrics."""
    exporter = Exporter(0)
    exporter.update(_measurement(1, "good", "good"))
    place = ("127.0.0.1", int(exporter.url.split(":")[2].split("/")[0]))
    said = [
        b"",
        b"GET",
        b"GET / HTTP/1.1\r\nX: y\r\n",
        b"A" * 100_000,
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n",
    ]

    def attempt() -> dict[str, int]:
        name = _name()
        exporter.update(_measurement(1, name, _name()))
        with ExitStack() as stack:
            for _ in range(random.randint(0, 60)):
                client = stack.enter_context(socket.create_connection(place, 10))
                try:
                    client.sendall(random.choice([*said, random.randbytes(50)]))
                except OSError:
                    continue  # it was cut off
            request = urllib.request.Request(exporter.url, headers={"Accept": "application/openmetrics-text"})
            with urllib.request.urlopen(request, timeout=20) as response:
                found = {labels["query"] for _, labels, _ in samples_of(response.read().decode())}
        assert {"good", name.encode(errors="backslashreplace").decode() or f"q{name}"} <= found
        exporter.end(f"q{name}", failed=False)
        assert threading.active_count() < 100
        return SAME

    yield attempt
    exporter.close()


BULK = {
    "kpl_bulk": Kind("aggregates of the KPL full of one thing", kpl_bulk),
    "protobuf_bulk": Kind("messages of protobuf that grow, nest or repeat", protobuf_bulk),
    "glue_bulk": Kind("frames of Glue that decompress to much", glue_bulk),
    "lines": Kind("names in the lines of an observer", lines),
    "observer": Kind("names and clients of the metrics endpoint", observer),
}
