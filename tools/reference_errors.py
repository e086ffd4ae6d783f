"""The reference pages of the codes of errors, warnings and findings: an index, and a page for each connector."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

from connectors.core import errors as core_errors

__all__ = ["ErrorCode", "error_codes", "error_pages"]

_INTRO: Final = """\
Find a code here, or by the search of the site; it leads to what the code means and what to do.

```text
[CODE] What happened (where). What to do.
```

Codes stay the same between versions; texts may change.
Lines of the log and findings of `connectors doctor` and `connectors spool verify` have codes too. A caught error
has its code in the attribute `code`. Errors from `load()`, a task or the source's process arrive inside an error of
Spark, often with a traceback: **its last line has the code and the text**."""
_PAGES: Final = {
    "options": "Errors of options and the network",
    "pubsub": "Errors of pubsub",
    "kinesis": "Errors of kinesis",
    "kafka": "Errors of kafka_py",
    "spool": "Errors of the spool and its fetchers",
    "protobuf": "Errors of from_protobuf and to_protobuf",
    "avro": "Errors of from_avro and to_avro",
    "json": "Errors of from_json_registry",
    "mixed": "Errors of from_mixed and to_mixed",
    "registry": "Errors of schema registries",
    "tools": "Errors of the doctor, commands and observers",
}
_PAGE_OF: Final = {"option": "options", "observe": "tools", "doctor": "tools", "command": "tools"}
"""The pages of those groups of the table that have none of their own name."""
_GROUPS: Final = (
    "option",
    "pubsub",
    "kinesis",
    "kafka",
    "spool",
    "protobuf",
    "avro",
    "json",
    "mixed",
    "registry",
    "observe",
    "doctor",
    "command",
)
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
    """Return the codes of ``core/errors/codes.toml`` by group, each group sorted.

    Raises:
        ValueError: the table has another group, or a code stands in two of them.
        TypeError: an entry lacks a key, or has one that is unknown.
    """
    table = core_errors.error_table()
    codes = [code for group in table.values() for code in group]
    if set(table) != set(_GROUPS) or len(set(codes)) < len(codes):
        raise ValueError(f"codes.toml: the groups are {', '.join(_GROUPS)}, and each code stands in one of them")
    return {name: tuple(_declared(code, **entry) for code, entry in sorted(table[name].items())) for name in _GROUPS}


def error_pages() -> dict[str, str]:
    """Return the pages by their names: the index, ``errors``, and one for each connector, as ``errors/kafka``."""
    pages: dict[str, list[ErrorCode]] = {name: [] for name in _PAGES}
    for name, group in error_codes().items():
        pages[_PAGE_OF.get(name, name)] += group
    return {"errors": _index(pages)} | {f"errors/{name}": _page(name, codes) for name, codes in pages.items()}


def _index(pages: dict[str, list[ErrorCode]]) -> str:
    parts = ["# Error codes", _INTRO]
    for name, codes in pages.items():
        ordered = sorted(codes, key=lambda code: code.code)
        links = [f"[`{code.code}`](errors/{name}.md#{_anchor(code)})" for code in ordered]
        parts += [f"## {_PAGES[name]}", ",\n".join(links)]
    return "\n\n".join([*parts, "## Classes of errors", "\n".join(_classes())]) + "\n"


def _page(name: str, codes: list[ErrorCode]) -> str:
    intro = "What each code means and what to do. The error itself has the values and the place."
    sections = [part for code in sorted(codes, key=lambda code: code.code) for part in _section(code)]
    return "\n\n".join([f"# {_PAGES[name]}", f"{intro} [All codes](../errors.md).", *sections]) + "\n"


def _declared(code: str, *, kinds: list[str], meaning: str, action: str = "") -> ErrorCode:
    return ErrorCode(code, tuple(kinds), meaning, action)


def _anchor(code: ErrorCode) -> str:
    """Return the anchor that the site and GitHub give to the heading of a code."""
    return re.sub(r"[^a-z0-9_-]", "", code.code.lower())


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
    yield f"## `{code.code}`"
    named = _kinds(code)
    yield f"{named[0].upper()}{named[1:]}. {code.meaning}"
    if code.action:
        yield f"**Do:** {code.action}"
