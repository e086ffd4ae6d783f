"""Rows are found by the names of their columns, whichever version wrote them, or refused by name."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import connectors
from connectors.core.errors import SpoolDamagedError, SpoolVersionError
from connectors.pubsub.datasource import PubSubConnector
from connectors.pubsub.options.kinds import SchemaMode
from connectors.pubsub.schema import STREAM_SCHEMA
from connectors.pubsub.source.stored_rows import ROWS
from connectors.spool.ledger.identity import open_identity
from connectors.spool.segments.id_keys import no_keys
from connectors.spool.segments.rows import RowSchema
from connectors.spool.segments.segment import SegmentReader, SegmentWriter, Slice
from connectors.spool.source.reader import SpoolPartition
from connectors.spool.store.local import LocalStore
from tests.golden.segments_record import COLUMNS, SEGMENTS
from tests.support.spool_writing import SOURCES

NAME = "inbox/f0/0.arrow"
OLD = pa.schema([("id", pa.int64()), ("text", pa.string())])
NEW = pa.schema([("added", pa.string()), ("text", pa.string()), ("id", pa.int64()), ("flag", pa.bool_())])


def golden(name: str, root: Path, *, is_stream: bool = True, mode: SchemaMode = SchemaMode.NATIVE) -> SpoolPartition:
    """A task's part of a batch, of a spool that has the golden segment of this name."""
    store = LocalStore(str(root), "ab")
    store.make_root()
    open_identity(store, "pubsub", SOURCES)
    shutil.copytree(SEGMENTS / name, root, dirs_exist_ok=True)
    digest = SegmentReader(store, NAME).info.digest
    part = (Slice(NAME, digest, 0, 0, 3, 7, 3, None),)
    return SpoolPartition(PubSubConnector(), str(root), SOURCES, part, mode, None, is_stream)


def written(root: Path, schema: pa.Schema, count: int = 4, fetcher: str = "f0") -> SegmentReader:
    store = LocalStore(str(root), "ab")
    store.make_root()
    values = {"id": list(range(count)), "text": ["x"] * count, "added": ["y"] * count, "flag": [True] * count}
    rows = pa.record_batch([pa.array(values[each.name], each.type) for each in schema], schema=schema)
    writer = SegmentWriter(store, "spool", fetcher, 0, schema)
    writer.append(rows, no_keys(count), np.full(count, 1, np.int64), None)
    return SegmentReader(store, writer.publish().name)


def read(reader: SegmentReader, wanted: RowSchema, first: int = 0, end: int = 99) -> list[dict[str, object]]:
    return [row for _, batch in reader.batches(first, end, wanted) for row in batch.to_pylist()]


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize(("name", "missing"), [("unversioned", ()), ("column_fewer", ("deliveryAttempt",))])
def test_segments_of_earlier_versions_are_read_and_a_column_that_they_lack_is_null(
    name: str, missing: tuple[str, ...], tmp_path: Path, *, is_stream: bool
) -> None:
    (batch,) = golden(name, tmp_path, is_stream=is_stream).read()
    assert batch.schema.names == STREAM_SCHEMA.names
    for column in ROWS.columns.names:
        expected = [None] * 3 if column in missing else COLUMNS[column][1]
        assert batch.column(column).to_pylist() == expected, column
    assert batch.column("offset").to_pylist() == [7, 8, 9]
    assert set(batch.column("subscription").to_pylist()) == set(SOURCES)


@pytest.mark.parametrize("name", ["unversioned", "column_fewer"])
def test_segments_of_earlier_versions_are_read_in_the_columns_of_databricks(name: str, tmp_path: Path) -> None:
    (batch,) = golden(name, tmp_path, mode=SchemaMode.DATABRICKS).read()
    assert batch.column("messageId").to_pylist() == ["1", "2", "3"]
    assert batch.column("attributes").to_pylist() == ['{"region":"eu"}', "{}", '{"a":"1","b":"2"}']


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_segment_of_a_later_version_stops_with_the_version_that_reads_it(tmp_path: Path, *, is_stream: bool) -> None:
    with pytest.raises(SpoolVersionError, match=r"^\[SPOOL_ROWS_VERSION\].*version 2.*region.*version 1") as caught:
        list(golden("column_more", tmp_path, is_stream=is_stream).read())
    assert caught.value.where == f"{tmp_path}/{NAME}"
    assert "pyspark-stream-connectors 9.9.9" in caught.value.action


