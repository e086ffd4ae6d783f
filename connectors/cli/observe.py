"""The commands ``connectors watch`` and ``connectors report``."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from connectors.cli.errors import console, named_errors, needed_width, printable
from connectors.core.errors import ConnectorError, OptionError, ServiceUnavailableError

if TYPE_CHECKING:
    from connectors.observe.console import QueryView
    from connectors.observe.history import History
    from connectors.observe.lag import SourceMeasurement

_SECONDS = 5.0
_TOTAL_SECONDS = 15.0
_MOST_BYTES = 16 << 20
"""The metrics of some 50,000 partitions."""
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
            shown = _screen(look())
            console(width=max(screen.width, needed_width(screen, shown))).print(shown)
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
        if not events:
            action = "Give the file that watch(spark, file=...) writes, once a query has started."
            raise ConnectorError("OBSERVE_FILE_EMPTY", "No query is in this file", str(file), action)
        target = output or file.with_suffix(".html")
        charts.write_page(target, printable(charts.page(events, f"Streams in {file.name}")), file)
    console(soft_wrap=True).print(Text(str(target)))


def _fetch(url: str, seconds: float = _TOTAL_SECONDS) -> str:
    if "@" in url:
        # Not shown: it may be a password.
        what = "A URL with a user or a password is not supported"
        raise OptionError("OBSERVE_URL", what, "watch URL", "Leave it out.")
    try:
        asked = urllib.request.Request(url, headers={"Accept": "application/openmetrics-text; version=1.0.0"})  # noqa: S310 - http only
        with _bounded(seconds) as opener, opener.open(asked, timeout=_SECONDS) as answer:
            data: bytes = answer.read(_MOST_BYTES + 1)
            if len(data) <= _MOST_BYTES and answer.length:
                raise http.client.IncompleteRead(data, answer.length)
    except (ValueError, http.client.InvalidURL) as error:
        raise OptionError("OBSERVE_URL", f"This is no URL: {error}", url, "Give the URL of an observer.") from None
    except (OSError, http.client.HTTPException) as error:
        what, action = (
            f"No metrics came: {str(error) or type(error).__name__}",
            "Give the URL of an observer that runs.",
        )
        raise ServiceUnavailableError("OBSERVE_URL", what, url, action) from None
    if len(data) > _MOST_BYTES:
        what = f"The answer has more than {_MOST_BYTES >> 20} MB, which no observer serves"
        raise ConnectorError("OBSERVE_METRICS", what, url, "Give the URL of an observer.")
    return data.decode("utf-8", errors="replace")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to what the time limit covers."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if not newurl.startswith(("http://", "https://")):
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@contextlib.contextmanager
def _bounded(seconds: float) -> Iterator[urllib.request.OpenerDirector]:
    """Yield an opener whose connections end after a time: a timeout of sockets begins again with each byte."""
    sockets: list[socket.socket] = []
    ended = threading.Event()

    class Plain(http.client.HTTPConnection):
        def connect(self) -> None:
            super().connect()
            _remember(self.sock)

    class Encrypted(http.client.HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            _remember(self.sock)

    def _remember(opened: socket.socket) -> None:
        sockets.append(opened)
        if ended.is_set():
            end()

    def end() -> None:
        ended.set()
        for opened in sockets:
            with contextlib.suppress(OSError):  # it is closed
                opened.shutdown(socket.SHUT_RDWR)

    class PlainHandler(urllib.request.HTTPHandler):
        def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Plain, req)

    class EncryptedHandler(urllib.request.HTTPSHandler):
        def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Encrypted, req)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield urllib.request.build_opener(PlainHandler, EncryptedHandler, _Redirects)
        if ended.is_set():
            raise TimeoutError(f"it took longer than {seconds:g} s")
    finally:
        timer.cancel()


def _screen(views: list[QueryView], note: str = "") -> Group:
    parts: list[RenderableType] = [Text(time.strftime("%H:%M:%S"), style="dim")]
    for view in views:
        parts.append(_head(view))
        if view.error:
            parts.append(Text(f"  {_one_line(view.error)}", style="red"))
        parts += _past(view)
        if view.newest.sources:
            parts.append(_table(view.newest.sources))
    if note:
        parts.append(Text(note, style="yellow"))
    elif not views:
        parts.append(Text("no query has reported yet", style="dim"))
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
