from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.pubsub_v1.types import PullResponse, StreamingPullResponse
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from connectors.core.errors import ConnectorError
from connectors.pubsub.client.client import wire_message
from connectors.pubsub.schema import STREAM_SCHEMA
from connectors.pubsub.source.records import (
    Decoder,
    FastDecoder,
    GuardedDecoder,
    PlainDecoder,
    ReceivedMessages,
    make_decoder,
)
from connectors.pubsub.source.stored_rows import ROWS_SCHEMA

IN_UTC = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
"""Spark 4.0 has no time zone in types."""

ROOT = Path(__file__).resolve().parents[4]
DECODERS = pytest.mark.parametrize("decoder", [PlainDecoder(), FastDecoder(), make_decoder()], ids=type)
RESPONSE = wire_message("StreamingPullResponse")

PROPERTIES_ONLY = b"\x22\x02\x08\x01"
"""A StreamingPullResponse that holds only subscription_properties, as the service opens a stream with."""
UNKNOWN_GROUP = b"\x7b\x08\x01\x7c"
"""Field 15 as a group."""
MISMATCHED_GROUP = b"\x7b\x14"
"""A group that ends with the number of another: protobuf refuses it, ptars 0.0.25 takes it."""
ENDLESS_LENGTH = b"\x0a" + b"\xff" * 9 + b"\x01" + b"\x00" * 16
"""A first field that claims 2^64 - 1 bytes: ptars 0.0.25 panics, protobuf refuses it."""


def response_of(*messages: dict[str, Any]) -> bytes:
    """A response with these messages; what a message does not name is not on the wire."""
    response = RESPONSE()
    for fields in messages:
        received = response.received_messages.add(ack_id=fields.get("ack_id", ""))
        received.delivery_attempt = fields.get("attempt", 0)
        message = received.message
        message.message_id = fields.get("id", "1")
        message.data = fields.get("data", b"")
        message.ordering_key = fields.get("key", "")
        if "time" in fields:
            message.publish_time.seconds, message.publish_time.nanos = fields["time"]
        for name, value in fields.get("attributes", []):
            message.attributes.add(key=name, value=value)
    encoded: bytes = response.SerializeToString()
    return encoded


def column(received: ReceivedMessages, name: str) -> list[Any]:
    values: list[Any] = received.rows.column(name).to_pylist()
    return values


def counted(decoder: Decoder) -> tuple[Decoder, list[int]]:
    calls: list[int] = []

    class Counted:
        def decode(self, responses: Sequence[bytes]) -> ReceivedMessages:
            calls.append(len(responses))
            return decoder.decode(responses)

    return Counted(), calls


def failing(error: BaseException) -> Decoder:
    class Failing:
        def decode(self, responses: Sequence[bytes]) -> ReceivedMessages:  # noqa: ARG002 - the interface
            raise error

    return Failing()


def altering(change: Callable[[ReceivedMessages], ReceivedMessages]) -> Decoder:
    class Altering:
        def decode(self, responses: Sequence[bytes]) -> ReceivedMessages:
            return change(PlainDecoder().decode(responses))

    return Altering()


# What a response becomes.


def test_columns_have_the_types_that_spark_gives_them() -> None:
    of_spark = to_arrow_schema(StructType(STREAM_SCHEMA.fields[: len(ROWS_SCHEMA)]), **IN_UTC)
    assert ROWS_SCHEMA.equals(of_spark)


@DECODERS
def test_message_written_by_the_sdk_comes_out_whole(decoder: Decoder) -> None:
    written = {
        "ack_id": "ack-1",
        "delivery_attempt": 3,
        "message": {
            "data": b"\x00\xff",
            "attributes": {"color": "blue"},
            "message_id": "16312609047030287",
            "publish_time": datetime(2026, 11, 21, 12, 30, 1, 123456, UTC),
            "ordering_key": "customer-7",
        },
    }
    for kind in (StreamingPullResponse, PullResponse):
        received = decoder.decode([kind.serialize(kind(received_messages=[written]))])
        assert received.rows.schema.equals(ROWS_SCHEMA, check_metadata=True)
        received.rows.validate(full=True)
        assert received.rows.to_pylist() == [
            {
                "messageId": "16312609047030287",
                "payload": b"\x00\xff",
                "attributes": [("color", "blue")],
                "orderingKey": "customer-7",
                "publishTimestamp": datetime(2026, 11, 21, 12, 30, 1, 123456, UTC),
                "deliveryAttempt": 3,
            }
        ]
        assert received.ack_ids.to_pylist() == ["ack-1"]
        assert received.sizes.tolist() == [2 + 5 + 4 + 10]
        assert received.sizes.dtype == np.int64


