"""The command ``connectors fetch``: the fetchers of a query with ``fetch=external``, outside of Spark."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from connectors.core.errors import OptionError
from connectors.core.option_kinds import SECRET
from connectors.core.options import declared_options
from connectors.errors_cli import log_to_stderr, named_errors, printable

__all__ = ["fetch"]

_SECRET_SOURCES = ("env:", "file:")


def fetch(
    source: Annotated[str, typer.Argument(metavar="FORMAT", help="What to fetch: pubsub.")],
    options_file: Annotated[
        str | None,
        typer.Option("--options", metavar="FILE", help="A JSON object with options of the query; - reads it here."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", metavar="NAME=VALUE", help="One more option; no secrets here. Repeatable."),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="How many of the fetchers run here; all that the option fetchers says, if absent."),
    ] = None,
) -> None:
    """Fetch into the spool of a query that has fetch=external, until it is told to end (Ctrl-C, SIGTERM).

    Takes the options of the query. Of its fetchers, which the option fetchers counts in all places together, it runs
    some or all. Ends with 0 when told to end, with 2 after an error that no retry mends.
    """
    log_to_stderr()
    stopped = threading.Event()
    with named_errors(extra="pubsub"):
        from connectors.fetchers import fetching_of  # noqa: PLC0415 - needs the extra pubsub
        from connectors.spool.outside import run_fetchers  # noqa: PLC0415 - as above

        connector = fetching_of(source)
        given = _read_options(connector.OPTIONS, source, options_file, option or [])
        plans = connector.outside_plans(given, os.environ, None)
        count = plans[0].share_of // len(plans)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopped.set())
        here = min(processes or count, count)
        _say(f"fetching into {plans[0].root} with {here} of {count} fetchers a subscription")
        run_fetchers(plans, here, stopped, healthy=lambda: _say("all fetchers are at work"))
    _say("ended")


def _say(text: str) -> None:
    sys.stderr.write(f"{printable(text)}\n")


def _read_options(declaration: type, source: str, file: str | None, pairs: list[str]) -> Mapping[str, str]:
    """The options of file and arguments.

    Raises:
        OptionError: the file cannot be read, an argument is not NAME=VALUE, or would show a secret to every process.
    """
    options = {} if file is None else _from_file(source, file)
    sensitive = {
        name.lower(): declared
        for declared in declared_options(declaration).values()
        for name in (declared.name, *declared.aliases)
        if declared.sensitive
    }
    for pair in pairs:
        name, separator, value = pair.partition("=")
        declared = sensitive.get(name.strip().lower())
        if declared is not None and not (declared.kind is SECRET and value.startswith(_SECRET_SOURCES)):
            raise OptionError(
                "OPTION_SECRET_IN_ARGUMENT",
                f"The option {declared.name} is secret, and arguments are seen by every process of the machine",
                source,
                "Give it in the file of --options, or as env:NAME or file:PATH if it is a secret itself.",
            )
        if not separator or not name:
            # Not shown: it may be a secret that was typed in a wrong way.
            raise OptionError(
                "OPTION_ILLEGAL", "A --option is not NAME=VALUE", source, "Write -o subscriptionId=orders."
            )
        options[name.strip()] = value
    return options


def _from_file(source: str, file: str) -> dict[str, str]:
    where = "standard input" if file == "-" else file
    try:
        found = json.loads(sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # Not chained: the error of a parser shows what it read.
        raise OptionError(
            "OPTION_FILE_UNREADABLE", f"The options cannot be read from {where}", source, "Give a JSON object."
        ) from None
    if not isinstance(found, dict):
        raise OptionError("OPTION_FILE_UNREADABLE", f"There is no JSON object in {where}", source, "Give one.")
    from connectors.fetchers import option_texts  # noqa: PLC0415 - as above

    return option_texts(found)
