"""`from_avro` as a column function, which needs no jar.

Messages are decoded in Spark's Python workers, as Arrow columns. The first three parameters are those of
``pyspark.sql.avro.functions``, so that the import is all that changes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column
from pyspark.sql.types import DataType, StringType, StructField, StructType

from connectors.avro.errors import AvroAnalysisError
from connectors.avro.options import AvroOptions, parse_avro_options
from connectors.avro.schema.parser import parse_schema
from connectors.avro.schema.plan import compile_plan
from connectors.avro.schema.types import spark_type
from connectors.avro.worker import DecodeCall
from connectors.functions.calls import active_session, function_of

if TYPE_CHECKING:
    from pyspark.sql._typing import ColumnOrName

__all__ = ["from_avro"]

_REBASE_OPTION: Final = "datetimeRebaseMode"
_REBASE_CONF: Final = "spark.sql.avro.datetimeRebaseModeInRead"


def from_avro(
    data: ColumnOrName,
    jsonFormatSchema: str | None = None,  # noqa: N803 - Spark's name
    options: Mapping[str, str] | None = None,
    *,
    fields: Sequence[str] | None = None,
) -> Column:
    """Convert a BINARY column of Avro messages into a column of what they hold; NULL stays NULL.

    Args:
        data: the column, or its name.
        jsonFormatSchema: the schema that the messages were written with, in Avro's JSON.
        options: see `docs/reference/avro.md`; names in any case.
        fields: top-level columns to keep, in this order; None for all.

    Raises:
        AvroAnalysisError: the schema cannot be parsed, has no columns in Spark, or does not fit the reader's schema.
        OptionError: an option is unknown or not valid.
    """
    if not isinstance(jsonFormatSchema, str):
        raise AvroAnalysisError(
            "AVRO_SCHEMA_MISSING",
            f"from_avro needs the schema of the messages as a text, and got {type(jsonFormatSchema).__name__}",
            "jsonFormatSchema",
            "Give the schema in Avro's JSON.",
        )
    parsed = _options(options)
    writer = parse_schema(jsonFormatSchema, "jsonFormatSchema")
    reader = writer if parsed.avro_schema is None else parse_schema(parsed.avro_schema, "avroSchema")
    kind = spark_type(reader, parsed)
    compile_plan(writer, reader, kind, parsed)
    if fields is not None:
        kind = _selected(kind, fields)
    if parsed.error_column:
        kind = StructType([StructField("value", kind), StructField("error", StringType())])
    call = DecodeCall(jsonFormatSchema, parsed, None if fields is None else tuple(fields))
    return function_of(call, kind, active_session())(data)


def _options(raw: Mapping[str, str] | None) -> AvroOptions:
    """Return the options, with what the session's configuration says."""
    given = dict(raw or {})
    session = active_session()
    if session is None:
        return parse_avro_options(given, "from_avro")
    if not any(name.lower() == _REBASE_OPTION.lower() for name in given):
        given[_REBASE_OPTION] = str(session.conf.get(_REBASE_CONF, "CORRECTED"))
    case_sensitive = str(session.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"
    return dataclasses.replace(parse_avro_options(given, "from_avro"), case_sensitive=case_sensitive)


def _selected(kind: DataType, fields: Sequence[str]) -> StructType:
    columns = {field.name: field for field in kind} if isinstance(kind, StructType) else {}
    unknown = [name for name in fields if name not in columns]
    if unknown:
        raise AvroAnalysisError(
            "AVRO_FIELD_MISSING",
            f"The schema has no column {unknown[0]!r}",
            "fields",
            f"Give some of: {', '.join(columns)}.",
        )
    return StructType([columns[name] for name in dict.fromkeys(fields)])
