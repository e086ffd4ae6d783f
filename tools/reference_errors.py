"""The reference page of the codes of errors, warnings and findings, grouped by connector."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Final

from connectors.core import errors as core_errors
from tools.error_codes import ErrorCode, Meaning, error_codes
from tools.error_summaries import SUMMARIES

__all__ = ["errors_page"]

_INTRO: Final = """\
Generated from the code by `./dev docs`. Every error begins with its code: `[CODE] what is wrong (where). What to do.`
The code is stable, and is the attribute `code` of the error where it is caught in the driver; the texts may get better.
What comes from `load()`, from a task or from the source's process reaches the driver inside of an error of Spark's,
often with a traceback: **the last line of the traceback has the code and the text**. Lines of the log and
findings of `connectors doctor` and `connectors spool verify` have codes too.

Below are a table for each connector, and then [all texts of each code](#in-detail)."""
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
_PREFIXES: Final = {
    "OPTION": "option",
    "OFFSET": "option",
    "PUBSUB": "pubsub",
    "KINESIS": "kinesis",
    "KAFKA": "kafka",
    "SPOOL": "spool",
    "FETCHER": "spool",
    "FETCHERS": "spool",
    "FETCH": "spool",
    "PACKAGES": "doctor",
    "CLOCK": "doctor",
    "SPARK": "doctor",
}
_DETAIL: Final = """\
All texts of each code, and what to do, in the order of the alphabet. A part of a text that only a run knows is shown as
its name in angle brackets, or as three dots."""
_PACKAGES: Final = {"core": "option", "functions": "protobuf", **{name: name for name in _GROUPS if name != "option"}}
_KINDS: Final = {
    "warning": "a line of the log",
    "finding": "a finding",
    "BadRowError": "a row that cannot be converted",
}


def errors_page() -> str:
    """Return the page: a table for each connector, and then the details of all codes.

    Raises:
        ValueError: a code has several texts and no summary, or a summary is about no code.
    """
    codes = error_codes()
    wrong = {code.code for code in codes if len(_texts(code)) > 1 or not _texts(code)[0]} - set(SUMMARIES)
    wrong |= set(SUMMARIES) - {code.code for code in codes}
    if wrong:
        raise ValueError(f"missing in tools/error_summaries.py, or too many there: {', '.join(sorted(wrong))}")
    grouped: dict[str, list[ErrorCode]] = {name: [] for name in _GROUPS}
    for code in codes:
        grouped[_group(code)].append(code)
    parts = ["# Error codes", _INTRO, "## Kinds of errors", "\n".join(_classes())]
    for name, group in grouped.items():
        rows = [_row(code) for code in group]
        parts += [f"## {_GROUPS[name]}", "\n".join(["| code | kind | meaning |", "|---|---|---|", *rows])]
    parts += ["## In detail", _DETAIL]
    return "\n\n".join(parts + [part for code in codes for part in _section(code)]) + "\n"


def _texts(code: ErrorCode) -> list[str]:
    return list(dict.fromkeys(meaning.what for meaning in code.meanings))


def _row(code: ErrorCode) -> str:
    """Return the row of a table; the anchor is the one that the site gives to the heading of the details."""
    anchor = re.sub(r"[^a-z0-9_-]", "", code.code.lower())
    meaning = SUMMARIES.get(code.code) or _escaped(code.meanings[0].what)
    return f"| [`{code.code}`](#{anchor}) | {_kinds(code)} | {meaning.replace('|', chr(92) + '|')} |"


def _kinds(code: ErrorCode) -> str:
    kinds = dict.fromkeys(meaning.kind for meaning in code.meanings)
    return ", ".join(_KINDS.get(kind, f"`{kind}`") for kind in kinds)


def _group(code: ErrorCode) -> str:
    by_prefix = _PREFIXES.get(code.code.split("_")[0])
    return by_prefix or _PACKAGES.get(code.meanings[0].package, "command")


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
    yield named[0].upper() + named[1:] + "."
    meanings = list(dict.fromkeys((meaning.what, meaning.action) for meaning in code.meanings))
    yield "\n".join(_line(Meaning("", what, action, "")) for what, action in meanings)


def _line(meaning: Meaning) -> str:
    what = _escaped(meaning.what) or "What is wrong is in its text."
    return f"- {what}" + (f" **Do:** {_escaped(meaning.action)}" if meaning.action else "")


def _escaped(text: str) -> str:
    """A text as it stands, for Markdown."""
    for mark in "\\`*<>[]":
        text = text.replace(mark, "\\" + mark)
    return text
