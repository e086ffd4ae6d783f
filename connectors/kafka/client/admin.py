"""Ask Kafka about partitions, offsets and groups, for the driver.

Waits end soon after the death of the process that started this one: a source process can outlive Spark's JVM while it
is inside a call. Every error that leaves is a `ConnectorError`.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, wait
from typing import Any, Final, Self, TypeVar

from connectors.core.errors import ConnectorError, ServiceUnavailableError, SourceGoneError
from connectors.core.processes.parent import ParentWatch
from connectors.core.retry import Outage, WaitLog
from connectors.kafka.client.errors import ConnectionErrors, connector_error, gone
from connectors.kafka.client.factory import (
    admin_sdk,
    client_exception,
    group_denied,
    is_group_denial,
    open_admin,
    open_consumer,
    sdk,
)
from connectors.kafka.offsets import Offsets, TopicPartition, describe
from connectors.kafka.options.client import ClientSettings
from connectors.kafka.options.source import KafkaReadOptions, Strategy, Subscribe, SubscribePattern

T = TypeVar("T")
_log = logging.getLogger(__name__)

_SLICE_SECONDS: Final = 1.0
"""The longest wait that cannot be left: a call of librdkafka."""
_CALL_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.1
_NO_CONTROLLER_SECONDS: Final = 60.0
"""How long to wait before asking for ids of topics again, after no controller has answered."""
_FIRST_SECONDS: Final = 25.0
"""Brokers that have not answered once for so long are no outage that passes: most often their address is wrong."""
LOOKUPS: Final = 3
"""How often partitions that are not there are looked up, unless ``fetchOffset.numRetries`` says it."""
_GROUP: Final = "the offsets of a group"


def _check_caller(parent: ParentWatch, stopping: threading.Event) -> None:
    if stopping.is_set() or parent.is_gone():
        raise ServiceUnavailableError("KAFKA_CALLER_GONE", "The process or query that made the request has ended")


class KafkaLookup:
    """Looks up partitions and offsets; a context manager that closes its clients.

    ``group`` is the consumer group of `committed` and `commit`; a call may take ``call_seconds``, and raises an error
    when ``stopping`` is set.
    """

    def __init__(
        self,
        settings: ClientSettings,
        group: str | None = None,
        call_seconds: float = _CALL_SECONDS,
        stopping: threading.Event | None = None,
    ) -> None:
        levels = sdk().IsolationLevel
        committed = settings.get("isolation.level") == "read_committed"
        self._isolation = levels.READ_COMMITTED if committed else levels.READ_UNCOMMITTED
        self._settings = settings
        self.call_seconds = call_seconds
        self._stopping = stopping or threading.Event()
        self._parent = ParentWatch()
        self._group_problem: ConnectorError | None = None
        self._connection_errors = ConnectionErrors()
        self._has_controller = False
        self._ask_ids_at = -math.inf
        self._log = WaitLog(lambda: "Kafka's response about topics, partitions or offsets")
        self._admin = open_admin(settings)
        own = {
            "group.id": group or settings.get("group.id") or "kafka_py",
            "error_cb": self._connection_errors.receive_error,
        }
        self._consumer = open_consumer(settings, own)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._consumer.close()
        self._admin = None  # which closes it

    def partitions(self, strategy: Strategy) -> frozenset[TopicPartition]:
        """Return the partitions to read, as they are now; a topic or partition that was named must exist."""
        if isinstance(strategy, SubscribePattern):
            topics = self._topics(None)
            return frozenset(_partitions({name: topic for name, topic in topics.items() if strategy.matches(name)}))
        named = strategy.topics if isinstance(strategy, Subscribe) else {one.topic for one in strategy.partitions}
        existing = frozenset(partition for name in sorted(named) for partition in _partitions(self._topics(name)))
        if isinstance(strategy, Subscribe):
            return existing
        for missing in sorted(strategy.partitions - existing):
            raise gone(str(missing))
        return strategy.partitions

    def brokers(self) -> dict[str, tuple[str, int]]:
        """Return name and address of the brokers, as the cluster advertises them to clients."""
        brokers = self._retry(self._metadata).brokers
        return {f"broker {broker.id}": (broker.host, broker.port) for broker in brokers.values()}

    def _topics(self, name: str | None) -> Mapping[str, Any]:
        def ask() -> Mapping[str, Any]:
            topics: Mapping[str, Any] = self._metadata(name).topics
            if name is not None and (problem := topics[name].error) is not None:
                raise connector_error(problem, name)
            return topics

        return self._retry(ask)

    def _metadata(self, name: str | None = None) -> Any:
        self._serve()
        try:
            return self._consumer.list_topics(*([] if name is None else [name]), timeout=_SLICE_SECONDS)
        except client_exception() as error:
            raise connector_error(error.args[0], name or "") from None

    def _retry(self, call: Callable[[], T]) -> T:
        """Make a call again while its error may pass, with short pauses; the deadline is that of one call."""
        self._begin()
        deadline = time.monotonic() + self.call_seconds
        while True:
            try:
                result = call()
            except ConnectorError as error:
                if not error.transient:
                    raise
                self._check()
                if time.monotonic() > deadline:
                    raise self._connection_errors.explain(error) from None
                time.sleep(_PAUSE_SECONDS)
            else:
                self._connection_errors.forget()
                return result

    def _begin(self) -> None:
        self._serve()  # so that errors of the time before the call are not taken for its own
        self._connection_errors.begin()
        self._log.restart()

    def _serve(self) -> None:
        """Let the clients call back, for errors and tokens."""
        self._group_problem = group_denied(self._consumer) or self._group_problem
        self._admin.poll(0)

    def _check(self) -> None:
        self._serve()
        if self._connection_errors.refusal is not None:
            raise self._connection_errors.refusal
        self._log.tick()
        _check_caller(self._parent, self._stopping)

    def earliest(self, partitions: Collection[TopicPartition]) -> Offsets:
        """Return the offset of the first record of each partition that exists."""
        return self._offsets(dict.fromkeys(partitions, admin_sdk().OffsetSpec.earliest()))

    def latest(self, partitions: Collection[TopicPartition]) -> Offsets:
        """Return the offset after the last record of each partition that exists, under the isolation."""
        return self._offsets(dict.fromkeys(partitions, admin_sdk().OffsetSpec.latest()))

    def at_time(self, times: Mapping[TopicPartition, int]) -> Offsets:
        """Return the offset of the first record as new as a time in milliseconds; -1 where there is none."""
        spec = admin_sdk().OffsetSpec.for_timestamp
        return self._offsets({partition: spec(time) for partition, time in times.items()})

    def _offsets(self, asked: Mapping[TopicPartition, Any]) -> Offsets:
        if not asked:
            return {}
        self._begin()
        offsets = self._ask_offsets(asked)
        if len(offsets) < len(asked):
            # The client caches topics for minutes: partitions that came since need a new one.
            self._admin = open_admin(self._settings)
            offsets |= self._ask_offsets({part: spec for part, spec in asked.items() if part not in offsets})
        missing = asked.keys() - offsets.keys()
        # A new leader may deny a partition that exists. All topics: to name one could make it, where brokers do that.
        if missing and (listed := missing & set(_partitions(self._topics(None)))):
            what = "Kafka lists these partitions, but does not know their offsets now"
            raise ServiceUnavailableError("KAFKA_UNAVAILABLE", what, describe(listed))
        return offsets

    def _ask_offsets(self, asked: Mapping[TopicPartition, Any]) -> Offsets:
        """Return the offsets of the partitions that exist.

        When a connection breaks, librdkafka reports success for each of its partitions, and -1001 as the offset.
        """
        deadline = time.monotonic() + self.call_seconds
        offsets = self._list_offsets(asked)
        while lost := {part for part, offset in offsets.items() if offset == sdk().OFFSET_INVALID}:
            self._check()
            if time.monotonic() > deadline:
                what, where = "The connection to a broker broke while looking up offsets", describe(lost)
                raise self._connection_errors.explain(ServiceUnavailableError("KAFKA_UNAVAILABLE", what, where))
            time.sleep(_PAUSE_SECONDS)
            present = {part: offset for part, offset in offsets.items() if part not in lost}
            offsets = present | self._list_offsets({part: asked[part] for part in lost})
        self._connection_errors.forget()
        return offsets

    def _list_offsets(self, asked: Mapping[TopicPartition, Any]) -> Offsets:
        request = {sdk().TopicPartition(*partition): spec for partition, spec in asked.items()}
        futures = self._admin.list_offsets(request, isolation_level=self._isolation, request_timeout=self.call_seconds)
        offsets: Offsets = {}
        for requested, future in futures.items():
            partition = TopicPartition(requested.topic, requested.partition)
            try:
                offsets[partition] = self._result(future).offset
            except client_exception() as error:
                problem = connector_error(error.args[0], str(partition))
                if not isinstance(problem, SourceGoneError):
                    raise self._connection_errors.explain(problem) from None
        return offsets

    def _result(self, future: Future[Any]) -> Any:
        while not (future.done() or wait([future], _SLICE_SECONDS / 2).done):
            self._check()
        return future.result()

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Return the ids of the topics that have one; a topic that is deleted and created again has another (KIP-516).

        A topic is left out if it is gone, may not be described, or is on brokers older than Kafka 2.8. The client asks
        the controller, and reads go on without one: when it does not answer, nobody is asked for a minute.
        """
        ids: dict[str, str] = {}
        if time.monotonic() < self._ask_ids_at:
            return ids
        self._begin()
        self._ask_ids_at = time.monotonic() + _NO_CONTROLLER_SECONDS
        if not self._has_controller:
            with contextlib.suppress(ConnectorError):
                metadata = self._metadata()
                self._has_controller = metadata.controller_id in metadata.brokers
        if not self._has_controller:
            return ids
        asked = sdk().TopicCollection(sorted(topics))
        for topic, future in self._admin.describe_topics(asked, request_timeout=_SLICE_SECONDS).items():
            try:
                topic_id = self._result(future).topic_id
            except client_exception() as error:
                if connector_error(error.args[0], topic).transient:
                    return ids
            else:
                if topic_id.get_most_significant_bits() or topic_id.get_least_significant_bits():
                    ids[topic] = str(topic_id)
        self._ask_ids_at = -math.inf
        return ids

    def read_at(self, partition: TopicPartition, offset: int) -> None:
        """Read at an offset and drop what comes, to see whether records may be read; raises an error if not."""
        self._begin()
        own = {"group.id": "kafka_py", "enable.partition.eof": True, "error_cb": self._connection_errors.receive_error}
        consumer = open_consumer(self._settings, own)
        try:
            consumer.assign([sdk().TopicPartition(*partition, offset)])
            deadline = time.monotonic() + self.call_seconds
            # librdkafka looks for the coordinator of the group, which needs a right that nobody needs here.
            while (message := consumer.poll(_SLICE_SECONDS)) is None or is_group_denial(message):
                self._check()
                if time.monotonic() > deadline:
                    raise ServiceUnavailableError("KAFKA_UNAVAILABLE", "Kafka sends no records", str(partition))
            if (error := message.error()) is not None and error.name() != "_PARTITION_EOF":
                raise connector_error(error, str(partition))
        finally:
            consumer.close()

    def committed(self, partitions: Collection[TopicPartition]) -> Offsets:
        asked = [sdk().TopicPartition(*partition) for partition in partitions]

        def ask() -> list[Any]:
            try:
                committed: list[Any] = self._consumer.committed(asked, timeout=_SLICE_SECONDS)
            except client_exception() as error:
                self._serve()
                raise self._group_problem or connector_error(error.args[0], _GROUP) from None
            return committed

        committed = self._retry(ask)
        return {TopicPartition(one.topic, one.partition): one.offset for one in committed if one.offset >= 0}

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        asked = [sdk().TopicPartition(*partition, offset) for partition, offset in offsets.items()]
        try:
            self._consumer.commit(offsets=asked, asynchronous=False)
        except client_exception() as error:
            raise connector_error(error.args[0], _GROUP) from None


