"""How every command says that it could not be carried out: a named error, and exit code 2."""

from __future__ import annotations

import contextlib
import json as json_text
import sys
from collections.abc import Iterator
from typing import NoReturn

import typer
from rich.console import Console
from rich.text import Text

from connectors.core.errors import ConnectorError
from connectors.core.extras import packages_missing

__all__ = ["fail", "named_errors"]

_NOT_CARRIED_OUT = 2


def fail(error: ConnectorError, *, json: bool = False) -> NoReturn:
    """Print an error to standard error, with ``json`` also as one object to standard output, and end with 2.

    Raises:
        typer.Exit: always.
    """
    # Soft wrap: a path that is broken at the edge of the terminal cannot be copied.
    Console(stderr=True, soft_wrap=True).print(Text(str(error)))
    if json:
        sys.stdout.write(json_text.dumps({"error": error.to_json()}, sort_keys=True) + "\n")
    raise typer.Exit(_NOT_CARRIED_OUT)


@contextlib.contextmanager
def named_errors(*, json: bool = False, extra: str = "") -> Iterator[None]:
    """End the command by `fail` if what is done within raises a `ConnectorError`.

    Args:
        json: see `fail`.
        extra: the one that brings what is imported within. A command imports that here and not at the top of its
            module, so that its help needs no extra.
    """
    try:
        yield
    except ConnectorError as error:
        fail(error, json=json)
    except ModuleNotFoundError as error:
        if not extra or error.name is None or error.name.startswith("connectors"):
            raise
        fail(packages_missing([error.name], "this command", extra), json=json)
