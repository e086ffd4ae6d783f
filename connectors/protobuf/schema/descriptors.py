"""MessageType sets: read, checked, and looked up as Spark does.

Every pool is private: two versions of one file would clash in protobuf's default pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError, Message

from connectors.protobuf.errors import analysis_error

MessageType: TypeAlias = Any
"""A descriptor of a message. The stubs of protobuf miss attributes, and give None where there is none."""
FieldType: TypeAlias = Any
"""A descriptor of a field."""
EnumType: TypeAlias = Any
"""A descriptor of an enum."""

__all__ = [
    "JAVA_PREFIXES",
    "EnumPlan",
    "EnumType",
    "FieldType",
    "MessageType",
    "Schema",
    "class_descriptor_set",
    "enum_plan",
    "parse_set",
    "pool_of",
    "read_descriptor_file",
    "well_known_class",
]

JAVA_PREFIXES: Final = ("org.sparkproject.spark_protobuf.protobuf.", "com.google.protobuf.")
"""Where Java has the messages that come with protobuf: Spark's own shaded copy, and the original."""

_LISTED: Final = 20
_NO_VALIDATION: Final = 3  # FeatureSet.Utf8Validation.NONE
_INCLUDE_IMPORTS: Final = "Build it with protoc --include_imports --descriptor_set_out=FILE."