@DECODERS
def test_fields_that_are_left_out_have_their_documented_values(decoder: Decoder) -> None:
    received = decoder.decode([response_of({"id": "7"})])
    assert received.rows.to_pylist() == [
        {
            "messageId": "7",
            "payload": b"",
            "attributes": [],
            "orderingKey": "",
            "publishTimestamp": None,
            "deliveryAttempt": None,
        }
    ]
    assert received.ack_ids.to_pylist() == [""]
    assert received.sizes.tolist() == [0]
    assert received.published() is None


@DECODERS
def test_messages_of_several_responses_keep_their_order(decoder: Decoder) -> None:
    responses = [
        response_of({"id": "1", "ack_id": "a"}, {"id": "2", "ack_id": "b", "attributes": [("k", "v")]}),
        PROPERTIES_ONLY,
        b"",
        response_of({"id": "3", "ack_id": "c", "data": b"xyz"}),
    ]
    received = decoder.decode(responses)
    assert column(received, "messageId") == ["1", "2", "3"]
    assert received.ack_ids.to_pylist() == ["a", "b", "c"]
    assert received.sizes.tolist() == [0, 2, 3]
    assert len(received) == 3


@DECODERS
@pytest.mark.parametrize("responses", [[], [b""], [PROPERTIES_ONLY, b""]])
def test_responses_without_messages_give_no_rows(decoder: Decoder, responses: list[bytes]) -> None:
    received = decoder.decode(responses)
    assert received.rows.schema.equals(ROWS_SCHEMA, check_metadata=True)
    assert (len(received), len(received.rows), len(received.ack_ids)) == (0, 0, 0)
    assert received.published() is None


@DECODERS
@pytest.mark.parametrize(
    ("time", "microseconds"),
    [
        ((1, 0), 1_000_000),
        ((0, 1), 0),
        ((1, 999_999_999), 1_999_999),
        ((-1, 999_999_999), -1),
        ((1, -1), 999_999),
        ((0, 0), None),
        ((-62_135_596_800, 0), -62_135_596_800_000_000),
        ((253_402_300_799, 999_999_999), 253_402_300_799_999_999),
        ((-62_135_596_801, 0), None),
        ((253_402_300_800, 0), None),
        ((1 << 62, 0), None),
        ((-(1 << 63), -(1 << 31)), None),
    ],
)
def test_publish_time_is_cut_to_microseconds_and_null_where_it_is_none(
    decoder: Decoder, time: tuple[int, int], microseconds: int | None
) -> None:
    received = decoder.decode([response_of({"time": time})])
    assert received.rows.column("publishTimestamp").cast(pa.int64()).to_pylist() == [microseconds]
    assert received.published() == (None if microseconds is None else (microseconds, microseconds))


@DECODERS
def test_published_is_the_range_of_the_times_that_are_there(decoder: Decoder) -> None:
    received = decoder.decode([response_of({"time": (9, 5000)}, {}, {"time": (-3, 0)}, {"time": (4, 0)})])
    assert received.published() == (-3_000_000, 9_000_005)


@DECODERS
def test_attributes_keep_their_order_and_a_repeated_key_its_last_value(decoder: Decoder) -> None:
    pairs = [("zeta", "1"), ("alpha", "2"), ("zeta", "33"), ("", ""), ("eta", "4")]
    received = decoder.decode([response_of({"attributes": [("zeta", "x")]}, {"attributes": pairs}, {})])
    once = [("zeta", "33"), ("alpha", "2"), ("", ""), ("eta", "4")]
    assert column(received, "attributes") == [[("zeta", "x")], once, []]
    assert received.sizes.tolist() == [5, 4 + 2 + 5 + 1 + 0 + 3 + 1, 0]


@DECODERS
def test_same_key_in_two_messages_is_no_repetition(decoder: Decoder) -> None:
    pairs = [("a", "1"), ("b", "2")]
    received = decoder.decode([response_of({"attributes": pairs}, {"attributes": pairs})])
    assert column(received, "attributes") == [pairs, pairs]


