"""Which faults the Kinesis server makes: rules that are set by knobs and asked at the moment they could apply."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from connectors.testing.clock import SECOND

__all__ = ["Cut", "EntryFailure", "FaultPlan", "ScriptedError", "Target"]


@dataclass(frozen=True)
class Target:
    """What a rule strikes; None means all.

    Attributes:
        operation: name in the API, such as ``GetRecords``.
        stream: name of a stream.
        shard: id of a shard.
    """

    operation: str | None
    stream: str | None = None
    shard: str | None = None

    def covers(self, operation: str, stream: str, shard: str) -> bool:
        """True if a call is meant."""
        return self.operation in {None, operation} and self.stream in {None, stream} and self.shard in {None, shard}


@dataclass
class _Rule:
    """A rule that is used up after ``times`` calls; None for never."""

    target: Target
    times: int | None


@dataclass
class ScriptedError(_Rule):
    """Calls that are answered with an error; with ``after_effect`` only the answer is lost."""

    kind: str
    message: str
    status: int
    after_effect: bool


@dataclass
class Cut(_Rule):
    """Calls whose connection is cut, before they take effect or after ``after_bytes`` of their answer's body."""

    after_effect: bool
    after_bytes: int


@dataclass
class EntryFailure:
    """Entries of PutRecords that fail: the next ``count``, or each ``every``-th when that is given.

    Attributes:
        seen: how many entries the rule has looked at.
        partition_key: only entries with this key; None for all.
    """

    kind: str
    stream: str | None
    partition_key: str | None
    count: int | None
    every: int
    seen: int = 0

    def strikes(self, stream: str, partition_key: str) -> bool:
        """True if this entry fails; counts it."""
        if self.stream not in {None, stream} or self.partition_key not in {None, partition_key} or self.count == 0:
            return False
        self.seen += 1
        if self.seen % self.every:
            return False
        if self.count is not None:
            self.count -= 1
        return True


_RuleT = TypeVar("_RuleT", bound=_Rule)


@dataclass
class FaultPlan:
    """All rules and settings that are in force."""

    errors: list[ScriptedError] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    delays: dict[Target, float] = field(default_factory=dict)
    """Real seconds that a call waits before it is handled."""
    entry_failures: list[EntryFailure] = field(default_factory=list)
    order_required: bool = False
    """A PutRecord must name the number of the last record of its key, if there is one."""
    empty_answers: dict[tuple[str, str], int] = field(default_factory=dict)
    """How many more GetRecords of a (stream, shard) are answered without records, whatever lies ahead."""
    page_ns: int = 0
    """Server time that one GetRecords walks over at most; 0 for no limit."""
    hidden_ends: bool = False
    """GetRecords of a closed shard gives iterators for ever."""
    claimed_behind_ms: int = 0
    """What a response without records says it is behind at least."""
    iterator_life_ns: int = 300 * SECOND
    refuse_trimmed: bool = False
    """GetShardIterator after a trimmed record is refused; else it starts at the horizon."""
    limits: bool = False
    """The limits of the service are kept."""
    subscription_life_ns: int = 300 * SECOND
    takeover_ns: int = 5 * SECOND
    """Server time after a SubscribeToShard in which the next one of its consumer and shard is refused."""
    heartbeat_ns: int = 5 * SECOND
    """Server time between the events of an idle subscription."""
    push_delay_ns: int = 10_000_000
    """Server time between the arrival of a record and its event."""
    silent_subscriptions: bool = False
    """Subscriptions stay open and send nothing."""

    def clear(self) -> None:
        """Back to a server without faults."""
        fresh = FaultPlan()
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(fresh, name))

    def next_error(self, operation: str, stream: str, shard: str) -> ScriptedError | None:
        """The error that this call is to get, or None; counts it."""
        return _take(self.errors, operation, stream, shard)

    def next_cut(self, operation: str, stream: str, shard: str) -> Cut | None:
        """How the connection of this call is to be cut, or None; counts it."""
        return _take(self.cuts, operation, stream, shard)

    def delay(self, operation: str, stream: str, shard: str) -> float:
        """Real seconds that this call waits."""
        return max((delay for each, delay in self.delays.items() if each.covers(operation, stream, shard)), default=0.0)

    def entry_error(self, stream: str, partition_key: str) -> str | None:
        """The error that this entry of PutRecords is to get, or None; counts it."""
        failures = [rule.kind for rule in self.entry_failures if rule.strikes(stream, partition_key)]
        return failures[0] if failures else None

    def takes_empty_answer(self, stream: str, shard: str) -> bool:
        """True if this GetRecords gets no records; counts it."""
        left = self.empty_answers.get((stream, shard), 0)
        if left:
            self.empty_answers[stream, shard] = left - 1
        return left > 0


def _take(rules: list[_RuleT], operation: str, stream: str, shard: str) -> _RuleT | None:
    for rule in rules:
        if rule.target.covers(operation, stream, shard):
            if rule.times is not None:
                rule.times -= 1
                if rule.times == 0:
                    rules.remove(rule)
            return rule
    return None
