"""Numbers of bytes as people write them: 64MiB, 1GiB, 512KB."""

from __future__ import annotations

import re
from fractions import Fraction

BINARY_UNITS = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10}

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)}
_UNITS |= {f"{letter}IB": 1024**power for power, letter in enumerate("KMGT", 1)}


def read_bytes(text: str) -> int | None:
    """Return the number of bytes of a text such as "64MiB", "1GiB", "512KB", "1.5 GB" or "1000"; None for any other text.

    A KB is 1000 bytes, a KiB 1024.
    """
    match = re.fullmatch(r"([0-9]{1,20}(?:\.[0-9]{1,20})?) ?([A-Za-z]*)", text.strip())
    if match is None or match[2].upper() not in _UNITS:
        return None
    return int(Fraction(match[1]) * _UNITS[match[2].upper()])


def write_bytes(count: int) -> str:
    """Return a number of bytes in the largest of KiB, MiB and GiB that divides it: `read_bytes` returns the same number."""
    unit = next((name for name, size in BINARY_UNITS.items() if count and count % size == 0), "")
    return f"{count // BINARY_UNITS.get(unit, 1)}{unit}"


def bytes_text(size: int) -> str:
    """Return a size in bytes as text: 1536 -> "1.5 KiB"."""
    value, unit = float(size), "bytes"
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{size} bytes" if unit == "bytes" else f"{value:.4g} {unit}"
