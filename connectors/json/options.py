"""The options of `from_json_registry`, declared once: Spark's own for JSON, and those of this pack.

Parsed on the driver; Spark gets its own ones as texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from connectors.core.functions.options import BadRowOptions, Mode, drop_malformed_error, mode_kind, parse_call_options
from connectors.core.options.declaration import declared_options, option
from connectors.core.options.kinds import INTEGER, STRING
from connectors.json.errors import JsonAnalysisError
from connectors.json.schema.columns import MOST_DEPTH

_OWN: Final = ("mode", "on_error", "recursive_field_max_depth", "corrupt_record")


def _of_spark(name: str, doc: str) -> str | None:
    """Declare an option that Spark gets as it is."""
    return option(name, STRING, f"Spark's own: {doc}", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonOptions(BadRowOptions):
    """The options of `from_json_registry`, made by `parse_json_options`."""

    mode: Mode = option(
        "mode",
        mode_kind(partial(drop_malformed_error, JsonAnalysisError, "from_json_registry")),
        "PERMISSIVE gives NULL for a message without a right frame; for text that doesn't fit the columns it "
        "gives what Spark's from_json does: a struct in which all fields are NULL, or those that do not fit. FAILFAST "
        "ends the query.",
        default="PERMISSIVE",
    )
    recursive_field_max_depth: int = option(
        "recursiveFieldMaxDepth",
        INTEGER,
        "How deep a schema that holds itself is followed: 1 drops the recursive field, 2 keeps one level of it, and so "
        "on up to 15. With 0 or less, recursion is an error. Not in Spark's from_json; as in from_avro.",
        default="-1",
        maximum=str(MOST_DEPTH),
    )
    corrupt_record: str | None = option(
        "columnNameOfCorruptRecord",
        STRING,
        "The name of a further column of the struct, which has the text of a message that is not JSON of the columns. "
        "Without it there is no such column, since the schema of the registry has none.",
        default=None,
    )
    allow_comments: str | None = _of_spark("allowComments", "take comments of Java and C++.")
    allow_unquoted: str | None = _of_spark("allowUnquotedFieldNames", "take names without quotes.")
    allow_single_quotes: str | None = _of_spark("allowSingleQuotes", "take single quotes too; true unless set.")
    allow_leading_zeros: str | None = _of_spark("allowNumericLeadingZeros", "take numbers such as 00012.")
    allow_backslash: str | None = _of_spark(
        "allowBackslashEscapingAnyCharacter", "take a backslash before any character."
    )
    allow_control: str | None = _of_spark("allowUnquotedControlChars", "take control characters in texts.")
    allow_non_numeric: str | None = _of_spark("allowNonNumericNumbers", "take NaN and Infinity; true unless set.")
    date_format: str | None = _of_spark(
        "dateFormat", "the pattern of texts with format date, in place of RFC 3339. Any other text is a bad row."
    )
    timestamp_format: str | None = _of_spark(
        "timestampFormat",
        "the pattern of texts with format date-time, in place of RFC 3339. Any other text is a bad row.",
    )
    time_zone: str | None = _of_spark(
        "timeZone",
        "the time zone of texts for which timestampFormat has none; UTC unless set, whatever the session's is. Without "
        "timestampFormat each text has its own.",
    )
    locale: str | None = _of_spark("locale", "the language of the names in dateFormat and timestampFormat.")
    max_nesting_depth: str | None = _of_spark("maxNestingDepth", "how deep a message may be nested.")
    max_number: str | None = _of_spark("maxNumLen", "how many characters a number may have.")
    max_string: str | None = _of_spark("maxStringLen", "how many characters a text may have.")
    case_sensitive: bool = False  # derived: spark.sql.caseSensitive

    def for_spark(self) -> dict[str, str]:
        """Return what Spark's from_json gets. Never empty: then Spark would parse a message once for each column."""
        options = {
            declared.name: getattr(self, field)
            for field, declared in declared_options(type(self)).items()
            if field not in _OWN
        }
        return {"mode": self.mode.upper(), **{name: text for name, text in options.items() if text is not None}}

    def pattern_of(self, meaning: str) -> dict[str, str] | None:
        """Return what Spark gets to read texts of a meaning by the user's pattern; None if there is no pattern."""
        pattern = {"date": self.date_format, "timestamp": self.timestamp_format}.get(meaning)
        if pattern is None:
            return None
        locale = {} if self.locale is None else {"locale": self.locale}
        zone = {"timeZone": self.time_zone or "UTC", "enableDateTimeParsingFallback": "false"}
        return {"mode": "PERMISSIVE", f"{meaning}Format": pattern, **zone, **locale}


def parse_json_options(raw: Mapping[str, str] | None) -> JsonOptions:
    """Parse the options of a call; names in any case, as Spark takes them."""
    return parse_call_options(JsonOptions, raw, "from_json_registry")
