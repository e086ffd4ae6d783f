"""Calls that travel to Spark's workers as bytes, names and options, and the codecs built from them, once a worker."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from connectors.core.formats import install_advice, ptars_obstacle, warn_not_fast
from connectors.core.functions.bad_rows import Decoded, binary_column, present
from connectors.core.functions.bounded import BoundedDecoder, growth_of
from connectors.core.functions.columns import selected, spread, validity_of
from connectors.core.processes.pool import Cache
from connectors.protobuf.confluent.frames import FramedDecoder
from connectors.protobuf.confluent.registry import registry_of
from connectors.protobuf.errors import ProtobufAnalysisError, ProtobufDataError, data_error
from connectors.protobuf.glue import framing_of
from connectors.protobuf.options import ProtobufOptions, WireFormat
from connectors.protobuf.ptars.decoder import PtarsDecoder, PtarsError, unsupported
from connectors.protobuf.ptars.encoder import PtarsEncoder
from connectors.protobuf.schema.descriptors import Schema
from connectors.protobuf.schema.plan import compile_plan, longest_text
from connectors.protobuf.upb.declarations import WireForm
from connectors.protobuf.upb.decoder import AdaptiveDecoder, Decoder, UpbDecoder
from connectors.protobuf.upb.encoder import AdaptiveEncoder, Encoder, UpbEncoder
from connectors.registry.glue.options import AnyRegistryOptions
from connectors.registry.kinds import Frame, frame_hint, origin_of
from connectors.registry.rules import Migrations

_log = logging.getLogger(__name__)

_CODECS: Final = 128  # calls whose codecs a worker retains: about 0.5 MB each for a message of 200 fields
_SCHEMAS: Final = 8  # as Spark's spark.sql.protobuf.descriptorCacheSize
# By the magic byte: the least bytes of a frame, which are that one, the id or the GUID, and one of message indexes.
_CONFLUENT_BYTES: Final = {b"\0": 6, b"\1": 18}


class Engine(StrEnum):
    """Which code decodes and encodes."""

    AUTO = "auto"
    PYTHON = "python"
    FAST = "fast"
    JVM = "jvm"


_MALFORMED: Final = "MALFORMED_PROTOBUF_MESSAGE"
_codecs: Final = Cache(_CODECS)
_framed: Final = Cache(_CODECS)
_schemas: Final = Cache(_SCHEMAS)


def schema_of(data: bytes) -> Schema:
    """Return the schema of a descriptor set, read once a process."""
    return _schemas.get(hashlib.sha256(data).digest(), lambda: Schema(data))


def use_ptars(engine: Engine, obstacle: str) -> bool:
    """Return whether an engine uses ptars; PROTOBUF_ENGINE, where ``fast`` was asked for and cannot be had.

    `obstacle` says why ptars cannot do it; empty if it can.
    """
    if engine is Engine.PYTHON:
        return False
    absent = ptars_obstacle()
    if engine is Engine.FAST and (obstacle or absent):
        what = f"ptars cannot be used: {obstacle or absent}"
        action = "" if obstacle else f"{install_advice('fast')} Or let engine be auto or python."
        raise ProtobufAnalysisError("PROTOBUF_ENGINE", what, "engine=fast", action)
    if absent and not obstacle:
        warn_not_fast("Large batches of from_protobuf and to_protobuf are decoded and encoded", absent)
    return not (obstacle or absent)


def _malformed(where: str, action: str) -> ProtobufDataError:
    return data_error(_MALFORMED, failFastMode="FAILFAST", where=where, action=action)


@dataclass(frozen=True, slots=True)
class DecodeCall:
    """One `from_protobuf`: of a message by its full name, and of all columns unless `fields` names some."""

    function: ClassVar = "from_protobuf"
    encodes: ClassVar = False

    descriptors: bytes
    message: str
    options: ProtobufOptions
    fields: tuple[str, ...] | None
    engine: Engine
    registry: AnyRegistryOptions | None = None
    is_key: bool = False  # whether headers are searched for the id of the key's schema
    reader: Migrations | None = None  # which schema of the registry the descriptors are from, if they are from one

    def __call__(self, messages: pa.Array, headers: pa.Array | None = None) -> pa.Array:
        """Decode a column; the headers are Kafka's, which may hold the id of the schema."""
        column = binary_column(messages, self.function)
        if self.options.wire_format is WireFormat.RAW:
            decoded = self.bounded.decode(column)
        elif column.null_count == 0:
            decoded = self.framed.decode(column, headers)
        else:  # the frames of a column without NULL are read at once, those of another one by one
            valid = validity_of(column)
            rows = np.flatnonzero(valid)
            taken = pa.array(rows)
            decoded = self.framed.decode(column.take(taken), None if headers is None else headers.take(taken))
            errors = {int(rows[row]): reason for row, reason in decoded.errors.items()}
            decoded = Decoded(spread(decoded.values, valid), errors)
        if self.fields is not None:
            decoded = Decoded(selected(decoded.values, self.fields), decoded.errors)
        return self.present(decoded, column, headers)

    def present(self, decoded: Decoded, messages: pa.BinaryArray, headers: pa.Array | None = None) -> pa.Array:
        """Return the column that the user gets; raises MALFORMED_PROTOBUF_MESSAGE for a bad row under FAILFAST."""
        origin = origin_of(_MALFORMED, self.registry, is_key=self.is_key)
        return present(
            decoded, messages, self.options, self.message, self._hint, _malformed, origin=origin, headers=headers
        )

    def _hint(self, data: bytes) -> str:
        raw = self.options.wire_format is WireFormat.RAW
        return frame_hint(data, _CONFLUENT_BYTES, " or the option wire.format=confluent") if raw else ""

    @property
    def bounded(self) -> BoundedDecoder[Decoder]:
        return _codecs.get(self, self._make)

    @property
    def decoder(self) -> Decoder:
        """The same without the bound of a batch's memory."""
        return self.bounded.decoder

    @property
    def framed(self) -> FramedDecoder:

        def make() -> FramedDecoder:
            reader = schema_of(self.descriptors).pool.FindMessageTypeByName(self.message)
            registry = None if self.registry is None else registry_of(self.registry)
            options = self.options
            return FramedDecoder(
                self._make(),
                reader,
                registry,
                framing_of(self.registry, is_key=self.is_key),
                extensions=options.extensions,
                permissive=options.permissive,
                reader_version=self.reader,
            )

        return _framed.get(self, make)

    def _make(self) -> BoundedDecoder[Decoder]:
        schema = schema_of(self.descriptors)
        root = schema.pool.FindMessageTypeByName(self.message)
        plan = compile_plan(root, schema, self.options)
        wire = WireForm(root, schema, extensions=self.options.extensions)
        upb = UpbDecoder(plan, wire, schema, self.options)

        def columns() -> Decoder:
            if use_ptars(self.engine, unsupported(plan)):
                try:
                    return PtarsDecoder(plan, upb, upcast=self.options.upcast_unsigned_ints)
                except PtarsError as error:
                    _log.warning("protobuf: ptars cannot decode %s (%s); protobuf decodes it", self.message, error)
            return upb

        adaptive = self.engine is Engine.AUTO and plan.fields
        decoder = AdaptiveDecoder(plan, upb, columns) if adaptive else columns()
        return BoundedDecoder(decoder, plan.arrow_type, growth_of(plan.arrow_type, longest_text(plan.fields)))


@dataclass(frozen=True, slots=True)
class EncodeCall:
    """One `to_protobuf`; `frame` is that of its messages, with the id of the schema and the message in it."""

    function: ClassVar = "to_protobuf"
    encodes: ClassVar = True

    descriptors: bytes
    message: str
    options: ProtobufOptions
    engine: Engine
    frame: Frame | None = None

    def __call__(self, structs: pa.Array) -> pa.Array:
        if isinstance(structs, pa.ChunkedArray):
            structs = structs.combine_chunks()
        messages = self.encoder.encode(structs)
        return messages if self.frame is None else self.frame.around(messages)

    @property
    def encoder(self) -> Encoder:
        return _codecs.get(self, self._make)

    def _make(self) -> Encoder:
        schema = schema_of(self.descriptors)
        root = schema.pool.FindMessageTypeByName(self.message)
        wire = WireForm(root, schema, extensions=self.options.extensions)
        upb = UpbEncoder(root, wire, schema, self.options)
        encoder: Encoder = PtarsEncoder(upb) if use_ptars(self.engine, "") else upb
        return AdaptiveEncoder(upb, encoder) if self.engine is Engine.AUTO else encoder
