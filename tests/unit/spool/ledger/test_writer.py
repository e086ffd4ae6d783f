"""The thread that writes the ledger: what shares a record, and what becomes of a record whose put failed."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from connectors.core.errors import SpoolDamagedError
from connectors.core.processes.failpoints import set_failpoints
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.ledger.recovery import read_state
from connectors.spool.ledger.state import LedgerState
from tests.support.spool_writing import HandSpool
from tests.support.waiting import wait_for


@pytest.fixture
def spool(tmp_path: Path) -> HandSpool:
    spool = HandSpool(tmp_path / "spool")
    spool.open()
    for number in range(4):
        spool.write([str(number)])
    assert spool.ledger is not None
    spool.ledger.admit()
    return spool


def together(ledger: Ledger, pause: Path, *changes: dict | tuple) -> list[Future[LedgerState]]:
    """Ask for records, each by the arguments of `append`, while another one is being put."""
    set_failpoints(f"ledger.before_put=pause:{pause}")
    with ThreadPoolExecutor(1 + len(changes)) as callers:
        try:
            asked = [callers.submit(ledger.append, {"layout": [1, 1]})]
            wait_for(pause.exists)
            waiting = ledger._waiting
            for count, change in enumerate(changes, 1):
                asked.append(callers.submit(ledger.append, *(change if isinstance(change, tuple) else (change,))))
                wait_for(lambda count=count: len(waiting) == count)
        finally:
            set_failpoints("")
            pause.unlink()
    return asked[1:]


def test_those_who_wait_together_share_a_record(spool: HandSpool, tmp_path: Path) -> None:
    ledger = spool.ledger
    assert ledger is not None
    before = ledger.state.number
    for asked in together(ledger, tmp_path / "pause", {"commit": 1}, {"free": [1, 1]}, {"forget": []}):
        assert asked.result().committed == 1
    assert ledger.state.number == before + 2, "the one that was being put, and one for all others"
    assert (ledger.state.committed, ledger.state.oldest) == (1, 1)
    assert read_state(spool.store, spool.identity().spool) == ledger.state


def test_who_wants_no_record_any_more_is_not_taken_for_one_whose_change_is_in_that_of_others(
    spool: HandSpool, tmp_path: Path
) -> None:
    # As an admission whose ids were forgotten by a seek: its ids are not those of admitted messages.
    ledger, calls = spool.ledger, []
    assert ledger is not None
    given_up = (lambda _state: None, lambda: calls.append("given up"))
    put = ({"commit": 1}, lambda: calls.append("put"))
    for asked in together(ledger, tmp_path / "pause", put, given_up):
        assert asked.result().committed == 1
    assert calls == ["put"]


def test_what_cannot_share_a_record_is_put_in_the_order_of_the_requests(spool: HandSpool, tmp_path: Path) -> None:
    ledger = spool.ledger
    assert ledger is not None
    before = ledger.state.number
    for asked in together(ledger, tmp_path / "pause", {"commit": 1}, {"commit": 2}, {"layout": [2, 2]}, {"commit": 3}):
        asked.result()
    assert ledger.state.commits == [1, 2, 3]
    assert ledger.state.number == before + 5
    assert read_state(spool.store, spool.identity().spool) == ledger.state


def test_a_request_that_makes_no_sense_fails_alone_and_puts_nothing(spool: HandSpool, tmp_path: Path) -> None:
    ledger = spool.ledger
    assert ledger is not None
    first, wrong, last = together(ledger, tmp_path / "pause", {"commit": 1}, {"free": [9, 9]}, {"forget": []})
    assert first.result().committed == 1
    with pytest.raises(SpoolDamagedError, match="frees other segments"):
        wrong.result()
    assert last.result().committed == 1
    assert read_state(spool.store, spool.identity().spool) == ledger.state


def test_a_record_that_was_put_without_an_answer_is_settled_with_what_follows_it(spool: HandSpool) -> None:
    ledger, calls = spool.ledger, []
    assert ledger is not None
    before = ledger.state
    set_failpoints("ledger.after_put=raise:5:1")
    with pytest.raises(OSError, match="Input/output"):
        ledger.append({"commit": 1}, lambda: calls.append(ledger.state))
    set_failpoints("")
    assert (ledger.state, calls) == (before, []), "what is not known to be durable is not seen"
    ledger.settle()
    assert (ledger.state.committed, calls) == (1, [before])


def test_a_state_never_changes(spool: HandSpool) -> None:
    ledger = spool.ledger
    assert ledger is not None
    state, shown = ledger.state, ledger.state.snapshot()
    entries = list(state.segments)
    ledger.append({"free": [2, 2]})
    ledger.commit(4)
    spool.write(["more"])
    ledger.admit()
    ledger.replace_state(lambda state: state.quarantined(state.segments[0]))
    assert (state.snapshot(), list(state.segments)) == (shown, entries)
    with pytest.raises(FrozenInstanceError):
        state.head = 9  # type: ignore[misc]


def test_the_thread_ends_with_its_ledger(tmp_path: Path) -> None:
    spool = HandSpool(tmp_path / "spool")
    before = set(threading.enumerate())
    spool.open()
    [writer] = set(threading.enumerate()) - before
    spool.ledger = None
    wait_for(lambda: not writer.is_alive())
