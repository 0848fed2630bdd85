"""Images as float32 arrays: reading, min-max normalization, and encoding. Needs Pillow, which the extra `images` installs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from cudnnpy._process.installation import with_extra
from cudnnpy.cli.errors import UsageError
from cudnnpy.errors import CudnnError

SAMPLE = Path(__file__).resolve().parents[1] / "data" / "sample.png"
"""The sample image of the package, 640 x 400."""

_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".bmp": "BMP", ".tif": "TIFF", ".tiff": "TIFF"}
_MAX_JPEG_SIDE = 65500  # pixels; beyond, the JPEG library prints a line of its own


def pillow() -> Any:
    """Return the module PIL.Image. Raises ImportError, which says how to install it, without Pillow."""
    try:
        from PIL import Image
    except ImportError:
        raise ImportError(f"images need Pillow: pip install {with_extra('images')}") from None
    return Image


def load(source: str | os.PathLike[str], on_frames: Callable[[int], object] = int) -> NDArray[np.float32]:
    """Read an image as float32, (1, height, width, 3), scaled so that its smallest value is 0 and its largest 1.

    Greyscale (also of 16 bits) is repeated in the three channels, and transparent pixels are blended with white. The camera's
    orientation is applied. An animation is represented by its first image, and `on_frames` is called with the number of its
    images. All values of a constant image become 0.

    Raises UsageError if the file cannot be read as an image, or has more pixels than Pillow's limit against decompression
    bombs, and ImportError without Pillow.
    """
    Image = pillow()
    name = str(source)
    try:
        with warnings.catch_warnings(), open(source, "rb") as file:
            warnings.simplefilter("ignore")  # about damaged metadata and large images
            pixels = _decode(file, on_frames)
        return _normalized(pixels)[np.newaxis]
    except MemoryError:
        raise
    except Image.UnidentifiedImageError:
        raise UsageError(f"{name}: not an image, or of a format that Pillow cannot read") from None
    except OSError as error:  # missing, a folder, not readable, or truncated
        raise UsageError(f"{name}: {_one_line(error)}") from None
    except Exception as error:  # decoders raise exceptions of any type for damaged files
        raise UsageError(f"{name}: the image cannot be read: {_one_line(error)}") from None


def _decode(file: BinaryIO, on_frames: Callable[[int], object]) -> NDArray[np.float32]:
    """Return the colours of an image of any of Pillow's modes as an array (height, width, 3)."""
    from PIL import ImageOps

    Image = pillow()
    with Image.open(file) as image:
        if 0 in image.size:
            raise UsageError("it has no pixels ({} x {})".format(*image.size))
        if (frames := _frames(image)) > 1:
            on_frames(frames)
        image.load()
        ImageOps.exif_transpose(image, in_place=True)
        if image.mode.startswith(("I", "F")):  # wider than 8 bits, which a conversion to RGB would truncate
            return np.repeat(np.asarray(image, dtype=np.float32)[..., np.newaxis], 3, axis=2)
        if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
            colours = image.convert("RGBA")
            return np.array(Image.alpha_composite(Image.new("RGBA", image.size, "white"), colours).convert("RGB"), "f4")
        return np.array(image.convert("RGB"), dtype=np.float32)


def _frames(image: Any) -> int:
    """Return the number of images in a file; 1 if only the first can be read."""
    try:
        return int(getattr(image, "n_frames", 1))
    except Exception:  # decoders raise exceptions of any type for damaged files
        image.seek(0)
        return 1


def _normalized(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale values in place so that the smallest becomes 0 and the largest 1."""
    low, high = values.min(), values.max()
    with np.errstate(over="ignore", invalid="ignore"):
        values -= low
        values /= (high - low) or 1
    if not np.isfinite(values).all():
        raise UsageError("it has values that are not finite")
    return values


def to_levels(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return results (1, height, width, 3) as 8-bit colours (height, width, 3).

    Negative values become 0; then the smallest becomes 0 and the largest 255.
    """
    if not np.isfinite(values).all():
        raise CudnnError("the result has values that are not finite")
    scaled = np.maximum(values[0], 0)
    scaled -= scaled.min()
    scaled *= 255 / (float(scaled.max()) or 1)
    levels: NDArray[np.uint8] = np.rint(scaled, out=scaled).astype(np.uint8)
    return levels


def format_of(output: str) -> str:
    """Return Pillow's name of the format for the ending of a file's name. Raises UsageError for another ending."""
    suffix = Path(output).suffix.lower()
    if suffix not in _FORMATS:
        raise UsageError(
            f"{output}: the name must end in {', '.join(_FORMATS)}, which gives the format; got {suffix!r}"
        )
    return _FORMATS[suffix]


def check_size(output: str, format: str, width: int, height: int) -> None:
    """Raise UsageError if a format cannot hold an image of a size."""
    if format == "JPEG" and max(width, height) > _MAX_JPEG_SIDE:
        raise UsageError(
            f"{output}: JPEG cannot hold an image of {width} x {height}: at most {_MAX_JPEG_SIDE} pixels a side"
        )


def encode(output: str, levels: NDArray[np.uint8], format: str) -> bytes:
    """Return an image (height, width, 3) encoded in a format. In memory, an error of the encoder leaves no partial file."""
    file = BytesIO()
    try:
        pillow().fromarray(levels).save(file, format=format)
    except MemoryError:
        raise
    except Exception as error:  # encoders raise exceptions of any type
        raise UsageError(f"{output}: cannot be written as {format}: {_one_line(error)}") from None
    return file.getvalue()


def _one_line(error: Exception) -> str:
    """Return the message of an exception in one line, without the file's name."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())
