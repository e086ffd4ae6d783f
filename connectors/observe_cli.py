"""The commands ``connectors watch`` and ``connectors report``."""

from __future__ import annotations

import contextlib
import http.client
import os
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from connectors.core.errors import ConnectorError, OptionError, ServiceUnavailableError
from connectors.errors_cli import console, named_errors, printable

if TYPE_CHECKING:
    from connectors.observe.view import QueryView, SourceView

__all__ = ["report", "watch"]

_SECONDS = 5.0
_STYLES = {"running": "green", "ended": "dim", "failed": "bold red"}


def watch(
    source: Annotated[str, typer.Argument(metavar="FILE|URL", help="A file of an observer, or its metrics.")],
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,  # noqa: FBT002 - a flag of the command line
) -> None:
    """Show queries live: lag, speed, spool. Ends with Ctrl-C."""
    from connectors.observe.view import LineViews  # noqa: PLC0415 - loads Spark, which doctor must not need

    url = source.startswith(("http://", "https://"))
    look: Callable[[], list[QueryView]] = (lambda: _fetch(source)) if url else LineViews(Path(source)).look
    screen = console()
    with named_errors(), contextlib.suppress(KeyboardInterrupt):
        if once:
            screen.print(_screen(look()))
            return
        with Live(_screen(look()), console=screen, auto_refresh=False) as live:
            while True:
                time.sleep(every)
                live.update(_screen(look()), refresh=True)


def report(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of an observer.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Default: FILE with .html.")] = None,
) -> None:
    """Make one HTML page with plots: throughput, latency, lag, duplicates; it loads nothing from anywhere."""
    from connectors.observe.report import page  # noqa: PLC0415 - as above
    from connectors.observe.view import read_lines  # noqa: PLC0415

    with named_errors():
        events, _ = read_lines(file)
        if not any("query" in event for event in events):
            raise ConnectorError(
                "OBSERVE_FILE_EMPTY",
                "No query is in this file",
                str(file),
                "Give the file that watch(spark, file=...) writes, once a query has started.",
            )
        target = output or file.with_suffix(".html")
        _write(target, page(events, f"Streams in {file.name}"), file)
    console(soft_wrap=True).print(Text(str(target)))


def _write(target: Path, text: str, source: Path) -> None:
    """Write the page.

    Raises:
        ConnectorError: it would replace what it was made of, or cannot be written.
    """
    from connectors.observe.lines import open_private  # noqa: PLC0415 - as above

    try:
        if target.exists() and target.samefile(source):
            what = "The page would overwrite the file that it is made of"
            raise OptionError("OBSERVE_OUTPUT", what, str(target), "Name another file with --output.")
        with os.fdopen(open_private(target, os.O_WRONLY | os.O_TRUNC), "w", encoding="utf-8") as page:
            page.write(printable(text))
    except OSError as error:
        raise ConnectorError(
            "OBSERVE_OUTPUT",
            f"The page cannot be written: {error.strerror or error}",
            str(target),
            "Name a file with --output, in a folder that is there.",
        ) from None


def _fetch(url: str) -> list[QueryView]:
    """The metrics of an observer.

    Raises:
        ConnectorError: it does not answer, or with something else.
    """
    from connectors.observe.view import views_of_metrics  # noqa: PLC0415 - as above

    if "@" in url:
        # Not shown: it may be a password.
        raise OptionError("OBSERVE_URL", "A URL with a log-in is not supported", "watch URL", "Leave it out.")
    try:
        asked = urllib.request.Request(url, headers={"Accept": "application/openmetrics-text; version=1.0.0"})  # noqa: S310 - http only
        with urllib.request.urlopen(asked, timeout=_SECONDS) as answer:  # noqa: S310 - as above
            return views_of_metrics(answer.read().decode("utf-8", errors="replace"))
    except (OSError, http.client.HTTPException, ValueError) as error:  # the last two: no URL, or no answer in HTTP
        raise ServiceUnavailableError(
            "OBSERVE_URL",
            f"No metrics came: {str(error) or type(error).__name__}",
            url,
            "Give the URL of an observer that runs.",
        ) from None


def _screen(views: list[QueryView]) -> Group:
    """For each query a line, and below it a line for each source."""
    parts: list[RenderableType] = [Text(time.strftime("%H:%M:%S"), style="dim")]
    for view in views:
        head = Text(_one_line(view.name), style="bold")
        head.append(f"  {view.state}", style=_STYLES[view.state])
        head.append(f"  batch {view.batch:,}  {view.batch_seconds:.2f} s  {view.rows_per_second:,.0f} rows/s", style="")
        parts += [head, _table(view)] if view.sources else [head]
    return Group(*parts)


def _one_line(text: str) -> str:
    """A name as a part of one line: a line feed in it would look like a line of ours."""
    return text.replace("\n", " ")


def _table(view: QueryView) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    table.add_column("  source", no_wrap=True)
    for name in ("behind", "age s", "unread bytes", "oldest s", "duplicates"):
        table.add_column(name, justify="right", no_wrap=True)
    for source in view.sources:
        table.add_row(*_cells(source))
    return table


def _cells(source: SourceView) -> list[Text]:
    return [
        Text(_one_line(f"  {source.source} {source.kind}")),
        Text("-" if source.records is None else f"{source.records:,}"),
        Text(f"{source.seconds:,.1f}"),
        Text("-" if source.unread_bytes is None else f"{source.unread_bytes:,}"),
        Text("-" if source.oldest_seconds is None else f"{source.oldest_seconds:,.1f}"),
        Text("-" if source.duplicates is None else f"{source.duplicates:,}"),
    ]
