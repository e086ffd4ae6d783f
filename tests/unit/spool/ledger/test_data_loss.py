"""Damaged and missing segments with failOnDataLoss=false: named, logged, counted, quarantined (rule R9)."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from connectors.core.errors import SpoolDamagedError, SpoolError
from connectors.core.offsets import SENTINEL
from connectors.core.processes.failpoints import set_failpoints
from connectors.spool import stats
from connectors.spool.ledger.data_loss import read_notes
from connectors.spool.ledger.recovery import open_ledger
from connectors.spool.segments.segment import SEGMENT, SealedReader
from connectors.spool.stream.compaction import Compaction, CompactionSettings
from tests.support.spool_streams import open_stream, rows_of
from tests.support.spool_writing import HandSpool

NO_LIMIT = (1 << 63) - 1
ROWS = 5
SEGMENTS = 4


def flip(spool: HandSpool, name: str, kind: str) -> None:
    """Flip a bit in the first section of a kind."""
    section = SealedReader(spool.store, name, SEGMENT, None).of_kind(kind)[0]
    data = bytearray((spool.root / name).read_bytes())
    data[section["offset"] + section["length"] // 2] ^= 1
    (spool.root / name).write_bytes(data)


def truncate(spool: HandSpool, name: str) -> None:
    path = spool.root / name
    path.write_bytes(path.read_bytes()[:-5])


def swap(spool: HandSpool, name: str) -> None:
    """Put another segment, which is whole, in its place."""
    other = spool.write(["foreign"], fetcher="ff")
    (spool.root / other.name).rename(spool.root / name)
    (spool.root / "inbox/ff").rmdir()


DAMAGE: Mapping[str, Callable[[HandSpool, str], None]] = {
    "missing": lambda spool, name: (spool.root / name).unlink(),
    "truncated": truncate,
    "a flipped row": lambda spool, name: flip(spool, name, "block"),
    "a flipped schema": lambda spool, name: flip(spool, name, "schema"),
    "a flipped index": lambda spool, name: flip(spool, name, "index"),
    "swapped": swap,
}


def name_of(number: int) -> str:
    return f"inbox/f0/{number}.arrow"


@pytest.fixture
def spool(tmp_path: Path) -> HandSpool:
    """Four admitted segments of five rows each, from an earlier start."""
    made = HandSpool(tmp_path / "spool")
    ledger = made.open()
    for number in range(SEGMENTS):
        made.write([f"{number}-{row}" for row in range(ROWS)])
        ledger.admit()
    return made


def read_all(spool: HandSpool, *, fail: bool) -> list[tuple[int, str]]:
    """All rows, as the first batch of a new checkpoint has them; planned and read twice."""
    with open_stream(spool.root, fail_on_data_loss=fail, starting_position="earliest") as stream:
        end = stream.latest_offset(SENTINEL, NO_LIMIT)
        rows = rows_of(spool.root, stream.partitions(SENTINEL, end))
        assert rows_of(spool.root, stream.partitions(SENTINEL, end)) == rows
        return rows


def expected(lost: int | None) -> list[tuple[int, str]]:
    return [
        (number * ROWS + row, f"{number}-{row}") for number in range(SEGMENTS) if number != lost for row in range(ROWS)
    ]


@pytest.mark.parametrize("number", range(SEGMENTS))
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_segment_stops_the_query_or_is_quarantined_and_all_other_rows_stay(
    kind: str, number: int, spool: HandSpool, caplog: pytest.LogCaptureFixture
) -> None:
    assert read_all(spool, fail=True) == expected(None)
    name = name_of(number)
    DAMAGE[kind](spool, name)
    found = (spool.root / name).read_bytes() if kind != "missing" else None
    with pytest.raises(SpoolDamagedError, match=r"SPOOL_SEGMENT_DAMAGED.*failOnDataLoss=false"):
        read_all(spool, fail=True)
    assert not (spool.root / "quarantine").exists()

    assert read_all(spool, fail=False) == expected(number)

    quarantined = spool.root / f"quarantine/f0-{number}.arrow"
    assert (quarantined.read_bytes() if quarantined.exists() else None) == found
    assert not (spool.root / name).exists()
    (note,) = read_notes(spool.store)
    assert (note["segment"], note["first"], note["end"]) == (name, number * ROWS, number * ROWS + ROWS)
    # Without the advice of the error, to restore the file: it holds no more.
    assert note["error"].startswith("[SPOOL_SEGMENT_DAMAGED] ")
    assert note["error"].endswith(f"{name}).")
    assert f"SPOOL_SEGMENT_QUARANTINED] {name}" in caplog.text
    assert f"positions {number * ROWS} to {number * ROWS + ROWS - 1}" in caplog.text

    # From now on the rows are recorded as empty, whatever failOnDataLoss says, and the loss shows for ever.
    for fail in (True, False):
        caplog.clear()
        assert read_all(spool, fail=fail) == expected(number)
        assert "SPOOL_ROWS_LOST" in caplog.text
    counters = stats(str(spool.root)).counters
    assert (counters["quarantined_segments"], counters["quarantined_rows"]) == (1, ROWS)


def test_the_loss_still_shows_when_the_segment_would_have_been_freed(spool: HandSpool) -> None:
    DAMAGE["truncated"](spool, name_of(0))
    read_all(spool, fail=False)
    ledger = spool.open()
    for position in (10, 15, 20):
        ledger.commit(position)
    Compaction(ledger, CompactionSettings(free_segments=1)).step()
    assert ledger.state.oldest == 10
    spool.open()
    assert stats(str(spool.root)).dropped == {"duplicate": 0, "quarantined": ROWS, "skipped": 0}


@pytest.mark.parametrize("number", range(SEGMENTS))
@pytest.mark.parametrize("kind", ["missing", "truncated", "a flipped index", "swapped"])
def test_a_waiting_segment_that_is_damaged_is_admitted_without_rows(
    kind: str, number: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool = HandSpool(tmp_path / "spool")
    spool.open()
    for each in range(SEGMENTS):
        spool.write([f"{each}-{row}" for row in range(ROWS)])
    if kind == "missing" and number == SEGMENTS - 1:
        return  # nothing tells that it ever was
    DAMAGE[kind](spool, name_of(number))
    with pytest.raises(SpoolDamagedError, match="SPOOL_SEGMENT_DAMAGED"):
        read_all(spool, fail=True)
    wanted = [text for _, text in expected(number)]
    assert [text for _, text in read_all(spool, fail=False)] == wanted
    assert "SPOOL_SEGMENT_QUARANTINED" in caplog.text
    seen = stats(str(spool.root))
    assert (seen.rows, seen.counters["quarantined_segments"]) == ((SEGMENTS - 1) * ROWS, 1)
    assert seen.counters["quarantined_rows"] == {"a flipped index": ROWS}.get(kind, 0)
    # The fetcher's later numbers go on, and what the service delivers again is not taken for a copy.
    spool.write([f"{number}-{row}" for row in range(ROWS)])
    assert [text for _, text in read_all(spool, fail=True)] == wanted + [f"{number}-{row}" for row in range(ROWS)]


def test_a_fetcher_whose_only_segment_was_damaged_is_counted_though_its_folder_is_gone(tmp_path: Path) -> None:
    spool = HandSpool(tmp_path / "spool")
    spool.open()
    spool.write(["a", "b"])
    truncate(spool, name_of(0))
    set_failpoints("ledger.before_admit=raise:5")
    try:
        with pytest.raises(OSError, match="Input/output"), open_stream(spool.root, fail_on_data_loss=False):
            pass
    finally:
        set_failpoints("")
    assert read_all(spool, fail=True) == []
    assert stats(str(spool.root)).counters["quarantined_segments"] == 1


def test_copies_of_quarantined_rows_stay_known_after_a_restart(spool: HandSpool) -> None:
    """The sink may have these rows already, so the service's copies must not come as new ones."""
    flip(spool, name_of(1), "block")
    read_all(spool, fail=False)
    spool.write([*(f"1-{row}" for row in range(ROWS)), "new"], fetcher="f1")
    assert read_all(spool, fail=True) == [*expected(1), (SEGMENTS * ROWS, "new")]


