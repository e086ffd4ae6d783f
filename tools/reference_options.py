"""The table of options in the reference, and the details below it, from the declarations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from connectors.core.options.declaration import Option, declared_options

__all__ = ["Declared", "Group", "option_pages"]

_UNTIL_ABSENT = re.compile(r"(?:[;:] |\. )([^;:.]*?(?:\.[a-z][^;:.]*?)*) when absent")
_SAID_DEFAULT = re.compile(r"Default: (.+?)\.(?: |$)")
_SAID_REQUIRED = re.compile(r"(?:^|\. )((?:Required\b|This(?:,| or) )[^.]*?(?:\.[a-z][^.]*?)*)\.(?: |$)")
_HEAD = ("", "| option | type | default | used by | meaning |", "|---|---|---|---|---|")
_SENTENCE = re.compile(r"(?<=[^.][.])\s+(?=[A-Z])")


@dataclass(frozen=True)
class Group:
    """Options that belong together, in the order of the page.

    Attributes:
        title: the heading of the group.
        used_by: what reads them: stream, batch, write.
        names: the options, separated by blanks. One that no group names stands behind the one declared before it.
    """

    title: str
    used_by: str
    names: str


@dataclass(frozen=True)
class Declared:
    """A class of options, and how the page groups them.

    Attributes:
        cls: declares the options.
        groups: of the options of the class, without those of `shown_above`.
        required: the heading of the options that a query must have.
        shown_above: a class whose options the table has already.
    """

    cls: type
    groups: Sequence[Group]
    required: str = "Required"
    shown_above: type | None = None

    def ordered(self) -> list[tuple[str, str, Option]]:
        """Return heading, use and declaration of each option, the required ones first.

        Raises:
            ValueError: a group names what is no option or is in another group, or none names the first option.
        """
        above = declared_options(self.shown_above).values() if self.shown_above else ()
        shown = {option.name: option for option in above}
        options = {one.name: one for one in declared_options(self.cls).values() if shown.get(one.name) != one}
        named = [name for group in self.groups for name in group.names.split()]
        wrong = [name for name in dict.fromkeys(named) if name not in options or named.count(name) > 1]
        wrong += [name for name in list(options)[:1] if name not in named]
        if wrong:
            raise ValueError(
                f"no option, in two groups, or first and in none, in tools/reference.py: {', '.join(wrong)}"
            )
        behind: dict[str, list[Option]] = {}
        for name, option in options.items():
            if name in named:
                run = behind[name] = []
            run.append(option)
        rows = [
            (self.required if _required(option) else group.title, group.used_by, option)
            for group in self.groups
            for name in group.names.split()
            for option in behind[name]
        ]
        return sorted(rows, key=lambda row: row[0] != self.required)


def option_pages(*declared: Declared, first: str = "") -> tuple[list[str], list[str]]:
    """Return one table of all options, and their details in the same order; required options come first.

    `first` names the options that a first job needs, separated by blanks: they have a table of their own, and the
    others stand under "More".

    Raises:
        ValueError: the groups do not fit the options, or `first` names what is no option.
    """
    rows = [row for part in declared for row in part.ordered()]
    required = {part.required for part in declared}
    rows.sort(key=lambda row: row[0] not in required)
    of_first_job = first.split()
    if wrong := set(of_first_job) - {option.name for _, _, option in rows}:
        raise ValueError(f"no option, in tools/reference.py: {', '.join(sorted(wrong))}")
    rows.sort(key=lambda row: of_first_job.index(row[2].name) if row[2].name in of_first_job else len(of_first_job))
    table = list(_HEAD)
    details: list[str] = []
    counts: dict[str, int] = {}
    heading = ""
    for number, (title, used_by, option) in enumerate(rows):
        if first and number == len(of_first_job):
            table += ["", "### More", *_HEAD]
        if title != heading and number >= len(of_first_job):
            table.append(f"| **{title}** | | | | |")
            heading = title
        slug = re.sub(r"[^a-z0-9_-]", "", option.name.lower())
        anchor = f"{slug}-{counts[slug]}" if slug in counts else slug  # as the site names a repeated heading
        counts[slug] = counts.get(slug, 0) + 1
        table.append(_row(option, anchor, used_by))
        details += _details(option)
    return table, details


def _required(option: Option) -> str:
    """Return what the table says of an option that is required, always or in a case; empty for any other."""
    if option.required:
        return "required"
    said = _SAID_REQUIRED.search(option.doc)
    return said[1][0].lower() + said[1][1:] if said else ""


def _row(option: Option, anchor: str, used_by: str) -> str:
    cells = (f"[`{option.name}`](#{anchor})", option.kind.name, _default(option), used_by, _first_sentence(option.doc))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(option: Option) -> str:
    """Return the default in effect: the declared one, or what the text says of an option that is absent."""
    if said_required := _required(option):
        return said_required
    if option.default is not None:
        return f"`{option.default}`"
    said = _SAID_DEFAULT.search(option.doc) or _UNTIL_ABSENT.search(option.doc)
    return said[1].strip() if said else "none"


def _first_sentence(text: str) -> str:
    return _SENTENCE.split(text, maxsplit=1)[0]


def _details(option: Option) -> Iterator[str]:
    also = f" Other names: `{'`, `'.join(option.aliases)}`." if option.aliases else ""
    required = _required(option)
    default = required[0].upper() + required[1:] if required else f"Default: {_default(option)}"
    yield from ("", f"### `{option.name}`", "")
    text = option.doc if option.required else _SAID_REQUIRED.sub(". ", option.doc).strip()
    yield from (f"Type: {option.kind.name}. Valid values: {option.legal}. {default}.{also}", "", text)
