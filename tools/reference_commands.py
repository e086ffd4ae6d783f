"""The reference page of the command line: every command, its arguments and options, as the program declares them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo

from connectors.cli.main import app

__all__ = ["Command", "Parameter", "commands", "commands_page"]

_INTRO = """\
Generated from the code by `./dev docs`. The package installs the command `connectors`. `connectors --help` shows the
same in a terminal, and `connectors --version` the version. A command whose extra is not installed says which package is
missing; its help needs no extra. The exit code is 0 if all is well, 1 if the command found something wrong, and 2 if it
could not run. With 2, standard error has a named error, and with `--json` standard output has it too, as
`{"error": {"code": ..., "what": ..., "where": ..., "action": ...}}`."""


@dataclass(frozen=True)
class Parameter:
    """An argument or an option of a command.

    Attributes:
        names: the flags of an option; none for an argument.
        value: what stands for its value; empty for a flag without one.
        text: what it says of itself.
    """

    names: tuple[str, ...]
    value: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command: its words, such as ``connectors spool verify``, what it says of itself, and what it takes."""

    words: str
    text: str
    parameters: tuple[Parameter, ...]

    @property
    def flags(self) -> set[str]:
        """All flags, in all spellings."""
        return {name for one in self.parameters for name in one.names}


def commands() -> list[Command]:
    """Every command, by its words."""
    return sorted(_walk("connectors", app), key=lambda one: one.words)


def commands_page() -> str:
    """The page."""
    parts = ["# The command line", _INTRO]
    for command in commands():
        parts += _section(command)
    return "\n\n".join(parts) + "\n"


def _walk(words: str, group: typer.Typer) -> Iterator[Command]:
    for one in group.registered_commands:
        if one.callback is not None and not one.hidden:
            yield _command(f"{words} {one.name or one.callback.__name__}", one.callback)
    for below in group.registered_groups:
        if below.typer_instance is not None:
            yield from _walk(f"{words} {below.name}", below.typer_instance)


def _command(words: str, callback: Callable[..., Any]) -> Command:
    hints = get_type_hints(callback, include_extras=True)
    parameters = inspect.signature(callback).parameters.values()
    return Command(words, inspect.getdoc(callback) or "", tuple(_parameter(one, hints[one.name]) for one in parameters))


def _parameter(one: inspect.Parameter, hint: Any) -> Parameter:
    kind, *notes = get_args(hint)
    (info,) = (note for note in notes if isinstance(note, OptionInfo | ArgumentInfo))
    if isinstance(info, ArgumentInfo):
        name = info.metavar or one.name.upper()
        return Parameter((), name if one.default is inspect.Parameter.empty else f"[{name}]", info.help or "")
    value = "" if kind is bool else info.metavar or _value_name(kind)
    default = "" if one.default in {None, False} else f" Default: {one.default:,}."
    # In an annotation the first flag stands where the default stands otherwise.
    names = [name for name in (info.default, *(info.param_decls or ())) if isinstance(name, str)]
    return Parameter(tuple(names) or (f"--{one.name.replace('_', '-')}",), value, (info.help or "") + default)


def _value_name(kind: Any) -> str:
    names = {int: "NUMBER", float: "NUMBER", Path: "PATH"}
    return next((names[each] for each in (kind, *get_args(kind)) if each in names), "TEXT")


def _section(command: Command) -> Iterator[str]:
    arguments = [one.value for one in command.parameters if not one.names]
    options = ["[OPTIONS]"] if command.flags else []
    yield f"## `{command.words}`"
    yield "```\n" + " ".join([command.words, *arguments, *options]) + "\n```"
    yield command.text
    rows = [f"| {_names(one)} | {_cell(one.text)} |" for one in command.parameters]
    if rows:
        yield "\n".join(["| | |", "|---|---|", *rows])


def _names(one: Parameter) -> str:
    return ", ".join(f"`{_cell(f'{name} {one.value}'.strip())}`" for name in one.names or ("",))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