def test_ids_that_cannot_be_read_any_more_are_reported(spool: HandSpool, caplog: pytest.LogCaptureFixture) -> None:
    with open_stream(spool.root, fail_on_data_loss=False, starting_position="earliest") as stream:
        end = stream.latest_offset(SENTINEL, NO_LIMIT)
        flip(spool, name_of(1), "index")
        assert rows_of(spool.root, stream.partitions(SENTINEL, end)) == expected(1)
    assert "SPOOL_IDS_LOST" in caplog.text


def test_damage_that_comes_while_a_query_runs_is_found_before_the_batch_is_planned(spool: HandSpool) -> None:
    with open_stream(spool.root, fail_on_data_loss=False, starting_position="earliest") as stream:
        end = stream.latest_offset(SENTINEL, NO_LIMIT)
        flip(spool, name_of(2), "block")
        rows = rows_of(spool.root, stream.partitions(SENTINEL, end))
        assert rows == expected(2)
        stream.commit(end)
        spool.write(["late"], fetcher="late")
    with open_stream(spool.root) as stream:
        later = stream.latest_offset(end, NO_LIMIT)
        assert rows_of(spool.root, stream.partitions(end, later)) == [(SEGMENTS * ROWS, "late")]


def test_a_limit_in_bytes_cuts_on_over_a_segment_whose_sizes_cannot_be_read(spool: HandSpool) -> None:
    with open_stream(
        spool.root, fail_on_data_loss=False, starting_position="earliest", max_bytes_per_trigger=70
    ) as stream:
        flip(spool, name_of(1), "index")
        offset, rows = stream.latest_offset(SENTINEL, NO_LIMIT), []
        assert offset["position"] == 7
        rows += rows_of(spool.root, stream.partitions(SENTINEL, offset))
        while (end := stream.latest_offset(offset, NO_LIMIT)) != offset:
            rows += rows_of(spool.root, stream.partitions(offset, end))
            offset = end
    assert rows == expected(1)


