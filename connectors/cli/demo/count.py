"""Count what was published and what arrived: pure, so that planted faults can show that the count sees them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

FAULTS = ("lost", "doubled", "disordered", "foreign", "replays_differing")


class Message(NamedTuple):
    """A message of the demo: ``number`` counts all of them, ``turn`` those of its key; both begin at 0."""

    key: str
    number: int
    turn: int

    def encode(self, run: str) -> bytes:
        """Return the value that is published; ``run`` tells the messages of this run from all others."""
        return json.dumps({"run": run, **self._asdict()}, separators=(",", ":")).encode()


def make_messages(count: int, keys: int) -> list[Message]:
    return [Message(f"key-{number % keys:02d}", number, number // keys) for number in range(count)]


class Row(NamedTuple):
    """A row that was read: its value, and where the service had it (topic or shard, and the position there)."""

    text: str
    place: str
    position: str

    def message(self, run: str) -> Message | None:
        """Return the message, or None if another run, or somebody else, has published it."""
        try:
            value = json.loads(self.text)
            return Message(value["key"], value["number"], value["turn"]) if value["run"] == run else None
        except (ValueError, TypeError, KeyError):
            return None


class Attempt(NamedTuple):
    """One write of a batch: ``digest`` is that of its rows in order; ``ended`` counts seconds since 1970."""

    run: int
    batch: int
    rows: int
    digest: str
    ended: float


@dataclass(frozen=True, slots=True)
class Tally:
    """The count of one query; docs/faults/accounts.md says what each field is.

    Foreign rows have this run's name, and a number that was never published or has another key.
    """

    query: str
    delivered: int
    lost: int
    doubled: int
    disordered: int
    foreign: int
    replays: int
    replays_differing: int
    rows_per_second: int | None


def is_right(record: Mapping[str, Any]) -> bool:
    """Return whether the record of a run shows no fault; one that published nothing shows nothing."""
    return record["published"] > 0 and not any(record[fault] for fault in FAULTS)


def tally(
    query: str,
    run: str,
    published: Sequence[Message],
    rows: Iterable[Row],
    attempts: Sequence[Attempt] = (),
    repeated: Mapping[int, int] | None = None,
) -> Tally:
    """Count the rows of a query, which come in the order of its sink; the attempts come in the order of time.

    ``repeated`` says how often a message was published again, because a request was not answered.
    """
    seen: Counter[int] = Counter()
    newest: dict[str, int] = {}
    delivered = foreign = disordered = 0
    for row in rows:
        message = row.message(run)
        if message is None:
            continue
        delivered += 1
        if not (0 <= message.number < len(published) and published[message.number] == message):
            foreign += 1
            continue
        disordered += not seen[message.number] and message.turn < newest.get(message.key, -1)
        newest[message.key] = max(newest.get(message.key, -1), message.turn)
        seen[message.number] += 1
    allowed = repeated or {}
    replays, differing = _replays(attempts)
    return Tally(
        query=query,
        delivered=delivered,
        lost=len(published) - len(seen),
        doubled=sum(max(0, count - 1 - allowed.get(number, 0)) for number, count in seen.items()),
        disordered=disordered,
        foreign=foreign,
        replays=replays,
        replays_differing=differing,
        rows_per_second=_rate(attempts),
    )


def _replays(attempts: Iterable[Attempt]) -> tuple[int, int]:
    first: dict[int, str] = {}
    replays = differing = 0
    for attempt in attempts:
        replays += attempt.batch in first
        differing += first.setdefault(attempt.batch, attempt.digest) != attempt.digest
    return replays, differing


def rows_written(attempts: Iterable[Attempt]) -> int:
    """Return the rows in a sink where a batch that is written again replaces the one before."""
    return sum({attempt.batch: attempt.rows for attempt in attempts}.values())


def _rate(attempts: Sequence[Attempt]) -> int | None:
    """Return rows a second from the end of the first batch of each run, which starts Python's workers, to the last."""
    rows, seconds = 0, 0.0
    for run in {attempt.run for attempt in attempts}:
        first, *others = [attempt for attempt in attempts if attempt.run == run]
        rows += sum(attempt.rows for attempt in others)
        seconds += others[-1].ended - first.ended if others else 0.0
    return round(rows / seconds) if seconds else None
