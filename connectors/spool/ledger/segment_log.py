"""The segments that were admitted and not freed, and the manifests that hold them on disk.

A spool may hold a million segments. So a snapshot only names *manifests*: sealed files, written once, with an Arrow
record batch of some thousand entries. Segments are admitted and freed in one order: new ones come into a manifest at
the end, a manifest goes when all of it is freed, and a number says where the others begin.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import re
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from connectors.core.errors import SpoolDamagedError
from connectors.core.processes.failpoints import failpoint
from connectors.spool.errors import record_damaged
from connectors.spool.ledger.records import ENTRY
from connectors.spool.segments.dedup_index import Mask
from connectors.spool.segments.segment import (
    PublishTimes,
    SealedKind,
    SealedReader,
    SealedWriter,
    SegmentInfo,
    Sizes,
    published_of,
    segment_name,
)
from connectors.spool.segments.shapes import misfit, whole
from connectors.spool.store.base import Store

MANIFEST_FOLDER: Final = "manifests"
MANIFEST: Final = SealedKind(
    b"SPOOLMAN",
    "A manifest of the ledger",
    "SPOOL_RECORD_DAMAGED",
    "SPOOL_RECORD_VERSION",
    "without it, it is unknown which rows are in the spool",
    {"spool": str, **dict.fromkeys(("first", "base", "bytes_before"), int)},
)
MOST_ENTRIES = 8192
"""Of one manifest: a million segments have some hundred manifests, of less than 1 MB each."""
_READERS = 16
_SEGMENT = re.compile(r"inbox/([^/]+)/([0-9]{1,18})\.arrow")

_NUMBERS = ("number", "source", "rows", "kept", "bytes")
_SAME = ("fetcher", "number", "source", "rows", "bytes", "digest")
"""The columns that are attributes of an entry."""
_ON_DISK = {"admitted_rows": "kept", "duplicate_mask": "struck"}
"""Attributes of an entry that have another name on disk."""
COLUMNS = pa.schema(
    [
        pa.field("fetcher", pa.string(), nullable=False),
        *(pa.field(name, pa.int64(), nullable=False) for name in _NUMBERS),
        pa.field("digest", pa.string(), nullable=False),
        pa.field("published_first", pa.int64()),
        pa.field("published_last", pa.int64()),
        pa.field("struck", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """An admitted segment.

    Attributes:
        fetcher, number, source, rows, published: as in its footer.
        digest: of the file; empty if it was quarantined: its rows keep their positions and are gone (rule R9).
        admitted_rows, bytes: rows that are no duplicates, and their bytes; on disk the first is ``kept``.
        duplicate_mask: which rows are duplicates, packed by `_pack_mask`; None if none is; on disk ``struck``.
        base: position of its first row.
        bytes_before, ordinal: bytes of all rows, and number of all segments, that were admitted before it.
    """

    fetcher: str
    number: int
    source: int
    rows: int
    digest: str
    published: PublishTimes
    admitted_rows: int
    bytes: int
    duplicate_mask: str | None = None
    base: int = 0
    bytes_before: int = 0
    ordinal: int = 0

    @property
    def name(self) -> str:
        return segment_name(self.fetcher, self.number)

    @property
    def end(self) -> int:
        return self.base + self.admitted_rows

    @property
    def quarantined(self) -> bool:
        """Whether its rows are recorded as empty."""
        return not self.digest

    @classmethod
    def admitted(cls, info: SegmentInfo, duplicates: Mask, admitted_bytes: int) -> SegmentEntry:
        same = {name: getattr(info, name) for name in ("fetcher", "number", "source", "rows", "digest", "published")}
        count = int(np.count_nonzero(duplicates))
        mask = _pack_mask(duplicates) if count else None
        return cls(**same, admitted_rows=info.rows - count, bytes=admitted_bytes, duplicate_mask=mask)

    def to_json(self) -> dict[str, Any]:
        value = {name: getattr(self, name) for name in self.__slots__}
        return {_ON_DISK.get(name, name): part for name, part in value.items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SegmentEntry:
        if part := misfit(value, ENTRY):
            raise record_damaged(f"An entry of the ledger has a right checksum and a wrong value: {part}", "a segment")
        fields = {name: value[_ON_DISK.get(name, name)] for name in cls.__slots__}
        return cls(**{**fields, "published": published_of(value["published"])})


class LogOffset(NamedTuple):
    """How many segments, rows and bytes of rows were admitted before a segment."""

    ordinal: int
    position: int
    bytes: int


class Manifest:
    """Consecutive segments as columns; an entry is decoded when it is used.

    Attributes:
        name, digest: of its file; empty before it is written.
    """

    def __init__(self, begin: LogOffset, columns: pa.RecordBatch, name: str = "", digest: str = "") -> None:
        self.name, self.digest = name, digest
        self.begin = begin
        self._columns = columns
        self._bases = _running(begin.position, columns.column("kept"))
        self._bytes = _running(begin.bytes, columns.column("bytes"))
        self._decoded: dict[int, SegmentEntry] = {}

    @classmethod
    def of(cls, entries: Sequence[SegmentEntry]) -> Manifest:
        """Return a manifest of some consecutive segments, which is not written yet."""
        times = [entry.published or (None, None) for entry in entries]
        values = {
            **{name: [getattr(entry, name) for entry in entries] for name in _SAME},
            **{column: [getattr(entry, name) for entry in entries] for name, column in _ON_DISK.items()},
            "published_first": [first for first, _ in times],
            "published_last": [last for _, last in times],
        }
        begin = LogOffset(entries[0].ordinal, entries[0].base, entries[0].bytes_before)
        return cls(begin, pa.record_batch([pa.array(values[field.name], field.type) for field in COLUMNS], COLUMNS))

    @property
    def end(self) -> LogOffset:
        return self.offset(len(self._columns))

    def offset(self, index: int) -> LogOffset:
        return LogOffset(self.begin.ordinal + index, int(self._bases[index]), int(self._bytes[index]))

    def entry(self, index: int) -> SegmentEntry:
        entry = self._decoded.get(index)
        if entry is None:
            value = {name: self._columns.column(name)[index].as_py() for name in COLUMNS.names}
            first, last = value.pop("published_first"), value.pop("published_last")
            value |= {name: value.pop(column) for name, column in _ON_DISK.items()}
            published = None if first is None else (first, last)
            ordinal, base, before = self.offset(index)
            entry = SegmentEntry(**value, published=published, base=base, bytes_before=before, ordinal=ordinal)
            self._decoded[index] = entry
        return entry

    def numbered(self, number: int) -> list[int]:
        return np.flatnonzero(self._columns.column("number").to_numpy() == number).tolist()

    def fetchers(self, first: int) -> set[str]:
        return set(self._columns.column("fetcher").slice(first).unique().to_pylist())

    def joined(self, first: int, following: Manifest) -> Manifest:
        batches = [self._columns.slice(first), following._columns]
        [columns] = pa.Table.from_batches(batches).combine_chunks().to_batches()
        return Manifest(self.offset(first), columns)

    def quarantined(self, index: int) -> Manifest:
        digests = self._columns.column("digest").to_pylist()
        digests[index] = ""
        at = COLUMNS.get_field_index("digest")
        columns = self._columns.set_column(at, COLUMNS.field(at), pa.array(digests, pa.string()))
        return Manifest(self.begin, columns)

    def write(self, store: Store, spool: str, name: str) -> None:
        """Write it durably under a name that was never used. OSError: nothing was published."""
        failpoint("manifest.before_write")
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, COLUMNS) as stream:
            stream.write_batch(self._columns)
        ordinal, base, before = self.begin
        with SealedWriter(store, manifest_name(name), MANIFEST) as file:
            file.section("entries", sink.getvalue())
            digest = file.publish({"spool": spool, "first": ordinal, "base": base, "bytes_before": before})
        self.name, self.digest = name, digest
        failpoint("manifest.after_write")

    @classmethod
    def read(cls, store: Store, spool: str, name: str, digest: str) -> Manifest:
        """Read a manifest and check every byte; raises `FileNotFoundError` and `SpoolDamagedError`."""
        path = manifest_name(name)
        try:
            file = SealedReader(store, path, MANIFEST, digest)
        except SpoolDamagedError:
            if store.exists(path):
                raise
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
        if file.footer["spool"] != spool:
            file.damaged("belongs to another spool")
        if [section["kind"] for section in file.sections] != ["entries"]:
            file.damaged("has other sections than a manifest")
        manifest = None
        with contextlib.suppress(pa.ArrowException, ValueError):
            manifest = cls._decoded_from(file.checked(file.sections[0]), file.footer, name, file.digest)
        if manifest is None:
            file.damaged("has a right checksum and wrong values")
        return manifest

    @classmethod
    def _decoded_from(cls, data: memoryview, footer: Mapping[str, Any], name: str, digest: str) -> Manifest | None:
        """Return the manifest of an Arrow stream and a footer; None, or ValueError, if that is not a manifest."""
        with pa.ipc.open_stream(bytes(data)) as stream:
            [columns] = list(stream)
        columns.validate(full=True)
        if not columns.schema.equals(COLUMNS) or not _fits(columns):
            return None
        manifest = cls(LogOffset(footer["first"], footer["base"], footer["bytes_before"]), columns, name, digest)
        ascend = all(np.all(sums[1:] >= sums[:-1]) for sums in (manifest._bases, manifest._bytes))
        return manifest if ascend else None


class SegmentLog(Sequence[SegmentEntry]):
    """The segments that were admitted and not freed, in order: in manifests, and those that no snapshot has named yet.

    A log never changes; its methods return others, which share the manifests.

    Attributes:
        first: the ordinal of the oldest; of the next one to come if there is none.
    """

    def __init__(self, entries: Iterable[SegmentEntry] = (), *, first: int = 0) -> None:
        self._recent = list(entries)
        self._manifests: Sequence[Manifest] = ()
        self.first = self._recent[0].ordinal if self._recent else first

    @classmethod
    def of_manifests(cls, manifests: Sequence[Manifest], first: int, recent: Sequence[SegmentEntry] = ()) -> SegmentLog:
        log = cls(recent)
        log._manifests, log.first = tuple(manifests), first
        return log

    def __len__(self) -> int:
        return self._recent_first + len(self._recent) - self.first

    @overload
    def __getitem__(self, index: int) -> SegmentEntry: ...
    @overload
    def __getitem__(self, index: slice) -> list[SegmentEntry]: ...
    def __getitem__(self, index: int | slice) -> SegmentEntry | list[SegmentEntry]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        ordinal = self.first + range(len(self))[index]
        if ordinal >= self._recent_first:
            return self._recent[ordinal - self._recent_first]
        manifest = self._manifests[self._manifest_of(ordinal)]
        return manifest.entry(ordinal - manifest.begin.ordinal)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SegmentLog | list) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def appended(self, entries: Sequence[SegmentEntry]) -> SegmentLog:
        first = self.first if len(self) or not entries else entries[0].ordinal
        return SegmentLog.of_manifests(self._manifests, first, [*self._recent, *entries])

    def from_ordinal(self, ordinal: int) -> SegmentLog:
        manifests = [manifest for manifest in self._manifests if manifest.end.ordinal > ordinal]
        recent = self._recent if manifests else self._recent[max(ordinal - self._recent_first, 0) :]
        return SegmentLog.of_manifests(manifests, ordinal, recent)

    def quarantined(self, ordinal: int) -> SegmentLog:
        manifests, recent = list(self._manifests), list(self._recent)
        if ordinal >= self._recent_first:
            index = ordinal - self._recent_first
            recent[index] = replace(recent[index], digest="")
        else:
            at = self._manifest_of(ordinal)
            manifests[at] = manifests[at].quarantined(ordinal - manifests[at].begin.ordinal)
        return SegmentLog.of_manifests(manifests, self.first, recent)

    def find(self, name: str) -> SegmentEntry | None:
        match = _SEGMENT.fullmatch(name)
        if match is None:
            return None
        candidates = (m.entry(index) for m in self._manifests for index in m.numbered(int(match[2])))
        same_name = (entry for part in (candidates, self._recent) for entry in part if entry.name == name)
        return next((entry for entry in same_name if entry.ordinal >= self.first), None)

    def fetchers(self) -> set[str]:
        names = {entry.fetcher for entry in self._recent}
        return names.union(*(manifest.fetchers(self._freed_of(manifest)) for manifest in self._manifests))

    def folded(self, most: int = MOST_ENTRIES) -> SegmentLog:
        """Return the log with all entries in manifests; those without a name have to be written.

        New entries join the manifests before them that are no larger than they are together. So an entry is written
        some times, however many there are, and few manifests are small. One has `most` entries.
        """
        manifests = list(self._manifests)
        for begin in range(0, len(self._recent), most):
            added = Manifest.of(self._recent[begin : begin + most])
            while manifests and self._joins(manifests[-1], added, most):
                last = manifests.pop()
                added = last.joined(self._freed_of(last), added)
            manifests.append(added)
        return SegmentLog.of_manifests(manifests, self.first)

    def unwritten(self) -> list[Manifest]:
        return [manifest for manifest in self._manifests if not manifest.name]

    def manifest_names(self) -> set[str]:
        return {manifest.name for manifest in self._manifests if manifest.name}

    def to_json(self) -> list[dict[str, str]]:
        return [{"name": manifest.name, "digest": manifest.digest} for manifest in self._manifests]

    @property
    def _recent_first(self) -> int:
        return self._manifests[-1].end.ordinal if self._manifests else self.first

    def _manifest_of(self, ordinal: int) -> int:
        return bisect_right(self._manifests, ordinal, key=lambda manifest: manifest.begin.ordinal) - 1

    def _freed_of(self, manifest: Manifest) -> int:
        return max(self.first - manifest.begin.ordinal, 0)

    def _joins(self, last: Manifest, added: Manifest, most: int) -> bool:
        live = last.end.ordinal - last.begin.ordinal - self._freed_of(last)
        more = added.end.ordinal - added.begin.ordinal
        return live <= more and live + more <= most


def manifest_name(name: str) -> str:
    return f"{MANIFEST_FOLDER}/{name}"


def read_segments(store: Store, snapshot: Mapping[str, Any]) -> SegmentLog:
    """Return a snapshot's segments; raises `SpoolDamagedError`, and `FileNotFoundError` if a manifest is missing."""
    state = snapshot["state"]
    end = LogOffset(state["ordinal"], state["head"], state["bytes"])
    read = partial(Manifest.read, store, snapshot["spool"])
    names = ([manifest[key] for manifest in state["manifests"]] for key in ("name", "digest"))
    with ThreadPoolExecutor(_READERS, "connectors-manifest") as pool:
        manifests = list(pool.map(read, *names))
    log = SegmentLog.of_manifests(manifests, state["live"][0])
    offsets = [(manifest.begin, manifest.end) for manifest in manifests]
    live = tuple(state["live"])
    if not _is_dense(offsets, live, end) or (log and (log[0].ordinal, log[0].base) != live):
        raise record_damaged("The segments of a snapshot are not those that were admitted", "the newest snapshot")
    return log


