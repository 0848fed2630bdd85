"""The arguments of several commands: sizes, numbers, the GPUs of this machine, and files to write."""

from __future__ import annotations

import argparse
import math
import os
from contextlib import suppress
from pathlib import Path

from cudnnpy._checks.byte_counts import read_bytes
from cudnnpy.availability import UnavailableError, usable_cuda, why_unavailable


class UsageError(ValueError):
    """A command cannot run with these arguments, these files or this machine. The message is one line."""


def size(text: str) -> int:
    """Parse a number of bytes, such as "64MiB", "1GiB", "512KB", "1.5 GB" or "1000"; a KB is 1000 bytes, a KiB 1024.

    Raises argparse.ArgumentTypeError for any other text.
    """
    count = read_bytes(text)
    if count is None:
        raise argparse.ArgumentTypeError(
            f"a size must be a number of bytes, such as 64MiB, 1GiB, 512KB or 1000000; got {text!r}"
        )
    return count


def positive(text: str) -> float:
    """Return the positive number of a text. Raises argparse.ArgumentTypeError for any other text."""
    with suppress(ValueError):
        if 0 < (number := float(text)) < math.inf:
            return number
    raise argparse.ArgumentTypeError(f"the value must be a number greater than 0; got {text!r}")


def is_ordinal(device: str) -> bool:
    """Return whether a device is the ordinal of a GPU of this machine, and no device profile."""
    return device.isascii() and device.isdigit()


def check_ordinal(device: int, advice: str = "") -> None:
    """Raise UnavailableError unless cuDNN can be used and there is a GPU of this ordinal. `advice` ends the message."""
    if why := why_unavailable():
        raise UnavailableError(why + advice)
    count = usable_cuda().gpu_count
    if not 0 <= device < count:
        there = "0, the only GPU here" if count == 1 else f"an ordinal from 0 to {count - 1}"
        raise UnavailableError(f"--device must be {there}; got {device}{advice}")


def check_writable(path: str, *, overwrite: bool) -> None:
    """Raise UsageError if a file cannot be written to a path, or exists and `overwrite` is false."""
    target = Path(os.path.realpath(path))
    try:
        if path in ("", "-"):
            raise UsageError(f"{path!r} is not the name of a file to write")
        if target.exists() and not target.is_file():
            raise UsageError(f"{path}: is {'a folder, ' * target.is_dir()}not a file to write")
        if target.exists() and not overwrite:
            raise UsageError(f"{path}: the file exists; --force overwrites it")
        if not target.parent.is_dir():
            raise UsageError(f"{path}: there is no folder {target.parent} to write it in")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise UsageError(f"{path}: the folder {target.parent} cannot be written to")
