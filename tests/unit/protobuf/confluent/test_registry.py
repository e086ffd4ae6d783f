"""What a schema registry answers, and what is kept of it: a real server on loopback, and one that answers nonsense."""

from __future__ import annotations

import json
import socket
import threading
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from connectors.core.errors import ConnectorError, ServiceUnavailableError
from connectors.core.retry import wait_out
from connectors.protobuf import from_protobuf, to_protobuf
from connectors.protobuf.confluent.frames import FramedDecoder
from connectors.protobuf.confluent.registry import ProtobufRegistry, RegisteredSchema, protobuf_registry
from connectors.protobuf.errors import ProtobufAnalysisError
from connectors.protobuf.functions import _locate, _written
from connectors.protobuf.options import parse_protobuf_options
from connectors.protobuf.schema.descriptors import Schema
from connectors.protobuf.worker import DecodeCall, Engine, registry_of
from connectors.registry import schemas
from connectors.registry.frames import PrefixFrame
from connectors.registry.options import parse_registry_options
from connectors.testing.schema_registry import SchemaRegistryServer
from tests.support.hostile_answers import DEEP_OPTION
from tests.support.protobuf_rig import Rig, compiled, descriptors, frame_prefix, schema_by_id

BASIC = 'syntax = "proto3"; package shop; message Basic { int64 id = 1; }'


@pytest.fixture
def server() -> Iterator[SchemaRegistryServer]:
    with SchemaRegistryServer() as running:
        yield running


