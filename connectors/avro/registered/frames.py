"""Messages in frames, whose schemas are in a registry.

    00  schema id (4 bytes, big endian)  message
    01  schema GUID (16 bytes)           message

Those of Glue are in `connectors.registry.glue.frames`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import pyarrow as pa

from connectors.avro.registered.registry import AvroRegistry, RegisteredSchema
from connectors.avro.schema.parser import AvroType
from connectors.registry.frames import Frames, WriterSchemas
from connectors.registry.rules import Migrations


class RegisteredFrames:
    """Finds the schemas of messages by what their frames say.

    Args:
        registry: gives the writers' schemas.
        find: takes the frames of a batch apart.
        permissive: whether messages whose schema the registry cannot give are bad rows, while it gives others.
        reader: the schema of the columns, where that is one of the registry.
        clock: the time in seconds.
    """

    def __init__(
        self,
        registry: AvroRegistry,
        find: Callable[[pa.BinaryArray, pa.Array | None], Frames],
        *,
        permissive: bool = False,
        reader: Migrations | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry, self.find = registry, find
        self._fetched = WriterSchemas[RegisteredSchema](permissive=permissive, reader=reader, clock=clock)

    def types(self, counts: Mapping[int | str, int]) -> dict[int | str, AvroType | str]:
        """Return each schema, or why it cannot be had."""
        fetched = self._fetched.get(self._registry, counts, counts)
        return {schema: found if isinstance(found, str) else found.type for schema, found in fetched.items()}
