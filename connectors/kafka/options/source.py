"""The options of the ``kafka_py`` source, each declared once; names, defaults and error texts are Spark's own.

They are parsed in the data source's ``schema()``, so that a bad option fails while ``load()`` runs, and again where
they are needed.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Self

from connectors.core.options.declaration import available_now, option, parse_options, push_down_predicate
from connectors.core.options.kinds import BOOLEAN, INTEGER, STRING, Kind, choice
from connectors.kafka import FORMAT
from connectors.kafka.offsets import (
    Anywhere,
    Position,
    TopicPartition,
    check_batch_positions,
    illegal,
    parse_assignment,
    parse_position,
    read_offset,
)
from connectors.kafka.options.client import (
    RACK,
    TEXT,
    ClientSettings,
    KafkaClientOptions,
    reader_settings,
    split_client_options,
    warn_once,
)

_OF_STREAMS: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "commitOffsetsToGroup")
_SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_TIME: Final = re.compile(r"(-?[0-9]{1,18})\s*([a-z]*)")
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
        return topic not in _INTERNAL and re.search(self.pattern, topic) is not None


@dataclass(frozen=True, slots=True)
class Assign:
    """Some partitions."""

    partitions: frozenset[TopicPartition]


Strategy = Subscribe | SubscribePattern | Assign


class NoMatch(StrEnum):
    """What happens when no record is as new as a starting time."""

    ERROR = "error"
    LATEST = "latest"


def _positive(name: str) -> Kind[int]:
    def parse(text: str) -> int:
        number = INTEGER.parse(text)
        if number < 1:
            raise ValueError(f"{name} must be positive")
        return number

    return Kind("integer", "a whole number, at least 1", parse)


def _parse_spark_time(text: str) -> float:
    """Return the seconds of a time as Spark's configuration writes it: ``15m``, ``5 s``; a plain number is ms."""
    match = _TIME.fullmatch(text.strip().lower())
    if match is None or (match[2] and match[2] not in _SECONDS):
        raise ValueError("it is not a time")
    if int(match[1]) < 0:
        raise ValueError("it is negative")
    return int(match[1]) * _SECONDS[match[2] or "ms"]