def test_only_segments_that_later_batches_read_too_are_remembered_as_checked(spool: HandSpool) -> None:
    with open_stream(
        spool.root, fail_on_data_loss=False, starting_position="earliest", max_bytes_per_trigger=40
    ) as stream:
        offset, remembered = SENTINEL, []
        while (end := stream.latest_offset(offset, NO_LIMIT)) != offset:
            first = offset.get("position", 0)
            stream.partitions(offset, end)
            verified = stream._losses._verified
            assert all(last > first for last in verified.values())
            remembered.append(len(verified))
            offset = end
    assert len(remembered) == SEGMENTS * ROWS / 4
    assert max(remembered) <= 2


@pytest.mark.guarantee
def test_a_replay_has_the_partitions_that_it_had(spool: HandSpool) -> None:
    settings = {"starting_position": "earliest", "partition_bytes": 60, "max_partitions": 8}
    with open_stream(spool.root, **settings) as stream:
        end = stream.latest_offset(SENTINEL, NO_LIMIT)
        before = [rows_of(spool.root, [part]) for part in stream.partitions(SENTINEL, end)]
    truncate(spool, name_of(1))
    with open_stream(spool.root, fail_on_data_loss=False, **settings) as stream:
        after = [rows_of(spool.root, [part]) for part in stream.partitions(SENTINEL, end)]
    lost = range(ROWS, 2 * ROWS)
    assert after == [[row for row in part if row[0] not in lost] for part in before]


