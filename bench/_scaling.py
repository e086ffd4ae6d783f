"""What the benchmarks of scaling share: rates by how many work, as ratio lines, and as a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from _common import Benchmark, Side, interleaved

DELAY_SECONDS = 0.02
"""Of each request: a service that far away leaves the processors idle, so that few of them are not what limits."""
COUNTS = (1, 2, 4, 8)
PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _BAR = 540, 250, 50, 210, 70
_STYLE = (
    ".bar{fill:#5b7fc7}.ideal{stroke:#5b6b8c;stroke-width:2;stroke-dasharray:5 4}.axis{stroke:#5b6b8c}"
    "text{font-size:13px;fill:#1c2333}.words{fill:#3d475c}"
    "@media(prefers-color-scheme:dark){.bar{fill:#7f9fe0}.ideal,.axis{stroke:#8b9bc0}text{fill:#eef2fb}"
    ".words{fill:#c3cce0}}"
)


def scaling(bench: Benchmark, what: str, rate: Callable[[int], float], rounds: int, unit: str) -> dict[int, float]:
    """Measure with each of `COUNTS` in turn; print each beside the rate of one, as ratio too.

    Returns:
        The median rates, by how many worked.
    """
    sides = {f"{count} {what}": lambda count=count: rate(count) for count in COUNTS}
    found: dict[int, Side] = dict(zip(COUNTS, interleaved(sides, rounds), strict=True))
    for count in COUNTS[1:]:
        bench.compare(f"{what}-{count}", found[count], found[1], unit)
    return {count: side.median for count, side in found.items()}


def draw(path: Path, title: str, rates: Mapping[int, float], unit: str) -> None:
    """Write rates by how many worked as an SVG of bars, each below the line of so many times the rate of one."""
    step, most = (_BOTTOM - 40) / max(rates), max(rates)
    shapes = []
    for place, (count, rate) in enumerate(rates.items()):
        left, height, ideal = _LEFT + 20 + place * 120, rate / rates[1] * step, _BOTTOM - count * step
        middle = left + _BAR // 2
        shapes += [
            f'<rect class="bar" x="{left}" y="{_BOTTOM - height:.1f}" width="{_BAR}" height="{height:.1f}"/>',
            f'<line class="ideal" x1="{left - 8}" x2="{left + _BAR + 8}" y1="{ideal:.1f}" y2="{ideal:.1f}"/>',
            f'<text x="{middle}" y="{_BOTTOM - height / 2:.1f}">{rate / rates[1]:.2f}</text>',
            f'<text class="words" x="{middle}" y="{_BOTTOM + 17}">{count}</text>',
            f'<text class="words" x="{middle}" y="{_BOTTOM + 33}">{rate:,.0f} {unit}</text>',
        ]
    words = f"{title}: {', '.join(f'{count}: {rate:,.0f} {unit}' for count, rate in rates.items())}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
    lines = [
        f'{head} font-family="Helvetica, Arial, sans-serif" text-anchor="middle">',
        f"<title>{words}</title>",
        f"<style>{_STYLE}</style>",
        f'<text x="{_WIDTH // 2}" y="20">{title}; dashed: {most} times as much with {most}</text>',
        *shapes,
        f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{_BOTTOM}" y2="{_BOTTOM}"/>',
        "</svg>",
        "",
    ]
    path.write_text("\n".join(lines))
