"""What the options of every function that decodes messages say about rows that cannot be read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, TypeVar

from pyspark.sql.types import DataType, StringType, StructField, StructType

from connectors.core.options.declaration import conflict, option, parse_options
from connectors.core.options.kinds import Kind, choice

DETAILS: Final = StructType([StructField(name, StringType()) for name in ("code", "reason", "schema", "subject")])
"""What is said of a row that could not be read."""


class Mode(StrEnum):
    """What happens to a row that cannot be read."""

    FAILFAST = "failfast"
    PERMISSIVE = "permissive"


class OnError(StrEnum):
    """How a row that cannot be read shows under PERMISSIVE."""

    NULL = "null"
    COLUMN = "column"
    DETAILS = "details"


def drop_malformed_error(kind: Callable[[str, str, str], Exception], function: str) -> Exception:
    """Return the error of a kind for DROPMALFORMED, given the function."""
    what = f"The function {function} doesn't support the DROPMALFORMED mode"
    return kind("PARSE_MODE_UNSUPPORTED", what, function)


def mode_kind(unsupported: Callable[[], Exception]) -> Kind[Mode]:
    """Return the kind of the option ``mode``; `unsupported` gives the error for DROPMALFORMED, which Spark knows."""

    def parse(text: str) -> Mode:
        if text.upper() == "DROPMALFORMED":
            raise unsupported()
        return choice(Mode).parse(text)

    return Kind("choice", "FAILFAST or PERMISSIVE", parse)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRowOptions:
    """The options of a function, which declares what its ``mode`` gives; made by `parse_call_options`."""

    mode: Mode
    on_error: OnError = option(
        "on.error",
        choice(OnError),
        "column returns STRUCT<value, error> instead of the value alone: error says why a row could not be read, in at "
        "most 1,000 bytes, and is NULL for the others. With details, error is a STRUCT<code, reason, schema, subject>: "
        "the schema is the id in the frame, the subject that of the call. Both imply mode=PERMISSIVE. Not in Spark.",
        default="null",
    )

    @property
    def permissive(self) -> bool:
        """Whether rows that cannot be read are NULL."""
        return self.mode is Mode.PERMISSIVE

    @property
    def error_column(self) -> bool:
        """Whether the result is STRUCT<value, error>."""
        return self.permissive and self.on_error is not OnError.NULL

    @property
    def error_details(self) -> bool:
        """Whether the error is a struct."""
        return self.permissive and self.on_error is OnError.DETAILS

    def result_type(self, values: DataType) -> DataType:
        """Return the type of the column, of the type of its values."""
        if not self.error_column:
            return values
        return StructType().add("value", values).add("error", DETAILS if self.error_details else StringType())


Options = TypeVar("Options", bound=BadRowOptions)


def parse_call_options(kind: type[Options], raw: Mapping[str, str] | None, function: str) -> Options:
    """Parse the options of a call of this function; names in any case, as Spark takes them."""
    options = parse_options(kind, raw or {}, os.environ, function)
    if options.on_error is OnError.NULL or options.permissive:
        return options
    if "mode" in map(str.lower, raw or {}):
        raise conflict(
            function, "on.error", "mode", "under FAILFAST there is no bad row to tell of", "Set mode to PERMISSIVE."
        )
    return replace(options, mode=Mode.PERMISSIVE)
