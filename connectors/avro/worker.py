"""Calls that travel to Spark's workers as texts and options, and the codecs built from them, once a worker."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

import pyarrow as pa

from connectors.avro.decoder.batches import AvroDecoder, growth_of
from connectors.avro.encoder.columns import ColumnEncoder
from connectors.avro.errors import AvroDataError
from connectors.avro.options import AvroOptions, Rebase
from connectors.avro.registered import FramedDecoder, registry_of
from connectors.avro.schema.parser import AvroType, parse_schema
from connectors.avro.schema.plan import compile_plan
from connectors.avro.schema.types import arrow_type, avro_type, spark_type, too_deep
from connectors.core.functions.bad_rows import Decoded, binary_column, present
from connectors.core.functions.bounded import BoundedDecoder
from connectors.core.functions.columns import selected
from connectors.core.processes.pool import Cache
from connectors.registry.frames import ID_END, Frames
from connectors.registry.glue.options import AnyRegistryOptions
from connectors.registry.kinds import Frame, frame_hint, kind_of, origin_of
from connectors.registry.rules import Migrations

_CODECS: Final = 128  # calls whose decoders or encoders a worker retains
_MALFORMED: Final = "MALFORMED_AVRO_MESSAGE"
_codecs: Final = Cache(_CODECS)


@dataclass(frozen=True, slots=True)
class DecodeCall:
    """One `from_avro`: of all columns unless `fields` names some.

    Attributes:
        schema: the schema that messages were written with; with a registry, whose frames say that, the reader's.
        references: schemas that it refers to, each after those that it needs itself.
        is_key: whether headers are searched for the id of the key's schema.
        reader: which schema of a registry the reader's is, if it is one.
    """

    function: ClassVar = "from_avro"
    encodes: ClassVar = False

    schema: str
    options: AvroOptions
    fields: tuple[str, ...] | None = None
    references: tuple[str, ...] = ()
    registry: AnyRegistryOptions | None = None
    is_key: bool = False
    reader: Migrations | None = None

    def __call__(self, messages: pa.Array, headers: pa.Array | None = None, frames: Frames | None = None) -> pa.Array:
        """Decode a column, given with Kafka's headers, and with the frames in it if these are known."""
        column = binary_column(messages, self.function)
        decoder = self.decoder
        if isinstance(decoder, FramedDecoder):
            decoded = decoder.decode(decoder.find(column, headers) if frames is None else frames)
        else:
            decoded = decoder.decode(column)
        if self.fields is not None:
            decoded = Decoded(selected(decoded.values, self.fields), decoded.errors)
        origin = origin_of(_MALFORMED, self.registry, is_key=self.is_key)
        return present(decoded, column, self.options, "Avro", self._hint, _malformed, origin=origin, headers=headers)

    @property
    def decoder(self) -> BoundedDecoder[AvroDecoder] | FramedDecoder:
        return _codecs.get(self, self._make)

    def _make(self) -> BoundedDecoder[AvroDecoder] | FramedDecoder:
        options = self.options
        schema = parse_schema(self.schema, self.function, self.references)
        own = self.registry is None and options.avro_schema is not None
        reader = parse_schema(options.avro_schema or "", "avroSchema") if own else schema
        kind = spark_type(reader, options)
        values, strict = arrow_type(kind), options.datetime_rebase_mode is Rebase.EXCEPTION

        def decoder_of(writer: AvroType) -> BoundedDecoder[AvroDecoder]:
            try:
                plan = compile_plan(writer, reader, kind, options)
                return BoundedDecoder(AvroDecoder(plan, values, strict=strict), values, growth_of(plan))
            except RecursionError:
                raise too_deep() from None

        if self.registry is not None:
            registry, find = registry_of(self.registry), partial(kind_of(self.registry).find, is_key=self.is_key)
            permissive = options.permissive
            return FramedDecoder(decoder_of, values, registry, find, permissive=permissive, reader=self.reader)
        return decoder_of(schema)

    def _hint(self, data: bytes) -> str:
        return frame_hint(data, {b"\0": ID_END + 1}) if self.registry is None else ""


def _malformed(where: str, action: str) -> AvroDataError:
    what = "Malformed records are detected in record parsing. Current parse mode: FAILFAST"
    return AvroDataError(_MALFORMED, what, where, action)


@dataclass(frozen=True, slots=True)
class EncodeCall:
    """One `to_avro`, of a column that is the only field of a struct: that field says whether it can be NULL.

    Attributes:
        schema: what the messages are written by; None for the schema that Spark makes of the column's type.
        references: schemas that it refers to, each after those that it needs itself.
        frame: the frame of each message, which says the id of its schema; None for others.
        header: the name and value of the header that says the schema, where messages have one instead of a frame.
        rebase: what happens to dates of before the calendars agree.
    """

    function: ClassVar = "to_avro"
    encodes: ClassVar = True

    schema: str | None = None
    rebase: Rebase = Rebase.CORRECTED
    case_sensitive: bool = False
    references: tuple[str, ...] = ()
    frame: Frame | None = None
    header: tuple[str, bytes] | None = None

    def __call__(self, structs: pa.Array) -> pa.BinaryArray:
        if isinstance(structs, pa.ChunkedArray):
            structs = structs.combine_chunks()
        field = structs.type.field(0)
        encoder = _codecs.get((self, field.type, field.nullable), lambda: self._make(field))
        messages = encoder.encode(structs.field(0))
        return messages if self.frame is None else self.frame.around(messages)

    def _make(self, field: pa.Field) -> ColumnEncoder:
        if self.schema is None:
            schema = avro_type(field.type, nullable=field.nullable)
        else:
            schema = parse_schema(self.schema, self.function, self.references)
        strict = self.rebase is Rebase.EXCEPTION
        return ColumnEncoder(field.type, schema, strict=strict, case_sensitive=self.case_sensitive)
