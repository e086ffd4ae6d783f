"""``./dev chaos hostile`` counts what became of each attempt, and sees each kind of wrong outcome."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from connectors.core.errors import ConnectorError
from tests.chaos.rigs.hostile_attempts import SAME, Attempt, Kind, read_log, run_attempts


def raising(error: BaseException) -> Attempt:
    def attempt() -> dict[str, int]:
        raise error

    return attempt


def logging_attempt(text: str) -> Attempt:
    def attempt() -> dict[str, int]:
        logging.getLogger("connectors.hostile").warning("%s", text)
        return SAME

    return attempt


class UncleanError(ConnectorError):
    def __str__(self) -> str:
        return "[CODE] \x1b[2J"


@pytest.mark.parametrize(
    ("attempt", "outcome"),
    [
        (lambda: SAME, "same"),
        (raising(ConnectorError("CODE", "\x1b[2J\nline")), "CODE"),
        (logging_attempt("one line"), "same"),
        (raising(ValueError("no number")), "wrong"),
        (raising(MemoryError()), "wrong"),
        (raising(AssertionError("other rows")), "wrong"),
        (raising(SystemExit(0)), "wrong"),
        (raising(UncleanError("CODE", "x")), "wrong"),
        (logging_attempt("two\nlines"), "wrong"),
        (logging_attempt("\x1b[2J"), "wrong"),
    ],
)
def test_an_attempt_is_the_same_refused_by_name_or_wrong(
    attempt: Callable[[], dict[str, int]], outcome: str, tmp_path: Path
) -> None:
    @contextmanager
    def ready(_folder: Path) -> Iterator[Attempt]:
        yield attempt

    # A limit of memory would stay for all tests of this process.
    run_attempts(Kind("", ready), tmp_path, 7, 3, 0.01, more_memory=None)
    counts, wrong, following = read_log((tmp_path / "log").read_text())
    assert set(counts) == {outcome}
    assert following == 3 + counts[outcome]
    assert len(wrong) == (counts["wrong"] if outcome == "wrong" else 0)
