"""Whether a subscription can still be read, asked while a fetcher reads it.

A subscription whose topic was deleted keeps what it holds and goes on delivering it (seen on the official emulator, and
in reference/pubsub.md section 2). So its query stops only when nothing comes any more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from connectors.core.errors import AccessDeniedError, ConnectorError, SourceGoneError
from connectors.pubsub.client.client import SubscriptionInfo
from connectors.pubsub.client.errors import topic_deleted
from connectors.pubsub.source.streaming_pull import Service
from connectors.pubsub.source.subscription import require_readable
from connectors.spool.fetching.target import FetchContext

__all__ = ["SubscriptionWatch"]

_LOOK_AGAIN_SECONDS: Final = 1.0
_QUIET_POLL_SECONDS: Final = 0.25


class SubscriptionWatch:
    """Asks for the subscription when a stream was opened, and now and then: a lost topic shows only there.

    Args:
        look: asks for the subscription.
        service: says when a stream wants to know whether the service answers; hears of answers.
        context: hears why nothing more will come.
        every_seconds: how often to ask without a reason.
        quiet_seconds: how long nothing has to come from a subscription without a topic before it counts as empty: as
            long as a fetcher that died may have held messages.
        answer_awaited: whether some stream is open of which nothing is known yet.
        reading: whether all streams are open, and there is room for what they bring.
    """

    def __init__(
        self,
        look: Callable[[], SubscriptionInfo],
        service: Service,
        context: FetchContext,
        *,
        every_seconds: float,
        quiet_seconds: float,
        answer_awaited: Callable[[], bool],
        reading: Callable[[], bool],
    ) -> None:
        self._look_up = look
        self._service = service
        self._context = context
        self._every: float | None = every_seconds if context.index == 0 else None
        self._quiet_seconds = quiet_seconds
        self._answer_awaited = answer_awaited
        self._reading = reading
        self._closed = threading.Event()
        self._gone: SourceGoneError | None = None
        self._quiet_since = 0.0

    def close(self) -> None:
        """Make `run` return soon."""
        self._closed.set()
        self._service.ask()

    def run(self) -> None:
        """Ask until it is closed, or nothing more will come."""
        next_look = self._next_look()
        while True:
            asked = self._service.asked.wait(self._pause(next_look))
            self._service.asked.clear()
            if self._closed.is_set() or self._drained():
                return
            if asked and not self._answer_awaited():
                continue
            if asked or time.monotonic() >= next_look:
                if not self._look():
                    return
                next_look = self._next_look()

    def _next_look(self) -> float:
        return float("inf") if self._every is None else time.monotonic() + self._every

    def _pause(self, next_look: float) -> float | None:
        if self._gone is not None:
            return _QUIET_POLL_SECONDS
        return None if self._every is None else max(next_look - time.monotonic(), 0.0)

    def _look(self) -> bool:
        """Ask once; whether to go on."""
        try:
            info = self._look_up()
            require_readable(info)
            if info.topic_is_deleted and self._gone is None:
                self._quiet_since, self._gone = time.monotonic(), topic_deleted(info.name)
        except AccessDeniedError:
            # An answer, and no reason to stop: to pull needs another role than to look.
            self._service.answered()
            self._every = None
        except ConnectorError as error:
            if not error.transient:
                self._context.fail(error)
                return False
            self._service.failed(error)
            self._service.ask()
            self._closed.wait(_LOOK_AGAIN_SECONDS)
        else:
            self._service.answered()
        self._context.changed()
        return True

    def _drained(self) -> bool:
        """Whether the topic is gone and nothing came for long enough; then the query is told to stop."""
        if self._gone is None:
            return False
        now = time.monotonic()
        if not self._reading():
            self._quiet_since = now
        if now - max(self._quiet_since, self._service.last_delivery or 0.0) < self._quiet_seconds:
            return False
        self._context.fail(self._gone)
        return True
