"""When an answer is fresh, and where a bounded run ends: pure decisions over what was seen.

Times are seconds of the monotonic clock; publish times are microseconds of the service.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Arrivals", "QuietWatch"]


@dataclass(slots=True)
class Arrivals:
    """What has come in, kept up to date by the admitting thread.

    Attributes:
        healthy_since: when all streams were last seen to become healthy; None while they are not.
        settled: all rows received before this time are admitted; a fetcher may hold later ones.
        old: when a row published before `bound_time` was last admitted; None if none was.
        bound_time: publish time that separates old rows from new ones; None outside bounded runs.
        began: when the bounded run began.
    """

    healthy_since: float | None = None
    settled: float = 0.0
    old: float | None = None
    bound_time: int | None = None
    began: float = 0.0

    def begin(self, now: float, bound_time: int) -> None:
        """A bounded run begins, at this time of the service as far as it is known."""
        self.began, self.bound_time = now, bound_time

    def round_ended(self, now: float, *, healthy: bool, settled: float) -> None:
        """A round of admission has ended while the streams were healthy, or not, with all admitted up to a time."""
        self.settled = max(self.settled, settled)
        if not healthy:
            self.healthy_since = None
        elif self.healthy_since is None:
            self.healthy_since = now

    def admitted(self, now: float, published: tuple[int, int] | None, kept: int) -> None:
        """A segment was admitted, whose rows were published between two times."""
        if self.bound_time is not None and published is not None:
            # Seen now, so the service's clock was at least so far when the run began, whatever the clock here said.
            self.bound_time = max(self.bound_time, published[1] - int((now - self.began) * 1e6))
        if kept and self.bound_time is not None and (published is None or published[0] < self.bound_time):
            self.old = now


@dataclass(frozen=True, slots=True)
class QuietWatch:
    """Decides that all messages published before the start of a bounded run have come.

    Attributes:
        began: when the run began.
        quiet: for so many seconds healthy streams must have brought nothing old; what a fetcher still holds may be old.
        longest: so many seconds without old rows end the run, healthy or not.
    """

    began: float
    quiet: float
    longest: float

    def over(self, now: float, arrivals: Arrivals) -> bool:
        """Whether the run's end may be fixed now."""
        last = max(self.began, arrivals.old or self.began)
        if now - last >= self.longest:
            return True
        since = arrivals.healthy_since
        return since is not None and arrivals.settled - max(last, since) >= self.quiet
