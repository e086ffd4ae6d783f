"""The reference page of the codes of errors, warnings and findings, grouped by connector."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

from connectors.core import errors as core_errors

__all__ = ["ErrorCode", "error_codes", "errors_page"]

_INTRO: Final = """\
Every error begins with its code: `[CODE] what is wrong (where). What to do.`
The code is stable, and is the attribute `code` of the error where it is caught in the driver; the texts may get better.
What comes from `load()`, from a task or from the source's process reaches the driver inside of an error of Spark's,
often with a traceback: **the last line of the traceback has the code and the text**. Lines of the log and
findings of `connectors doctor` and `connectors spool verify` have codes too.

Below are a table for each connector, and then [what to do about each code](#in-detail)."""
_GROUPS: Final = {
    "option": "Options, offsets and the network",
    "pubsub": "`pubsub`",
    "kinesis": "`kinesis`",
    "kafka": "`kafka_py`",
    "spool": "The spool and its fetchers",
    "protobuf": "`from_protobuf` and `to_protobuf`",
    "avro": "`from_avro`, `to_avro`",
    "json": "`from_json_registry`, `to_json_registry`",
    "registry": "Schema registries",
    "observe": "Watching and supervising",
    "doctor": "This machine and its Spark",
    "command": "Commands",
}
_DETAIL: Final = """\
What each code means and what to do, in the order of the alphabet. The error itself has more: it names what is wrong
with its values, and where."""
_KINDS: Final = {
    "warning": "a line of the log",
    "finding": "a finding",
    "BadRowError": "a row that cannot be converted",
}


@dataclass(frozen=True)
class ErrorCode:
    """A stable code of an error, a warning or a finding, as the table declares it.

    Attributes:
        kinds: the classes of its errors; ``warning`` for a line of the log, ``finding`` for one of a check.
        meaning: what is wrong, in Markdown.
        action: what to do, in Markdown; may be empty.
    """

    code: str
    kinds: tuple[str, ...]
    meaning: str
    action: str


@cache
def error_codes() -> dict[str, tuple[ErrorCode, ...]]:
    """Return the codes of ``core/errors/codes.toml`` by group of the page, each group sorted.

    Raises:
        ValueError: the table has another group, or a code stands in two of them.
        TypeError: an entry lacks a key, or has one that is unknown.
    """
    table = core_errors.error_table()
    codes = [code for group in table.values() for code in group]
    if set(table) != set(_GROUPS) or len(set(codes)) < len(codes):
        raise ValueError(f"codes.toml: the groups are {', '.join(_GROUPS)}, and each code stands in one of them")
    return {name: tuple(_declared(code, **entry) for code, entry in sorted(table[name].items())) for name in _GROUPS}


def errors_page() -> str:
    """Return the page: a table for each connector, and then the details of all codes."""
    parts = ["# Error codes", _INTRO, "## Kinds of errors", "\n".join(_classes())]
    for name, group in error_codes().items():
        rows = [_row(code) for code in group]
        parts += [f"## {_GROUPS[name]}", "\n".join(["| code | kind | meaning |", "|---|---|---|", *rows])]
    parts += ["## In detail", _DETAIL]
    codes = sorted((code for group in error_codes().values() for code in group), key=lambda code: code.code)
    return "\n\n".join(parts + [part for code in codes for part in _section(code)]) + "\n"


def _declared(code: str, *, kinds: list[str], meaning: str, action: str = "") -> ErrorCode:
    return ErrorCode(code, tuple(kinds), meaning, action)


def _row(code: ErrorCode) -> str:
    """Return the row of a table; the anchor is the one that the site gives to the heading of the details."""
    anchor = re.sub(r"[^a-z0-9_-]", "", code.code.lower())
    return f"| [`{code.code}`](#{anchor}) | {_kinds(code)} | {code.meaning.replace('|', chr(92) + '|')} |"


def _kinds(code: ErrorCode) -> str:
    return ", ".join(_KINDS.get(kind, f"`{kind}`") for kind in code.kinds)


def _classes() -> Iterator[str]:
    yield "The classes are those of [connectors.core.errors](python.md#connectorscoreerrors). *Transient* means that a"
    yield "later attempt can succeed without a change: `supervise` of `connectors.observe` restarts such a query."
    yield ""
    yield "| class | | |"
    yield "|---|---|---|"
    for name in core_errors.__all__:
        kind = getattr(core_errors, name)
        if inspect.isclass(kind) and issubclass(kind, core_errors.ConnectorError):
            text = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split()).replace("``", "`")
            yield f"| `{name}` | {'transient' if kind.transient else ''} | {text} |"


def _section(code: ErrorCode) -> Iterator[str]:
    yield f"### `{code.code}`"
    named = _kinds(code)
    yield f"{named[0].upper()}{named[1:]}. {code.meaning}"
    if code.action:
        yield f"**Do:** {code.action}"
