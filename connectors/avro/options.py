"""The options of `from_avro`, declared once.

Names and defaults are Spark's (``AvroOptions.scala``); ``on.error`` is this pack's own. Parsed on the driver; workers
get the frozen dataclass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final

from connectors.avro.errors import AvroAnalysisError
from connectors.core.functions.options import BadRowOptions, Mode, drop_malformed_error, mode_kind, parse_call_options
from connectors.core.options.declaration import option
from connectors.core.options.kinds import BOOLEAN, INTEGER, STRING, choice

_MAX_DEPTH: Final = "15"  # the deepest recursion that Spark follows


class Rebase(StrEnum):
    """What happens to dates and times of before the calendars agree."""

    CORRECTED = "corrected"
    EXCEPTION = "exception"


class LogicalMismatch(StrEnum):
    """What happens where a number, bytes or a text mean one thing to the writer and another one to the reader."""

    ERROR = "error"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroOptions(BadRowOptions):
    """The options of `from_avro`, made by `parse_avro_options`."""

    mode: Mode = option(
        "mode",
        mode_kind(partial(drop_malformed_error, AvroAnalysisError, "from_avro")),
        "FAILFAST ends the query at a row that cannot be read; PERMISSIVE gives a struct of NULLs for it, and NULL "
        "where the schema is not a record.",
        default="FAILFAST",
    )
    avro_schema: str | None = option(
        "avroSchema",
        STRING,
        "The reader's schema, which gives the columns: messages are resolved from the schema that they were written "
        "with, by Avro's rules.",
        default=None,
        multiline=True,
    )
    datetime_rebase_mode: Rebase = option(
        "datetimeRebaseMode",
        choice(Rebase),
        "CORRECTED takes dates and timestamps as they are; EXCEPTION makes a bad row of a date before 1582-10-15 and "
        "of a timestamp before 1900. Spark's LEGACY needs tables of Spark's and is not possible here.",
        default="CORRECTED",
    )
    recursive_field_max_depth: int = option(
        "recursiveFieldMaxDepth",
        INTEGER,
        "How deep recursive records are followed: 1 drops the recursive field, 2 keeps one level of it, and so on up "
        "to 15. With 0 or less, recursion is an error.",
        default="-1",
        maximum=_MAX_DEPTH,
    )
    stable_identifiers: bool = option(
        "enableStableIdentifiersForUnionType",
        BOOLEAN,
        "The fields of a union are named by their types, such as member_int, not by their places, such as member0.",
        default="false",
    )
    stable_prefix: str = option(
        "stableIdentifierPrefixForUnionType",
        STRING,
        "What the names of the fields of a union begin with, when they are named by their types.",
        default="member_",
    )
    on_logical_mismatch: LogicalMismatch = option(
        "on.logical.mismatch",
        choice(LogicalMismatch),
        "error: a writer's schema does not fit the reader's if the two give a field different logical types: decimals "
        "of another scale, timestamps of another unit, a text for a decimal. ignore: the reader's type alone decides "
        "what the writer's number or bytes mean, as in Spark: 3.14 may become 0.0314.",
        default="error",
    )
    case_sensitive: bool = False  # derived: spark.sql.caseSensitive


def parse_avro_options(raw: Mapping[str, str] | None, function: str) -> AvroOptions:
    """Parse the options of a call of this function; names in any case, as Spark takes them."""
    return parse_call_options(AvroOptions, raw, function)
