"""Draw the path of a call for docs/how-it-works.md: `python -m tools.draw_call_path` writes docs/pictures/call-path.svg.

A box is a step and the module that does it. The boxes and arrows are the tables below; everything else is computed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

FILE = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "call-path.svg"

WIDTH, HEIGHT = 300, 74  # of a box, in pixels
STEP = 108  # from one row to the next
LEFT = (30, 470)  # of each column
TOP = 56
CHARACTER = {15: 8.0, 12: 6.2}  # the average width of a character of a font size


class Box(NamedTuple):
    """A step of a call: its title, the module that does it, what it does, and where it is drawn."""

    title: str
    module: str  # below cudnnpy; empty for what is not part of the package
    text: str
    column: int
    row: int


BOXES = {
    "call": Box("conv.forward(x, w)", "_options.convolution_methods", "arrays of any library, and options", 0, 0),
    "dispatch": Box("Dispatch", "_runtime.dispatch", "from arguments to a launch", 0, 1),
    "arrays": Box("Read the arrays", "_memory.arrays", "address, shape, dtype, strides, device", 0, 2),
    "cache": Box("Look up the plan", "_runtime.plan_cache", "per thread, by the whole signature", 0, 3),
    "launcher": Box("Launch", "_runtime.launcher", "addresses and stream become a ready launch", 0, 5),
    "executable": Box("Run the executable", "_launch.steps", "an engine's plan, C functions, or a chain", 0, 6),
    "cudnn": Box("cuDNN", "", "cudnnBackendExecute, or a C function", 0, 7),
    "problem": Box("State the problem", "convolution.problem", "operation, tensors and options in one form", 1, 1),
    "candidates": Box("List the candidates", "_planning.candidates", "heuristics, engines, v7 algorithms", 1, 2),
    "selection": Box("Select", "_planning.selection", "the first candidate that meets the options", 1, 3),
    "autotune": Box("Autotune", "_measuring.search", 'prefer="autotune": run, check, time them', 1, 4),
    "plan": Box("Keep the plan", "_planning.plan", "what was chosen, and its executable", 1, 5),
}
ARROWS = {  # (from, to): what is written beside the arrow
    ("call", "dispatch"): "",
    ("dispatch", "arrays"): "",
    ("arrays", "cache"): "",
    ("cache", "launcher"): "known signature",
    ("cache", "problem"): "new signature",
    ("problem", "candidates"): "",
    ("candidates", "selection"): "",
    ("selection", "autotune"): "",
    ("autotune", "plan"): "",
    ("plan", "launcher"): "",
    ("launcher", "executable"): "",
    ("executable", "cudnn"): "",
}
PANELS = ("Every call", "The first call with a signature")

STYLE = """
  text { font-family: system-ui, sans-serif; fill: #1c2530; text-anchor: middle }
  .title { font-size: 15px; font-weight: 600 }
  .module { font-size: 12px; font-family: ui-monospace, monospace; fill: #2a6a00 }
  .text, .label { font-size: 12px }
  .label { text-anchor: start; fill: #56606b }
  .panel { fill: #f2f5f7 }
  .box { fill: #ffffff; stroke: #76b900; stroke-width: 1.5 }
  .outside { fill: #e6f2d2; stroke: #76b900; stroke-width: 1.5 }
  .arrow { fill: none; stroke: #56606b; stroke-width: 1.5; marker-end: url(#head) }
"""


def corner(box: Box) -> tuple[int, int]:
    """Return the left and the top of a box."""
    return LEFT[box.column], TOP + STEP * box.row


def arrow(start: Box, end: Box, text: str) -> list[str]:
    """Return an arrow between two boxes, and what is written beside it."""
    (x, y), (end_x, end_y) = corner(start), corner(end)
    if start.column == end.column:
        middle = x + WIDTH // 2
        points, at = [(middle, y + HEIGHT), (middle, end_y)], (middle + 8, y + HEIGHT + 22)
    else:
        x, end_x = (x + WIDTH, end_x) if start.column < end.column else (x, end_x + WIDTH)
        y, end_y, turn = y + HEIGHT // 2, end_y + HEIGHT // 2, (x + end_x) // 2
        points, at = [(x, y), (turn, y), (turn, end_y), (end_x, end_y)], (x + 4, y + 16)
    path = "M" + " L".join(f"{x} {y}" for x, y in points)
    label = [f'<text class="label" x="{at[0]}" y="{at[1]}">{escape(text)}</text>'] if text else []
    return [f'<path class="arrow" d="{path}"/>', *label]


def drawn(box: Box) -> list[str]:
    """Return a box with its lines of text."""
    x, y = corner(box)
    middle = x + WIDTH // 2
    lines = [("title", box.title), ("module", f"cudnnpy.{box.module}" if box.module else ""), ("text", box.text)]
    texts = [
        f'<text class="{kind}" x="{middle}" y="{y + 24 + 19 * number}">{escape(text)}</text>'
        for number, (kind, text) in enumerate((kind, text) for kind, text in lines if text)
    ]
    kind = "box" if box.module else "outside"
    return [f'<rect class="{kind}" x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="8"/>', *texts]


def panel(column: int, title: str) -> list[str]:
    """Return the ground under a column of boxes, with its title."""
    rows = [box.row for box in BOXES.values() if box.column == column]
    x, y = LEFT[column] - 20, TOP + STEP * min(rows) - 40
    height = STEP * (max(rows) - min(rows)) + HEIGHT + 60
    return [
        f'<rect class="panel" x="{x}" y="{y}" width="{WIDTH + 40}" height="{height}" rx="12"/>',
        f'<text class="title" x="{x + WIDTH // 2 + 20}" y="{y + 26}">{title}</text>',
    ]


def draw() -> str:
    """Return the drawing as SVG."""
    width, height = LEFT[1] + WIDTH + 30, TOP + STEP * max(box.row for box in BOXES.values()) + HEIGHT + 30
    parts = [part for column, title in enumerate(PANELS) for part in panel(column, title)]
    parts += [part for (start, end), text in ARROWS.items() for part in arrow(BOXES[start], BOXES[end], text)]
    parts += [part for box in BOXES.values() for part in drawn(box)]
    head = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
            "<title>The path of a call</title>",
            f"<style>{STYLE}</style>",
            f'<defs>{head}<path d="M0 0 L8 4 L0 8 z" fill="#56606b"/></marker></defs>',
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def main() -> int:
    """Write the file."""
    FILE.write_text(draw(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