_SPARK_TIME: Final = Kind("duration", "a time such as 500ms, 5s, 15m or 2h; a plain number is ms", _parse_spark_time)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaReadOptions(KafkaClientOptions):
    """The options of the source, for streams and batch reads. Made by `parse_read_options`."""

    subscribe: str | None = option(
        "subscribe",
        TEXT,
        "The topics to read, separated by commas. This, subscribePattern or assign is required.",
        default=None,
    )
    subscribe_pattern: str | None = option(
        "subscribePattern",
        TEXT,
        "A regular expression: reads the topics whose names it matches anywhere, also new ones. ^orders$ is one topic. "
        "This, subscribe or assign is required.",
        default=None,
    )
    assign: str | None = option(
        "assign",
        TEXT,
        'The partitions to read, as JSON: {"topicA":[0,1],"topicB":[2,4]}. This, subscribe or subscribePattern is '
        "required.",
        default=None,
    )
    starting_timestamp: str | None = option(
        "startingTimestamp",
        TEXT,
        "Where a new query begins: in each partition at the first record as new as this, in milliseconds since 1970. "
        "Wins over startingOffsetsByTimestamp and startingOffsets.",
        default=None,
    )
    starting_offsets_by_timestamp: str | None = option(
        "startingOffsetsByTimestamp",
        TEXT,
        'The same for each partition, as JSON: {"topicA":{"0":1000,"1":1000}}. Wins over startingOffsets.',
        default=None,
    )
    starting_offsets: str | None = option(
        "startingOffsets",
        TEXT,
        "Where a new query begins: earliest, latest, or JSON with an offset for each partition (-2: the "
        'earliest, -1: the latest): {"topicA":{"0":23,"1":-2}}; a topic may also have "earliest" or "latest". group '
        "begins where commitOffsetsToGroup, or else kafka.group.id, has committed. Default: latest for streams, "
        "earliest for batch reads.",
        default=None,
    )
    starting_no_match: NoMatch = option(
        "startingOffsetsByTimestampStrategy",
        choice(NoMatch),
        "What happens when no record of a partition is as new as its starting time: an error, or it begins at the end.",
        default="error",
    )
    ending_timestamp: str | None = option(
        "endingTimestamp",
        TEXT,
        "Where a batch read ends: in each partition before the first record as new as this, or at the end if there is "
        "none.",
        default=None,
    )
    ending_offsets_by_timestamp: str | None = option(
        "endingOffsetsByTimestamp",
        TEXT,
        'The same for each partition, as JSON: {"topicA":{"0":1000,"1":1000}}.',
        default=None,
    )
    ending_offsets: str | None = option(
        "endingOffsets",
        TEXT,
        "Where a batch read ends: latest, or JSON as in startingOffsets, with the offset after the last record. "
        "Default: latest.",
        default=None,
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        BOOLEAN,
        "false goes on, with a warning, when rows are gone that the query needs: aged out, or their topic was deleted "
        "or recreated. A topic that subscribe or assign names must exist all the same. No row of a topic that stays "
        "comes twice, unless kafka.isolation.level is changed between runs.",
        default="true",
    )
    min_partitions: int | None = option(
        "minPartitions",
        _positive("minPartitions"),
        "About how many tasks a batch has at least: large ranges of offsets are split, by their sizes. "
        "Without it, up to 8 small ranges share a task in a stream of 128 partitions or more. A batch that is "
        "repeated after a change of this option has other partitions.",
        default=None,
    )
    max_records_per_partition: int | None = option(
        "maxRecordsPerPartition",
        _positive("maxRecordsPerPartition"),
        "The most offsets of a task: larger ranges are split.",
        default=None,
    )
    available_now: bool = available_now()
    push_down_predicate: bool = push_down_predicate()
    max_offsets_per_trigger: int | None = option(
        "maxOffsetsPerTrigger",
        _positive("maxOffsetsPerTrigger"),
        "The most offsets of a batch, shared among the partitions by what each has; each may round up by one. There is "
        "no maxBytesPerTrigger: a broker tells no bytes of offsets that were not read.",
        default=None,
        instead_of=("maxBytesPerTrigger",),
    )
    min_offsets_per_trigger: int | None = option(
        "minOffsetsPerTrigger",
        INTEGER,
        "No batch is made while fewer offsets are new, until maxTriggerDelay is over.",
        default=None,
        minimum="0",
    )
    max_trigger_delay: float = option(
        "maxTriggerDelay", _SPARK_TIME, "The longest that minOffsetsPerTrigger delays a batch.", default="15m"
    )
    include_headers: bool = option("includeHeaders", BOOLEAN, "Adds the column headers.", default="false")
    group_id_prefix: str | None = option(
        "groupIdPrefix",
        STRING,
        "What the names of consumer groups begin with; nothing is ever committed to them. Default: spark-kafka-source "
        "for streams, spark-kafka-relation for batch reads. Not used when kafka.group.id is given.",
        default=None,
    )
    poll_timeout_ms: int | None = option(
        "kafkaConsumer.pollTimeoutMs",
        INTEGER,
        "A task fails after that many milliseconds without a record or any progress. It is not the time of one poll. "
        "Default: 120000 while brokers answer, and retryTimeout while they do not.",
        default=None,
        minimum="1",
    )
    offset_retries: int | None = option(
        "fetchOffset.numRetries",
        INTEGER,
        "How often offsets are looked up before the query fails; also for a topic that does not exist. Given, it "
        "replaces retryTimeout for these calls, and brokers that have never answered are given up after 25 seconds. "
        "Default: retryTimeout, and 3 times for a topic that does not exist.",
        default=None,
        minimum="1",
        maximum="1000",
    )
    offset_retry_ms: int = option(
        "fetchOffset.retryIntervalMs",
        INTEGER,
        "Milliseconds between two of these.",
        default="1000",
        minimum="0",
        maximum="3600000",
    )
    commit_offsets_to_group: str | None = option(
        "commitOffsetsToGroup",
        STRING,
        "A consumer group to which a stream commits the offsets of finished batches, for tools that watch lag. The "
        "query itself goes on from its checkpoint only.",
        default=None,
    )
    client_rack: str | None = option(
        "kafka.client.rack",
        RACK,
        "The rack of the consumers: brokers with a replica selector serve them from a replica in the same rack. "
        "env:NAME reads it from that environment variable on each host, for executors in several zones; a host without "
        "the variable logs KAFKA_RACK_UNKNOWN and reads from the leaders.",
        default=None,
    )
    strategy: Strategy = field(default=Subscribe(()))
    start: Position = Anywhere.EARLIEST
    """Where a new query begins."""
    end: Position = Anywhere.LATEST
    """Where a batch read ends."""
    group: str = "spark-kafka-source-executor"
    """The consumer group of tasks, which is never joined."""
    client: ClientSettings = field(default=ClientSettings())

    @property
    def group_to_start_from(self) -> str | None:
        """The consumer group of ``startingOffsets=group``."""
        return self.commit_offsets_to_group or self.client.get("group.id")

    @property
    def poll_timeout(self) -> float | None:
        """Seconds without any progress after which a task fails.

        None is 120 s while brokers answer, and the client's ``outage_rule`` while they do not.
        """
        return None if self.poll_timeout_ms is None else self.poll_timeout_ms / 1000

    def datasets(self, offset: Any = None) -> list[tuple[str, str]]:
        """Return the topics as OpenLineage names datasets; those of a pattern are in the offset of a batch."""
        match self.strategy:
            case Subscribe(topics):
                return self.topic_datasets(topics)
            case Assign(partitions):
                return self.topic_datasets({partition.topic for partition in partitions})
            case SubscribePattern():
                return self.topic_datasets({partition.topic for partition in read_offset(offset)} if offset else ())

    def for_tasks(self) -> Self:
        """Return it without positions, which only the driver plans with: each partition has a copy."""
        return dataclasses.replace(
            self,
            assign=None,
            starting_offsets=None,
            starting_offsets_by_timestamp=None,
            ending_offsets=None,
            ending_offsets_by_timestamp=None,
            strategy=Subscribe(()),
            start=Anywhere.EARLIEST,
            end=Anywhere.LATEST,
        )


