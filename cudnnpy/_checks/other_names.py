"""Reads other_names.json: names of other libraries and of earlier releases of cuDNN, with what to type in place of each.

Its sections are for options (ours, and sentences), for values of options, for names of the package, for methods of a graph and
its tensors, for their keywords (our arguments, and sentences), and for names of C that cuDNN 9 does not have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any


@cache
def _sections() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return found


def _by_name(rows: Mapping[str, list[str]]) -> dict[str, str]:
    return {
        name: text.replace("{name}", name) for text, lines in rows.items() for line in lines for name in line.split()
    }


@cache
def advice(section: str) -> dict[str, str]:
    """Return the names of a section of the file -> what to type, in which "{name}" stands for the name."""
    return _by_name(_sections()[section])


@cache
def advice_on_values() -> dict[str, dict[str, str]]:
    """Return tables as `advice` for options that accept a value, by that value; "" is any option."""
    return {accepted: _by_name(rows) for accepted, rows in _sections()["values"].items()}
