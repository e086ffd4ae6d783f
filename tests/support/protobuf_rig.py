"""What the tests of connectors.protobuf share: descriptor sets, messages of protobuf's own classes, both engines."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from google.protobuf import message_factory
from google.protobuf.message import Message

from connectors.core.errors import ConnectorError
from connectors.core.functions.bad_rows import binary_column
from connectors.protobuf.confluent.frames import varint
from connectors.protobuf.confluent.registry import ProtobufRegistry, RegisteredSchema
from connectors.protobuf.options import ProtobufOptions, parse_protobuf_options
from connectors.protobuf.ptars.decoder import unsupported
from connectors.protobuf.schema.descriptors import Schema, is_repeated
from connectors.protobuf.schema.plan import compile_plan
from connectors.protobuf.upb.decoder import Decoded
from connectors.protobuf.worker import DecodeCall, EncodeCall, Engine
from tools.protos import SOURCES, compile_set


@cache
def descriptors(name: str) -> bytes:
    """The descriptor set of proto/<name>.proto."""
    with TemporaryDirectory() as folder:
        target = Path(folder) / "set.desc"
        compile_set(SOURCES / f"{name}.proto", target, SOURCES)
        return target.read_bytes()


@cache
def compiled(text: str, *, imports: bool = True, **others: str) -> bytes:
    """The descriptor set of the text of a .proto file; the keywords are files that it imports (``name.proto``)."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "main.proto").write_text(text)
        for name, content in others.items():
            (root / f"{name}.proto").parent.mkdir(parents=True, exist_ok=True)
            (root / f"{name}.proto").write_text(content)
        compile_set(root / "main.proto", root / "set.desc", root, imports=imports)
        return (root / "set.desc").read_bytes()


def filled(message: Any, content: Mapping[str, Any]) -> Any:
    """Return a message with these fields; protobuf's own keywords take no dict for a message in a map before 6.31."""
    for name, value in content.items():
        field, place = message.DESCRIPTOR.fields_by_name[name], getattr(message, name)
        if isinstance(value, Mapping) and is_repeated(field):
            for key, item in value.items():
                if isinstance(item, Mapping):
                    filled(place[key], item)
                else:
                    place[key] = item
        elif isinstance(value, Mapping):
            place.SetInParent()
            place.update(value) if field.message_type.full_name == "google.protobuf.Struct" else filled(place, value)
        elif is_repeated(field):
            for item in value:
                filled(place.add(), item) if isinstance(item, Mapping) else place.append(item)
        else:
            setattr(message, name, value)
    return message


@cache
def schema(data: bytes) -> Schema:
    return Schema(data)


