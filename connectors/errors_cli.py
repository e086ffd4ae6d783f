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
def named_errors(*, json: bool = False) -> Iterator[None]:
    """End the command by `fail` if what is done within raises a `ConnectorError`, or lacks the package of an extra.

    So a command imports what needs an extra within: its help needs none.
    """
    try:
        yield
    except ConnectorError as error:
        fail(error, json=json)
    except ModuleNotFoundError as error:
        fail(_package_missing(error), json=json)


def _package_missing(error: ModuleNotFoundError) -> ConnectorError:
    """The error for a command whose extra is not installed.

    Raises:
        ModuleNotFoundError: a module of this pack itself is missing.
    """
    if error.name is None or error.name.startswith("connectors"):
        raise error
    return packages_missing([error.name], "this command", "pubsub")