class Clock:
    """Seconds that pass when they are told to."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def framed(rig: Rig, server: SchemaRegistryServer, clock: Clock, *, permissive: bool = False) -> FramedDecoder:
    retry_timeout = "300ms" if permissive else "2s"
    registry = protobuf_registry(parse_registry_options({"address": server.address, "retry.timeout": retry_timeout}))
    decoder, reader = rig.call("Basic").decoder, rig.schema.find("Basic")
    return FramedDecoder(decoder, reader, registry, permissive=permissive, clock=clock)


def garbage(ids: Iterable[int]) -> list[bytes]:
    return [frame_prefix(schema, (0,)) + b"\x08\x05" for schema in ids]


def test_a_schema_that_the_registry_has_not_is_asked_for_again_after_half_a_minute(
    server: SchemaRegistryServer,
) -> None:
    rig, clock = Rig(Engine.AUTO, compiled(BASIC)), Clock()
    decoder = framed(rig, server, clock)
    frames = pa.array([frame_prefix(1, (0,)) + b"\x08\x05"])
    for _ in range(2):
        assert "SCHEMA_NOT_FOUND" in decoder.decode(frames).errors[0]
    assert server.register("basic", rig.data, "main.proto") == 1
    clock.now += 29
    assert decoder.decode(frames).errors
    assert len(server.requests) == 1
    clock.now += 2
    for _ in range(2):
        assert decoder.decode(frames).values.to_pylist() == [{"id": 5}]
        clock.now += 1e6
    assert len(server.requests) == 2


def test_what_is_remembered_of_the_schemas_in_frames_is_bounded(server: SchemaRegistryServer) -> None:
    rig = Rig(Engine.AUTO, compiled(BASIC))
    decoder = framed(rig, server, Clock())
    schema = server.register("basic", rig.data, "main.proto")
    garbage = [frame_prefix(schema, (index,)) for index in range(10_100)]
    assert len(decoder.decode(pa.array(garbage)).errors) == len(garbage) - 1
    assert 0 < len(decoder._verdicts) <= 10_000


@pytest.mark.parametrize("as_guid", [False, True])
def test_garbage_in_frames_costs_a_bounded_number_of_requests_in_a_batch(
    server: SchemaRegistryServer, as_guid: bool
) -> None:
    rig, clock = Rig(Engine.AUTO, compiled(BASIC)), Clock()
    decoder = framed(rig, server, clock)
    schema = server.register("basic", rig.data, "main.proto")
    rows = garbage(range(1000, 6000))
    if as_guid:
        rows = [b"\1" + number.to_bytes(16, "big") + b"\0" for number in range(5000)]
    good = garbage([schema])[0]
    decoded = decoder.decode(pa.array([*rows, good, good]))
    assert decoded.values.to_pylist()[-2:] == [{"id": 5}] * 2  # what has most rows is asked for first
    assert len(decoded.errors) == 5000
    assert len(server.requests) == 33
    assert "SCHEMA_NOT_FOUND" in decoded.errors[0]
    assert "was not asked for" in decoded.errors[4999]
    decoder.decode(pa.array([*rows[:32], good]))
    assert len(server.requests) == 33
    clock.now += 31
    decoder.decode(pa.array([*rows[:32], good]))
    assert len(server.requests) == 65


def test_garbage_with_one_id_and_many_message_indexes_costs_one_request(server: SchemaRegistryServer) -> None:
    decoder = framed(Rig(Engine.AUTO, compiled(BASIC)), server, Clock())
    decoder.decode(pa.array([frame_prefix(77, (index,)) for index in range(100)]))
    assert len(server.requests) == 1


ODD_SCHEMAS = [(500, b""), (503, b""), (422, b""), (400, b""), (200, b"{}"), (200, b"<html>"), (200, b"[" * 100_000)]


@pytest.mark.parametrize("beside", [True, False], ids=["beside a good one", "alone"])
@pytest.mark.parametrize(("status", "body"), ODD_SCHEMAS)
def test_an_id_that_the_registry_cannot_answer_for_is_a_bad_row_of_a_permissive_query(
    server: SchemaRegistryServer, status: int, body: bytes, beside: bool
) -> None:
    rig, clock = Rig(Engine.AUTO, compiled(BASIC)), Clock()
    decoder = framed(rig, server, clock, permissive=True)
    schema = server.register("basic", rig.data, "main.proto")
    server.respond("/schemas/ids/4000000000", status, body)
    rows = garbage([4_000_000_000, *([schema] if beside else [])])
    decoded = decoder.decode(pa.array(rows))
    assert list(decoded.errors) == [0]
    assert "4000000000" in decoded.errors[0]
    assert decoded.values.to_pylist() == [None, *([{"id": 5}] if beside else [])]
    asked = len(server.requests)
    decoder.decode(pa.array(rows))
    assert len(server.requests) == asked
    clock.now += 31
    decoder.decode(pa.array(rows))
    assert len(server.requests) <= asked + 3  # the proof that it serves comes between two requests, and no retries


@pytest.mark.parametrize(("status", "body"), ODD_SCHEMAS)
def test_a_registry_that_answers_for_no_schema_ends_a_permissive_query_too(
    server: SchemaRegistryServer, status: int, body: bytes
) -> None:
    rig, clock = Rig(Engine.AUTO, compiled(BASIC)), Clock()
    decoder = framed(rig, server, clock, permissive=True)
    server.respond("*", status, body)
    with pytest.raises(ConnectorError, match=r"^\[SCHEMA_(REGISTRY_UNAVAILABLE|UNUSABLE)\].*schema id 7"):
        decoder.decode(pa.array(garbage([7])))
    assert decoder._writers._failures == {}


def test_a_registry_that_stops_answering_ends_a_permissive_query_that_has_read_other_schemas(
    server: SchemaRegistryServer,
) -> None:
    rig, clock = Rig(Engine.AUTO, compiled(BASIC)), Clock()
    decoder = framed(rig, server, clock, permissive=True)
    schema = server.register("basic", rig.data, "main.proto")
    assert not decoder.decode(pa.array(garbage([schema]))).errors
    server.fail(*[503] * 1000)
    with pytest.raises(ServiceUnavailableError, match="schema id 7"):
        decoder.decode(pa.array(garbage([schema, 7])))


def test_a_registry_that_serves_again_after_the_last_retry_makes_no_bad_row(server: SchemaRegistryServer) -> None:
    rig = Rig(Engine.AUTO, compiled(BASIC))
    schema = server.register("basic", rig.data, "main.proto")
    registry = protobuf_registry(parse_registry_options({"address": server.address, "retry.timeout": "0"}))
    decoder = FramedDecoder(rig.call("Basic").decoder, rig.schema.find("Basic"), registry, permissive=True)
    server.fail(503, 503)  # for the descriptor and for the text
    assert decoder.decode(pa.array(garbage([schema]))).values.to_pylist() == [{"id": 5}]
    assert [path.partition("?")[0][-2:] for path in server.requests] == ["/1", "/1", "/0", "/1"]


def test_ids_that_the_registry_cannot_answer_for_are_bad_rows_without_any_retry_too(
    server: SchemaRegistryServer,
) -> None:
    rig = Rig(Engine.AUTO, compiled(BASIC))
    schema = server.register("basic", rig.data, "main.proto")
    registry = protobuf_registry(parse_registry_options({"address": server.address, "retry.timeout": "0"}))
    decoder = FramedDecoder(rig.call("Basic").decoder, rig.schema.find("Basic"), registry, permissive=True)
    for bad in range(100, 150):
        server.respond(f"/schemas/ids/{bad}", 500)
    decoded = decoder.decode(pa.array(garbage([*range(100, 150), schema, schema])))
    assert list(decoded.errors) == list(range(50))
    assert decoded.values.to_pylist()[50:] == [{"id": 5}] * 2


@pytest.mark.parametrize(("status", "body"), ODD_SCHEMAS)
def test_an_id_that_the_registry_cannot_answer_for_ends_a_failfast_query_with_the_reason(
    server: SchemaRegistryServer, status: int, body: bytes
) -> None:
    rig = Rig(Engine.AUTO, compiled(BASIC))
    decoder = framed(rig, server, Clock())
    server.respond("/schemas/ids/7", status, body)
    with pytest.raises(ConnectorError, match=r"^\[SCHEMA_(REGISTRY_UNAVAILABLE|UNUSABLE)\].*schema id 7"):
        decoder.decode(pa.array(garbage([7])))


def test_a_refusal_of_access_or_a_redirect_ends_a_permissive_query(server: SchemaRegistryServer) -> None:
    rig = Rig(Engine.AUTO, compiled(BASIC))
    server.respond("/schemas/ids/7", 403)
    server.respond("/schemas/ids/8", 302, headers={"Location": "http://127.0.0.1:1/"})
    for schema, code in ((7, "SCHEMA_REGISTRY_ACCESS_DENIED"), (8, "SCHEMA_REGISTRY_REDIRECT")):
        with pytest.raises(ConnectorError, match=code):
            framed(rig, server, Clock(), permissive=True).decode(pa.array(garbage([schema])))


@pytest.mark.parametrize(
    "file",
    [
        FileDescriptorProto(name="a", syntax="nonsense"),
        FileDescriptorProto(name="a", message_type=[{"name": "not a name"}]),
    ],
    ids=["syntax", "name"],
)
def test_a_registered_descriptor_that_is_none_is_a_bad_row_of_a_permissive_query(
    server: SchemaRegistryServer, file: FileDescriptorProto
) -> None:
    rig = Rig(Engine.AUTO, compiled(BASIC))
    schema = server.register("bad", FileDescriptorSet(file=[file]).SerializeToString(), "a")
    decoded = framed(rig, server, Clock(), permissive=True).decode(pa.array(garbage([schema])))
    assert list(decoded.errors) == [0]


def columns_of(server: SchemaRegistryServer, count: int) -> list[tuple[DecodeCall, pa.Array]]:
    """Columns, each of a subject of its own, as `from_protobuf` sends them to a worker; with one message each."""
    made = []
    for number in range(count):
        rig = Rig(Engine.AUTO, FileDescriptorSet(file=[one_field(number)]).SerializeToString())
        schema = server.register(f"topic{number}-value", rig.data, f"m{number}.proto")
        options = parse_protobuf_options({"wire.format": "confluent"}, "from_protobuf")
        registry = parse_registry_options({"address": server.address, "subject": f"topic{number}-value"})
        call = DecodeCall(rig.data, f"M{number}", options, None, Engine.PYTHON, registry)
        made.append((call, pa.array([frame_prefix(schema, (0,)) + b"\x08\x05"])))
    return made


def one_field(number: int) -> FileDescriptorProto:
    file = FileDescriptorProto(name=f"m{number}.proto", syntax="proto3")
    message = file.message_type.add(name=f"M{number}")
    message.field.add(name="id", number=1, type=Field.TYPE_INT64, label=Field.LABEL_OPTIONAL)
    return file


def test_a_query_of_many_framed_columns_asks_the_registry_once_for_each_and_keeps_its_codecs(
    server: SchemaRegistryServer,
) -> None:
    columns = columns_of(server, 60)
    for _ in range(3):
        assert [call(frames).to_pylist() for call, frames in columns] == [[{"id": 5}]] * 60
    assert len(server.requests) == 60
    decoders = [call.framed for call, _ in columns]
    assert [call.framed for call, _ in columns] == decoders
    assert len({id(decoder.registry) for decoder in decoders}) == 1


def test_another_log_in_is_another_client_of_the_registry() -> None:
    plain = {"address": "https://registry:8081", "subject": "a"}
    alice, bob = ({**plain, "basic.auth.user.info": f"{name}:secret"} for name in ("alice", "bob"))
    clients = [registry_of(parse_registry_options(raw)) for raw in (plain, alice, bob)]
    assert len({id(client) for client in clients}) == 3
    assert registry_of(parse_registry_options({**alice, "subject": "b"})) is clients[1]


def test_what_is_kept_of_schemas_is_bounded(server: SchemaRegistryServer) -> None:
    registry = protobuf_registry(parse_registry_options({"address": server.address}))
    sets = {f"m{number}.proto": FileDescriptorSet(file=[one_field(number)]) for number in range(300)}
    ids = [server.register(name, files.SerializeToString(), name) for name, files in sets.items()]
    for schema in ids:
        schema_by_id(registry, schema)
    assert 0 < len(registry._batches._schemas) <= 256
    asked = len(server.requests)
    schema_by_id(registry, ids[-1])
    assert len(server.requests) == asked
    schema_by_id(registry, ids[0])
    assert len(server.requests) == asked + 1


@contextmanager
def answering(answer: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A server that says the same to whoever asks: its address, and what it was asked."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                connection, _ = listener.accept()
                with connection:
                    asked.append(connection.recv(65536))
                    if not asked[-1]:
                        return
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        port = listener.getsockname()[1]
        try:
            yield f"http://127.0.0.1:{port}", asked
        finally:
            socket.create_connection(("127.0.0.1", port)).close()  # asks nothing, which ends it
            thread.join()


def ok(body: bytes, length: int | None = None) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body) if length is None else length, body)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (ok(b'{"id":', 500), "RemoteProtocolError: peer closed connection"),
        (b"garbage\r\n\r\n", "RemoteProtocolError: illegal status line"),
        (ok(b'"\xff\xfe"'), "UnicodeDecodeError"),
    ],
    ids=["truncated", "status", "text"],
)
def test_an_answer_that_is_none_is_asked_for_again_and_named(
    answer: bytes, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    # Time that only passes between two questions, however long one takes.
    monkeypatch.setattr(schemas, "wait_out", partial(wait_out, clock=lambda: now[0], sleep=sleep))
    with answering(answer) as (address, asked):
        registry = protobuf_registry(parse_registry_options({"address": address, "retry.timeout": "500ms"}))
        with pytest.raises(ServiceUnavailableError, match=rf"^\[SCHEMA_REGISTRY_UNAVAILABLE\].*subject x: {why}"):
            registry.latest("x")
        assert len(asked) > 1
        assert 0 < now[0] <= 0.5


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"id":5,"schemaType":"PROTOBUF"}', b'{"schema":""}', b'"text"'])
def test_an_answer_that_holds_no_schema_is_named_and_not_asked_for_again(body: bytes) -> None:
    with answering(ok(body)) as (address, asked):
        registry = protobuf_registry(parse_registry_options({"address": address, "retry.timeout": "5s"}))
        with pytest.raises(
            ConnectorError, match=r"^\[SCHEMA_UNUSABLE\].*subject x cannot be used: the response holds no"
        ):
            registry.latest("x")
        assert len(asked) == 1


def test_what_is_written_by_subject_has_schema_id_and_indexes_of_one_answer(server: SchemaRegistryServer) -> None:
    server.register("basic", compiled(BASIC), "main.proto")
    both = compiled(BASIC.replace("message Basic", "message Other {} message Basic"))
    schema = server.register("basic", both, "main.proto")
    options = parse_registry_options({"address": server.address, "subject": "basic"})
    _, message, frame = _written(options, "Basic", None, None, None)
    assert (message, frame) == ("shop.Basic", PrefixFrame(frame_prefix(schema, (1,))))
    assert server.requests == ["/subjects/basic/versions/latest?format=serialized"]


SEVERAL = """syntax = "proto3"; package shop; import "other.proto";
message Order { message Item { int64 id = 1; message Part { int64 id = 1; } } message Note { int64 id = 1; }
  repeated Item items = 1; map<string, Item> by_name = 2; acme.Kind kind = 3; }
