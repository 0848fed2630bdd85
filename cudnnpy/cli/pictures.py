"""Conversion of pictures from and to float32 arrays, for the edge detector.

Needs Pillow, which the extra `images` installs.
"""

from __future__ import annotations

import os
import warnings
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from cudnnpy.cli.picture_files import PictureError, one_line, pillow
from cudnnpy.cli.tiles import tiles

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

__all__ = ["SAMPLE", "Canvas", "Picture", "PictureError"]

SAMPLE = Path(__file__).resolve().with_name("data") / "sample.png"
"""The sample picture of the package, 640 x 400."""

LARGEST_STREAM = 1 << 30
"""The largest picture that is read from a pipe, in bytes. Files are not limited."""

_AT_ONCE = 1 << 18  # pixels that are converted at a time; each takes about 60 bytes


class Picture:
    """A decoded picture, whose parts `pixels` converts to float32 arrays scaled to the range 0 to 1.

    The smallest value of the whole picture becomes 0 and the largest 1; all values of a constant picture become 0.
    Greyscale (also of 16 bits) is repeated in the three channels, transparent pixels are blended with white, palettes
    are resolved, the camera's orientation is applied, and an animation is represented by its first picture. A picture
    takes 1 to 4 bytes per pixel.
    """

    def __init__(self, source: str | os.PathLike[str] | BinaryIO, name: str | None = None) -> None:
        """Read a file, or an open file, which error messages call `name`.

        Raises PictureError if the file is missing, cannot be read, is not a picture, has no pixels, or has more than
        Pillow's limit against decompression bombs; ImportError without Pillow.
        """
        Image = pillow()
        name = str(source) if name is None else name
        try:
            with warnings.catch_warnings():  # about damaged metadata, and large pictures, which take little memory here
                warnings.simplefilter("ignore")
                if isinstance(source, str | os.PathLike):
                    with open(source, "rb") as file:
                        self._image = _decode(file)
                else:
                    self._image = _decode(source)
            self.width, self.height = self._image.size
            self._low, self._high = self._extremes()
        except MemoryError:
            raise
        except Image.UnidentifiedImageError:
            raise PictureError(f"{name}: not a picture, or of a format that Pillow cannot read") from None
        except OSError as error:  # missing, a folder, not readable, or truncated
            raise PictureError(f"{name}: {one_line(error)}") from None
        except Exception as error:  # decoders raise exceptions of any type for damaged files
            raise PictureError(f"{name}: the picture cannot be read: {one_line(error)}") from None

    def close(self) -> None:
        """Free the picture's memory."""
        self._image.close()

    def pixels(self, rows: slice, columns: slice) -> NDArray[np.float32]:
        """Return a part as a float32 array (1, rows, columns, 3): red, green and blue."""
        found = np.empty((1, rows.stop - rows.start, columns.stop - columns.start, 3), np.float32)
        for part in _parts(*found.shape[1:3]):
            values = self._colours(slice(rows.start + part.start, rows.start + part.stop), columns)
            found[0, part] = _scaled(values, self._low, self._high, 1.0)
        return found

    def _extremes(self) -> tuple[float, float]:
        low, high = np.inf, -np.inf
        for tile in tiles(self.height, self.width, _AT_ONCE):
            values = self._colours(tile.rows.result, tile.columns.result)
            low, high = min(low, float(values.min())), max(high, float(values.max()))
            if not np.isfinite(values).all():
                raise ValueError("it has values that are not finite")
        return low, high

    def _colours(self, rows: slice, columns: slice) -> NDArray[Any]:
        """Return a part as an array (rows, columns, 3), for a picture of any of Pillow's modes."""
        part = self._image.crop((columns.start, rows.start, columns.stop, rows.stop))
        if part.mode.startswith(("I", "F")):  # wider than 8 bits, which a conversion to RGB would truncate
            return np.repeat(np.asarray(part, dtype=np.float32)[..., np.newaxis], 3, axis=2)
        if part.mode in ("RGBA", "LA", "PA") or "transparency" in part.info:
            colours = part.convert("RGBA")
            part = pillow().alpha_composite(pillow().new("RGBA", colours.size, "white"), colours)
        return np.asarray(part.convert("RGB"))


class Canvas:
    """An image of 8-bit colours that is drawn in parts, from float arrays of values from `low` to `high`."""

    def __init__(self, height: int, width: int, low: float, high: float) -> None:
        self._low, self._high = low, high
        self.image: PillowImage = pillow().new("RGB", (width, height))

    def paint(self, values: NDArray[np.float32], top: int, left: int) -> None:
        """Draw (rows, columns, 3) with its upper left corner at (top, left); `low` becomes 0 and `high` 255."""
        self.image.paste(pillow().fromarray(_levels(values, self._low, self._high)), (left, top))


def _decode(file: BinaryIO) -> PillowImage:
    from PIL import ImageOps

    if not file.seekable():
        content = file.read(LARGEST_STREAM + 1)
        if len(content) > LARGEST_STREAM:
            raise ValueError(f"more than {LARGEST_STREAM} bytes came through a pipe; save them to a file first")
        file = BytesIO(content)
    image: PillowImage = pillow().open(file)
    if 0 in image.size:
        raise ValueError("it has no pixels ({} x {})".format(*image.size))
    image.load()
    ImageOps.exif_transpose(image, in_place=True)
    return image


def _parts(height: int, width: int) -> list[slice]:
    """Divide rows into parts of about _AT_ONCE pixels."""
    step = max(1, _AT_ONCE // width)
    return [slice(start, min(start + step, height)) for start in range(0, height, step)]


def _scaled(values: NDArray[Any], low: float, high: float, top: float) -> NDArray[np.float32]:
    """Scale values linearly, in float64, so that low becomes 0 and high becomes `top`."""
    if high == low:
        return np.zeros(values.shape, np.float32)
    return ((values.astype(np.float64) - low) * (top / (high - low))).astype(np.float32)


def _levels(values: NDArray[Any], low: float, high: float) -> NDArray[np.uint8]:
    found = np.empty(values.shape, np.uint8)
    for part in _parts(*values.shape[:2]):
        found[part] = np.rint(_scaled(values[part], low, high, 255.0))
    return found
