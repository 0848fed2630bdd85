"""What can be wrong with the file of a store, and how its user learns of it."""

from __future__ import annotations

import sys
import warnings


class Unusable(Exception):
    """A file cannot be read, or not be written; the text says why."""


class Damaged(Unusable):
    """A file of this package is damaged."""

    def __init__(self) -> None:
        super().__init__("it is damaged and cannot be replaced")


class Foreign(Unusable):
    """A file is not of this package."""

    def __init__(self) -> None:
        super().__init__("it is now a file of another kind")


class Locked(Exception):
    """Another process locks a file, for longer than a look-up waits."""


def warn(text: str) -> None:
    """Give a RuntimeWarning at the line outside of this package that led here."""
    depth, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "cudnnpy":
        depth, frame = depth + 1, frame.f_back
    warnings.warn(text, RuntimeWarning, stacklevel=depth)