message Refund { message Item { int64 id = 1; } }"""
OTHER = 'syntax = "proto3"; package acme; message Refund { int32 cents = 1; } message Kind {}'


def several(server: SchemaRegistryServer, *, as_text: bool = False) -> dict[str, str]:
    files = b"" if as_text else compiled(SEVERAL, other=OTHER)
    server.register("other", files, "other.proto", text=OTHER)
    server.register("orders-value", files, "main.proto", text=SEVERAL, references=(("other.proto", "other", 1),))
    return {"address": server.address, "subject": "orders-value"}


@pytest.mark.parametrize("function", [from_protobuf, to_protobuf])
@pytest.mark.parametrize("name", [None, "Missing", "Item"])
def test_a_schema_with_several_messages_needs_the_name_of_one(
    server: SchemaRegistryServer, function: object, name: str | None
) -> None:
    with pytest.raises(ProtobufAnalysisError, match=r"^\[PROTOBUF_MESSAGE_NOT_FOUND\]") as caught:
        function("value", name, schemaRegistry=several(server))  # type: ignore[operator]
    assert "Order, Order.Item, Order.Item.Part, Order.Note, Refund, Refund.Item" in str(caught.value)


@pytest.mark.parametrize("text", ["", "enum E { A = 0; }"])
def test_a_schema_without_any_message_is_an_error_that_says_so(server: SchemaRegistryServer, text: str) -> None:
    server.register("none", compiled(f'syntax = "proto3"; {text}'), "main.proto")
    with pytest.raises(ProtobufAnalysisError, match="no message"):
        from_protobuf("value", schemaRegistry={"address": server.address, "subject": "none"})


@pytest.mark.parametrize("text", ["message Only { message Inner {} }", "message Only {} enum E { A = 0; }"])
def test_the_only_message_of_a_schema_needs_no_name(server: SchemaRegistryServer, text: str) -> None:
    server.register("one", compiled(f'syntax = "proto3"; {text}'), "main.proto")
    options = parse_registry_options({"address": server.address, "subject": "one"})
    assert _locate(options, None, None, None, None)[1] == "Only"
    assert _written(options, None, None, None, None)[1:] == ("Only", PrefixFrame(frame_prefix(1, (0,))))


@pytest.mark.parametrize(
    ("name", "full_name", "indexes"),
    [
        ("Order", "shop.Order", (0,)),
        ("Order.Item", "shop.Order.Item", (0, 0)),
        ("shop.Order.Item", "shop.Order.Item", (0, 0)),
        ("Order.Item.Part", "shop.Order.Item.Part", (0, 0, 0)),
        ("Order.Note", "shop.Order.Note", (0, 1)),
        ("Refund", "shop.Refund", (1,)),  # of the schema itself, not of what it imports
        ("Refund.Item", "shop.Refund.Item", (1, 0)),
    ],
)
@pytest.mark.parametrize("described_by", ["registry", "text", "descriptor set"])
def test_nested_messages_are_named_and_read_and_written(
    server: SchemaRegistryServer, described_by: str, name: str, full_name: str, indexes: tuple[int, ...]
) -> None:
    options = parse_registry_options(several(server, as_text=described_by == "text"))
    own_set = described_by == "descriptor set"
    files = compiled(SEVERAL, other=OTHER) if own_set else None
    if own_set and name == "Refund":
        name = "shop.Refund"  # a descriptor set has no schema of its own: there the first one is taken, as in Spark
    descriptors, message, frame = _written(options, name, None, files, None)
    assert (message, frame) == (full_name, PrefixFrame(frame_prefix(2, indexes)))
    assert _locate(options, name, None, files, None)[1] == full_name
    if message.endswith(("Item", "Note", "Part")):
        parsed = parse_protobuf_options({"wire.format": "confluent", "mode": "PERMISSIVE"}, "from_protobuf")
        call = DecodeCall(descriptors, message, parsed, None, Engine.AUTO, options)
        column = pa.array([frame_prefix(2, path) + b"\x08\x05" for path in (indexes, (1, 0))])
        other = {"id": 5} if indexes == (1, 0) else None  # another message with the same short name is a bad row
        assert call(column).to_pylist() == [{"id": 5}, other]


def test_to_protobuf_by_an_engine_that_is_not_there_is_named_as_such() -> None:
    with pytest.raises(ProtobufAnalysisError, match=r"PROTOBUF_NOT_LOADED_SQL_FUNCTIONS_UNUSABLE.*TO_PROTOBUF"):
        to_protobuf("value", "Basic", binaryDescriptorSet=descriptors("behaviours"), engine="jvm")


TEXT = 'syntax = "proto3"; import "common.proto"; message Order { Money total = 1; }'
COMMON = 'syntax = "proto3"; message Money { int64 units = 1; }'


def registry_at(server: SchemaRegistryServer) -> ProtobufRegistry:
    return protobuf_registry(parse_registry_options({"address": server.address, "retry.timeout": "2s"}))


def messages_of(schema: RegisteredSchema) -> list[str]:
    Schema(schema.files)  # which builds all of them
    files = {file.name: file for file in FileDescriptorSet.FromString(schema.files).file}
    return [message.name for message in files[schema.main].message_type]


@pytest.mark.parametrize("status", [500, 502, 503])
def test_a_registry_that_fails_at_serialized_schemas_gives_the_text(server: SchemaRegistryServer, status: int) -> None:
    server.register("common", text=COMMON)
    server.register("orders-value", text=TEXT, references=(("common.proto", "common", 1),))
    server.fail_serialized = status
    registry = registry_at(server)
    assert messages_of(schema_by_id(registry, 2)) == ["Order"]
    assert messages_of(schema_by_id(registry, 1)) == ["Money"]
    assert messages_of(registry.latest("orders-value")) == ["Order"]
    serialized = [path for path in server.requests if "serialized" in path]
    assert len(serialized) == 2


def test_a_registry_that_is_down_is_not_taken_for_one_without_serialized_schemas(server: SchemaRegistryServer) -> None:
    server.register("common", compiled(COMMON), "main.proto")
    registry = registry_at(server)
    server.fail(500, 500, 503, 503)
    assert messages_of(schema_by_id(registry, 1)) == ["Money"]
    assert server.requests[-1].endswith("?format=serialized")


@pytest.mark.parametrize("text_is", ["the schema", "the import"])
def test_files_as_text_and_as_descriptors_are_one_schema(server: SchemaRegistryServer, text_is: str) -> None:
    both = compiled(TEXT, common=COMMON)
    if text_is == "the schema":
        server.register("common", both, "common.proto")
        server.register("orders-value", text=TEXT, references=(("common.proto", "common", 1),))
    else:
        server.register("common", text=COMMON)
        server.register("orders-value", both, "main.proto", references=(("common.proto", "common", 1),))
    assert messages_of(schema_by_id(registry_at(server), 2)) == ["Order"]


@pytest.mark.parametrize("form", ["text", "descriptors"])
def test_a_subject_with_the_name_of_its_import_does_not_import_itself(server: SchemaRegistryServer, form: str) -> None:
    both = compiled(TEXT, common=COMMON)
    texts = form == "text"
    server.register("money", **({"text": COMMON} if texts else {"files": both, "main": "common.proto"}))
    of_order = {"text": TEXT} if texts else {"files": both, "main": "main.proto"}
    server.register("common", **of_order, references=(("common.proto", "money", 1),))
    assert messages_of(schema_by_id(registry_at(server), 2)) == ["Order"]


@pytest.mark.parametrize("subject", ["from_protobuf", "to_protobuf"])
def test_a_text_that_overflows_the_stack_of_protoc_ends_no_driver(server: SchemaRegistryServer, subject: str) -> None:
    server.register(subject, b"", "main.proto", text=DEEP_OPTION)
    options = parse_registry_options({"address": server.address, "subject": subject})
    call = _locate if subject == "from_protobuf" else _written
    with pytest.raises(ConnectorError, match=r"SCHEMA_UNUSABLE.*protoc does not accept its text: it was ended by SIG"):
        call(options, None, None, None, None)


def test_a_text_that_overflows_the_stack_of_protoc_is_a_bad_row_and_the_next_message_is_read(
    server: SchemaRegistryServer,
) -> None:
    hostile = server.register("hostile", b"", "main.proto", text=DEEP_OPTION)
    good = server.register("good", b"", "main.proto", text=BASIC.replace("package shop;", ""))
    call = Rig(Engine.PYTHON, compiled(BASIC.replace("package shop;", ""))).call(
        "Basic", {"mode": "PERMISSIVE", "on.error": "column", "wire.format": "confluent"}
    )
    call = replace(call, registry=parse_registry_options({"address": server.address}))
    rows = call(pa.array([frame_prefix(schema, (0,)) + b"\x08\x05" for schema in (hostile, good)])).to_pylist()
    assert "SCHEMA_UNUSABLE" in rows[0]["error"]
    assert "SIG" in rows[0]["error"]
    assert rows[1] == {"value": {"id": 5}, "error": None}


def test_the_reason_of_protoc_is_in_the_error_and_not_on_standard_error(
    server: SchemaRegistryServer, capfd: pytest.CaptureFixture[str]
) -> None:
    server.register("typo", b"", "main.proto", text=BASIC.replace("int64", "int65"))
    with pytest.raises(ConnectorError, match=r'typo.proto:1:50: "int65" is not defined \('):
        protobuf_registry(parse_registry_options({"address": server.address})).latest("typo")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("as_text", [True, False])
def test_a_schema_whose_references_are_too_large_together_is_refused(
    server: SchemaRegistryServer, *, as_text: bool
) -> None:
    comment = f"// {'x' * (3 << 20)}\n"
    names = [f"f{number}.proto" for number in range(6)]
    for name in names:
        padded = FileDescriptorProto(name=name, syntax="proto3")
        padded.options.uninterpreted_option.add().string_value = b"x" * 2_900_000
        files = b"" if as_text else FileDescriptorSet(file=[padded]).SerializeToString()
        server.register(name, files, name, text=f'syntax = "proto3"; {comment}')
    files = b"" if as_text else compiled(BASIC)
    server.register("all", files, "main.proto", text=BASIC, references=tuple((name, name, 1) for name in names))
    with pytest.raises(ConnectorError, match=r"SCHEMA_UNUSABLE.*larger than 16 MB"):
        protobuf_registry(parse_registry_options({"address": server.address})).latest("all")


@pytest.mark.parametrize("name", [b"main.proto", b"google/protobuf/timestamp.proto", b"shop", b"proto3", b"Basic"])
def test_a_name_in_a_registered_descriptor_that_is_no_utf_8_is_a_bad_row(
    server: SchemaRegistryServer, name: bytes
) -> None:
    text = BASIC.replace("package", 'import "google/protobuf/timestamp.proto"; package')
    file = FileDescriptorSet.FromString(compiled(text, imports=False)).file[0].SerializeToString()
    assert name in file
    body = {"schemaType": "PROTOBUF", "schema": b64encode(file.replace(name, name[:-1] + b"\xff")).decode()}
    rig = Rig(Engine.AUTO, compiled(BASIC))
    schema = server.register("basic", rig.data, "main.proto")
    server.respond("/schemas/ids/77", 200, json.dumps(body).encode())
    decoder = framed(rig, server, Clock(), permissive=True)
    decoded = decoder.decode(pa.array(garbage([77, schema])))
    if name == b"main.proto":  # it is named after its subject
        assert decoded.values.to_pylist() == [{"id": 5}] * 2
        return
    assert decoded.values.to_pylist() == [None, {"id": 5}]
    assert decoded.errors[0].isprintable()
