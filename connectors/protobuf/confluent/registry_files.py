"""The files of a registered schema: descriptors as they are, texts compiled by protoc, and what protobuf brings."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from connectors.core.errors import ConnectorError
from connectors.protobuf.confluent.registry_client import unusable

__all__ = ["add_well_known", "as_descriptor", "compile_texts"]


def as_descriptor(schema: str) -> FileDescriptorProto | None:
    """Return the descriptor in an answer; None for the text of a .proto file."""
    try:
        data = base64.b64decode(schema, validate=True)
        return FileDescriptorProto.FromString(data)
    except (binascii.Error, ValueError, DecodeError):
        return None


def add_well_known(files: FileDescriptorSet) -> None:
    """Add what comes with protobuf itself, which no one registers as a reference."""
    from connectors.protobuf.schema.descriptors import well_known_class  # noqa: PLC0415 - loads these files

    well_known_class("com.google.protobuf.Any")
    present = {file.name for file in files.file}
    todo = [name for file in files.file for name in file.dependency]
    while todo:
        name = todo.pop()
        if name in present or not name.startswith("google/"):
            continue
        present.add(name)
        try:
            found = descriptor_pool.Default().FindFileByName(name)
        except KeyError:
            continue  # then loading the set names what is missing
        found.CopyToProto(files.file.add())
        todo += files.file[-1].dependency


def compile_texts(main: str, texts: Mapping[str, str], files: Mapping[str, FileDescriptorProto], what: str) -> bytes:
    """Return the descriptor set of schemas in text, by protoc."""
    if files:
        raise unusable(what, "the registry gives some of its files as text and some as descriptors")
    try:
        import grpc_tools  # type: ignore[import-untyped]  # noqa: PLC0415 - optional
        from grpc_tools import protoc  # noqa: PLC0415
    except ImportError:
        raise ConnectorError(
            "PACKAGES_MISSING",
            f"The registry gives the {what} as text only, and grpcio-tools, which compiles it, is not installed",
            "schemaRegistry",
            "pip install grpcio-tools, here and on every executor.",
        ) from None
    from pathlib import Path  # noqa: PLC0415 - only here
    from tempfile import TemporaryDirectory  # noqa: PLC0415 - only here

    with TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        for name, text in texts.items():
            try:
                path = (root / name).resolve()
                if root not in path.parents:
                    raise ValueError("it leads out of its folder")  # noqa: TRY301 - one error for all bad names
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            except (OSError, ValueError):
                raise unusable(what, f"it has or imports {name!r:.100}, which is no name of a file") from None
        known = Path(grpc_tools.__file__).parent / "_proto"
        target = root / "set.desc"
        command = ["protoc", f"-I{root}", f"-I{known}", "--include_imports", f"--descriptor_set_out={target}"]
        if protoc.main([*command, str(root / main)]):
            raise unusable(what, "protoc does not accept its text")
        return target.read_bytes()