def read_descriptor_file(path: str | Path) -> bytes:
    """The bytes of a descriptor set file; read on the driver, because executors may not have the file.

    Raises:
        ProtobufAnalysisError: PROTOBUF_DESCRIPTOR_FILE_NOT_FOUND, with the OSError as its cause.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise analysis_error(
            "PROTOBUF_DESCRIPTOR_FILE_NOT_FOUND",
            filePath=path,
            where=f"{type(error).__name__}: {error.strerror}",
            action="Give the path of a file that the driver can read.",
        ) from error


def class_descriptor_set(descriptor: MessageType) -> bytes:
    """The descriptor set of a generated class: its file and all that this imports, imports first."""
    files: dict[str, Any] = {}

    def visit(file: Any) -> None:
        if file.name not in files:
            for imported in file.dependencies:
                visit(imported)
            files[file.name] = file

    visit(descriptor.file)
    found = FileDescriptorSet()
    for file in files.values():
        file.CopyToProto(found.file.add())
    return found.SerializeToString(deterministic=True)


def well_known_class(name: str) -> type[Message] | None:
    """The class of a message that comes with protobuf, by its name in Java, or None."""
    from google.protobuf import (  # noqa: PLC0415 - loads many files, rarely needed
        any_pb2,
        api_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        source_context_pb2,
        struct_pb2,
        timestamp_pb2,
        type_pb2,
        wrappers_pb2,
    )

    prefix = next((each for each in JAVA_PREFIXES if name.startswith(each)), None)
    if prefix is None:
        return None
    modules = (any_pb2, api_pb2, duration_pb2, empty_pb2, field_mask_pb2, source_context_pb2)
    for module in (*modules, struct_pb2, timestamp_pb2, type_pb2, wrappers_pb2):
        found = getattr(module, name.removeprefix(prefix), None)
        if isinstance(found, type) and issubclass(found, Message):
            return found
    return None


def parse_set(data: bytes) -> FileDescriptorSet:
    """A descriptor set from its bytes.

    Raises:
        ProtobufAnalysisError: CANNOT_PARSE_PROTOBUF_DESCRIPTOR; where known, it says what the bytes are instead.
    """
    try:
        found = FileDescriptorSet.FromString(bytes(data))
    except DecodeError as error:
        where = _instead(bytes(data)) or str(error)
        raise analysis_error("CANNOT_PARSE_PROTOBUF_DESCRIPTOR", where=where, action=_INCLUDE_IMPORTS) from error
    if not found.file:
        where = _instead(bytes(data)) or "it holds no file"
        raise analysis_error("CANNOT_PARSE_PROTOBUF_DESCRIPTOR", where=where, action=_INCLUDE_IMPORTS)
    return found


def _instead(data: bytes) -> str:
    """What bytes are that users give for a descriptor set; empty if that is not known."""
    if not data:
        return "it is empty"
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if all(each.isprintable() or each.isspace() for each in text):
        return "it is text, as in a .proto file, and not what protoc makes of it"
    try:
        name = FileDescriptorProto.FromString(data).name
    except DecodeError:
        return ""
    return name and f"it is one FileDescriptorProto, {name}, and not a set of them"


def _imports_first(files: Iterable[FileDescriptorProto]) -> Iterator[FileDescriptorProto]:
    by_name = {file.name: file for file in files}
    done: set[str] = set()
    begun: set[str] = set()
    for root in by_name:
        stack = [(root, False)]
        while stack:
            name, imported = stack.pop()
            if name in done:
                continue
            if imported:
                done.add(name)
                yield by_name[name]
                continue
            if name in begun:
                raise analysis_error("CANNOT_PARSE_PROTOBUF_DESCRIPTOR", where=f"{name} imports itself, or in a circle")
            begun.add(name)
            stack.append((name, True))
            for dependency in by_name[name].dependency:
                if dependency not in by_name:
                    raise analysis_error(
                        "PROTOBUF_DEPENDENCY_NOT_FOUND",
                        dependencyName=dependency,
                        where=f"imported by {name}",
                        action=_INCLUDE_IMPORTS,
                    )
                if dependency not in done:
                    stack.append((dependency, False))


def pool_of(files: FileDescriptorSet) -> descriptor_pool.DescriptorPool:
    """A private pool of the files of a descriptor set."""
    pool = descriptor_pool.DescriptorPool()
    for file in _imports_first(files.file):
        try:
            pool.Add(file)
        except TypeError as error:
            raise analysis_error(
                "CANNOT_PARSE_PROTOBUF_DESCRIPTOR", where=f"{file.name}: {' '.join(str(error).split())}"
            ) from error
    return pool


class Schema:
    """A descriptor set in a private pool, with what a pool does not tell.

    Args:
        data: a serialized FileDescriptorSet, with its imports.

    Raises:
        ProtobufAnalysisError: CANNOT_PARSE_PROTOBUF_DESCRIPTOR, or PROTOBUF_DEPENDENCY_NOT_FOUND for one that was
            built without its imports.
    """

    def __init__(self, data: bytes) -> None:
        self.files = parse_set(data)
        self.pool = pool_of(self.files)
        self._lenient = {file.name: _lenient_file(file) for file in self.files.file}
        self._proto2 = {file.name for file in self.files.file if file.syntax in {"", "proto2"}}
        self._extensions: dict[str, list[FieldType]] | None = None

    def find(self, name: str) -> MessageType:
        """The first top-level message, in the order of the files, whose short or full name this is.

        Nested messages are not found, as in Spark (``utils/ProtobufUtils.scala``).

        Raises:
            ProtobufAnalysisError: PROTOBUF_MESSAGE_NOT_FOUND.
        """
        for file in self.files.file:
            for message in file.message_type:
                full_name = f"{file.package}.{message.name}" if file.package else message.name
                if name in {message.name, full_name}:
                    return self.pool.FindMessageTypeByName(full_name)
        known = [message.name for file in self.files.file for message in file.message_type]
        listed = ", ".join(known[:_LISTED]) + (", ..." if len(known) > _LISTED else "")
        raise analysis_error(
            "PROTOBUF_MESSAGE_NOT_FOUND",
            messageName=name,
            action=f"The descriptor set has, at top level: {listed or 'no message'}. Nested messages are not found by "
            "name.",
        )

    def files_of(self, full_name: str) -> bytes:
        """The descriptor set of the file of a message and of all that this imports, in the order they had."""
        by_name = {file.name: file for file in self.files.file}
        needed: set[str] = set()
        todo = [str(self.pool.FindMessageTypeByName(full_name).file.name)]
        while todo:
            name = todo.pop()
            if name not in needed:
                needed.add(name)
                todo += by_name[name].dependency
        kept = [file for name, file in by_name.items() if name in needed]
        return FileDescriptorSet(file=kept).SerializeToString(deterministic=True)

    def lenient(self, field: FieldType) -> bool:
        """Whether a string may hold bytes that are not UTF-8: in proto2, and where an edition says so.

        Never in a map, and not in a file with ``java_string_check_utf8``: Java's ``FieldDescriptor.needsUtf8Check``.
        """
        if field.containing_type.GetOptions().map_entry:
            return False
        options = field.GetOptions()
        if options.HasField("features") and options.features.HasField("utf8_validation"):
            return bool(options.features.utf8_validation == _NO_VALIDATION)
        return self._lenient[field.file.name]

    def closed(self, field: FieldType) -> bool:
        """Whether a number that an enum field does not know counts as an unknown field.

        Java looks at the file of the field too: each enum is closed for a proto2 field.
        """
        return bool(field.enum_type.is_closed) or field.file.name in self._proto2

    def extensions(self, full_name: str) -> list[FieldType]:
        """The extensions of a message that any file of the set declares, in the order of the files."""
        if self._extensions is None:
            self._extensions = {}
            for name in self._extension_names():
                found: FieldType = self.pool.FindExtensionByName(name)
                self._extensions.setdefault(found.containing_type.full_name, []).append(found)
        return self._extensions.get(full_name, [])

    def _extension_names(self) -> Iterator[str]:
        def within(message: DescriptorProto, scope: str) -> Iterator[str]:
            inner = f"{scope}.{message.name}" if scope else message.name
            yield from (f"{inner}.{extension.name}" for extension in message.extension)
            for nested in message.nested_type:
                yield from within(nested, inner)

        for file in {file.name: file for file in self.files.file}.values():
            prefix = f"{file.package}." if file.package else ""
            yield from (prefix + extension.name for extension in file.extension)
            for message in file.message_type:
                yield from within(message, file.package)


def _lenient_file(file: FileDescriptorProto) -> bool:
    if file.syntax == "editions":
        return bool(file.options.features.utf8_validation == _NO_VALIDATION)
    return file.syntax != "proto3" and not file.options.java_string_check_utf8


@dataclass(frozen=True, slots=True)
class EnumPlan:
    """An enum: number to name, in the order of declaration; the first of several names counts."""

    name: str
    names: Mapping[int, str]
    numbers: Mapping[str, int]
    closed: bool

    def text(self, number: int) -> str:
        """The name of a value; of an unknown one the name that Java makes up."""
        return self.names.get(number) or f"UNKNOWN_ENUM_VALUE_{self.name}_{number}"


def enum_plan(enum: EnumType, *, closed: bool) -> EnumPlan:
    """The plan of an enum.

    Args:
        enum: its descriptor.
        closed: whether numbers that it does not know count as unknown fields.
    """
    names: dict[int, str] = {}
    for value in enum.values:
        names.setdefault(value.number, value.name)
    return EnumPlan(enum.name, names, {value.name: value.number for value in enum.values}, closed)
