"""Draw the ratios of rows as one compact picture: `python -m tools.benchmark.plot`.

Each dot is a row, by cudnnpy's time over PyTorch's on a logarithmic axis. docs/benchmarks.md has the picture of the rows in
this folder.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tools.benchmark.runs import Rows
from tools.benchmark.summary import Row, ratio

ROWS = Path(__file__).with_name("rows")
PICTURE = Path(__file__).parents[2] / "docs" / "pictures" / "benchmarks.svg"
PARTS = {
    "gpu": "ResNet-50, 7 layers",
    "layers": "59 networks, layers",
    "operations": "other operations",
}
COLOURS = {"fastest": "#d98b2b", "autotune": "#1f5a96", "cudnnpy": "#1f5a96"}
LEFT, WIDTH, LINE, TOP = 250, 560, 20, 44  # pixels
TICKS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
JITTER = (0.0, 2.5, -2.5, 5.0, -5.0)  # pixels by which dots of one line are moved apart


def across(value: float) -> float:
    """Return the place of a ratio on the axis."""
    value = min(max(value, TICKS[0]), TICKS[-1])
    return LEFT + WIDTH * math.log(value / TICKS[0]) / math.log(TICKS[-1] / TICKS[0])


def draw(rows: Iterable[Row]) -> str:
    """Return the picture of rows as SVG, with a line of dots for each part and kind."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["part"] in PARTS:
            groups.setdefault((row["part"], row["kind"]), []).append(row)
    ordered = sorted(groups.items(), key=lambda item: (list(PARTS).index(item[0][0]), item[0][1]))
    return "\n".join(["".join(_head(len(ordered))), *_lines(ordered), "</svg>", ""])


def _head(count: int) -> Iterator[str]:
    width, bottom = LEFT + WIDTH + 30, TOP + LINE * count
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom + 24}" '
    yield 'font-family="sans-serif" font-size="12">\n'
    yield f'<rect width="{width}" height="{bottom + 24}" fill="white"/>\n'
    yield f'<text x="{LEFT}" y="16">time of cudnnpy over PyTorch\'s; left of 1, cudnnpy is faster</text>\n'
    for number, who in enumerate(("fastest", "autotune")):
        yield f'<text x="{LEFT + 140 * number}" y="34" fill="{COLOURS[who]}">&#9679; prefer="{who}"</text>\n'
    for tick in TICKS:
        x, stroke = across(tick), "#444" if tick == 1 else "#ddd"
        yield f'<path d="M{x:.0f} {TOP}V{bottom}" stroke="{stroke}"/>\n'
        yield f'<text x="{x:.0f}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>\n'


def _lines(groups: Iterable[tuple[tuple[str, str], list[Row]]]) -> Iterator[str]:
    for number, ((part, kind), rows) in enumerate(groups):
        y = TOP + LINE * (number + 0.5)
        yield f'<text x="{LEFT - 12}" y="{y + 4:.0f}" text-anchor="end">{PARTS[part]}: {kind}</text>'
        for who, colour in COLOURS.items():
            values = [value for row in rows if (value := ratio(row, who)) is not None]
            dots = "".join(
                f"M{across(value):.0f} {y + JITTER[place % len(JITTER)]:.1f}h0" for place, value in enumerate(values)
            )
            if dots:
                style = f'stroke="{colour}" stroke-width="4" stroke-linecap="round" stroke-opacity="0.6"'
                yield f'<path d="{dots}" {style}/>'


def main() -> int:
    """Write the picture; return the exit status."""
    PICTURE.write_text(draw(Rows(sorted(ROWS.glob("*.jsonl"))).rows.values()), encoding="utf-8")
    print(f"wrote {PICTURE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
