"""Entries of the store that no GPU made: for tests of what tuning reports, and stand-in workers."""

from __future__ import annotations

import json
import random
from typing import Any

from cudnnpy._store.entry import Entry, Key, StoredCandidate
from cudnnpy.cli.tune.tune_problem import Job


def candidate(
    name: str, source: str, milliseconds: float | None, workspace: int | None = 0, **fields: Any
) -> StoredCandidate:
    """A candidate; `notes`, `deterministic` and `refused` may be given."""
    fields = {"notes": (), "deterministic": True, "refused": "", **fields}
    return StoredCandidate(name, source, workspace, milliseconds, **fields)


CANDIDATES = (
    candidate("engine 1 (knob 2=0)", "heuristics", 0.5, 4096, notes=("tensor_core",)),
    candidate("engine 3", "heuristics", 0.7, 0),
    candidate("engine 5 + copies", "engines", 0.25, 1 << 20, notes=("winograd",)),
    candidate("engine 5", "engines", 9.0, 64 << 20),
    candidate("engine 6", "engines", 0.2, 0, refused="wrong result: off by 3"),
    candidate("engines 7-9", "engines", None, None, refused="not supported here: CUDNN_STATUS_NOT_SUPPORTED (3000)"),
)


def entry(text: str, candidates: tuple[StoredCandidate, ...] = CANDIDATES, chosen: int = 2, **fields: Any) -> Entry:
    """An entry that chooses one of some candidates."""
    key = Key(
        json.dumps({"problem": text}), "{}", fields.pop("gpu", "NVIDIA H200"), "9.0", 132, fields.pop("cudnn", 91900)
    )
    choice = candidates[chosen]
    plain: dict[str, Any] = {
        "key": key,
        "text": text,
        "plan": json.dumps({"name": choice.name.partition(" + ")[0]}),
        "milliseconds": choice.milliseconds,
        "spread": 0.02,
        "error": 0.1,
        "workspace_size": choice.workspace_size or 0,
        "tune_seconds": 2.0,
        "complete": True,
        "made_at": "2026-01-31T12:00:00+00:00",
        "made_with": {"cudnnpy": "0.1"},
        "candidates": candidates,
    }
    return Entry(**{**plain, **fields})


def job(text: str, seconds: float, kind: str = "") -> Job:
    """A job for which `entry` makes the entry."""
    return Job(text, seconds, kind, entry(text).key)


def drawn(text: str, seed: int) -> Entry:
    """An entry with about forty candidates that a seed draws."""
    draw = random.Random(seed)
    found = [
        candidate(
            f"engine {draw.randrange(80)} (knob {number}=1)",
            draw.choice(("heuristics", "heuristics", "engines", "knobs", "ranking")),
            round(0.05 * 2 ** draw.uniform(0, 6), 4),
            draw.choice((0, 0, draw.randrange(1, 1 << 28))),
            notes=draw.choice(((), ("tensor_core",), ("winograd", "tensor_core"))),
        )
        for number in range(draw.randrange(20, 50))
    ]
    found += [candidate(f"engines {seed}-{seed + 9}", "engines", None, None, refused="not supported here: 3000")]
    fastest = min((one for one in found if one.milliseconds), key=lambda one: one.milliseconds or 0.0)
    return entry(text, tuple(found), found.index(fastest))
