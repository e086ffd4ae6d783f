"""The tables of options in the reference, and the details below them, from the declarations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from connectors.core.options.declaration import Option, declared_options

__all__ = ["Group", "option_sections"]

_UNTIL_ABSENT = re.compile(r"(?:[;:] |\. )([^;:.]*?(?:\.[a-z][^;:.]*?)*) when absent")
_SAID_DEFAULT = re.compile(r"Default: (.+?)\.(?: |$)")
_SENTENCE = re.compile(r"(?<=[^.][.])\s+(?=[A-Z])")


@dataclass(frozen=True)
class Group:
    """Options that belong together, in the order of the page.

    Attributes:
        title: the heading of the group.
        used_by: what reads them: stream, batch, write.
        names: the options, separated by blanks.
    """

    title: str
    used_by: str
    names: str


def option_sections(groups: Sequence[Group], cls: type, *, shown_above: type | None = None) -> list[str]:
    """Return a table for each group, and then the details of all options in the same order.

    Args:
        groups: all options of the class, without those of `shown_above`.
        cls: declares the options.
        shown_above: a class whose options the page has already.

    Raises:
        ValueError: an option is in no group or in two, or a group names none.
    """
    above = {option.name: option for option in declared_options(shown_above).values()} if shown_above else {}
    options_of_class = {option.name: option for option in declared_options(cls).values()}
    declared = {name: option for name, option in options_of_class.items() if above.get(name) != option}
    grouped = [name for group in groups for name in group.names.split()]
    if sorted(grouped) != sorted(declared):
        differing = sorted(set(grouped) ^ set(declared)) or sorted({one for one in grouped if grouped.count(one) > 1})
        raise ValueError(f"an option is in no group of tools/reference.py, or in two: {', '.join(differing)}")
    lines: list[str] = []
    for group in groups:
        options = sorted((declared[name] for name in group.names.split()), key=lambda option: not option.required)
        lines += ["", f"### {group.title}", "", "| option | type | default | used by | |", "|---|---|---|---|---|"]
        lines += [_row(option, group.used_by) for option in options]
    lines += ["", "### In detail"]
    return lines + [line for name in grouped for line in _details(declared[name])]


def _row(option: Option, used_by: str) -> str:
    link = f"[`{option.name}`](#{re.sub(r'[^a-z0-9_-]', '', option.name.lower())})"
    cells = (link, option.kind.name, _default(option), used_by, _first_sentence(option.doc))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(option: Option) -> str:
    """Return the default in effect: the declared one, or what the text says of an option that is absent."""
    if option.required:
        return "required"
    if option.default is not None:
        return f"`{option.default}`"
    said = _SAID_DEFAULT.search(option.doc) or _UNTIL_ABSENT.search(option.doc)
    return said[1].strip() if said else "none"


def _first_sentence(text: str) -> str:
    return _SENTENCE.split(text, maxsplit=1)[0]


def _details(option: Option) -> Iterator[str]:
    also = f" Other names: `{'`, `'.join(option.aliases)}`." if option.aliases else ""
    default = "Required" if option.required else f"Default: {_default(option)}"
    yield from ("", f"#### `{option.name}`", "")
    yield from (f"Type: {option.kind.name}. Valid values: {option.legal}. {default}.{also}", "", option.doc)
