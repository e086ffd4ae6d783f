"""The options of `from_avro`, declared once.

Names and defaults are Spark's (``AvroOptions.scala``); ``on.error`` is this pack's own. Parsed on the driver; workers
get the frozen dataclass.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from connectors.avro.errors import AvroAnalysisError
from connectors.core.options.declaration import conflict, option, parse_options
from connectors.core.options.kinds import BOOLEAN, INTEGER, STRING, Kind, choice

__all__ = ["AvroOptions", "Mode", "OnError", "Rebase", "parse_avro_options"]

_MAX_DEPTH: Final = "15"  # the deepest recursion that Spark follows


class Mode(StrEnum):
    """What happens to a row that cannot be read."""

    FAILFAST = "failfast"
    PERMISSIVE = "permissive"


class OnError(StrEnum):
    """How a row that cannot be read shows under PERMISSIVE."""

    NULL = "null"
    COLUMN = "column"


class Rebase(StrEnum):
    """What happens to dates and times of before the calendars agree."""

    CORRECTED = "corrected"
    EXCEPTION = "exception"


def _parse_mode(text: str) -> Mode:
    if text.upper() == "DROPMALFORMED":
        raise AvroAnalysisError(
            "PARSE_MODE_UNSUPPORTED",
            "The function from_avro doesn't support the DROPMALFORMED mode",
            "from_avro",
            "Acceptable modes are PERMISSIVE and FAILFAST.",
        )
    return choice(Mode).parse(text)


_MODE: Final = Kind("choice", "FAILFAST or PERMISSIVE", _parse_mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroOptions:
    """The options of `from_avro`, made by `parse_avro_options`."""

    mode: Mode = option(
        "mode",
        _MODE,
        "FAILFAST ends the query at a row that cannot be read; PERMISSIVE gives a struct of NULLs for it, and NULL "
        "where the schema is no record.",
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
    on_error: OnError = option(
        "on.error",
        choice(OnError),
        "With mode=PERMISSIVE. column returns STRUCT<value, error> instead of the value alone: error says why a row "
        "could not be read, in at most 1,000 bytes, and is NULL for the others. Not in Spark.",
        default="null",
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
    case_sensitive: bool = False  # derived: spark.sql.caseSensitive

    @property
    def permissive(self) -> bool:
        """Whether rows that cannot be read are NULL."""
        return self.mode is Mode.PERMISSIVE

    @property
    def error_column(self) -> bool:
        """Whether the result is STRUCT<value, error>."""
        return self.permissive and self.on_error is OnError.COLUMN


def parse_avro_options(raw: Mapping[str, str] | None, function: str) -> AvroOptions:
    """Parse the options of a call of this function; names in any case, as Spark takes them."""
    options = parse_options(AvroOptions, raw or {}, os.environ, function)
    if options.on_error is OnError.COLUMN and not options.permissive:
        raise conflict(
            function, "on.error", "mode", "under FAILFAST there is no bad row to tell of", "Set mode to PERMISSIVE."
        )
    return options
