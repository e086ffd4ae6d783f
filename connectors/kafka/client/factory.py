"""Kafka itself: the only module of the connector that imports confluent-kafka, and only in functions.

`KafkaLookup` finds partitions and offsets, for the driver. Its waits end soon after the death of the process that
started this one: a source process can outlive Spark's JVM while it is inside a call. Every error that leaves is a
`ConnectorError`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from connectors.core.errors import ConnectorError, ServiceUnavailableError, SourceGoneError
from connectors.kafka.client.errors import LastWord, connector_error, error_name, gone, setting_refused
from connectors.kafka.client.librdkafka import LOGGER
from connectors.kafka.client.oauth import TokenCallback
from connectors.kafka.offsets import Offsets, TopicPartition, describe, refuse_nul
from connectors.kafka.options.subscription import Assign, Strategy, Subscribe

if TYPE_CHECKING:
    import confluent_kafka

    from connectors.kafka.options.client import ClientSettings

__all__ = [
    "KafkaLookup",
    "check_settings",
    "client_exception",
    "group_denied",
    "open_admin",
    "open_consumer",
    "open_producer",
    "sdk",
]

T = TypeVar("T")

_SLICE_SECONDS: Final = 1.0
"""The longest wait that cannot be left: a call of librdkafka."""
_CALL_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.1


class KafkaLookup:
    """Finds partitions and offsets; a context manager that closes its clients.

    Args:
        settings: of the client; ``isolation.level`` says which end of a partition is meant.
        group: the consumer group of `committed` and `commit`.
        call_seconds: how long an answer is waited for.
    """

    def __init__(self, settings: ClientSettings, group: str | None = None, call_seconds: float = _CALL_SECONDS) -> None:
        from confluent_kafka import IsolationLevel  # noqa: PLC0415 - see the top

        committed = settings.get("isolation.level") == "read_committed"
        self._isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        self._settings = settings
        self._seconds = call_seconds
        self._parent = os.getppid()
        self._group_problem: ConnectorError | None = None
        self._last_word = LastWord()
        self._admin = open_admin(settings)
        own = {"group.id": group or settings.get("group.id") or "kafka_py", "error_cb": self._note}
        self._consumer = open_consumer(settings, own)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()
        # An admin client closes with the last reference to it. The consumer holds this object, for its errors, so that
        # otherwise its threads would stay until the garbage collector happens to look.
        self._admin = None

    def partitions(self, strategy: Strategy) -> frozenset[TopicPartition]:
        """The partitions to read, as they are now.

        Raises:
            SourceGoneError: a topic or partition that was named is not there.
        """
        if isinstance(strategy, Subscribe):
            named = [self._topics(topic) for topic in strategy.topics]
            return frozenset(each for topics in named for each in _partitions(topics))
        if isinstance(strategy, Assign):
            there = {
                each
                for topic in {each.topic for each in strategy.partitions}
                for each in _partitions(self._topics(topic))
            }
            for missing in sorted(strategy.partitions - there):
                raise gone(str(missing))
            return strategy.partitions
        topics = {name: topic for name, topic in self._topics(None).items() if strategy.matches(name)}
        return frozenset(_partitions(topics))

    def _topics(self, name: str | None) -> Mapping[str, Any]:
        """The description of one topic, or of all."""
        return self._patiently(lambda: self._list_topics(name))

    def _patiently(self, question: Callable[[], T]) -> T:
        """The answer to a question that is asked again while an error may pass."""
        self._begin()
        deadline = time.monotonic() + self._seconds
        while True:
            try:
                found = question()
            except ConnectorError as error:
                if not error.transient:
                    raise
                self._check()
                if time.monotonic() > deadline:
                    raise self._last_word.explain(error) from None
                time.sleep(_PAUSE_SECONDS)
            else:
                self._last_word.forget()
                return found

    def _note(self, error: Any) -> None:
        """Keep an error of the connection: librdkafka goes on trying, also where no later attempt mends it."""
        self._last_word.hear(error_name(error), error.str())

    def _begin(self) -> None:
        """A question begins; what was said before it is heard first."""
        self._serve()
        self._last_word.begin()

    def _serve(self) -> None:
        """Let the clients call back, for tokens."""
        self._group_problem = group_denied(self._consumer) or self._group_problem
        self._admin.poll(0)

    def _metadata(self, name: str | None = None) -> Any:
        from confluent_kafka import KafkaException  # noqa: PLC0415

        self._serve()
        try:
            return self._consumer.list_topics(*([] if name is None else [name]), timeout=_SLICE_SECONDS)
        except KafkaException as error:
            raise connector_error(error.args[0], name or "") from None

    def _list_topics(self, name: str | None) -> Mapping[str, Any]:
        topics: Mapping[str, Any] = self._metadata(name).topics
        if name is not None and (problem := topics[name].error) is not None:
            raise connector_error(problem, name)
        return topics

    def brokers(self) -> dict[str, tuple[str, int]]:
        """The brokers as the cluster advertises them: what they are called, and where clients are sent."""
        brokers = self._patiently(self._metadata).brokers
        return {f"broker {each.id}": (each.host, each.port) for each in brokers.values()}

    def earliest(self, partitions: Collection[TopicPartition]) -> Offsets:
        """The offset of the first record of each partition; one that is gone is left out."""
        from confluent_kafka.admin import OffsetSpec  # noqa: PLC0415

        return self._offsets(dict.fromkeys(partitions, OffsetSpec.earliest()))

    def latest(self, partitions: Collection[TopicPartition]) -> Offsets:
        """The offset behind the last record of each partition, under the isolation; one that is gone is left out."""
        from confluent_kafka.admin import OffsetSpec  # noqa: PLC0415

        return self._offsets(dict.fromkeys(partitions, OffsetSpec.latest()))

    def at_time(self, times: Mapping[TopicPartition, int]) -> Offsets:
        """The offset of the first record as new as a time in milliseconds; -1 where there is none."""
        from confluent_kafka.admin import OffsetSpec  # noqa: PLC0415

        return self._offsets({each: OffsetSpec.for_timestamp(time) for each, time in times.items()})

    def _offsets(self, asked: Mapping[TopicPartition, Any]) -> Offsets:
        if not asked:
            return {}
        self._begin()
        found = self._ask_offsets(asked)
        if len(found) < len(asked):
            # The client keeps what it knows of topics for minutes: partitions that came since need a new one.
            self._admin = open_admin(self._settings)
            found |= self._ask_offsets({each: spec for each, spec in asked.items() if each not in found})
        if missing := asked.keys() - found.keys():
            self._check_gone(missing)
        return found

    def _check_gone(self, missing: Collection[TopicPartition]) -> None:
        """A leader that has just come to a partition may say that there is none; what is listed is not gone."""
        # All topics: to name one could make it, where brokers do that.
        if listed := sorted(set(missing) & set(_partitions(self._topics(None)))):
            raise ServiceUnavailableError(
                "KAFKA_UNAVAILABLE",
                "Kafka lists these partitions, and does not know their offsets now",
                describe(listed),
                "Check the brokers; raise fetchOffset.numRetries if that takes longer to pass.",
            )

    def _ask_offsets(self, asked: Mapping[TopicPartition, Any]) -> Offsets:
        from confluent_kafka import KafkaException  # noqa: PLC0415
        from confluent_kafka import TopicPartition as Partition  # noqa: PLC0415

        request = {Partition(each.topic, each.partition): spec for each, spec in asked.items()}
        futures = self._admin.list_offsets(request, isolation_level=self._isolation, request_timeout=self._seconds)
        found: Offsets = {}
        for partition, future in futures.items():
            each = TopicPartition(partition.topic, partition.partition)
            try:
                found[each] = self._wait(future).offset
            except KafkaException as error:
                problem = connector_error(error.args[0], str(each))
                if not isinstance(problem, SourceGoneError):
                    raise self._last_word.explain(problem) from None
        self._last_word.forget()
        return found

    def _wait(self, future: Future[T]) -> T:
        """The result of a request, unless the process that waits for it is gone."""
        while True:
            try:
                return future.result(timeout=_SLICE_SECONDS / 2)
            except FutureTimeoutError:
                self._check()

    def _check(self) -> None:
        """Whether it makes sense to wait on."""
        self._serve()  # which calls _note
        if self._last_word.refusal is not None:
            raise self._last_word.refusal
        if os.getppid() != self._parent:
            raise ServiceUnavailableError("KAFKA_CALLER_GONE", "The process that asked is gone")

    def read_at(self, partition: TopicPartition, offset: int) -> None:
        """Ask for what is at an offset, and keep nothing of it: whether records may be read at all.

        Raises:
            AccessDeniedError: they may not.
            ServiceUnavailableError: no answer came.
        """
        from confluent_kafka import TopicPartition as Partition  # noqa: PLC0415

        self._begin()
        own = {"group.id": "kafka_py", "enable.partition.eof": True, "error_cb": self._note}
        consumer = open_consumer(self._settings, own)
        try:
            consumer.assign([Partition(partition.topic, partition.partition, offset)])
            deadline = time.monotonic() + self._seconds
            # librdkafka looks for the coordinator of the group, which nobody asks for here and needs no right.
            while (message := consumer.poll(_SLICE_SECONDS)) is None or _is_of_group(message):
                self._check()
                if time.monotonic() > deadline:
                    raise ServiceUnavailableError("KAFKA_UNAVAILABLE", "Kafka sends no records", str(partition))
            if (error := message.error()) is not None and error.name() != "_PARTITION_EOF":
                raise connector_error(error, str(partition))
        finally:
            consumer.close()

    def committed(self, partitions: Collection[TopicPartition]) -> Offsets:
        """What the group has committed; a partition without is left out."""
        from confluent_kafka import TopicPartition as Partition  # noqa: PLC0415

        asked = [Partition(each.topic, each.partition) for each in partitions]
        found = self._patiently(lambda: self._ask_committed(asked))
        return {TopicPartition(each.topic, each.partition): each.offset for each in found if each.offset >= 0}

    def _ask_committed(self, asked: list[Any]) -> list[Any]:
        try:
            found: list[Any] = self._consumer.committed(asked, timeout=_SLICE_SECONDS)
        except client_exception() as error:
            self._serve()
            raise self._group_problem or connector_error(error.args[0], "the offsets of a group") from None
        return found

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets to the group."""
        from confluent_kafka import KafkaException  # noqa: PLC0415
        from confluent_kafka import TopicPartition as Partition  # noqa: PLC0415

        asked = [Partition(each.topic, each.partition, offset) for each, offset in offsets.items()]
        try:
            self._consumer.commit(offsets=asked, asynchronous=False)
        except KafkaException as error:
            raise connector_error(error.args[0], "the offsets of a group") from None