def test_a_segment_says_which_version_its_rows_have_and_what_wrote_it(tmp_path: Path) -> None:
    written(tmp_path, RowSchema(3, OLD).stamped)
    with pa.ipc.open_stream((tmp_path / NAME).read_bytes()) as stream:
        assert stream.schema.metadata == {
            b"spool.rows.version": b"3",
            b"spool.rows.writer": connectors.__version__.encode(),
        }


def test_columns_are_found_by_name_in_any_order_and_the_absent_ones_have_their_defaults(tmp_path: Path) -> None:
    wanted = RowSchema(2, NEW, {"flag": False})
    rows = read(written(tmp_path, RowSchema(1, OLD).stamped), wanted, 1, 3)
    assert rows == [{"added": None, "text": "x", "id": number, "flag": False} for number in (1, 2)]
    reader = written(tmp_path, RowSchema(2, NEW).stamped, fetcher="f1")
    assert read(reader, wanted, 3) == [{"added": "y", "text": "x", "id": 3, "flag": True}]
    for _, batch in reader.batches(0, 9, wanted):
        assert batch.schema.equals(NEW, check_metadata=True)


def test_a_segment_of_the_same_columns_is_not_projected() -> None:
    stamped = RowSchema(1, OLD).stamped
    assert RowSchema(2, OLD).projection(stamped, "") is None
    assert RowSchema(2, NEW).projection(stamped, "") is not None


@pytest.mark.parametrize(
    ("stored", "wanted", "said"),
    [
        (RowSchema(2, OLD).stamped, RowSchema(1, OLD), "rows of version 2, but this package reads rows of version 1"),
        (RowSchema(1, NEW).stamped, RowSchema(1, OLD), "the unknown columns added, flag"),
        (NEW, RowSchema(1, OLD), "the unknown columns added, flag"),
        (OLD, RowSchema(2, NEW, all_present=True), "no added, flag"),
    ],
)
def test_rows_that_this_version_cannot_have_are_a_named_error(
    stored: pa.Schema, wanted: RowSchema, said: str, tmp_path: Path
) -> None:
    reader = written(tmp_path, stored)
    for call in (lambda: reader.check_rows(wanted), lambda: read(reader, wanted)):
        with pytest.raises(SpoolVersionError, match=rf"^\[SPOOL_ROWS_VERSION\].*{said}") as caught:
            call()
        writer = f"{connectors.__version__}, which wrote it" if stored.metadata else "that wrote it"
        assert f"pyspark-stream-connectors {writer}, or a newer one" in caught.value.action
    assert [len(batch) for _, batch in reader.batches(0, 9)] == [4]


@pytest.mark.parametrize(
    "stored",
    [
        pa.schema([("id", pa.int32()), ("text", pa.string())]),
        pa.schema([("id", pa.int64()), ("id", pa.int64())]),
        *(OLD.with_metadata({"spool.rows.version": text}) for text in ("", "x", "-1", "0", "1.0", "9" * 5000)),
        OLD.with_metadata({b"spool.rows.version": b"2", b"spool.rows.writer": b"\xff"}),
    ],
    ids=["type", "twice", "empty", "x", "-1", "0", "1.0", "huge", "writer"],
)
def test_a_schema_that_no_version_writes_is_damage(stored: pa.Schema, tmp_path: Path) -> None:
    with pytest.raises(SpoolDamagedError, match=r"^\[SPOOL_SEGMENT_DAMAGED\].*a schema that is not valid"):
        read(written(tmp_path, stored), RowSchema(1, OLD))