@DECODERS
def test_attribute_entry_without_key_or_value_is_an_empty_text(decoder: Decoder) -> None:
    received = decoder.decode([response_of({"attributes": [("", "only value")]}, {"attributes": [("only key", "")]})])
    assert column(received, "attributes") == [[("", "only value")], [("only key", "")]]


@DECODERS
def test_text_beyond_ascii_is_kept_and_counted_in_bytes(decoder: Decoder) -> None:
    fields = {"id": "\u00fc\U0001f600", "ack_id": "\u00e9", "key": "\u20ac", "attributes": [("\u00e4", "\u00df\x00")]}
    received = decoder.decode([response_of(fields)])
    assert column(received, "messageId") == ["\u00fc\U0001f600"]
    assert received.ack_ids.to_pylist() == ["\u00e9"]
    assert received.sizes.tolist() == [3 + 2 + 3]


@DECODERS
def test_large_payload_comes_out_whole(decoder: Decoder) -> None:
    payload = bytes(range(256)) * (10 * 4096)
    received = decoder.decode([response_of({"data": payload}, {"data": b"after"})])
    assert column(received, "payload") == [payload, b"after"]


@DECODERS
def test_unknown_fields_are_skipped(decoder: Decoder) -> None:
    response = response_of({"id": "1"}) + b"\xf8\x07\x05" + b"\x7a\x03abc" + b"\x79" + bytes(8) + b"\x7d" + bytes(4)
    response += UNKNOWN_GROUP
    assert column(decoder.decode([response]), "messageId") == ["1"]


def test_sizes_and_columns_hold_for_a_random_mix_of_a_thousand_messages() -> None:
    random = np.random.default_rng(5)
    messages = [
        {
            "id": str(number),
            "data": random.bytes(int(random.integers(0, 300))),
            "attributes": [(f"k{i}", "v" * i) for i in range(int(random.integers(0, 5)))],
            "key": "key" * int(random.integers(0, 2)),
        }
        for number in range(1, 1001)
    ]
    for decoder in (PlainDecoder(), FastDecoder()):
        received = decoder.decode([response_of(*messages[:400]), response_of(*messages[400:])])
        assert column(received, "payload") == [message["data"] for message in messages]
        assert column(received, "attributes") == [message["attributes"] for message in messages]
        assert received.sizes.tolist() == [
            len(message["data"]) + sum(len(k) + len(v) for k, v in message["attributes"]) + len(message["key"])
            for message in messages
        ]


# What cannot be read.


@pytest.mark.parametrize("decoder", [PlainDecoder(), make_decoder()], ids=type)
@pytest.mark.parametrize(
    "response",
    [
        b"\x0a",
        b"\x0a\x05abc",
        b"\x00",
        response_of({"id": "1", "key": "abc"}).replace(b"abc", b"a\xff\xfe"),
        response_of({"id": "1", "key": "abc"}).replace(b"abc", b"\xed\xa0\x80"),
        response_of({"id": "abc"}).replace(b"abc", b"\xed\xa0\x80"),
        ENDLESS_LENGTH,
    ],
    ids=[
        "cut in a length",
        "cut in a message",
        "field 0",
        "no UTF-8",
        "a key of a surrogate",
        "an id of one",
        "endless",
    ],
)
def test_unreadable_response_is_a_named_error(decoder: Decoder, response: bytes) -> None:
    with pytest.raises(ConnectorError) as caught:
        decoder.decode([response_of({"id": "1"}), response])
    assert caught.value.code == "PUBSUB_RESPONSE_UNREADABLE"
    assert str(len(response)) in caught.value.where


def test_response_that_neither_reads_does_not_end_the_fast_path(caplog: pytest.LogCaptureFixture) -> None:
    decoder = make_decoder()
    with pytest.raises(ConnectorError):
        decoder.decode([ENDLESS_LENGTH])
    assert decoder.is_fast
    assert not caplog.records


@DECODERS
def test_message_without_id_is_an_error_because_it_would_pass_for_a_copy(decoder: Decoder) -> None:
    with pytest.raises(ConnectorError, match="no message id") as caught:
        decoder.decode([response_of({"id": "1"}, {"id": ""})])
    assert caught.value.code == "PUBSUB_RESPONSE_UNREADABLE"