def _partitions(topics: Mapping[str, Any]) -> Iterable[TopicPartition]:
    return (TopicPartition(name, number) for name, topic in topics.items() for number in topic.partitions)


def check_settings(settings: ClientSettings) -> None:
    """Refuse settings that librdkafka does not know, without a connection.

    Raises:
        OptionError: a name or a value is not legal.
    """
    without_tokens = replace(settings, token_provider=None)
    open_consumer(without_tokens, {"group.id": settings.get("group.id") or "kafka_py"}).close()


def group_denied(consumer: Any) -> ConnectorError | None:
    """What the client says, once, when its group's coordinator may not be asked: it goes on trying in silence."""
    message = consumer.poll(0)
    denied = message is not None and _is_of_group(message)
    return connector_error(message.error(), "the consumer group") if denied else None


def _is_of_group(message: Any) -> bool:
    error = message.error()
    return error is not None and error.name() == "GROUP_AUTHORIZATION_FAILED"


def open_consumer(settings: ClientSettings, own: Mapping[str, Any]) -> confluent_kafka.Consumer:
    """A consumer that belongs to no group and commits nothing; ``own`` settings win over the user's.

    Raises:
        OptionError: a setting is not one of librdkafka.
    """
    from confluent_kafka import Consumer  # noqa: PLC0415

    fixed = {
        "log.connection.close": False,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
    }
    return _made(Consumer, settings, {**settings.revealed(), **fixed, **own})


