"""Reads other_names.json: names of other libraries and of earlier releases of cuDNN, with what to type in place of each.

Its sections are for names of the package, for methods of a graph and its tensors, for their keywords (our arguments, and
sentences), and for names of C that cuDNN 9 does not have.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path


@cache
def advice(section: str) -> dict[str, str]:
    """Return the names of a section of the file -> what to type, in which "{name}" stands for the name."""
    rows = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))[section]
    return {
        name: text.replace("{name}", name) for text, lines in rows.items() for line in lines for name in line.split()
    }
