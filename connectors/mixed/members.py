"""The arguments of each record type: checked, completed with what is given once for all, and made into calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it
from pyspark.sql.types import DataType

from connectors.avro import functions as avro
from connectors.avro.schema.parser import parse_schema
from connectors.core.formats import extra_imports
from connectors.core.functions.call import Call
from connectors.core.functions.options import BadRowOptions
from connectors.json import functions as json
from connectors.mixed.errors import MixedAnalysisError
from connectors.mixed.selection import By, Member, title_of
from connectors.mixed.worker import TYPE
from connectors.registry.glue.options import parse_schema_registry
from connectors.registry.options import parse_registry_options
from connectors.registry.subjects import SubjectOptions, subject_of

_OF_ALL: Final = {"schemaRegistry", "subject", "recordName", "schemaIds", "options", "format"}
_COLUMNS: Final = {
    "avro": {"jsonFormatSchema"},
    "protobuf": {"descFilePath", "binaryDescriptorSet", "messageClass"},
    "json": {"schema"},
}
"""The arguments of each format that say what the columns are, where that is not the subject's latest version."""
_MORE: Final = {"avro": {"fields"}, "protobuf": {"messageName", "fields", "engine"}, "json": {"fields"}}
_BAD_ROWS: Final = {"mode", "on.error"}


@dataclass(frozen=True, slots=True)
class Spec:
    """What a member was given: the `arguments` of its format alone, and its registry, with the subject.

    The first of the `names` of its record names its subject; `ids` are those of its schemas.
    """

    name: str
    format: str
    arguments: dict[str, Any]
    options: dict[str, str]
    registry: dict[str, str] | None
    names: tuple[str, ...]
    ids: tuple[str, ...]


class Reading(NamedTuple):
    """A member, the type of its column in a worker, and, if Spark decodes, what makes values of messages and that."""

    member: Member
    kind: DataType
    finish: Callable[[Column, Column], Column] | None = None


class Writing(NamedTuple):
    """How a member is written: by a call, maybe with a header that says its schema; or its column by Spark alone."""

    name: str
    call: Call | None = None
    header: tuple[str, bytes] | None = None
    spark: Callable[[Column], Column] | None = None


def illegal(what: str, where: str, action: str) -> MixedAnalysisError:
    """Return the error for a member that cannot be used."""
    return MixedAnalysisError("MIXED_MEMBER_ILLEGAL", what, where, action)


def parse_members(
    members: Mapping[str, Mapping[str, Any]],
    registry: Mapping[str, str] | None,
    subjects: SubjectOptions,
    function: str,
    *,
    is_key: bool,
) -> list[Spec]:
    """Return what each member was given, with the registry of all and the subject of its record; or refuse it."""
    if not members:
        raise illegal("There are no record types", function, "Give a dictionary of at least one.")
    seen = {TYPE}
    for name in map(str, members):
        if not name or name.lower() in seen:
            action = f"Give names that differ in more than case; {TYPE} is that of the first field."
            raise illegal(f"A record type cannot have the name {name!r:.100}", function, action)
        seen.add(name.lower())
    specs = [_spec(name, member, registry, f"{function}, {name}") for name, member in members.items()]
    return [_with_subject(one, subjects, writes=function == "to_mixed", is_key=is_key) for one in specs]


def _spec(name: str, member: Any, registry: Mapping[str, str] | None, where: str) -> Spec:
    form = member.get("format") if isinstance(member, Mapping) else None
    if form not in _COLUMNS:
        raise illegal(f"The format is {form!r:.100}", where, f"Give {', '.join(_COLUMNS)} as format.")
    own = _COLUMNS[form] | _MORE[form]
    unknown = [key for key in member if key not in own | _OF_ALL]
    if unknown:
        action = f"The arguments of {form} are {', '.join(sorted(own | _OF_ALL))}."
        raise illegal(f"The argument {unknown[0]!r:.100} is unknown", where, action)
    options = dict(member.get("options") or {})
    refused = [key for key in options if key.lower() in _BAD_ROWS]
    if refused:
        raise illegal(f"The option {refused[0]} is that of all types", where, "Give it once, outside the dictionary.")
    registry = member.get("schemaRegistry", registry)
    if registry is not None and "subject" in member:
        key = "schemaName" if str(registry.get("type", "")).lower() == "glue" else "subject"
        registry = {**registry, key: member["subject"]}
    arguments = {key: member[key] for key in member if key in own}
    ids = tuple(_normal_id(schema, where) for schema in _several(member.get("schemaIds", ())))
    names = tuple(map(str, _several(member.get("recordName", ()))))
    return Spec(name, form, arguments, options, None if registry is None else dict(registry), names, ids)


def _several(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, str | int) else tuple(value)


