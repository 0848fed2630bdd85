"""Whole pictures as float arrays, and their edges: what `cudnnpy edges` computes tile by tile."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cudnnpy.cli import edges, picture_files, pictures
from cudnnpy.cli.tiles import tiles


class Edges(NamedTuple):
    """The result of the convolution as float32, (1, height, width, 3), and how it was computed."""

    picture: NDArray[np.float32]
    device: str
    algorithm: str
    workspace_size: int
    milliseconds: float
    why_no_gpu: str | None


def load(path: str | os.PathLike[str]) -> NDArray[np.float32]:
    """A picture as float32, (1, height, width, 3)."""
    picture = pictures.Picture(path)
    return picture.pixels(slice(0, picture.height), slice(0, picture.width))


def to_bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    """8-bit colours: negative values become 0, then the smallest 0 and the largest 255."""
    found = np.maximum(values[0], 0)
    return pictures._levels(found, float(found.min()), float(found.max()))


def save(path: str | os.PathLike[str], values: NDArray[Any], *, overwrite: bool = False) -> None:
    """Write a picture as the command does."""
    picture_files.check_writable(path, overwrite=overwrite)
    image, kind = Image.fromarray(to_bytes(values)), picture_files.format_of(path)
    picture_files.check_size(path, kind, *image.size)
    picture_files.write(path, picture_files.encode(path, image, kind), overwrite=overwrite)


def detect(
    picture: NDArray[np.float32],
    device: Any = "auto",
    sigmoid: bool = False,
    prefer: Any = "fastest",
    workspace_limit: Any = None,
) -> Edges:
    """The edges of a picture, tile by tile."""
    with edges._detector(device, sigmoid, prefer, workspace_limit) as detector:
        result = np.empty_like(picture)
        for tile in tiles(*picture.shape[1:3], detector.area):
            found = detector.convolve(picture[:, tile.rows.read, tile.columns.read])
            result[:, tile.rows.result, tile.columns.result] = found[:, tile.rows.inner, tile.columns.inner]
        return Edges(result, **detector.computation())
