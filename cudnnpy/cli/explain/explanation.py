"""The explanation of a choice: the candidates, the chosen one, the reasons, and the stored choice.

`cudnnpy explain --json` prints `Explanation.plain`, whose keys docs/planning-without-a-gpu.md describes. Later versions may add
keys; they change or remove none while `format` stays the same.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cudnnpy._planning.choice import Choice
from cudnnpy.tuning.store.entry import Entry

FORMAT = 2
_STORED = ("made_at", "made_with", "tune_seconds", "complete")


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
    """The stored choice for the problem. `layer` names the store."""

    layer: str
    entry: Entry

    @property
    def choice(self) -> Choice:
        """The choice, with its layer."""
        return self.entry.choice._replace(store_layer=self.layer)

    def fits(self, limit: int) -> bool:
        """Return whether the choice needs no more workspace than the limit."""
        return (self.choice.workspace_size or 0) <= limit

    def plain(self) -> dict[str, Any]:
        """Return the stored choice as JSON."""
        return {"choice": self.choice.plain(), **{name: getattr(self.entry, name) for name in _STORED}}


@dataclass(frozen=True)
class Explanation:
    """A choice and its reason, with the fields of the JSON."""

    problem: str
    device: Gpu
    cudnn: str
    limit: int
    choice: Choice | None
    why: str
    stored: Stored | None
    candidates: tuple[Choice, ...]

    def plain(self) -> dict[str, Any]:
        """Return the explanation as JSON."""
        return {
            "format": FORMAT,
            **vars(self),
            "device": asdict(self.device),
            "choice": None if self.choice is None else self.choice.plain(),
            "stored": None if self.stored is None else self.stored.plain(),
            "candidates": [candidate.plain() for candidate in self.candidates],
        }