def _is_dense(offsets: Sequence[tuple[LogOffset, LogOffset]], live: Sequence[int], end: LogOffset) -> bool:
    """Return whether each part begins where the one before ends, and the first one where the oldest segment is."""
    if not offsets:
        return tuple(live) == end[:2]
    begins, ends = [begin for begin, _ in offsets], [after for _, after in offsets]
    return [*begins[1:], end] == ends and begins[0].ordinal <= live[0] < ends[0].ordinal


def _running(begin: int, column: pa.Array) -> npt.NDArray[np.int64]:
    return np.concatenate([np.array([begin], np.int64), column.to_numpy()]).cumsum()


def _fits(columns: pa.RecordBatch) -> bool:
    """Return whether there are entries, numbers are in their range, and only what may be null is."""
    needed = all(field.nullable or not columns.column(field.name).null_count for field in COLUMNS)
    first, last = (_nulls(columns.column(name)) for name in ("published_first", "published_last"))
    if not len(columns) or not needed or not np.array_equal(first, last):
        return False
    numbers = [columns.column(name).to_numpy() for name in _NUMBERS]
    return all(whole(int(column.min())) and whole(int(column.max())) for column in numbers)


def _nulls(column: pa.Array) -> Mask:
    """Return which integers are null; `pa.Array.is_null` would import Arrow's functions, 30 ms of a start."""
    if not column.null_count:
        return np.zeros(len(column), np.bool_)
    values: npt.NDArray[np.float64] = column.to_numpy(zero_copy_only=False)
    return np.isnan(values)


def even_sizes(entry: SegmentEntry) -> Sizes:
    """Return bytes for each row where only their sum is known: near-equal, the larger ones first."""
    share, rest = divmod(entry.bytes, entry.admitted_rows) if entry.admitted_rows else (0, 0)
    sizes = np.full(entry.admitted_rows, share, np.int64)
    sizes[:rest] += 1
    return sizes


def _pack_mask(mask: Mask) -> str:
    return base64.b64encode(zlib.compress(np.packbits(mask).tobytes())).decode()


def unpack_mask(text: str, rows: int) -> Mask:
    try:
        bits = np.frombuffer(zlib.decompress(base64.b64decode(text, validate=True)), np.uint8)
    except (ValueError, zlib.error):
        bits = np.empty(0, np.uint8)
    if len(bits) != -(-rows // 8):
        raise record_damaged("The rows of a segment that are duplicates cannot be read", "an entry of the ledger")
    return np.unpackbits(bits, count=rows).astype(np.bool_)