def open_producer(settings: ClientSettings, own: Mapping[str, Any]) -> confluent_kafka.Producer:
    """A producer; ``own`` settings win over the user's.

    Raises:
        OptionError: a setting is not one of librdkafka.
    """
    from confluent_kafka import Producer  # noqa: PLC0415

    return _made(Producer, settings, {**settings.revealed(), **own})


def _made(kind: Callable[[dict[str, Any]], T], settings: ClientSettings, changed: dict[str, Any]) -> T:
    """Make a client; a setting that it refuses is an error of the options, and the want of a token one of its own.

    Args:
        kind: the class.
        settings: of the user.
        changed: the settings to use.
    """
    for name, value in changed.items():
        refuse_nul(f"kafka.{name}", name, str(value))
    token = None if settings.token_provider is None else TokenCallback(settings.token_provider)
    try:
        made = kind({**changed, "logger": LOGGER} | ({} if token is None else {"oauth_cb": token}))
    except client_exception() as error:
        raise (setting_refused if token is None else token.problem)(error.args[0]) from None
    if token is not None:
        token.serve_first(made)
    return made


_ADMIN_HAS_NOT: Final = frozenset({"group.id", "isolation.level", "check.crcs"})


def _admin_settings(settings: ClientSettings) -> dict[str, Any]:
    """Settings for an admin client, which warns about those of a consumer."""
    kept = {k: v for k, v in settings.revealed().items() if k not in _ADMIN_HAS_NOT}
    return {k: v for k, v in kept.items() if not k.startswith(("fetch.", "queued.", "session.", "heartbeat.", "trans"))}


def sdk() -> Any:
    """The package confluent_kafka, for its plain types."""
    import confluent_kafka  # noqa: PLC0415 - see the top

    return confluent_kafka


def open_admin(settings: ClientSettings) -> Any:
    """An admin client.

    Raises:
        OptionError: a setting is not one of librdkafka.
    """
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - see the top

    return _made(AdminClient, settings, _admin_settings(settings))


def client_exception() -> type[Exception]:
    """What confluent-kafka raises; its first argument is for `connectors.kafka.client.errors.connector_error`."""
    from confluent_kafka import KafkaException  # noqa: PLC0415 - see the top

    kind: type[Exception] = KafkaException
    return kind
