"""The commands ``connectors watch`` and ``connectors report``."""

from __future__ import annotations

import contextlib
import http.client
import time
import urllib.request
from collections.abc import Callable, Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from connectors.cli.errors import console, named_errors, printable
from connectors.core.errors import ConnectorError, OptionError, ServiceUnavailableError

if TYPE_CHECKING:
    from connectors.observe.console import QueryView, SourceView
    from connectors.observe.history import History

__all__ = ["report", "sparkline", "watch"]

_SECONDS = 5.0
_SILENT_SECONDS = 60.0
_COLUMNS = 30
_BARS = "▁▂▃▄▅▆▇█"
_TWO_DIGITS = 10
_STYLES = {"running": "green", "idle": "cyan", "ended": "dim", "failed": "bold red"}


def watch(
    source: Annotated[str, typer.Argument(metavar="FILE|URL", help="A file of an observer, or its metrics.")],
    *,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
) -> None:
    """Show queries live: lag, rate, spool. Waits for a file or URL that is not there yet. Ends with Ctrl-C."""
    from connectors.observe.console import LineViews, MetricViews  # noqa: PLC0415 - loads Spark, which doctor need not

    look: Callable[[], list[QueryView]]
    if source.startswith(("http://", "https://")):
        metrics = MetricViews()
        look = lambda: metrics.look(_fetch(source))  # noqa: E731 - as short as the other one
    else:
        look = LineViews(Path(source)).look
    screen = console()
    with named_errors(), contextlib.suppress(KeyboardInterrupt):
        if once:
            screen.print(_screen(look()))
            return
        seen: list[QueryView] = []
        with Live(console=screen, auto_refresh=False) as live:
            while True:
                try:
                    seen, note = look(), ""
                except ConnectorError as error:
                    if not _is_awaited(error):
                        raise
                    note = f"waiting: {error}"
                live.update(_screen(seen, note), refresh=True)
                time.sleep(every)


def _is_awaited(error: ConnectorError) -> bool:
    """Return whether the observer may be there later: its driver starts, or restarts."""
    return error.code == "OBSERVE_FILE_MISSING" or isinstance(error, ServiceUnavailableError)


def report(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of an observer.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Default: FILE with .html.")] = None,
) -> None:
    """Make one HTML page with charts: throughput, batch duration, lag, duplicates. It loads nothing from anywhere."""
    with named_errors(extra="report"):
        from connectors.observe import console as views  # noqa: PLC0415 - as above
        from connectors.observe import report as charts  # noqa: PLC0415 - needs the extra

        events, _ = views.read_lines(file)
        if not any("query" in event for event in events):
            raise ConnectorError(
                "OBSERVE_FILE_EMPTY",
                "No query is in this file",
                str(file),
                "Give the file that watch(spark, file=...) writes, once a query has started.",
            )
        target = output or file.with_suffix(".html")
        charts.write_page(target, printable(charts.page(events, f"Streams in {file.name}")), file)
    console(soft_wrap=True).print(Text(str(target)))


def _fetch(url: str) -> str:
    """Return the metrics of an observer.

    Raises:
        OptionError: the URL is malformed, or has a password.
        ServiceUnavailableError: nothing answers, or something else does.
    """
    if "@" in url:
        # Not shown: it may be a password.
        raise OptionError(
            "OBSERVE_URL", "A URL with a user or a password is not supported", "watch URL", "Leave it out."
        )
    try:
        asked = urllib.request.Request(url, headers={"Accept": "application/openmetrics-text; version=1.0.0"})  # noqa: S310 - http only
        with urllib.request.urlopen(asked, timeout=_SECONDS) as answer:  # noqa: S310 - as above
            return str(answer.read().decode("utf-8", errors="replace"))
    except (ValueError, http.client.InvalidURL) as error:
        raise OptionError("OBSERVE_URL", f"This is no URL: {error}", url, "Give the URL of an observer.") from None
    except (OSError, http.client.HTTPException) as error:
        raise ServiceUnavailableError(
            "OBSERVE_URL",
            f"No metrics came: {str(error) or type(error).__name__}",
            url,
            "Give the URL of an observer that runs.",
        ) from None


