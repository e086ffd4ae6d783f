"""`from_mixed` and `to_mixed` as column functions: several record types in one topic, of any format.

Each type is decoded and encoded by the code of its own function, such as `from_avro`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from connectors.avro.functions import headers_of
from connectors.core.errors import OptionError, declared_action
from connectors.core.functions.calls import active_session, function_of
from connectors.core.functions.options import BadRowOptions, Mode, drop_malformed_error, mode_kind, parse_call_options
from connectors.core.functions.pandas_columns import named
from connectors.core.options.declaration import option, parse_options
from connectors.json.conversions import with_once
from connectors.mixed.errors import SEVERAL, MixedAnalysisError
from connectors.mixed.members import Reading, Spec, Writing, illegal, parse_members, reading_of, writing_of
from connectors.mixed.selection import By, Selection
from connectors.mixed.worker import TYPE, MixedCall, MixedEncodeCall
from connectors.registry.glue.options import AnyRegistryOptions, parse_schema_registry
from connectors.registry.lookups import context_of
from connectors.registry.subjects import SubjectNames, SubjectOptions

if TYPE_CHECKING:
    from connectors.core.processes.spark import ColumnOrName

_STRATEGY: Final = "subject.name.strategy"
_TOPIC: Final = "topic"


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedOptions(BadRowOptions):
    """The options of `from_mixed` about bad rows, which are those of all types."""

    mode: Mode = option(
        "mode",
        mode_kind(partial(drop_malformed_error, MixedAnalysisError, "from_mixed")),
        "FAILFAST ends the query at a message that cannot be read, or is of no member's type; PERMISSIVE gives NULL.",
        default="FAILFAST",
    )


def from_mixed(
    data: ColumnOrName,
    members: Mapping[str, Mapping[str, Any]],
    by: str | Column = "recordName",
    options: Mapping[str, str] | None = None,
    *,
    schemaRegistry: Mapping[str, str] | None = None,  # noqa: N803 - in the form of the others
    headers: ColumnOrName | None = None,
    isKey: bool = False,  # noqa: N803 - as Confluent's clients call it
) -> Column:
    """Convert a BINARY column of messages of several types into STRUCT<type STRING, a column for each type>.

    ``type`` is the name of the member that the message is of. The column of that name has its value, and all others
    are NULL. NULL stays NULL.

    Args:
        data: the column, or its name.
        members: for each type a name and a dictionary: its ``format``, which is avro, protobuf or json; the arguments
            of `from_avro`, `from_protobuf` or `from_json_registry` that say what its columns are, such as ``subject``,
            ``jsonFormatSchema``, ``messageName`` or ``fields``; ``options`` of its own, such as
            ``recursiveFieldMaxDepth``; and what selects it: ``recordName`` or ``schemaIds``, one or a list. No member
            can be called ``type``.
        by: what says which type a message is of. ``recordName``: the record of the schema that the frame names, which
            is the full name in Avro, that of the message in protobuf and the title in JSON Schema; a member without
            ``recordName`` has that of its columns' schema. ``schemaId``: the id in the frame. Or a column of strings,
            such as ``F.col("attributes")["type"]``: its value is the name of a member, or its ``recordName``.
        options: ``mode`` and ``on.error`` as in `from_avro`, for all types. With ``subject.name.strategy`` and
            ``topic``, as in `to_avro`, a member that has only a ``recordName`` gets its columns from the subject of
            that record. The strategy is TopicRecordNameStrategy with a topic, and else RecordNameStrategy.
        schemaRegistry: the registry of all members, as in `from_avro`. If a column selects, a member may have one of
            its own, or none.
        headers: the column of Kafka's headers, for writers that put the schema's id or GUID there.
        isKey: whether `data` is the key of the records.

    Raises:
        MixedAnalysisError: a member, or what selects it, is not valid.
        OptionError: an option is unknown or not valid.
        ConnectorError: the registry does not respond, refuses access, or has no such subject.
    """
    selector = _selector(by)
    call, readings = decode_call(
        members, selector, options, schema_registry=schemaRegistry, headers=headers is not None, is_key=isKey
    )
    fields = [StructField(TYPE, StringType()), *(StructField(one.member.name, one.kind) for one in readings)]
    kind = call.options.result_type(StructType(fields))
    typed = selector is By.COLUMN
    convert = function_of(call, kind, active_session(), headers=call.headers, types=typed)
    messages = F.col(data) if isinstance(data, str) else data
    others = [one for one in (headers, by if typed else None) if one is not None]
    return named(_finished(messages, convert(messages, *others), readings, call.options), "from_mixed", data)


def decode_call(
    members: Mapping[str, Mapping[str, Any]],
    by: By,
    options: Mapping[str, str] | None = None,
    *,
    schema_registry: Mapping[str, str] | None = None,
    headers: bool = False,
    is_key: bool = False,
) -> tuple[MixedCall, list[Reading]]:
    """Return the call for the arguments of `from_mixed`, and how each member is read."""
    subjects, _, rest = _subjects(options, "from_mixed")
    parsed = parse_call_options(MixedOptions, rest, "from_mixed")
    specs = parse_members(members, schema_registry, subjects, "from_mixed", is_key=is_key)
    registry = _registry_of(by, members, schema_registry, specs)
    readings = [reading_of(one, by, parsed, headers=headers, is_key=is_key) for one in specs]
    _check_keys(readings)
    members_read = tuple(one.member for one in readings)
    return MixedCall(Selection(by, members_read, registry, is_key, parsed.permissive), parsed, headers), readings


def to_mixed(
    data: ColumnOrName,
    members: Mapping[str, Mapping[str, Any]],
    options: Mapping[str, str] | None = None,
    *,
    schemaRegistry: Mapping[str, str] | None = None,  # noqa: N803 - in the form of the others
    isKey: bool = False,  # noqa: N803 - as Confluent's clients call it
) -> Column:
    """Convert a STRUCT column with a column for each type into a BINARY column of messages; NULL stays NULL.

    Each row is written as the type whose column is not NULL; a row in which all are NULL gives NULL, and one with two
    values ends the query with MIXED_TYPES_SEVERAL. The struct may be that of `from_mixed`; its other fields, such as
    ``type``, are not looked at. With the option ``schema.id.serializer=header`` the result is that of `to_avro`.

    Args:
        data: the column, or its name.
        members: as in `from_mixed`, with the arguments of `to_avro`, `to_protobuf` and `to_json_registry`.
        options: ``subject.name.strategy`` and ``topic`` as in `from_mixed`. If all types are of Avro, also the other
            options of `to_avro`; else these are among the ``options`` of a member.
        schemaRegistry: the registry of all members. A member may have one of its own.
        isKey: whether messages are the keys of records.

    Raises:
        MixedAnalysisError: a member is not valid.
        OptionError: an option is unknown or not valid.
        ConnectorError: the registry does not respond, refuses access, or has no such subject or schema.
    """
    writings, call = encode_call(members, options, schema_registry=schemaRegistry, is_key=isKey)
    struct = F.col(data) if isinstance(data, str) else data
    columns = {writing.name: struct.getField(writing.name) for writing in writings}
    messages = [writing.spark(columns[writing.name]) for writing in writings if writing.spark is not None]
    if call.calls:
        own = [columns[writing.name].alias(writing.name) for writing in writings if writing.spark is None]
        messages.append(function_of(call, BinaryType(), active_session())(F.struct(*own)))
    count = sum((column.isNotNull().cast("int") for column in columns.values()), F.lit(0))
    several = f"[{SEVERAL}] A row has values of several types (to_mixed). {declared_action(SEVERAL)}"
    encoded = F.when(count > 1, F.raise_error(F.lit(several))).otherwise(F.coalesce(*messages))
    headers = [headers_of(columns[writing.name], writing.header) for writing in writings if writing.header is not None]
    if headers:
        encoded = F.struct(encoded.alias("value"), F.coalesce(*headers).alias("headers"))
    return named(encoded, "to_mixed", data)


def encode_call(
    members: Mapping[str, Mapping[str, Any]],
    options: Mapping[str, str] | None = None,
    *,
    schema_registry: Mapping[str, str] | None = None,
    is_key: bool = False,
) -> tuple[list[Writing], MixedEncodeCall]:
    """Return how each member is written for the arguments of `to_mixed`, and the call for those that Python encodes."""
    subjects, naming, rest = _subjects(options, "to_mixed")
    specs = parse_members(members, schema_registry, subjects, "to_mixed", is_key=is_key)
    other = next((spec for spec in specs if spec.format != "avro"), None)
    if rest and other is not None:
        what = f"The option {next(iter(rest))} is one of to_avro, and a member has the format {other.format}"
        raise illegal(what, f"to_mixed, {other.name}", "Give it among the options of a member.")
    writings = [writing_of(spec, rest, naming, is_key=is_key) for spec in specs]
    if len({writing.header is None for writing in writings}) > 1:
        what = "Only some types have their schema in a header"
        raise illegal(what, "to_mixed", "Give schema.id.serializer once, among the options of to_mixed.")
    return writings, MixedEncodeCall(tuple(writing.call for writing in writings if writing.call is not None))


def _finished(messages: Column, read: Column, readings: Sequence[Reading], options: BadRowOptions) -> Column:
    """Return the column with what Spark decodes itself, which is JSON."""

    def value_of(column: Column) -> Column:
        return column.getField("value") if options.error_column else column

    parts = []
    for reading in readings:
        if reading.finish is not None:
            frame = value_of(read).getField(reading.member.name)  # NULL for messages of other types
            parts.append(F.when(frame.isNotNull(), reading.finish(messages, frame)).alias(reading.member.name))
    if not parts:
        return read

    def finished(row: Column) -> Column:
        read, parts = row.getField("read"), row.getField("parts")
        good, errors, columns = value_of(read).isNotNull(), [], [value_of(read).getField(TYPE).alias(TYPE)]
        for member, _, finish in readings:
            column = (value_of(read) if finish is None else parts).getField(member.name)
            if finish is not None and options.permissive:
                errors.append(column.getField("error"))
                good &= errors[-1].isNull()
                column = column.getField("value")
            columns.append(column.alias(member.name))
        value = F.when(good, F.struct(*columns))
        if not options.error_column:
            return value
        error = F.coalesce(read.getField("error"), *errors)
        return F.when(read.isNotNull(), F.struct(value.alias("value"), error.alias("error")))

    # Each is evaluated once, although both its value and its error are used.
    return with_once(F.struct(read.alias("read"), F.struct(*parts).alias("parts")), finished)


def _selector(by: str | Column) -> By:
    if isinstance(by, Column):
        return By.COLUMN
    if by not in (By.RECORD_NAME, By.SCHEMA_ID):
        action = 'Give recordName, schemaId, or a column, such as F.col("attributes")["type"].'
        raise illegal(f"Types cannot be told by {by!r:.100}", "from_mixed, by", action)
    return By(by)


def _subjects(raw: Mapping[str, str] | None, function: str) -> tuple[SubjectOptions, dict[str, str], dict[str, str]]:
    """Return what names subjects, also as raw options, and all other options."""
    others = dict(raw or {})
    own = {key: others.pop(key) for key in list(others) if key.lower() in (_STRATEGY, _TOPIC)}
    names = {key.lower() for key in own}
    if _STRATEGY not in names:
        own[_STRATEGY] = (SubjectNames.TOPIC_RECORD if _TOPIC in names else SubjectNames.RECORD).value
    return parse_options(SubjectOptions, own, os.environ, function), own, others


def _registry_of(
    selector: By,
    members: Mapping[str, Mapping[str, Any]],
    registry: Mapping[str, str] | None,
    specs: Sequence[Spec],
) -> AnyRegistryOptions | None:
    """Return the registry whose frames say what a message is, in the context of the members' subjects."""
    if selector is not By.COLUMN:
        own = [name for name, member in members.items() if "schemaRegistry" in member]
        if own:
            what = "A type has a registry of its own, so that an id in a frame does not say which registry has it"
            raise illegal(what, f"from_mixed, {own[0]}", "Give schemaRegistry once, or select by a column.")
        if registry is None:
            what = f"Types are told by {selector}, and there is no registry"
            raise OptionError("OPTION_MISSING", what, "from_mixed", "Give schemaRegistry, or a column as by.")
    if registry is None:
        return None
    options = parse_schema_registry(registry)
    if not options.uses_confluent:
        return options
    contexts = {context_of((one.registry or {}).get("subject")) for one in specs} - {None}
    if len(contexts) == 1:
        return parse_schema_registry({**registry, "subject": str(contexts.pop())})
    if contexts and selector is not By.COLUMN:
        raise illegal("The subjects are in several contexts", "from_mixed", "Select by a column.")
    return options


def _check_keys(readings: Sequence[Reading]) -> None:
    seen: dict[str, str] = {}
    for reading in readings:
        for key in reading.member.keys:
            other = seen.setdefault(key, reading.member.name)
            if other != reading.member.name:
                what = f"Both {other} and {reading.member.name} are selected by {key!r:.100}"
                raise illegal(what, "from_mixed", "Give each name or id to one of them.")
