"""One HTML page about the queries of an observer's file, with plots; it loads nothing from anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from statistics import median
from typing import Any, Final

__all__ = ["page"]

_WIDTH, _HEIGHT = 720, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 26
_POINTS: Final = 600
_Y_TICKS, _X_TICKS = 4, 5
_COLOURS: Final = ("#2a78d6", "#1baf7a", "#eda100", "#e34948", "#4a3aa7", "#008300", "#e87ba4", "#eb6834")
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1f2328; --dim: #656d76; --line: #d8dee4; --page: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --dim: #9198a1; --line: #3d444d; --page: #0d1117; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 2rem auto;
  max-width: 760px; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; border-top: 1px solid var(--line);
  padding-top: 1rem; } h3 { font-size: .95rem; margin: 1.4rem 0 .2rem; }
h3 small { font-weight: normal; color: var(--dim); }
dl { display: flex; flex-wrap: wrap; gap: .5rem 2rem; margin: 1rem 0; } dt { color: var(--dim); font-size: .8rem; }
dd { margin: 0; font-size: 1.15rem; font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--dim); font-size: 11px; }
.grid { stroke: var(--line); stroke-width: 1; } .key { font-size: .8rem; color: var(--dim); margin: 0; }
.key span { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin: 0 .3em 0 .9em; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid #e34948; border-radius: 4px; padding: .5rem; }
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


def page(events: Sequence[Mapping[str, Any]], title: str) -> str:
    """The page.

    Args:
        events: the lines of an observer's file, as objects.
        title: of the page.
    """
    queries: dict[str, list[Mapping[str, Any]]] = {}
    for event in events:
        if "query" in event:
            queries.setdefault(str(event["query"]), []).append(event)
    body = "".join(_query(query, own) for query, own in queries.items()) or "<p>No query was seen.</p>"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head>\n<body><h1>{escape(title)}</h1>\n{body}</body></html>\n"
    )


def _query(query: str, events: Sequence[Mapping[str, Any]]) -> str:
    batches = [event for event in events if event["event"] == "progress"]
    name = next((event["name"] for event in events if event.get("name")), query)
    head = f"<h2>{escape(name)}</h2>\n<p class=key>query {escape(query)}; times in UTC</p>\n"
    failures = "".join(
        f"<p>Failed at {_clock(event['time_ms'], seconds=True)}:</p><pre>{escape(event['exception'])}</pre>"
        for event in events
        if event["event"] == "terminated" and event["exception"] is not None
    )
    if not batches:
        return f"{head}{failures}<p>No batch was seen.</p>"
    return head + _summary(batches) + failures + "".join(_figure(plot) for plot in _plots(batches))


def _summary(batches: Sequence[Mapping[str, Any]]) -> str:
    times = sorted(batch["batch_ms"] for batch in batches)
    facts = {
        "batches": f"{len(batches):,}",
        "rows": f"{sum(batch['rows'] for batch in batches):,}",
        "batch, median": f"{median(times):,.0f} ms",
        "batch, 95 of 100": f"{times[min(len(times) - 1, len(times) * 95 // 100)]:,} ms",
        "largest lag in time": f"{max(_largest(batch, 'milliseconds') for batch in batches):,} ms",
    }
    if any(source["records"] is not None for batch in batches for source in batch["sources"]):
        facts["largest lag"] = f"{max(_total(batch, 'records') for batch in batches):,} records"
    spools = [source["spool"] for source in batches[-1]["sources"] if source["spool"] is not None]
    if spools:
        facts["duplicates struck out"] = f"{sum(spool['duplicates'] for spool in spools):,}"
    return "<dl>" + "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts.items()) + "</dl>\n"


def _total(batch: Mapping[str, Any], key: str) -> int:
    return int(sum(source[key] or 0 for source in batch["sources"]))


def _largest(batch: Mapping[str, Any], key: str) -> int:
    return max((int(source[key]) for source in batch["sources"]), default=0)


def _plots(batches: Sequence[Mapping[str, Any]]) -> Iterable[_Plot]:
    yield _Plot("Throughput", "rows a second", _line(batches, lambda batch: batch["rows_per_second"]))
    yield _Plot("Latency", "ms a batch", _line(batches, lambda batch: batch["batch_ms"]))
    of_sources: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
        ("Lag", "records behind", lambda source: source["records"]),
        ("Lag in time", "ms behind", lambda source: source["milliseconds"]),
        ("Duplicates struck out", "since the spool was made", _of_spool("duplicates")),
        ("Spool", "bytes not committed", _of_spool("bytes")),
    )
    for title, unit, value in of_sources:
        # Not each source has each value: the shards of Kinesis count no records while any lie ahead.
        if lines := _by_source(batches, value):
            yield _Plot(title, unit, lines)


def _of_spool(key: str) -> Callable[[Any], Any]:
    return lambda source: source["spool"] and source["spool"][key]


def _line(batches: Iterable[Mapping[str, Any]], value: Callable[[Mapping[str, Any]], float]) -> list[_Line]:
    return [_Line("", _COLOURS[0], [(batch["time_ms"], value(batch)) for batch in batches])]


def _by_source(batches: Sequence[Mapping[str, Any]], value: Callable[[Any], Any]) -> list[_Line]:
    """A line for each source that has the value; a source has one colour in all plots."""
    found: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for batch in batches:
        for number, source in enumerate(batch["sources"]):
            if (seen := value(source)) is not None:
                found.setdefault((number, source["kind"]), []).append((batch["time_ms"], seen))
    return [
        _Line(f"source {number}, {kind}", _COLOURS[number % len(_COLOURS)], points)
        for (number, kind), points in found.items()
    ]


# --- drawing -------------------------------------------------------------------------------------------------------


def _figure(plot: _Plot) -> str:
    keys = ""
    if len(plot.lines) > 1:
        spans = (f'<span style="background:{line.colour}"></span>{escape(line.name)}' for line in plot.lines)
        keys = f"<p class=key>{''.join(spans)}</p>"
    return f"<h3>{plot.title} <small>{plot.unit}</small></h3>{keys}\n{_svg(plot)}\n"


def _svg(plot: _Plot) -> str:
    every = [point for line in plot.lines for point in line.points]
    first, last = min(x for x, _ in every), max(x for x, _ in every)
    top = _round_up(max(y for _, y in every))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - first) / (last - first) if last > first else 0.5
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - y / top * (_HEIGHT - _TOP - _BOTTOM)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{plot.title}, {plot.unit}">']
    for number in range(_Y_TICKS + 1):
        value = top * number / _Y_TICKS
        _, y = place(first, value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_short(value)}</text>')
    ticks = _X_TICKS if last > first else 1
    for number in range(ticks):
        time = first + (last - first) * number / max(1, ticks - 1)
        x, _ = place(time, 0)
        anchor = "start" if number == 0 and ticks > 1 else "end" if number == ticks - 1 and ticks > 1 else "middle"
        clock = _clock(time, seconds=last - first < 10 * 60_000)
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{clock}</text>')
    for line in plot.lines:
        placed = [place(x, y) for x, y in _thinned(line.points)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="1.8"/>')
        x, y = placed[-1]
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{line.colour}"/>')
    return "".join(parts) + "</svg>"


def _thinned(points: Points) -> Points:
    """At most about `_POINTS` points: of each stretch the lowest and the highest, so that no peak is lost."""
    if len(points) <= _POINTS:
        return points
    size = -(-2 * len(points) // _POINTS)
    found: list[tuple[float, float]] = []
    for begin in range(0, len(points), size):
        stretch = points[begin : begin + size]
        found += sorted({min(stretch, key=lambda point: point[1]), max(stretch, key=lambda point: point[1])})
    return found


def _round_up(value: float) -> float:
    """The next number that divides well: 1, 2, 4 or 8 times a power of ten."""
    scale = 1.0
    while scale * 10 < value:
        scale *= 10
    return next((step * scale for step in (1, 2, 4, 8) if step * scale >= value), 10 * scale)


def _short(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g} {letter}"
    return f"{value:g}"


def _clock(time_ms: float, *, seconds: bool) -> str:
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return moment.strftime("%H:%M:%S" if seconds else "%H:%M")
