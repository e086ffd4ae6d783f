"""A seek is carried out once for each value, whatever happens in between; afterwards nothing is known as read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from connectors.core.errors import SourceGoneError
from connectors.core.processes.failpoints import set_failpoints
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.stream.compaction import Compaction, CompactionSettings
from connectors.spool.stream.micro_batch import carry_out_seek
from tests.support.spool_writing import HandSpool

WANTED = {"timestamp": 7}


class Source:
    """Keeps where it was moved to."""

    def __init__(self) -> None:
        self.moves: list[dict[str, Any]] = []

    def move(self, value: Mapping[str, Any]) -> None:
        self.moves.append(dict(value))


@pytest.fixture
def spool(tmp_path: Path) -> HandSpool:
    return HandSpool(tmp_path / "spool")


@pytest.fixture
def source() -> Source:
    return Source()


def read_some(spool: HandSpool) -> Ledger:
    """Ids in a run, and ids in memory."""
    ledger = spool.open()
    for first in (0, 10):
        spool.write([str(number) for number in range(first, first + 10)])
        ledger.admit()
        if not first:
            Compaction(ledger, CompactionSettings(recent_ids=1)).step()
    assert ledger.state.runs
    assert ledger.state.head == 20
    return ledger


def test_ten_restarts_carry_out_one_seek(spool: HandSpool, source: Source) -> None:
    read_some(spool)
    for _ in range(10):
        carry_out_seek(spool.open(), WANTED, source.move)
    assert source.moves == [WANTED]
    assert spool.open().state.dedup_epoch == 1


def test_no_wish_and_no_option_move_nothing(spool: HandSpool, source: Source) -> None:
    assert not carry_out_seek(spool.open(), {}, source.move)
    assert carry_out_seek(spool.open(), WANTED, source.move)
    assert not carry_out_seek(spool.open(), {}, source.move)
    assert not carry_out_seek(spool.open(), WANTED, source.move)
    assert source.moves == [WANTED]


def test_each_other_value_is_carried_out(spool: HandSpool, source: Source) -> None:
    values = [WANTED, {"timestamp": 8}, WANTED, WANTED | {"dedup_epoch": 1}]
    for value in values:
        assert carry_out_seek(spool.open(), value, source.move)
    assert source.moves == values
    assert spool.open().state.dedup_epoch == 4


@pytest.mark.parametrize("left", [WANTED, {"dedup_epoch": 1}], ids=["the place", "the number"])
def test_a_part_of_what_was_done_is_done(spool: HandSpool, source: Source, left: dict[str, Any]) -> None:
    both = WANTED | {"dedup_epoch": 1}
    read_some(spool)
    assert carry_out_seek(spool.open(), both, source.move)
    for value in (left, both, {}, left, both):
        assert not carry_out_seek(spool.open(), value, source.move)
    assert source.moves == [both]
    assert spool.open().state.dedup_epoch == 1
    changed = {name: value + 1 for name, value in left.items()}
    assert carry_out_seek(spool.open(), changed, source.move), "another value is another wish"


def test_a_part_of_what_was_only_begun_is_carried_out(spool: HandSpool, source: Source) -> None:
    set_failpoints("seek.after_intent=raise:5")
    try:
        with pytest.raises(OSError, match="Input/output"):
            carry_out_seek(spool.open(), WANTED | {"dedup_epoch": 1}, source.move)
    finally:
        set_failpoints("")
    assert carry_out_seek(spool.open(), WANTED, source.move)
    assert source.moves == [WANTED]


@pytest.mark.parametrize("reopened", [False, True])
def test_what_was_read_before_is_read_again_once(spool: HandSpool, source: Source, reopened: bool) -> None:
    ledger = read_some(spool)
    carry_out_seek(ledger, WANTED, source.move)
    ledger = spool.open() if reopened else ledger
    for _ in range(2):
        spool.write([str(number) for number in range(20)])
        ledger.admit()
    assert ledger.state.head == 40
    assert not list((spool.root / "ids").iterdir())
    assert spool.read(20, 40)[0][0] == (20, "0")


@pytest.mark.guarantee
@pytest.mark.parametrize("point", ["before_intent", "after_intent", "after_move", "after_record", "after_forget"])
def test_a_crash_at_any_step_comes_to_the_same(spool: HandSpool, source: Source, point: str) -> None:
    ledger = read_some(spool)
    set_failpoints(f"seek.{point}=raise:5")
    try:
        with pytest.raises(OSError, match="Input/output"):
            carry_out_seek(ledger, WANTED, source.move)
    finally:
        set_failpoints("")
    carry_out_seek(spool.open(), WANTED, source.move)
    ledger = spool.open()
    assert len(source.moves) == (2 if point == "after_move" else 1)
    assert ledger.state.dedup_epoch == 1
    assert ledger.state.seek == {"value": WANTED, "done": True}
    spool.write([str(number) for number in range(20)])
    ledger.admit()
    assert ledger.state.head == 40


def test_a_wish_that_changed_before_it_was_done_is_the_one_that_counts(spool: HandSpool, source: Source) -> None:
    ledger = read_some(spool)
    set_failpoints("seek.after_intent=raise:5")
    try:
        with pytest.raises(OSError, match="Input/output"):
            carry_out_seek(ledger, WANTED, source.move)
    finally:
        set_failpoints("")
    carry_out_seek(spool.open(), {"snapshot": "s"}, source.move)
    assert source.moves == [{"snapshot": "s"}]


def test_a_begun_seek_is_ended_though_nothing_is_wanted_any_more(spool: HandSpool, source: Source) -> None:
    ledger = read_some(spool)
    set_failpoints("seek.after_move=raise:5")
    try:
        with pytest.raises(OSError, match="Input/output"):
            carry_out_seek(ledger, WANTED, source.move)
    finally:
        set_failpoints("")
    assert carry_out_seek(spool.open(), {}, source.move)
    assert source.moves == [WANTED, WANTED]
    assert not carry_out_seek(spool.open(), {}, source.move)


def test_the_last_seek_outlives_snapshots_of_the_ledger(spool: HandSpool, source: Source) -> None:
    carry_out_seek(spool.open(), WANTED, source.move)
    ledger = spool.open()
    for _ in range(300):
        ledger.append({})
    assert spool.open().state.seek == {"value": WANTED, "done": True}


def refuse(_value: Mapping[str, Any]) -> None:
    raise SourceGoneError("SNAPSHOT_NOT_FOUND", "There is no such snapshot", "here", "Correct it.")


@pytest.mark.parametrize("before", [{}, WANTED], ids=["first", "after another"])
def test_a_refused_seek_stops_no_start_without_it(spool: HandSpool, source: Source, before: dict[str, Any]) -> None:
    carry_out_seek(spool.open(), before, source.move)
    epoch = read_some(spool).state.dedup_epoch
    for _ in range(2):
        with pytest.raises(SourceGoneError):
            carry_out_seek(spool.open(), {"snapshot": "absent"}, refuse)
    assert not carry_out_seek(spool.open(), {}, refuse)
    assert not carry_out_seek(spool.open(), before, refuse), "what was done before is not done again"
    assert spool.open().state.dedup_epoch == epoch
    assert carry_out_seek(spool.open(), {"snapshot": "there"}, source.move)


def test_a_begun_seek_that_is_refused_is_given_up_when_nobody_wants_it_any_more(
    spool: HandSpool, source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    set_failpoints("seek.after_move=raise:5")
    try:
        with pytest.raises(OSError, match="Input/output"):
            carry_out_seek(read_some(spool), WANTED, source.move)
    finally:
        set_failpoints("")
    assert not carry_out_seek(spool.open(), {}, refuse)
    assert "SPOOL_SEEK_GIVEN_UP" in caplog.text
    ledger = spool.open()
    assert not carry_out_seek(ledger, {}, source.move)
    spool.write(["5"])
    ledger.admit()
    assert ledger.state.head == 20, "its ids are known as before"
