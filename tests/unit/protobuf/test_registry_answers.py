"""What a schema registry answers, and what is kept of it: a real server on loopback, and one that answers nonsense."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from connectors.core.backoff import retry
from connectors.core.errors import ConnectorError, ServiceUnavailableError
from connectors.protobuf import registry as registry_module
from connectors.protobuf import to_protobuf
from connectors.protobuf.confluent import FramedDecoder
from connectors.protobuf.errors import ProtobufAnalysisError
from connectors.protobuf.frames import frame_prefix
from connectors.protobuf.functions import _written
from connectors.protobuf.options import parse_protobuf_options
from connectors.protobuf.registry import Registry, parse_registry_options
from connectors.protobuf.worker import DecodeCall, Engine, registry_of
from connectors.testing.schema_registry import SchemaRegistryServer
from tests.protobuf_rig import Rig, compiled, descriptors

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


def framed(rig: Rig, server: SchemaRegistryServer, clock: Clock) -> FramedDecoder:
    registry = Registry(parse_registry_options({"address": server.address, "retry.timeout": "2s"}))
    return FramedDecoder(rig.call("Basic").decoder, rig.schema.find("Basic"), registry, clock=clock)


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
    plain = {"address": "http://registry:8081", "subject": "a"}
    alice, bob = ({**plain, "basic.auth.user.info": f"{name}:secret"} for name in ("alice", "bob"))
    clients = [registry_of(parse_registry_options(raw)) for raw in (plain, alice, bob)]
    assert len({id(client) for client in clients}) == 3
    assert registry_of(parse_registry_options({**alice, "subject": "b"})) is clients[1]


def test_what_is_kept_of_schemas_is_bounded(server: SchemaRegistryServer) -> None:
    registry = Registry(parse_registry_options({"address": server.address}))
    sets = {f"m{number}.proto": FileDescriptorSet(file=[one_field(number)]) for number in range(300)}
    ids = [server.register(name, files.SerializeToString(), name) for name, files in sets.items()]
    for schema in ids:
        registry.by_id(schema)
    assert 0 < len(registry._known) <= 256
    asked = len(server.requests)
    registry.by_id(ids[-1])
    assert len(server.requests) == asked
    registry.by_id(ids[0])
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
    monkeypatch.setattr(registry_module, "retry", partial(retry, clock=lambda: now[0], sleep=sleep))
    with answering(answer) as (address, asked):
        registry = Registry(parse_registry_options({"address": address, "retry.timeout": "500ms"}))
        with pytest.raises(ServiceUnavailableError, match=rf"^\[SCHEMA_REGISTRY_UNAVAILABLE\].*subject x: {why}"):
            registry.latest("x")
        assert len(asked) > 1
        assert 0 < now[0] <= 0.5


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"id":5,"schemaType":"PROTOBUF"}', b'{"schema":""}', b'"text"'])
def test_an_answer_that_holds_no_schema_is_named_and_not_asked_for_again(body: bytes) -> None:
    with answering(ok(body)) as (address, asked):
        registry = Registry(parse_registry_options({"address": address, "retry.timeout": "5s"}))
        with pytest.raises(
            ConnectorError, match=r"^\[SCHEMA_UNUSABLE\].*subject x cannot be used: the answer holds no"
        ):
            registry.latest("x")
        assert len(asked) == 1


def test_what_is_written_by_subject_has_schema_id_and_indexes_of_one_answer(server: SchemaRegistryServer) -> None:
    server.register("basic", compiled(BASIC), "main.proto")
    both = compiled(BASIC.replace("message Basic", "message Other {} message Basic"))
    schema = server.register("basic", both, "main.proto")
    options = parse_registry_options({"address": server.address, "subject": "basic"})
    _, message, frame = _written(options, "Basic", None, None, None)
    assert (message, frame) == ("shop.Basic", (schema, (1,)))
    assert server.requests == ["/subjects/basic/versions/latest?format=serialized"]


def test_to_protobuf_by_an_engine_that_is_not_there_is_named_as_such() -> None:
    with pytest.raises(ProtobufAnalysisError, match=r"PROTOBUF_NOT_LOADED_SQL_FUNCTIONS_UNUSABLE.*TO_PROTOBUF"):
        to_protobuf("value", "Basic", binaryDescriptorSet=descriptors("behaviours"), engine="jvm")
