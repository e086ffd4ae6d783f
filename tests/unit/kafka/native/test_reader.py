"""The fast way to read gives what the plain one gives: on memory of our own, and on records of a mock cluster."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.core.errors import ServiceUnavailableError
from connectors.kafka.native import library as librdkafka
from connectors.kafka.native import native_reason
from connectors.kafka.native.library import destroys_lists
from connectors.kafka.native.reader import Numbers, Pointers, _binary, _fill_far
from connectors.kafka.offsets import EARLIEST, LATEST
from connectors.kafka.options.client import ClientSettings
from connectors.kafka.options.source import KafkaReadOptions
from connectors.kafka.schema import Columns
from connectors.kafka.sink.writer import close_sinks, produce_batches
from connectors.kafka.source.consumer_pool import CONSUMERS, ConsumerPool, open_source
from connectors.kafka.source.planning import OffsetRange
from connectors.kafka.source.reader import read_range
from connectors.testing.kafka.mock import MockKafka
from tests.servers.certificates import make_certificates
from tests.support.kafka_paths import path_taken
from tests.support.kafka_tls import TlsKafka
from tests.support.waiting import wait_for

VALUES = st.lists(
    st.one_of(st.none(), st.binary(max_size=14), st.binary(min_size=11, max_size=60)), min_size=1, max_size=40
)


def addresses_of(values: list[bytes | None]) -> tuple[Pointers, Numbers]:
    """Where some bytes stand, and how long they are; they must be kept alive."""
    places = [0 if each is None else ctypes.cast(ctypes.c_char_p(each), ctypes.c_void_p).value or 0 for each in values]
    return np.array(places, np.uint64), np.array([len(each or b"") for each in values], np.int64)


needs_native = pytest.mark.skipif(bool(native_reason()), reason=native_reason() or "none")


@needs_native
@given(VALUES)
def test_bytes_are_gathered_from_anywhere(values: list[bytes | None]) -> None:
    assert _binary(*addresses_of(values)).to_pylist() == values


@needs_native
def test_short_bytes_are_gathered_at_the_edges_of_what_can_be_read() -> None:
    page = mmap.PAGESIZE
    with mmap.mmap(-1, 3 * page) as block:
        block[page : 2 * page] = bytes(range(256)) * (page // 256)
        first = ctypes.addressof(pinned := ctypes.c_char.from_buffer(block))
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for closed in (first, first + 2 * page):
            assert protect(closed, page, 0) == 0, ctypes.get_errno()
        sizes = [*range(14)] * 16
        skipped = [each // 14 for each in range(len(sizes))]
        for places in (
            [page + skip for skip in skipped],
            [2 * page - skip - size for skip, size in zip(skipped, sizes, strict=True)],
        ):
            expected = [block[place : place + size] for place, size in zip(places, sizes, strict=True)]
            addresses = np.array([first + place for place in places], np.uint64)
            assert _binary(addresses, np.array(sizes, np.int64)).to_pylist() == expected
        for closed in (first, first + 2 * page):
            assert protect(closed, page, mmap.PROT_READ | mmap.PROT_WRITE) == 0
        del pinned


@needs_native
def test_bytes_far_apart_are_gathered() -> None:
    # Two mappings with more than 4 GB between them, most of which is never touched.
    block = np.zeros(5 << 30, np.uint8)
    data = b"0123456789abcdef"
    places = [0, 3 << 29, len(block) - len(data)]
    for place in places:
        block[place : place + len(data)] = np.frombuffer(data, np.uint8)
    addresses = np.array([block.ctypes.data + place for place in places], np.uint64)
    assert _binary(addresses, np.full(3, len(data), np.int64)).to_pylist() == [data] * 3


@needs_native
def test_arrow_gets_no_memory_behind_the_last_byte_of_a_value() -> None:
    texts: list[bytes | None] = [b"x" * 20, b"y" * 30, b"z" * 25]
    addresses, lengths = addresses_of(texts)
    views = np.zeros((len(texts), 4), np.int32)
    windows = _fill_far(views, addresses, lengths, np.full(len(texts), True))
    last = int((addresses + lengths.astype(np.uint64)).max())
    assert max(window.address + window.size for window in windows) == last


@pytest.fixture
def mock() -> Iterator[MockKafka]:
    with MockKafka() as made:
        made.create_topic("t", 1)
        yield made
        CONSUMERS.close()


def rows(
    mock: MockKafka, part: OffsetRange, *, group: str = "check", consumers: ConsumerPool = CONSUMERS
) -> list[dict[str, Any]]:
    how = KafkaReadOptions(
        client=ClientSettings((("bootstrap.servers", mock.endpoint), ("isolation.level", "read_uncommitted"))),
        group=group,
        poll_timeout_ms=10_000,
    )
    return [row for batch in read_range(part, how, consumers=consumers) for row in batch.to_pylist()]


def test_both_ways_give_the_same_rows(mock: MockKafka) -> None:
    producer = Producer({"bootstrap.servers": mock.endpoint})
    values = [None, b"", b"short", b"x" * 12, b"y" * 13, bytes(range(256)) * 4]
    for number in range(3000):
        value, key = values[number % 6], values[number // 6 % 6]
        producer.produce("t", value, key, 0, timestamp=1_000_000 + number)
    assert producer.flush(10) == 0
    for part in (OffsetRange("t", 0, 0, 3000), OffsetRange("t", 0, 7, 1234), OffsetRange("t", 0, -2, -1)):
        with path_taken(native=False):
            plain = rows(mock, part)
        assert rows(mock, part) == plain


@pytest.mark.parametrize("milliseconds", [1 << 31, (1 << 63) - 1])
@pytest.mark.usefixtures("native")
def test_a_poll_timeout_beyond_a_number_of_c_waits_for_long_and_not_for_nothing(
    mock: MockKafka, milliseconds: int
) -> None:
    producer = Producer({"bootstrap.servers": mock.endpoint})
    producer.produce("t", b"v", partition=0)
    producer.flush(10)
    client = ClientSettings((("bootstrap.servers", mock.endpoint),))
    how = KafkaReadOptions(client=client, group="check", poll_timeout_ms=milliseconds)
    assert sum(batch.num_rows for batch in read_range(OffsetRange("t", 0, -2, -1), how)) == 1


def test_ranges_one_after_the_other_go_on_where_the_last_ended(mock: MockKafka) -> None:
    producer = Producer({"bootstrap.servers": mock.endpoint})
    for number in range(1000):
        producer.produce("t", b"%d" % number, partition=0)
    producer.flush(10)
    found = [row for start in range(0, 1000, 100) for row in rows(mock, OffsetRange("t", 0, start, start + 100))]
    assert [row["value"] for row in found] == [b"%d" % number for number in range(1000)]


@pytest.mark.usefixtures("native")
def test_ranges_that_another_worker_has_read_are_passed_over(mock: MockKafka) -> None:
    producer = Producer({"bootstrap.servers": mock.endpoint})
    for number in range(60_000):
        producer.produce("t", b"%d" % number, partition=0)
    producer.flush(10)
    for start, end in ((0, 10), (20, 30), (25, 40), (39, 41), (30_000, 30_010), (5, 7), (59_990, 60_000), (7, 8)):
        found = [row["value"] for row in rows(mock, OffsetRange("t", 0, start, end))]
        assert found == [b"%d" % number for number in range(start, end)]


def clients() -> set[str]:
    """Return each client of librdkafka in this process, by the thread that it has from its start to its end."""
    return {each.parent.name for each in Path("/proc/self/task").glob("*/comm") if name_of(each) == "rdk:main"}


def name_of(thread: Path) -> str:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        return thread.read_text().strip()
    return ""


def wait_until_quiet(mock: MockKafka) -> None:
    """Wait until no client fetches any more."""

    def no_fetch() -> bool:
        mock.count_requests()
        time.sleep(0.3)  # no event shows that nothing is sent; a consumer that fetches sends 60 requests meanwhile
        return mock.requests("Fetch") == 0

    wait_for(no_fetch)


def test_a_consumer_that_nobody_wants_is_closed(mock: MockKafka) -> None:
    consumers = ConsumerPool(idle_seconds=0.2)
    producer = Producer({"bootstrap.servers": mock.endpoint})
    producer.produce("t", b"v", partition=0)
    producer.flush(10)
    for _ in range(2):
        before = clients()
        assert len(rows(mock, OffsetRange("t", 0, 0, 1), consumers=consumers)) == 1
        wait_for(lambda before=before: clients() <= before)


@pytest.mark.usefixtures("native")
def test_a_consumer_that_nobody_wants_soon_asks_the_brokers_for_nothing(mock: MockKafka) -> None:
    consumers = ConsumerPool(pause_seconds=0.2, idle_seconds=600.0)
    producer = Producer({"bootstrap.servers": mock.endpoint})
    for number in range(100):
        producer.produce("t", b"%d" % number, partition=0)
    producer.flush(10)
    mock.count_requests()
    before = clients()
    assert len(rows(mock, OffsetRange("t", 0, 0, 10), consumers=consumers)) == 10
    assert mock.requests("Fetch") > 0
    wait_until_quiet(mock)
    # The same consumer goes on, where it stood and elsewhere.
    kept = clients() - before
    for start, end in ((10, 20), (5, 7)):
        found = rows(mock, OffsetRange("t", 0, start, end), consumers=consumers)
        assert [row["offset"] for row in found] == [*range(start, end)]
    assert clients() - before == kept
    consumers.close()


@pytest.mark.usefixtures("native")
def test_a_range_up_to_the_end_asks_for_its_ends_once_and_its_consumer_stops_fetching(mock: MockKafka) -> None:
    mock.create_topic("many", 4)
    consumers = ConsumerPool(pause_seconds=600.0, idle_seconds=600.0)
    producer = Producer({"bootstrap.servers": mock.endpoint})
    for number in range(4):
        producer.produce("many", b"v", partition=number)
    producer.flush(10)
    mock.count_requests()
    for number in range(4):
        assert len(rows(mock, OffsetRange("many", number, EARLIEST, LATEST), consumers=consumers)) == 1
    assert mock.requests("ListOffsets") == 2 * 4
    wait_until_quiet(mock)
    consumers.close()


def test_queries_that_take_turns_in_a_worker_keep_their_consumers(mock: MockKafka) -> None:
    consumers = ConsumerPool(idle_seconds=600.0)
    producer = Producer({"bootstrap.servers": mock.endpoint})
    for number in range(100):
        producer.produce("t", b"%d" % number, partition=0)
    producer.flush(10)
    before = clients()
    kept: set[str] = set()
    for start in range(0, 100, 10):
        for group in ("query-a", "query-b", "query-c"):
            found = rows(mock, OffsetRange("t", 0, start, start + 10), group=group, consumers=consumers)
            assert len(found) == 10
        kept = kept or clients() - before
        assert clients() - before == kept
    assert len(kept) == 3
    for number in range(6):
        rows(mock, OffsetRange("t", 0, 0, 10), group=f"other-{number}", consumers=consumers)
    wait_for(lambda: len(clients() - before) == 4)
    last = clients() - before
    for number in range(2, 6):
        rows(mock, OffsetRange("t", 0, 0, 10), group=f"other-{number}", consumers=consumers)
    assert clients() - before == last, "those of the last four queries stay"
    consumers.close()


def test_queries_that_take_turns_in_a_worker_keep_their_producers(mock: MockKafka) -> None:
    columns = Columns(topic="t", key=False, partition=False, headers=False, timestamp=False)
    batch = pa.RecordBatch.from_pydict({"value": [b"v"]})
    plain = ("bootstrap.servers", mock.endpoint)
    queries = [ClientSettings((plain, ("client.id", name))) for name in ("query-a", "query-b")]
    for native in (True, False):
        with path_taken(native=native):
            close_sinks()
            before = clients()
            for settings_of_one in queries:
                produce_batches([batch], columns, settings_of_one)
            kept = clients() - before
            assert len(kept) == 2
            for settings_of_one in queries * 3:
                produce_batches([batch], columns, settings_of_one)
                assert clients() - before == kept
    close_sinks()
    assert len(rows(mock, OffsetRange("t", 0, -2, -1))) == 2 * 2 * 4


TEXTS = st.one_of(st.none(), st.text(max_size=20))


@settings(max_examples=20)
@given(
    st.lists(
        st.tuples(TEXTS, st.one_of(st.none(), st.binary(max_size=40)), st.sampled_from([None, 0, 1, 2])), min_size=1
    )
)
def test_both_ways_write_the_same_records(wanted: list[tuple[str | None, bytes | None, int | None]]) -> None:
    columns = Columns(topic="t", key=True, partition=True, headers=False, timestamp=False)
    arrays = {
        "key": pa.array([key for key, _, _ in wanted], pa.string()),
        "value": pa.array([value for _, value, _ in wanted], pa.binary()),
        "partition": pa.array([partition for _, _, partition in wanted], pa.int32()),
    }
    whole = pa.RecordBatch.from_pydict(arrays)
    found = []
    for native in (True, False):
        with path_taken(native=native), MockKafka() as mock:
            mock.create_topic("t", 3)
            plain = (("bootstrap.servers", mock.endpoint), ("partitioner", "murmur2"))
            batches = [whole.slice(0, 1), whole.slice(1)]  # a slice has an offset into its buffers
            assert produce_batches(batches, columns, ClientSettings(plain)) == len(wanted)
            close_sinks()
            parts = [OffsetRange("t", number, -2, -1) for number in range(3)]
            read = [row for part in parts for row in rows(mock, part)]
            CONSUMERS.close()
        for row in read:
            del row["timestamp"]
        found.append(read)
    assert found[0] == found[1]
    assert len(found[0]) == len(wanted)


def test_topics_of_a_column_get_their_rows_in_order(mock: MockKafka) -> None:
    for topic in ("a", "b"):
        mock.create_topic(topic, 1)
    columns = Columns(topic=None, key=False, partition=False, headers=False, timestamp=False)
    names = ["a", "b", "a", "a", "b"]
    batch = pa.RecordBatch.from_pydict({"topic": names, "value": [b"%d" % number for number in range(5)]})
    produce_batches([batch], columns, ClientSettings((("bootstrap.servers", mock.endpoint),)))
    close_sinks()
    read = {topic: [row["value"] for row in rows(mock, OffsetRange(topic, 0, -2, -1))] for topic in "ab"}
    assert read == {"a": [b"0", b"2", b"3"], "b": [b"1", b"4"]}


@needs_native
@pytest.mark.parametrize("lists", [True, False], ids=["by lists", "one by one"])
def test_an_abandoned_read_gives_its_records_back(
    mock: MockKafka, monkeypatch: pytest.MonkeyPatch, lists: bool
) -> None:
    if lists and not destroys_lists():
        pytest.skip("this client takes no lists")
    monkeypatch.setattr(librdkafka, "destroys_lists", lambda: lists)
    producer = Producer({"bootstrap.servers": mock.endpoint})
    for number in range(25_000):
        producer.produce("t", b"%d" % number, partition=0)
    producer.flush(10)
    client = ClientSettings((("bootstrap.servers", mock.endpoint),))
    how = KafkaReadOptions(client=client, group="check", poll_timeout_ms=10_000)
    reading = read_range(OffsetRange("t", 0, 0, 25_000), how)
    assert next(reading).num_rows > 0
    reading.close()  # hangs if the client still misses records
    assert ctypes.sizeof(ctypes.c_void_p) == 8
    assert len(rows(mock, OffsetRange("t", 0, 24_000, 25_000))) == 1000


def test_an_authentication_that_was_refused_between_tasks_does_not_end_the_next_one(
    mock: MockKafka, native: bool, tmp_path: Path
) -> None:
    if native and native_reason():
        pytest.skip(native_reason())
    pytest.importorskip("cryptography")
    batch, columns = pa.RecordBatch.from_pydict({"value": pa.array([b"v"])}), Columns("t", False, False, False, False)
    close_sinks()
    with TlsKafka(mock, make_certificates(tmp_path / "certificates")) as kafka:
        # The client connects again by itself, as it asks for its topics so often.
        given = kafka.settings(topic__metadata__refresh__interval__ms="100")
        before = clients()
        assert produce_batches([batch], columns, given) == 1
        kept = clients() - before
        kafka.refuse()
        wait_for(lambda: kafka.refused >= 2)
        accepted, kafka.refuses = kafka.accepted, False
        wait_for(lambda: kafka.accepted > accepted)
        assert produce_batches([batch], columns, given) == 1
        assert clients() - before == kept
        close_sinks()


@pytest.mark.usefixtures("native")
def test_a_reader_keeps_what_the_client_says_of_its_connections() -> None:
    nowhere = ClientSettings((("bootstrap.servers", "127.0.0.1:1"),))
    source = open_source(KafkaReadOptions(client=nowhere, group="g", poll_timeout_ms=1_000))
    unavailable = ServiceUnavailableError("KAFKA_UNAVAILABLE", "No answer came")
    end = time.monotonic() + 30
    while (explained := str(source.connection_errors.explain(unavailable))) == str(
        unavailable
    ) and time.monotonic() < end:
        assert len(source.fetch(1, 0.1)) == 0
    source.close()
    assert "Connection refused" in explained
