"""The command ``connectors fetch``: the fetchers of a query with ``fetch=external``, outside of Spark."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from connectors.cli.errors import log_to_stderr, named_errors, printable
from connectors.cli.options import OPTIONS_FILE, read_options
from connectors.core.formats import spool_connector
from connectors.core.options.declaration import secret_options

if TYPE_CHECKING:
    from connectors.spool.fetching.group import FetcherStatus


def fetch(
    source: Annotated[
        str, typer.Argument(metavar="FORMAT", help="What to fetch: pubsub, or MODULE:CLASS of your own source.")
    ],
    options_file: Annotated[str | None, OPTIONS_FILE] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", metavar="NAME=VALUE", help="One more option; no secrets here. Repeatable."),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="How many of the fetchers run here. Default: all, as the option fetchers says."),
    ] = None,
) -> None:
    """Fetch into the spool of a query that has fetch=external, until stopped with Ctrl-C or SIGTERM.

    Takes the options of the query. The option fetchers counts the fetchers of all machines together; this command runs
    some or all of them. Exit codes: 0 when stopped, 2 after a permanent error.
    """
    log_to_stderr()
    stopped = threading.Event()
    with named_errors(extra="spool"):
        connector = spool_connector(source)
        # Lazily: they need the extra spool.
        from connectors.spool.fetching.external import run_fetchers  # noqa: PLC0415
        from connectors.spool.source.start import external_plans  # noqa: PLC0415

        options = read_options(secret_options(connector.options), source, options_file, option or [])
        plans = external_plans(connector, options, None)
        count = plans[0].share_of // len(plans)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopped.set())
        here = min(processes or count, count)
        _say(f"fetching into {plans[0].root} with {here} of {count} fetchers a subscription")
        run_fetchers(plans, here, stopped, report=_say_once())
    _say("ended")


def _say_once() -> Callable[[Sequence[FetcherStatus]], None]:
    """Return what says, once, that all fetchers are at work."""
    said = False

    def see(statuses: Sequence[FetcherStatus]) -> None:
        nonlocal said
        if not said and all(status.healthy for status in statuses):
            said = True
            _say("all fetchers are at work")

    return see


def _say(text: str) -> None:
    sys.stderr.write(f"{printable(text)}\n")
