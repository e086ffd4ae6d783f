"""What every command shares: a console that nothing it prints can control, and named errors with exit code 2."""

from __future__ import annotations

import contextlib
import json as json_text
import logging
import sys
from collections.abc import Iterable, Iterator
from typing import NoReturn

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from connectors.core.errors import ConnectorError, printable
from connectors.core.formats import packages_missing

__all__ = ["console", "fail", "log_to_stderr", "named_errors", "needed_width", "printable"]

_NOT_CARRIED_OUT = 2
_WIDEST = 10_000


class _PrintableConsole(Console):
    """Passes all text that it renders through `printable`; the codes of Rich itself are added after that.

    What the encoding of the terminal has not is shown as a question mark.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render an object to segments."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                text = printable(segment.text).encode(self.encoding, "replace").decode(self.encoding)
                yield Segment(text, segment.style)


def console(*, stderr: bool = False, soft_wrap: bool = False, width: int | None = None) -> Console:
    """Return the console on which a command prints whatever it prints; as wide as the terminal without a `width`."""
    return _PrintableConsole(stderr=stderr, soft_wrap=soft_wrap, width=width)


def needed_width(screen: Console, renderable: RenderableType) -> int:
    """Return how wide a terminal has to be to show something without a break."""
    return screen.measure(renderable, options=screen.options.update(width=_WIDEST)).maximum


class _PrintableFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def log_to_stderr() -> None:
    """Write the log to standard error, for a command that runs until it is told to end."""
    handler = logging.StreamHandler()
    handler.setFormatter(_PrintableFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler])


def fail(error: ConnectorError, *, json: bool = False) -> NoReturn:
    """Print an error to standard error, with ``json`` also as one object to standard output, and end with 2.

    Raises:
        typer.Exit: always.
    """
    # Soft wrap: a path that is broken at the edge of the terminal cannot be copied.
    console(stderr=True, soft_wrap=True).print(Text(str(error)))
    if json:
        sys.stdout.write(json_text.dumps({"error": error.to_json()}, sort_keys=True) + "\n")
    raise typer.Exit(_NOT_CARRIED_OUT)


@contextlib.contextmanager
def named_errors(*, json: bool = False, extra: str = "") -> Iterator[None]:
    """End the command by `fail` if what is done within raises a `ConnectorError`, or an import needs the extra.

    A command imports within what needs an extra, so that its help needs none.
    """
    try:
        yield
    except ConnectorError as error:
        fail(error, json=json)
    except ModuleNotFoundError as error:
        if not extra or error.name is None or error.name.startswith("connectors"):
            raise
        fail(packages_missing([error.name], "this command", extra, executors=False), json=json)
