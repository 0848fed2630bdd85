"""Compare the choices of two runs of `cudnnpy plan`, usually with two releases of cuDNN."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import geometric_mean
from typing import NamedTuple

from cudnnpy import raw
from cudnnpy._checks.byte_counts import bytes_text
from cudnnpy._planning.choice import Choice
from cudnnpy.cli import text_table
from cudnnpy.cli.text_table import Line
from cudnnpy.tuning.store.entry import Entry

# The values of Comparison.change, the most serious first
_CHANGES = ("refused now", "another engine", "other knobs", "planned only now", "the same choice", "refused both times")


class Comparison(NamedTuple):
    """The choices for one problem before and now; None where it was refused."""

    text: str
    before: Entry | None
    now: Entry | None

    @property
    def change(self) -> str:
        """The difference of the choices."""
        if self.now is None:
            return "refused both times" if self.before is None else "refused now"
        if self.before is None:
            return "planned only now"
        before, now = self.before.choice, self.now.choice
        if before.name == now.name:
            return "the same choice"
        return "other knobs" if _without_knobs(before) == _without_knobs(now) else "another engine"

    @property
    def slowdown(self) -> float | None:
        """The time now over the time before; None unless both were measured."""
        before, now = (entry and entry.choice.milliseconds for entry in (self.before, self.now))
        return now / before if before and now else None

    def why_worse(self, workspace_growth: int | None = None, slowdown: float | None = None) -> str:
        """Return why the choice is worse than before by these limits; "" if it is not. None is no limit."""
        if self.change == "refused now":
            return "refused now"
        if self.before is None or self.now is None:
            return ""
        growth = (self.now.choice.workspace_size or 0) - (self.before.choice.workspace_size or 0)
        reasons = []
        if workspace_growth is not None and growth > workspace_growth:
            reasons.append(f"needs {bytes_text(growth)} more workspace")
        if slowdown is not None and (self.slowdown or 0.0) > slowdown:
            reasons.append(f"takes {self.slowdown:.3f} times as long")
        return ", ".join(reasons)


def _without_knobs(choice: Choice) -> object:
    """Return what choices that differ only in the knobs of the engine have in common."""
    engine = choice.engine
    return choice.name if engine is None else (engine.index, engine._lowering_options, choice.lowering)


def table(comparisons: Sequence[Comparison], columns: int | None = None) -> Iterator[Line]:
    """Return the lines of a table with the most serious changes first, wrapped to some columns if they are given."""
    is_timed = any(entry is not None and entry.choice.milliseconds for one in comparisons for entry in one[1:])
    cells = [["problem", "change", "choice", "workspace", *["ms", "error"] * is_timed]]
    for one in sorted(comparisons, key=lambda one: _CHANGES.index(one.change)):
        choices = [None if entry is None else entry.choice for entry in (one.before, one.now)]
        names = _both(["none" if choice is None else choice.name for choice in choices])
        sizes = _both(["-" if choice is None else bytes_text(choice.workspace_size or 0) for choice in choices])
        row = [one.text, one.change, names, sizes]
        if is_timed:
            row.append(_both([_number(choice and choice.milliseconds, ".4f") for choice in choices]))
            row.append(_both([_number(choice and choice.error, ".2g") for choice in choices]))
        cells.append(row)
    return text_table.table(cells, columns, indent="")


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _both(texts: Sequence[str]) -> str:
    before, now = texts
    return before if before == now else f"{before} -> {now}"


def summary(comparisons: Sequence[Comparison], before: int, now: int) -> str:
    """Return one line with the number of problems of each change. `before` and `now` are releases of cuDNN."""
    counts = Counter(one.change for one in comparisons)
    changes = ", ".join(f"{counts[change]} {change}" for change in _CHANGES if counts[change])
    ratios = [one.slowdown for one in comparisons if one.slowdown]
    times = f"; time now over before: {geometric_mean(ratios):.3f} in the geometric mean" if ratios else ""
    problems = f"{len(comparisons)} problem{'s' * (len(comparisons) != 1)}"
    return f"cuDNN {raw.version_text(before)} and {raw.version_text(now)}: {problems}: {changes or 'none'}{times}"
