"""Sealed files, segments: the sealed files that hold fetched rows, and what tasks read of them (R1, R9 and R10).

A sealed file is sections of bytes, then a footer (JSON) that names each with its checksum, then a tail of 32 bytes:
checksum of the footer (16 hexadecimal digits), length of the footer, format version, magic of the kind. The checksum of
the footer covers those of all sections, so it is the digest by which the ledger recognises the file. The one checksum
of the spool is XXH3 with 64 bits. It detects damage, not an editor with intent.

A segment begins as an Arrow IPC stream, which any Arrow reader can open:

    schema message | block | block | ... | end of stream | index | footer | tail

The schema message carries the version of the rows' schema. A *block* is one Arrow record batch message, some MB long.
The *index* is an Arrow IPC stream of one batch: the key and the bytes of each row. Footer and index are checked when a
segment is admitted, and each block when it is read.
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from connectors.core.errors import SpoolDamagedError
from connectors.core.processes.failpoints import failpoint
from connectors.spool.errors import other_version, reading_errors
from connectors.spool.segments.id_keys import HASH_BYTES, HASH_TYPE, IdKeys, numbers_only
from connectors.spool.segments.rows import Projection, RowSchema
from connectors.spool.segments.shapes import is_time_range, misfit
from connectors.spool.store import open_store
from connectors.spool.store.base import Pieces, Store, StoreAccess

if TYPE_CHECKING:
    from typing_extensions import Buffer

FORMAT_VERSION = 1
_TAIL = struct.Struct("<16sII8s")

PublishTimes = tuple[int, int] | None
"""Lowest and highest publish time of some messages, microseconds since 1970; None if it is not known."""


def published_of(value: Sequence[int] | None) -> PublishTimes:
    return None if value is None else (value[0], value[1])


def wider(one: PublishTimes, other: PublishTimes) -> PublishTimes:
    if one is None or other is None:
        return other if one is None else one
    return min(one[0], other[0]), max(one[1], other[1])


def checksum(*parts: Buffer) -> str:
    """Return the checksum of some buffers, one after the other, as 16 hexadecimal digits."""
    if len(parts) == 1:
        return f"{xxhash.xxh3_64_intdigest(parts[0]):016x}"
    running = xxhash.xxh3_64()
    for part in parts:
        running.update(part)
    return running.hexdigest()


_FOOTER = {"v": int, "sections": [{"kind": str, "offset": int, "length": int, "checksum": str, "rows?": int}]}


@dataclass(frozen=True, slots=True)
class SealedKind:
    """A kind of sealed file: the last 8 bytes of its files, and what its errors say.

    `damaged` and `version` are the codes of its errors, `stake` is what is lost with a file. All of a `whole` file is
    read when it is opened.
    """

    magic: bytes
    label: str
    damaged: str
    version: str
    stake: str
    shape: Mapping[str, Any]
    whole: bool = True


class SealedWriter:
    """A sealed file that is being written under a temporary name; a context manager that discards it at its end."""

    def __init__(self, store: Store, name: str, kind: SealedKind) -> None:
        self._kind = kind
        self._sections: list[dict[str, Any]] = []
        self._name = name
        self._file = store.writer(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def section(self, kind: str, data: Buffer, **more: int) -> None:
        """Append a section; its entry in the footer gets `more`."""
        view = memoryview(data).cast("B")
        offset = self._file.length
        self._file.write(view)
        self._sections.append({"kind": kind, "offset": offset, "length": len(view), "checksum": checksum(view), **more})

    def publish(self, fields: dict[str, Any]) -> str:
        """Write the footer with these fields and publish the file; return its digest.

        OSError: nothing was published. FileExistsError: the name is taken.
        """
        footer = {"v": FORMAT_VERSION, **fields, "sections": self._sections}
        text = json.dumps(footer, sort_keys=True, separators=(",", ":")).encode()
        digest = checksum(text)
        self._file.write(text)
        self._file.write(_TAIL.pack(digest.encode(), len(text), FORMAT_VERSION, self._kind.magic))
        published = self._file.publish()
        self._file.discard()
        if not published:
            raise FileExistsError(self._name)
        return digest

    def discard(self) -> None:
        self._file.discard()


class SealedReader:
    """A sealed file; its footer is checked when it is opened, a section when it is read.

    Raises `SpoolDamagedError` if it is missing or damaged, or its digest is not the one of the ledger (None: any), and
    `SpoolVersionError` if another version has written it.
    """

    def __init__(self, store: Store, name: str, kind: SealedKind, digest: str | None) -> None:
        self._kind = kind
        self.where = f"{store.root}/{name}"
        try:
            self.data: Pieces = store.map(name) if kind.whole else store.pieces(name)
        except FileNotFoundError:
            self.damaged("is missing")
        self.footer, self.digest = self._read_footer()
        if digest is not None and digest != self.digest:
            self.damaged("is not the one that the ledger names")
        self.sections: list[dict[str, Any]] = self.footer["sections"]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [section for section in self.sections if section["kind"] == kind]

    def checked(self, section: dict[str, Any]) -> memoryview:
        try:
            view = self.data[section["offset"] : section["offset"] + section["length"]]
        except FileNotFoundError:
            self.damaged("is missing")
        if checksum(view) != section["checksum"]:
            self.damaged(f"has a wrong checksum in its {section['kind']} at byte {section['offset']}")
        return view

    def verify(self) -> None:
        for section in self.sections:
            self.checked(section)

    def damaged(self, what: str) -> NoReturn:
        kind = self._kind
        raise SpoolDamagedError(kind.damaged, f"{kind.label} {what}; {kind.stake}", self.where) from None

    def _read_footer(self) -> tuple[dict[str, Any], str]:
        end = len(self.data) - _TAIL.size
        if end < 0:
            self.damaged("is too short")
        digest, length, version, magic = _TAIL.unpack(self.data[end:])
        if magic != self._kind.magic:
            self.damaged("does not end as it should")
        if version != FORMAT_VERSION:
            kind = self._kind
            raise other_version(kind.version, kind.label, version, FORMAT_VERSION, self.where)
        text = self.data[max(end - length, 0) : end]
        actual = checksum(text)
        if actual.encode() != digest:
            self.damaged("has a footer with a wrong checksum")
        try:
            footer: dict[str, Any] = json.loads(bytes(text))
        except (ValueError, RecursionError):
            self.damaged("has a footer that is not JSON")
        if part := misfit(footer, {**_FOOTER, **self._kind.shape}):
            self.damaged(f"has a footer with a right checksum and a wrong value: {part}")
        starts = [section["offset"] for section in footer["sections"]]
        ends = [section["offset"] + section["length"] for section in footer["sections"]]
        if [*starts, end - length] != [0, *ends]:
            self.damaged("has sections that do not fill it")
        return footer, actual


SEGMENT = SealedKind(
    b"SPOOLSEG",
    "A segment",
    "SPOOL_SEGMENT_DAMAGED",
    "SPOOL_SEGMENT_VERSION",
    "its rows were acked, so this may be their only copy",
    {
        "spool": str,
        "fetcher": str,
        "number": int,
        "source": int,
        "rows": int,
        "bytes": int,
        "published": is_time_range,
        "counters": {"*": int},
        "notes?": list,
    },
    whole=False,
)
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"

Sizes = npt.NDArray[np.int64]
"""Bytes of each row: payload, attributes and ordering key."""


def segment_name(fetcher: str, number: int) -> str:
    """Return the name of a segment in the store; the numbers of a fetcher count from 0 without gaps."""
    return f"inbox/{fetcher}/{number}.arrow"


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A segment, as its footer describes it.

    `number` counts the segments of a fetcher from 0; `source` is an index in the spool's list of sources; `bytes` is
    the sum of the sizes of the rows.
    """

    fetcher: str
    number: int
    source: int
    rows: int
    bytes: int
    published: PublishTimes
    digest: str
    counters: dict[str, int]

    @classmethod
    def of_footer(cls, footer: Mapping[str, Any], digest: str) -> Self:
        values = {name: footer[name] for name in cls.__slots__ if name != "digest"}
        return cls(**{**values, "published": published_of(footer["published"]), "digest": digest})

    @property
    def name(self) -> str:
        return segment_name(self.fetcher, self.number)


