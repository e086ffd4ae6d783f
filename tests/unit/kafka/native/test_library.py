"""What the fast path takes for granted of librdkafka holds for the client that is installed."""

from __future__ import annotations

import ctypes
import json
import platform
from collections.abc import Iterator

import confluent_kafka
import pyarrow as pa
import pytest
from confluent_kafka import Producer

from connectors.kafka.native import library as librdkafka
from connectors.kafka.native import native_reason
from connectors.kafka.native.library import destroys_lists, library_version
from connectors.kafka.native.reader import TIME_CHECKED
from connectors.kafka.source.consumer_pool import CONSUMERS
from connectors.testing.kafka.mock import MockKafka
from tests.golden.librdkafka_record import RECORD, RECORDS, compare_times

needs_native = pytest.mark.skipif(bool(native_reason()), reason=native_reason() or "none")


def test_the_fast_way_can_be_had_on_linux_on_x86_64_from_arrow_19_on() -> None:
    here = (platform.system(), platform.machine()) == ("Linux", "x86_64")
    assert (native_reason() == "") == (here and int(pa.__version__.partition(".")[0]) >= 19)


@pytest.fixture
def mock() -> Iterator[MockKafka]:
    with MockKafka() as made:
        made.create_topic("t", 1)
        yield made
        CONSUMERS.close()


def test_the_place_of_the_time_is_used_with_exactly_the_versions_that_were_checked() -> None:
    agreed = {"records": RECORDS, "differ": 0}
    as_checked = {"CreateTime": agreed | {"type": 1}, "LogAppendTime": agreed | {"type": 2}}
    assert json.loads(RECORD.read_text()) == dict.fromkeys(TIME_CHECKED, as_checked)


def test_the_client_that_is_installed_was_checked() -> None:
    assert library_version() in TIME_CHECKED, "run python -m tests.golden.librdkafka_record with it"


@needs_native
def test_the_time_is_at_its_place_in_the_client_that_is_installed(mock: MockKafka) -> None:
    producer = Producer({"bootstrap.servers": mock.endpoint})
    for number in range(RECORDS):
        producer.produce("t", b"v", partition=0, timestamp=1 + number * number)
    producer.flush(10)
    assert compare_times(mock.endpoint, ("t",)) == {"t": {"records": RECORDS, "type": 1, "differ": 0}}


@needs_native
def test_records_go_back_by_one_call_where_the_client_has_it() -> None:
    assert destroys_lists() == (confluent_kafka.libversion()[0] == "2.16.0")


class OtherLists:
    """A client whose lists of messages are something else than those that are made."""

    rd_kafka_messages_destroy = print

    def __init__(self, version: int, count: int, shift: int) -> None:
        self._version = version
        self._count = count
        self._shift = shift

    def rd_kafka_version(self) -> int:
        return self._version

    def rd_kafka_messages_count(self, _made: int) -> int:
        return self._count

    def rd_kafka_messages_get(self, made: int, index: int) -> int | None:
        return ctypes.c_void_p.from_address(made + 8 * (index + self._shift)).value


@pytest.mark.parametrize(
    ("version", "count", "shift", "taken"),
    [
        (0x021000FF, 3, 1, True),
        (0x021001FF, 3, 1, False),
        (0x021000FF, 2, 1, False),
        (0x021000FF, 3, 0, False),
        (0x021100FF, 3, 1, False),
        (0x020F00FF, 3, 1, False),
        (0x031000FF, 3, 1, False),
    ],
)
def test_a_list_that_the_client_reads_in_another_way_is_never_given_back(
    monkeypatch: pytest.MonkeyPatch, version: int, count: int, shift: int, taken: bool
) -> None:
    monkeypatch.setattr(librdkafka, "library", lambda: OtherLists(version, count, shift))
    assert destroys_lists.__wrapped__() == taken
