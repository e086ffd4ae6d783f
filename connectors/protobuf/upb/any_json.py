"""A ``google.protobuf.Any`` as JSON, as Java's JsonFormat prints it: proto field names, no white space."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from functools import cached_property
from typing import Any, Final

from google.protobuf import any_pb2, json_format, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from connectors.core.functions.bad_rows import BadRowError
from connectors.protobuf.schema.descriptors import FieldType, Schema, is_repeated, pool_of
from connectors.protobuf.upb.declarations import WireForm, check_field_numbers, messages_in, wire_name

# Gson escapes these, so that JSON can stand in HTML; they only occur inside of strings.
_ESCAPED: Final = {ord(character): f"\\u{ord(character):04x}" for character in "<>&='\u2028\u2029"}
_RAW_WHOLE: Final = {"google.protobuf.BytesValue", "google.protobuf.FieldMask"}  # printed as one text, without Gson
_JSON: Final = {"google.protobuf.Struct", "google.protobuf.Value"}  # their keys are those of any JSON
_CALLED: Final = {"DESCRIPTOR", "ListFields", "ParseFromString"}
_PLAIN: Final = (1e-3, 1e7)  # between these Java writes a double without an exponent


def _java_text(value: float) -> str:
    """Return a number as Java's Double.toString prints it."""
    text = repr(value)
    if not value or _PLAIN[0] <= abs(value) < _PLAIN[1]:
        return text if "e" not in text else format(Decimal(text), "f")
    sign, digits, exponent = Decimal(text).normalize().as_tuple()
    figures = "".join(map(str, digits))
    power = int(exponent) + len(figures) - 1
    return f"{'-' if sign else ''}{figures[0]}.{figures[1:] or '0'}E{power}"


class _Raw(str):
    """A text that Java prints as it is: base64, paths."""

    __slots__ = ()


class AnyPrinter:
    """Prints Any messages whose types are in one descriptor set."""

    def __init__(self, schema: Schema, *, enums_as_ints: bool) -> None:
        self._schema = schema
        self._enums_as_ints = enums_as_ints
        self._wires: dict[str, WireForm] = {}

    @cached_property
    def _pool(self) -> DescriptorPool:
        """Return the pool by which json_format prints: JSON names are proto names, as Java prints them here."""
        files = FileDescriptorSet.FromString(self._schema.files.SerializeToString())
        pending = [message for file in files.file for message in file.message_type]
        while pending:
            message = pending.pop()
            pending += message.nested_type
            for field in message.field:
                field.json_name = field.name
                if field.name in _CALLED:  # a field of this name would hide what json_format calls
                    field.name = f"{field.name}_{field.number}"
        return pool_of(files)

    def text(self, message: Message) -> str:
        """Return the JSON of an Any in its wire form; BadRowError if its type is unknown or its bytes are not of it."""
        value = any_pb2.Any()
        try:
            value.ParseFromString(message.SerializeToString())
            printed = json_format.MessageToDict(
                value, use_integers_for_enums=self._enums_as_ints, descriptor_pool=self._pool
            )
            self._check(value.type_url, value.value)
            return _dump(self._with_raw(value, printed))
        except MemoryError:
            raise
        except Exception as error:
            # Of any type: the message comes from outside, and json_format documents no list.
            kind = re.sub(r"[^\w./-]", "?", value.type_url)[:200]
            raise BadRowError(f"Any of the type {kind!r} cannot be printed: {' '.join(str(error).split())}") from error

    def _with_raw(self, message: Any, printed: Any) -> Any:
        """Return what json_format made of a message, with each text as `_Raw` that Java prints without Gson."""
        name = message.DESCRIPTOR.full_name
        if name == "google.protobuf.Any" and isinstance(printed, dict) and "@type" in printed:
            kind = self._pool.FindMessageTypeByName(message.type_url.rpartition("/")[2])
            inner = message_factory.GetMessageClass(kind).FromString(message.value)
            if kind.full_name in _RAW_WHOLE or kind.full_name == "google.protobuf.Any":
                return {**printed, "value": self._with_raw(inner, printed["value"])}
            return self._with_raw(inner, printed)
        if name in _RAW_WHOLE:
            return _Raw(printed)
        if not isinstance(printed, dict) or name in _JSON:
            return printed
        printed = dict(printed)
        for field, value in message.ListFields():
            key = field.json_name
            if key not in printed:
                continue
            entry = field.message_type if is_repeated(field) and field.message_type is not None else None
            if entry is not None and entry.GetOptions().map_entry:
                item = entry.fields_by_name["value"]
                names = {str(one).lower() if isinstance(one, bool) else str(one): one for one in value}
                texts = printed[key]
                printed[key] = {text: self._raw(item, value[names[text]], texts[text]) for text in texts}
            elif is_repeated(field):
                pairs = zip(value, printed[key], strict=True)
                printed[key] = [self._raw(field, one, text) for one, text in pairs]
            else:
                printed[key] = self._raw(field, value, printed[key])
        return printed

    def _raw(self, field: FieldType, value: Any, printed: Any) -> Any:
        if field.message_type is not None:
            return self._with_raw(value, printed)
        return _Raw(printed) if field.type == FieldDescriptor.TYPE_BYTES else printed

    def _check(self, type_url: str, data: bytes) -> None:
        """Refuse the field number 0 in a packed message, also where json_format parses without complaint."""
        name = type_url.rpartition("/")[2]
        if not name:
            return  # an empty Any
        if name not in self._wires:
            self._wires[name] = WireForm(self._schema.pool.FindMessageTypeByName(name), self._schema, extensions=False)
        wire = self._wires[name]
        for message in messages_in(wire.root.FromString(data)):
            check_field_numbers(UnknownFieldSet(message))
            if wire.is_any(message):
                self._check(getattr(message, wire_name(1)), getattr(message, wire_name(2)))


def _dump(value: Any) -> str:
    """Return JSON without white space, with doubles as Java prints them."""
    match value:
        case dict():
            return "{" + ",".join(f"{_dump(str(key))}:{_dump(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ",".join(map(_dump, value)) + "]"
        case float():
            return _java_text(value)
        case _Raw():
            return f'"{value}"'
        case _:
            return json.dumps(value, ensure_ascii=False).translate(_ESCAPED)