class SegmentWriter:
    """A segment that is being written; nothing of it can be seen before `publish`.

    `compression` is that of the blocks as Arrow IPC calls it, empty for none; the other arguments are as in the footer.
    """

    def __init__(
        self,
        store: Store,
        spool: str,
        fetcher: str,
        number: int,
        schema: pa.Schema,
        source: int = 0,
        *,
        compression: str = "",
    ) -> None:
        self._about: dict[str, Any] = {"spool": spool, "fetcher": fetcher, "number": number, "source": source}
        self._name = segment_name(fetcher, number)
        self._compression = compression
        self._keys: list[IdKeys] = []
        self._sizes: list[Sizes] = []
        self._published: PublishTimes = None
        self._counters: dict[str, int] = {}
        self._notes: list[Any] = []
        self.rows = 0
        self.bytes = 0
        self._file = SealedWriter(store, self._name, SEGMENT)
        self._file.section("schema", schema.serialize())

    def append(
        self,
        rows: pa.RecordBatch,
        keys: IdKeys,
        sizes: Sizes,
        published: PublishTimes,
        counters: dict[str, int] | None = None,
        notes: Sequence[Any] = (),
    ) -> None:
        """Append one block; `notes` are JSON values of the connector for the footer.

        After an `OSError` the segment can only be discarded.
        """
        failpoint("segment.before_append")
        self._file.section("block", _message(rows, self._compression), rows=len(rows))
        self._keys.append(keys)
        self._sizes.append(sizes)
        self.rows += len(rows)
        self.bytes += int(sizes.sum())
        self._published = wider(self._published, published)
        for name, count in (counters or {}).items():
            self._counters[name] = self._counters.get(name, 0) + count
        self._notes += notes

    def publish(self) -> SegmentInfo:
        """Finish the file and publish it durably.

        OSError: nothing was published. FileNotFoundError: the fetcher's folder is gone, it was given up (rule R2).
        """
        footer = self._about | {
            "rows": self.rows,
            "bytes": self.bytes,
            "published": self._published,
            "counters": self._counters,
        }
        if self._notes:
            footer["notes"] = self._notes
        self._file.section("end", _END_OF_STREAM)
        self._file.section("index", _index_stream(IdKeys.concatenate(self._keys), self._sizes))
        try:
            digest = self._file.publish(footer)
        except FileExistsError:
            what = "A segment of this name exists already"
            raise SpoolDamagedError("SPOOL_SEGMENT_EXISTS", what, self._name) from None
        return SegmentInfo.of_footer(footer, digest)

    def discard(self) -> None:
        self._file.discard()


