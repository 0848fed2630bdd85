"""Candidates that no heuristics proposed."""

from __future__ import annotations

from typing import Any

from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.choice import Choice

_LIVE = ("make", "lowering", "plan", "executable")  # the fields of Candidate; others are of its choice


def made_up(name: str, source: str = "heuristics", **fields: Any) -> Candidate:
    """A candidate with some fields of Choice and of Candidate."""
    live = {field: fields.pop(field) for field in _LIVE if field in fields}
    return Candidate(Choice(name, source, **fields), **live)
