"""Read and set offsets of consumer groups without joining them.

A consumer reads, as ``list_consumer_group_offsets`` of the admin client ends the process with SIGSEGV when a broker
answers that it is not, or not yet, the coordinator of the group (librdkafka, issue 5040). The admin client sets: a
consumer's commit has no limit while a broker does not answer, nor has closing the consumer then.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Any, Final

from connectors.core.errors import ConnectorError, CredentialsError
from connectors.core.retry import OutageRule, wait_out
from connectors.kafka.client.admin import KafkaLookup
from connectors.kafka.client.errors import connector_error
from connectors.kafka.client.factory import client_exception, group_denied, open_consumer, sdk
from connectors.kafka.offsets import Offsets
from connectors.kafka.options.client import ClientSettings

_log = logging.getLogger(__name__)

CALL_SECONDS: Final = 10.0


def read_group_offset(
    settings: ClientSettings, group: str, topic: str, *, stable: bool = False
) -> tuple[int, str | None]:
    """Return the offset of a group, below 0 for none, and its metadata, for partition 0 of a topic.

    A ``stable`` offset is waited for if a transaction is about to change it.
    """
    problems: list[Any] = []
    level = "read_committed" if stable else "read_uncommitted"
    own = {"group.id": group, "isolation.level": level, "error_cb": problems.append}
    consumer = open_consumer(consumer_settings(settings), own)

    def ask() -> tuple[int, str | None]:
        try:
            (committed,) = consumer.committed([sdk().TopicPartition(topic, 0)], timeout=CALL_SECONDS)
        except client_exception() as error:
            # Errors for which the client would go on trying in vain.
            denied = group_denied(consumer)  # which also fills the list
            errors = [connector_error(problem, "kafka.bootstrap.servers") for problem in problems]
            refused = next((problem for problem in errors if isinstance(problem, CredentialsError)), None)
            raise denied or refused or connector_error(error.args[0], group) from None
        if committed.error is not None:
            raise connector_error(committed.error, group)
        return committed.offset, metadata_of(committed)

    try:
        return wait_out(ask, settings.outage_rule)
    finally:
        consumer.close()


def metadata_of(committed: Any) -> str | None:
    """Return the metadata of a committed offset; other clients may commit bytes that are not text."""
    try:
        metadata: str | None = committed.metadata
    except UnicodeDecodeError:
        return "not UTF-8"
    return metadata


def set_group_offset(admin: Any, rule: OutageRule, group: str, topic: str, offset: int, metadata: str) -> None:
    """Set the offset of a group and its metadata, for partition 0 of a topic."""
    asked = sdk().ConsumerGroupTopicPartitions(group, [sdk().TopicPartition(topic, 0, offset, metadata)])

    def ask() -> None:
        (future,) = admin.alter_consumer_group_offsets([asked], request_timeout=CALL_SECONDS).values()
        try:
            (partition,) = future.result().topic_partitions
        except client_exception() as error:
            raise connector_error(error.args[0], group) from None
        if partition.error is not None:
            raise connector_error(partition.error, group)

    wait_out(ask, rule)


def consumer_settings(settings: ClientSettings) -> ClientSettings:
    """Return the settings of a producer without those about which a consumer warns."""
    shared = ("bootstrap.", "security.", "sasl.", "ssl.", "socket.", "reconnect.", "broker.", "client.", "metadata.")
    return replace(settings, plain=tuple(pair for pair in settings.plain if pair[0].startswith(shared)))


class GroupCommitter:
    """Commits the newest offsets of a query in the background, for tools that watch lag; no query waits for it."""

    def __init__(self, settings: ClientSettings, group: str, pause_seconds: float = 10.0) -> None:
        self._pause_seconds = pause_seconds
        self._settings = settings
        self._group = group
        self._changed = threading.Condition()
        self._waiting: Offsets | None = None
        self._stopped = False
        self._thread: threading.Thread | None = None

    def commit(self, offsets: Offsets) -> None:
        """Commit these soon, in place of older ones that have not been sent."""
        with self._changed:
            self._waiting = offsets
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kafka-group-commit", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def stop(self) -> None:
        """End the thread after what it has to commit."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _run(self) -> None:
        lookup: KafkaLookup | None = None
        failed: Offsets | None = None
        warned = False
        while (offsets := self._next(failed)) is not None:
            try:
                lookup = lookup or KafkaLookup(self._settings, self._group)
                lookup.commit(offsets)
                failed, warned = None, False
            except ConnectorError as error:
                if not warned:
                    _log.warning(
                        "[KAFKA_GROUP_COMMIT] Offsets were not committed to %s, and the query continues: %s",
                        self._group,
                        error,
                    )
                failed, warned = offsets if error.transient else None, True
        if lookup is not None:
            lookup.close()

    def _next(self, failed: Offsets | None) -> Offsets | None:
        """Wait for offsets to commit, or for a pause before those that failed; return None at the end."""
        pause = None if failed is None else self._pause_seconds
        with self._changed:
            in_time = self._changed.wait_for(lambda: self._stopped or self._waiting is not None, pause)
            offsets, self._waiting = self._waiting, None
        return offsets if in_time else failed
