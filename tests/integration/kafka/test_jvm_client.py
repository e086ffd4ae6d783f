"""Kafka's own client in Java beside the format: the share of ``./dev chaos clients`` that each run can have."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.rigs.kafka_clients import CODECS, POM, producer_is_read, sink_is_consumed
from tests.support.clients import find_java_client
from tests.support.kafka_rig import KafkaRig

RECORDS = 200


@pytest.fixture(autouse=True)
def _java() -> None:
    if reason := find_java_client(POM).reason:
        pytest.skip(reason)


def succeeded(outcome: dict[str, Any]) -> bool:
    assert outcome["ok"], outcome["faults"]
    return True


@pytest.mark.parametrize("codec", CODECS)
def test_transactions_of_the_jvm_s_producers_are_read_whole_in_each_codec(kafka: KafkaRig, codec: str) -> None:
    native = CODECS.index(codec) % 2 == 0
    assert succeeded(producer_is_read(kafka, codec, 1, RECORDS, native=native, broker_time=codec == "gzip"))


@pytest.mark.parametrize("native", [True, False])
def test_the_jvm_s_consumer_reads_what_the_sink_writes(kafka: KafkaRig, native: bool) -> None:
    assert succeeded(sink_is_consumed(kafka, "zstd", 2, RECORDS, native=native))
