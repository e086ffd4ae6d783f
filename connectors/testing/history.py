"""Judges the history of a stream: what was published, and what each attempt of a batch held.

A history is JSON, one event a line, in the order in which things happened. It may come from a simulation, from a test
against real servers, or from another system: nothing here knows how it was made.

* ``{"event": "publish", "id": "m1", "key": "k1"}``: the service accepted a message. Ids are unique. The order of a key
  is that of its lines; ``key`` may be absent.
* ``{"event": "batch", "batch": 3, "rows": [[17, "m1"]]}``: an attempt of a batch has handed these rows to its sink,
  each a position and an id. A position is null where the source has none.
* ``{"event": "commit", "batch": 3}``: the batch is done.
* ``{"event": "end", "drained": true}``: the end. ``drained`` says that the reader had all the time it wanted after the
  last message, so what is missing now never comes.

Other events, and further fields, are ignored. A sink keeps one attempt per batch, whichever; so all attempts of a batch
must hold equal rows in equal order.

As a command: ``python -m connectors.testing.history [--ordered] FILE...`` prints a verdict for each file, and ends with
1 if one of them is wrong.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

__all__ = ["Verdict", "judge"]

_MOST_SHOWN = 5


@dataclass(slots=True)
class Verdict:
    """What is wrong with a history; each list is empty in a right one.

    Attributes:
        lost: ids that were published and are in no committed batch, if the history was drained.
        doubled: ids that are in committed batches more than once.
        invented: ids that were never published.
        differing: batches of which two attempts held other rows.
        disordered: ids that came after a later message of their key.
        gaps: positions that follow one another and are not neighbours, as pairs.
    """

    published: int = 0
    delivered: int = 0
    replays: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    invented: list[str] = field(default_factory=list)
    differing: list[int] = field(default_factory=list)
    disordered: list[str] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)

    @property
    def wrong(self) -> dict[str, list[Any]]:
        """What is wrong, by kind; empty for a right history."""
        kinds = ("lost", "doubled", "invented", "differing", "disordered", "gaps")
        return {kind: getattr(self, kind) for kind in kinds if getattr(self, kind)}

    def __str__(self) -> str:
        counts = f"{self.published} published, {self.delivered} delivered, {self.replays} replays"
        if not self.wrong:
            return f"right: {counts}"
        wrong = (f"{len(what)} {kind} ({', '.join(map(str, what[:_MOST_SHOWN]))})" for kind, what in self.wrong.items())
        return f"WRONG: {'; '.join(wrong)}; {counts}"


def judge(events: Iterable[Mapping[str, Any]], *, ordered: bool = False) -> Verdict:
    """Judge a history; with `ordered` the messages of each key must come in the order of their publication.

    Raises:
        ValueError: an event lacks a field.
    """
    verdict = Verdict()
    published: dict[str, str] = {}
    batches: dict[int, list[tuple[int | None, str]]] = {}
    committed: set[int] = set()
    drained = False
    for number, event in enumerate(events):
        try:
            match event["event"]:
                case "publish":
                    published[event["id"]] = event.get("key", "")
                case "batch":
                    rows = [(position, name) for position, name in event["rows"]]
                    _attempt(verdict, batches, event["batch"], rows)
                case "commit":
                    committed.add(event["batch"])
                case "end":
                    drained = event["drained"]
        except (KeyError, TypeError) as error:
            raise ValueError(f"event {number} is malformed: {event}") from error
    rows = [row for batch in sorted(committed) for row in batches.get(batch, [])]
    _count(verdict, published, rows, drained=drained)
    if ordered:
        _order(verdict, published, rows)
    return verdict


def _attempt(
    verdict: Verdict,
    batches: dict[int, list[tuple[int | None, str]]],
    batch: int,
    rows: list[tuple[int | None, str]],
) -> None:
    if batch in batches:
        verdict.replays += 1
        if batches[batch] != rows:
            verdict.differing.append(batch)
    batches.setdefault(batch, rows)


def _count(
    verdict: Verdict, published: Mapping[str, str], rows: list[tuple[int | None, str]], *, drained: bool
) -> None:
    counts = Counter(name for _, name in rows)
    verdict.published, verdict.delivered = len(published), len(rows)
    verdict.invented = [name for name in counts if name not in published]
    verdict.doubled = [name for name, count in counts.items() if count > 1]
    if drained:
        verdict.lost = [name for name in published if name not in counts]
    positions = [position for position, _ in rows if position is not None]
    verdict.gaps = [(one, other) for one, other in pairwise(positions) if other != one + 1]


def _order(verdict: Verdict, published: Mapping[str, str], rows: list[tuple[int | None, str]]) -> None:
    place = {name: number for number, name in enumerate(published)}
    newest: dict[str, int] = {}
    for _, name in rows:
        if name in place:
            key = published[name]
            if place[name] < newest.get(key, -1):
                verdict.disordered.append(name)
            newest[key] = max(place[name], newest.get(key, -1))


def main(arguments: list[str]) -> int:
    """Judge the files that are named."""
    ordered = "--ordered" in arguments
    wrong = False
    for path in (Path(name) for name in arguments if name != "--ordered"):
        with path.open() as lines:
            verdict = judge(map(json.loads, lines), ordered=ordered)
        sys.stdout.write(f"{path}: {verdict}\n")
        wrong |= bool(verdict.wrong)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
