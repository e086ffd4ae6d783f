"""What a test can ask of the Pub/Sub server and do to it; the same in its own process and from another one.

`PubSubServer` and `PubSubControl` are both `PubSubKnobs`. Names of topics and subscriptions are full ones
(``projects/P/subscriptions/S``); ``subscription=None`` means every subscription. Faults stay until they are used up,
set again, or cleared by `clear_faults`.

Times: what is a time of the service (deadlines, retention, delays of acks and redeliveries, lives of streams) is
counted on the server's clock, which `speed` and `jump` change. What is a delay on the network (`delay_calls`,
`slow_streams`), and every ``timeout``, is real seconds.
"""

from __future__ import annotations

import base64
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

from connectors.testing.pubsub.faults.events import Event

__all__ = ["PubSubKnobs"]

_POLL_SECONDS = 0.005


class PubSubKnobs(ABC):
    """See the top of this module. Every method raises `ValueError` for an argument that is not legal."""

    @abstractmethod
    def _command(self, name: str, /, **arguments: object) -> Any:
        """Run a method of `PubSubCommands`; arguments and result are JSON values."""

    # -- topics, subscriptions, messages --

    def create_topic(self, topic: str, retention_seconds: float | None = None) -> None:
        """Create a topic unless it is there."""
        self._command("create_topic", topic=topic, retention_seconds=retention_seconds)

    def create_subscription(  # noqa: PLR0913 - what a subscription is made of
        self,
        subscription: str,
        topic: str,
        *,
        ack_deadline_seconds: int = 10,
        retention_seconds: float | None = None,
        ordering: bool = False,
        exactly_once: bool = False,
        filter: str = "",  # noqa: A002 - the name that the service has for it
        retain_acked: bool = False,
        dead_letter_topic: str | None = None,
        max_delivery_attempts: int = 5,
    ) -> None:
        """Create a subscription, and its topics unless they are there."""
        self._command(
            "create_subscription",
            subscription=subscription,
            topic=topic,
            ack_deadline_seconds=ack_deadline_seconds,
            retention_seconds=retention_seconds,
            ordering=ordering,
            exactly_once=exactly_once,
            filter=filter,
            retain_acked=retain_acked,
            dead_letter_topic=dead_letter_topic,
            max_delivery_attempts=max_delivery_attempts,
        )

    def publish(
        self,
        topic: str,
        payloads: Sequence[bytes],
        attributes: Mapping[str, str] | None = None,
        ordering_key: str = "",
    ) -> list[str]:
        """Publish any number of messages with the same attributes and key, and give their ids."""
        encoded = [base64.b64encode(payload).decode() for payload in payloads]
        ids: list[str] = self._command(
            "publish", topic=topic, payloads=encoded, attributes=dict(attributes or {}), ordering_key=ordering_key
        )
        return ids

    def fill(self, topic: str, count: int, payload_bytes: int) -> None:
        """Publish ``count`` messages made in the server: a decimal number from 0 up, padded with dots at the left."""
        self._command("fill", topic=topic, count=count, payload_bytes=payload_bytes)

    # -- time --

    def now(self) -> float:
        """Server time, in seconds since 1970."""
        return float(self._command("now"))

    def jump(self, seconds: float) -> None:
        """Move server time forward at once; what became due is done when this returns."""
        self._command("jump", seconds=seconds)

    def set_speed(self, speed: float) -> None:
        """Let server time run ``speed`` times as fast as real time from now on."""
        self._command("set_speed", speed=speed)

    # -- faults of calls --

    def fail(
        self,
        method: str,
        code: str = "UNAVAILABLE",
        times: int | None = 1,
        message: str = "made to fail",
        *,
        after_effect: bool = False,
    ) -> None:
        """Answer the next ``times`` calls (None: all) of an RPC, or of any (``*``), with a status.

        For StreamingPull it is the opening that fails. Several calls of `fail` are used up in their order.

        Args:
            method: such as ``Acknowledge``.
            code: name of a gRPC status, such as ``PERMISSION_DENIED``.
            times: how many calls; None for all until `clear_faults`.
            message: text of the status.
            after_effect: the call takes effect, only its answer is lost (not for StreamingPull).
        """
        self._command("fail", method=method, code=code, times=times, message=message, after_effect=after_effect)

    def delay_calls(self, method: str, seconds: float) -> None:
        """Let calls of an RPC, or of any (``*``), wait before they are handled; 0 ends it."""
        self._command("delay_calls", method=method, seconds=seconds)

    # -- faults of acks and deliveries --

    def lose_acks(
        self, count: int | None = None, fraction: float | None = None, subscription: str | None = None
    ) -> None:
        """Answer acks with OK and ignore them: those of the next ``count`` messages, or of a fraction of messages."""
        self._command("lose_acks", count=count, fraction=fraction, subscription=subscription)

    def refuse_acks(
        self,
        how: Literal["transient", "permanent"],
        count: int | None = None,
        fraction: float | None = None,
        subscription: str | None = None,
    ) -> None:
        """Answer acks of exactly-once subscriptions with a failure: of the next ``count`` messages, or of a fraction.

        A transient one is worth another try; after a permanent one the message comes again at its deadline.
        """
        self._command("refuse_acks", how=how, count=count, fraction=fraction, subscription=subscription)

    def delay_acks(self, seconds: float, subscription: str | None = None) -> None:
        """Answer acks with OK at once and let them take effect later, perhaps past the deadline; 0 ends it."""
        self._command("delay_acks", seconds=seconds, subscription=subscription)

    def late_acks(self, policy: Literal["honour", "ignore"]) -> None:
        """Say what an ack does after its deadline and before the message goes out again: ack it (default), or nothing.

        An ack of a delivery that was followed by another one never does anything, except while both are under way.
        """
        self._command("late_acks", policy=policy)

    def redeliver(
        self,
        subscription: str,
        message_ids: Collection[str] | None = None,
        *,
        count: int | None = None,
        fraction: float = 1.0,
        delay: float = 0.0,
        to_other_stream: bool = False,
    ) -> list[str]:
        """Deliver messages again that are acked already; they are to be acked again.

        Args:
            subscription: full name.
            message_ids: which ones; None for all acked ones that are still known (the newest 100,000, or 64 MB).
            count: only the newest that many of them.
            fraction: only this fraction of them.
            delay: server seconds until then.
            to_other_stream: keep each from the stream that had it, as long as another stream is open.

        Returns:
            The ids of the messages that come again.

        Raises:
            ValueError: also when one of ``message_ids`` is not known as acked.
        """
        ids: list[str] = self._command(
            "redeliver",
            subscription=subscription,
            message_ids=None if message_ids is None else list(message_ids),
            count=count,
            fraction=fraction,
            delay=delay,
            to_other_stream=to_other_stream,
        )
        return ids

    def redeliver_acked(
        self,
        fraction: float = 1.0,
        *,
        delay: float = 0.0,
        to_other_stream: bool = False,
        times: int = 1,
        message_ids: Collection[str] | None = None,
        subscription: str | None = None,
    ) -> None:
        """From now on, deliver messages again after they are acked, each at most ``times`` times; 0 ends it.

        The arguments are those of `redeliver`; ``delay`` counts from the ack.
        """
        self._command(
            "redeliver_acked",
            fraction=fraction,
            delay=delay,
            to_other_stream=to_other_stream,
            times=times,
            message_ids=None if message_ids is None else list(message_ids),
            subscription=subscription,
        )

    def duplicate(
        self,
        fraction: float,
        where: Literal["same_response", "other_stream"] = "same_response",
        subscription: str | None = None,
    ) -> None:
        """Deliver a fraction of messages twice, each time with an ack id of its own; 0 ends it.

        ``other_stream``: while the first delivery is under way, to another stream as soon as one is open.
        """
        self._command("duplicate", fraction=fraction, where=where, subscription=subscription)

    def expire_leases(self, subscription: str) -> int:
        """Let every delivery that is under way expire now, before its deadline, and give how many there were."""
        return int(self._command("expire_leases", subscription=subscription))

    # -- faults of streams --

    def close_streams(
        self, subscription: str | None = None, code: str = "UNAVAILABLE", message: str = "closed by the server"
    ) -> int:
        """End the open streams with a status, and give how many there were."""
        return int(self._command("close_streams", subscription=subscription, code=code, message=message))

    def close_streams_every(self, seconds: float) -> None:
        """Let each stream, also those open now, live that many server seconds, then end with UNAVAILABLE; 0 ends it."""
        self._command("close_streams_every", seconds=seconds)

    def lose_responses(self, count: int) -> None:
        """Lose the next ``count`` responses of streams, each with its stream: nobody has their messages then."""
        self._command("lose_responses", count=count)

    def slow_streams(self, seconds: float) -> None:
        """Hold back each response of a stream that many real seconds, while its deadlines run already; 0 ends it."""
        self._command("slow_streams", seconds=seconds)

    def pause_deliveries(self, subscription: str | None = None) -> None:
        """Hand out nothing until `resume_deliveries`; acks, nacks and deadlines go on."""
        self._command("pause_deliveries", subscription=subscription)

    def resume_deliveries(self, subscription: str | None = None) -> None:
        """End what `pause_deliveries` began; None ends every pause."""
        self._command("resume_deliveries", subscription=subscription)

    def ignore_flow_control(self, *, on: bool = True) -> None:
        """Send more than a stream asked for, as emulators do."""
        self._command("ignore_flow_control", on=on)

    def clear_faults(self) -> None:
        """Take back every fault; what was planned already (a redelivery after a delay) still comes."""
        self._command("clear_faults")

    # -- questions --

    def events(
        self, since: int = 0, kinds: Collection[str] | None = None, subscription: str | None = None
    ) -> list[Event]:
        """The events with an index of at least ``since``, of the given kinds (`EventKind`) and subscription."""
        found = self._command(
            "events", since=since, kinds=None if kinds is None else list(kinds), subscription=subscription
        )
        return [Event(**event) for event in found]

    def counters(self) -> dict[str, int]:
        """How many events of each kind there were, also when the log is off, and ``first-kept`` (see `acked_ids`)."""
        counters: dict[str, int] = self._command("counters")
        return counters

    def acked_ids(self, subscription: str) -> list[str]:
        """Ids in the order of their acks; a message that was acked twice stands there twice.

        Raises:
            ValueError: the log has forgotten events (``event_limit`` was reached or is 0).
        """
        ids: list[str] = self._command("acked_ids", subscription=subscription)
        return ids

    def outstanding_ids(self, subscription: str) -> list[str]:
        """Ids of the messages that consumers hold now; twice when two hold it."""
        ids: list[str] = self._command("outstanding_ids", subscription=subscription)
        return ids

    def backlog_ids(self, subscription: str) -> list[str]:
        """Ids of the messages that are not acked, delivered or not."""
        ids: list[str] = self._command("backlog_ids", subscription=subscription)
        return ids

    def outstanding(self, subscription: str) -> int:
        """How many deliveries are under way."""
        return int(self._command("outstanding", subscription=subscription))

    def backlog(self, subscription: str) -> int:
        """How many messages are not acked."""
        return int(self._command("backlog", subscription=subscription))

    def streams(self, subscription: str | None = None) -> list[dict[str, Any]]:
        """The open streams: id, client_id, subscription, held_messages, held_bytes, max_messages, max_bytes."""
        streams: list[dict[str, Any]] = self._command("streams", subscription=subscription)
        return streams

    # -- waiting --

    def wait_until(self, condition: Callable[[], bool], timeout: float = 30.0) -> None:
        """Wait until ``condition()`` is true; raises `TimeoutError` with the counters after ``timeout`` seconds."""
        give_up_at = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > give_up_at:
                message = f"the condition did not become true within {timeout} s; counters: {self.counters()}"
                raise TimeoutError(message)
            time.sleep(_POLL_SECONDS)

    def wait_for_backlog(self, subscription: str, messages: int = 0, timeout: float = 30.0) -> None:
        """Wait until at most that many messages are not acked; raises as `wait_until` does."""
        self.wait_until(lambda: self.backlog(subscription) <= messages, timeout)

    def wait_for_events(self, kind: str, count: int = 1, timeout: float = 30.0) -> None:
        """Wait until there were that many events of a kind since the start; raises as `wait_until` does."""
        self.wait_until(lambda: self.counters()[kind] >= count, timeout)

    def wait_for_streams(self, count: int, subscription: str | None = None, timeout: float = 30.0) -> None:
        """Wait until exactly that many streams are open; raises as `wait_until` does."""
        self.wait_until(lambda: len(self.streams(subscription)) == count, timeout)
