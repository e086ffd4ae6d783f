"""The options of `from_protobuf` and `to_protobuf`, declared once.

Names and defaults are Spark's (``utils/ProtobufOptions.scala`` in its connector/protobuf); ``on.error`` and the
options of the wire format are this pack's own. Parsed on the driver; workers get the frozen dataclasses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from connectors.core.functions.options import BadRowOptions, Mode, mode_kind, parse_call_options
from connectors.core.options.declaration import option
from connectors.core.options.kinds import BOOLEAN, INTEGER, choice
from connectors.protobuf.errors import analysis_error

MAX_DEPTH: Final = 10  # the deepest recursion that Spark follows


class WireFormat(StrEnum):
    """How messages are framed."""

    RAW = "raw"
    CONFLUENT = "confluent"


def _mode_unsupported() -> Exception:
    return analysis_error("PARSE_MODE_UNSUPPORTED", funcName="from_protobuf", mode="DROPMALFORMED")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtobufOptions(BadRowOptions):
    """The options of both functions, made by `parse_protobuf_options`."""

    mode: Mode = option(
        "mode",
        mode_kind(_mode_unsupported),
        "FAILFAST ends the query at a row that cannot be read; PERMISSIVE gives NULL for it.",
        default="FAILFAST",
    )
    recursive_fields_max_depth: int = option(
        "recursive.fields.max.depth",
        INTEGER,
        "How deep recursive messages are followed: 1 drops the recursive field, 2 keeps one level of it, and so on up "
        "to 10. With 0 or less, recursion is an error. A message of more than 50,000 columns is one at any depth.",
        default="-1",
    )
    convert_any_fields_to_json: bool = option(
        "convert.any.fields.to.json",
        BOOLEAN,
        "A google.protobuf.Any becomes a STRING of JSON. The types in it must be in the descriptor set.",
        default="false",
    )
    emit_default_values: bool = option(
        "emit.default.values",
        BOOLEAN,
        "A scalar without presence that is absent, or zero, is its zero value instead of NULL. Messages, members of "
        "a oneof, optional fields and those of proto2 are left as they are.",
        default="false",
    )
    enums_as_ints: bool = option(
        "enums.as.ints", BOOLEAN, "Enums are INT instead of STRING, also in the JSON of an Any.", default="false"
    )
    upcast_unsigned_ints: bool = option(
        "upcast.unsigned.ints",
        BOOLEAN,
        "uint32 becomes BIGINT and uint64 DECIMAL(20,0), so that large values are not negative. fixed32 and fixed64 "
        "are not upcast, as in Spark.",
        default="false",
    )
    unwrap_primitive_wrapper_types: bool = option(
        "unwrap.primitive.wrapper.types",
        BOOLEAN,
        "A wrapper such as google.protobuf.Int32Value becomes the value in it. A wrapped zero is NULL, unless "
        "emit.default.values is true; in a list, in a map and in a required field, which hold no NULL, it is zero.",
        default="false",
    )
    retain_empty_message_types: bool = option(
        "retain.empty.message.types",
        BOOLEAN,
        "A message without fields is kept, with the column __dummy_field_in_empty_struct STRING; else it is dropped.",
        default="false",
    )
    wire_format: WireFormat = option(
        "wire.format",
        choice(WireFormat),
        "confluent: messages stand in Confluent's frames (magic byte, schema id, message indexes). Set by itself "
        "where schemaRegistry is given. Not in Spark.",
        default="raw",
    )
    extensions: bool = False  # derived: the SQL configuration spark.sql.function.protobufExtensions.enabled
    case_sensitive: bool = False  # derived: spark.sql.caseSensitive; to_protobuf matches names by it

    def key(self, name: str) -> str:
        return name if self.case_sensitive else name.lower()


def parse_protobuf_options(raw: Mapping[str, str] | None, function: str) -> ProtobufOptions:
    """Parse the options of a call of this function; names in any case, as Spark takes them."""
    return parse_call_options(ProtobufOptions, raw, function)
