"""A spool with files of every kind, and what hands, bugs and attackers do to its files."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from connectors.spool.ledger.recovery import open_ledger
from connectors.spool.segments.segment import checksum
from connectors.spool.stream.compaction import Compaction, CompactionSettings
from tests.support.alterations import alterations, json_text
from tests.support.spool_writing import HandSpool

TAIL = struct.Struct("<16sII8s")
FIRST_ID = 16_000_000_000_000_000
FOREIGN_NAMES = ("²", "٣", "1_0", "+1", " 1", "1" * 200, "x", "0x1")


def lived_in(root: Path) -> HandSpool:
    """A spool with files of every kind, two epochs, freed segments, and one segment that is not admitted yet."""
    made = HandSpool(root)
    ledger = made.open()
    compaction = Compaction(ledger, CompactionSettings(free_segments=1, merge=9))
    for batch in range(6):
        made.write([str(FIRST_ID + 3 * batch + number) for number in range(3)])
        ledger.admit()
        ledger.commit(ledger.state.head)
        compaction.step()
    ledger = made.open()
    for batch in range(2):
        made.write([f"{batch}-a", f"{batch}-b", f"{batch}-c"])
        ledger.admit()
    made.write(["late"], fetcher="f1")
    return made


def live_files(spool: HandSpool) -> list[str]:
    """The files that decide what comes out; records and claims below the newest snapshot are history."""
    names = [name for name in spool.files() if not name.startswith("ledger/1/") and name != "epochs/1"]
    assert {name.split("/")[0] for name in names} == {"spool.json", "epochs", "inbox", "ids", "ledger", "manifests"}
    return names


def use(spool: HandSpool) -> list[str]:
    """Do all that a query does: open, admit, read every row that is kept."""
    spool.ledger = open_ledger(spool.store, spool.identity())
    spool.ledger.admit()
    return spool.all_ids()


def restore(spool: HandSpool, before: Mapping[str, bytes]) -> None:
    found = spool.files()
    for name in found.keys() - before.keys():
        (spool.root / name).unlink()
    for name, data in before.items():
        if found.get(name) != data:
            write_file(spool.root / name, data)


def write_file(path: Path, data: bytes | None) -> None:
    path.unlink(missing_ok=True)
    if data is not None:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)


def resealed(name: str, data: bytes, alter: Callable[[Any], Any]) -> bytes:
    """A file with altered JSON and right checksums, as somebody who can write to the spool could make it."""
    if not name.startswith(("inbox/", "ids/", "manifests/")):
        text = json_text(alter(json.loads(data.splitlines()[0]))).encode()
        return text + b"\n" + checksum(text).encode() + b"\n"
    _, length, version, magic = TAIL.unpack(data[-TAIL.size :])
    body, footer = data[: -TAIL.size - length], data[-TAIL.size - length : -TAIL.size]
    text = json_text(alter(json.loads(footer))).encode()
    return body + text + TAIL.pack(checksum(text).encode(), len(text), version, magic)


def altered_values(files: Mapping[str, bytes]) -> list[tuple[str, str, Any]]:
    """Each alteration of the JSON in each file: its name, what is done, and the JSON for `resealed`."""
    cases: list[tuple[str, str, Any]] = []
    for name, data in files.items():
        values: list[Any] = []
        resealed(name, data, lambda value, values=values: values.append(value) or value)
        cases += [(name, *each) for each in alterations(values[0])]
    return cases


def add_foreign_names(root: Path) -> None:
    """Put files whose names are no numbers of ours into each folder of a spool."""
    for folder in ("epochs", "ledger", "ledger/2", "inbox/f0", "inbox/f1", "quarantine"):
        (root / folder).mkdir(exist_ok=True)
        for name in FOREIGN_NAMES:
            (root / folder / (f"{name}.arrow" if folder.startswith("inbox") else name)).write_bytes(b"x")


def with_altered_section(data: bytes, kind: str) -> bytes:
    """Some bytes of a section replaced, under right checksums, as who can write to the spool could do it."""
    _, length, version, magic = TAIL.unpack(data[-TAIL.size :])
    footer = json.loads(data[-TAIL.size - length : -TAIL.size])
    body = bytearray(data[: -TAIL.size - length])
    section = random.choice([section for section in footer["sections"] if section["kind"] == kind])
    for _ in range(random.randint(1, 3)):
        at = section["offset"] + 4 * random.randrange(section["length"] // 4)
        body[at : at + 4] = random.choice([b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\xff" * 4, random.randbytes(4)])
    begin = section["offset"]
    section["checksum"] = checksum(bytes(body[begin : begin + section["length"]]))
    text = json.dumps(footer, sort_keys=True, separators=(",", ":")).encode()
    return bytes(body) + text + TAIL.pack(checksum(text).encode(), len(text), version, magic)


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail what takes longer, as an `open` of a pipe does."""

    def late(*_: object) -> None:
        raise TimeoutError("It waits")

    previous = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
