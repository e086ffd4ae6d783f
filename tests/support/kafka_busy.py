"""A topic that gets a record whenever its stream asks about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from connectors.kafka.client.admin import KafkaLookup, RetryingLookup
from connectors.kafka.options.source import KafkaReadOptions, parse_read_options
from connectors.kafka.source.micro_batch import KafkaStream
from tests.support.kafka_rig import KafkaRig


class BusyLookup(RetryingLookup):
    """A lookup whose topic gets a record whenever it is asked."""

    def __init__(self, options: KafkaReadOptions, kafka: KafkaRig, topic: str) -> None:
        super().__init__(options)
        self._kafka, self._topic = kafka, topic

    def ask(self, call: Callable[[KafkaLookup], Any]) -> Any:
        self._kafka.send(self._topic, ["more"])
        return super().ask(call)


def busy_stream(kafka: KafkaRig, topic: str, **more: str) -> KafkaStream:
    options = parse_read_options(kafka.options(topic, **more), {}, streaming=True)
    return KafkaStream(options, lookup=BusyLookup(options, kafka, topic))
