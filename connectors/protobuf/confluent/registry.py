"""Protobuf schemas of registries, as descriptor sets.

A registry gives a schema as text, or, asked with ``format=serialized``, as a descriptor; text needs protoc, which
comes with grpcio-tools. No one registers as references the files that registries have built in: those that come with
protobuf itself, and those of ``built_in.desc``, which `tools.built_in_protos` writes: confluent/meta.proto,
confluent/type/decimal.proto and google/type/*.proto, published by Confluent and Google under the Apache License 2.0.
What else a process has imported is not looked at: other processes may not have it.
"""

from __future__ import annotations

import base64
import binascii
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.resources import files as resource_files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from connectors.core.errors import ConnectorError
from connectors.core.formats import install_advice, not_installed
from connectors.core.processes.protoc import FOREIGN_LIMITS, place_of, run_protoc
from connectors.protobuf.schema.descriptors import serialized
from connectors.registry.batches import SchemaSource, schema_unusable
from connectors.registry.glue.options import AnyRegistryOptions
from connectors.registry.kinds import kind_of, retained_registry
from connectors.registry.lookups import Lookup
from connectors.registry.rules import NO_MIGRATIONS, Migrations, migrations_of
from connectors.registry.schemas import MOST_BYTES, OWN, TOO_LARGE, Ask, gather, text_of

if TYPE_CHECKING:
    from connectors.registry.client import RegistryClient

BUILT_IN: Final = "built_in.desc"
_PROTOBUF: Final = (
    "any",
    "api",
    "descriptor",
    "duration",
    "empty",
    "field_mask",
    "source_context",
    "struct",
    "timestamp",
    "type",
    "wrappers",
)
_MOST_COMPILE_SECONDS: Final = 120
_MOST_SHOWN: Final = 500
_TEXT_SECONDS: Final = 5.0
# The serializers of AWS Glue write maps as what they stand for, with an option that protoc sets itself and refuses.
_MAP_ENTRY: Final = re.compile(r"\boption\s+map_entry\s*=\s*true\s*;")
_RESERVED: Final = "connectors_map_entry"
_ENTRY_FIELDS: Final = [("key", 1), ("value", 2)]
_MARKER: Final = f'reserved "{_RESERVED}";'


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema: a descriptor set with all that it imports, and the name of its own file in that."""

    schema_id: int | str  # of Glue the version id; -1 where only its GUID is known
    files: bytes
    main: str
    migrations: Migrations = NO_MIGRATIONS


ProtobufRegistry = SchemaSource[RegisteredSchema]


def protobuf_registry(options: AnyRegistryOptions) -> ProtobufRegistry:
    return kind_of(options).source(options, ProtobufForm())


def registry_of(options: AnyRegistryOptions) -> ProtobufRegistry:
    """Return the client of a registry that the process retains."""
    return retained_registry(options, ProtobufForm)


class ProtobufForm:
    """How protobuf schemas are asked for and compiled."""

    extra = "protobuf"

    def __init__(self) -> None:
        self._next_text = 0.0
        """When a registry that fails may be asked for a text again, by the monotonic clock."""
        self._gives_text_only = False

    def ask(self, client: RegistryClient, lookup: Lookup) -> Any:
        """Ask for a schema as a descriptor; for its text where the registry fails at that and gives text (Karapace)."""
        if self._gives_text_only:
            return client.get(lookup)
        try:
            return client.get(lookup, format="serialized")
        except ConnectorError as error:
            if "HTTP 5" not in error.what or time.monotonic() < self._next_text:
                raise
            self._next_text = time.monotonic() + _TEXT_SECONDS  # most often a registry that fails is down
            try:
                text = client.get(lookup)
            except ConnectorError:
                raise error from None
            try:
                return client.get(lookup, format="serialized")  # it may serve again only since then
            except ConnectorError:
                self._gives_text_only = True
                return text

    def build(self, response: Mapping[str, Any], what: str, schema_id: int | str, ask: Ask) -> RegisteredSchema:
        """Return a schema with its references, under the names by which they are imported."""
        files: dict[str, FileDescriptorProto] = {}
        texts: dict[str, str] = {}
        for name, schema in gather(response, what, ask, "PROTOBUF").items():
            try:
                files[name] = FileDescriptorProto.FromString(base64.b64decode(schema, validate=True))
                files[name].name = name
            except (binascii.Error, ValueError, DecodeError):
                texts[name] = schema
        migrations = migrations_of(response, schema_id, what)
        main = _name_own(text_of(response, "subject", what, what), files, texts)
        if texts:
            return RegisteredSchema(schema_id, _compile_texts(main, texts, files, what), main, migrations)
        _check_imports(files, what)
        missing = add_built_in(files)
        if missing:
            missing_file = f"The {what} imports {missing!r}, which is neither one of its references nor built in"
            raise ConnectorError("SCHEMA_IMPORT_MISSING", missing_file, "schemaRegistry")
        return RegisteredSchema(schema_id, serialized(files), main, migrations)


def _name_own(subject: str, files: dict[str, FileDescriptorProto], texts: dict[str, str]) -> str:
    """Name a schema's own file after its subject, but not as one of its imports; return the name."""
    main = subject.replace(" ", "-") + ".proto"
    while main in files or main in texts:
        main = f"_{main}"
    if OWN in texts:
        texts[main] = texts.pop(OWN)
    else:
        files[main] = files.pop(OWN)
        files[main].name = main
    return main


