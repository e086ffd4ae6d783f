"""PublishRequests from Arrow columns: the messages that protobuf reads back are the rows, within the limits."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from google.pubsub_v1 import types
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from connectors.core.errors import ConnectorError, OptionError
from connectors.pubsub.options.sink import parse_write_options
from connectors.pubsub.sink.rows import (
    MAX_REQUEST_BYTES,
    RowStamp,
    SinkColumns,
    check_columns,
    encode_rows,
    publish_requests,
)

TOPIC = "projects/shop/topics/orders"
COLUMNS = SinkColumns("payload", "attributes", "orderingKey", None, TOPIC, "shop")
SCHEMA = pa.schema(
    [
        ("payload", pa.binary()),
        ("attributes", pa.map_(pa.string(), pa.string())),
        ("orderingKey", pa.string()),
    ]
)
STAMP = RowStamp("spark_uid", "query/7/3/", 3)
NO_STAMP = RowStamp("", "", 3)
ATTRIBUTES = MapType(StringType(), StringType())

keys = st.text(max_size=8).filter(lambda text: text and not text.startswith("goog") and text != "spark_uid")
rows = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=300),
        st.none() | st.dictionaries(keys, st.text(max_size=12), max_size=4),
        st.none() | st.sampled_from(["", "a", "b", "ключ"]),
    ),
    max_size=30,
)


def batch(*made: tuple[bytes | None, dict[str, str] | None, str | None]) -> pa.RecordBatch:
    columns = [list(column) for column in zip(*made, strict=True)] or [[], [], []]
    columns[1] = [None if each is None else list(each.items()) for each in columns[1]]
    return pa.RecordBatch.from_pydict(dict(zip(SCHEMA.names, columns, strict=True)), SCHEMA)


def parsed(batches: list[pa.RecordBatch], columns: SinkColumns = COLUMNS, stamp: RowStamp = STAMP) -> list[Any]:
    parse = types.PublishRequest.pb().FromString
    return [parse(request.encode()) for request in publish_requests(iter(batches), columns, stamp)]


def attributes_of(message: Any) -> dict[str, str]:
    """The attributes of a message; of its name only the place: the digest of its content is taken off."""
    found = dict(message.attributes)
    if name := found.get("spark_uid"):
        found["spark_uid"], _, digest = name.rpartition("/")
        assert len(digest) == 16
        assert int(digest, 16) >= 0
    return found


def names(batches: list[pa.RecordBatch], columns: SinkColumns = COLUMNS) -> list[str]:
    """The names of the rows, in their order; there must be one ordering key and one topic."""
    requests = parsed(batches, columns)
    return [message.attributes["spark_uid"] for request in requests for message in request.messages]


def bad_row(*batches: pa.RecordBatch, columns: SinkColumns = COLUMNS, stamp: RowStamp = STAMP) -> str:
    with pytest.raises(ConnectorError) as raised:
        list(publish_requests(iter(batches), columns, stamp))
    assert raised.value.code == "PUBSUB_BAD_ROW"
    return raised.value.what


@pytest.mark.parametrize("column", ["payload", "attributes", "orderingKey"])
def test_rows_are_encoded_some_tens_of_megabytes_at_a_time_whatever_makes_them_large(column: str) -> None:
    rows, text = 70_000, "x" * 1000
    whole = {"payload": b"p", "attributes": None, "orderingKey": None}
    whole[column] = {"payload": text.encode(), "attributes": [("key", text)], "orderingKey": text}[column]
    made = pa.RecordBatch.from_pydict({name: [value] * rows for name, value in whole.items()}, SCHEMA)
    parts = [part.messages for part in encode_rows(made, COLUMNS, STAMP, 0)]
    assert sum(map(len, parts)) == rows
    assert max(part.nbytes for part in parts) < 48 << 20


@settings(max_examples=60, deadline=None)
@given(made=rows, cut=st.integers(0, 30), stamped=st.booleans())
def test_requests_hold_the_rows_in_the_order_of_their_keys(made: list[Any], cut: int, stamped: bool) -> None:
    if not stamped:
        made = [(payload or b"x", attributes, key) for payload, attributes, key in made]
    whole = batch(*made)
    requests = parsed([whole.slice(0, cut), whole.slice(cut)], stamp=STAMP if stamped else NO_STAMP)
    expected: dict[str, list[Any]] = {}
    for number, (payload, attributes, key) in enumerate(made):
        stamps = {"spark_uid": f"query/7/3/{number}"} if stamped else {}
        expected.setdefault(key or "", []).append((payload or b"", (attributes or {}) | stamps))
    found: dict[str, list[Any]] = {}
    for request in requests:
        assert request.topic == TOPIC
        assert 1 <= len(request.messages) <= 1000
        [key] = {message.ordering_key for message in request.messages}
        found.setdefault(key, []).extend((each.data, attributes_of(each)) for each in request.messages)
    assert found == expected


def test_a_request_has_at_most_1000_messages() -> None:
    requests = parsed([batch(*[(b"x", None, None)] * 2500)])
    assert [len(request.messages) for request in requests] == [1000, 1000, 500]


def test_small_batches_are_gathered_into_full_requests() -> None:
    requests = parsed([batch(*[(b"x", None, None)] * 100)] * 25)
    assert [len(request.messages) for request in requests] == [1000, 1000, 500]
    uids = [attributes_of(message)["spark_uid"] for request in requests for message in request.messages]
    assert uids == [f"query/7/3/{number}" for number in range(2500)]


def test_a_request_has_at_most_10_mb() -> None:
    made = batch(*[(bytes(3_000_000), {"a": "b"}, None)] * 7)
    sizes = [len(request.encode()) for request in publish_requests([made], COLUMNS, STAMP)]
    assert len(sizes) == 3
    assert max(sizes) <= MAX_REQUEST_BYTES


def test_a_message_that_just_fits_stands_alone_and_one_byte_more_is_a_bad_row() -> None:
    columns = SinkColumns("payload", None, None, None, TOPIC, None)
    framing = len(next(iter(publish_requests([batch((bytes(9_000_000), None, None))], columns, NO_STAMP))).encode())
    room = MAX_REQUEST_BYTES - framing + 9_000_000
    fits = batch((b"small", None, None), (bytes(room), None, None), (b"small", None, None))
    requests = [request.encode() for request in publish_requests([fits], columns, NO_STAMP)]
    assert [len(request) == MAX_REQUEST_BYTES for request in requests] == [False, True, False]
    over = batch((b"small", None, None), (bytes(room + 1), None, None))
    assert bad_row(over, columns=columns, stamp=NO_STAMP).startswith("Row 1 of partition 3")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ((b"x", {"": "v"}, None), "empty key"),
        ((b"x", {"googly": "v"}, None), "'googly' begins with goog"),
        ((b"x", {"googclient": "v"}, None), "'googclient' begins with goog"),
        ((b"x", {"k" * 257: "v"}, None), "more than 256 bytes"),
        ((b"x", {"key": "v" * 1025}, None), "'key' has more than 1024 bytes"),
        ((b"x", {"key": "é" * 513}, None), "'key' has more than 1024 bytes"),
        ((b"x", {"key": None}, None), "'key' is null"),
        ((b"x", {f"k{number}": "v" for number in range(100)}, None), "more than 99 attributes"),
        ((b"x", None, "k" * 1025), "ordering key has more than 1024 bytes"),
    ],
)
def test_a_bad_row_is_named_by_its_number(row: Any, reason: str) -> None:
    what = bad_row(batch(*[(b"x", {"a": "b"}, "k")] * 5), batch((b"x", None, None), row, row))
    assert what.startswith("Row 6 of partition 3 cannot be published: ")
    assert reason in what


def raw_texts(*values: bytes) -> pa.Array:
    """Strings of any bytes, as Spark's ``CAST(binary AS STRING)`` gives them."""
    return pa.array(values, pa.binary()).view(pa.string())


