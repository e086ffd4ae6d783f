"""A producer whose records become visible all together or not at all, and which fences earlier holders of its id."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Self

from connectors.core.errors import ConnectorError
from connectors.kafka.client.factory import client_exception
from connectors.kafka.client.group_offsets import CALL_SECONDS, PATIENCE_SECONDS, PAUSE_SECONDS
from connectors.kafka.sink.writer import RecordSink

if TYPE_CHECKING:
    from connectors.kafka.options.client import ClientSettings

__all__ = ["TransactionalSink"]

_log = logging.getLogger(__name__)

_FENCED: Final = frozenset({"KAFKA_FENCED", "KAFKA_PRODUCER_FAILED"})


class TransactionalSink:
    """A producer with one transaction; a context manager that leaves none open.

    Attributes:
        sink: takes the records.
    """

    def __init__(self, settings: ClientSettings, transactional_id: str) -> None:
        self._id = transactional_id
        self._limit = float(settings.get("transaction.timeout.ms") or math.inf) / 1000
        self._began_at: float | None = None
        self.sink = RecordSink(settings, {"transactional.id": transactional_id})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        timeout = self._timeout(error)
        try:
            if kind is not None:
                self._abort()
        finally:
            self.sink.discard()
        if timeout is not None:
            raise timeout from None

    def _timeout(self, error: BaseException | None) -> ConnectorError | None:
        """Return the error for a transaction that was open too long: the broker fences its producer when it ends it."""
        if not isinstance(error, ConnectorError) or error.code not in _FENCED or self._began_at is None:
            return None
        open_for = time.monotonic() - self._began_at
        if open_for < self._limit:
            return None
        return ConnectorError(
            "KAFKA_TRANSACTION_TIMEOUT",
            f"A transaction was open for {open_for:.1f} s, and the broker ends one after {self._limit:g} s",
            self._id,
            "Nothing of it will be seen. Raise kafka.transaction.timeout.ms, and before it transaction.max.timeout.ms "
            "of the brokers, or have tasks that take less time, by more partitions or smaller batches. Brokers look "
            "every transaction.abort.timed.out.transaction.cleanup.interval.ms (10 s), so a little more than the limit "
            "may pass.",
        )

    def fence(self) -> None:
        """End the open transaction of earlier holders of the id, and make all their further calls fail."""
        self.call(lambda: self.sink.producer.init_transactions(CALL_SECONDS))

    def begin(self) -> None:
        """Begin the transaction, with the first row: its time limit runs from here."""
        if self._began_at is None:
            self.call(self.sink.producer.begin_transaction)
            self._began_at = time.monotonic()

    def add_offset(self, offset: Any, group: Any) -> None:
        """Put an offset of a group, as its consumer describes it, into the transaction."""
        self.call(lambda: self.sink.producer.send_offsets_to_transaction([offset], group, CALL_SECONDS))

    def commit(self) -> None:
        """Commit the transaction."""
        self.call(lambda: self.sink.producer.commit_transaction(CALL_SECONDS))
        self._began_at = None

    def call(self, step: Callable[[], Any], *, read_only: bool = False) -> Any:
        """Do a step, and repeat it while the client says that this is safe; a read-only one for any transient error.

        After `PATIENCE_SECONDS` the task fails, and its next attempt begins by asking what happened.
        """
        refused = client_exception()
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return step()
            except refused as error:
                problem = error.args[0]
                refusal = self.sink.refusal(problem, self._id)
                retriable = problem.retriable() or (read_only and refusal.transient)
                if not retriable or problem.txn_requires_abort() or time.monotonic() > give_up_at:
                    raise refusal from None
                self.sink.check()
                time.sleep(PAUSE_SECONDS)

    def _abort(self) -> None:
        """End the transaction if that is possible; else the first step of the next attempt does."""
        self.sink.purge()
        if self._began_at is not None:
            try:
                self.sink.producer.abort_transaction(CALL_SECONDS)
            except client_exception() as error:
                _log.warning("[KAFKA_NOT_ABORTED] %s (%s)", error.args[0].str(), self._id)