@pytest.mark.parametrize("decoder", [PlainDecoder(), make_decoder()], ids=type)
def test_more_than_one_batch_can_hold_is_refused_before_anything_is_read(decoder: Decoder) -> None:
    mebibyte = bytes(1 << 20)
    with pytest.raises(ValueError, match="2147483648 bytes"):
        decoder.decode([mebibyte] * 2048)


# Both paths against each other.

TEXTS = st.text(max_size=12)
MESSAGES = st.fixed_dictionaries(
    {"id": st.text(min_size=1, max_size=20)},
    optional={
        "ack_id": TEXTS,
        "attempt": st.integers(-(2**31), 2**31 - 1),
        "data": st.binary(max_size=40),
        "key": TEXTS,
        "time": st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1))
        | st.tuples(st.integers(1_500_000_000, 2_000_000_000), st.integers(0, 999_999_999)),
        "attributes": st.lists(st.tuples(st.sampled_from(["a", "b", ""]) | TEXTS, TEXTS), max_size=4),
    },
)
RESPONSES = st.lists(st.lists(MESSAGES, max_size=4).map(lambda each: response_of(*each)), max_size=4)


@settings(max_examples=300, deadline=None)
@given(RESPONSES)
def test_both_paths_give_the_same_rows_for_any_messages(responses: list[bytes]) -> None:
    plain, fast = PlainDecoder().decode(responses), FastDecoder().decode(responses)
    assert fast.rows.equals(plain.rows)
    assert fast.rows.schema.equals(ROWS_SCHEMA, check_metadata=True)
    assert fast.ack_ids.equals(plain.ack_ids)
    assert fast.sizes.tolist() == plain.sizes.tolist()
    fast.rows.validate(full=True)
    fast.ack_ids.validate(full=True)


@st.composite
def damaged_responses(draw: st.DrawFn) -> bytes:
    data = bytearray(response_of(*draw(st.lists(MESSAGES, min_size=1, max_size=3))))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data) - 1))
        change = draw(st.sampled_from(["replace", "insert", "remove"]))
        piece = draw(st.binary(min_size=1, max_size=3))
        data[at : at + (0 if change == "insert" else len(piece))] = b"" if change == "remove" else piece
        if not data:
            return b"\x0a"
    return bytes(data)


def outcome(decoder: Decoder, responses: Sequence[bytes]) -> ReceivedMessages | str:
    try:
        return decoder.decode(responses)
    except ConnectorError as error:
        return str(error)


@settings(max_examples=500, deadline=None)
@given(damaged_responses())
@example(ENDLESS_LENGTH)
@example(response_of({"id": "1"}) + UNKNOWN_GROUP)
@example(response_of({"id": "1"}) + MISMATCHED_GROUP)
def test_guard_gives_for_damaged_bytes_what_protobuf_gives(response: bytes) -> None:
    guarded = outcome(make_decoder(), [response])
    plain = outcome(PlainDecoder(), [response])
    if isinstance(guarded, str) or isinstance(plain, str):
        assert guarded == plain
    else:
        assert guarded.same_as(plain)


# The guard.


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("error", [ValueError("unsupported"), MemoryError(), GeneratorExit()], ids=type)
def test_library_that_raises_is_left_for_good_and_nothing_is_lost(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    raising, calls = counted(failing(error))
    decoder = GuardedDecoder(raising, PlainDecoder())
    assert decoder.is_fast
    assert column(decoder.decode([response_of({"id": "1"})]), "messageId") == ["1"]
    assert not decoder.is_fast
    assert column(decoder.decode([response_of({"id": "2"})]), "messageId") == ["2"]
    assert calls == [1]
    (warning,) = warnings_in(caplog)
    assert type(error).__name__ in warning
    assert "protobuf" in warning


def test_panic_of_the_library_is_no_exception_and_is_caught() -> None:
    with pytest.raises(BaseException, match="slice index") as caught:
        FastDecoder().decode([ENDLESS_LENGTH])
    assert not isinstance(caught.value, Exception)
    decoder = GuardedDecoder(failing(caught.value), PlainDecoder())
    assert len(decoder.decode([response_of({"id": "1"})])) == 1
    assert not decoder.is_fast


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=type)
def test_request_to_end_passes_the_guard(error: BaseException) -> None:
    decoder = GuardedDecoder(failing(error), PlainDecoder())
    with pytest.raises(type(error)):
        decoder.decode([response_of({"id": "1"})])
    assert decoder.is_fast


