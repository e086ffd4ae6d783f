"""Which partitions a source reads: topics by name, topics by pattern, or partitions by number."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from connectors.kafka.offsets import TopicPartition, illegal, parse_assignment

__all__ = ["Assign", "Strategy", "Subscribe", "SubscribePattern", "parse_strategy"]

_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
_NAMES: Final = "subscribe, subscribepattern, assign. See the docs for more details"
_ASSIGN_EXAMPLE: Final = 'Give JSON such as {"topicA":[0,1]}.'


@dataclass(frozen=True, slots=True)
class Subscribe:
    """All partitions of some topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """All partitions of all topics whose name matches a regular expression anywhere; not Kafka's internal topics.

    Spark's own source searches too: ``Regex.findFirstIn`` in its ``SubscribePatternStrategy``.
    """

    pattern: str

    def matches(self, topic: str) -> bool:
        """Return whether a topic is read."""
        return topic not in _INTERNAL and re.search(self.pattern, topic) is not None


@dataclass(frozen=True, slots=True)
class Assign:
    """Some partitions."""

    partitions: frozenset[TopicPartition]


Strategy = Subscribe | SubscribePattern | Assign


def parse_strategy(subscribe: str | None, pattern: str | None, assign: str | None) -> Strategy:
    """Parse the three options; the texts of the errors are those of Spark's own source.

    Raises:
        OptionError: none is given, more than one is, or the one is illegal.
    """
    texts = [text for text in (subscribe, pattern, assign) if text is not None]
    if not texts:
        raise illegal(f"One of the following options must be specified for Kafka source: {_NAMES}", "Give one of them.")
    if len(texts) > 1:
        raise illegal(
            f"Only one of the following options can be specified for Kafka source: {_NAMES}", "Leave the others out."
        )
    if pattern is not None:
        return _parse_pattern(pattern)
    if assign is not None:
        return _parse_assign(assign)
    topics = tuple(dict.fromkeys(name.strip() for name in texts[0].split(",") if name.strip()))
    if not topics:
        raise illegal(
            f"No topics to subscribe to as specified value for option 'subscribe' is '{subscribe}'", "Name a topic."
        )
    return Subscribe(topics)


def _parse_pattern(text: str) -> SubscribePattern:
    if not text:
        raise illegal(
            f"Pattern to subscribe is empty as specified value for option 'subscribePattern' is '{text}'",
            "Give a regular expression.",
        )
    try:
        re.compile(text)
    except re.error as error:
        raise illegal(f"The pattern '{text}' is no regular expression of Python: {error}", "Correct it.") from None
    return SubscribePattern(text)


def _parse_assign(text: str) -> Assign:
    if not text.startswith("{"):
        raise illegal(
            f"No topicpartitions to assign as specified value for option 'assign' is '{text}'",
            _ASSIGN_EXAMPLE,
        )
    try:
        partitions = parse_assignment(text)
    except ValueError as error:
        raise illegal(str(error), "Correct it.") from None
    if not partitions:
        raise illegal("The option assign names no partition", _ASSIGN_EXAMPLE)
    return Assign(partitions)
