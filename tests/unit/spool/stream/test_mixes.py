"""Every mix of checkpoint and spool: it goes on, or stops with the code of what is wrong (rule R4)."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from connectors.core.errors import ConnectorError, DataLossError
from connectors.core.offsets import SENTINEL, START_KEY
from connectors.spool import stats
from connectors.spool.stream.compaction import Compaction, CompactionSettings
from connectors.spool.stream.micro_batch import SpoolStream
from connectors.spool.stream.slices import offset_at
from tests.support.spool_streams import open_stream, rows_of
from tests.support.spool_writing import HandSpool

ROWS = 10
NO_LIMIT = (1 << 63) - 1

# What becomes of the next batch: the position where it begins, or the code of the error.
CELLS = {
    ("new", "new"): 0,
    ("new", "same"): 20,  # after what was committed
    ("new", "older copy"): 10,
    ("new", "newer"): 30,
    ("new", "other"): 0,
    ("same", "new"): "SPOOL_OTHER",
    ("same", "same"): 20,
    ("same", "older copy"): "SPOOL_OFFSET_ABOVE_HEAD",
    ("same", "older copy that went on"): "SPOOL_OFFSET_ABOVE_HEAD",
    ("same", "newer"): 20,
    ("same", "newer, freed"): "SPOOL_ROWS_FREED",
    ("same", "other"): "SPOOL_OTHER",
    ("older", "new"): "SPOOL_OTHER",
    ("older", "same"): 10,
    ("older", "older copy"): 10,
    ("older", "newer"): 10,
    ("older", "newer, freed"): "SPOOL_ROWS_FREED",
    ("older", "other"): "SPOOL_OTHER",
    ("newer", "new"): "SPOOL_OTHER",
    ("newer", "same"): "SPOOL_OFFSET_UNKNOWN",
    ("newer", "older copy"): "SPOOL_OFFSET_UNKNOWN",
    ("newer", "older copy that went on"): "SPOOL_OFFSET_UNKNOWN",
    ("newer", "newer"): 30,
    ("newer", "other"): "SPOOL_OTHER",
}

# With failOnDataLoss=false a start below the oldest row goes on there; nothing else is different.
LOSSY_CELLS = CELLS | {("same", "newer, freed"): 50, ("older", "newer, freed"): 50}

# Where a new checkpoint begins by startingPosition: earliest, committed, latest.
STARTS = {
    "new": (0, 0, 0),
    "same": (0, 20, 25),
    "older copy": (0, 10, 15),
    "older copy that went on": (0, 50, 55),
    "newer": (0, 30, 35),
    "newer, freed": (50, 70, 75),
    "other": (0, 0, 0),
}


class History:
    """A query's life in three batches, with a copy of the spool after each and the offset it left in the checkpoint.

    The first two batches are of one start, the third is of another one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.spool = HandSpool(folder / "spool")
        self.checkpoints: dict[str, Mapping[str, Any]] = {"new": SENTINEL}
        self.spool.open()
        for name, copy in (("older", "older copy"), ("same", "same"), ("newer", "newer")):
            if name == "newer":
                self.spool.open()
            self.checkpoints[name] = self.batch()
            shutil.copytree(self.spool.root, folder / copy)

    def batch(self) -> Mapping[str, Any]:
        """Publish, admit and commit some rows; the offset after them."""
        ledger = self.spool.ledger
        assert ledger is not None
        self.spool.write([f"{ledger.state.head}-{number}" for number in range(ROWS)], fetcher=f"f{ledger.state.head}")
        ledger.admit()
        ledger.commit(ledger.state.head)
        return offset_at(ledger.state, ledger.state.head)

    def take(self, kind: str) -> HandSpool:
        """Put a spool of this kind in its place, as a query finds it."""
        copy, _, later = kind.partition(", ")
        copy, _, went_on = copy.partition(" that ")
        if kind == "other":
            other = HandSpool(self._folder / "other")
            other.open()
            return other
        shutil.rmtree(self.spool.root)
        if kind != "new":
            shutil.copytree(self._folder / copy, self.spool.root)
        taken = HandSpool(self.spool.root)
        taken.open()
        self.spool = taken
        for _ in range(4 if later or went_on else 0):
            self.batch()
        if later:
            assert taken.ledger is not None
            Compaction(taken.ledger, CompactionSettings(free_segments=1)).step()
            assert taken.ledger.state.oldest > ROWS * 2
        return taken


def begin(stream: SpoolStream, root: Path, checkpoint: Mapping[str, Any]) -> int:
    """The position at which the next batch of a query begins; the batch is planned and read."""
    end = stream.latest_offset(checkpoint, NO_LIMIT)
    rows = rows_of(root, stream.partitions(checkpoint, end))
    assert rows == rows_of(root, stream.partitions(checkpoint, end))
    assert [position for position, _ in rows] == list(range(end["position"] - len(rows), end["position"]))
    return end["position"] - len(rows)


@pytest.mark.parametrize("fail", [True, False], ids=["failOnDataLoss", "lossy"])
@pytest.mark.parametrize(("checkpoint", "spool"), CELLS, ids=[" checkpoint with ".join(cell) for cell in CELLS])
def test_a_mix_goes_on_or_stops_with_the_code_of_what_is_wrong(
    checkpoint: str, spool: str, fail: bool, tmp_path: Path
) -> None:
    history = History(tmp_path)
    taken = history.take(spool)
    expected = (CELLS if fail else LOSSY_CELLS)[checkpoint, spool]
    with open_stream(taken.root, fail_on_data_loss=fail) as stream:
        before = taken.files()
        if isinstance(expected, int):
            assert begin(stream, taken.root, history.checkpoints[checkpoint]) == expected
        else:
            with pytest.raises(ConnectorError) as caught:
                begin(stream, taken.root, history.checkpoints[checkpoint])
            assert caught.value.code == expected
            assert caught.value.action
        after = taken.files()
    moved = expected != CELLS[checkpoint, spool]
    # The stream's compaction may write records meanwhile; nothing else has changed.
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert {name.split("/")[0] for name in changed} <= {"ledger", "tmp"}
    assert stats(str(taken.root)).dropped["skipped"] == (0 if not moved else 40 if checkpoint == "older" else 30)