@pytest.mark.parametrize(
    "change",
    [
        lambda received: ReceivedMessages(received.rows.slice(1), received.ack_ids[1:], received.sizes[1:]),
        lambda received: ReceivedMessages(received.rows.slice(0, 0), received.ack_ids[:0], received.sizes[:0]),
        lambda received: ReceivedMessages(received.rows, received.ack_ids[::-1], received.sizes),
        lambda received: ReceivedMessages(received.rows, received.ack_ids, received.sizes + 1),
        lambda received: ReceivedMessages(received.rows.take([1, 0]), received.ack_ids, received.sizes),
    ],
    ids=["row missing", "no rows", "other ack ids", "other sizes", "other order"],
)
def test_different_rows_end_the_fast_path_and_protobuf_is_believed(
    change: Callable[[ReceivedMessages], ReceivedMessages], caplog: pytest.LogCaptureFixture
) -> None:
    decoder = GuardedDecoder(altering(change), PlainDecoder())
    response = response_of({"id": "1", "ack_id": "a"}, {"id": "2", "ack_id": "b"})
    assert decoder.decode([response]).same_as(PlainDecoder().decode([response]))
    assert not decoder.is_fast
    assert decoder.decode([response]).same_as(PlainDecoder().decode([response]))
    assert len(warnings_in(caplog)) == 1


def test_rows_that_vanish_later_are_noticed_at_once() -> None:
    vanishing = False

    def change(received: ReceivedMessages) -> ReceivedMessages:
        return PlainDecoder().decode([]) if vanishing else received

    decoder = GuardedDecoder(altering(change), PlainDecoder(), first=1)
    response = response_of({"id": "1"})
    assert len(decoder.decode([response])) == 1
    vanishing = True
    assert len(decoder.decode([response])) == 1
    assert not decoder.is_fast


def test_first_responses_and_each_nth_are_compared() -> None:
    plain, calls = counted(PlainDecoder())
    decoder = GuardedDecoder(FastDecoder(), plain, first=3, every=10)
    compared = []
    for number in range(1, 32):
        calls.clear()
        decoder.decode([response_of({"id": "1"})])
        compared += [number] * len(calls)
    assert compared == [1, 2, 3, 10, 20, 30]


def test_responses_without_messages_do_not_use_up_the_first_comparisons() -> None:
    plain, calls = counted(PlainDecoder())
    decoder = GuardedDecoder(FastDecoder(), plain, first=1)
    for _ in range(5):
        decoder.decode([PROPERTIES_ONLY])
    calls.clear()
    decoder.decode([response_of({"id": "1"})])
    assert calls == [1]


def test_nth_response_is_compared_also_where_calls_hold_many() -> None:
    plain, calls = counted(PlainDecoder())
    decoder = GuardedDecoder(FastDecoder(), plain, first=1, every=10)
    response = response_of({"id": "1"})
    for _ in range(10):
        decoder.decode([response] * 4)
    # Of 40 responses, the calls with number 1, 10, 20, 30 and 40 among theirs.
    assert calls == [4] * 5


def test_plain_decoder_can_be_asked_for() -> None:
    decoder = make_decoder(plain=True)
    assert not decoder.is_fast
    assert column(decoder.decode([response_of({"id": "1"})]), "messageId") == ["1"]


@pytest.mark.parametrize(
    ("library", "said"),
    [
        ('raise ImportError("no such symbol")', "ImportError: no such symbol"),
        ("class HandlerPool:\n    def __init__(self, files): raise RuntimeError('other')", "RuntimeError: other"),
        ("class HandlerPool:\n    def __init__(self, files): raise BaseException('panic')", "panic"),
    ],
)
def test_an_unusable_library_means_the_plain_path(library: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "ptars.py").write_text(library)
    program = (
        "import logging; logging.basicConfig(level='INFO', format='%(levelname)s %(message)s')\n"
        "from connectors.pubsub.source.records import make_decoder\n"
        f"decoder = make_decoder(); rows = decoder.decode([{response_of({'id': '1'})!r}]).rows\n"
        "print(decoder.is_fast, rows.column('messageId').to_pylist())"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout == "False ['1']\n"
    (line,) = ran.stderr.splitlines()
    assert line.startswith("WARNING [FAST_DECODER_NOT_USED] ")
    assert said in line
