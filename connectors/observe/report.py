"""One HTML page about the queries of an observer's file, with charts by Plotly; it loads nothing from anywhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from statistics import median
from typing import Final

from plotly import io
from plotly.graph_objects import Figure, Scatter
from plotly.offline import get_plotlyjs
from plotly.subplots import make_subplots

from connectors.core.errors import ConnectorError, OptionError
from connectors.observe.console import Event
from connectors.observe.failure import last_line
from connectors.observe.jsonl import open_private
from connectors.observe.lag import Measurement, SourceMeasurement

_POINTS: Final = 5_000
_HEIGHT, _BETWEEN, _ABOVE, _BELOW = 220, 66, 40, 70
"""In pixels: of a plot with the space between it and the next one, of that, and of what is around all of them."""
_COLOURS: Final = ("#2a78d6", "#1baf7a", "#eda100", "#e34948", "#4a3aa7", "#008300", "#e87ba4", "#eb6834")
_GREY: Final = "#7d8590"
_GRID: Final = "rgba(125,133,144,.2)"
_CONFIG: Final = {
    "responsive": True,
    "displaylogo": False,
    # By default plotly.js 4 has a button that sends the data to a server of Plotly.
    "showSendToCloud": False,
    "modeBarButtons": [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
}
_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "form-action 'none'; base-uri 'none'"
)
"""A browser loads nothing for the page and sends nothing from it, even if something in it should ask to."""
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1f2328; --dim: #656d76; --line: #d8dee4; --page: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --dim: #9198a1; --line: #3d444d; --page: #0d1117; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 2rem auto;
  max-width: 1000px; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; border-top: 1px solid var(--line);
  padding-top: 1rem; }
dl { display: flex; flex-wrap: wrap; gap: .5rem 2rem; margin: 1rem 0; } dt { color: var(--dim); font-size: .8rem; }
dd { margin: 0; font-size: 1.15rem; font-variant-numeric: tabular-nums; }
.note { font-size: .8rem; color: var(--dim); margin: 0; } summary { color: var(--dim); font-size: .8rem; }
.error { border-left: 3px solid #e34948; padding-left: .6rem; overflow-wrap: anywhere; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid var(--line); padding: .5rem; font-size: .8rem; }
"""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class _Line:
    name: str
    colour: str
    points: Points


@dataclass(frozen=True, slots=True)
class _Plot:
    title: str
    unit: str
    lines: Sequence[_Line]
    shape: str = "linear"
    """How Plotly connects points; ``vh`` for what holds from the point before to this one."""


def page(events: Sequence[Event], title: str) -> str:
    """Return the page with this title for the events of an observer's file."""
    queries: dict[str, list[Event]] = {}
    for event in events:
        queries.setdefault(event.query, []).append(event)
    body = "".join(_query(number, query, own) for number, (query, own) in enumerate(queries.items()))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style>\n<script>{get_plotlyjs()}</script></head>\n"
        f"<body><h1>{escape(title)}</h1>\n{body or '<p>No query was seen.</p>'}</body></html>\n"
    )


