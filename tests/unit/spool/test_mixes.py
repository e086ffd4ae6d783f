"""Every mix of checkpoint and spool: it goes on, or stops with the code of what is wrong (rule R4)."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from connectors.core.errors import ConnectorError
from connectors.core.offsets import SENTINEL, is_sentinel
from connectors.spool.plan import check_range, offset_at, position_of
from connectors.spool.upkeep import Upkeep, UpkeepSettings
from tests.spool_writing import HandSpool

ROWS = 10

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
            Upkeep(taken.ledger, UpkeepSettings(free_segments=1)).step()
            assert taken.ledger.state.oldest > ROWS * 2
        return taken


def begin(spool: HandSpool, checkpoint: Mapping[str, Any]) -> int:
    """Where the next batch begins, as `SpoolStream` decides it with ``startingPosition=committed``."""
    assert spool.ledger is not None
    state = spool.ledger.state
    if is_sentinel(checkpoint):
        return max(state.committed, state.oldest)
    position = position_of(state, dict(checkpoint), "here")
    check_range(state, position, state.head, "here")
    return position


@pytest.mark.parametrize(("checkpoint", "spool"), CELLS, ids=" checkpoint with ".join)
def test_a_mix_goes_on_or_stops_with_the_code_of_what_is_wrong(checkpoint: str, spool: str, tmp_path: Path) -> None:
    history = History(tmp_path)
    taken = history.take(spool)
    before = taken.files()
    expected = CELLS[checkpoint, spool]
    if isinstance(expected, int):
        assert begin(taken, history.checkpoints[checkpoint]) == expected
    else:
        with pytest.raises(ConnectorError) as caught:
            begin(taken, history.checkpoints[checkpoint])
        assert caught.value.code == expected
        assert caught.value.action
    assert taken.files() == before


def test_rows_of_a_copy_that_went_on_are_told_apart_from_those_the_checkpoint_means(tmp_path: Path) -> None:
    """Both have a position 20; only one is known."""
    history = History(tmp_path)
    meant = history.checkpoints["same"]
    taken = history.take("older copy that went on")
    assert taken.ledger is not None
    theirs = offset_at(taken.ledger.state, 20)
    assert (theirs["position"], theirs["spool"]) == (meant["position"], meant["spool"])
    assert theirs["epoch"] != meant["epoch"]
    assert begin(taken, theirs) == 20