@pytest.mark.parametrize("bad", [b"y\xff", b"\xed\xa0\x80", b"\xc3"], ids=["no lead byte", "surrogate", "cut"])
@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ("orderingKey", "its ordering key is not UTF-8"),
        ("topic", "its topic '{}' is not a name"),
        ("attribute keys", "the key '{}' of an attribute is not UTF-8"),
        ("attribute values", "the attribute 'b' is not UTF-8"),
    ],
)
def test_a_text_that_is_not_utf_8_is_a_bad_row(bad: bytes, column: str, reason: str) -> None:
    texts, legal = raw_texts(b"a", bad), pa.array(["a", "b"])
    maps = pa.MapArray.from_arrays(
        pa.array([0, 1, 2], pa.int32()),
        texts if column == "attribute keys" else legal,
        texts if column == "attribute values" else legal,
    )
    made = {"payload": pa.array([b"1", b"\xff"]), "attributes": maps}
    made |= {name: texts if column == name else pa.array(["orders"] * 2) for name in ("orderingKey", "topic")}
    columns = SinkColumns("payload", "attributes", "orderingKey", "topic", None, "shop")
    good = batch((b"x", None, None)).append_column("topic", pa.array(["orders"]))
    what = bad_row(good, pa.RecordBatch.from_pydict(made), columns=columns)
    assert what.startswith("Row 2 of partition 3 cannot be published: ")
    shown = repr(bad.decode(errors="backslashreplace"))[1:-1]
    assert reason.replace("{}", shown) in what