class SegmentReader:
    """A published segment; `digest` is that of the ledger, None at admission. Raises as `SealedReader`."""

    def __init__(self, store: Store, name: str, digest: str | None = None) -> None:
        self._file = SealedReader(store, name, SEGMENT, digest)
        footer = self._file.footer
        self.spool: str = footer["spool"]
        self.notes: list[Any] = footer.get("notes", [])
        self.info = SegmentInfo.of_footer(footer, self._file.digest)
        if self.info.name != name:
            self._file.damaged(f"says that it is {self.info.name}")
        if sum(section.get("rows", 0) for section in self._file.of_kind("block")) != self.info.rows:
            self._file.damaged("has blocks with other rows than it says")

    def index(self) -> tuple[IdKeys, Sizes]:
        (section,) = self._file.of_kind("index")
        with self._named("an index"):
            table = pa.ipc.open_stream(pa.py_buffer(self._file.checked(section))).read_all()
            table.validate(full=True)
            _check_index(table.schema)
        if len(table) != self.info.rows:
            self._file.damaged("has an index of other rows than it says")
        numbers = table["number"].to_numpy()
        sizes = table["bytes"].to_numpy().astype(np.int64)
        if "hash" not in table.column_names:
            return numbers_only(numbers), sizes
        column = table["hash"].combine_chunks()
        hash_rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        return IdKeys(numbers, hash_rows, np.array(column.drop_null().to_pylist(), HASH_TYPE)), sizes

    def check_rows(self, wanted: RowSchema) -> None:
        """Raise `SpoolVersionError` or `SpoolDamagedError` if the rows cannot be read as this schema has them."""
        self._schema(wanted)

    def batches(self, first: int, end: int, wanted: RowSchema | None = None) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows from index `first` to before `end` as batches, each with the index of its first row.

        Their columns are those that are wanted, or without that those that are stored. Every block is checked before
        its rows are yielded; memory is mapped, not copied. Raises `SpoolVersionError` if another version has written
        rows that the wanted schema cannot have.
        """
        schema, projection = self._schema(wanted)
        start = 0
        for section in self._file.of_kind("block"):
            rows = section["rows"]
            low, high = max(first, start), min(end, start + rows)
            if low < high:
                with self._named("a block"):
                    message = pa.ipc.read_message(pa.py_buffer(self._file.checked(section)))
                    batch = pa.ipc.read_record_batch(message, schema)
                    batch.validate(full=True)
                if len(batch) != rows:
                    self._file.damaged("has a block of other rows than it says")
                part = batch.slice(low - start, high - low)
                yield low, part if projection is None else projection(part)
            start += rows

    def _schema(self, wanted: RowSchema | None) -> tuple[pa.Schema, Projection | None]:
        (section,) = self._file.of_kind("schema")
        with self._named("a schema"):
            schema = _parsed_schema(bytes(self._file.checked(section)))
            projection = None if wanted is None else wanted.projection(schema, self._file.where)
        return schema if wanted is None or projection else wanted.columns, projection

    @contextlib.contextmanager
    def _named(self, part: str) -> Iterator[None]:
        """Name what Arrow cannot read: a wrong offset would end the process, a wrong length ask for all its memory."""
        try:
            yield
        except (pa.ArrowException, ValueError, MemoryError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # of the disk
                raise
            self._file.damaged(f"has {part} that is not valid: {str(error)[:200]}")

    def verify(self) -> None:
        self._file.verify()


@dataclass(frozen=True, slots=True)
class Slice:
    """A run of rows of one segment, for a task.

    Attributes:
        source: index of its source in the spool's list.
        first_row, end_row: row indexes in the segment, end excluded.
        position: position of the first row that is not a duplicate.
        rows: how many rows are no duplicates.
        row_mask: which rows these are, packed bits; None if all are.
    """

    segment: str
    digest: str
    source: int
    first_row: int
    end_row: int
    position: int
    rows: int
    row_mask: bytes | None


@dataclass(frozen=True, slots=True)
class SpoolRows:
    """Some rows of a segment without duplicates, with consecutive positions from `position` on.

    `source` is the index of their source in the spool's list of sources.
    """

    rows: pa.RecordBatch
    position: int
    source: int

    def with_columns(self, texts: Mapping[str, str]) -> pa.RecordBatch:
        """Return the rows with columns of one text each, and at last ``offset``."""
        first, count = self.position, len(self.rows)
        columns = [
            *self.rows.columns,
            *(pa.repeat(pa.scalar(text, pa.string()), count) for text in texts.values()),
            pa.array(np.arange(first, first + count, dtype=np.int64)),
        ]
        return pa.RecordBatch.from_arrays(columns, names=[*self.rows.schema.names, *texts, "offset"])


def read_slices(
    root: str, slices: Sequence[Slice], access: StoreAccess | None = None, wanted: RowSchema | None = None
) -> Iterator[SpoolRows]:
    """Read the rows of a partition, in order, with the columns that are wanted, or else those that are stored.

    Raises `SpoolVersionError` if a newer version has written them, `SpoolError` if this machine cannot see the spool or
    may not read it, `SpoolDamagedError` if a segment is missing, damaged, or not the one that the ledger admitted.
    """
    store = open_store(root, "reader", access)
    with reading_errors(root):
        store.check_visible()
        for part in slices:
            reader = SegmentReader(store, part.segment, part.digest)
            mask: npt.NDArray[np.bool_] | None = None
            if part.row_mask is not None:
                bits = np.frombuffer(part.row_mask, np.uint8)
                mask = np.unpackbits(bits, count=part.end_row - part.first_row).astype(np.bool_)
            position = part.position
            for first, batch in reader.batches(part.first_row, part.end_row, wanted):
                low = first - part.first_row
                rows = batch if mask is None else batch.filter(pa.array(mask[low : low + len(batch)]))
                if len(rows):
                    yield SpoolRows(rows, position, part.source)
                position += len(rows)


@lru_cache(maxsize=16)
def _parsed_schema(data: bytes) -> pa.Schema:
    """Return the schema of a schema message; most segments of a spool have the same one."""
    schema = pa.ipc.read_schema(pa.py_buffer(data))
    _ = schema.names  # which may be no UTF-8
    return schema


def _message(rows: pa.RecordBatch, compression: str) -> pa.Buffer:
    """Return a record batch message of Arrow IPC, which itself states its compression."""
    if not compression:
        return rows.serialize()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as stream:
        # The schema message is written with the first batch.
        stream.write_batch(rows.slice(0, 0))
        begin = sink.tell()
        stream.write_batch(rows)
        length = sink.tell() - begin
    return sink.getvalue().slice(begin, length)


def _check_index(schema: pa.Schema) -> None:
    types = {"number": pa.uint64(), "bytes": pa.uint32(), "hash": pa.binary(HASH_BYTES)}
    names = schema.names
    if names not in (["number", "bytes"], ["number", "bytes", "hash"]) or schema.types != [
        types[name] for name in names
    ]:
        raise ValueError("it has other columns")


def _index_stream(keys: IdKeys, sizes: list[Sizes]) -> pa.Buffer:
    columns: dict[str, pa.Array] = {
        "number": pa.array(keys.numbers),
        "bytes": pa.array(np.concatenate([np.empty(0, np.int64), *sizes]).astype(np.uint32)),
    }
    if len(keys.hashes):
        hashed = np.zeros(len(keys), np.bool_)
        hashed[keys.hash_rows] = True
        padded = np.full(len(keys), b"", HASH_TYPE)
        padded[keys.hash_rows] = keys.hashes
        kind = pa.binary(HASH_BYTES)
        present = pa.py_buffer(np.packbits(hashed, bitorder="little").tobytes())
        columns["hash"] = pa.FixedSizeBinaryArray.from_buffers(
            kind, len(keys), [present, pa.py_buffer(padded.tobytes())]
        )
    batch = pa.record_batch(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()
