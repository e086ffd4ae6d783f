"""`from_json_registry` and `to_json_registry` as column functions, which need no jar.

Only the first bytes of a message go to a Python worker, which reads its frame and asks the registry for the writer's
schema. Its JSON stays in the JVM, where Spark's own ``from_json`` decodes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

from connectors.core.errors import OptionError
from connectors.core.functions.calls import active_session, function_of, is_case_sensitive
from connectors.core.functions.pandas_columns import named
from connectors.json.errors import JsonAnalysisError
from connectors.json.expressions import decoded_json
from connectors.json.options import JsonOptions, parse_json_options
from connectors.json.places import MOST_LEVELS
from connectors.json.registry import RegisteredSchema, registry_of
from connectors.json.schema.columns import JsonColumn, json_column
from connectors.json.schema.parser import Documents, not_supported, parse_schemas
from connectors.json.worker import PREFIX_BYTES, FrameCall
from connectors.registry.options import RegistryOptions, parse_registry_options, split_registry
from connectors.registry.rules import Migrations

if TYPE_CHECKING:
    from connectors.core.processes.spark import ColumnOrName


def from_json_registry(  # noqa: PLR0913 - those of from_json, and those of from_avro
    data: ColumnOrName,
    schema: str | None = None,
    options: Mapping[str, str] | None = None,
    subject: str | None = None,
    schemaRegistryAddress: str | None = None,  # noqa: N803 - as in from_avro
    *,
    schemaRegistry: Mapping[str, str] | None = None,  # noqa: N803 - in the form of the others
    headers: ColumnOrName | None = None,
    isKey: bool = False,  # noqa: N803 - as Confluent's clients call it
    fields: Sequence[str] | None = None,
) -> Column:
    """Convert a BINARY column of JSON in Confluent's frames into a column of its values; NULL stays NULL.

    The columns are those of a JSON Schema; Spark's own ``from_json`` decodes into them, so everything can be NULL. What
    a schema says beyond types, such as ``required`` or ``minimum``, is not checked.

    Args:
        data: the column, or its name.
        schema: the JSON Schema that gives the columns; without it, the latest version of the subject.
        options: those of Spark's ``from_json``, and those of this pack; see `docs/reference/json.md`.
        subject: the subject of a registry whose latest version gives the columns, unless a schema is given.
        schemaRegistryAddress: the URL of a registry; how to authenticate is then among the options.
        schemaRegistry: a registry that speaks Confluent's interface: its ``address``, optionally the ``subject``, and
            how to authenticate. The schema of each message's writer must be there.
        headers: the column of Kafka's headers, for writers that put the schema's id or GUID there.
        isKey: whether `data` is the key of the records. The id is then read from the header ``__key_schema_id``, else
            from ``__value_schema_id``; the other is never used.
        fields: top-level columns to keep, in this order; None for all.

    Raises:
        JsonAnalysisError: the schema cannot be parsed, or has no columns in Spark.
        OptionError: an option is unknown or not valid.
        ConnectorError: the registry does not respond, refuses access, or has no such subject.
    """
    plain, registry = _split(options, subject, schemaRegistryAddress, schemaRegistry, "from_json_registry")
    call, parsed, _ = decode_call(schema, plain, registry, is_key=isKey, fields=fields)
    message = F.col(data) if isinstance(data, str) else data
    read = function_of(call, call.kind, active_session(), headers=headers is not None)
    prefix = F.substring(message, 1, PREFIX_BYTES)
    frame = read(prefix) if headers is None else read(prefix, headers)
    decoded = decoded_messages(message, frame, call, parsed)
    if call.error_column:
        decoded = F.when(message.isNotNull(), decoded)
    return named(decoded, "from_json_registry", data)


def decode_call(
    schema: str | None,
    options: Mapping[str, str],
    registry: RegistryOptions | None,
    *,
    is_key: bool = False,
    fields: Sequence[str] | None = None,
) -> tuple[FrameCall, JsonOptions, Documents]:
    """Return what reads the frames, the options, and the schema of the columns; without a registry there is no frame.

    `decoded_messages` makes values of what the call returns.
    """
    parsed = dataclasses.replace(parse_json_options(options), case_sensitive=is_case_sensitive())
    documents, reader = _reader_of(registry, schema)
    column = json_column(documents, parsed.recursive_field_max_depth, case_sensitive=parsed.case_sensitive)
    if fields is not None:
        column = _selected(column, fields)
    if column.checked() > MOST_LEVELS:
        what = f"has values that are checked, such as dates, more than {MOST_LEVELS} levels deep"
        raise not_supported(what, "Give the columns a schema of their own with {} for these, so that they are VARIANT.")
    _check_corrupt_record(column, parsed)
    call = FrameCall(column, registry, is_key, parsed.permissive, parsed.error_column, parsed.error_details, reader)
    return call, parsed, documents


def to_json_registry(
    data: ColumnOrName,
    options: Mapping[str, str] | None = None,
    subject: str | None = None,
    schemaRegistryAddress: str | None = None,  # noqa: N803 - as in to_avro
    *,
    schemaRegistry: Mapping[str, str] | None = None,  # noqa: N803 - in the form of the others
) -> Column:
    """Convert a STRUCT, MAP or ARRAY column into a BINARY column of JSON in Confluent's frames; NULL stays NULL.

    Spark's own ``to_json`` writes it, after the id of the subject's latest version when the query is built. Nothing is
    registered, and nothing checks that the JSON fits the schema.

    Args:
        data: the column, or its name.
        options: those of Spark's ``to_json``, such as ``ignoreNullFields``.
        subject: the subject of a registry.
        schemaRegistryAddress: the URL of a registry; how to authenticate is then among the options.
        schemaRegistry: a registry as in `from_json_registry`.

    Raises:
        JsonAnalysisError: the schema asks for dates, timestamps or decimals as Kafka Connect writes them.
        OptionError: an option of the registry is unknown or not valid.
        ConnectorError: the registry does not respond, refuses access, or has no such subject.
    """
    plain, registry = _split(options, subject, schemaRegistryAddress, schemaRegistry, "to_json_registry")
    latest = _latest(registry, "Give the subject whose latest version is written.", writing=True)
    if json_column(latest.documents, 1, case_sensitive=True).coded():
        raise JsonAnalysisError(
            "JSON_TYPE_NOT_SUPPORTED",
            "The JSON Schema has Kafka Connect's dates, timestamps or decimals, which to_json_registry does not write",
            "to_json_registry",
            "Write with a schema that has them as strings or numbers.",
        )
    frame = F.lit(bytearray(b"\0" + int(latest.schema_id).to_bytes(4, "big")))
    written = F.to_json(data, dict(plain)).cast("binary")
    return named(F.concat(frame, written), "to_json_registry", data)


def decoded_messages(message: Column, frame: Column, call: FrameCall, options: JsonOptions) -> Column:
    """Return the values of messages, or with an error column STRUCT<value, error>, by what the call has returned."""
    begin = frame.getField("value") if call.error_column else frame
    payload = F.substring(message, begin + 1, F.length(message)).cast("string")
    text = F.try_validate_utf8(payload) if options.permissive else F.validate_utf8(payload)
    if not call.error_column:
        return decoded_json(text, call.column, options)
    subject = None if call.registry is None else call.registry.named_subject
    return decoded_json(text, call.column, options, frame, subject)


def _reader_of(registry: RegistryOptions | None, schema: str | None) -> tuple[Documents, Migrations | None]:
    """Return the schema of the columns: the one given, else the latest of the subject."""
    if schema is None:
        latest = _latest(registry, "Give the subject, or the schema of the columns as schema.")
        return latest.documents, latest.migrations
    if not isinstance(schema, str):
        raise JsonAnalysisError(
            "JSON_SCHEMA_MISSING",
            f"from_json_registry takes the JSON Schema as a string, but got {type(schema).__name__}",
            "schema",
        )
    return parse_schemas(schema), None


def _latest(registry: RegistryOptions | None, action: str, *, writing: bool = False) -> RegisteredSchema:
    if registry is None or registry.named_subject is None:
        raise OptionError("OPTION_MISSING", "The option schema.registry.subject is required", "schemaRegistry", action)
    return registry_of(registry).latest(registry.named_subject, writing=writing)


def _split(
    options: Mapping[str, str] | None,
    subject: str | None,
    address: str | None,
    schema_registry: Mapping[str, str] | None,
    function: str,
) -> tuple[Mapping[str, str], RegistryOptions]:
    """Return the options of the function, and the registry."""
    plain, registry = split_registry(options, subject, address, schema_registry, function)
    if registry is None:
        what = "The function needs the registry that the messages were written with"
        raise OptionError("OPTION_MISSING", what, function, "Give schemaRegistry, or schemaRegistryAddress.")
    return plain, parse_registry_options(registry)


def _check_corrupt_record(column: JsonColumn, options: JsonOptions) -> None:
    name = options.corrupt_record
    if name is None:
        return
    if (
        column.kind != "struct"
        or not options.permissive
        or name.lower() in {field.lower() for field, _ in column.fields}
    ):
        raise OptionError(
            "OPTION_ILLEGAL",
            f"The option columnNameOfCorruptRecord cannot be {name!r:.100}: it needs mode=PERMISSIVE, a schema of an "
            "object, and a name that no property has",
            "from_json_registry",
            "Give another name, or leave it out.",
        )


def _selected(column: JsonColumn, fields: Sequence[str]) -> JsonColumn:
    columns = dict(column.fields)
    unknown = [name for name in fields if name not in columns]
    if unknown:
        raise JsonAnalysisError(
            "JSON_FIELD_MISSING",
            f"The schema has no column {unknown[0]!r:.100}",
            "fields",
            f"The columns are: {', '.join(columns) or 'none'}.",
        )
    return dataclasses.replace(column, fields=tuple((name, columns[name]) for name in dict.fromkeys(fields)))
