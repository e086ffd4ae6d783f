"""Crashes while ids are written, merged, expired and segments freed; long stops; clocks that jump (rules R6 and R8).

A crash is an error at a failpoint after which the writer is thrown away and another one opens the spool.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from connectors.core.processes.failpoints import set_failpoints
from connectors.spool.stream.compaction import Compaction, CompactionSettings
from connectors.testing.clock import ServerClock
from tests.support.spool_writing import HandSpool, much_later

pytestmark = pytest.mark.guarantee

HOUR = 3_600_000_000
DAY = 24 * HOUR

ROUNDS = 14
ROWS = 6
COPIES_AFTER = 4
SETTINGS = CompactionSettings(horizon=6 * 3600.0, free_segments=2, recent_ids=8, merge=2)

POINTS = [
    "ids.before_write",
    "ids.after_write",
    "ids.after_record",
    "free.before_record",
    "free.after_record",
    "free.after_delete",
    "ids.before_swap_record",
    "ids.after_swap_record",
    "ledger.before_put",
    "ledger.after_put",
    "store.before_sync",
    "store.before_link",
    "store.before_folder_sync",
    "store.after_publish",
]


def numbers(round_: int) -> list[str]:
    return [str(round_ * ROWS + row) if row % 2 else f"id-{round_}-{row}" for row in range(ROWS)]


class Lives:
    """A spool whose segments arrive one round after the other: new messages, and copies of those of some rounds ago."""

    def __init__(self, folder: Path) -> None:
        self.spool = HandSpool(folder / "spool")
        self._waiting = folder / "waiting"
        self.crashes = 0
        for round_ in range(ROUNDS):
            self.spool.write(numbers(round_), fetcher=f"new-{round_}", published=DAY + round_ * HOUR)
            if round_ >= COPIES_AFTER:
                first = round_ - COPIES_AFTER
                self.spool.write(numbers(first), fetcher=f"old-{round_}", published=DAY + first * HOUR)
        (self.spool.root / "inbox").rename(self._waiting)
        self._open()

    def run(self, failpoint: str) -> None:
        """Admit, commit, free, expire and merge in each round, through whatever happens at the failpoint."""
        set_failpoints(failpoint)
        try:
            for round_ in range(ROUNDS):
                self._deliver(round_)
                self._until_done()
        finally:
            set_failpoints("")

    def _open(self) -> None:
        self.spool.age("ids", 86_400.0)
        self.ledger = self.spool.open()
        self.compaction = Compaction(self.ledger, SETTINGS, much_later)

    def _deliver(self, round_: int) -> None:
        for kind in ("new", "old"):
            folder = self._waiting / f"{kind}-{round_}"
            if folder.exists():
                (self.spool.root / "inbox").mkdir(exist_ok=True)
                folder.rename(self.spool.root / "inbox" / folder.name)

    def _one_round(self) -> None:
        self.ledger.admit()
        self.ledger.commit(self.ledger.state.head)
        self.compaction.step()
        self.compaction.note_admitted()
        self.compaction.expire()
        while self.compaction.merge():
            pass

    def _until_done(self) -> None:
        while True:
            try:
                self._one_round()
            except OSError:
                self.crashes += 1
                self._open()
            else:
                return


@pytest.mark.parametrize("passes", [1, 4])
@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_any_step_of_compaction_doubles_nothing_and_leaves_nothing_behind(
    point: str, passes: int, tmp_path: Path
) -> None:
    lives = Lives(tmp_path)
    lives.run(f"{point}=raise:5:{passes}")
    assert lives.crashes == 1, "the failpoint is passed that often"
    ledger = lives.spool.open()
    assert ledger.state.head == ROUNDS * ROWS
    assert ledger.state.counters == {
        "delivered": (2 * ROUNDS - COPIES_AFTER) * ROWS,
        "duplicates": (ROUNDS - COPIES_AFTER) * ROWS,
    }
    root = lives.spool.root
    assert {path.name for path in root.glob("ids/*")} == {run.name for run in ledger.state.runs}
    segments = {str(path.relative_to(root)) for path in root.glob("inbox/*/*")}
    assert segments == {entry.name for entry in ledger.state.segments}
    assert not list(root.glob("tmp/*"))
    # Seven hours of ids are within the horizon, an eighth of it more may wait to expire.
    assert sum(run.ids for run in ledger.state.runs) <= 9 * ROWS


class Due:
    """A spool in which one step of the compaction is due, to be taken up again and again."""

    def __init__(self, folder: Path, step: str) -> None:
        self.step = step
        self.spool = HandSpool(folder / "spool")
        self._template = folder / "template"
        ledger = self.spool.open()
        compaction = Compaction(ledger, SETTINGS, much_later)
        self.rounds = 6
        self.checks = 0
        for round_ in range(self.rounds):
            # For an expiry all but the last one are older than the horizon.
            hour = 8 if step == "expire" and round_ == self.rounds - 1 else round_ / 10
            self.published = DAY + int(hour * HOUR)
            self.spool.write(numbers(round_), published=self.published)
            ledger.admit()
            ledger.commit(ledger.state.head)
            if step != "step" and round_ < self.rounds - 1:
                compaction.step()
        self.spool.age("ids", 86_400.0)
        shutil.copytree(self.spool.root, self._template)

    def crash(self, failpoint: str) -> bool:
        """Do the step from the beginning; whether it crashed at the failpoint."""
        shutil.rmtree(self.spool.root)
        shutil.copytree(self._template, self.spool.root)
        compaction = Compaction(self.spool.open(), SETTINGS, much_later)
        compaction.note_admitted()
        set_failpoints(failpoint)
        try:
            getattr(compaction, self.step)()
        except OSError:
            return True
        finally:
            set_failpoints("")
        return False

    def check(self) -> None:
        """Another writer takes the spool over and does the step: nothing is doubled, and nothing is left behind."""
        ledger = self.spool.open()
        compaction = Compaction(ledger, SETTINGS, much_later)
        compaction.note_admitted()
        getattr(compaction, self.step)()
        known = [self.rounds - 1] if self.step == "expire" else range(self.rounds)
        self.checks += 1
        for round_ in known:
            self.spool.write(numbers(round_), fetcher=f"copy-{self.checks}-{round_}", published=self.published)
        ledger.admit()
        assert ledger.state.head == self.rounds * ROWS
        root = self.spool.root
        assert {path.name for path in root.glob("ids/*")} == {run.name for run in ledger.state.runs}
        segments = {str(path.relative_to(root)) for path in root.glob("inbox/*/*")}
        assert segments == {entry.name for entry in ledger.state.segments}


@pytest.mark.parametrize("step", ["step", "merge", "expire"])
def test_a_crash_at_every_pass_of_every_failpoint_of_a_step_doubles_nothing_and_leaves_nothing_behind(
    step: str, tmp_path: Path
) -> None:
    due = Due(tmp_path, step)
    crashes = dict.fromkeys(POINTS, 0)
    for point in POINTS:
        while due.crash(f"{point}=raise:5:{crashes[point] + 1}"):
            crashes[point] += 1
            due.check()
    passed = {point for point, count in crashes.items() if count}
    own = {
        "step": {"ids.before_write", "ids.after_write", "ids.after_record"} | {p for p in POINTS if p[:4] == "free"},
        "merge": {"ids.before_write", "ids.after_write", "ids.before_swap_record", "ids.after_swap_record"},
        "expire": {"ids.before_swap_record", "ids.after_swap_record"},
    }
    assert passed == own[step] | {point for point in POINTS if point.startswith(("ledger", "store"))}


def test_eight_days_of_stop_with_copies_waiting_in_the_inbox(tmp_path: Path) -> None:
    """The copies were fetched before the stop and are admitted after it, together with what is eight days younger."""
    spool = HandSpool(tmp_path / "spool")
    settings = CompactionSettings(horizon=7 * 86_400.0, free_segments=1, recent_ids=8)
    ledger = spool.open()
    compaction = Compaction(ledger, settings)
    ids = [str(number) for number in range(40)]
    for first in range(0, 40, 4):
        spool.write(ids[first : first + 4], published=DAY + first)
        ledger.admit()
        ledger.commit(ledger.state.head)
        compaction.step()
    assert ledger.state.runs
    spool.write(["younger"], fetcher="a", published=9 * DAY)
    spool.write(ids, fetcher="b", published=DAY)
    spool.age("ids", 8 * 86_400.0)
    ledger = spool.open()
    compaction = Compaction(ledger, settings, much_later)
    ledger.admit()
    compaction.step()
    compaction.note_admitted()
    compaction.expire()
    assert ledger.state.head == 41
    # Now nothing can bring them again, so their ids are let go.
    assert [run.ids for run in ledger.state.runs] == [1]
    assert not ledger.index.recent()


@pytest.mark.parametrize("away", ["forward", "back"])
def test_a_service_clock_that_goes_wrong_by_a_day_loses_nothing_and_doubles_nothing_within_the_rest(
    away: str, tmp_path: Path
) -> None:
    """Time is the largest publish time: a day too much takes a day from the horizon, and no message."""
    right, wrong = ServerClock(), ServerClock()
    (wrong if away == "forward" else right).jump(86_400)
    spool = HandSpool(tmp_path / "spool")
    ledger = spool.open()
    compaction = Compaction(ledger, CompactionSettings(horizon=7 * 86_400.0, free_segments=1, recent_ids=1), much_later)
    sent: list[tuple[str, int]] = []
    for number in range(60):
        clock = wrong if 20 <= number < 30 else right
        sent.append((str(number), clock.now() // 1000))
        for text, published in (sent[-1], sent[max(0, number - 50)]):
            spool.write([text], published=published)
        ledger.admit()
        compaction.step()
        compaction.note_admitted()
        compaction.expire()
        for each in (right, wrong):
            each.jump(7_200)
    assert ledger.state.head == 60
    assert spool.all_ids() == [text for text, _ in sent]


def test_the_drivers_clock_decides_nothing(tmp_path: Path) -> None:
    """Publish times of long ago and of far away expire by each other and by nothing else."""
    for first in (0, DAY, 50 * 365 * DAY, 200 * 365 * DAY):
        spool = HandSpool(tmp_path / str(first))
        ledger = spool.open()
        compaction = Compaction(ledger, CompactionSettings(horizon=86_400.0, recent_ids=1), much_later)
        for published in (first, first + DAY):
            spool.write(["1"], published=published)
            ledger.admit()
            compaction.step()
            compaction.note_admitted()
            compaction.expire()
        assert ledger.state.head == 1
        shutil.rmtree(spool.root)
