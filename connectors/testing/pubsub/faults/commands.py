# ruff: noqa: FBT001 - `PubSubKnobs` documents each command, and passes every argument by its name
"""The commands behind `PubSubKnobs`, on the runtime of a server; arguments and results are JSON values."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from functools import partial
from typing import Any

import grpc
from google.pubsub_v1 import types

from connectors.testing.clock import SECOND
from connectors.testing.command_values import nanoseconds, not_negative, one_of
from connectors.testing.pubsub.faults.events import EventKind
from connectors.testing.pubsub.faults.plan import AckLoss, AckRefusal, Duplication, RedeliveryRule, ScriptedStatus
from connectors.testing.pubsub.model.messages import Entry
from connectors.testing.pubsub.model.rules import ProtoMessage, StatusError
from connectors.testing.pubsub.model.subscription import INVALID_ACK_ID, Subscription
from connectors.testing.pubsub.runtime import PubSubRuntime
from connectors.testing.pubsub.service import METHODS
from connectors.testing.pubsub.streams import StreamingPullHandler

__all__ = ["PubSubCommands"]

_PUBLISH_MESSAGES = 1000
_PUBLISH_BYTES = 5_000_000


class PubSubCommands:
    """Each public method is a command; `PubSubKnobs` says what it does."""

    def __init__(self, runtime: PubSubRuntime, streaming: StreamingPullHandler) -> None:
        self._runtime = runtime
        self._streaming = streaming
        self._faults = runtime.faults
        self._state = runtime.state

    def run(self, name: str, arguments: dict[str, object]) -> object:
        """Run a command by its name; raises `ValueError` with the reason when it cannot be done."""
        command = None if name.startswith("_") or name == "run" else getattr(self, name, None)
        if command is None:
            message = f"no such command: {name!r}"
            raise ValueError(message)
        try:
            return command(**arguments)
        except (StatusError, TypeError) as error:
            raise ValueError(str(error)) from error

    # -- topics, subscriptions, messages --

    def create_topic(self, topic: str, retention_seconds: float | None) -> None:
        config = types.Topic.pb()(name=topic)
        if retention_seconds is not None:
            config.message_retention_duration.FromNanoseconds(nanoseconds(retention_seconds))
        with self._runtime.transaction():
            try:
                self._state.create_topic(config)
            except StatusError as error:
                if error.code is not grpc.StatusCode.ALREADY_EXISTS:
                    raise

    def create_subscription(
        self, subscription: str, topic: str, retention_seconds: float | None, dead_letter_topic: str | None, **more: Any
    ) -> None:
        config = types.Subscription.pb()(
            name=subscription,
            topic=topic,
            ack_deadline_seconds=more["ack_deadline_seconds"],
            enable_message_ordering=more["ordering"],
            enable_exactly_once_delivery=more["exactly_once"],
            filter=more["filter"],
            retain_acked_messages=more["retain_acked"],
        )
        if dead_letter_topic is not None:
            config.dead_letter_policy.dead_letter_topic = dead_letter_topic
            config.dead_letter_policy.max_delivery_attempts = more["max_delivery_attempts"]
            self.create_topic(dead_letter_topic, None)
        if retention_seconds is not None:
            config.message_retention_duration.FromNanoseconds(nanoseconds(retention_seconds))
        self.create_topic(topic, None)
        with self._runtime.transaction():
            self._state.create_subscription(config)

    def publish(self, topic: str, payloads: list[str], attributes: dict[str, str], ordering_key: str) -> list[str]:
        messages = (
            types.PubsubMessage.pb()(data=base64.b64decode(payload), attributes=attributes, ordering_key=ordering_key)
            for payload in payloads
        )
        ids: list[str] = []
        for request in _publish_requests(topic, messages):
            with self._runtime.transaction() as now:
                ids += self._state.publish(now, request)
        return ids

    def fill(self, topic: str, count: int, payload_bytes: int) -> None:
        messages = (
            types.PubsubMessage.pb()(data=str(number).rjust(payload_bytes, ".").encode()) for number in range(count)
        )
        for request in _publish_requests(topic, messages):
            with self._runtime.transaction() as now:
                self._state.publish(now, request)

    # -- time --

    def now(self) -> float:
        return self._runtime.clock.now() / SECOND

    def jump(self, seconds: float) -> None:
        with self._runtime.transaction():
            self._runtime.clock.jump(seconds)
            self._runtime.clock_changed()
        with self._runtime.transaction():
            pass  # Does what became due before this returns, whatever the timer's thread does.

    def set_speed(self, speed: float) -> None:
        with self._runtime.transaction():
            self._runtime.clock.set_speed(speed)
            self._runtime.clock_changed()

    # -- faults --

    def fail(self, method: str, code: str, times: int | None, message: str, after_effect: bool) -> None:
        status = ScriptedStatus(_method(method), _status_code(code), message, times, after_effect)
        if times is not None and times < 1:
            text = f"times must be at least 1, or None, not {times}"
            raise ValueError(text)
        with self._runtime.transaction():
            self._faults.scripted.append(status)

    def delay_calls(self, method: str, seconds: float) -> None:
        with self._runtime.transaction():
            self._faults.call_delays[_method(method)] = not_negative("seconds", seconds)

    def lose_acks(self, count: int | None, fraction: float | None, subscription: str | None) -> None:
        if (count is None) == (fraction is None):
            message = "lose_acks takes either count or fraction"
            raise ValueError(message)
        with self._runtime.transaction():
            self._faults.ack_losses[subscription or ""] = AckLoss(count, _fraction(fraction or 0.0))

    def refuse_acks(self, how: str, count: int | None, fraction: float | None, subscription: str | None) -> None:
        if (count is None) == (fraction is None):
            message = "refuse_acks takes either count or fraction"
            raise ValueError(message)
        transient = one_of("how", how, "transient", "permanent") == "transient"
        reason = "TRANSIENT_FAILURE_SERVICE_UNAVAILABLE" if transient else INVALID_ACK_ID
        with self._runtime.transaction():
            self._faults.ack_refusals[subscription or ""] = AckRefusal(reason, count, _fraction(fraction or 0.0))

    def delay_acks(self, seconds: float, subscription: str | None) -> None:
        with self._runtime.transaction():
            self._faults.ack_delays[subscription or ""] = nanoseconds(seconds)

    def late_acks(self, policy: str) -> None:
        with self._runtime.transaction():
            self._faults.honour_late_acks = one_of("policy", policy, "honour", "ignore") == "honour"

    def redeliver(
        self,
        subscription: str,
        message_ids: list[str] | None,
        count: int | None,
        fraction: float,
        delay: float,
        to_other_stream: bool,
    ) -> list[str]:
        with self._runtime.transaction() as now:
            found = self._state.subscription(subscription)
            entries = _acked_entries(found, message_ids)
            entries = [entry for entry in entries if self._faults.is_picked(_fraction(fraction), entry.sequence)]
            if count is not None:
                entries = entries[-count:] if count else []
            for entry in entries:
                if delay:
                    self._runtime.at(now + nanoseconds(delay), partial(found.bring_back, entry, to_other_stream))
                else:
                    found.bring_back(entry, to_other_stream, now)
        return [entry.message.id for entry in entries]

    def redeliver_acked(
        self,
        fraction: float,
        delay: float,
        to_other_stream: bool,
        times: int,
        message_ids: list[str] | None,
        subscription: str | None,
    ) -> None:
        only = None if message_ids is None else frozenset(message_ids)
        rule = RedeliveryRule(_fraction(fraction), nanoseconds(delay), to_other_stream, times, only)
        with self._runtime.transaction():
            self._faults.redeliveries[subscription or ""] = rule

    def duplicate(self, fraction: float, where: str, subscription: str | None) -> None:
        to_other_stream = one_of("where", where, "same_response", "other_stream") == "other_stream"
        with self._runtime.transaction():
            self._faults.duplications[subscription or ""] = Duplication(_fraction(fraction), to_other_stream)

    def expire_leases(self, subscription: str) -> int:
        with self._runtime.transaction() as now:
            return self._state.subscription(subscription).expire_now(now)

    def close_streams(self, subscription: str | None, code: str, message: str) -> int:
        status = StatusError(_status_code(code), message)
        with self._runtime.transaction():
            return self._streaming.close_streams(status, subscription)

    def close_streams_every(self, seconds: float) -> None:
        with self._runtime.transaction():
            self._faults.stream_life_ns = nanoseconds(seconds)
            self._streaming.plan_stream_ends()

    def lose_responses(self, count: int) -> None:
        with self._runtime.transaction():
            self._faults.lost_responses = int(not_negative("count", count))

    def slow_streams(self, seconds: float) -> None:
        with self._runtime.transaction():
            self._faults.response_delay_seconds = not_negative("seconds", seconds)

    def pause_deliveries(self, subscription: str | None) -> None:
        with self._runtime.transaction():
            self._faults.paused.add(subscription or "")

    def resume_deliveries(self, subscription: str | None) -> None:
        with self._runtime.transaction():
            if subscription is None:
                self._faults.paused.clear()
            else:
                self._faults.paused.discard(subscription)
            self._runtime.wake_all()

    def ignore_flow_control(self, on: bool) -> None:
        with self._runtime.transaction():
            self._faults.ignore_flow_control = on
            self._runtime.wake_all()

    def clear_faults(self) -> None:
        with self._runtime.transaction():
            self._faults.clear()
            self._runtime.wake_all()

    # -- questions --

    def events(self, since: int, kinds: list[str] | None, subscription: str | None) -> list[dict[str, object]]:
        wanted = None if kinds is None else {EventKind(kind).value for kind in kinds}
        with self._runtime.transaction():
            found = self._runtime.events.select(since, wanted, subscription)
        return [event.to_json() for event in found]

    def counters(self) -> dict[str, int]:
        with self._runtime.transaction():
            events = self._runtime.events
            return {**events.counters(), "first-kept": events.first_kept()}

    def acked_ids(self, subscription: str) -> list[str]:
        with self._runtime.transaction():
            name = self._state.subscription(subscription).name
            events = self._runtime.events
            if events.first_kept() > 0:
                message = f"the event log dropped its first {events.first_kept()} events: raise event_limit"
                raise ValueError(message)
            found = events.select(0, {EventKind.ACK.value}, name)
        return [event.message_id for event in found]

    def outstanding_ids(self, subscription: str) -> list[str]:
        with self._runtime.transaction():
            return [message.id for message in self._state.subscription(subscription).outstanding()]

    def backlog_ids(self, subscription: str) -> list[str]:
        with self._runtime.transaction():
            return [message.id for message in self._state.subscription(subscription).backlog()]

    def outstanding(self, subscription: str) -> int:
        with self._runtime.transaction():
            return self._state.subscription(subscription).outstanding_size()

    def backlog(self, subscription: str) -> int:
        with self._runtime.transaction():
            return self._state.subscription(subscription).backlog_size()

    def streams(self, subscription: str | None) -> list[dict[str, object]]:
        with self._runtime.transaction():
            return [
                {
                    "id": stream.id,
                    "client_id": stream.client_id,
                    "subscription": found.name,
                    "held_messages": stream.held_messages,
                    "held_bytes": stream.held_bytes,
                    "max_messages": stream.max_messages,
                    "max_bytes": stream.max_bytes,
                }
                for found in self._state.all_subscriptions()
                if subscription in {None, found.name}
                for stream in found.streams.values()
            ]


def _publish_requests(topic: str, messages: Iterator[ProtoMessage]) -> Iterator[ProtoMessage]:
    """The messages in requests that are as large as the service allows, or smaller."""
    request = types.PublishRequest.pb()(topic=topic)
    size = 0
    for message in messages:
        request.messages.append(message)
        size += message.ByteSize()
        if len(request.messages) >= _PUBLISH_MESSAGES or size >= _PUBLISH_BYTES:
            yield request
            request = types.PublishRequest.pb()(topic=topic)
            size = 0
    if request.messages:
        yield request


def _acked_entries(subscription: Subscription, message_ids: list[str] | None) -> list[Entry]:
    """The entries that are acked now and still known, in the order of their (last) acks."""
    known = {entry.message.id: entry for entry in subscription.acked if not entry.live}
    if message_ids is None:
        return list(known.values())
    unknown = [message_id for message_id in message_ids if message_id not in known]
    if unknown:
        message = f"not acked in {subscription.name}, as far as this server knows: {', '.join(unknown[:10])}"
        raise ValueError(message)
    return [known[message_id] for message_id in message_ids]


def _method(name: str) -> str:
    return name if name == "*" else one_of("method", name, *METHODS)


def _status_code(name: str) -> grpc.StatusCode:
    return grpc.StatusCode[one_of("code", name, *(code.name for code in grpc.StatusCode if code.name != "OK"))]


def _fraction(value: float) -> float:
    if not 0.0 <= value <= 1.0:
        message = f"fraction must be between 0 and 1, not {value}"
        raise ValueError(message)
    return value
