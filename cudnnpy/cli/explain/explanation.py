"""The explanation of a choice: the candidates, the chosen one, the reasons, and the stored choice.

`cudnnpy explain --json` prints `Explanation.plain`, whose keys docs/planning-without-a-gpu.md describes. Later versions may add
keys; they change or remove none while `format` stays the same.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cudnnpy._planning.offline_planning import CandidateRow
from cudnnpy._store.entry import Entry
from cudnnpy.errors import CudnnError

FORMAT = 1
_STORED = ("made_at", "made_with", "milliseconds", "spread", "error", "workspace_size", "tune_seconds", "complete")


@dataclass(frozen=True)
class Gpu:
    """The GPU that is planned for. `profile` is the name or file of its device profile; None for one of this machine."""

    name: str
    capability: str
    multiprocessors: int
    memory: int
    profile: str | None


@dataclass(frozen=True)
class Stored:
    """The stored choice for the problem. `layer` names the store; `choice` is None if its plan cannot be read."""

    layer: str
    entry: Entry
    choice: str | None

    def within(self, limit: int) -> str | None:
        """Return the choice if it needs no more workspace than the limit."""
        return self.choice if self.entry.workspace_size <= limit else None

    def plain(self) -> dict[str, Any]:
        """Return the stored choice as JSON."""
        return {"layer": self.layer, "choice": self.choice, **{name: getattr(self.entry, name) for name in _STORED}}


@dataclass(frozen=True)
class Explanation:
    """A choice and its reason, with the fields of the JSON."""

    problem: str
    device: Gpu
    cudnn: str
    limit: int
    choice: str | None
    why: str
    milliseconds: float | None
    error: float | None
    stored: Stored | None
    candidates: tuple[CandidateRow, ...]

    def plain(self) -> dict[str, Any]:
        """Return the explanation as JSON."""
        return {
            "format": FORMAT,
            **vars(self),
            "device": asdict(self.device),
            "stored": None if self.stored is None else self.stored.plain(),
            "candidates": [{**row._asdict(), "notes": list(row.notes)} for row in self.candidates],
        }

    @property
    def chosen(self) -> CandidateRow | None:
        """The chosen candidate, if it is listed."""
        return next((row for row in self.candidates if row.name == self.choice), None)


def name_of(plan: str) -> str:
    """Return the name of the candidate of a serialized plan."""
    from cudnnpy._planning.plan_serialization import deserialize

    return deserialize(plan).name


def name_or_none(plan: str) -> str | None:
    """Return the name of the candidate of a serialized plan; None if it cannot be read."""
    try:
        return name_of(plan)
    except (ValueError, CudnnError):  # planning marks such a plan as failed
        return None
