"""Descriptor sets: read, checked, and searched as Spark searches them.

Every pool is private: two versions of one file would clash in protobuf's default pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeAlias

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from connectors.protobuf.errors import ProtobufAnalysisError, analysis_error

# The stubs of protobuf lack attributes, and say None where there is none.
MessageType: TypeAlias = Any
FieldType: TypeAlias = Any
EnumType: TypeAlias = Any

# Where Java has the messages that come with protobuf: Spark's own shaded copy, and the original.
_JAVA_PREFIXES: Final = ("org.sparkproject.spark_protobuf.protobuf.", "com.google.protobuf.")
_FILES: Final = ("any", "api", "duration", "empty", "field_mask", "source_context", "struct", "timestamp", "type")
_WELL_KNOWN: Final = {
    name: message
    for module in (*_FILES, "wrappers")
    for name, message in import_module(f"google.protobuf.{module}_pb2").DESCRIPTOR.message_types_by_name.items()
}
_MOST_LISTED: Final = 20
_NO_VALIDATION: Final = 3  # FeatureSet.Utf8Validation.NONE
_JAVA_VERIFY: Final = 2  # JavaFeatures.Utf8Validation.VERIFY
_IS_BY_LABEL: Final = not hasattr(FieldDescriptor, "is_repeated")
"""Whether protobuf is older than 6.31. Newer ones warn of `label`."""


def _java_features() -> type[Any]:
    """Return the class of a FeatureSet that knows the features of google/protobuf/java_features.proto alone."""
    file = FileDescriptorProto(name="connectors/java_features.proto", syntax="proto2")
    features, java = file.message_type.add(name="Features"), file.message_type.add(name="Java")
    features.field.add(name="java", number=1001, type=FieldDescriptorProto.TYPE_MESSAGE, type_name=".Java")
    java.field.add(name="legacy_closed_enum", number=1, type=FieldDescriptorProto.TYPE_BOOL)
    java.field.add(name="utf8_validation", number=2, type=FieldDescriptorProto.TYPE_INT32)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Features"))


_JAVA_FEATURES: Final = _java_features()


def read_descriptor_file(path: str | Path) -> bytes:
    """Read a descriptor set file on the driver, because executors may not have the file."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        where = f"{type(error).__name__}: {error.strerror}"
        raise analysis_error("PROTOBUF_DESCRIPTOR_FILE_NOT_FOUND", filePath=path, where=where) from error


def add_with_imports(file: Any, files: dict[str, FileDescriptorProto]) -> None:
    """Add the file of a pool, and all that it imports, to files by name; imports first."""
    if file.name not in files:
        for imported in file.dependencies:
            add_with_imports(imported, files)
        files[file.name] = FileDescriptorProto()
        file.CopyToProto(files[file.name])


def serialized(files: Mapping[str, FileDescriptorProto]) -> bytes:
    """Return the bytes of a descriptor set; equal for equal files."""
    return FileDescriptorSet(file=files.values()).SerializeToString(deterministic=True)


def class_descriptor_set(descriptor: MessageType) -> bytes:
    files: dict[str, FileDescriptorProto] = {}
    add_with_imports(descriptor.file, files)
    return serialized(files)


def well_known_message(name: str) -> MessageType | None:
    """Return the message that comes with protobuf and has this name in Java; None for another name."""
    prefix = next((prefix for prefix in _JAVA_PREFIXES if name.startswith(prefix)), None)
    return None if prefix is None else _WELL_KNOWN.get(name.removeprefix(prefix))


def parse_set(data: bytes) -> FileDescriptorSet:
    """Parse a descriptor set; raises CANNOT_PARSE_PROTOBUF_DESCRIPTOR, which says what the bytes are instead."""
    try:
        descriptor_set, reason = FileDescriptorSet.FromString(bytes(data)), "it holds no file"
    except DecodeError as error:
        descriptor_set, reason = FileDescriptorSet(), str(error)
    if not descriptor_set.file:
        where = _other_content(bytes(data)) or reason
        raise analysis_error("CANNOT_PARSE_PROTOBUF_DESCRIPTOR", where=where)
    for file in descriptor_set.file:
        # A name that is no UTF-8 is bytes here, and an error wherever a pool is asked for it.
        if not all(isinstance(name, str) for name in (file.name, file.package, *file.dependency)):
            raise analysis_error("CANNOT_PARSE_PROTOBUF_DESCRIPTOR", where="the name of a file is not UTF-8")
    return descriptor_set


def _other_content(data: bytes) -> str:
    """Return what users pass by mistake for a descriptor set; empty if it is not recognized."""
    if not data:
        return "it is empty"
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if all(character.isprintable() or character.isspace() for character in text):
        return "it is text, as in a .proto file, and not what protoc makes of it"
    try:
        name = FileDescriptorProto.FromString(data).name
    except DecodeError:
        return ""
    return name and f"it is one FileDescriptorProto, {name}, and not a set of them"


