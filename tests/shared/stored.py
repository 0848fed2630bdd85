"""Entries and faults for the tests of the store."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cudnnpy._planning.choice import Engine
from cudnnpy.store import Choice, Entry, Fault, Key, Store

GPU = ("NVIDIA H200", "9.0", 132)
CUDNN = 91900


def key(number: int = 0, **changes: Any) -> Key:
    """A key, another one for each number."""
    return Key(f'{{"number":{number}}}', "{}", *GPU, CUDNN)._replace(**changes)


def entry(number: int = 0, **changes: Any) -> Entry:
    """An entry for a key, as it comes from tuning. Its plan is short or long, by its number."""
    made = Entry(
        key=key(number),
        text=f"forward {number}x64x56x56 64x64x3x3 pad=1 float16 channels_last",
        choice=Choice(
            f"engine {number}",
            "knobs",
            Engine(number, {2: 5}),
            lowering="0123456789abcdef" * (number * 37 % 700),
            workspace_size=1 << 20,
            milliseconds=0.125,
            spread=0.01,
        ),
        tune_seconds=5.0,
        complete=True,
        made_at="2026-01-31T12:00:00+00:00",
        made_with={"cudnnpy": "1.0", "driver": "570.0", "python": "3.11"},
        candidates=(
            Choice(
                "engine 38 (tile_size=5)",
                "heuristics",
                notes=("tensor_core",),
                workspace_size=1 << 20,
                milliseconds=0.125,
            ),
            Choice("engine 1", "engines", deterministic=False, rejection_reason="cuDNN rejected it"),
        ),
    )
    return changed(made, **changes)


def changed(entry: Entry, **changes: Any) -> Entry:
    """An entry with other fields, also of its choice."""
    of_choice = {name: changes.pop(name) for name in Choice._fields if name in changes}
    return entry._replace(choice=entry.choice._replace(**of_choice), **changes)


def fault(number: int = 0, given: Key | None = None, **changes: Any) -> Fault:
    """A fault of a candidate for the problem of a number."""
    return Fault(
        key=key(number) if given is None else given._replace(options="{}"),
        text=f"forward {number}x64x56x56 64x64x3x3 pad=1",
        candidate="engine 3 (multiply=1)",
        symptom="limit exceeded",
        detail="no end after 2.0 s",
        driver="13.0",
        made_at="2026-02-01T12:00:00+00:00",
    )._replace(**changes)


def export(path: Path, entries: Iterable[Entry]) -> None:
    """Write an export of entries."""
    store = Store("")
    for made in entries:
        store.put(made)
    store.export(path)
