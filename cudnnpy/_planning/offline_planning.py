"""The choice for a device profile instead of a GPU (`cudnnpy plan`, `cudnnpy explain --device`), and candidates as JSON."""

from __future__ import annotations

from typing import NamedTuple

from cudnnpy._planning.candidates import Candidate, detached_candidate
from cudnnpy._planning.chooser import Chooser
from cudnnpy._planning.engines import knob_name
from cudnnpy._planning.plan import Plan
from cudnnpy._planning.selection import no_algorithm, survey
from cudnnpy._planning.stored_choice import entry_of
from cudnnpy._store.entry import Entry


def plan_for_profile(chooser: Chooser) -> Entry:
    """Return the choice for a request, with all candidates, each of which is planned. That takes milliseconds.

    Nothing is measured: the entry's `milliseconds` and `error` are None. Raises NoAlgorithmError, with the table of candidates,
    if none can be used.
    """
    request, considered = chooser.request, survey(chooser)
    found = next((candidate for candidate in considered if not candidate.rejection_reason), None)
    if found is None:
        raise no_algorithm(request, considered)
    plan = Plan(request.problem, found)
    return entry_of(request.problem, request.options, request.target, plan, considered, complete=True)


class CandidateRow(NamedTuple):
    """A candidate as a JSON object, as `cudnnpy explain` reports it."""

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


def row_of(candidate: Candidate) -> CandidateRow:
    """Return the row of a candidate."""
    engine = candidate.engine
    knobs = dict(engine.knobs or ()) if engine is not None else {}
    return CandidateRow(
        candidate.name,
        candidate.source,
        None if engine is None else engine.index,
        {knob_name(kind): value for kind, value in knobs.items()},
        candidate.workspace_size,
        candidate.notes,
        candidate.deterministic,
        candidate.milliseconds,
        candidate.expected,
        candidate.error,
        candidate.rejection_reason,
    )


def candidate_of_row(row: CandidateRow) -> Candidate:
    """Return the candidate of a row that another process sent. Like a copy, it cannot be planned."""
    candidate = detached_candidate(
        row.name, row.source, row.workspace_size, row.milliseconds, row.notes, row.deterministic, row.rejected
    )
    candidate.expected = row.expected
    return candidate