def _partitions(topics: Mapping[str, Any]) -> Iterable[TopicPartition]:
    return (TopicPartition(name, number) for name, topic in topics.items() for number in topic.partitions)


class RetryingLookup:
    """Calls a `KafkaLookup` again, with new connections each time, while that may help; thread-safe.

    An outage is waited out by ``retryTimeout``; where ``fetchOffset.numRetries`` is given, calls are counted instead.
    """

    def __init__(self, options: KafkaReadOptions, first_seconds: float = _FIRST_SECONDS) -> None:
        self._options = options
        self._rule = options.client.outage_rule
        self._first_seconds = first_seconds
        self._lookup: KafkaLookup | None = None
        self._lock = threading.RLock()
        self._parent = ParentWatch()
        self._stopping = threading.Event()
        self._give_up_at: float | None = None
        self._has_worked = False

    def ask(self, call: Callable[[KafkaLookup], T]) -> T:
        """Return what a call returns; raise its last error, or the first that another attempt cannot help."""
        left = self._options.offset_retries or LOOKUPS
        outage = Outage(self._rule, began=time.monotonic())
        while True:
            try:
                with self._lock:
                    lookup = self._open(outage)
                    result = call(lookup)
                    self._give_up_at, self._has_worked = None, True
                    lookup.call_seconds = self._call_seconds(math.inf)
            except (ServiceUnavailableError, SourceGoneError) as error:  # a topic may be about to be made
                self.close()
                if error.code == "KAFKA_CALLER_GONE":
                    raise
                if self._options.offset_retries is None and isinstance(error, ServiceUnavailableError):
                    self._wait(outage.next_delay_seconds(error))
                    continue
                left -= 1
                if left <= 0 or (self._give_up_at is not None and time.monotonic() >= self._give_up_at):
                    raise
                _log.warning("[KAFKA_OFFSETS_RETRIED] %s Trying again, %d attempts left.", error, left)
                self.pause()
            else:
                return result

    def _open(self, outage: Outage) -> KafkaLookup:
        if self._lookup is None:
            seconds, group = self._call_seconds(outage.left_seconds), self._options.group_to_start_from
            self._lookup = KafkaLookup(self._options.client, group, seconds, self._stopping)
        return self._lookup

    def _call_seconds(self, left: float) -> float:
        """Return how long a call may take: where calls are counted, brokers that never answered have little time."""
        if self._options.offset_retries is None:
            return max(_SLICE_SECONDS, min(_CALL_SECONDS, self._rule.seconds, left))
        if self._has_worked:
            return _CALL_SECONDS
        now = time.monotonic()
        self._give_up_at = self._give_up_at or now + self._first_seconds
        return max(1.0, self._give_up_at - now)

    def pause(self) -> None:
        """Wait for ``fetchOffset.retryIntervalMs``; raise an error if this is stopped or the parent process is gone."""
        self._wait(self._options.offset_retry_ms / 1000)

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._stopping.wait(min(left, _SLICE_SECONDS / 2))
            _check_caller(self._parent, self._stopping)

    def close(self) -> None:
        """Close the connections; the next call makes new ones."""
        with self._lock:
            if self._lookup is not None:
                self._lookup.close()
            self._lookup = None

    def stop(self) -> None:
        self._stopping.set()
        self.close()
