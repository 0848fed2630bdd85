"""Plan for a device profile instead of a GPU (`cudnnpy plan`, `cudnnpy explain --device`).

Every candidate is planned, which takes milliseconds. cuDNN may end the process while it plans one of them. `PlanningHooks`
announces each candidate, so that another process can exclude it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from cudnnpy._launch.steps import Executable
from cudnnpy._planning import device_profile, problem_notation, selection
from cudnnpy._planning.candidate_filter import try_plan
from cudnnpy._planning.candidates import Candidate, detached_candidate
from cudnnpy._planning.device_profile import DeviceProfile
from cudnnpy._planning.engines import Target, knob_name
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.plan import Plan
from cudnnpy._planning.problem import Problem
from cudnnpy._planning.stored_choice import entry_of
from cudnnpy._store.entry import Entry


class PlanningHooks(NamedTuple):
    """Hooks of offline planning.

    `begin` is called with a candidate's name before cuDNN plans it, and with "" for a step that does not concern one candidate.
    `left_out` maps the names of excluded candidates to rejection reasons.
    """

    begin: Callable[[str], None] = lambda name: None
    left_out: Mapping[str, str] = {}


def plan_for_profile(text: str, device: DeviceProfile, watch: PlanningHooks = PlanningHooks()) -> Entry:  # noqa: B008
    """Return the choice for a problem in the notation, with all candidates, for the GPU of a profile.

    Nothing is measured: the entry's `milliseconds` and `error` are None. Raises ProblemTextError (a ValueError) if the text
    cannot be parsed, ProfileError if the loaded cuDNN does not accept the profile, and NoAlgorithmError, with the table of
    candidates, if none can be used.
    """
    problem, options = problem_notation.parse(text)
    target = device_profile.target_of(device)
    considered = survey_offline(problem, options, target, device.memory, watch)
    found = next((candidate for candidate in considered if not candidate.rejection_reason), None)
    if found is None:
        raise selection.no_algorithm(
            problem, options, selection.limit_of(options, device.memory), considered, is_for_profile=True
        )
    return entry_of(problem, options, target, Plan(problem, found), considered, complete=True)


def survey_offline(
    problem: Problem,
    options: PlanningOptions,
    target: Target,
    free_bytes: int,
    watch: PlanningHooks = PlanningHooks(),  # noqa: B008
) -> list[Candidate]:
    """Return every candidate, planned if the options permit it, otherwise with the rejection reason."""
    watch.begin("")
    found = list(_watched(selection.ranked_candidates(problem, options, target), watch))
    limit = selection.limit_of(options, free_bytes)
    for candidate in found:
        try_plan(candidate, problem, options, limit)
    watch.begin("")
    return found


def row(candidate: Candidate) -> dict[str, Any]:
    """Return a candidate as JSON, as `cudnnpy explain` reports it."""
    engine = candidate.engine
    knobs = dict(engine.knobs or ()) if engine is not None else {}
    return {
        "name": candidate.name,
        "source": candidate.source,
        "engine": None if engine is None else engine.index,
        "knobs": {knob_name(kind): value for kind, value in knobs.items()},
        "workspace_size": candidate.workspace_size,
        "notes": list(candidate.notes),
        "deterministic": candidate.deterministic,
        "milliseconds": candidate.milliseconds,
        "expected": candidate.expected,
        "error": candidate.error,
        "rejected": candidate.rejection_reason,
    }


def candidate_of_row(plain: dict[str, Any]) -> Candidate:
    """Return the candidate of a `row` that another process sent. Like a copy, it cannot be planned."""
    candidate = detached_candidate(
        plain["name"],
        plain["source"],
        plain["workspace_size"],
        plain["milliseconds"],
        tuple(plain["notes"]),
        plain["deterministic"],
        plain["rejected"],
    )
    candidate.expected = plain["expected"]
    return candidate


def _watched(candidates: Iterator[Candidate], watch: PlanningHooks) -> Iterator[Candidate]:
    for candidate in candidates:
        candidate.rejection_reason = candidate.rejection_reason or watch.left_out.get(candidate.name, "")
        candidate.make = _announced(candidate.name, candidate.make, watch)
        yield candidate


def _announced(name: str, make: Callable[[], Executable], watch: PlanningHooks) -> Callable[[], Executable]:
    def announced() -> Executable:
        watch.begin(name)
        return make()

    return announced
