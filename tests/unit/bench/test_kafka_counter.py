"""The proxy before a broker: it passes everything on, and counts requests by their kind."""

from __future__ import annotations

from _program import Program
from confluent_kafka.admin import AdminClient

from connectors.testing.kafka.mock import MockKafka


def test_requests_are_passed_on_and_counted() -> None:
    with MockKafka() as broker, Program("_kafka_counter.py") as counter:
        address = next(counter.reports())["address"]
        assert counter.ask({"do": "lead", "to": broker.endpoint}) == {}
        broker.create_topic("orders", 3)
        broker.count_requests()
        # The mock names its own address in its metadata, so only what goes to the bootstrap address is counted.
        found = AdminClient({"bootstrap.servers": address}).list_topics("orders", 30)
        assert len(found.topics["orders"].partitions) == 3
        counts = counter.ask({"do": "counts"})
    assert counts["ApiVersions"] >= 1
    assert counts["Metadata"] >= 1
