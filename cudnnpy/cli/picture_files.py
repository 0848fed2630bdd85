"""Files that pictures are written to: which format, may it be written there, and then whole or not at all.

Needs Pillow, which the extra `images` brings.
"""

from __future__ import annotations

import os
import secrets
import stat
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudnnpy._installation import with_extra

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

DEFAULT_FORMAT = "PNG"
# Larger pictures of these are refused by a library below Pillow, which prints a line of its own.
_LARGEST = {"JPEG": 65500, "MPO": 65500}


class PictureError(ValueError):
    """A picture cannot be read, or a result cannot be written there; one line that names the file."""


def pillow() -> Any:
    """Return the module PIL.Image, or raise ImportError with what to install."""
    try:
        from PIL import Image
    except ImportError:
        raise ImportError(f"pictures need Pillow: pip install {with_extra('images')}") from None
    return Image


def format_of(path: str | os.PathLike[str], wanted: str | None = None) -> str:
    """Return Pillow's name of the format to write: `wanted` (as an ending: "png"), else what the file's ending names.

    A device or a pipe without an ending gets PNG. Raises PictureError for a format that colours cannot be written in,
    ImportError without Pillow.
    """
    Image = pillow()
    Image.init()
    suffix = Path(path).suffix if wanted is None else "." + wanted.removeprefix(".")
    if not suffix and _is_stream(_status(path)):
        return DEFAULT_FORMAT
    kind: str | None = Image.registered_extensions().get(suffix.lower())
    if kind is None or _why_not(kind, (40, 30)) is not None:  # of icons, a size that none has
        ending = f"the ending {suffix!r}" if suffix else "no ending"
        named = ending if wanted is None else f"format {wanted!r}"
        raise PictureError(f"{path}: {named} names no picture format that can be written; try png or jpg")
    return kind


def check_size(path: str | os.PathLike[str], kind: str, width: int, height: int) -> None:
    """Raise PictureError if a format cannot hold a picture of that size, as it is."""
    largest = _LARGEST.get(kind)
    if largest is not None and max(width, height) > largest:
        why: str | None = f"at most {largest} pixels a side"
    else:
        why = _why_not(kind, (width, 1), (1, height))
    if why is not None:
        raise PictureError(f"{path}: {kind} cannot hold a picture of {width} x {height}: {why}")


def _why_not(kind: str, *sizes: tuple[int, int]) -> str | None:
    """Return why a format cannot hold pictures of these sizes, found by writing them, or None if it can."""
    Image = pillow()
    if kind not in Image.SAVE:
        return "it can only be read"
    for size in sizes:
        file = BytesIO()
        try:
            Image.new("RGB", size).save(file, format=kind)
            if kind not in Image.OPEN:
                continue
            with Image.open(file, formats=[kind]) as written:
                if written.size != size:
                    return "it changes the size"
        except Image.UnidentifiedImageError:
            continue  # written for others to read
        except Exception as error:  # each format has its own
            return one_line(error)
    return None


def check_writable(
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    source: str | os.PathLike[str] | None = None,
    format: str | None = None,
) -> None:
    """Raise PictureError if a picture could not be written there; for use before a long computation.

    An unknown format, no such folder, no permission, a disk or a socket; and a file that is there already, unless
    `overwrite` says that it may be replaced. `source` is the picture that is read, which the message tells apart.
    Raises ImportError without Pillow.
    """
    path = Path(path)
    status = _status(path)
    if status is not None and stat.S_ISDIR(status.st_mode):
        raise PictureError(f"{path}: is a folder, not a file to write")
    format_of(path, format)
    if _is_stream(status):
        if not os.access(path, os.W_OK):
            raise PictureError(f"{path}: may not be written to")
        return
    if status is not None and not stat.S_ISREG(status.st_mode):
        kind = "a socket" if stat.S_ISSOCK(status.st_mode) else "a block device"
        raise PictureError(f"{path}: is {kind}, which no picture is written to")
    folder = _target(path).parent
    if not folder.is_dir():
        raise PictureError(f"{path}: there is no folder {folder}")
    if status is not None and not overwrite:
        if source is not None and os.path.exists(source) and os.path.samefile(source, path):
            raise PictureError(f"{path}: is the input; --force overwrites it")
        raise PictureError(f"{path}: the file exists; --force overwrites it")
    if status is not None and not os.access(path, os.W_OK):
        raise PictureError(f"{path}: the file exists and may not be written to")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PictureError(f"{path}: the folder {folder} cannot be written to")


def encode(path: str | os.PathLike[str], image: PillowImage, kind: str) -> memoryview:
    """Return the bytes of a picture in a format. They are in memory before anything is opened for writing."""
    file = BytesIO()
    try:
        image.save(file, format=kind)
    except (OSError, ValueError, OverflowError, RuntimeError) as error:  # what the formats raise
        raise PictureError(f"{path}: cannot be written as {kind}: {one_line(error)}") from None
    return file.getbuffer()


def write(
    path: str | os.PathLike[str], content: memoryview, *, overwrite: bool = False, format: str | None = None
) -> None:
    """Write a file, whole or not at all.

    A file is written beside its place under another name and then moved there, so that a reader never sees half of it
    and an earlier file survives a failure. The earlier file's mode is kept, and symbolic links to it stay links. A pipe
    or a character device is written to. Raises what `check_writable` raises, and PictureError for a failure such as a
    full disk; BrokenPipeError where a pipe's reader went away.
    """
    check_writable(path, overwrite=overwrite, format=format)
    status = _status(path)
    try:
        if _is_stream(status):
            with open(os.open(path, os.O_WRONLY), "wb") as file:  # without O_CREAT: a device that is gone stays gone
                file.write(content)
        else:
            _replace(_target(path), content, status)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise PictureError(f"{path}: cannot be written: {one_line(error)}") from None


def _replace(target: Path, content: memoryview, earlier: os.stat_result | None) -> None:
    partial = target.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        mode = 0o666 if earlier is None else 0o600  # a new file obeys the umask
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
            if earlier is not None:
                try:
                    os.fchown(file.fileno(), earlier.st_uid, earlier.st_gid)
                except PermissionError:
                    pass  # another user's file, in a folder where this user may replace it
                os.fchmod(file.fileno(), stat.S_IMODE(earlier.st_mode))
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def _status(path: str | os.PathLike[str]) -> os.stat_result | None:
    """Return what is at a path, behind symbolic links, or None for nothing."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:  # a link to itself, a forbidden folder, a name that is too long
        raise PictureError(f"{path}: {one_line(error)}") from None


def _is_stream(status: os.stat_result | None) -> bool:
    """Return whether it is a pipe or a character device: to be written to as it is, never replaced."""
    return status is not None and (stat.S_ISFIFO(status.st_mode) or stat.S_ISCHR(status.st_mode))


def _target(path: str | os.PathLike[str]) -> Path:
    """Return the file behind symbolic links, which stay links."""
    return Path(os.path.realpath(path))


def one_line(error: Exception) -> str:
    """Return what an exception says, without the file's name and in one line."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())
