"""What the protocol driver keeps on disk: the checkpoint, digests of what batches held, and a sink.

The checkpoint has Spark's two logs, ``offsets/N`` (written before batch N runs) and ``commits/N`` (after it), each a
small text file: a version, a line of metadata, and for the offsets one line of JSON a source. In version 2 of the
offsets, which Spark writes for sources with a ``.name()``, the name and a colon stand before the JSON. Beside them
stands ``attempts/N``, which Spark does not have: the digest of what batch N held, so that a replay can be compared.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.support.spark_protocol.errors import ProtocolError

__all__ = ["Checkpoint", "FolderSink", "LostAndDoubled", "digest", "replace_file"]

_VERSION = "v1"
_NAMED_VERSION = "v2"
_NO_OFFSET = "-"
_KEPT_BATCHES = 100
"""As ``spark.sql.streaming.minBatchesToRetain``."""


def replace_file(path: Path, content: bytes) -> None:
    """Write a file under another name, then give it its name, so that a crash leaves the old or the new one.

    Nothing is fsynced: a killed process loses nothing that it wrote, and Spark's own logs do no more.
    """
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(content)
    new.rename(path)


def _canonical(table: pa.Table) -> pa.Table:
    """Equal rows in equal buffers: one chunk, nothing left over under nulls, no field metadata."""
    plain = pa.schema([field.remove_metadata() for field in table.schema])
    whole = pa.Table.from_arrays(table.columns, schema=plain).combine_chunks()
    return whole.take(pa.array(range(whole.num_rows), pa.int64())).combine_chunks()


def digest(tables: Sequence[pa.Table]) -> str:
    """A digest of the rows of a batch: which, in which order, in which partitions, with which schema."""
    answer = hashlib.blake2b(digest_size=16)
    for table in tables:
        sink = pa.BufferOutputStream()
        canonical = _canonical(table)
        with pa.ipc.new_stream(sink, canonical.schema) as writer:
            writer.write_table(canonical)
        answer.update(f"{table.num_rows};{sink.tell()};".encode())
        answer.update(memoryview(sink.getvalue()))
    return answer.hexdigest()


class Checkpoint:
    """The offset log and the commit log of a query.

    Args:
        folder: the checkpoint's folder; it is made when it is missing.
        names: the names of the sources in their order, for offsets of version 2; none for version 1.
    """

    def __init__(self, folder: Path | str, names: Sequence[str] = ()) -> None:
        self.folder = Path(folder)
        self.names = tuple(names)
        for name in ("offsets", "commits", "attempts"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)

    def _latest(self, log: str) -> int | None:
        return max((int(path.name) for path in (self.folder / log).iterdir() if path.name.isdecimal()), default=None)

    @property
    def latest_offsets(self) -> int | None:
        """The highest batch id in the offset log."""
        return self._latest("offsets")

    @property
    def latest_commit(self) -> int | None:
        """The highest batch id in the commit log."""
        return self._latest("commits")

    def offsets(self, batch_id: int) -> list[str | None]:
        """The logged end offset of each source, as JSON text; None for a source that the log does not name.

        Raises:
            ProtocolError: the log is of the other version, or names a source that the query does not have.
        """
        version, _, *lines = (self.folder / "offsets" / str(batch_id)).read_text().split("\n")
        if version != (_NAMED_VERSION if self.names else _VERSION):
            raise ProtocolError(f"the offsets of batch {batch_id} are of the version {version}")
        if self.names:
            logged = dict(line.split(":", 1) for line in lines)
            if gone := logged.keys() - set(self.names):
                raise ProtocolError(f"the checkpoint has the sources {sorted(gone)}, which the query does not have")
            lines = [logged.get(name, _NO_OFFSET) for name in self.names]
        return [None if line == _NO_OFFSET else line for line in lines]

    def log_offsets(self, batch_id: int, offsets: Sequence[str | None]) -> None:
        """Write the end offsets of a batch before it runs, and forget the log of old batches."""
        texts = [_NO_OFFSET if offset is None else offset for offset in offsets]
        lines = [_VERSION, "{}", *texts]
        if self.names:
            named = (f"{name}:{text}" for name, text in zip(self.names, texts, strict=True))
            lines = [_NAMED_VERSION, "{}", *named]
        replace_file(self.folder / "offsets" / str(batch_id), "\n".join(lines).encode())
        for log in ("offsets", "commits", "attempts"):
            (self.folder / log / str(batch_id - _KEPT_BATCHES)).unlink(missing_ok=True)

    def log_commit(self, batch_id: int) -> None:
        """Write that a batch is done."""
        replace_file(self.folder / "commits" / str(batch_id), f"{_VERSION}\n{{}}".encode())

    def attempt(self, batch_id: int) -> dict[str, Any] | None:
        """What an earlier run of a batch held: ``{"digest": text, "rows": [rows of each partition]}``, or None."""
        with contextlib.suppress(FileNotFoundError):
            found: dict[str, Any] = json.loads((self.folder / "attempts" / str(batch_id)).read_bytes())
            return found
        return None

    def log_attempt(self, batch_id: int, attempt: dict[str, Any]) -> None:
        """Write what a batch held, before the sink gets it."""
        replace_file(self.folder / "attempts" / str(batch_id), json.dumps(attempt).encode())


@dataclass(frozen=True)
class LostAndDoubled:
    """What a sink lacks and what it has too often."""

    lost: list[Any]
    """Expected values that the sink does not hold."""
    doubled: list[Any]
    """Values that the sink holds more often than expected, unexpected ones included."""


class FolderSink:
    """A sink keyed on the batch id: one Arrow file a batch, replaced as a whole when the batch is replayed.

    Args:
        folder: where the files lie; it is made when it is missing.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._counted: dict[int, tuple[tuple[int, int, int], int]] = {}
        """By batch: which file it was, and its rows."""

    def __call__(self, batch_id: int, tables: Sequence[pa.Table]) -> None:
        """Write a batch: one record batch in the file for each partition."""
        sink = pa.BufferOutputStream()
        with contextlib.ExitStack() as stack:
            writer = None
            for table in tables:
                writer = writer or stack.enter_context(pa.ipc.new_file(sink, table.schema))
                whole = table.combine_chunks().to_batches()
                writer.write_batch(whole[0] if whole else pa.RecordBatch.from_pylist([], schema=table.schema))
        replace_file(self._path(batch_id), bytes(sink.getvalue()))

    def batch_ids(self) -> list[int]:
        """The ids of the batches it holds, in order."""
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdecimal())

    def partitions(self, batch_id: int) -> list[pa.RecordBatch]:
        """The rows of one batch, one record batch for each partition."""
        content = self._path(batch_id).read_bytes()
        if not content:
            return []
        with pa.ipc.open_file(content) as reader:
            return [reader.get_batch(number) for number in range(reader.num_record_batches)]

    def _path(self, batch_id: int) -> Path:
        return self.folder / f"{batch_id:010d}"

    def _all(self) -> Iterator[pa.RecordBatch]:
        for batch_id in self.batch_ids():
            yield from self.partitions(batch_id)

    def table(self) -> pa.Table | None:
        """All rows in order of batch and partition; None while there is no partition at all."""
        batches = list(self._all())
        return pa.Table.from_batches(batches) if batches else None

    def values(self, column: str) -> list[Any]:
        """All values of a column in order of batch and partition."""
        return [value for batch in self._all() for value in batch.column(column).to_pylist()]

    def rows(self) -> int:
        """The number of rows; asked again, it reads only the files that came since or were replaced."""
        counted = {}
        for batch_id in self.batch_ids():
            found = self._path(batch_id).stat()
            file = (found.st_ino, found.st_mtime_ns, found.st_size)
            known, rows = self._counted.get(batch_id, (None, 0))
            if known != file:
                rows = sum(batch.num_rows for batch in self.partitions(batch_id))
            counted[batch_id] = (file, rows)
        self._counted = counted
        return sum(rows for _, rows in counted.values())

    def lost_and_doubled(self, expected: Iterable[Any], column: str) -> LostAndDoubled:
        """Compare a column with what was published, each value as often as it was."""
        wanted, found = Counter(expected), Counter(self.values(column))
        return LostAndDoubled(list((wanted - found).elements()), list((found - wanted).elements()))
