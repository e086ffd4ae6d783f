"""The files that registries have built in, so that no one registers them as references.

``built_in.desc`` holds the descriptors of confluent/meta.proto, confluent/type/decimal.proto and google/type/*.proto,
which Confluent and Google publish under the Apache License 2.0; `tools.built_in_protos` writes it. What comes with
protobuf itself is taken from there. What else a process has imported is not looked at: other processes may not have it.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.resources import files as resource_files
from typing import Final

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

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