@pytest.mark.parametrize("checkpoint", ["same", "older"])
def test_a_start_that_was_moved_up_is_recorded_once_however_often_its_batch_is_planned(
    checkpoint: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    history = History(tmp_path)
    root = history.take("newer, freed").root
    start = history.checkpoints[checkpoint]
    counted = 50 - start["position"]
    with open_stream(root, fail_on_data_loss=False) as stream:
        end = stream.latest_offset(start, NO_LIMIT)
        first = rows_of(root, stream.partitions(start, end))
        assert [position for position, _ in first] == list(range(50, 70))
        assert "SPOOL_ROWS_SKIPPED" in caplog.text
    for _ in range(2):  # the unfinished batch is planned before anything is asked, after each restart
        with open_stream(root, fail_on_data_loss=False) as stream:
            assert rows_of(root, stream.partitions(start, end)) == first
            assert stream.latest_offset(end, NO_LIMIT) == end
        assert stats(str(root)).dropped["skipped"] == counted
    with open_stream(root) as stream, pytest.raises(DataLossError, match=r"SPOOL_ROWS_FREED.*failOnDataLoss=false"):
        stream.partitions(start, end)


def test_a_checkpoint_below_a_spool_that_is_wholly_freed_waits_for_new_rows_and_goes_on_with_them(
    tmp_path: Path,
) -> None:
    history = History(tmp_path)
    taken = history.take("newer, freed")
    ledger = taken.ledger
    assert ledger is not None
    for segment in list(ledger.state.segments):
        ledger.append({"free": [segment.ordinal + 1, segment.end]})
    start = history.checkpoints["same"]
    with open_stream(taken.root, fail_on_data_loss=False) as stream:
        assert stream.latest_offset(start, NO_LIMIT) == start
    taken.write(["one", "two"], fetcher="later")
    with open_stream(taken.root, fail_on_data_loss=False) as stream:
        end = stream.latest_offset(start, NO_LIMIT)
        assert rows_of(taken.root, stream.partitions(start, end)) == [(70, "one"), (71, "two")]


@pytest.mark.parametrize("fail", [True, False], ids=["failOnDataLoss", "lossy"])
@pytest.mark.parametrize("spool", STARTS)
def test_a_new_checkpoint_begins_where_starting_position_says(spool: str, fail: bool, tmp_path: Path) -> None:
    taken = History(tmp_path).take(spool)
    if spool not in {"new", "other"}:  # rows that no batch has had yet
        taken.write([f"late-{number}" for number in range(5)], fetcher="late")
    for name, position in zip(("earliest", "committed", "latest"), STARTS[spool], strict=True):
        with open_stream(taken.root, starting_position=name, fail_on_data_loss=fail) as stream:
            assert begin(stream, taken.root, SENTINEL) == position, name


@pytest.mark.parametrize("fail", [True, False], ids=["failOnDataLoss", "lossy"])
def test_latest_stays_where_the_first_batch_has_pinned_it(fail: bool, tmp_path: Path) -> None:
    taken = History(tmp_path).take("same")
    settings = {"starting_position": "latest", "fail_on_data_loss": fail}
    with open_stream(taken.root, **settings) as stream:
        empty = stream.latest_offset(SENTINEL, NO_LIMIT)
        assert (empty["position"], empty[START_KEY]["position"]) == (20, 20)
        assert stream.partitions(SENTINEL, empty) == []
    taken.write(["after"], fetcher="late")
    with open_stream(taken.root, **settings) as stream:
        assert stream.partitions(SENTINEL, empty) == []
        end = stream.latest_offset(empty, NO_LIMIT)
        assert rows_of(taken.root, stream.partitions(empty, end)) == [(20, "after")]


def test_a_pinned_start_that_was_freed_meanwhile_stops_the_query_or_is_moved_up(tmp_path: Path) -> None:
    history = History(tmp_path)
    taken = history.take("same")
    with open_stream(taken.root, starting_position="earliest") as stream:
        end = stream.latest_offset(SENTINEL, 15)
        assert end[START_KEY]["position"] == 0
    ledger = taken.open()
    ledger.append({"free": [1, ledger.state.segments[0].end]})
    with open_stream(taken.root) as stream, pytest.raises(DataLossError, match="SPOOL_ROWS_FREED"):
        stream.partitions(SENTINEL, end)
    with open_stream(taken.root, fail_on_data_loss=False) as stream:
        rows = rows_of(taken.root, stream.partitions(SENTINEL, end))
        assert [position for position, _ in rows] == list(range(10, 15))


def test_rows_of_a_copy_that_went_on_are_distinguished_from_those_the_checkpoint_means(tmp_path: Path) -> None:
    """Both have a position 20; only one is known."""
    history = History(tmp_path)
    meant = history.checkpoints["same"]
    taken = history.take("older copy that went on")
    assert taken.ledger is not None
    theirs = offset_at(taken.ledger.state, 20)
    assert (theirs["position"], theirs["spool"]) == (meant["position"], meant["spool"])
    assert theirs["epoch"] != meant["epoch"]
    with open_stream(taken.root) as stream:
        assert begin(stream, taken.root, theirs) == 20
