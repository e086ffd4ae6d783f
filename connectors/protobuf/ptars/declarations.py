"""The declarations by which ptars decodes and encodes: one flat proto3 file, made from a plan.

ptars (https://github.com/0x26res/ptars) has rules of its own for well-known types, enums and recursion. None applies:
each message of the plan is a type of its own, so recursion is unrolled and a Timestamp is a plain message; an enum is
an ``int32``, unsigned integers are signed where the plan wraps them, a string that may be other than UTF-8 is
``bytes``, and a field is named by its number, so that names need not be legal, or differ, in Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from connectors.protobuf.schema.plan import FieldPlan, Shape, ValueKind
from connectors.protobuf.upb.declarations import wire_name

F: Final = FieldDescriptor
_FILE: Final = "connectors/ptars_form.proto"
# What an unsigned field is declared as where its values wrap: the same bytes, read as signed.
_WRAPPED: Final = {
    F.TYPE_UINT32: F.TYPE_INT32,
    F.TYPE_UINT64: F.TYPE_INT64,
    F.TYPE_FIXED32: F.TYPE_SFIXED32,
    F.TYPE_FIXED64: F.TYPE_SFIXED64,
    F.TYPE_ENUM: F.TYPE_INT32,
}


class _Builder:
    def __init__(self, *, upcast: bool) -> None:
        self._upcast = upcast
        self.file = FileDescriptorProto(name=_FILE, package="connectors", syntax="proto3")

    def message(self, fields: Sequence[FieldPlan]) -> str:
        name = f"M{len(self.file.message_type)}"
        made: DescriptorProto = self.file.message_type.add(name=name)
        for field in fields:
            self._declare(field, made)
        # Synthetic oneofs come last, as descriptors demand.
        for proto in made.field:
            if proto.proto3_optional:
                proto.oneof_index = len(made.oneof_decl)
                made.oneof_decl.add(name=f"_{proto.name}")
        return name

    def _declare(self, field: FieldPlan, owner: DescriptorProto) -> None:
        made = owner.field.add(name=wire_name(field.number), number=field.number)
        # A map's entries and the messages below are declared by calls of this method and of `message`.
        repeated = field.shape is not Shape.SINGULAR
        made.label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
        if field.shape is Shape.MAP:
            # The name that a map's entry must have.
            entry = owner.nested_type.add(name=f"{made.name.upper()}Entry")
            entry.options.map_entry = True
            for part, name in zip(field.children, ("key", "value"), strict=True):
                self._declare(part, entry)
                entry.field[-1].name = name
                entry.field[-1].proto3_optional = False
            if entry.field[0].type == F.TYPE_BYTES:
                # A key cannot be bytes; ptars raises for a key that isn't UTF-8, and upb reads that message.
                entry.field[0].type = FieldDescriptorProto.TYPE_STRING
            made.type = FieldDescriptorProto.TYPE_MESSAGE
            made.type_name = f".connectors.{owner.name}.{entry.name}"
        elif field.kind is ValueKind.DROPPED:
            # Only whether it is there matters; what it holds is left to upb.
            made.type, made.proto3_optional = FieldDescriptorProto.TYPE_BYTES, True
        elif field.is_scalar:
            stays_unsigned = self._upcast and field.proto_type in {F.TYPE_UINT32, F.TYPE_UINT64}
            kind = field.proto_type if stays_unsigned else _WRAPPED.get(field.proto_type, field.proto_type)
            made.type = F.TYPE_BYTES if field.lenient else kind  # type: ignore[assignment]  # the same numbers
            if repeated and made.type not in {F.TYPE_STRING, F.TYPE_BYTES}:
                made.options.packed = field.packed
            if not repeated and field.presence:
                made.proto3_optional = True
        else:
            made.type = FieldDescriptorProto.TYPE_MESSAGE
            upcast, self._upcast = (
                self._upcast,
                self._upcast and field.kind not in {ValueKind.TIMESTAMP, ValueKind.DURATION},
            )
            made.type_name = f".connectors.{self.message((*field.children, *field.dropped))}"
            self._upcast = upcast


def ptars_handler(fields: Sequence[FieldPlan], *, upcast: bool) -> Any:
    """Return the handler of ptars for a message with these fields; with `upcast`, uint32 and uint64 stay unsigned.

    Without any field it only walks over the fields of the root: it fails, at little cost, for what has no tags.
    """
    from ptars import HandlerPool, PtarsConfig  # noqa: PLC0415 - optional

    builder = _Builder(upcast=upcast)
    name = builder.message(fields)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(builder.file)
    descriptor = pool.FindMessageTypeByName(f"connectors.{name}")
    config = PtarsConfig(list_value_name="element", map_value_nullable=True)
    return HandlerPool([descriptor.file], config).get_for_message(descriptor)
