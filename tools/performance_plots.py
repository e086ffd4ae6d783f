"""The pictures of docs/performance.md: SVG with text as text, for light and dark pages, the same bytes in each run."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from tools.performance import ASKED, GROWTH, LATENCY, RATIOS, THEIRS, Ratio, Record, latency_sides

__all__ = ["pictures"]

# Each colour as matplotlib writes it, what it is on a light page, and what on a dark one.
_COLOURS = {
    "#010203": ("ink", "#1f2328", "#f0f6fc"),
    "#040506": ("grid", "#d0d7de", "#3d444d"),
    "#070809": ("ours", "#0969da", "#4493f8"),
    "#0a0b0c": ("theirs", "#bc4c00", "#f0883e"),
    "#0d0e0f": ("third", "#1a7f37", "#3fb950"),
    "#101112": ("fourth", "#8250df", "#ab7df8"),
}
INK, GRID, OURS_COLOUR, THEIRS_COLOUR, THIRD, FOURTH = _COLOURS
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "performance",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def pictures(record: Record) -> dict[str, str]:
    """Return the pictures by their file names; those for which nothing was measured are left out."""
    drawn: dict[str, Callable[[Record], Figure | None]] = {RATIOS: _ratios, LATENCY: _latency, GROWTH: _growth}
    with mpl.rc_context(_SETTINGS):
        figures = {name: draw(record) for name, draw in drawn.items()}
        return {name: _svg(figure) for name, figure in figures.items() if figure is not None}


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg ") :]
    for written, (name, _, _) in _COLOURS.items():
        text = text.replace(written, f"var(--{name})")
    light, dark = (";".join(f"--{each[0]}:{each[place]}" for each in _COLOURS.values()) for place in (1, 2))
    style = f"<style>svg{{{light}}}@media (prefers-color-scheme:dark){{svg{{{dark}}}}}</style>"
    text = re.sub(r"(<svg [^>]*>)", lambda found: f"{found[1]}\n{style}", text, count=1)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _ratios(record: Record) -> Figure | None:
    """Bars of what was asked, each with the spread of its rounds, and its ceiling as a mark."""
    found = {(one.benchmark, one.case): one for one in record.ratios()}
    bars: list[tuple[Ratio, Ratio | None]] = []
    for line in ASKED:
        for index, case in enumerate(line.cases):
            if one := found.get((line.benchmark, case)):
                name = line.ceilings[index] if line.ceilings else ""
                bars.append((one, found.get((line.benchmark, name))))
    if not bars:
        return None
    bars.reverse()
    figure = Figure(figsize=(8, 0.6 + 0.26 * len(bars)), layout="constrained")
    axes = figure.subplots()
    places = range(len(bars))
    axes.barh(places, [one.value for one, _ in bars], color=OURS_COLOUR, height=0.6)
    for place, (one, ceiling) in zip(places, bars, strict=True):
        rounds = one.rounds or (one.value,)
        axes.plot([min(rounds), max(rounds)], [place, place], color=INK, linewidth=1.5)
        if ceiling:
            axes.plot([ceiling.value], [place], marker="D", color=THEIRS_COLOUR, markersize=5)
        right = max(*rounds, one.value, ceiling.value if ceiling else 0)
        axes.text(right * 1.08, place, f"{one.value:.2f}", va="center", fontsize=8)
    axes.set_yticks(list(places), [f"{one.benchmark} {one.case}" for one, _ in bars], fontsize=8)
    axes.set_xscale("log")
    axes.set_xticks([0.5, 1, 2, 5, 10, 20, 50], ["0.5", "1", "2", "5", "10", "20", "50"])
    axes.minorticks_off()
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_title("times the peer; line: single rounds, diamond: the ceiling in the same rounds")
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    return figure


def _latency(record: Record) -> Figure | None:
    """p50 and p99 of each case, ours and Spark's own."""
    cases = latency_sides(record)
    if not cases:
        return None
    figure = Figure(figsize=(8, 0.8 + 0.32 * len(cases)), layout="constrained")
    axes = figure.subplots()
    names = list(reversed(cases))
    for place, case in enumerate(names):
        for side, words in cases[case].items():
            colour, shift = (THEIRS_COLOUR, -0.17) if side == THEIRS else (OURS_COLOUR, 0.17)
            axes.plot([words["p50"], words["p99"]], [place + shift] * 2, color=colour, linewidth=2)
            axes.plot([words["p50"]], [place + shift], marker="o", color=colour, markersize=6)
            axes.plot([words["p99"]], [place + shift], marker="|", color=colour, markersize=9, markeredgewidth=2)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_xscale("log")
    _plain(axes.xaxis)
    axes.set_title("ms from publish to sink, dot p50, bar p99; blue ours, orange Spark's JVM source")
    axes.grid(axis="x", which="both", linewidth=0.5)
    return figure


def _growth(record: Record) -> Figure | None:
    """Each table of growth as a panel: figures by size, on logarithmic axes."""
    tables = record.tables("growth")
    if not tables:
        return None
    columns = 2
    rows = -(-len(tables) // columns)
    figure = Figure(figsize=(9, 3 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for panel, (title, lines) in zip(grid.flat, tables.items(), strict=False):
        _panel(panel, title, lines)
    for panel in list(grid.flat)[len(tables) :]:
        panel.set_axis_off()
    return figure


def _panel(axes: Axes, title: str, lines: list[dict[str, Any]]) -> None:
    size = next(key for key, value in lines[0].items() if not isinstance(value, str))
    word = next((key for key, value in lines[0].items() if isinstance(value, str)), None)
    shown = [key for key in lines[0] if "processor" in key or key.startswith(("start-up", "stream:"))][:2]
    colours = (OURS_COLOUR, THEIRS_COLOUR, THIRD, FOURTH)
    for (name, some), colour in zip(_groups(lines, word).items(), colours, strict=False):
        for key, style in zip(shown, ("-", "--"), strict=False):
            places, heights = [each[size] for each in some], [each[key] for each in some]
            label = f"{name} {key}".strip()
            axes.plot(places, heights, marker="o", color=colour, linestyle=style, markersize=4, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    sizes = sorted({each[size] for each in lines})
    axes.set_xticks(sizes, [f"{each:,}" for each in sizes])
    axes.xaxis.minorticks_off()
    _plain(axes.yaxis)
    low, high = axes.get_ylim()
    axes.set_ylim(low / 2, high * 4)  # room for the legend, and no cliff out of a few percent
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(size, fontsize=8)
    axes.tick_params(labelsize=8, which="both")
    axes.legend(fontsize=7, frameon=False)
    axes.grid(linewidth=0.5)


def _plain(axis: Axis) -> None:
    """Write 100, not ten to the power of two."""
    axis.set_major_formatter(lambda value, _place: f"{value:,g}")
    axis.set_minor_formatter(lambda value, _place: f"{value:,g}" if f"{value:e}"[0] in "235" else "")


def _groups(lines: list[dict[str, Any]], word: str | None) -> Mapping[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        found.setdefault(line[word] if word else "", []).append(line)
    return found