def _screen(views: list[QueryView], note: str = "") -> Group:
    parts: list[RenderableType] = [Text(time.strftime("%H:%M:%S"), style="dim")]
    for view in views:
        parts.append(_head(view))
        if view.error:
            parts.append(Text(f"  {_one_line(view.error)}", style="red"))
        parts += _past(view)
        if view.sources:
            parts.append(_table(view.sources))
    if note:
        parts.append(Text(note, style="yellow"))
    elif not views:
        parts.append(Text("no query has reported yet", style="dim"))
    return Group(*parts)


def _head(view: QueryView) -> Text:
    head = Text(_one_line(view.name), style="bold")
    since = f" for {_age(view.batch_ms)}" if view.state == "idle" else ""
    head.append(f"  {view.state}{since}", style=_STYLES[view.state])
    done = f"batch {view.batch:,}  {view.batch_seconds:.2f} s" if view.batch >= 0 else "no batch yet"
    head.append(f"  {done}  {view.rows_per_second:,.0f} rows/s", style="not bold")
    is_silent = view.state in {"running", "idle"} and time.time() - view.reported_ms / 1000 > _SILENT_SECONDS
    head.append(f"  reported {_age(view.reported_ms)} ago", style="bold yellow" if is_silent else "not bold dim")
    return head


def _past(view: QueryView) -> list[Text]:
    history = view.history
    if not history.seconds:
        return []
    rates, lags = history.rates(_COLUMNS), history.lags(_COLUMNS)
    rate = Text("  rows/s  ").append(sparkline(rates), style="green")
    rate.append(f"  up to {_figure(max(rates))}, over {_duration(history.seconds)}", style="dim")
    behind = Text("  behind  ").append(sparkline(lags), style="magenta")
    unit = "records" if history.counts_records else "s"
    behind.append(f"  {lags[-1]:,.{0 if history.counts_records else 1}f} {unit}")
    if view.state in {"running", "idle"} and (outlook := _outlook(history)):
        behind.append(f", {outlook}", style="yellow" if outlook.startswith("grows") else "")
    return [rate, behind]


def sparkline(values: Sequence[float]) -> str:
    """Return a bar for each value; only zero is the lowest one."""
    top = max(values, default=0.0)
    steps = len(_BARS) - 1
    return "".join(_BARS[min(steps, ceil(steps * value / top))] if value > 0 else _BARS[0] for value in values)


def _outlook(history: History) -> str:
    change, left = history.change(), history.seconds_left()
    if left is not None:
        return f"gone in about {_duration(left)}" if left >= 1 else ""
    if change is None or history.lags(1)[-1] <= 0:
        return ""
    if change > 0:
        return f"grows by {_figure(change)} records/s" if history.counts_records else "grows"
    return "steady"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= _TWO_DIGITS else f"{value:.2g}"


def _age(time_ms: float) -> str:
    return _duration(max(0.0, time.time() - time_ms / 1000))


def _duration(seconds: float) -> str:
    for size, unit, below in ((1, "s", 100), (60, "min", 100), (3600, "h", 72)):
        if seconds < size * below:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:,.0f} days"


def _one_line(text: str) -> str:
    """Return a name without line feeds, which would look like lines of ours."""
    return text.replace("\n", " ")


def _table(sources: Sequence[SourceView]) -> Table:
    """Return the sources, without columns that have no value."""
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    table.add_column("  source", no_wrap=True)
    figures: dict[str, list[str | None]] = {
        "partitions": [f"{each.partitions:,}" if each.partitions > 1 else None for each in sources],
        "behind": ["not counted" if each.records is None else f"{each.records:,}" for each in sources],
        "behind s": [f"{each.seconds:,.1f}" for each in sources],
        "furthest": [_furthest(each) for each in sources],
        "unread bytes": [None if each.unread_bytes is None else f"{each.unread_bytes:,}" for each in sources],
        "oldest s": [None if each.oldest_seconds is None else f"{each.oldest_seconds:,.1f}" for each in sources],
        "duplicates": [None if each.duplicates is None else f"{each.duplicates:,}" for each in sources],
    }
    shown = {name: cells for name, cells in figures.items() if any(cell is not None for cell in cells)}
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    for number, source in enumerate(sources):
        cells = [Text(cells[number] or "") for cells in shown.values()]
        table.add_row(Text(_one_line(f"  {source.source} {source.kind}")), *cells)
    return table


def _furthest(source: SourceView) -> str | None:
    if source.partitions <= 1 or source.records is None:
        return None
    return "none" if source.furthest is None else _one_line(f"{source.furthest[0]} by {source.furthest[1]:,}")