def test_what_is_not_utf_8_in_a_row_that_is_not_there_does_not_matter() -> None:
    maps = pa.MapArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array(["a", "b"]), raw_texts(b"\xff", b"ok"))
    made = pa.RecordBatch.from_pydict({"payload": [b"1", b"2"], "attributes": maps, "orderingKey": ["", ""]})
    [request] = parsed([made.slice(1)])
    assert attributes_of(request.messages[0]) == {"b": "ok", "spark_uid": "query/7/3/0"}


def test_values_at_the_limits_are_legal() -> None:
    attributes = {f"k{number}": "v" for number in range(98)} | {"k" * 256: "v" * 1024}
    [request] = parsed([batch((b"", attributes, "k" * 1024))])
    assert len(request.messages[0].attributes) == 100


def test_the_trace_context_of_googles_clients_passes_though_it_begins_with_goog() -> None:
    attributes = {"googclient_traceparent": f"00-{'1' * 32}-{'2' * 16}-01", "googclient_tracestate": "a=b"}
    [request] = parsed([batch((b"x", attributes, None))])
    assert attributes_of(request.messages[0]).items() >= attributes.items()


def test_the_first_of_several_bad_rows_is_named() -> None:
    what = bad_row(batch((b"x", None, "k" * 1025), (b"x", {"": "v"}, None)))
    assert what.startswith("Row 0 ")
    what = bad_row(batch((b"x", {"": "v"}, None), (b"x", None, "k" * 1025)))
    assert what.startswith("Row 0 ")


def test_a_row_without_payload_attributes_and_stamp_is_bad() -> None:
    made = batch((b"", {"a": "b"}, None), (None, {}, None))
    assert bad_row(made, stamp=NO_STAMP).startswith("Row 1 ")
    assert len(parsed([made])[0].messages) == 2


def test_the_stamp_replaces_an_attribute_of_its_name() -> None:
    [request] = parsed([batch((b"x", {"spark_uid": "old", "a": "b"}, None), (b"y", {"c": "d"}, None))])
    found = [attributes_of(message) for message in request.messages]
    assert found == [{"a": "b", "spark_uid": "query/7/3/0"}, {"c": "d", "spark_uid": "query/7/3/1"}]


ROW: Any = (b"payload", {"a": "1", "b": "2"}, "key")


@pytest.mark.parametrize(
    "other",
    [
        (b"payload2", {"a": "1", "b": "2"}, "key"),
        (None, {"a": "1", "b": "2"}, "key"),
        (b"payload", {"a": "1", "b": "3"}, "key"),
        (b"payload", {"a": "1", "b2": ""}, "key"),
        (b"payload", None, "key"),
        (b"payload", {"a": "1", "b": "2"}, "key2"),
        (b"payload", {"a": "1", "b": "2"}, None),
    ],
)
def test_a_row_of_other_content_at_a_place_that_is_used_again_has_another_name(other: Any) -> None:
    # As after a restore of the checkpoint: a reader that drops copies by their names must not drop this row.
    [before], [after] = names([batch(ROW)]), names([batch(other)])
    assert before.rpartition("/")[0] == after.rpartition("/")[0] == "query/7/3/0"
    assert before != after


def test_a_row_for_another_topic_has_another_name() -> None:
    columns = SinkColumns("payload", None, None, "topic", None, "shop")
    made = [pa.RecordBatch.from_pydict({"payload": [b"x"], "topic": [topic]}) for topic in ("orders", "returns")]
    assert names(made[:1], columns) != names(made[1:], columns)


def test_a_row_keeps_its_name_when_its_batch_is_repeated_in_other_cuts() -> None:
    rows = [(str(number).encode(), {"n": str(number)}, "key") for number in range(300)]
    whole = batch(*rows)
    assert names([whole]) == names([whole.slice(0, 7), whole.slice(7, 150), whole.slice(157)])
    assert names([whole]) == names([batch(*rows)])


def test_equal_rows_of_a_batch_have_names_of_their_own() -> None:
    assert len(set(names([batch(*[ROW] * 300)]))) == 300


def test_a_null_map_with_entries_has_none() -> None:
    offsets, keys, items = pa.array([0, 1, 2], pa.int32()), pa.array(["a", "b"]), pa.array(["1", "2"])
    maps = pa.MapArray.from_arrays(offsets, keys, items)
    buffers = [pa.py_buffer(b"\x02"), *maps.buffers()[1:2]]
    nulled = pa.Array.from_buffers(maps.type, 2, buffers, null_count=1, children=[maps.values])
    made = pa.RecordBatch.from_arrays([pa.array([b"x", b"y"]), nulled, pa.nulls(2, pa.string())], schema=SCHEMA)
    [request] = parsed([made])
    found = [attributes_of(message) for message in request.messages]
    assert found == [{"spark_uid": "query/7/3/0"}, {"b": "2", "spark_uid": "query/7/3/1"}]


