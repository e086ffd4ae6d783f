"""What a hostile attempt may end in, and the process that makes attempts of one kind, one after the other.

It is a process of its own, since an attempt may end it: the line of an attempt in its log begins before the attempt, so
that one which ends the process, or goes beyond its time, is known by its number. The bytes of an attempt follow from
seed and number.
"""

from __future__ import annotations

import faulthandler
import itertools
import logging
import random
import resource
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from connectors.core.errors import ConnectorError, printable

__all__ = ["ATTEMPT_SECONDS", "SAME", "Attempt", "Kind", "assert_clean", "run_attempts"]

ATTEMPT_SECONDS: Final = 60
"""An attempt that takes longer is a hang: what is refused for its time has a limit far below."""
SAME: Final = {"same": 1}
"""The outcome of an attempt that gives the rows, or the result, that it must."""
_MORE_MEMORY: Final = 3 << 30
"""The memory that attempts may get, beside what their process has before the first."""

Attempt = Callable[[], Mapping[str, int]]
"""Makes one attempt by `random`. It returns how many gave what, and raises a `ConnectorError` for what is refused."""


@dataclass(frozen=True)
class Kind:
    """One kind of attempts.

    Attributes:
        what: is tried, for the report.
        ready: makes all that is needed in a folder, and gives the attempt.
    """

    what: str
    ready: Callable[[Path], AbstractContextManager[Attempt]]


def assert_clean(text: str) -> None:
    """Refuse a text that controls a terminal, or cannot be written as UTF-8."""
    assert text == printable(text), f"not clean: {ascii(text)[:300]}"
    text.encode()


class _LogCheck(logging.Handler):
    """Notes each line of our loggers that could control a terminal, or forge another line."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Check a line."""
        line = record.getMessage()
        if record.name.startswith("connectors") and (line != printable(line) or "\n" in line):
            self.found.append(f"a line of the log is not clean: {ascii(line)[:300]}")


def outcome_of(attempt: Attempt, log: _LogCheck) -> str:
    """Make an attempt: a count for each outcome, as ``same=1`` or ``SPOOL_RECORD_DAMAGED=1``, or what is wrong."""
    log.found.clear()
    try:
        counts = dict(attempt())
    except ConnectorError as error:
        counts, text = {error.code: 1}, str(error)
        if text != printable(text):
            return f"wrong: the error is not clean: {ascii(text)[:300]}"
    except BaseException as error:  # noqa: BLE001 - all that is left is a finding
        return f"wrong: {type(error).__name__}: {ascii(error)[:500]}"
    if log.found:
        return f"wrong: {log.found[0]}"
    return " ".join(f"{name}={count}" for name, count in counts.items())


def run_attempts(
    kind: Kind, folder: Path, seed: int, first: int, seconds: float, *, more_memory: int | None = _MORE_MEMORY
) -> None:
    """Make attempts from a number on, and write each into ``folder/log`` as its number, then its outcome.

    From the first on, this process may get ``more_memory`` than it has, and no more.
    """
    check = _LogCheck()
    logging.getLogger().addHandler(check)
    place = folder / f"from-{first}"
    place.mkdir()
    with kind.ready(place) as attempt, (folder / "log").open("a") as log:
        if more_memory is not None:
            size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + more_memory, resource.RLIM_INFINITY))
        end = time.monotonic() + seconds
        for number in itertools.count(first):
            if time.monotonic() > end:
                break
            random.seed(f"{seed} {number}")
            log.write(f"{number} ")
            log.flush()
            faulthandler.dump_traceback_later(ATTEMPT_SECONDS, exit=True)
            log.write(outcome_of(attempt, check) + "\n")
            faulthandler.cancel_dump_traceback_later()
            log.flush()


def read_log(text: str) -> tuple[Counter[str], list[tuple[int, str]], int]:
    """Read what `run_attempts` wrote: counts by outcome, number and text of what is wrong, and the next number.

    A line without an outcome is that of an attempt that ended the process.
    """
    counts: Counter[str] = Counter()
    wrong = []
    following = 0
    for line in filter(None, text.splitlines()):
        number, _, outcome = line.partition(" ")
        following = int(number) + 1
        if not outcome or outcome.startswith("wrong: "):
            counts["wrong"] += 1
            wrong.append((int(number), outcome.removeprefix("wrong: ")))
        else:
            for each in outcome.split():
                name, _, count = each.partition("=")
                counts[name] += int(count)
    return counts, wrong, following