class Rig:
    """Decodes and encodes messages of one descriptor set by one engine."""

    def __init__(self, engine: Engine, data: bytes | str = "behaviours") -> None:
        self.engine = engine
        self.data = descriptors(data) if isinstance(data, str) else data
        self.schema = schema(self.data)

    def of(self, data: bytes | str) -> Rig:
        """The same engine with another descriptor set."""
        return Rig(self.engine, data)

    def type(self, name: str) -> type[Message]:
        """The class of a message, by protobuf itself."""
        return message_factory.GetMessageClass(self.schema.find(name))

    def call(self, message: str, options: Mapping[str, str] | None = None, **flags: Any) -> DecodeCall:
        parsed = dataclasses.replace(parse_protobuf_options(options, "from_protobuf"), **flags)
        return DecodeCall(self.data, self.schema.find(message).full_name, parsed, None, self.engine)

    def ddl(self, message: str, options: Mapping[str, str] | None = None, **flags: Any) -> str:
        """The schema that from_protobuf has."""
        parsed = self.call(message, options, **flags).options
        return compile_plan(self.schema.find(message), self.schema, parsed).spark_type.simpleString()

    def raw(self, message: str, data: Sequence[bytes | None], options: Any = None, **flags: Any) -> Decoded:
        """What the codec makes of messages, checked for being sound Arrow."""
        decoded = self.call(message, options, **flags).decoder.decode(pa.array(data, pa.binary()))
        sound(decoded.values)
        return decoded

    def rows(
        self, message: str, data: Sequence[bytes | Message | None], options: Any = None, **flags: Any
    ) -> list[Any]:
        """The rows of from_protobuf."""
        call = self.call(message, options, **flags)
        column = binary_column(pa.array([_bytes(each) for each in data], pa.binary()), "from_protobuf")
        return call.present(call.decoder.decode(column), column).to_pylist()

    def row(self, message: str, data: bytes | Message, options: Any = None, **flags: Any) -> Any:
        """The row of one message."""
        return self.rows(message, [data], options, **flags)[0]

    def encode(self, message: str, rows: Sequence[Any], kind: pa.DataType, **flags: Any) -> list[bytes | None]:
        """The messages of to_protobuf."""
        parsed = dataclasses.replace(parse_protobuf_options({}, "to_protobuf"), **flags)
        return self.encode_array(message, pa.array(rows, kind), parsed)

    def encode_array(
        self, message: str, column: pa.StructArray, options: ProtobufOptions | None = None
    ) -> list[bytes | None]:
        """The messages of to_protobuf for structs that Python may not have."""
        name = self.schema.find(message).full_name
        call = EncodeCall(self.data, name, options or parse_protobuf_options({}, "to_protobuf"), self.engine)
        first: list[bytes | None] = call(column).to_pylist()
        assert call(column).to_pylist() == first  # the engine auto encodes the first batch in another way
        return first

    def again(self, message: str, data: Sequence[bytes | Message], options: Any = None, **flags: Any) -> None:
        """Decode and encode messages, and see that they are the same messages."""
        call = self.call(message, options, **flags)
        column = pa.array([_bytes(each) for each in data], pa.binary())
        structs = call(column)
        encoded = EncodeCall(self.data, call.message, call.options, self.engine)(structs)
        kind = self.type(message)
        assert [kind.FromString(each) for each in encoded.to_pylist()] == [
            kind.FromString(_bytes(each) or b"") for each in data
        ]


class PtarsRig(Rig):
    """Uses ptars for batches of any size, where it can decode the message at all."""

    def __init__(self, data: bytes | str = "behaviours") -> None:
        super().__init__(Engine.FAST, data)

    def of(self, data: bytes | str) -> PtarsRig:
        return PtarsRig(data)

    def call(self, message: str, options: Mapping[str, str] | None = None, **flags: Any) -> DecodeCall:
        made = super().call(message, options, **flags)
        plan = compile_plan(self.schema.find(message), self.schema, made.options)
        return dataclasses.replace(made, engine=Engine.PYTHON) if unsupported(plan) else made


RIGS: dict[str, Callable[[], Rig]] = {
    "upb": partial(Rig, Engine.PYTHON),
    "auto": partial(Rig, Engine.AUTO),  # row by row, since the batches of most tests are small
    "ptars": PtarsRig,
}


def sound(array: pa.Array) -> None:
    """Refuse an array whose parts do not fit together; a NULL below a NULL parent does no harm."""
    array.validate(full=True)
    _no_null(pa.field("", array.type), array)


def _no_null(field: pa.Field, array: pa.Array) -> None:
    """Refuse a NULL where the schema has none."""
    assert field.nullable or not array.null_count, field
    kind = array.type
    if pa.types.is_struct(kind):
        known = array.filter(array.is_valid())
        for place, inner in enumerate(kind):
            _no_null(inner, known.field(place))
    elif pa.types.is_map(kind):
        _no_null(kind.item_field, array.items)
    elif pa.types.is_list(kind):
        _no_null(kind.value_field, array.values)


def _bytes(value: bytes | Message | None) -> bytes | None:
    return value.SerializeToString(deterministic=True) if isinstance(value, Message) else value


def frame_prefix(schema: int, indexes: Sequence[int]) -> bytes:
    """What Confluent's serializer puts before a message: magic byte, schema id and message indexes."""
    numbers = b"" if tuple(indexes) == (0,) else b"".join(varint(2 * index) for index in indexes)
    return b"\0" + schema.to_bytes(4, "big") + (varint(2 * len(indexes)) + numbers if numbers else b"\0")


def schema_by_id(registry: ProtobufRegistry, schema: int | str) -> RegisteredSchema:
    """The schema of one id or GUID; raises the error that stands in its place."""
    result = registry.by_ids([schema], 1)[schema]
    if isinstance(result, ConnectorError):
        raise result
    return result


def fields(**values: Any) -> dict[str, Any]:
    """A row with these values."""
    return values
