"""Reads the frames of messages on Spark's workers, which get the first bytes of each message and not the JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.types import DataType, IntegerType, StringType, StructField, StructType

from connectors.core.functions.bad_rows import Decoded, binary_column, error_texts, text_column, with_errors
from connectors.core.functions.columns import validity_of
from connectors.core.processes.pool import Cache
from connectors.json.errors import MALFORMED, JsonAnalysisError, JsonDataError
from connectors.json.registry import JsonRegistry, RegisteredSchema, registry_of
from connectors.json.schema.columns import JsonColumn, difference
from connectors.registry.frames import GUID_END, Frames, WriterSchemas, find_frames
from connectors.registry.options import RegistryOptions
from connectors.registry.rules import Migrations

PREFIX_BYTES: Final = GUID_END + 1
"""How many bytes of a message a call needs: the longest frame, and one that shows whether a message follows."""
_READERS: Final = 128  # calls whose readers of frames a worker retains
_VERDICTS: Final = 256  # writers' schemas that a reader has compared, as many as a registry's client retains
_readers: Final = Cache(_READERS)


@dataclass(frozen=True, slots=True)
class FrameCall:
    """Finds where the JSON begins in each message, by the first bytes of it; NULL where it cannot be read.

    Attributes:
        column: what is read; a writer's schema by which it would be taken for something else makes bad rows.
        registry: where the schemas of frames are; without it messages have no frame.
        is_key: whether headers are searched for the id of the key's schema.
        reader: which schema of the registry `column` is from, if it is from one.
    """

    function: ClassVar = "from_json_registry"
    encodes: ClassVar = False

    column: JsonColumn
    registry: RegistryOptions | None
    is_key: bool = False
    permissive: bool = True
    error_column: bool = False
    details: bool = False
    reader: Migrations | None = None

    def __call__(self, prefixes: pa.Array, headers: pa.Array | None = None, frames: Frames | None = None) -> pa.Array:
        """Return the places, or with `error_column` STRUCT<value, error>, or with `details` that and the schema."""
        column = binary_column(prefixes, self.function)
        registry = self.registry
        if registry is None:
            nothing = np.full(len(column), -1, np.int64)
            frames = Frames(column, nothing, nothing)
            decoded = Decoded(pa.array(np.zeros(len(column), np.int32), mask=~validity_of(column)), {})
        else:
            frames = find_frames(column, headers, is_key=self.is_key) if frames is None else frames
            decoded = _readers.get(self, lambda: FrameReader(self, registry_of(registry))).decode(column, frames)
        if decoded.errors and not self.permissive:
            row = min(decoded.errors)
            raise JsonDataError(
                MALFORMED,
                "Malformed records are detected in record parsing. Current parse mode: FAILFAST",
                f"row {row} of the batch: {decoded.errors[row]}",
            )
        if not self.error_column:
            return decoded.values
        texts = text_column(error_texts(decoded, column, lambda _: ""), len(column))
        if not self.details:
            return with_errors(decoded, column, texts)
        schemas = pa.array([str(schema) for schema in frames.schemas], pa.string())
        named = schemas.take(pa.array(frames.which, mask=frames.which < 0))
        return with_errors(decoded, column, texts, schema=named)

    @property
    def kind(self) -> DataType:
        """The type of what it returns."""
        if not self.error_column:
            return IntegerType()
        names = ("error", "schema") if self.details else ("error",)
        return StructType([StructField("value", IntegerType()), *(StructField(name, StringType()) for name in names)])


class FrameReader:
    """Reads frames, and asks the registry once for each writer's schema."""

    def __init__(self, call: FrameCall, registry: JsonRegistry) -> None:
        self._call, self._registry = call, registry
        self._fetched = WriterSchemas[RegisteredSchema](permissive=call.permissive, reader=call.reader)
        self._verdicts = Cache(_VERDICTS)

    def decode(self, column: pa.BinaryArray, frames: Frames) -> Decoded:
        """Return the places; raises ConnectorError for what is wrong with the registry and not with a row."""
        errors = dict(frames.errors)
        by_schema = dict(zip(frames.schemas, frames.by_schema(), strict=True))
        counts = {schema: len(rows) for schema, rows in by_schema.items()}
        registered = self._fetched.get(self._registry, by_schema, counts) if by_schema else {}
        for schema, rows in by_schema.items():
            verdict = self._verdict(schema, registered[schema])
            if verdict:
                errors |= dict.fromkeys(rows.tolist(), verdict)
        offsets = np.frombuffer(column.buffers()[1] or b"", np.int32)[column.offset :][: len(column) + 1]
        begin = frames.begin - offsets[:-1]
        empty = validity_of(column) & (begin == np.diff(offsets))
        errors |= {row: "has no message after its frame" for row in np.flatnonzero(empty).tolist() if row not in errors}
        missing = ~validity_of(column)
        missing[list(errors)] = True
        return Decoded(pa.array(begin.astype(np.int32), mask=missing), errors)

    def _verdict(self, schema: int | str, registered: RegisteredSchema | str) -> str:
        """Return why the messages of a writer cannot be read; empty if they can."""
        if isinstance(registered, str):
            return registered

        def compare() -> str:
            try:
                reason = difference(self._call.column, registered.documents)
            except JsonAnalysisError as error:
                reason = error.what
            return reason and f"cannot be read: {reason} (schema {schema})"

        return self._verdicts.get(schema, compare)
