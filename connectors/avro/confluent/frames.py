"""Messages in Confluent's frames, whose schemas are in a registry.

00  schema id (4 bytes, big endian)  message
01  schema GUID (16 bytes)           message
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import pyarrow as pa

from connectors.avro.confluent.registry import AvroRegistry, RegisteredSchema
from connectors.avro.schema.parser import AvroType
from connectors.registry.frames import Frames, WriterSchemas, find_frames

__all__ = ["ConfluentFrames"]


class ConfluentFrames:
    """Finds the schemas of messages by their ids and GUIDs; see `FramedDecoder`.

    Args:
        registry: gives the writers' schemas.
        is_key: whether the ids in headers are those of keys.
        permissive: whether messages whose schema the registry cannot give are bad rows, while it gives others.
        clock: the time in seconds.
    """

    def __init__(
        self,
        registry: AvroRegistry,
        *,
        is_key: bool = False,
        permissive: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry, self._is_key = registry, is_key
        self._fetched = WriterSchemas[RegisteredSchema](permissive=permissive, clock=clock)

    def find(self, messages: pa.BinaryArray, headers: pa.Array | None) -> Frames:
        """Take the frames of a batch apart."""
        return find_frames(messages, headers, is_key=self._is_key)

    def types(self, counts: Mapping[int | str, int]) -> dict[int | str, AvroType | str]:
        """Return each schema, or why it cannot be had."""
        fetched = self._fetched.get(self._registry, counts, counts)
        return {schema: found if isinstance(found, str) else found.type for schema, found in fetched.items()}
