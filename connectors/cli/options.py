"""Read the options of a source from the command line: a file, and arguments, which every process can see."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from connectors.core.errors import OptionError
from connectors.core.options.kinds import SECRET, option_texts

if TYPE_CHECKING:
    from connectors.core.options.declaration import Option

OPTIONS_FILE = typer.Option(
    "--options", metavar="FILE", help="File with a JSON object of the query's options; - for standard input."
)
_SECRET_SOURCES = ("env:", "file:")


def read_options(secrets: Mapping[str, Option], source: str, file: str | None, pairs: Iterable[str]) -> dict[str, str]:
    """Return the options of a JSON file, ``-`` for standard input, and of arguments, ``NAME=VALUE``.

    Raises:
        OptionError: the file cannot be read, an argument is not NAME=VALUE, or would show a secret to every process.
    """
    options = {} if file is None else _from_file(source, file)
    for pair in pairs:
        name, separator, value = pair.partition("=")
        declared = secrets.get(name.strip().lower())
        if declared is not None and not (declared.kind is SECRET and value.startswith(_SECRET_SOURCES)):
            raise OptionError(
                "OPTION_SECRET_IN_ARGUMENT",
                f"The option {name.strip()} is secret, and every process on the machine can see arguments",
                source,
            )
        if not separator or not name:
            # Not shown: it may be a secret that was typed in a wrong way.
            what = "A --option is not in the form NAME=VALUE"
            raise OptionError("OPTION_ILLEGAL", what, source, "Write -o subscriptionId=orders.")
        options[name.strip()] = value
    return options


def _from_file(source: str, file: str) -> dict[str, str]:
    where = "standard input" if file == "-" else file
    try:
        value = json.loads(sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        # Not chained: the error of a parser shows what it read.
        what = f"The options cannot be read from {where}"
        raise OptionError("OPTION_FILE_UNREADABLE", what, source) from None
    if not isinstance(value, dict):
        raise OptionError("OPTION_FILE_UNREADABLE", f"There is no JSON object in {where}", source)
    return option_texts(value)
