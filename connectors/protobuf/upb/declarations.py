"""The wire form of a message: the declarations by which upb parses it.

They mean the same bytes as what the user declared, in one file of edition 2023, and make upb retain what Spark retains.
Maps are lists of entries: upb would merge duplicate keys. A ``string`` that may hold anything is ``bytes``: upb cannot
give one that is not UTF-8, Spark replaces bad bytes. Extensions are fields of the message they extend, or left out.
Every singular field has presence; the plan decides what zero means without. An open enum is an ``int32``. Fields are
named ``f<number>``, so that none has the name of a method of a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import (
    EDITION_2023,
    DescriptorProto,
    FeatureSet,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from connectors.core.functions.bad_rows import BadRowError
from connectors.protobuf.schema.descriptors import EnumType, FieldType, MessageType, Schema, is_repeated, is_required

WIRE_GROUP: Final = 3  # the wire type that begins a group
_FILE: Final = "connectors/wire_form.proto"
_LAST_NUMBER: Final = (1 << 29) - 1
F: Final = FieldDescriptor
_MESSAGES: Final = {F.TYPE_MESSAGE, F.TYPE_GROUP}
_UNPACKABLE: Final = {F.TYPE_STRING, F.TYPE_BYTES, *_MESSAGES}


def wire_name(number: int) -> str:
    return f"f{number}"


def check_field_numbers(fields: UnknownFieldSet) -> None:
    """Raise BadRowError for the field number 0 among unknown fields and in unknown groups, where upb accepts it."""
    for field in fields:  # type: ignore[attr-defined]
        if field.field_number == 0:
            raise BadRowError("cannot be parsed: a field has the number 0")
        if field.wire_type == WIRE_GROUP:
            check_field_numbers(field.data)


def messages_in(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if is_repeated(field) else (value,):
                yield from messages_in(inner)


class WireForm:
    """The class by which a message is parsed and built, `root`, and those of the messages in it."""

    def __init__(self, root: MessageType, schema: Schema, *, extensions: bool) -> None:
        self._schema = schema
        self._extensions = extensions
        self._file = FileDescriptorProto(name=_FILE, syntax="editions", edition=EDITION_2023)
        self._messages: dict[str, str] = {}
        self._enums: dict[str, str] = {}
        self._pending: list[tuple[MessageType, DescriptorProto]] = []
        self._declared: dict[str, dict[int, FieldType]] = {}
        self.has_required = False  # of any message that can stand in it
        name = self._message(root)
        while self._pending:
            descriptor, proto = self._pending.pop()
            self._fill(descriptor, proto)
            if not proto.field:  # upb takes the field number 0 for legal in a message without any field
                proto.field.add(name="none", number=_LAST_NUMBER, type=FieldDescriptorProto.TYPE_BOOL)
        pool = descriptor_pool.DescriptorPool()
        pool.Add(self._file)
        self.root: type[Message] = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
        self.nested = len(self._messages) > 1
        self.numbers = frozenset(field.number for field in root.fields)  # no extensions: Spark looks at these
        self._pool = pool

    def is_any(self, message: Message) -> bool:
        return message.DESCRIPTOR.name == self._messages.get("google.protobuf.Any")

    def declared(self, message: type[Message], number: int) -> FieldType | None:
        """Return the field that the user declared with that number, in one of the messages here."""
        return self._declared.get(message.DESCRIPTOR.name, {}).get(number)

    def missing_fields(self, message: Message) -> str:
        """Return the required fields that a message lacks, in the names that the user declared."""
        paths = message.FindInitializationErrors()  # type: ignore[attr-defined]
        return ", ".join(map(self._readable, paths))

    def _readable(self, path: str) -> str:
        """Return a path such as ``f1.f3[0].f2`` in declared names."""
        message, names = self.root.DESCRIPTOR, []
        for part in path.split("."):
            name, bracket, index = part.partition("[")
            field = message.fields_by_name[name]
            names.append(self._declared[message.name][field.number].name + bracket + index)
            message = field.message_type or message
        return ".".join(names)

    def _message(self, descriptor: MessageType) -> str:
        name = self._messages.get(descriptor.full_name)
        if name is None:
            name = self._messages[descriptor.full_name] = f"M{len(self._messages)}"
            self._pending.append((descriptor, self._file.message_type.add(name=name)))
        return name

    def _enum(self, descriptor: EnumType) -> str:
        name = self._enums.get(descriptor.full_name)
        if name is None:
            name = self._enums[descriptor.full_name] = f"E{len(self._enums)}"
            proto = self._file.enum_type.add(name=name)
            proto.options.features.enum_type = FeatureSet.CLOSED
            for number in dict.fromkeys(value.number for value in descriptor.values):
                proto.value.add(name=f"{name}_{number}".replace("-", "_minus_"), number=number)
        return name

    def _fill(self, descriptor: MessageType, proto: DescriptorProto) -> None:
        oneofs: dict[str, int] = {}
        for field in self._schema.fields(descriptor, extensions=self._extensions):
            made = proto.field.add(name=wire_name(field.number), number=field.number)
            self._declare(field, made)
            self._declared.setdefault(proto.name, {})[made.number] = field
            # Spark refuses a oneof member twice as upb does: the last one on the wire stands. Not for `optional`.
            oneof = field.containing_oneof
            if oneof is not None and len(oneof.fields) > 1:
                made.oneof_index = oneofs.setdefault(oneof.name, len(oneofs))
                if len(oneofs) > len(proto.oneof_decl):
                    proto.oneof_decl.add(name=f"o{len(oneofs)}")

    def _declare(self, field: FieldType, made: FieldDescriptorProto) -> None:
        repeated = is_repeated(field)
        made.label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
        made.type = field.type
        features = made.options.features
        if repeated and not field.is_packed and field.type not in _UNPACKABLE:
            features.repeated_field_encoding = FeatureSet.EXPANDED
        if is_required(field) or _must_be_in_its_entry(field):
            self.has_required = True
            features.field_presence = FeatureSet.LEGACY_REQUIRED
        if field.type in _MESSAGES:
            made.type = FieldDescriptorProto.TYPE_MESSAGE
            made.type_name = f".{self._message(field.message_type)}"
            if field.type == F.TYPE_GROUP:
                features.message_encoding = FeatureSet.DELIMITED
        elif field.type == F.TYPE_ENUM:
            enum = self._schema.enum(field)
            if enum is not None and enum.closed:
                made.type_name = f".{self._enum(field.enum_type)}"
            else:
                made.type = FieldDescriptorProto.TYPE_INT32
        elif field.type == F.TYPE_STRING and self._schema.lenient(field):
            made.type = FieldDescriptorProto.TYPE_BYTES


def _must_be_in_its_entry(field: FieldType) -> bool:
    """Return whether a map's value has required fields: without it they are missing, and upb is silent."""
    message = field.message_type
    in_entry = message is not None and field.containing_type.GetOptions().map_entry
    return bool(in_entry and any(is_required(part) for part in message.fields))
