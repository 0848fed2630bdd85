"""Errors of a store's file, and the warning that reports one."""

from __future__ import annotations

import sys
import warnings


class FileUnavailableError(Exception):
    """A file cannot be used. The text is the reason."""


class CorruptFileError(FileUnavailableError):
    """A file is damaged."""

    def __init__(self) -> None:
        super().__init__("it is damaged and cannot be replaced")


class ForeignFileError(FileUnavailableError):
    """A file is not a store."""

    def __init__(self) -> None:
        super().__init__("it is now a file of another kind")


class LockedError(Exception):
    """Another process locks a file for longer than the caller waits."""


def warn(text: str) -> None:
    """Give a RuntimeWarning at the line outside of this package that led here."""
    depth, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "cudnnpy":
        depth, frame = depth + 1, frame.f_back
    warnings.warn(text, RuntimeWarning, stacklevel=depth)
