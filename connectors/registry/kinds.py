"""The kinds of schema registries: for each how its client is made, and how its frames are read and written.

A new registry is a row here, with options, a client and frames of its own; what formats ask of it is `SchemaSource`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pyarrow as pa

from connectors.core.functions.bad_rows import Origin
from connectors.core.processes.pool import Cache
from connectors.registry.azure import AzureRegistry, azure_prefix, content_type, find_azure_frames
from connectors.registry.batches import SchemaSource
from connectors.registry.frames import Frames, PrefixFrame, confluent_frame, find_frames, guid_header
from connectors.registry.glue.frames import GlueFrame, find_glue_frames, looks_like_glue
from connectors.registry.glue.options import AnyRegistryOptions, Compression
from connectors.registry.glue.registry import GlueRegistry
from connectors.registry.schemas import Registry, SchemaForm

Frame = PrefixFrame | GlueFrame
S = TypeVar("S")
_REGISTRIES: Final = 24
_registries: Final = Cache(_REGISTRIES)


@dataclass(frozen=True, slots=True)
class RegistryKind:
    """What differs between registries.

    Attributes:
        source: builds a client for schemas of a form.
        find: takes the frames of a batch apart, with the column of Kafka's headers, and whether these are of keys.
        frame: builds the frame of messages by options and the id of a schema; in it, bytes stand before each message.
        header: returns the header that has the schema instead, by its GUID.
    """

    source: Callable[[Any, SchemaForm[Any]], SchemaSource[Any]]
    find: Callable[..., Frames]
    frame: Callable[[Any, int | str, bytes], Frame]
    header: Callable[..., tuple[str, bytes]] = guid_header


_KINDS: Final = {
    "confluent": RegistryKind(
        Registry,
        find_frames,
        lambda _, schema_id, begin: PrefixFrame(confluent_frame(int(schema_id)).prefix + begin),
    ),
    "glue": RegistryKind(
        GlueRegistry,
        lambda messages, *_, **__: find_glue_frames(messages),
        lambda options, schema_id, begin: GlueFrame(str(schema_id), options.compression is Compression.ZLIB, begin),
    ),
    "azure": RegistryKind(
        AzureRegistry,
        lambda messages, headers=None, **_: find_azure_frames(messages, headers),
        lambda _, schema_id, begin: PrefixFrame(azure_prefix(schema_id) + begin),
        content_type,
    ),
}


def kind_of(options: AnyRegistryOptions) -> RegistryKind:
    """Return the kind of a registry."""
    return _KINDS[options.type]


def frame_of(schema_id: int | str, options: AnyRegistryOptions, begin: bytes = b"") -> Frame:
    """Return the frame of messages by a schema of a registry; in it, ``begin`` stands before each message."""
    return kind_of(options).frame(options, schema_id, begin)


def retained_registry(options: AnyRegistryOptions, form: Callable[[], SchemaForm[S]]) -> SchemaSource[S]:
    """Return the client of a registry: one for all subjects of a context, by its address and authentication."""
    common = options.for_client()
    registry: SchemaSource[S] = _registries.get((common, form), lambda: kind_of(common).source(common, form()))
    return registry


def origin_of(code: str, options: AnyRegistryOptions | None, *, is_key: bool) -> Origin:
    """Return where bad rows of a call come from; `code` is that of the format's error."""
    if options is None:
        return Origin(code)

    def schemas_of(messages: pa.BinaryArray, headers: pa.Array | None) -> list[str | None]:
        frames = kind_of(options).find(messages, headers, is_key=is_key)
        return [None if place < 0 else str(frames.schemas[place]) for place in frames.which.tolist()]

    return Origin(code, options.named_subject, schemas_of)


def frame_hint(data: bytes, least: Mapping[bytes, int], more: str = "") -> str:
    """Return what to do about a bad message if it may be in a frame, else nothing.

    `least` has the fewest bytes of a Confluent frame by its first one; `more` ends the advice for these.
    """
    if looks_like_glue(data):
        return " It may be in a frame of Glue (03 and the version id of a schema): then give schemaRegistry."
    if len(data) < least.get(data[:1], len(data) + 1):
        return ""
    return f" It may be in a Confluent frame (a magic byte and the id of a schema): then give schemaRegistry{more}."
