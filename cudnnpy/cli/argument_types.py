"""Types of the arguments of several commands, which argparse calls with the text of an argument."""

from __future__ import annotations

import argparse
import math

from cudnnpy._checks.byte_counts import read_bytes


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
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not (number > 0 and math.isfinite(number)):
        raise argparse.ArgumentTypeError(f"the value must be a number greater than 0; got {text!r}")
    return number
