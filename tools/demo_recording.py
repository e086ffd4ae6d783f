"""Record `connectors demo` and write it as an animated SVG: ``python -m tools.demo_recording``.

The picture shows a real run with the defaults of the command: each frame has the time and the numbers that the run
reported, played ``SPEED`` times as fast as they came. Each frame lasts ``_SHORTEST`` to ``_LONGEST`` seconds, however
long nothing changed, as when Spark starts. Bars stand for shares of the published messages. Browsers and GitHub play
the file without a script.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, replace
from html import escape
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import Any

from connectors.cli.demo.plan import DemoPlan
from connectors.cli.demo.run import Progress, run_demo, service_of

TARGET = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "demo.svg"
SPEED = 3.0
_FRAME_SECONDS = 1.0  # of the run, between two frames
_SHORTEST, _LONGEST = 0.4, 1.5  # seconds of the picture, for a frame
_HOLD_SECONDS = 7.0  # of the picture, for the table at the end
_WIDTH, _HEIGHT, _LEFT, _BAR_LEFT, _BAR_WIDTH = 720, 250, 24, 150, 400

_STYLE = """
.page{fill:#f6f8fa}.bar{fill:#1a7f37}.duplicate{fill:#9a6700}.rail{fill:#d0d7de}
text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#1f2328}
.stage{font-weight:bold}.quiet{fill:#59636e}.number{text-anchor:end}
@media (prefers-color-scheme:dark){.page{fill:#151b23}.bar{fill:#3fb950}.duplicate{fill:#d29922}.rail{fill:#3d444d}
text{fill:#f0f6fc}.quiet{fill:#9198a1}}
"""


@dataclass(frozen=True)
class Frame:
    """What the run reported after so many seconds."""

    seconds: float
    stage: str
    published: int
    rows: int
    duplicates: int


def record() -> tuple[list[Frame], dict[str, Any]]:
    """Run the demonstration, and return its progress second by second and its count."""
    frames: list[Frame] = []
    began = time.monotonic()

    def show(progress: Progress) -> None:
        seconds = time.monotonic() - began
        is_due = not frames or seconds - frames[-1].seconds >= _FRAME_SECONDS or frames[-1].stage != progress.stage
        if is_due:
            frames.append(Frame(seconds, progress.stage, progress.published, progress.rows, progress.duplicates))

    with tempfile.TemporaryDirectory(prefix="demo-") as folder:
        return frames, run_demo(service_of(DemoPlan(Path(folder))), show)


def picture(frames: list[Frame], result: dict[str, Any]) -> str:
    """Return the SVG: one group a frame, each visible for its own part of one long animation."""
    frames = [next(same) for _, same in groupby(frames, lambda frame: replace(frame, seconds=0.0))]
    pauses = [
        min(max((after.seconds - frame.seconds) / SPEED, _SHORTEST), _LONGEST) for frame, after in pairwise(frames)
    ]
    *starts, table_from = accumulate([*pauses, _FRAME_SECONDS / SPEED], initial=0.0)
    whole = table_from + _HOLD_SECONDS
    groups = [_frame(frame, result["published"]) for frame in frames] + [_table(result)]
    rules, shown = [], []
    for number, (group, start, end) in enumerate(
        zip(groups, [*starts, table_from], [*starts[1:], table_from, whole], strict=True)
    ):
        rules.append(_visible(number, start / whole, end / whole, whole))
        shown.append(f'<g class="f{number}">{group}</g>')
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="A recording '
        f"of connectors demo: {result['published']:,} messages published, {result['lost']} lost, "
        f'{result["doubled"]} doubled">'
    )
    command = f'<text x="{_LEFT}" y="36">$ connectors demo</text>'
    page = f'<rect class="page" width="{_WIDTH}" height="{_HEIGHT}" rx="8"/>{command}'
    return "\n".join([head, f"<style>{_STYLE}{''.join(rules)}</style>", page, *shown, "</svg>", ""])


def _visible(number: int, start: float, end: float, seconds: float) -> str:
    """Return the rules that show a group in its part of the animation; the last one ends with the animation itself."""
    on, off = f"{100 * start:.3f}%", f"{100 * end:.3f}%"
    before = "" if start == 0 else "0%{opacity:0}"
    after = "" if end >= 1 else f"{off}{{opacity:0}}"
    return (
        f"@keyframes k{number}{{{before}{on}{{opacity:1}}{after}}}"
        f".f{number}{{opacity:0;animation:k{number} {seconds:.2f}s steps(1,end) infinite}}"
    )


def _frame(frame: Frame, messages: int) -> str:
    bars = (("published", frame.published, "bar"), ("in the sink", frame.rows, "bar"))
    lines = [f'<text class="stage" x="{_LEFT}" y="76">{escape(frame.stage)}</text>']
    for row, (name, count, colour) in enumerate(bars):
        lines += _bar(name, count, count / messages, colour, 110 + 34 * row)
    lines += _bar("duplicates", frame.duplicates, frame.duplicates / messages, "duplicate", 178)
    lines.append(f'<text class="quiet" x="{_LEFT}" y="226">{frame.seconds:4.0f} s</text>')
    return "".join(lines)


def _bar(name: str, count: int, share: float, colour: str, top: int) -> list[str]:
    width = min(share, 1.0) * _BAR_WIDTH
    return [
        f'<text x="{_LEFT}" y="{top}">{name}</text>',
        f'<rect class="rail" x="{_BAR_LEFT}" y="{top - 7}" width="{_BAR_WIDTH}" height="3"/>',
        f'<rect class="{colour}" x="{_BAR_LEFT}" y="{top - 10}" width="{width:.0f}" height="9"/>',
        f'<text x="{_BAR_LEFT + _BAR_WIDTH + 16}" y="{top}">{count:,}</text>',
    ]


def _table(result: dict[str, Any]) -> str:
    rows = (
        ("published", result["published"]),
        ("rows read back", result["queries"][0]["delivered"]),
        ("duplicates dropped", result["delivered_again"] or 0),
        ("lost", result["lost"]),
        ("doubled", result["doubled"]),
    )
    lines = [
        f'<text class="stage" x="{_LEFT}" y="76">{len(result["kills"])} processes killed; counted by message</text>'
    ]
    for row, (name, count) in enumerate(rows):
        top = 108 + 26 * row
        lines += [
            f'<text x="{_LEFT}" y="{top}">{name}</text>',
            f'<text class="number" x="310" y="{top}">{count:,}</text>',
        ]
    return "".join(lines)


if __name__ == "__main__":
    TARGET.write_text(picture(*record()), encoding="utf-8")
