"""The reference page of the codes of errors, warnings and findings, grouped by connector."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Final

from connectors.core import errors as core_errors
from tools.error_codes import ErrorCode, Meaning, error_codes

__all__ = ["errors_page"]

_INTRO: Final = """\
Generated from the code by `./dev docs`. Every error begins with its code: `[CODE] what is wrong (where). What to do.`
The code is stable, and is the attribute `code` of the error where it is caught in the driver; the texts may get better.
What comes from a task or from a reader's process reaches the driver inside of an error of Spark's, whose message holds
the text. Lines of the log and findings of `connectors doctor` and `connectors spool verify` have codes too. A part of a
text that only a run knows is shown as its name in angle brackets, or as three dots."""
_GROUPS: Final = {
    "option": "Options, offsets and the network",
    "pubsub": "`pubsub`",
    "kinesis": "`kinesis`",
    "kafka": "`kafka_py`",
    "spool": "The spool and its fetchers",
    "protobuf": "`from_protobuf` and `to_protobuf`",
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
_PACKAGES: Final = {"core": "option", **{name: name for name in _GROUPS if name != "option"}}
_KINDS: Final = {
    "warning": "a line of the log",
    "finding": "a finding",
    "BadRowError": "a row that cannot be converted",
}


def errors_page() -> str:
    """The page."""
    grouped: dict[str, list[ErrorCode]] = {name: [] for name in _GROUPS}
    for code in error_codes():
        grouped[_group(code)].append(code)
    parts = ["# Error codes", _INTRO, "## Kinds of errors", "\n".join(_classes())]
    for name, codes in grouped.items():
        parts.append(f"## {_GROUPS[name]}")
        parts += [part for code in codes for part in _section(code)]
    return "\n\n".join(parts) + "\n"


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
    kinds = list(dict.fromkeys(meaning.kind for meaning in code.meanings))
    named = ", ".join(_KINDS.get(kind, f"`{kind}`") for kind in kinds)
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
