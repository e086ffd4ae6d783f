"""Which faults the Pub/Sub server makes: rules that are set by knobs and asked at the moment they could apply.

Chance is a function of the seed, the message and how often it was delivered, not of a shared random stream: the same
seed strikes the same messages whatever the threads do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

import grpc

__all__ = ["AckLoss", "AckRefusal", "Duplication", "FaultPlan", "RedeliveryRule", "ScriptedStatus"]

_EVERYWHERE: Final = ""
_MASK: Final = (1 << 64) - 1

_Rule = TypeVar("_Rule")


@dataclass
class ScriptedStatus:
    """Calls that are answered with an error.

    Attributes:
        method: name of the RPC, or ``*`` for all.
        code: the status.
        message: its text.
        times: how many calls are still to fail; None for all until the faults are cleared.
        after_effect: let the call take effect first, so that only its answer is lost.
    """

    method: str
    code: grpc.StatusCode
    message: str
    times: int | None
    after_effect: bool


@dataclass
class AckLoss:
    """Acks that are dropped: the next ``count``, or this fraction of all when ``count`` is None."""

    count: int | None
    fraction: float


@dataclass
class AckRefusal:
    """Acks of exactly-once subscriptions that are answered with a reason: the next ``count``, or this fraction."""

    reason: str
    count: int | None
    fraction: float


@dataclass(frozen=True)
class Duplication:
    """A fraction of deliveries is made twice: in the same response, or also to another stream."""

    fraction: float
    to_other_stream: bool


@dataclass(frozen=True)
class RedeliveryRule:
    """Messages that come again after they were acked.

    Attributes:
        fraction: of the acked messages.
        delay_ns: server time between ack and return.
        to_other_stream: keep them from the stream that had them, while another one is open.
        times: how often one message returns at most.
        message_ids: only these messages; None for all.
    """

    fraction: float
    delay_ns: int
    to_other_stream: bool
    times: int
    message_ids: frozenset[str] | None


@dataclass
class FaultPlan:
    """All rules that are in force. Rules by subscription have the full name as key, or "" for every subscription."""

    seed: int
    scripted: list[ScriptedStatus] = field(default_factory=list)
    call_delays: dict[str, float] = field(default_factory=dict)
    """Real seconds that a call waits before it is handled, by method."""
    ack_losses: dict[str, AckLoss] = field(default_factory=dict)
    ack_refusals: dict[str, AckRefusal] = field(default_factory=dict)
    ack_delays: dict[str, int] = field(default_factory=dict)
    """Server nanoseconds between an ack and its effect."""
    redeliveries: dict[str, RedeliveryRule] = field(default_factory=dict)
    duplications: dict[str, Duplication] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    honour_late_acks: bool = True
    ignore_flow_control: bool = False
    stream_life_ns: int = 0
    """Server nanoseconds that each stream lives; 0 for ever."""
    lost_responses: int = 0
    """How many of the next responses are lost, each with its stream."""
    response_delay_seconds: float = 0.0
    """Real seconds that each response of a stream waits after its messages were leased."""

    def clear(self) -> None:
        """Back to a server without faults; the seed stays."""
        fresh = FaultPlan(self.seed)
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(fresh, name))

    def next_status(self, method: str) -> ScriptedStatus | None:
        """The error that this call is to get, or None; counts it."""
        for scripted in self.scripted:
            if scripted.method not in {method, "*"}:
                continue
            if scripted.times is not None:
                scripted.times -= 1
                if scripted.times == 0:
                    self.scripted.remove(scripted)
            return scripted
        return None

    def call_delay(self, method: str) -> float:
        """Real seconds that a call of this method waits."""
        return self.call_delays.get(method, self.call_delays.get("*", 0.0))

    def is_paused(self, subscription: str) -> bool:
        """True while nothing is handed out from this subscription."""
        return bool(self.paused) and (subscription in self.paused or _EVERYWHERE in self.paused)

    def ack_delay_ns(self, subscription: str) -> int:
        """Server nanoseconds between an ack and its effect."""
        return _rule_for(self.ack_delays, subscription) or 0

    def loss_of_acks(self, subscription: str) -> Callable[[int, int], bool] | None:
        """None without a rule; else says of each acked message, by sequence and deliveries, if its ack is lost."""
        loss = _rule_for(self.ack_losses, subscription)
        if loss is None:
            return None

        def is_lost(sequence: int, deliveries: int) -> bool:
            if loss.count is None:
                return self._strikes(loss.fraction, "lose-ack", sequence, deliveries)
            loss.count -= 1
            return loss.count >= 0

        return is_lost

    def ack_refusal(self, subscription: str, sequence: int, deliveries: int) -> str:
        """The reason why this ack of an exactly-once subscription has no effect; empty when it has."""
        refusal = _rule_for(self.ack_refusals, subscription)
        if refusal is None:
            return ""
        if refusal.count is None:
            return refusal.reason if self._strikes(refusal.fraction, "refuse-ack", sequence, deliveries) else ""
        refusal.count -= 1
        return refusal.reason if refusal.count >= 0 else ""

    def redelivery(self, subscription: str) -> RedeliveryRule | None:
        """The rule for messages that return after their ack, or None."""
        return _rule_for(self.redeliveries, subscription)

    def returns(self, rule: RedeliveryRule, message_id: str, sequence: int, returned: int) -> bool:
        """True if a message that was acked, and has returned ``returned`` times, returns once more."""
        if returned >= rule.times or (rule.message_ids is not None and message_id not in rule.message_ids):
            return False
        return self._strikes(rule.fraction, "redeliver", sequence, returned)

    def duplication(self, subscription: str) -> Duplication | None:
        """The rule for doubled deliveries, or None."""
        return _rule_for(self.duplications, subscription)

    def is_doubled(self, rule: Duplication, sequence: int, deliveries: int) -> bool:
        """True if this delivery is made twice."""
        return self._strikes(rule.fraction, "duplicate", sequence, deliveries)

    def is_picked(self, fraction: float, sequence: int) -> bool:
        """True for the given fraction of messages, always the same ones."""
        return self._strikes(fraction, "pick", sequence, 0)

    def _strikes(self, fraction: float, salt: str, sequence: int, round_number: int) -> bool:
        mixed = self.seed ^ int.from_bytes(salt.encode()[:8], "big") ^ (sequence << 20) ^ round_number
        # splitmix64: few steps, and neighbours come out unlike.
        mixed = (mixed + 0x9E3779B97F4A7C15) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return (mixed ^ (mixed >> 31)) < fraction * (1 << 64)


def _rule_for(rules: dict[str, _Rule], subscription: str) -> _Rule | None:
    if not rules:
        return None
    rule = rules.get(subscription)
    return rules.get(_EVERYWHERE) if rule is None else rule