def pool_of(files: FileDescriptorSet) -> descriptor_pool.DescriptorPool:
    by_name = {file.name: file for file in files.file}
    for file in by_name.values():
        for dependency in file.dependency:
            if dependency not in by_name:
                where = f"imported by {file.name}"
                raise analysis_error("PROTOBUF_DEPENDENCY_NOT_FOUND", dependencyName=dependency, where=where)
    pool = descriptor_pool.DescriptorPool()
    name = ""
    try:
        for name in TopologicalSorter({name: file.dependency for name, file in by_name.items()}).static_order():
            pool.Add(by_name[name])
    except CycleError as error:
        where = f"{error.args[1][0]} imports itself, or in a circle"
        raise analysis_error("CANNOT_PARSE_PROTOBUF_DESCRIPTOR", where=where) from error
    except TypeError as error:
        where = f"{name}: {' '.join(str(error).split())}"
        raise analysis_error("CANNOT_PARSE_PROTOBUF_DESCRIPTOR", where=where) from error
    return pool


@dataclass(frozen=True, slots=True)
class EnumPlan:
    """An enum: number to name, in the order of declaration; the first of several names counts."""

    name: str
    names: Mapping[int, str]
    numbers: Mapping[str, int]
    closed: bool  # whether a number that it does not declare counts as an unknown field

    @property
    def longest(self) -> int:
        """The bytes of the longest name, including names that Java makes up."""
        return max(len(self.text(-(1 << 31))), *map(len, self.numbers), 0)

    def text(self, number: int) -> str:
        """Return the name of a value; of an unknown one the name that Java makes up."""
        return self.names.get(number) or f"UNKNOWN_ENUM_VALUE_{self.name}_{number}"


@dataclass(frozen=True, slots=True)
class _Features:
    """What a field of an edition inherits or says, and a pool does not tell: it drops the features from options."""

    validated: bool = True  # features.utf8_validation
    validated_in_java: bool = False  # features.(pb.java).utf8_validation, which goes before the other
    closed_enum: bool = False  # features.(pb.java).legacy_closed_enum

    @property
    def lenient(self) -> bool:
        return not (self.validated or self.validated_in_java)

    def below(self, options: Any) -> _Features:
        """Return the features of what has these options inside of what has the features `self`."""
        if not options.HasField("features"):
            return self
        general = options.features
        # Not by the extension: whether this process knows it depends on what else it has imported.
        java = _JAVA_FEATURES.FromString(general.SerializeToString()).java
        return _Features(
            general.utf8_validation != _NO_VALIDATION if general.HasField("utf8_validation") else self.validated,
            java.utf8_validation == _JAVA_VERIFY if java.HasField("utf8_validation") else self.validated_in_java,
            java.legacy_closed_enum if java.HasField("legacy_closed_enum") else self.closed_enum,
        )


