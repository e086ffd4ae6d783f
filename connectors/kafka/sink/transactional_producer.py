"""A sink with a transactional id: what it writes is seen as a whole or not at all, and earlier holders are fenced."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Self

from connectors.core.errors import ConnectorError
from connectors.kafka.client.factory import client_exception
from connectors.kafka.client.group_offsets import CALL_SECONDS, PATIENCE_SECONDS, PAUSE_SECONDS
from connectors.kafka.sink.writer import RecordSink

if TYPE_CHECKING:
    from connectors.kafka.options.client import ClientSettings
    from connectors.kafka.sink.rows import Record

__all__ = ["TransactionalSink"]

_log = logging.getLogger(__name__)

_FENCED: Final = frozenset({"KAFKA_FENCED", "KAFKA_PRODUCER_FAILED"})


class TransactionalSink:
    """Records in one transaction; a context manager that leaves nothing open.

    Args:
        settings: of the producer.
        name: the transactional id.
    """

    def __init__(self, settings: ClientSettings, name: str) -> None:
        self._name = name
        self._limit = float(settings.get("transaction.timeout.ms") or math.inf) / 1000
        self._began_at: float | None = None
        self._sink = RecordSink(settings, {"transactional.id": name})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        timeout = self._timeout(error)
        try:
            if kind is not None:
                self._abort()
        finally:
            self._sink.discard()
        if timeout is not None:
            raise timeout from None

    def _timeout(self, error: BaseException | None) -> ConnectorError | None:
        """What an error means that only says that the producer was fenced, if the transaction had been open for long.

        The broker fences the producer of a transaction that it ends for its age, as another attempt would.
        """
        if not isinstance(error, ConnectorError) or error.code not in _FENCED or self._began_at is None:
            return None
        open_for = time.monotonic() - self._began_at
        if open_for < self._limit:
            return None
        return ConnectorError(
            "KAFKA_TRANSACTION_TIMEOUT",
            f"A transaction was open for {open_for:.1f} s, and the broker ends one after {self._limit:g} s",
            self._name,
            "Nothing of it will be seen. Raise kafka.transaction.timeout.ms, and before it transaction.max.timeout.ms "
            "of the brokers, or have tasks that take less time, by more partitions or smaller batches. Brokers look "
            "every transaction.abort.timed.out.transaction.cleanup.interval.ms (10 s), so a little more than the limit "
            "may pass.",
        )

    def fence(self) -> None:
        """End what earlier holders of the id have left open, and have all that they do from now on fail."""
        self.call(lambda: self._sink.producer.init_transactions(CALL_SECONDS))

    def begin(self) -> None:
        """Begin the transaction, with the first row: its time limit runs from here."""
        if self._began_at is None:
            self.call(self._sink.producer.begin_transaction)
            self._began_at = time.monotonic()

    def send(self, records: Iterable[Record]) -> None:
        """Put records into the queue; waits while it is full.

        Raises:
            ConnectorError: one of these, or of those before, could not be written.
        """
        self._sink.send(records)

    def finish(self) -> None:
        """Wait until every record is acknowledged.

        Raises:
            ConnectorError: one was not.
        """
        self._sink.finish()

    def mark(self, offset: Any, member: Any) -> None:
        """Put an offset of a group into the transaction.

        Args:
            offset: the offset with its partition.
            member: the group, as its consumer describes it.
        """
        self.call(lambda: self._sink.producer.send_offsets_to_transaction([offset], member, CALL_SECONDS))

    def commit(self) -> None:
        """Commit the transaction."""
        self.call(lambda: self._sink.producer.commit_transaction(CALL_SECONDS))
        self._began_at = None

    def call(self, step: Callable[[], Any], *, asks: bool = False) -> Any:
        """Do a step; where the client says that it can be tried again, with the same meaning, it is.

        When patience ends the task fails, and its next attempt begins by asking what happened.

        Args:
            step: what to do.
            asks: it only asks, so that any error that may pass can be waited out.
        """
        refused = client_exception()
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return step()
            except refused as error:
                problem = error.args[0]
                known = self._sink.refusal(problem, self._name)
                again = problem.retriable() or (asks and known.transient)
                if not again or problem.txn_requires_abort() or time.monotonic() > give_up_at:
                    raise known from None
                self._sink.check()
                time.sleep(PAUSE_SECONDS)

    def _abort(self) -> None:
        """Leave nothing open, if that is possible; else the next attempt's first step ends it."""
        refused = client_exception()
        self._sink.purge()
        if self._began_at is not None:
            try:
                self._sink.producer.abort_transaction(CALL_SECONDS)
            except refused as error:
                _log.warning("[KAFKA_NOT_ABORTED] %s (%s)", error.args[0].str(), self._name)
