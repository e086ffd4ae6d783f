"""Random histories of a ledger beside `LedgerModel`: fetchers, commits, compaction, restarts, crashes at every step."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from connectors.core.processes.failpoints import set_failpoints
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.stream.compaction import Compaction, CompactionSettings
from connectors.testing.object_store import ObjectStoreServer
from tests.support.ledger_model import LedgerModel
from tests.support.pubsub_sweep import points_in_code
from tests.support.spool_writing import HandSpool, ObjectSpool

pytestmark = pytest.mark.guarantee

STEPS = 60
SETTINGS = CompactionSettings(free_segments=2, recent_ids=8, merge=2)
CRASHES = sorted(
    point
    for point in points_in_code()
    if point.partition(".")[0] in {"ledger", "manifest", "fence", "opening", "ids", "free"}
)
_EIO = 5


@pytest.fixture(params=["folder", "object store"])
def spool(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HandSpool]:
    if request.param == "folder":
        yield HandSpool(tmp_path / "spool")
    else:
        with ObjectStoreServer() as server:
            yield ObjectSpool(server=server)


class History:
    """One random history of a spool; `crashed` counts the steps that a crash has interrupted."""

    def __init__(self, spool: HandSpool, seed: int) -> None:
        self.spool, self.random, self.model = spool, random.Random(seed), LedgerModel()
        self.crashed = 0
        self._writers = 0
        self._ids = 0
        self._generations = dict.fromkeys("abc", 0)
        self.ledger, self.compaction = self._open()

    def run(self, steps: int) -> None:
        """Take so many steps, and hold the ledger against the model after each."""
        for _ in range(steps):
            step = self.random.choice(
                [self._publish, self._publish, self._admit, self._commit, self._compact, self._restart]
            )
            step()
            self.check()
        self._restart()
        self.ledger.admit()
        self.check()
        assert self.model.waiting == 0

    def check(self) -> None:
        """Compare the state, and the rows of a random range, read twice."""
        self.model.observe(self.ledger.state)
        positions = self.model.readable()
        first, end = sorted(self.random.randint(positions.start, positions.stop) for _ in range(2))
        parts = self.spool.read(first, end)
        assert [row for part in parts for row in part] == [(at, self.model.rows[at]) for at in range(first, end)]
        assert self.spool.read(first, end) == parts

    def _open(self) -> tuple[Ledger, Compaction]:
        self._writers += 1
        ledger = self.spool.open(f"w{self._writers}")
        return ledger, Compaction(ledger, SETTINGS)

    def _restart(self) -> None:
        point = f"{self.random.choice(CRASHES)}=raise:{_EIO}:1" if self.random.random() < 0.5 else ""
        for failpoint in (point, ""):
            set_failpoints(failpoint)
            try:
                self.ledger, self.compaction = self._open()
            except OSError:
                self.crashed += 1
            else:
                return
            finally:
                set_failpoints("")

    def _crashing(self, step: Callable[[], object]) -> bool:
        """Take a step, in a third of all cases with a crash in it, after which another writer opens the spool."""
        if self.random.random() < 2 / 3:
            step()
            return False
        set_failpoints(f"{self.random.choice(CRASHES)}=raise:{_EIO}:{self.random.randint(1, 2)}")
        try:
            step()
        except OSError:
            self.crashed += 1
            set_failpoints("")
            self.ledger, self.compaction = self._open()
            return True
        finally:
            set_failpoints("")
        return False

    def _publish(self) -> None:
        fetcher = self._fetcher(self.random.choice("abc"))
        ids = [f"id-{self._ids + number}" for number in range(self.random.randint(1, 6))]
        self._ids += len(ids)
        known = [text for text in self.model.rows if self.random.random() < 0.05]
        ids += self.random.choices(ids + known, k=self.random.randint(0, 3))
        self.random.shuffle(ids)
        self.spool.write(ids, fetcher=fetcher)
        self.model.publish(fetcher, ids)

    def _fetcher(self, letter: str) -> str:
        """Return the name of a fetcher that runs: one that the ledger has forgotten has ended, and never returns."""
        name = f"{letter}{self._generations[letter]}"
        if self.model.was_admitted(name) and name not in self.ledger.state.fetchers:
            self._generations[letter] += 1
        return f"{letter}{self._generations[letter]}"

    def _admit(self) -> None:
        self._crashing(self.ledger.admit)

    def _commit(self) -> None:
        lowest = self.model.commits[-1] if self.model.commits else 0
        position = self.random.randint(lowest, self.model.head)
        if position > lowest:
            interrupted = self._crashing(lambda: self.ledger.commit(position))
            self.model.commit(position, interrupted=interrupted)

    def _compact(self) -> None:
        self._crashing(self.compaction.step)
        self._crashing(self.compaction.merge)


@pytest.mark.parametrize("seed", range(12))
def test_a_random_history_with_crashes_is_one_that_the_model_allows(spool: HandSpool, seed: int) -> None:
    history = History(spool, seed)
    history.run(STEPS)
    assert history.crashed


@pytest.mark.parametrize(
    "broken",
    [
        lambda state: replace(state, head=state.head + 1),
        lambda state: replace(state, commits=[*state.commits, state.head + 1]),
        lambda state: replace(state, counters={**state.counters, "duplicates": 1_000}),
        lambda state: replace(state, segments=state.segments.from_ordinal(state.ordinal)),
        lambda state: replace(state, ordinal=state.ordinal + 1),
    ],
    ids=["a gap", "a commit", "a count", "freed rows", "a segment"],
)
def test_the_model_refuses_a_state_that_breaks_a_rule(tmp_path: Path, broken: Callable) -> None:
    history = History(HandSpool(tmp_path / "spool"), 1)
    history.run(20)
    with pytest.raises(AssertionError):
        history.model.observe(broken(history.ledger.state))