class Schema:
    """A serialized descriptor set in a private pool, with what a pool does not say."""

    def __init__(self, data: bytes) -> None:
        self.files = parse_set(data)
        self.pool = pool_of(self.files)
        self._lenient = {
            file.name: file.syntax != "proto3" and not file.options.java_string_check_utf8 for file in self.files.file
        }
        self._features = {
            name: features
            for file in self.files.file
            if file.syntax == "editions"
            for name, features in _features_in(file)
        }
        self._proto2 = {file.name for file in self.files.file if file.syntax in {"", "proto2"}}
        self._extensions: dict[str, list[FieldType]] | None = None  # by message, when they are first asked for
        self._enums: dict[tuple[str, bool], EnumPlan] = {}

    def find(self, name: str, *, nested: bool = False) -> MessageType:
        """Return the first top-level message, in the order of the files, with this short or full name.

        Nested messages are not found, as in Spark (``utils/ProtobufUtils.scala``), but with `nested`: then by their
        full name, or that without the package (``Order.Item``). Raises PROTOBUF_MESSAGE_NOT_FOUND.
        """
        messages = [message for file in self.files.file for message in self._messages(file.name, nested=nested)]
        matches = [message for message in messages if name in {nested_name(message), message.full_name}]
        if matches:
            return min(matches, key=lambda message: message.containing_type is not None)
        listed = _listed(messages)
        action = f"The descriptor set has, at top level: {listed}. Nested messages are not found by name."
        action = f"The descriptor set has: {listed}." if nested else action
        raise analysis_error("PROTOBUF_MESSAGE_NOT_FOUND", messageName=name, action=action)

    def find_in(self, file: str, name: str | None, where: str) -> MessageType:
        """Return a message by its name, also a nested one: of this file, else of those that it imports.

        Without a name it is the only message of the file at top level. `where` says in errors which schema this is.
        """
        own = self._messages(file, nested=True)
        if name is None:
            top = [message for message in own if message.containing_type is None]
            if len(top) == 1:
                return top[0]
            where = f"{where} has {'several messages' if top else 'no message'}"
            action = f"Give one as messageName: {_listed(own)}." if top else ""
            raise analysis_error("PROTOBUF_MESSAGE_NOT_FOUND", messageName="''", where=where, action=action)
        for message in own:
            if name in {nested_name(message), message.full_name}:
                return message
        try:
            return self.find(name, nested=True)
        except ProtobufAnalysisError:
            action = f"It has: {_listed(own)}."
            raise analysis_error("PROTOBUF_MESSAGE_NOT_FOUND", messageName=name, where=where, action=action) from None

    def _messages(self, file: str, *, nested: bool) -> list[MessageType]:
        messages: list[MessageType] = []
        pending = [*self.pool.FindFileByName(file).message_types_by_name.values()]
        while pending:
            message = pending.pop(0)
            messages.append(message)
            if nested:
                pending[:0] = [inner for inner in message.nested_types if not inner.GetOptions().map_entry]
        return messages

    def lenient(self, field: FieldType) -> bool:
        """Return whether a string may hold bytes that are not UTF-8: in proto2, and where an edition says so.

        Never in a map, and not in a file with ``java_string_check_utf8``: Java's ``FieldDescriptor.needsUtf8Check``.
        """
        if field.containing_type.GetOptions().map_entry:
            return False
        features = self._features.get(field.full_name)
        return self._lenient[field.file.name] if features is None else features.lenient

    def enum(self, field: FieldType) -> EnumPlan | None:
        """Return the enum of a field; None where the field has another type.

        Java looks at the field too: every enum is closed for a proto2 field, and for one with its legacy_closed_enum.
        """
        enum = field.enum_type
        if enum is None:
            return None
        features = self._features.get(field.full_name)
        legacy = field.file.name in self._proto2 if features is None else features.closed_enum
        closed = bool(enum.is_closed) or legacy
        key = enum.full_name, closed
        if key not in self._enums:
            names: dict[int, str] = {}
            for value in enum.values:
                names.setdefault(value.number, value.name)
            numbers = {value.name: value.number for value in enum.values}
            self._enums[key] = EnumPlan(enum.name, names, numbers, closed)
        return self._enums[key]

    def fields(self, message: MessageType, *, extensions: bool) -> list[FieldType]:
        """Return the fields of a message, and its extensions, in the order of the files that declare them."""
        if not extensions:
            return list(message.fields)
        if self._extensions is None:
            self._extensions = {}
            for name in dict.fromkeys(file.name for file in self.files.file):
                file = self.pool.FindFileByName(name)
                for extension in _extensions_in(file, file.message_types_by_name.values()):
                    self._extensions.setdefault(extension.containing_type.full_name, []).append(extension)
        return [*message.fields, *self._extensions.get(message.full_name, ())]


def is_repeated(field: FieldType) -> bool:
    """Return whether a field is a list or a map."""
    return bool(field.label == FieldDescriptor.LABEL_REPEATED if _IS_BY_LABEL else field.is_repeated)


def is_required(field: FieldType) -> bool:
    return bool(field.label == FieldDescriptor.LABEL_REQUIRED if _IS_BY_LABEL else field.is_required)


def map_entry(field: FieldType) -> tuple[FieldType, FieldType]:
    """Return the fields of key and value of a map; a pool does not check that a descriptor has them."""
    entry: MessageType = field.message_type
    if {part.number: part.name for part in entry.fields} != {1: "key", 2: "value"}:
        where = f"{entry.full_name} is not an entry of a map"
        raise analysis_error("CANNOT_PARSE_PROTOBUF_DESCRIPTOR", where=where)
    return entry.fields_by_name["key"], entry.fields_by_name["value"]


def nested_name(message: MessageType) -> str:
    """Return the name of a message without that of its package, such as ``Order.Item``."""
    name: str = message.full_name
    return name.removeprefix(f"{message.file.package}.")


def _listed(messages: Sequence[MessageType]) -> str:
    names = [nested_name(message) for message in messages[:_MOST_LISTED]]
    return ", ".join([*names, *["..."] * (len(messages) > _MOST_LISTED)]) or "no message"


def _features_in(file: FileDescriptorProto) -> Iterator[tuple[str, _Features]]:
    """Yield the full name of each field and extension in a file of an edition, and its features."""
    top = _Features().below(file.options)
    pending = [(f"{file.package}." if file.package else "", message, top) for message in file.message_type]
    yield from ((f"{file.package}.{field.name}".lstrip("."), top.below(field.options)) for field in file.extension)
    while pending:
        scope, message, outer = pending.pop()
        features, name = outer.below(message.options), f"{scope}{message.name}."
        oneofs = [features.below(oneof.options) for oneof in message.oneof_decl]
        for field in message.field:
            parent = oneofs[field.oneof_index] if field.HasField("oneof_index") else features
            yield name + field.name, parent.below(field.options)
        yield from ((name + field.name, features.below(field.options)) for field in message.extension)
        pending += [(name, inner, features) for inner in message.nested_type]


def _extensions_in(scope: Any, messages: Iterable[MessageType]) -> Iterator[FieldType]:
    yield from scope.extensions_by_name.values()
    for message in messages:
        yield from _extensions_in(message, message.nested_types)
