"""A store that does not answer for a moment, or a disk that is full for one, is waited out at every step."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from connectors.core.offsets import SENTINEL
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.store.local import LocalStore
from connectors.spool.stream.admission import StartedFetching
from connectors.spool.stream.compaction import Compaction, CompactionSettings
from tests.support.spool_streams import open_stream, start_nothing
from tests.support.spool_writing import HandSpool
from tests.support.waiting import wait_for


class PausingStore(LocalStore):
    """Does not answer the next time that a run of ids is looked at."""

    silent = False

    def map(self, name: str) -> memoryview:
        if self.silent and name.startswith("ids/"):
            self.silent = False
            raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), name)
        return super().map(name)


def test_a_pause_while_ids_are_written_leaves_no_run_that_only_the_record_knows(tmp_path: Path) -> None:
    spool = HandSpool(tmp_path / "spool")
    store = PausingStore(str(spool.root), spool.owner)
    spool.stores[spool.owner] = store
    ledger = spool.open()
    compaction = Compaction(ledger, CompactionSettings(recent_ids=1, merge=2))
    spool.write(["1", "2"])
    ledger.admit()
    store.silent = True
    with pytest.raises(OSError, match="timed out"):
        compaction.step()
    spool.write(["3"])
    ledger.admit()
    compaction.step()
    spool.write(["4", "5", "6"])
    ledger.admit()
    compaction.step()
    assert [run.name for run in ledger.state.runs] == [run.entry.name for run in ledger.index.runs("0.0")]
    assert compaction.merge()
    spool.write([str(number) for number in range(1, 7)])
    ledger.admit()
    assert ledger.state.head == 6


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ETIMEDOUT])
def test_fetchers_are_started_when_the_pause_at_the_start_is_over(tmp_path: Path, code: int) -> None:
    calls: list[int] = []

    def start(ledger: Ledger, wake: Callable[[], None]) -> StartedFetching:
        calls.append(len(calls))
        if len(calls) < 3:
            raise OSError(code, os.strerror(code), "a store")
        return start_nothing(ledger, wake)

    with open_stream(tmp_path / "spool", start_fetching=start) as stream:
        wait_for(lambda: stream._background.compaction is not None)
        assert len(calls) == 3
        assert stream.latest_offset(SENTINEL, 10)["position"] == 0
