"""`from_avro` and `to_avro` as column functions, which need no jar.

Messages are decoded and encoded in Spark's Python workers, as Arrow columns. The first parameters are those of
``pyspark.sql.avro.functions``, so that the import is all that changes.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column
from pyspark.sql import functions as spark_functions
from pyspark.sql.types import BinaryType, DataType, StructType

from connectors.avro.errors import AvroAnalysisError
from connectors.avro.options import AvroOptions, Rebase, parse_avro_options
from connectors.avro.registered import registry_of
from connectors.avro.schema.defaults import check_defaults
from connectors.avro.schema.parser import parse_schema
from connectors.avro.schema.plan import compile_plan
from connectors.avro.schema.types import spark_type
from connectors.avro.worker import DecodeCall, EncodeCall
from connectors.core.errors import OptionError
from connectors.core.functions.calls import active_session, function_of, is_case_sensitive, session_value
from connectors.core.functions.pandas_columns import named
from connectors.core.options.declaration import conflict, parse_options
from connectors.registry.azure import AzureOptions
from connectors.registry.glue.options import AnyRegistryOptions, parse_schema_registry
from connectors.registry.kinds import frame_of, kind_of
from connectors.registry.options import split_registry
from connectors.registry.rules import Migrations
from connectors.registry.subjects import IdPlace, SubjectOptions, subject_of

if TYPE_CHECKING:
    from connectors.core.processes.spark import ColumnOrName

_REBASE_OPTION: Final = "datetimeRebaseMode"
_REBASE_CONF: Final = "spark.sql.avro.datetimeRebaseModeInRead"
_REBASE_WRITE_CONF: Final = "spark.sql.avro.datetimeRebaseModeInWrite"


def from_avro(  # noqa: PLR0913 - Spark's three, Databricks' two, and what they have not
    data: ColumnOrName,
    jsonFormatSchema: str | None = None,  # noqa: N803 - Spark's name
    options: Mapping[str, str] | None = None,
    subject: str | None = None,
    schemaRegistryAddress: str | None = None,  # noqa: N803 - Databricks' name
    *,
    schemaRegistry: Mapping[str, str] | None = None,  # noqa: N803 - in the form of the others
    headers: ColumnOrName | None = None,
    isKey: bool = False,  # noqa: N803 - as Confluent's clients call it
    fields: Sequence[str] | None = None,
) -> Column:
    """Convert a BINARY column of Avro messages into a column of their values; NULL stays NULL.

    Args:
        data: the column, or its name.
        jsonFormatSchema: the schema that the messages were written with, in Avro's JSON. With a schema registry, where
            each message names its schema, the reader's.
        options: see `docs/reference/avro.md`; names in any case.
        subject: the subject of a registry whose latest version gives the columns, unless a schema is given.
        schemaRegistryAddress: the URL of a registry, as on Databricks. The options then say how to authenticate.
        schemaRegistry: a registry that speaks Confluent's interface: its ``address``, optionally the ``subject``, and
            how to authenticate; or, with ``type``, AWS Glue's or Azure's. See `docs/reference/avro.md`. Messages are
            then in the registry's frames, and each is resolved from its writer's schema to the reader's.
        headers: the column of Kafka's headers, for writers that put the schema's id or GUID there.
        isKey: whether `data` is the key of the records. The id is then read from the header ``__key_schema_id``, else
            from ``__value_schema_id``; the other is never used.
        fields: top-level columns to keep, in this order; None for all.

    Raises:
        AvroAnalysisError: the schema cannot be parsed, has no columns in Spark, or does not fit the reader's schema.
        OptionError: an option is unknown or not valid.
        ConnectorError: the registry does not respond, refuses access, or has no such subject.
    """
    call, kind = decode_call(
        jsonFormatSchema,
        options,
        subject,
        schemaRegistryAddress,
        schema_registry=schemaRegistry,
        headers=headers is not None,
        is_key=isKey,
        fields=fields,
    )
    convert = function_of(call, kind, active_session(), headers=headers is not None)
    return convert(data) if headers is None else convert(data, headers)


def to_avro(
    data: ColumnOrName,
    jsonFormatSchema: str = "",  # noqa: N803 - Spark's name
    subject: str | None = None,
    schemaRegistryAddress: str | None = None,  # noqa: N803 - Databricks' name
    options: Mapping[str, str] | None = None,
    *,
    schemaRegistry: Mapping[str, str] | None = None,  # noqa: N803 - in the form of the others
    isKey: bool = False,  # noqa: N803 - as Confluent's clients call it
) -> Column:
    """Convert a column of any type into a BINARY column of Avro messages; NULL stays NULL.

    With a registry and the option ``schema.id.serializer=header`` the column is a STRUCT<value BINARY, headers
    ARRAY<STRUCT<key STRING, value BINARY>>> of messages and the headers that name their schema.

    The columns of a struct and the fields of a record match by name, ignoring case unless ``spark.sql.caseSensitive``
    is true. Whether the column fits the schema is checked on the executor, with the first batch: Python does not see
    the type of a column earlier. Dates are written as they are, unless ``spark.sql.avro.datetimeRebaseModeInWrite`` is
    EXCEPTION. LEGACY needs Spark's own tables, and is refused.

    On Spark 4.0 rows are encoded one by one, which takes far longer. A Python function does not see there which columns
    can be NULL: without a schema, all are written as nullable.

    Args:
        data: the column, or its name.
        jsonFormatSchema: the schema to write with, in Avro's JSON. Without it, Spark's schema for the type of the
            column, where what can be NULL is a union of its type and ``null``, in this order. With a registry, a schema
            of the subject; if you leave it out, the subject's latest version. The driver asks for either once.
        subject: the subject of a registry. Without it, ``subject.name.strategy`` among the options names one. Nothing
            is registered unless ``auto.register.schemas`` is true.
        schemaRegistryAddress: the URL of a registry, as on Databricks.
        options: see `docs/reference/avro.md`; with schemaRegistryAddress, also how to authenticate there.
        schemaRegistry: a registry as in `from_avro`. Messages are then in its frames.
        isKey: whether messages are the keys of records, which have a subject of their own.

    Raises:
        AvroAnalysisError: the schema cannot be parsed.
        OptionError: an option is not valid, or the session asks for LEGACY.
        ConnectorError: the registry does not respond, refuses access or the schema, or has no such subject or schema.
    """
    session = active_session()
    column = spark_functions.col(data) if isinstance(data, str) else data
    call = encode_call(
        jsonFormatSchema, options, subject, schemaRegistryAddress, schema_registry=schemaRegistry, is_key=isKey
    )
    encoded = function_of(call, BinaryType(), session)(spark_functions.struct(column.alias("value")))
    if call.header is not None:
        headers = headers_of(column, call.header)
        encoded = spark_functions.struct(encoded.alias("value"), headers.alias("headers"))
    return named(encoded, call.function, data)


def headers_of(values: Column, header: tuple[str, bytes]) -> Column:
    """Return the headers of messages with these values: the one given, and NULL where there is no value."""
    key, value = (spark_functions.lit(part) for part in header)
    headers = spark_functions.array(spark_functions.struct(key.alias("key"), value.alias("value")))
    return spark_functions.when(values.isNotNull(), headers)


def encode_call(
    schema: str,
    options: Mapping[str, str] | None = None,
    subject: str | None = None,
    address: str | None = None,
    *,
    schema_registry: Mapping[str, str] | None = None,
    is_key: bool = False,
) -> EncodeCall:
    plain, registry = _split(options, subject, address, schema_registry, "to_avro")
    parsed = parse_options(SubjectOptions, plain, os.environ, "to_avro")
    text = _text(schema, "to_avro")
    if text:
        parse_schema(text, "jsonFormatSchema")
    call = EncodeCall(text or None)
    parsed.check("to_avro", registry, has_schema=bool(schema))
    _check_headers("to_avro", registry, headers=False, is_key=is_key)
    if registry is not None:
        call = _framed(call, registry, parsed, is_key=is_key)
    elif is_key:
        raise _missing("isKey says which subject of a registry is written by, and there is no registry", "to_avro")
    rebase = session_value(_REBASE_WRITE_CONF, "CORRECTED")
    if rebase.lower() not in set(Rebase):
        what, action = f"{_REBASE_WRITE_CONF} is {rebase}", "Set it to CORRECTED or EXCEPTION."
        raise OptionError("OPTION_ILLEGAL", what, "to_avro", action)
    return dataclasses.replace(call, rebase=Rebase(rebase.lower()), case_sensitive=is_case_sensitive())


def _framed(call: EncodeCall, options: AnyRegistryOptions, writing: SubjectOptions, *, is_key: bool) -> EncodeCall:
    """Return the call for frames with the id of the schema, or with that of the latest version of its subject."""
    text = call.schema
    record = "" if text is None else parse_schema(text, "jsonFormatSchema").name
    subject = subject_of(writing, options, record, is_key=is_key)
    registry = registry_of(dataclasses.replace(options, subject=subject))
    if text is None or writing.use_latest:
        latest = registry.latest(subject, writing=True)
        schema_id, call = latest.schema_id, EncodeCall(latest.text, references=latest.references)
    else:
        register = options.auto_register or writing.auto_register
        schema_id = registry.id_of(subject, text, "AVRO", register=register)
    default = IdPlace.HEADER if isinstance(options, AzureOptions) else IdPlace.PREFIX
    if (writing.id_place or default) is IdPlace.HEADER:
        return dataclasses.replace(call, header=kind_of(options).header(registry.guid(schema_id), is_key=is_key))
    return dataclasses.replace(call, frame=frame_of(schema_id, options))


def decode_call(
    schema: str | None,
    options: Mapping[str, str] | None,
    subject: str | None = None,
    address: str | None = None,
    *,
    schema_registry: Mapping[str, str] | None = None,
    headers: bool = False,
    is_key: bool = False,
    fields: Sequence[str] | None = None,
) -> tuple[DecodeCall, DataType]:
    plain, registry = _split(options, subject, address, schema_registry)
    if registry is None and (headers or is_key):
        raise _missing("headers and isKey say which schema of a registry a message has, and there is no registry")
    _check_headers("from_avro", registry, headers=headers, is_key=is_key)
    parsed = _options(plain)
    if registry is None:
        text = _text(schema, "from_avro")
        writer = parse_schema(text, "jsonFormatSchema")
        reader = writer if parsed.avro_schema is None else parse_schema(parsed.avro_schema, "avroSchema")
        call = DecodeCall(text, parsed)
        kind = spark_type(reader, parsed)
        if reader is not writer:
            check_defaults(reader)
        compile_plan(writer, reader, kind, parsed)
    else:
        text, references, version = _reader_of(registry, parsed.avro_schema or schema)
        reader = parse_schema(text, "schemaRegistry", references)
        check_defaults(reader)
        kind = spark_type(reader, parsed)
        call = DecodeCall(text, parsed, references=references, registry=registry, is_key=is_key, reader=version)
    if fields is not None:
        kind, call = _selected(kind, fields), dataclasses.replace(call, fields=tuple(fields))
    return call, parsed.result_type(kind)


def _check_headers(function: str, registry: AnyRegistryOptions | None, *, headers: bool, is_key: bool) -> None:
    azure = isinstance(registry, AzureOptions)
    if registry is not None and not registry.uses_confluent and (is_key or (headers and not azure)):
        why = f"its frames are the same for keys and values{'' if azure else ', and no header names the schema'}"
        raise conflict(function, "headers" if headers else "isKey", f"type={registry.type}", why, "Leave it out.")


def _text(schema: str | None, function: str) -> str:
    if not isinstance(schema, str):
        what = f"{function} takes the schema as a string, but got {type(schema).__name__}"
        raise AvroAnalysisError("AVRO_SCHEMA_MISSING", what, "jsonFormatSchema")
    return schema


def _reader_of(registry: AnyRegistryOptions, schema: str | None) -> tuple[str, tuple[str, ...], Migrations | None]:
    """Return the reader's schema and those that it refers to: the one given, else the latest of the subject."""
    if schema is not None:
        return _text(schema, "from_avro"), (), None
    if registry.named_subject is None:
        what, action = (
            "The option schema.registry.subject is required",
            "Give it, or give the schema as jsonFormatSchema.",
        )
        raise OptionError("OPTION_MISSING", what, "schemaRegistry", action)
    latest = registry_of(registry).latest(registry.named_subject)
    return latest.text, latest.references, latest.migrations