def test_topics_come_from_their_column_as_ids_and_as_full_paths() -> None:
    columns = SinkColumns("payload", None, None, "topic", None, "shop")
    topics = ["orders", "projects/other/topics/refunds", TOPIC]
    made = pa.RecordBatch.from_pydict({"payload": [b"1", b"2", b"3"], "topic": topics})
    found = {request.topic: [each.data for each in request.messages] for request in parsed([made], columns)}
    assert found == {TOPIC: [b"1", b"3"], "projects/other/topics/refunds": [b"2"]}


@pytest.mark.parametrize(
    ("topic", "project", "reason"),
    [
        (None, "shop", "no topic"),
        ("a/b", "shop", "is not a name"),
        ("orders", None, "projectId"),
        ("", "shop", "is not a name"),
    ],
)
def test_a_row_with_a_bad_topic_is_named(topic: str | None, project: str | None, reason: str) -> None:
    columns = SinkColumns("payload", None, None, "topic", None, project)
    made = pa.RecordBatch.from_pydict(
        {"payload": [b"1", b"2"], "topic": ["projects/shop/topics/good", topic]},
        pa.schema([("payload", pa.binary()), ("topic", pa.string())]),
    )
    what = bad_row(made, columns=columns)
    assert what.startswith("Row 1 ")
    assert reason in what


def test_payloads_may_be_texts_and_large() -> None:
    columns = SinkColumns("payload", None, None, None, TOPIC, None)
    for kind in (pa.string(), pa.large_string()):
        made = pa.RecordBatch.from_pydict({"payload": pa.array(["grüße", None], kind)})
        [request] = parsed([made], columns)
        assert [each.data for each in request.messages] == ["grüße".encode(), b""]


def columns_of(*fields: tuple[str, Any], **options: str) -> SinkColumns:
    schema = StructType([StructField(name, kind) for name, kind in fields])
    return check_columns(schema, parse_write_options({"endpoint": "localhost:1", **options}, {}))


def test_columns_are_found_in_any_case_and_others_are_left() -> None:
    found = columns_of(
        ("Data", StringType()),
        ("ORDERINGKEY", StringType()),
        ("attributes", ATTRIBUTES),
        ("publishTimestamp", TimestampType()),
        ("offset", LongType()),
        topicId=TOPIC,
    )
    assert found == SinkColumns("Data", "attributes", "ORDERINGKEY", None, TOPIC, None)


def test_the_option_wins_over_the_column_topic() -> None:
    fields = ("payload", BinaryType()), ("topic", IntegerType())
    assert columns_of(*fields, topicId="orders", projectId="shop").topic == TOPIC
    with pytest.raises(OptionError, match="topic is int, and it must be string"):
        columns_of(*fields, projectId="shop")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ([("value", BinaryType())], "no column payload"),
        ([("payload", BinaryType()), ("data", BinaryType())], "payload and a column data"),
        ([("payload", BinaryType()), ("Payload", BinaryType())], "two columns"),
        ([("payload", LongType())], "payload is bigint"),
        ([("payload", BinaryType()), ("orderingKey", BinaryType())], "orderingkey is binary"),
        ([("payload", BinaryType()), ("attributes", StringType())], "attributes is string"),
        ([("payload", BinaryType()), ("attributes", MapType(StringType(), LongType()))], "attributes is map"),
    ],
)
def test_columns_that_cannot_be_written_are_refused(fields: list[tuple[str, Any]], reason: str) -> None:
    with pytest.raises(OptionError, match=reason) as raised:
        columns_of(*fields, topicId=TOPIC)
    assert raised.value.code == "PUBSUB_SINK_COLUMNS"


def test_a_topic_is_needed() -> None:
    with pytest.raises(OptionError, match="neither an option topicId nor a column topic"):
        columns_of(("payload", BinaryType()))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"topicId": "orders"}, "projectId is required"),
        ({"topicId": TOPIC, "idAttribute": "google"}, "begin with goog"),
        ({"topicId": TOPIC, "asyncProgressTrackingEnabled": "true"}, "asyncProgressTrackingEnabled"),
        ({"topicId": TOPIC, "spoolLocation": "/tmp/x"}, "spoolLocation is unknown"),
        ({"topicId": TOPIC, "privateKey": "x"}, "Use credentialsFile instead"),
        ({"topicId": TOPIC, "publishTimeout": "9s"}, "publishTimeout is unknown"),
    ],
)
def test_options_that_are_not_legal_are_refused(options: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        parse_write_options(options, {})


def test_a_stamp_can_be_renamed_and_switched_off() -> None:
    assert parse_write_options({"topicId": TOPIC, "idAttribute": "uid"}, {}).id_attribute == "uid"
    for key in ("asyncProgressTrackingEnabled", "asyncprogresstrackingenabled"):
        options = parse_write_options({"topic": TOPIC, "idAttribute": "none", key: "true"}, {})
        assert not options.id_attribute
