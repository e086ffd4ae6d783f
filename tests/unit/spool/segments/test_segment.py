"""Segments with and without compression: one format, read in one way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from connectors.core.errors import SpoolDamagedError, SpoolVersionError
from connectors.spool.segments.id_keys import keys_of
from connectors.spool.segments.rows import RowSchema
from connectors.spool.segments.segment import SegmentReader, SegmentWriter, segment_name
from connectors.spool.store.local import LocalStore
from tests.support.damaged_spool import with_altered_section

SCHEMA = pa.schema([("id", pa.string()), ("payload", pa.binary())])
ROWS = RowSchema(1, SCHEMA)


def write(root: Path, fetcher: str, blocks: list[pa.RecordBatch], compression: str) -> str:
    store = LocalStore(str(root), "ab")
    store.make_root()
    writer = SegmentWriter(store, "spool", fetcher, 0, SCHEMA, compression=compression)
    for block in blocks:
        keys = keys_of(block.column("id"), b"k" * 16)
        writer.append(block, keys, np.full(len(block), 100, np.int64), (1, 2))
    return writer.publish().name


def block(first: int, rows: int) -> pa.RecordBatch:
    ids = [str(number) for number in range(first, first + rows)]
    return pa.record_batch([pa.array(ids), pa.array([b"text " * 40] * rows)], schema=SCHEMA)


@pytest.mark.parametrize("compression", ["", "lz4"])
def test_any_rows_of_a_segment_read_back_as_they_were_written(compression: str, tmp_path: Path) -> None:
    blocks = [block(0, 50), block(50, 1), block(51, 200)]
    name = write(tmp_path, "f0", blocks, compression)
    reader = SegmentReader(LocalStore(str(tmp_path), "cd"), name)
    reader.verify()
    whole = pa.Table.from_batches(blocks)
    for first, end in ((0, 251), (49, 52), (100, 101), (7, 7)):
        parts = [batch for _, batch in reader.batches(first, end)]
        assert pa.Table.from_batches(parts, SCHEMA).equals(whole.slice(first, end - first))


def test_lz4_makes_a_segment_smaller_and_any_arrow_reader_can_open_it(tmp_path: Path) -> None:
    blocks = [block(0, 500), block(500, 500)]
    plain, packed = (tmp_path / write(tmp_path, name, blocks, name.rstrip("0")) for name in ("0", "lz40"))
    assert packed.stat().st_size < plain.stat().st_size / 2
    for path in (plain, packed):
        with path.open("rb") as file, pa.ipc.open_stream(file) as stream:
            assert stream.read_all().equals(pa.Table.from_batches(blocks))


def test_a_bit_flipped_in_a_compressed_block_is_found(tmp_path: Path) -> None:
    path = tmp_path / write(tmp_path, "f0", [block(0, 500)], "lz4")
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    reader = SegmentReader(LocalStore(str(tmp_path), "cd"), segment_name("f0", 0))
    with pytest.raises(SpoolDamagedError, match="wrong checksum"):
        list(reader.batches(0, 500))


ALTERED = 300


@pytest.mark.parametrize("compression", ["", "lz4"])
@pytest.mark.parametrize("kind", ["block", "index", "schema"])
def test_arrow_that_is_not_valid_under_right_checksums_is_damage_or_other_rows_and_ends_no_process(
    kind: str, compression: str, tmp_path: Path
) -> None:
    path = tmp_path / write(tmp_path, "f0", [block(0, 50), block(50, 7)], compression)
    whole, refused = path.read_bytes(), 0
    for _ in range(ALTERED):
        path.write_bytes(with_altered_section(whole, kind))
        reader = SegmentReader(LocalStore(str(tmp_path), "cd"), segment_name("f0", 0))
        try:
            reader.index()
            sum(len(batch) for _, batch in reader.batches(0, 57))
            for _, batch in reader.batches(0, 57, ROWS):
                batch.to_pylist()
        except (SpoolDamagedError, SpoolVersionError):
            refused += 1
    assert refused > ALTERED // 10