def _split(
    options: Mapping[str, str] | None,
    subject: str | None,
    address: str | None,
    schema_registry: Mapping[str, str] | None,
    function: str = "from_avro",
) -> tuple[Mapping[str, str], AnyRegistryOptions | None]:
    plain, registry = split_registry(options, subject, address, schema_registry, function)
    if registry is None and subject is not None:
        raise _missing("subject is that of a registry, and there is none", function)
    return plain, None if registry is None else parse_schema_registry(registry, azure=True)


def _missing(what: str, function: str = "from_avro") -> OptionError:
    return OptionError("OPTION_MISSING", what, function, "Give schemaRegistry, or schemaRegistryAddress.")


def _options(raw: Mapping[str, str]) -> AvroOptions:
    """Return the options, with what the session's configuration says."""
    pairs = dict(raw)
    if not any(name.lower() == _REBASE_OPTION.lower() for name in pairs):
        pairs[_REBASE_OPTION] = session_value(_REBASE_CONF, "CORRECTED")
    return dataclasses.replace(parse_avro_options(pairs, "from_avro"), case_sensitive=is_case_sensitive())


def _selected(kind: DataType, fields: Sequence[str]) -> StructType:
    columns = {field.name: field for field in kind} if isinstance(kind, StructType) else {}
    unknown = [name for name in fields if name not in columns]
    if unknown:
        what, action = f"The schema has no column {unknown[0]!r}", f"The columns are: {', '.join(columns)}."
        raise AvroAnalysisError("AVRO_FIELD_MISSING", what, "fields", action)
    return StructType([columns[name] for name in dict.fromkeys(fields)])
