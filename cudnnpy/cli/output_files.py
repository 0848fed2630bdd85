"""Files that a command writes: checks before a long computation, and atomic writes."""

from __future__ import annotations

import os
from pathlib import Path

from cudnnpy._core.atomic_file import replace_file
from cudnnpy.cli.errors import UsageError


def check_writable(path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Raise UsageError if a file cannot be written to a path, or exists and `overwrite` is false."""
    target = Path(os.path.realpath(path))
    try:
        if not os.fspath(path):
            raise UsageError("'': is not the name of a file to write")
        if target.is_dir():
            raise UsageError(f"{path}: is a folder, not a file to write")
        if target.exists() and not target.is_file():
            raise UsageError(f"{path}: is not a file; name a file to write")
        if target.exists() and not overwrite:
            raise UsageError(f"{path}: the file exists; --force overwrites it")
        if not target.parent.is_dir():
            raise UsageError(f"{path}: there is no folder {target.parent} to write it in")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {_reason(error)}") from None
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise UsageError(f"{path}: the folder {target.parent} cannot be written to")


def write(path: str | os.PathLike[str], content: str | bytes, *, overwrite: bool = True) -> None:
    """Write a file atomically, and make its folder if only that is missing. The mode of a replaced file stays.

    Raises UsageError if it cannot be written, or if it exists and `overwrite` is false.
    """
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(exist_ok=True)
        check_writable(path, overwrite=overwrite)
        replace_file(target, content.encode(errors="backslashreplace") if isinstance(content, str) else content)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {_reason(error)}") from None


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
