"""The command ``connectors watch``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from connectors.cli.errors import console, named_errors, needed_width
from connectors.core.errors import ConnectorError

if TYPE_CHECKING:
    from connectors.observe.console import QueryView
    from connectors.observe.lag import SourceMeasurement

_SILENT_SECONDS = 60.0
_STYLES = {"running": "green", "idle": "cyan", "ended": "dim", "failed": "bold red"}


def watch(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file of an observer: watch(spark, file=...).")],
    *,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two readings.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Read once, then exit.")] = False,
) -> None:
    """Show queries live: lag, rate, spool. Waits for the file if it does not exist yet. Stop it with Ctrl-C."""
    from connectors.observe.console import LineViews  # noqa: PLC0415 - loads Spark, which doctor need not

    views, screen = LineViews(file), console()
    with named_errors(), contextlib.suppress(KeyboardInterrupt):
        if once:
            shown = _screen(views.refresh())
            console(width=max(screen.width, needed_width(screen, shown))).print(shown)
            return
        seen: list[QueryView] = []
        with Live(console=screen, auto_refresh=False) as live:
            while True:
                try:
                    seen, note = views.refresh(), ""
                except ConnectorError as error:
                    if error.code != "OBSERVE_FILE_MISSING":
                        raise
                    note = f"waiting: {error}"  # the driver starts, or restarts
                live.update(_screen(seen, note), refresh=True)
                time.sleep(every)


def _screen(views: Sequence[QueryView], note: str = "") -> RenderableType:
    parts: list[RenderableType] = [Text(time.strftime("%Y-%m-%d %H:%M:%S"), style="dim")]
    for view in views:
        parts.append(_head(view))
        if view.error:
            parts.append(Text(f"  {_one_line(view.error)}", style="red"))
        if view.newest.sources:
            parts.append(_table(view.newest.sources))
    if note or not views:
        parts.append(Text(note or "no query has reported yet", style="yellow"))
    return Group(*parts)


def _head(view: QueryView) -> Text:
    newest = view.newest
    head = Text(_one_line(newest.name or newest.query), style="bold")
    since = f" for {_age(view.batch_ended_ms)}" if view.state == "idle" else ""
    head.append(f"  {view.state}{since}", style=_STYLES[view.state])
    done = f"batch {newest.batch:,}  {newest.batch_ms / 1000:.2f} s" if newest.batch >= 0 else "no batch yet"
    head.append(f"  {done}  {newest.rows_per_second:,.0f} rows/s", style="not bold")
    is_silent = view.state in {"running", "idle"} and time.time() - newest.time_ms / 1000 > _SILENT_SECONDS
    head.append(f"  reported {_age(newest.time_ms)} ago", style="bold yellow" if is_silent else "not bold dim")
    return head


def _age(time_ms: float) -> str:
    seconds = max(0.0, time.time() - time_ms / 1000)
    for size, unit, below in ((1, "s", 100), (60, "min", 100), (3600, "h", 72)):
        if seconds < size * below:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:,.0f} days"


def _one_line(text: str) -> str:
    """Return a name without line feeds, which would look like lines of ours."""
    return text.replace("\n", " ")


def _table(sources: Sequence[SourceMeasurement]) -> Table:
    """Return the sources, without columns that have no value."""
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    table.add_column("  source", no_wrap=True)
    rows = [_figures(source) for source in sources]
    shown = [name for name in rows[0] if any(row[name] for row in rows)]
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    for number, (source, row) in enumerate(zip(sources, rows, strict=True)):
        table.add_row(Text(_one_line(f"  {number} {source.kind}")), *(Text(row[name]) for name in shown))
    return table


def _figures(source: SourceMeasurement) -> dict[str, str]:
    """Return the cells of a source by column; empty where there is no value."""
    spool, several = source.spool, len(source.partitions) > 1
    records, name = max(((lag.records or 0, name) for name, lag in source.partitions.items()), default=(0, ""))
    furthest = _one_line(f"{name} by {records:,}") if records else "none"
    return {
        "partitions": f"{len(source.partitions):,}" if several else "",
        "behind": "not counted" if source.records is None else f"{source.records:,}",
        "behind s": f"{source.milliseconds / 1000:,.1f}",
        "furthest": furthest if several and source.records is not None else "",
        "unread bytes": f"{spool.bytes:,}" if spool else "",
        "oldest s": f"{spool.oldest_unread_ms / 1000:,.1f}" if spool else "",
        "duplicates": f"{spool.duplicates:,}" if spool else "",
        "on executors": f"{len(spool.executor_fetchers)} fetchers" if spool and spool.executor_fetchers else "",
    }
