"""Draw the sample picture that the package carries: `python -m tools.draw_sample` writes cudnnpy/cli/data/sample.png.

It also writes docs/pictures/edges-after.png, its edges, made visible at half their size.

Shapes with sharp and soft borders, gradients (which an edge detector must leave dark) and a word. Every pixel is
computed here from distances, antialiased over one pixel; Pillow only encodes the file, so that no release of it or of
a font library changes the picture.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.float64]
Point = tuple[float, float]

WIDTH, HEIGHT = 640, 400
SAMPLE = Path(__file__).resolve().parent.parent / "cudnnpy" / "cli" / "data" / "sample.png"
EDGES = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "edges-after.png"

Y, X = np.mgrid[0:HEIGHT, 0:WIDTH].astype(np.float64) + 0.5


def disc(centre: Point, radius: float) -> Field:
    """Return every pixel's signed distance to a disc: negative inside, in pixels, as all shapes here."""
    distance: Field = np.hypot(X - centre[0], Y - centre[1]) - radius
    return distance


def segment(start: Point, end: Point, width: float) -> Field:
    """Return the distance to a straight stroke with round ends."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    along = np.clip(((X - start[0]) * dx + (Y - start[1]) * dy) / (dx * dx + dy * dy), 0.0, 1.0)
    distance: Field = np.hypot(X - start[0] - along * dx, Y - start[1] - along * dy) - width / 2
    return distance


def polygon(*corners: Point) -> Field:
    """Return the distance to a convex polygon whose corners are given clockwise, as seen on the screen."""
    distance = np.full((HEIGHT, WIDTH), -np.inf)
    for (ax, ay), (bx, by) in zip(corners, corners[1:] + corners[:1], strict=True):
        outward = ((X - ax) * (by - ay) - (Y - ay) * (bx - ax)) / np.hypot(bx - ax, by - ay)
        distance = np.maximum(distance, outward)
    return distance


def arc(centre: Point, radius: float, width: float, keep: Field) -> Field:
    """Return the distance to the part of a ring where `keep` is negative."""
    distance: Field = np.maximum(np.abs(disc(centre, radius)) - width / 2, keep)
    return distance


def letters(left: float, baseline: float, radius: float, width: float) -> Iterable[Field]:
    """Yield the strokes of the word cudnnpy: bowls of one radius and straight stems."""
    step = 2 * radius + 2.2 * width
    middle, top, high, low = baseline - radius, baseline - 2 * radius, baseline - 3.6 * radius, baseline + 1.6 * radius

    def stem(x: float, upper: float, lower: float) -> Field:
        return segment((x, upper), (x, lower), width)

    for place, letter in enumerate("cudnnpy"):
        x0 = left + place * step + (0.6 * radius if letter == "c" else 0.0)  # the open side of c asks for less room
        centre, right = x0 + radius, x0 + 2 * radius
        bowl = (centre, middle)
        if letter == "c":
            yield arc(bowl, radius, width, X - centre - 0.6 * radius)
        elif letter == "u":
            yield arc(bowl, radius, width, middle - Y)
            yield stem(x0, top, middle)
            yield stem(right, top, baseline)
        elif letter == "n":
            yield arc(bowl, radius, width, Y - middle)
            yield stem(x0, top, baseline)
            yield stem(right, middle, baseline)
        elif letter == "d":
            yield arc(bowl, radius, width, np.full_like(X, -np.inf))
            yield stem(right, high, baseline)
        elif letter == "p":
            yield arc(bowl, radius, width, np.full_like(X, -np.inf))
            yield stem(x0, top, low)
        else:  # y
            yield segment((x0, top), (centre, baseline), width)
            yield segment((right, top), (centre - 0.55 * radius, low), width)


def draw() -> NDArray[np.uint8]:
    """Return the picture, (400, 640, 3)."""
    down, across = Y / HEIGHT, X / WIDTH
    picture = np.stack([40 + 150 * down, 90 + 110 * down, 200 - 20 * down + 30 * across], axis=-1)

    def paint(distance: Field, colour: Any, softness: float = 1.0) -> None:
        nonlocal picture
        cover = np.clip(0.5 - distance / softness, 0.0, 1.0)[..., None]
        picture = picture * (1 - cover) + np.broadcast_to(colour, picture.shape) * cover

    sun = np.clip(1 - np.hypot(X - 520, Y - 86) / 62, 0, 1)[..., None]
    paint(disc((520, 86), 95), (230, 190, 150), softness=60)
    paint(disc((520, 86), 52), np.array([250, 190, 70]) + sun * np.array([5, 60, 120]))

    slope = 1 - np.clip((Y - 150) / 200, 0, 1)[..., None]
    paint(polygon((210, 150), (400, 310), (20, 310)), np.array([60, 70, 90]) + slope * np.array([60, 60, 70]))
    paint(polygon((210, 150), (251, 184.5), (206, 194), (173, 181)), (240, 244, 250))
    paint(polygon((400, 190), (560, 310), (240, 310)), np.array([45, 60, 70]) + slope * np.array([50, 50, 60]))
    paint(polygon((0, 300), (WIDTH, 300), (WIDTH, HEIGHT), (0, HEIGHT)), (52, 92, 66))

    for row in range(4):  # a chessboard seen straight on
        for column in range(4):
            x, y = 40 + 16 * column, 318 + 16 * row
            shade = (235, 235, 225) if (row + column) % 2 else (30, 30, 40)
            paint(polygon((x, y), (x + 16, y), (x + 16, y + 16), (x, y + 16)), shade)
    paint(np.abs(disc((160, 350), 26)) - 4, (230, 80, 60))
    paint(polygon((228, 318), (260, 350), (228, 382), (196, 350)), (240, 200, 60))
    for spoke in range(12):
        angle = np.pi * spoke / 12
        dx, dy = 30 * float(np.cos(angle)), 30 * float(np.sin(angle))
        paint(segment((310 - dx, 350 - dy), (310 + dx, 350 + dy), 1.5), (225, 235, 240))

    for stroke in letters(left=368, baseline=364, radius=12, width=5):
        paint(stroke, (250, 250, 245))
    levels: NDArray[np.uint8] = np.rint(np.clip(picture, 0, 255)).astype(np.uint8)
    return levels


def visible(levels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a picture whose lines, one pixel wide, can be seen at half its size: each is wider, and dark ones brighter."""
    padded = np.pad(levels, ((1, 1), (1, 1), (0, 0)))
    height, width, _ = levels.shape
    widened = np.max([padded[y : y + height, x : x + width] for y in range(3) for x in range(3)], axis=0)
    brighter: NDArray[np.uint8] = np.rint(255 * (np.maximum(widened - 3.0, 0) / 252) ** 0.4).astype(np.uint8)
    return brighter


def main() -> None:
    """Write the picture into the package, and its edges into the documentation."""
    from PIL import Image

    from cudnnpy.cli.edges import detector, images

    SAMPLE.parent.mkdir(exist_ok=True)
    Image.fromarray(draw()).save(SAMPLE, optimize=True)
    found = images.to_levels(detector.detect(images.load(SAMPLE), device="cpu").values)
    Image.fromarray(visible(found)).save(EDGES, optimize=True)
    for file in (SAMPLE, EDGES):
        print(f"wrote {file} ({file.stat().st_size} bytes)")


if __name__ == "__main__":
    main()
