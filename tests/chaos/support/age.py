"""How old a record of faults is: the commits that changed the code that it speaks of since its trials ran.

The report says it as of a commit that it names: the last one that had changed the product when the page was made. A
test computes it again for that commit, so the page cannot call a stale record current; but a later change of the
product breaks no test, since it makes no sentence of the page wrong. `./dev chaos report` moves the page on.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.chaos.support.record import ROOT, parts_of


@dataclass(frozen=True, slots=True)
class Age:
    """How many commits changed the parts since the newest and the oldest trial, which parts, and what is unknown."""

    newest: int
    oldest: int
    parts: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    """Commits of trials that the history does not have: it was rewritten after them."""

    def __str__(self) -> str:
        """Return a cell of the report."""
        texts = []
        if self.oldest:
            counts = f"{self.oldest}" if self.newest == self.oldest else f"{self.newest} to {self.oldest}"
            texts.append(f"{counts} commit{'s' if self.oldest > 1 else ''} behind in {', '.join(self.parts)}")
        if self.unknown:
            texts.append(f"age unknown: not in the history: {', '.join(f'`{commit}`' for commit in self.unknown)}")
        return "; ".join(texts) or "current"


def has_history(repository: Path = ROOT) -> bool:
    """Return whether this is a clone with its whole history."""
    asked = _run(repository, "rev-parse", "--is-shallow-repository")
    return asked.returncode == 0 and asked.stdout.strip() == "false"


def product_commit(repository: Path = ROOT) -> str:
    """Return the last commit that changed the product."""
    return _git(repository, "log", "-1", "--format=%H", "--", "connectors")


@cache
def history(commit: str, repository: Path = ROOT) -> frozenset[str]:
    """Return all commits that a commit stands on, and itself."""
    return frozenset(_git(repository, "rev-list", commit).split())


def age(record: Mapping[str, Any], commit: str, repository: Path = ROOT) -> Age:
    """Return how old a record is as of a commit."""
    parts = parts_of(record["what"])
    paths = [f"connectors/{part}" for part in parts]
    made = dict.fromkeys(str(trial.get("commit", record["commit"])) for trial in record["trials"])
    known = [each for each in made if each in history(commit, repository)]
    unknown = tuple(each[:7] for each in made if each not in known)
    counts: list[int] = []
    changed: set[str] = set()
    for each in known:
        log = _git(repository, "log", "--format=tformat:@", "--name-only", f"{each}..{commit}", "--", *paths)
        counts.append(log.split("\n").count("@"))
        changed |= {part for name in log.split("\n") for part in parts if name.startswith(f"connectors/{part}/")}
    behind = tuple(part for part in parts if part in changed)
    return Age(min(counts, default=0), max(counts, default=0), behind, unknown)


def _git(repository: Path, *arguments: str) -> str:
    """Return what git prints.

    Raises:
        RuntimeError: it fails, as outside of a clone.
    """
    done = _run(repository, *arguments)
    if done.returncode != 0:
        raise RuntimeError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def _run(repository: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=repository, capture_output=True, text=True, check=False)
