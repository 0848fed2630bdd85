"""Picture files: the choice of the format, the checks before a file is written, and writing it atomically.

Needs Pillow, which the extra `images` installs.
"""

from __future__ import annotations

import os
import stat
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudnnpy._core.whole_file import replacing
from cudnnpy._installation import with_extra

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

DEFAULT_FORMAT = "PNG"
# Pillow's JPEG library rejects larger pictures and prints a line of its own.
_LARGEST = {"JPEG": 65500, "MPO": 65500}


class PictureError(ValueError):
    """A picture cannot be read or written. The message is one line that names the file."""


def pillow() -> Any:
    """Return the module PIL.Image, or raise ImportError, which says how to install it."""
    try:
        from PIL import Image
    except ImportError:
        raise ImportError(f"pictures need Pillow: pip install {with_extra('images')}") from None
    return Image


def format_of(path: str | os.PathLike[str], wanted: str | None = None) -> str:
    """Return Pillow's name of the format to write, from `wanted` (an ending, such as "png") or else the file's ending.

    The format of a device or a pipe without an ending is PNG. Raises PictureError for a format that cannot hold
    colours, ImportError without Pillow.
    """
    Image = pillow()
    Image.init()
    suffix = Path(path).suffix if wanted is None else "." + wanted.removeprefix(".")
    if not suffix and _is_stream(_status(path)):
        return DEFAULT_FORMAT
    kind: str | None = Image.registered_extensions().get(suffix.lower())
    if kind is None or _rejection_reason(kind, (40, 30)) is not None:  # a size that icon formats cannot hold
        ending = f"the ending {suffix!r}" if suffix else "no ending"
        named = ending if wanted is None else f"format {wanted!r}"
        raise PictureError(f"{path}: {named} names no picture format that can be written; try png or jpg")
    return kind


def check_size(path: str | os.PathLike[str], kind: str, width: int, height: int) -> None:
    """Raise PictureError if a format cannot hold a picture of a size unchanged."""
    largest = _LARGEST.get(kind)
    if largest is not None and max(width, height) > largest:
        why: str | None = f"at most {largest} pixels a side"
    else:
        why = _rejection_reason(kind, (width, 1), (1, height))
    if why is not None:
        raise PictureError(f"{path}: {kind} cannot hold a picture of {width} x {height}: {why}")


def _rejection_reason(kind: str, *sizes: tuple[int, int]) -> str | None:
    """Return why a format cannot hold pictures of these sizes, or None if it can. Pictures are written to find out."""
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
            continue  # Pillow cannot read this format back
        except Exception as error:  # formats raise exceptions of any type
            return one_line(error)
    return None


def check_writable(
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    source: str | os.PathLike[str] | None = None,
    format: str | None = None,
) -> None:
    """Raise PictureError if a picture cannot be written to a path. Meant to be called before a long computation.

    Reasons are an unknown format, a missing folder, missing permissions, a block device or a socket, and, unless
    `overwrite` is true, an existing file. `source` is the picture that is read; the message says if the path is the
    same file. Raises ImportError without Pillow.
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
        raise PictureError(f"{path}: is {kind}; a picture is written to a file")
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
    """Return a picture encoded in a format, in memory, so that an error of the encoder leaves no partial file."""
    file = BytesIO()
    try:
        image.save(file, format=kind)
    except (OSError, ValueError, OverflowError, RuntimeError) as error:  # the exceptions of Pillow's encoders
        raise PictureError(f"{path}: cannot be written as {kind}: {one_line(error)}") from None
    return file.getbuffer()


def write(
    path: str | os.PathLike[str], content: memoryview, *, overwrite: bool = False, format: str | None = None
) -> None:
    """Write a file atomically: completely or not at all.

    The content is written to a temporary file in the same folder, which then replaces the target, so that readers never
    see a partial file and an existing file survives a failure. The mode of an existing file is kept, and symbolic links
    to it stay links. A pipe or a character device is written to directly. Raises the errors of `check_writable`,
    PictureError for a failure such as a full disk, and BrokenPipeError if the reader of a pipe has closed it.
    """
    check_writable(path, overwrite=overwrite, format=format)
    status = _status(path)
    try:
        if _is_stream(status):
            with open(
                os.open(path, os.O_WRONLY), "wb"
            ) as file:  # without O_CREAT, which would replace a vanished device
                file.write(content)
        else:
            _replace(_target(path), content, status)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise PictureError(f"{path}: cannot be written: {one_line(error)}") from None


def _replace(target: Path, content: memoryview, earlier: os.stat_result | None) -> None:
    with replacing(target) as partial:
        mode = 0o666 if earlier is None else 0o600  # the umask applies to a new file
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
            if earlier is not None:
                try:
                    os.fchown(file.fileno(), earlier.st_uid, earlier.st_gid)
                except PermissionError:
                    pass  # the file belongs to another user, but this user may replace it in this folder
                os.fchmod(file.fileno(), stat.S_IMODE(earlier.st_mode))


def _status(path: str | os.PathLike[str]) -> os.stat_result | None:
    """Return the status of the file at a path, following symbolic links, or None if there is none."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:  # for example a circular link, missing permission, or a name that is too long
        raise PictureError(f"{path}: {one_line(error)}") from None


def _is_stream(status: os.stat_result | None) -> bool:
    """Return whether a file is a pipe or a character device, which is written to directly and never replaced."""
    return status is not None and (stat.S_ISFIFO(status.st_mode) or stat.S_ISCHR(status.st_mode))


def _target(path: str | os.PathLike[str]) -> Path:
    """Return the file that a path names after its symbolic links are followed."""
    return Path(os.path.realpath(path))


def one_line(error: Exception) -> str:
    """Return the message of an exception in one line, without the file's name."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())
