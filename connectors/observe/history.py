"""The recent past of a query: its rate and its lag over time, and when a backlog is gone. Pure functions, no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import linear_regression
from typing import Final

_SPAN_MS: Final = 600_000.0
_AT_LEAST: Final = 30
_AT_MOST: Final = 10_000
_TREND_MS: Final = 30_000.0
_TREND_SAMPLES: Final = 8
_TREND_LEAST: Final = 3
_TURN_SAMPLES: Final = 5
_STEADY: Final = 0.1
"""A lag that changes by less than this share of its peak, over what a trend is taken from, is steady."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The input rows of a query from one time to another, and its lag at the end; None if a source counts no records.

    The times are in milliseconds since 1970, and the same for a query that is idle.
    """

    begin_ms: float
    end_ms: float
    rows: int
    records: int | None
    seconds: float


class History:
    """The samples of the last ten minutes, or the last 30 samples if these go back further.

    A trend is taken from the last 30 seconds, or the last 8 samples if these go back further, since the lag turned.
    """

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=_AT_MOST)

    def add(self, sample: Sample) -> None:
        """Take a sample that is newer than all before."""
        samples = self._samples
        samples.append(sample)
        while len(samples) > _AT_LEAST and samples[0].end_ms < sample.end_ms - _SPAN_MS:
            samples.popleft()

    @property
    def seconds(self) -> float:
        """The time that the samples cover, in seconds."""
        if not self._samples:
            return 0.0
        return max(0.0, self._samples[-1].end_ms - self._samples[0].begin_ms) / 1000

    @property
    def counts_records(self) -> bool:
        """Whether the lag is in records; in seconds otherwise."""
        return all(sample.records is not None for sample in self._samples)

    def rates(self, columns: int) -> list[float]:
        """Return the input rows a second, averaged over each of so many equal parts of the time."""
        first, width = self._parts(columns)
        rows = [0.0] * columns
        for sample in self._samples:
            took = sample.end_ms - sample.begin_ms
            if took <= 0 or width <= 0:
                continue
            column_of_begin = max(0, int((sample.begin_ms - first) / width))
            for column in range(column_of_begin, min(columns, int((sample.end_ms - first) / width) + 1)):
                begin = first + column * width
                shared = min(sample.end_ms, begin + width) - max(sample.begin_ms, begin)
                rows[column] += sample.rows * max(0.0, shared) / took
        return [each * 1000 / width if width > 0 else 0.0 for each in rows]

    def lags(self, columns: int) -> list[float]:
        """Return the lag at the end of each of so many equal parts of the time."""
        first, width = self._parts(columns)
        values, left, found = deque(zip(self._samples, self._values(), strict=True)), 0.0, []
        for column in range(columns):
            end = first + (column + 1) * width
            while values and (values[0][0].end_ms <= end or column == columns - 1):
                left = values.popleft()[1]
            found.append(left)
        return found

    def change(self) -> float | None:
        """Return how fast the lag changes, a second; 0 where it is steady, None where too little is known."""
        points: Sequence[tuple[float, float]] = [
            (each.end_ms / 1000, value) for each, value in zip(self._samples, self._values(), strict=True)
        ]
        recent = sum(each.end_ms >= self._samples[-1].end_ms - _TREND_MS for each in self._samples)
        points = _since_turn(points[-max(recent, _TREND_SAMPLES) :])
        if len(points) < _TREND_LEAST or points[0][0] == points[-1][0]:
            return None
        slope = linear_regression(*zip(*points, strict=True)).slope
        is_steady = abs(slope) * (points[-1][0] - points[0][0]) < _STEADY * max(value for _, value in points)
        return 0.0 if is_steady else slope

    def seconds_left(self) -> float | None:
        """Return in how many seconds the backlog is gone if it shrinks on as it does; None if it does not."""
        change, values = self.change(), self._values()
        return values[-1] / -change if change is not None and change < 0 and values[-1] > 0 else None

    def _parts(self, columns: int) -> tuple[float, float]:
        if not self._samples:
            return 0.0, 0.0
        return self._samples[0].begin_ms, self.seconds * 1000 / columns

    def _values(self) -> list[float]:
        counts = self.counts_records
        return [float(each.records or 0) if counts else each.seconds for each in self._samples]


def _since_turn(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Return the points from the highest or the lowest one on, so that a burst before does not hide what follows it."""
    values = [value for _, value in points]
    turns = [values.index(turn) for turn in (max(values, default=0), min(values, default=0)) if values]
    return points[max((turn for turn in turns if turn <= len(points) - _TURN_SAMPLES), default=0) :]