def _normal_id(schema: Any, where: str) -> str:
    """Return a number, or the 32 digits of a GUID or of a version id of Glue."""
    if type(schema) is int:
        return str(schema)
    try:
        return UUID(schema).hex
    except (AttributeError, TypeError, ValueError):
        action = "Give numbers, GUIDs, or version ids of Glue."
        raise illegal(f"The schema id {schema!r:.100} is not valid", where, action) from None


def _with_subject(spec: Spec, subjects: SubjectOptions, *, writes: bool, is_key: bool) -> Spec:
    """Return a member with the subject of its record, unless it has one or says what its columns are."""
    if spec.registry is None or not spec.names:
        return spec
    arguments, registry = spec.arguments, spec.registry
    if spec.format == "protobuf" and "messageClass" not in arguments:
        arguments = {"messageName": spec.names[0], **arguments}
    options = parse_schema_registry(registry)
    needed = not arguments.keys() & _COLUMNS[spec.format] or (writes and spec.format != "avro")
    if needed and options.named_subject is None and options.uses_confluent:
        registry = {**registry, "subject": subject_of(subjects, options, spec.names[0], is_key=is_key)}
    return replace(spec, arguments=arguments, registry=registry)


def reading_of(spec: Spec, by: By, options: BadRowOptions, *, headers: bool, is_key: bool) -> Reading:
    """Return how a member is read; raises as the function of its format."""
    own = {**spec.options, "mode": options.mode.value}
    if options.permissive:
        own["on.error"] = "details" if options.error_details else "column"
    registry, finish = spec.registry, None
    more: dict[str, Any] = {"is_key": is_key, "fields": spec.arguments.get("fields")}
    call: Any
    kind: Any
    if spec.format == "json":
        parsed = None if registry is None else parse_registry_options(registry)
        frames, rest, documents = json.decode_call(spec.arguments.get("schema"), own, parsed, **more)
        call, kind, names = frames, frames.kind, [title_of(documents.own.value)]
        finish = partial(json.decoded_messages, call=frames, options=rest)
    elif spec.format == "protobuf":
        protobuf, common = _protobuf(spec, "from", own)
        call, kind = protobuf.decode_call(*common, headers=headers, **more)
        names = [call.message]
    else:
        schema = spec.arguments.get("jsonFormatSchema")
        if registry is None:
            headers = more["is_key"] = False
        call, kind = avro.decode_call(schema, own, schema_registry=registry, headers=headers, **more)
        record = parse_schema(call.schema, "jsonFormatSchema", call.references)
        names = [record.name, *record.aliases]
    names = [*filter(None, names)] if by is By.RECORD_NAME else [spec.name]
    keys = spec.ids if by is By.SCHEMA_ID else spec.names or tuple(names)
    if not keys:
        action = "Give recordName." if by is By.RECORD_NAME else "Give schemaIds, a list of the ids of its schemas."
        what = f"Nothing says which messages are of this type, which are selected by {by}"
        raise illegal(what, f"from_mixed, {spec.name}", action)
    if finish is None and options.permissive:
        kind = kind["value"].dataType
    takes_frames = spec.format != "protobuf"  # which finds its message indexes with them
    return Reading(Member(spec.name, call, keys, finish is not None, takes_frames), kind, finish)


def writing_of(spec: Spec, options: Mapping[str, str], naming: Mapping[str, str], *, is_key: bool) -> Writing:
    """Return how a member is written, by the options of all, and by those that name a subject in `to_avro`."""
    own = {**options, **spec.options}
    if spec.format == "json" and spec.registry is None:
        return Writing(spec.name, spark=lambda column: F.to_json(column, own).cast("binary"))
    if spec.format == "json":
        return Writing(spec.name, spark=partial(json.to_json_registry, options=own, schemaRegistry=spec.registry))
    if spec.format == "protobuf":
        protobuf, common = _protobuf(spec, "to", own)
        return Writing(spec.name, protobuf.encode_call(*common))
    schema = spec.arguments.get("jsonFormatSchema", "")
    if "jsonFormatSchema" in spec.arguments and spec.registry and "subject" not in spec.registry:
        own |= naming
    call = avro.encode_call(schema, own, schema_registry=spec.registry, is_key=is_key)
    return Writing(spec.name, call, call.header)


def _protobuf(spec: Spec, way: str, options: Mapping[str, str]) -> tuple[Any, tuple[Any, ...]]:
    """Return protobuf's functions, which need an extra of their own, and what those that make calls take first."""
    with extra_imports("protobuf", f"{way}_mixed, {spec.name}"):
        from connectors.protobuf import functions as protobuf  # noqa: PLC0415 - as above
    argument = spec.arguments.get
    name, path, data = argument("messageName"), argument("descFilePath"), argument("binaryDescriptorSet")
    constants, engine = (name, path, options, data), argument("engine", "auto")
    parsed, chosen = protobuf.checked(f"{way}_protobuf", constants, engine, own=True)
    return protobuf, (parsed, chosen, spec.registry, (name, path, data, argument("messageClass")))
