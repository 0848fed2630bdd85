"""Warn at the line of the caller's program that led into this package."""

from __future__ import annotations

import sys
import warnings


def warn(text: str) -> None:
    """Give a RuntimeWarning at the line outside of this package that led here."""
    depth, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "cudnnpy":
        depth, frame = depth + 1, frame.f_back
    warnings.warn(text, RuntimeWarning, stacklevel=depth)
