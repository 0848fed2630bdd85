"""Pictures in and out of float32 arrays, for the edge detector. Needs Pillow: pip install 'cudnnpy[images]'."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

SAMPLE = Path(__file__).resolve().with_name("data") / "sample.png"
"""The sample picture that comes with the package, 640 x 400."""


class PictureError(ValueError):
    """A picture cannot be read, or a result cannot be written there; one line that names the file."""


def load(path: str | os.PathLike[str]) -> NDArray[np.float32]:
    """Return a picture as a float32 array (1, height, width, 3), red, green and blue, scaled so as to span 0 to 1.

    The smallest value of the whole picture becomes 0 and the largest 1; a picture of a single value becomes all 0.
    Greyscale (also 16-bit) is repeated in the three channels, transparency is laid on white, a palette is resolved,
    the camera's orientation is applied, and of an animation the first picture is taken.

    Raises PictureError for a file that is missing, cannot be read, is no picture, or has no pixels; ImportError without
    Pillow.
    """
    Image = _pillow()
    from PIL import ImageOps

    path = Path(path)
    try:
        with Image.open(path) as opened:
            width, height = opened.size
            if width < 1 or height < 1:
                raise PictureError(f"{path}: the picture has no pixels ({width} x {height})")
            pixels = _colours(ImageOps.exif_transpose(opened))
    except PictureError:
        raise
    except Image.UnidentifiedImageError:
        raise PictureError(f"{path}: not a picture, or of a format that Pillow cannot read") from None
    except OSError as error:  # missing, a folder, forbidden, or cut short
        raise PictureError(f"{path}: {_reason(error)}") from None
    except (Image.DecompressionBombError, SyntaxError, ValueError, EOFError) as error:  # what damaged files raise
        raise PictureError(f"{path}: the picture cannot be read: {error}") from None
    return _spanning(pixels, 1.0)[np.newaxis]


def to_bytes(picture: NDArray[Any]) -> NDArray[np.uint8]:
    """Return a float array (1, height, width, 3) as 8-bit colours (height, width, 3).

    Negative values become 0, then the smallest value becomes 0 and the largest 255, rounded to nearest; a picture that
    is constant by then becomes black. Raises ValueError for another shape, no pixels, or values that are not finite.
    """
    if picture.ndim != 4 or picture.shape[0] != 1 or picture.shape[3] != 3 or 0 in picture.shape:
        raise ValueError(f"picture has shape {picture.shape}; expected (1, height, width, 3), with at least one pixel")
    values = np.maximum(picture[0], 0)
    if not np.isfinite(values).all():
        raise ValueError("picture has values that are not finite")
    return np.rint(_spanning(values, 255.0)).astype(np.uint8)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise PictureError if `save` could not write there: an unknown format, no such folder, no permission.

    For use before a long computation. Raises ImportError without Pillow.
    """
    path = Path(path)
    _format(path)
    folder = _target(path).parent
    if path.is_dir():
        raise PictureError(f"{path}: is a folder, not a file to write")
    if not folder.is_dir():
        raise PictureError(f"{path}: there is no folder {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PictureError(f"{path}: the folder {folder} cannot be written to")
    if path.exists() and not os.access(path, os.W_OK):
        raise PictureError(f"{path}: there is such a file, and it may not be written to")


def save(path: str | os.PathLike[str], picture: NDArray[Any]) -> None:
    """Write `to_bytes(picture)` in the format that the file's ending names, whole or not at all.

    The file is written beside its place under another name and then moved there, so that a reader never sees half of it
    and an earlier file survives a failure. Raises what `to_bytes` and `check_writable` raise.
    """
    Image = _pillow()
    path = Path(path)
    pixels = to_bytes(picture)
    check_writable(path)
    kind, target = _format(path), _target(path)
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    try:
        try:
            with open(partial, "xb") as file:
                Image.fromarray(pixels).save(file, format=kind)
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
    except (OSError, ValueError) as error:  # a full disk; a size that the format cannot hold
        raise PictureError(f"{path}: cannot be written: {_reason(error)}") from None


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise ImportError("pictures need Pillow: pip install 'cudnnpy[images]'") from None
    return Image


def _colours(opened: Picture) -> NDArray[np.float32]:
    """Return (height, width, 3) for any mode that Pillow knows."""
    if opened.mode.startswith(("I", "F")):  # wider than 8 bits, which a conversion to RGB would cut off
        grey = np.asarray(opened, dtype=np.float32)
        if not np.isfinite(grey).all():
            raise ValueError("it has values that are not finite")
        return np.repeat(grey[..., np.newaxis], 3, axis=2)
    if opened.mode in ("RGBA", "LA", "PA") or "transparency" in opened.info:
        from PIL import Image

        colours = opened.convert("RGBA")
        white = Image.new("RGBA", colours.size, "white")
        opened = Image.alpha_composite(white, colours)
    return np.asarray(opened.convert("RGB"), dtype=np.float32)


def _spanning(values: NDArray[Any], top: float) -> NDArray[np.float32]:
    """Scale values linearly so that they span 0 to top."""
    low, high = float(values.min()), float(values.max())
    if high == low:
        return np.zeros(values.shape, np.float32)
    return ((values.astype(np.float64) - low) * (top / (high - low))).astype(np.float32)


def _format(path: Path) -> str:
    Image = _pillow()
    Image.init()
    kind: str | None = Image.registered_extensions().get(path.suffix.lower())
    if kind is None or kind not in Image.SAVE:
        ending = f"the ending {path.suffix!r}" if path.suffix else "no ending"
        raise PictureError(f"{path}: {ending} names no picture format that can be written; try .png or .jpg")
    return kind


def _target(path: Path) -> Path:
    """Return the file behind symbolic links, which stay links."""
    return Path(os.path.realpath(path))


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
