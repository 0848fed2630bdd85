"""Plan serialized plans (choice.py) again: the candidate of a text, checked against the problem, the GPU and the loaded cuDNN.

The known issues of engines apply to it as to any candidate.
"""

from __future__ import annotations

from cudnnpy import raw
from cudnnpy._planning.candidates import Candidate, configured
from cudnnpy._planning.choice import GpuKind, SerializedPlan, invalid_text
from cudnnpy._planning.engines import Target
from cudnnpy._planning.gpu_kind import gpu_kind
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import Problem
from cudnnpy._planning.problem_notation import parse_plannable
from cudnnpy.errors import LibraryVersionError

_SOURCES = ("ranking", "heuristics", "engines", "knobs", "legacy")


def parsed_problem(content: SerializedPlan, device: int) -> Problem:
    """Return the problem of a serialized plan for a device. Raises ValueError if it is not a problem."""
    try:
        return parse_plannable(content.problem, device)[0]
    except ValueError as error:
        raise invalid_text(f"its problem is invalid: {error}") from error


def serialized_candidate(content: SerializedPlan, problem: Problem, target: Target) -> Candidate:
    """Return the candidate of a serialized plan, not yet planned, with its measured time and error.

    Raises LibraryVersionError if another release of cuDNN made the plan, ValueError if it was made for another GPU or its parts
    contradict each other, and StatusError if cuDNN does not support the engine here.
    """
    _check_origin(content, gpu_kind(target))
    given = content.choice
    if given.source not in _SOURCES:
        raise invalid_text(f"its source is {given.source[:60]!r}, which proposes no plans")
    if given.engine is None:
        options = PlanningOptions(algorithm=given.name.partition(" + ")[0], tf32=not given.strict)
        try:
            candidate = problem.forced_candidate(options, target)
        except (TypeError, ValueError) as error:
            raise invalid_text(f"its algorithm is invalid: {error}") from error
    else:
        lowering = next((one for one in problem.lowerings() if one.part_text == given.lowering), None)
        if lowering is None:
            raise invalid_text(f"its lowering is not one of {problem}")
        candidate = configured(lowering, target, given.engine)
        candidate.source = given.source
    for field in ("name", "source", "engine", "lowering", "strict"):
        expected, actual = getattr(candidate.choice, field), getattr(given, field)
        if expected != actual:
            raise invalid_text(f"its {field} must be {expected!r}; got {str(actual)[:200]!r}")
    measured = ("milliseconds", "spread", "error", "expected")
    candidate.choice = candidate.choice._replace(**{field: getattr(given, field) for field in measured})
    return candidate


def _check_origin(content: SerializedPlan, gpu: GpuKind) -> None:
    if content.cudnn != raw.version():
        release = raw.version_text(content.cudnn) if 90000 <= content.cudnn < 100000 else str(content.cudnn)[:20]
        raise LibraryVersionError(
            f"text must be a plan of the loaded cuDNN, {raw.version_text(raw.version())}; got one of cuDNN {release}, "
            "whose engines have other numbers: plan again"
        )
    if content.gpu != str(gpu):
        raise ValueError(f"text must be a plan for this GPU, {gpu}; got one for {content.gpu[:200]}: plan again")