def parse_read_options(
    raw: Mapping[str, str], environ: Mapping[str, str], *, streaming: bool | None = None
) -> KafkaReadOptions:
    """Parse and check what Spark hands over, without any call; raises an `OptionError`.

    ``raw`` has names in any case; ``environ`` is the environment of the driver, for secrets. While ``streaming`` is
    unknown, only what streams and batch reads have in common is checked.
    """
    own, client = split_client_options(KafkaReadOptions, raw, environ)
    options = parse_options(KafkaReadOptions, own, environ, FORMAT)
    if options.client_rack is not None:
        client = dataclasses.replace(client, plain=(*client.plain, ("client.rack", options.client_rack)))
    start = parse_position(
        "starting", options.starting_timestamp, options.starting_offsets_by_timestamp, options.starting_offsets
    ) or (Anywhere.LATEST if streaming else Anywhere.EARLIEST)
    end = (
        parse_position("ending", options.ending_timestamp, options.ending_offsets_by_timestamp, options.ending_offsets)
        or Anywhere.LATEST
    )
    if streaming is True:
        _check_stream(options)
    elif streaming is False:
        check_batch_positions(start, end)
        names = {name.lower() for name in own}
        for name in _OF_STREAMS:
            if name.lower() in names and not (name == "commitOffsetsToGroup" and start is Anywhere.GROUP):
                warn_once("[KAFKA_OPTION_IGNORED] %s option ignored in batch queries.", name)
    strategy = _parse_strategy(options.subscribe, options.subscribe_pattern, options.assign)
    settings = reader_settings(options, client)
    group = settings.get("group.id")
    prefix = options.group_id_prefix or ("spark-kafka-source" if streaming else "spark-kafka-relation")
    options = dataclasses.replace(
        options, strategy=strategy, start=start, end=end, group=group or f"{prefix}-executor", client=settings
    )
    if options.group_id_prefix is not None and group is not None:
        warn_once("[KAFKA_OPTION_IGNORED] Option groupIdPrefix will be ignored as option kafka.group.id has been set.")
    if start is Anywhere.GROUP and options.group_to_start_from is None:
        raise illegal("startingOffsets=group needs a consumer group", "Give commitOffsetsToGroup, or kafka.group.id.")
    return options


def _check_stream(options: KafkaReadOptions) -> None:
    if options.ending_offsets is not None:
        raise illegal("ending offset not valid in streaming queries", "Leave endingOffsets out.")
    if options.ending_offsets_by_timestamp is not None:
        raise illegal("ending timestamp not valid in streaming queries", "Leave endingOffsetsByTimestamp out.")
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise illegal(
            f"The value of minOffsetPerTrigger({least}) is higher than the maxOffsetsPerTrigger({most})",
            "Lower minOffsetsPerTrigger, or raise maxOffsetsPerTrigger.",
        )


def _parse_strategy(subscribe: str | None, pattern: str | None, assign: str | None) -> Strategy:
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
    if (of_java := _class_of_java(text)) is not None:
        raise illegal(
            f"The pattern '{text}' has {of_java} inside of brackets, which Java reads as an operation on sets of "
            "characters, and Python as characters",
            "Write the set without it, or with a look-ahead: [a-z&&[^t]] is (?!t)[a-z]. A bracket itself is \\[.",
        )
    try:
        re.compile(text)
    except re.error as error:
        raise illegal(f"The pattern '{text}' is not a regular expression of Python: {error}") from None
    return SubscribePattern(text)


def _class_of_java(pattern: str) -> str | None:
    """Return what a set of characters holds that Java's regular expressions read otherwise than Python's."""
    inside, place = False, 0
    while place < len(pattern):
        character = pattern[place]
        if character == "\\":
            place += 2
            continue
        if inside and (character == "[" or pattern.startswith("&&", place)):
            return "[" if character == "[" else "&&"
        if character == "[":
            inside = True
            place += pattern.startswith("^", place + 1)
            place += pattern.startswith("]", place + 1)  # as the first, it is a character
        elif character == "]":
            inside = False
        place += 1
    return None


def _parse_assign(text: str) -> Assign:
    if not text.startswith("{"):
        raise illegal(
            f"No topicpartitions to assign as specified value for option 'assign' is '{text}'", _ASSIGN_EXAMPLE
        )
    try:
        partitions = parse_assignment(text)
    except ValueError as error:
        raise illegal(str(error)) from None
    if not partitions:
        raise illegal("The option assign names no partition", _ASSIGN_EXAMPLE)
    return Assign(partitions)
