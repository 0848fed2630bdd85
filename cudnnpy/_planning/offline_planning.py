"""Plan for a device profile instead of a GPU (`cudnnpy plan`, `cudnnpy explain --device`).

Every candidate is planned, which takes milliseconds. cuDNN may end the process while it plans one of them: each candidate is
announced before, so that another process can leave it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cudnnpy._planning import device_profile, problem_notation, selection
from cudnnpy._planning.candidate_filter import try_plan
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.device_profile import DeviceProfile
from cudnnpy._planning.engines import Target
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.plan import Plan
from cudnnpy._planning.problem import Problem
from cudnnpy._planning.stored_choice import entry_of
from cudnnpy._store.entry import Entry


def plan_for_profile(
    text: str, device: DeviceProfile, announce: Callable[[str], object], left_out: Mapping[str, str]
) -> Entry:
    """Return the choice for a problem in the notation, with all candidates, for the GPU of a profile.

    Nothing is measured: the choice has neither a time nor an error. `announce` and `left_out` are as for `survey_offline`.
    Raises ProblemTextError (a ValueError) if the text cannot be parsed, ProfileError if the loaded cuDNN does not accept the
    profile, and NoAlgorithmError, with the table of candidates, if none can be used.
    """
    problem, options = problem_notation.parse(text)
    target = device_profile.target_of(device)
    considered = survey_offline(problem, options, target, device.memory, announce, left_out)
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
    announce: Callable[[str], object],
    left_out: Mapping[str, str],
) -> list[Candidate]:
    """Return every candidate, planned if the options permit it, otherwise with the rejection reason.

    `announce` is called with the name of each candidate before it is planned, and with "" before and after all of them.
    `left_out` maps the names of candidates that are not planned to rejection reasons.
    """
    announce("")
    candidates = list(selection.ranked_candidates(problem, options, target))
    limit = selection.limit_of(options, free_bytes)
    for candidate in candidates:
        candidate.rejection_reason = candidate.rejection_reason or left_out.get(candidate.name, "")
        if not candidate.rejection_reason:
            announce(candidate.name)
        try_plan(candidate, problem, options, limit)
    announce("")
    return candidates