def _check_imports(files: Mapping[str, FileDescriptorProto], what: str) -> None:
    """Refuse a name that is not UTF-8: it is bytes here."""
    if not all(isinstance(imported, str) for file in files.values() for imported in file.dependency):
        raise schema_unusable(what, "it imports a name that is not UTF-8")


def _compile_texts(main: str, texts: Mapping[str, str], files: Mapping[str, FileDescriptorProto], what: str) -> bytes:
    """Return the descriptor set of texts, compiled by another process: a text can overflow the stack of protoc."""
    if not_installed(["grpc_tools"]):
        missing = f"The registry returns the {what} only as text, and grpcio-tools, which compiles it, is not installed"
        raise ConnectorError("PACKAGES_MISSING", missing, "schemaRegistry", install_advice("protos"))
    with TemporaryDirectory() as folder, TemporaryDirectory() as output:
        root = Path(folder).resolve()
        for name, text in texts.items():
            path = root / name
            try:
                path.resolve().relative_to(root)  # ValueError for a path outside
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(_MAP_ENTRY.sub(_MARKER, text))
            except (OSError, ValueError):
                why = f"it has or imports {name!r:.100}, which is not a valid file name"
                raise schema_unusable(what, why) from None
        target, imports = Path(output) / "set.desc", Path(output) / "imports.desc"
        others = [
            file for file in FileDescriptorSet.FromString(built_in_set()).file if file.name not in {*files, *texts}
        ]
        imports.write_bytes(FileDescriptorSet(file=[*files.values(), *others]).SerializeToString())
        command = [f"-I{root}", f"--descriptor_set_in={imports}", "--include_imports"]
        # By a path where it has one: protoc takes a name that begins with - or @ as something else.
        own = str(root / main) if main in texts else main
        if own.startswith(("-", "@")):
            raise schema_unusable(what, f"its subject {main!r:.100} gives no name of a file")
        command += [f"--descriptor_set_out={target}", own]
        accepted, printed = run_protoc(command, FOREIGN_LIMITS, _MOST_COMPILE_SECONDS)
        if not accepted:
            place, why, _ = place_of(printed.replace(f"{root}/", ""))
            why = f"{place}: {why}" if place else why
            raise schema_unusable(what, f"protoc does not accept its text: {why[:_MOST_SHOWN].rstrip('.')}")
        if target.stat().st_size > MOST_BYTES:
            raise schema_unusable(what, TOO_LARGE)
        compiled = target.read_bytes()
    return _with_map_entries(compiled) if any(map(_MAP_ENTRY.search, texts.values())) else compiled


def _with_map_entries(data: bytes) -> bytes:
    descriptors = FileDescriptorSet.FromString(data)
    pending = [message for file in descriptors.file for message in file.message_type]
    while pending:
        message = pending.pop()
        pending += message.nested_type
        if _RESERVED in message.reserved_name:
            message.reserved_name.remove(_RESERVED)
            message.options.map_entry = [(field.name, field.number) for field in message.field] == _ENTRY_FIELDS
    return descriptors.SerializeToString()


def built_in_set() -> bytes:
    """Return the descriptor set of the files that do not come with protobuf."""
    return resource_files(__package__).joinpath(BUILT_IN).read_bytes()


@cache
def _built_in() -> dict[str, FileDescriptorProto]:
    shipped = FileDescriptorSet.FromString(built_in_set()).file
    modules = [import_module(f"google.protobuf.{name}_pb2").DESCRIPTOR for name in _PROTOBUF]
    own = [FileDescriptorProto.FromString(module.serialized_pb) for module in modules]
    return {file.name: file for file in (*shipped, *own)}


def add_built_in(files: dict[str, FileDescriptorProto]) -> str:
    """Add what files import and registries have built in; return the first import that is missing then, or nothing."""
    missing = ""
    pending = [name for file in files.values() for name in file.dependency]
    while pending:
        name = pending.pop()
        if name in files:
            continue
        file = _built_in().get(name)
        if file is None:
            missing = missing or name
            continue
        files[name] = file
        pending += file.dependency
    return missing