def write_page(target: Path, text: str, source: Path) -> None:
    """Write the page of the observer's file `source`, for its owner alone.

    Raises:
        ConnectorError: it would replace what it was made of, or cannot be written.
    """
    try:
        if target.exists() and target.samefile(source):
            what = "The page would overwrite the file that it is made of"
            raise OptionError("OBSERVE_OUTPUT", what, str(target), "Name another file with --output.")
        with os.fdopen(open_private(target, os.O_WRONLY | os.O_TRUNC), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConnectorError(
            "OBSERVE_OUTPUT",
            f"The page cannot be written: {error.strerror or error}",
            str(target),
            "Name a file with --output, in a folder that is there.",
        ) from None


def _query(number: int, query: str, events: Sequence[Event]) -> str:
    batches = [event for event in events if isinstance(event, Measurement)]
    name = next((event.name for event in events if event.name), query)
    head = f"<h2>{escape(name)}</h2>\n<p class=note>query {escape(query)}; times in UTC</p>\n"
    failures = "".join(
        f"<p class=error>Failed at {_clock(event.time_ms):%Y-%m-%d %H:%M:%S}: "
        f"{escape(last_line(event.exception))}</p>"
        f"<details><summary>the whole error</summary><pre>{escape(event.exception)}</pre></details>\n"
        for event in events
        if not isinstance(event, Measurement) and event.exception is not None
    )
    if not batches:
        return f"{head}{failures}<p>No batch was seen.</p>"
    figure = _figure(list(_plots(list(_with_idleness(events)), batches)))
    charts: str = io.to_html(
        figure, config=_CONFIG, include_plotlyjs=False, full_html=False, div_id=f"query-{number}", validate=True
    )
    return head + _summary(batches) + failures + charts


def _with_idleness(events: Sequence[Event]) -> Iterator[Measurement]:
    """Yield the batches, and between them what the query is while it waits for data."""
    latest: dict[str, Measurement] = {}
    for event in events:
        if isinstance(event, Measurement):
            latest[event.run] = event
            yield event
        elif event.event == "idle" and event.run in latest:
            yield latest[event.run].idle(event.time_ms)


def _summary(batches: Sequence[Measurement]) -> str:
    times = sorted(batch.batch_ms for batch in batches)
    lags = [source.milliseconds for batch in batches for source in batch.sources]
    records = [[source.records for source in batch.sources if source.records is not None] for batch in batches]
    spools = [source.spool for source in batches[-1].sources if source.spool is not None]
    facts = {
        "batches": f"{len(batches):,}",
        "rows": f"{sum(batch.rows for batch in batches):,}",
        "batch duration, median": f"{median(times):,.0f} ms",
        "batch duration, p95": f"{times[min(len(times) - 1, len(times) * 95 // 100)]:,} ms",
        "largest lag in time": f"{max(lags, default=0):,} ms",
    }
    if any(records):
        facts["largest lag"] = f"{max(map(sum, records)):,} records"
    if spools:
        facts["duplicates dropped"] = f"{sum(spool.duplicates for spool in spools):,}"
    return "<dl>" + "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts.items()) + "</dl>\n"


def _plots(moments: Sequence[Measurement], batches: Sequence[Measurement]) -> Iterator[_Plot]:
    rates = [(event.time_ms, event.rows_per_second) for event in moments]
    durations = [(batch.time_ms, batch.batch_ms) for batch in batches]
    yield _Plot("Throughput", "rows/s", [_Line("", _COLOURS[0], rates)], "vh")
    yield _Plot("Batch duration", "ms", [_Line("", _COLOURS[0], durations)])
    of_sources: tuple[tuple[str, str, Callable[[SourceMeasurement], int | None]], ...] = (
        ("Lag", "records", lambda source: source.records),
        ("Lag in time", "ms", lambda source: source.milliseconds),
        (
            "Duplicates dropped, since the spool was created",
            "messages",
            lambda source: source.spool.duplicates if source.spool else None,
        ),
        ("Spool, not committed", "bytes", lambda source: source.spool.bytes if source.spool else None),
    )
    for title, unit, value in of_sources:
        # Not each source has each value: the shards of Kinesis count no records while any lie ahead.
        if lines := _by_source(moments, value):
            yield _Plot(title, unit, lines)


def _by_source(moments: Sequence[Measurement], value: Callable[[SourceMeasurement], int | None]) -> list[_Line]:
    """Return a line for each source that has the value; a source has one colour in all plots."""
    found: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for event in moments:
        for number, source in enumerate(event.sources):
            if (seen := value(source)) is not None:
                found.setdefault((number, source.kind), []).append((event.time_ms, seen))
    return [
        _Line(f"source {number}, {kind}", _COLOURS[number % len(_COLOURS)], points)
        for (number, kind), points in found.items()
    ]


def _figure(plots: Sequence[_Plot]) -> Figure:
    """Return the plots below each other, over one axis of time, so that they are zoomed together."""
    titles = [f"{plot.title} ({plot.unit})" for plot in plots]
    height = _HEIGHT * len(plots) + _ABOVE + _BELOW
    spacing = _BETWEEN / (height - _ABOVE - _BELOW)
    figure = make_subplots(len(plots), 1, shared_xaxes=True, subplot_titles=titles, vertical_spacing=spacing)
    names = {line.name for plot in plots for line in plot.lines if line.name}
    keys_shown = {""} if len(names) > 1 else {"", *names}
    for row, plot in enumerate(plots, 1):
        for line in plot.lines:
            points = _thinned(line.points)
            figure.add_trace(
                Scatter(
                    x=[_clock(x) for x, _ in points],
                    y=[y for _, y in points],
                    mode="lines+markers" if len(points) == 1 else "lines",
                    name=escape(line.name or plot.title),
                    line={"color": line.colour, "width": 1.8, "shape": plot.shape},
                    hovertemplate=f"%{{y:,.1~f}} {plot.unit}",
                    legendgroup=line.name,
                    showlegend=line.name not in keys_shown,
                ),
                row=row,
                col=1,
            )
            keys_shown.add(line.name)
    figure.update_annotations(x=0, xanchor="left", font={"size": 14})
    figure.update_xaxes(type="date", gridcolor=_GRID, showticklabels=True, hoverformat="%Y-%m-%d %H:%M:%S.%L")
    figure.update_yaxes(rangemode="tozero", gridcolor=_GRID, zerolinecolor=_GREY, fixedrange=True)
    figure.update_layout(
        height=height,
        margin={"l": 60, "r": 10, "t": _ABOVE, "b": _BELOW},
        font={"color": _GREY},
        hovermode="x unified",
        hoverlabel={"bgcolor": "#ffffff", "font": {"color": "#1f2328"}},
        legend={"orientation": "h", "x": 0, "yref": "container", "y": 0, "yanchor": "bottom"},
        modebar={"bgcolor": "rgba(0,0,0,0)"},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
    )
    return figure


def _thinned(points: Points) -> Points:
    """Return at most about `_POINTS` points: of each stretch the lowest and the highest, so that no peak is lost."""
    if len(points) <= _POINTS:
        return points
    size = -(-2 * len(points) // _POINTS)
    found: list[tuple[float, float]] = []
    for begin in range(0, len(points), size):
        stretch = points[begin : begin + size]
        found += sorted({min(stretch, key=lambda point: point[1]), max(stretch, key=lambda point: point[1])})
    return found


def _clock(time_ms: float) -> datetime:
    """Return a time without its zone, UTC: Plotly shows it as it is."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).replace(tzinfo=None)
