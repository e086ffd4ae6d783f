"""The arguments of each record type: checked, completed with what is given once for all, and made into calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it
from pyspark.sql.types import DataType

from connectors.core.formats import extra_imports
from connectors.core.functions.call import Call
from connectors.core.functions.options import BadRowOptions
from connectors.mixed.errors import MixedAnalysisError
from connectors.mixed.selection import By, title_of
from connectors.mixed.worker import TYPE, Member
from connectors.registry.glue.options import parse_schema_registry
from connectors.registry.subjects import SubjectOptions, subject_of

_FRAME: Final = ("schemaRegistry", "subject", "recordName", "schemaIds", "options", "format")
_SCHEMAS: Final[dict[str, dict[str, str]]] = {
    "avro": {"jsonFormatSchema": "schema"},
    "protobuf": {
        "messageName": "message",
        "descFilePath": "path",
        "binaryDescriptorSet": "data",
        "messageClass": "message_class",
    },
    "json": {"schema": "schema"},
}
"""The arguments that say what the columns are, by the names that `decode_call` of a format has for them."""
_MORE: Final = {"avro": ("fields",), "protobuf": ("fields", "engine"), "json": ("fields",)}
_BAD_ROWS: Final = {"mode", "on.error"}

Finish = Callable[[Column, Column], Column]


@dataclass(frozen=True, slots=True)
class Reading:
    """How a member is read.

    Attributes:
        member: what travels to the workers.
        kind: the type of its column there.
        finish: returns the values, or STRUCT<value, error>, for the messages and that column; None where these are it.
    """

    member: Member
    kind: DataType
    finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class Spec:
    """What a member was given.

    Attributes:
        name: of the member.
        format: avro, protobuf or json.
        schema: the arguments that say what the columns are, and what `decode_call` takes beside them.
        options: of its own.
        registry: the dictionary of its registry, with its subject.
        names: of its record; the first one names its subject.
        ids: of its schemas.
    """

    name: str
    format: str
    schema: dict[str, Any]
    options: dict[str, str]
    registry: dict[str, str] | None
    names: tuple[str, ...]
    ids: tuple[str, ...]


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
    """Return what each member was given, with the registry of all and the subject of its record.

    Raises:
        MixedAnalysisError: MIXED_MEMBER_ILLEGAL.
    """
    if not members:
        raise illegal("There are no record types", function, "Give a dictionary of at least one.")
    seen = {TYPE}
    for name in map(str, members):
        if not name or name.lower() in seen:
            what = f"A record type cannot have the name {name!r:.100}"
            raise illegal(
                what, function, f"Give names that differ in more than case; {TYPE} is that of the first field."
            )
        seen.add(name.lower())
    specs = [_spec(name, member, registry, f"{function}, {name}") for name, member in members.items()]
    writes = function == "to_mixed"
    return [_with_subject(one, subjects, writes=writes, is_key=is_key) for one in specs]


def _spec(name: str, member: Any, registry: Mapping[str, str] | None, where: str) -> Spec:
    form = member.get("format") if isinstance(member, Mapping) else None
    if form not in _SCHEMAS:
        raise illegal(f"The format is {form!r:.100}", where, f"Give {', '.join(_SCHEMAS)} as format.")
    taken = _SCHEMAS[form].keys() | set(_MORE[form])
    unknown = [key for key in member if key not in taken and key not in _FRAME]
    if unknown:
        action = f"The arguments of {form} are {', '.join(sorted(taken | set(_FRAME)))}."
        raise illegal(f"The argument {unknown[0]!r:.100} is unknown", where, action)
    options = dict(member.get("options") or {})
    refused = [key for key in options if key.lower() in _BAD_ROWS]
    if refused:
        raise illegal(f"The option {refused[0]} is that of all types", where, "Give it once, outside the dictionary.")
    own = member.get("schemaRegistry", registry)
    own = None if own is None else dict(own)
    if own is not None and "subject" in member:
        key = "schemaName" if str(own.get("type", "")).lower() == "glue" else "subject"
        own[key] = member["subject"]
    arguments = {argument: member[key] for key, argument in _SCHEMAS[form].items() if key in member}
    arguments |= {key: member[key] for key in _MORE[form] if key in member}
    ids = tuple(_normal_id(schema, where) for schema in _several(member.get("schemaIds", ())))
    names = tuple(map(str, _several(member.get("recordName", ()))))
    return Spec(name, form, arguments, options, own, names, ids)


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
    schema = spec.schema
    if spec.format == "protobuf":
        without = not schema.keys() & {"path", "data", "message_class"}
        schema = {"message": spec.names[0], **schema} if "message_class" not in schema else schema
    else:
        without = "schema" not in schema
    options = parse_schema_registry(spec.registry)
    registry = spec.registry
    without = without or (writes and spec.format != "avro")
    if without and options.named_subject is None and options.uses_confluent:
        registry = {**registry, "subject": subject_of(subjects, options, spec.names[0], is_key=is_key)}
    return replace(spec, schema=schema, registry=registry)


def reading_of(spec: Spec, by: By, options: BadRowOptions, *, headers: bool, is_key: bool) -> Reading:
    """Return how a member is read; raises as the function of its format."""
    shared = {"mode": options.mode.value}
    if options.permissive:
        shared["on.error"] = "details" if options.error_details else "column"
    where = f"from_mixed, {spec.name}"
    with extra_imports(spec.format, where):
        call, kind, names, finish = _read(spec, {**spec.options, **shared}, headers=headers, is_key=is_key)
    own = names if by is By.RECORD_NAME else (spec.name,)
    keys = spec.ids if by is By.SCHEMA_ID else spec.names or own
    if not keys:
        action = "Give recordName." if by is By.RECORD_NAME else "Give schemaIds, a list of the ids of its schemas."
        raise illegal(f"Nothing says which messages are of this type, which are selected by {by}", where, action)
    if finish is None and options.permissive:
        kind = kind["value"].dataType
    return Reading(Member(spec.name, call, keys, finish is not None), kind, finish)


def _read(
    spec: Spec, options: dict[str, str], *, headers: bool, is_key: bool
) -> tuple[Call, Any, tuple[str, ...], Finish | None]:
    """Return the call, the type of what it returns, the names of its record, and what Spark does with the result."""
    if spec.format == "protobuf":
        from connectors.protobuf.functions import decode_call as of_protobuf  # noqa: PLC0415 - needs own packages

        protobuf, kind = of_protobuf(
            options=options, schema_registry=spec.registry, headers=headers, is_key=is_key, **spec.schema
        )
        return protobuf, kind, (protobuf.message,), None
    schema = {"schema": None, **spec.schema}
    if spec.format == "json":
        from connectors.json import functions as json  # noqa: PLC0415 - as above
        from connectors.registry.options import parse_registry_options  # noqa: PLC0415 - as above

        registry = None if spec.registry is None else parse_registry_options(spec.registry)
        call, parsed, documents = json.decode_call(options=options, registry=registry, is_key=is_key, **schema)
        names = tuple(filter(None, [title_of(documents.own.value)]))
        return call, call.kind, names, lambda messages, frames: json.decoded_messages(messages, frames, call, parsed)
    from connectors.avro.functions import decode_call as of_avro  # noqa: PLC0415 - as above
    from connectors.avro.schema.parser import parse_schema  # noqa: PLC0415 - as above

    if spec.registry is None:
        headers = is_key = False
    avro, kind = of_avro(options=options, schema_registry=spec.registry, headers=headers, is_key=is_key, **schema)
    record = parse_schema(avro.schema, "jsonFormatSchema", avro.references)
    return avro, kind, tuple(filter(None, (record.name, *record.aliases))), None


@dataclass(frozen=True, slots=True)
class Writing:
    """How a member is written: by a call, with the name and value of the header that says its schema; or by Spark.

    Attributes:
        spark: returns the messages of a column.
    """

    name: str
    call: Call | None = None
    header: tuple[str, bytes] | None = None
    spark: Callable[[Column], Column] | None = None


def writing_of(spec: Spec, options: Mapping[str, str], naming: Mapping[str, str], *, is_key: bool) -> Writing:
    """Return how a member is written; raises as the function of its format.

    Args:
        spec: of the member.
        options: those of all members.
        naming: the options of `to_avro` that name a subject.
        is_key: whether messages are keys.
    """
    own = {**options, **spec.options}
    if spec.format == "avro" and "schema" in spec.schema and spec.registry and "subject" not in spec.registry:
        own |= naming
    with extra_imports(spec.format, f"to_mixed, {spec.name}"):
        return _write(spec, own, is_key=is_key)


def _write(spec: Spec, options: dict[str, str], *, is_key: bool) -> Writing:
    if spec.format == "protobuf":
        from connectors.protobuf.functions import encode_call as of_protobuf  # noqa: PLC0415 - needs own packages

        return Writing(spec.name, of_protobuf(options=options, schema_registry=spec.registry, **spec.schema))
    if spec.format == "json":
        from connectors.json.functions import to_json_registry  # noqa: PLC0415 - as above

        def write(column: Column) -> Column:
            if spec.registry is None:
                return F.to_json(column, options).cast("binary")
            return to_json_registry(column, options, schemaRegistry=spec.registry)

        return Writing(spec.name, spark=write)
    from connectors.avro.functions import encode_call as of_avro  # noqa: PLC0415 - as above

    arguments = {"schema": "", **spec.schema}
    call = of_avro(options=options, schema_registry=spec.registry, is_key=is_key, **arguments)
    return Writing(spec.name, call, call.header)
