"""The segments of a ledger do what a list does, whatever part of them is in manifests, which are written and read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.core.errors import SpoolDamagedError
from connectors.spool.ledger.segment_log import MANIFEST as KIND
from connectors.spool.ledger.segment_log import Manifest, SegmentEntry, SegmentLog, read_segments
from connectors.spool.segments.segment import SealedReader, SealedWriter
from connectors.spool.store.base import Store
from connectors.spool.store.local import LocalStore
from tests.support.power_loss_rig import UnsyncedDisk, on_disk

ENTRIES = st.builds(
    SegmentEntry,
    fetcher=st.sampled_from(["aa", "bb", 'a"b', "},{", "\\", "é"]),
    number=st.integers(0, 1 << 40),
    source=st.integers(0, 3),
    rows=st.integers(0, 1 << 20),
    digest=st.sampled_from(["0123456789abcdef", ""]),
    published=st.none() | st.tuples(st.integers(-5, 1 << 52), st.integers(0, 1 << 52)),
    admitted_rows=st.integers(0, 1 << 20),
    bytes=st.integers(0, 1 << 40),
    duplicate_mask=st.none() | st.just("eJxjYGAAAAACAAE="),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(ENTRIES, min_size=1, max_size=6)),
        st.tuples(st.just("drop"), st.integers(0, 5)),
        st.tuples(st.just("quarantine"), st.integers(0, 20)),
        st.tuples(st.just("snapshot"), st.none()),
    ),
    max_size=12,
)
MOST = 4


def entries(first: int, amount: int) -> list[SegmentEntry]:
    """Consecutive entries of three rows."""
    return [
        SegmentEntry("f", number, 0, 3, "d", None, 3, 30, None, number * 3, number * 30, number)
        for number in range(first, first + amount)
    ]


def saved(store: Store, log: SegmentLog, names: count[int], end: tuple[int, int, int], most: int) -> SegmentLog:
    """Write what is to be written and read all of it."""
    log = log.folded(most)
    for manifest in log.unwritten():
        manifest.write(store, "s", f"1-{next(names)}")
    ordinal, head, size = end
    oldest = log[0].base if log else head
    state = {"manifests": log.to_json(), "live": [log.first, oldest], "ordinal": ordinal, "head": head, "bytes": size}
    return read_segments(store, {"spool": "s", "state": state})


@given(STEPS)
def test_it_does_what_a_list_does_and_comes_back_from_its_manifests(steps: Sequence[tuple]) -> None:
    log, wanted, names, end = SegmentLog(), [], count(), (0, 0, 0)
    with TemporaryDirectory() as folder, on_disk(UnsyncedDisk()):
        store = LocalStore(folder, "0" * 16)
        for step, value in steps:
            if step == "append":
                for each in value:
                    ordinal, head, size = end
                    entry = replace(each, ordinal=ordinal, base=head, bytes_before=size)
                    end = (ordinal + 1, entry.end, size + entry.bytes)
                    log = log.appended([entry])
                    wanted.append(entry)
            elif step == "drop":
                dropped = min(value, len(wanted))
                log = log.from_ordinal(log.first + dropped)
                del wanted[:dropped]
            elif step == "quarantine" and wanted:
                at = value % len(wanted)
                log = log.quarantined(wanted[at].ordinal)
                wanted[at] = replace(wanted[at], digest="")
            elif step == "snapshot":
                log = saved(store, log, names, end, MOST)
            assert (list(log), len(log)) == (wanted, len(wanted))
        assert log[1:3] == wanted[1:3]
        assert log.fetchers() == {entry.fetcher for entry in wanted}
        if wanted:
            assert log[-1] == wanted[-1]
            found = log.find(wanted[-1].name)
            assert found is not None
            assert found.name == wanted[-1].name
        assert log.find("inbox/zz/1.arrow") is log.find("ledger") is None


def test_an_entry_is_written_a_few_times_however_many_there_are(tmp_path: Path) -> None:
    portion, most, written = 10, 640, 0
    log, names = SegmentLog(), count()
    with on_disk(UnsyncedDisk()):
        store = LocalStore(str(tmp_path), "0" * 16)
        for first in range(0, 20_000, portion):
            log = log.appended(entries(first, portion)).folded(most)
            for manifest in log.unwritten():
                written += manifest.end.ordinal - manifest.begin.ordinal
                manifest.write(store, "s", f"1-{next(names)}")
            assert len(log.manifest_names()) <= first // most + math.log2(most / portion) + 1
    assert written <= 20_000 * (math.log2(most / portion) + 1)


def test_a_log_never_changes(tmp_path: Path) -> None:
    log = saved(LocalStore(str(tmp_path), "0" * 16), SegmentLog(entries(0, 5)), count(), (5, 15, 150), MOST)
    log = log.appended(entries(5, 1))
    other = log.quarantined(2).quarantined(5).from_ordinal(1)
    assert list(log) == entries(0, 6)
    assert [entry.ordinal for entry in other if entry.quarantined] == [2, 5]
    assert "" in {manifest.name for manifest in other.folded(MOST).unwritten()}


@pytest.mark.parametrize("change", [{"ordinal": 9}, {"head": 16}, {"bytes": 1}, {"live": [1, 4]}, {"live": [4, 12]}])
def test_manifests_that_are_not_those_of_the_snapshot_are_refused(change: dict, tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path), "0" * 16)
    log = saved(store, SegmentLog(entries(0, 8)), count(), (8, 24, 240), MOST)
    state = {"manifests": log.to_json(), "live": [0, 0], "ordinal": 8, "head": 24, "bytes": 240}
    assert list(read_segments(store, {"spool": "s", "state": state})) == entries(0, 8)
    for wrong in (change, {"manifests": log.to_json()[::-1]}, {"manifests": log.to_json()[:1]}, {"manifests": []}):
        with pytest.raises(SpoolDamagedError, match="SPOOL_RECORD_DAMAGED"):
            read_segments(store, {"spool": "s", "state": state | wrong})


LARGE = 1 << 62
WRONG = {
    "a negative number": ("kept", [-1, 3, 3]),
    "rows that no number can count": ("kept", [LARGE - 1, LARGE - 1, LARGE - 1]),
    "another type": ("kept", pa.array([3, 3, 3], pa.int32())),
    "null": ("kept", [3, None, 3]),
    "half a time": ("published_last", [None, 5, None]),
    "text that is none": ("fetcher", pa.array([b"f", b"\xff", b"f"]).cast(pa.binary())),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_columns_altered_under_right_checksums_are_refused(wrong: str, tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path), "0" * 16)
    Manifest.of(entries(0, 3)).write(store, "s", "1-0")
    file = SealedReader(store, "manifests/1-0", KIND, None)
    with pa.ipc.open_stream(file.checked(file.sections[0])) as stream:
        [columns] = list(stream)
    name, values = WRONG[wrong]
    column = values if isinstance(values, pa.Array) else pa.array(values, pa.int64())
    if name == "fetcher":
        column = pa.Array.from_buffers(pa.string(), 3, column.buffers())
    columns = columns.set_column(
        columns.schema.get_field_index(name), pa.field(name, column.type, name == "published_last"), column
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, columns.schema) as out:
        out.write_batch(columns)
    writer = SealedWriter(store, "manifests/1-1", KIND)
    writer.section("entries", sink.getvalue())
    digest = writer.publish({"spool": "s", "first": 0, "base": 0, "bytes_before": 0})
    with pytest.raises(SpoolDamagedError, match=r"SPOOL_RECORD_DAMAGED.*right checksum and wrong values"):
        Manifest.read(store, "s", "1-1", str(digest))


def test_a_manifest_of_another_spool_is_refused(tmp_path: Path) -> None:
    store, manifest = LocalStore(str(tmp_path), "0" * 16), Manifest.of(entries(0, 3))
    manifest.write(store, "other", "1-0")
    with pytest.raises(SpoolDamagedError, match=r"SPOOL_RECORD_DAMAGED.*another spool"):
        Manifest.read(store, "s", "1-0", manifest.digest)