POINTS = ("quarantine.before_copy", "quarantine.after_copy", "quarantine.before_delete", "quarantine.after_delete")
PUTS = ("ledger.before_put", "ledger.after_put", "store.before_link", "store.after_publish")
MANIFESTS = tuple(f"manifest.{step}" for step in ("before_write", "after_write", "before_delete", "after_delete"))


@pytest.mark.guarantee
@pytest.mark.parametrize(
    ("point", "passes"),
    [
        (point, n)
        for points, passes in ((POINTS, 1), (PUTS, 6), (MANIFESTS, 2))
        for point in points
        for n in range(1, passes + 1)
    ],
)
@pytest.mark.parametrize("kind", ["truncated", "a flipped row", "waiting"])
def test_a_crash_at_any_step_of_a_quarantine_loses_no_other_row_and_counts_once(
    kind: str, point: str, passes: int, spool: HandSpool
) -> None:
    number = 1
    if kind == "waiting":
        number = SEGMENTS
        spool.write(["x", "y"])
    DAMAGE["truncated" if kind == "waiting" else kind](spool, name_of(number))
    set_failpoints(f"{point}=raise:{errno.EIO}:{passes}")
    try:
        if point in POINTS:
            with pytest.raises(OSError, match="Input/output"):
                read_all(spool, fail=False)
        else:
            with contextlib.suppress(OSError, SpoolError):
                read_all(spool, fail=False)
    finally:
        set_failpoints("")
    wanted = expected(None if kind == "waiting" else number)
    assert read_all(spool, fail=False) == wanted
    assert read_all(spool, fail=True) == wanted
    assert not (spool.root / name_of(number)).exists()
    assert (spool.root / f"quarantine/f0-{number}.arrow").exists()
    assert stats(str(spool.root)).counters["quarantined_segments"] == 1


def test_what_is_no_damaged_segment_stops_the_query_in_any_case(spool: HandSpool, tmp_path: Path) -> None:
    ledger = spool.ledger
    assert ledger is not None
    Compaction(ledger, CompactionSettings(recent_ids=1)).step()
    (run,) = ledger.state.runs
    last = f"ledger/{ledger.claim.epoch}/{ledger.state.number}"
    other = HandSpool(tmp_path / "other")
    other.open()
    foreign = (other.root / other.write(["theirs"], fetcher="f7").name).read_bytes()
    for name, data, code in (
        ("spool.json", b"", "SPOOL_RECORD_DAMAGED"),
        ("epochs/1", b"", "SPOOL_RECORD_DAMAGED"),
        (last, b"", "SPOOL_RECORD_DAMAGED"),
        (f"ids/{run.name}", b"", "SPOOL_ID_RUN_DAMAGED"),
        ("inbox/f7/0.arrow", foreign, "SPOOL_SEGMENT_FOREIGN"),
    ):
        path = spool.root / name
        before = path.read_bytes() if path.exists() else None
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        with pytest.raises(SpoolError, match=code):
            read_all(spool, fail=False)
        path.unlink() if before is None else path.write_bytes(before)
        if before is None:
            path.parent.rmdir()
        assert not (spool.root / "quarantine").exists()
    path = spool.root / name_of(0)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SpoolError, match="SPOOL_FOREIGN_FILE"):
        read_all(spool, fail=False)
    assert path.is_symlink()
    path.unlink()
    (tmp_path / "elsewhere").rename(path)
    assert read_all(spool, fail=True) == expected(None)


def test_a_ledger_that_was_opened_otherwise_knows_the_quarantined_rows_too(spool: HandSpool) -> None:
    truncate(spool, name_of(3))
    read_all(spool, fail=False)
    for _ in range(3):  # records, then snapshots
        spool.ledger = open_ledger(spool.store, spool.identity())
        assert spool.all_ids() == [text for _, text in expected(3)]
