"""What was read, held against what was sent: lost, doubled or altered, and out of order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

__all__ = ["out_of_order", "outcome"]

_SHOWN = 300


def outcome(
    sent: Sequence[Hashable], found: Sequence[Hashable], late: Sequence[Hashable] = (), **counts: int
) -> dict[str, Any]:
    """Return the outcome of a trial for its record.

    Args:
        sent: all that must be read, whole and different from each other.
        found: all that was read.
        late: what was read out of the order that is promised.
        counts: further counts.
    """
    assert len(set(sent)) == len(sent) > 0, "records that are alike cannot be told apart"
    lost = list((Counter(sent) - Counter(found)).elements())
    doubled = list((Counter(found) - Counter(sent)).elements())
    named = {"lost": lost, "doubled or altered": doubled, "out of order": late}
    faults = [f"{len(each)} {what}, the first: {each[0]!r:.{_SHOWN}}" for what, each in named.items() if each]
    numbers = {"messages": len(sent), "lost": len(lost), "doubled": len(doubled), "out_of_order": len(late)}
    return {"ok": not faults, "faults": faults, "counts": {**numbers, **counts}}


def out_of_order(
    sent: Sequence[Hashable], found: Sequence[Hashable], group: Callable[[Any], Hashable]
) -> list[Hashable]:
    """Return what was read after a record of its group that was sent later."""
    place = {record: number for number, record in enumerate(sent)}
    latest: dict[Hashable, int] = {}
    late = []
    for record in found:
        if record not in place:
            continue  # it has no order
        number, of_group = place[record], group(record)
        if number < latest.get(of_group, -1):
            late.append(record)
        latest[of_group] = max(number, latest.get(of_group, -1))
    return late
