"""Entries of the store that no GPU made: for tests of what tuning reports, and stand-in workers."""

from __future__ import annotations

import json
from typing import Any

from cudnnpy._planning.choice import Choice, GpuKind
from cudnnpy.cli.tune.tune_problem import Job
from cudnnpy.tuning.store.entry import Entry, Key

KIND = GpuKind("NVIDIA H200", "9.0", 132)


def candidate(name: str, source: str, milliseconds: float | None, workspace: int | None = 0, **fields: Any) -> Choice:
    """A candidate; other fields of Choice may be given."""
    return Choice(name, source, milliseconds=milliseconds, workspace_size=workspace, **fields)


CANDIDATES = (
    candidate("engine 1 (knob 2=0)", "heuristics", 0.5, 4096, notes=("tensor_core",)),
    candidate("engine 3", "heuristics", 0.7, 0),
    candidate("engine 5 + copies", "engines", 0.25, 1 << 20, notes=("winograd",)),
    candidate("engine 5", "engines", 9.0, 64 << 20),
    candidate("engine 6", "engines", 0.2, 0, rejection_reason="wrong result: off by 3"),
    candidate(
        "engines 7-9", "engines", None, None, rejection_reason="not supported here: CUDNN_STATUS_NOT_SUPPORTED (3000)"
    ),
)


def entry(text: str, candidates: tuple[Choice, ...] = CANDIDATES, chosen: int = 2, **fields: Any) -> Entry:
    """An entry that chooses one of some candidates."""
    kind = KIND._replace(name=fields.pop("gpu", KIND.name))
    key = Key(json.dumps({"problem": text}), "{}", *kind, fields.pop("cudnn", 91900))
    choice = candidates[chosen]._replace(spread=0.02, error=0.1)
    of_choice = {name: fields.pop(name) for name in Choice._fields if name in fields}
    plain: dict[str, Any] = {
        "key": key,
        "text": text,
        "choice": choice._replace(**of_choice),
        "tune_seconds": 2.0,
        "complete": True,
        "made_at": "2026-01-31T12:00:00+00:00",
        "made_with": {"cudnnpy": "0.1"},
        "candidates": candidates,
    }
    return Entry(**{**plain, **fields})


def job(text: str, seconds: float, kind: GpuKind = KIND) -> Job:
    """A job for which `entry` makes the entry."""
    return Job(text, seconds, kind, entry(text).key)
