"""The line of the caller's program that led into this package, for warnings and log records."""

from __future__ import annotations

import sys
import warnings
from types import FrameType


def warn(text: str) -> None:
    """Give a RuntimeWarning at the line outside of this package that led here."""
    warnings.warn(text, RuntimeWarning, stacklevel=depth_of_caller())


def depth_of_caller() -> int:
    """Return the `stacklevel` of the line outside of this package that led to the calling function, whose own level is 1."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _is_within(frame):
        depth, frame = depth + 1, frame.f_back
    return depth


def _is_within(frame: FrameType) -> bool:
    """Return whether a frame is this package's, or a context manager's between two of them."""
    return str(frame.f_globals.get("__name__")).partition(".")[0] in ("cudnnpy", "contextlib")
