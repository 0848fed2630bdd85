"""What is known of a choice: the candidates, the one that is chosen and why, and what a store has for the problem.

`Explanation.plain` is what `cudnnpy explain --json` prints. Keys are added in later versions, and not changed or removed while
`format` stays the same:

=================  ==========================================================================================================
key                value
=================  ==========================================================================================================
``format``         1
``problem``        the problem and its options in the notation
``device``         ``name``, ``capability``, ``multiprocessors`` and ``memory`` (bytes) of the GPU, and ``profile``: the file,
                   or null for a GPU of this machine
``cudnn``          the release of cuDNN, such as "9.28.0"
``limit``          the largest workspace that the options permit, in bytes
``choice``         the name of the candidate that is chosen; null if none can be used
``why``            why, in words
``milliseconds``   the time of the choice; null if it was not measured
``error``          its largest error against float64 in units of the tolerance; null if it was not compared
``stored``         what the store has, or null: ``layer``, ``made_at``, ``made_with``, ``choice`` (null if its plan cannot be
                   read), ``milliseconds``, ``spread``, ``error``, ``workspace_size``, ``tune_seconds``, ``complete``
``candidates``     a list, the best guess first, of: ``name``, ``source``, ``engine`` (its number; null for a v7 algorithm),
                   ``knobs`` (an object of integers), ``workspace_size`` (bytes; null if it was not planned), ``notes``,
                   ``deterministic``, ``milliseconds`` (null if it was not measured), ``expected`` (a guess: its time relative
                   to the fastest, from measurements of near problems; null without one), ``error``, and ``rejected`` (the
                   reason; "" if it can be used)
=================  ==========================================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from cudnnpy._planning import offline_planning
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.options import PlanningOptions
from cudnnpy.errors import CudnnError

if TYPE_CHECKING:
    from cudnnpy._store.entry import Entry
    from cudnnpy._store.layers import Found

FORMAT = 1
_NOTHING = "nothing is stored for this problem"


@dataclass(frozen=True)
class Row:
    """One candidate. The fields are those of `candidates` above."""

    name: str
    source: str
    engine: int | None
    knobs: dict[str, int]
    workspace_size: int | None
    notes: tuple[str, ...]
    deterministic: bool
    milliseconds: float | None
    expected: float | None
    error: float | None
    rejected: str

    def plain(self) -> dict[str, Any]:
        """Return the row as JSON."""
        return {**asdict(self), "notes": list(self.notes)}

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Row:
        """Return the row of JSON from `plain` or offline.row."""
        return cls(**{**plain, "notes": tuple(plain["notes"])})


def row_of(candidate: Candidate) -> Row:
    """Return the row of a candidate."""
    return Row.of(offline_planning.row(candidate))


@dataclass(frozen=True)
class Gpu:
    """The GPU that is planned for. `profile` is the file that describes it; None for one of this machine."""

    name: str
    capability: str
    multiprocessors: int
    memory: int
    profile: str | None


@dataclass(frozen=True)
class Stored:
    """What a store has for the problem: `layer` tells which store, `choice` the candidate, None if its plan cannot be read."""

    layer: str
    made_at: str
    made_with: dict[str, str]
    choice: str | None
    milliseconds: float | None
    spread: float | None
    error: float | None
    workspace_size: int
    tune_seconds: float
    complete: bool

    def within(self, limit: int) -> str | None:
        """Return the choice if it needs no more workspace than the limit."""
        return self.choice if self.workspace_size <= limit else None


@dataclass(frozen=True)
class Explanation:
    """Why a candidate is chosen. The fields are those of the JSON above."""

    problem: str
    device: Gpu
    cudnn: str
    limit: int
    choice: str | None
    why: str
    milliseconds: float | None
    error: float | None
    stored: Stored | None
    candidates: tuple[Row, ...]

    def plain(self) -> dict[str, Any]:
        """Return the explanation as JSON."""
        return {
            "format": FORMAT,
            **asdict(self),
            "candidates": [row.plain() for row in self.candidates],
        }

    @property
    def chosen(self) -> Row | None:
        """The candidate that is chosen, if it is listed."""
        return next((row for row in self.candidates if row.name == self.choice), None)


def explained(
    text: str,
    options: PlanningOptions,
    device: Gpu,
    cudnn: str,
    limit: int,
    rows: Sequence[Row],
    found: Found | None,
    why_not_stored: str = "",
    left_out: Mapping[str, str] = {},
    measured: Entry | None = None,
) -> Explanation:
    """Return the explanation of a choice among candidates that were planned.

    `found` is what the store has, and `why_not_stored` why it is not taken whatever its workspace, "" if it is. `left_out` has
    the candidates with a stored fault, and `measured` is the result of measuring now, if there is one.
    """
    stored = None if found is None else _stored(found)
    usable = [row for row in rows if not row.rejected]
    with_fault = [row for row in rows if row.rejected and row.rejected == left_out.get(row.name)]
    made = Explanation(text, device, cudnn, limit, None, "", None, None, stored, tuple(rows))
    source = measured if measured is not None else None if found is None else found.entry
    if source is not None:
        made = replace(made, candidates=_with_times(rows, source, has_reasons=measured is not None))
    if measured is not None:
        count = sum(one.milliseconds is not None for one in measured.candidates)
        choice, why = name_of(measured.plan), f"the fastest of {count} that were measured now"
    elif stored is not None and not why_not_stored and (taken := stored.within(limit)):
        choice, why = taken, _why_stored(stored, options)
    elif usable:
        choice, why = usable[0].name, _why(usable[0], rows, options, why_not_stored or _why_not_stored(stored, limit))
    elif with_fault:
        choice, why = (
            with_fault[0].name,
            f"no other candidate can be used, in spite of its fault: {with_fault[0].rejected}",
        )
    else:
        return replace(made, why="no candidate can be used: see the rejection reasons")
    chosen = next((row for row in made.candidates if row.name == choice), None)
    time, error = (None, None) if chosen is None else (chosen.milliseconds, chosen.error)
    if source is not None and choice == name_or_none(source.plan):
        time, error = source.milliseconds, source.error
    return replace(made, choice=choice, why=why, milliseconds=time, error=error)


def _why_not_stored(stored: Stored | None, limit: int) -> str:
    """Return why the store has no choice that can be taken."""
    if stored is None:
        return _NOTHING
    if stored.choice is None:
        return "what is stored cannot be read"
    return f"what is stored needs {stored.workspace_size:,} bytes of workspace, more than the limit of {limit:,}"


def _why(row: Row, rows: Sequence[Row], options: PlanningOptions, not_stored: str) -> str:
    """Return why a candidate is the first guess, and why the store has no choice that can be taken."""
    before = next(number for number, other in enumerate(rows) if other is row)
    passed = f", after {before} that {'was' if before == 1 else 'were'} rejected" if before else ""
    if row.source.startswith("measured for "):
        why = f"it was among the fastest for a near problem ({row.source.removeprefix('measured for ')}){passed}"
    elif row.source == "heuristics":
        why = f"the first of cuDNN's heuristics that can be used{passed}"
    elif row.source == "legacy":
        why = f"no engine can be used{passed}: an algorithm of the v7 functions"
    else:
        why = f"the first engine that can be used{passed}"
    if options.prefer != "autotune":
        why += "" if not_stored == _NOTHING else f"; {not_stored}"
    else:
        why += f"; {not_stored}, so prefer='autotune' will measure it and the others on the GPU"
    return why


def _why_stored(stored: Stored, options: PlanningOptions) -> str:
    date, by = stored.made_at[:10], stored.made_with.get("cudnnpy", "?")
    if stored.milliseconds is None:
        return f"planned without measuring on {date} with cudnnpy {by}; from the store's layer: {stored.layer}"
    whole = "" if stored.complete else ", before all candidates were measured"
    why = f"tuned on {date} with cudnnpy {by}{whole}; from the store's layer: {stored.layer}"
    if options.prefer == "autotune" and not stored.complete and stored.tune_seconds < options.tune_seconds:
        why += f"; more than its {stored.tune_seconds:g} s are allowed now, so it is measured again with the others"
    return why


def _stored(found: Found) -> Stored:
    entry = found.entry
    return Stored(
        found.layer,
        entry.made_at,
        entry.made_with,
        name_or_none(entry.plan),
        entry.milliseconds,
        entry.spread,
        entry.error,
        entry.workspace_size,
        entry.tune_seconds,
        entry.complete,
    )


def name_of(plan: str) -> str:
    """Return the name of the candidate of a serialized plan."""
    from cudnnpy._planning.plan_serialization import deserialize

    return deserialize(plan).name


def name_or_none(plan: str) -> str | None:
    """Return the name of the candidate of a serialized plan; None if it cannot be read."""
    try:
        return name_of(plan)
    except (ValueError, CudnnError):  # a plan that planning forgets
        return None


def _with_times(rows: Sequence[Row], entry: Entry, *, has_reasons: bool) -> tuple[Row, ...]:
    """Return the rows with the times of an entry, and its rejection reasons if requested, and what only the entry has."""
    times = {one.name: one for one in entry.candidates}
    known = {row.name for row in rows}
    merged = [
        replace(
            row,
            milliseconds=times[row.name].milliseconds,
            rejected=row.rejected or (times[row.name].refused if has_reasons else ""),
        )
        if row.name in times and row.milliseconds is None
        else row
        for row in rows
    ]
    merged += [
        Row(
            *(one.name, one.source, None, {}, one.workspace_size, one.notes, one.deterministic),
            *(one.milliseconds, None, None, one.refused),
        )
        for one in entry.candidates
        if one.name not in known
    ]
    return tuple(merged)
