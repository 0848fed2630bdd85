"""Plan a candidate, or reject it by the options and the workspace limit."""

from __future__ import annotations

from cudnnpy._checks.byte_counts import bytes_text
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import Problem, is_strict


def rejection_by_options(candidate: Candidate, problem: Problem, options: PlanningOptions) -> str:
    """Return the reason to reject a candidate before it is planned; "" if the options permit it."""
    if candidate.rejection_reason:
        return candidate.rejection_reason
    if options.deterministic and not candidate.deterministic:
        return "not deterministic"
    if is_strict(problem, options) and candidate.uses_tf32:
        return "uses tf32"
    return ""


def try_plan(candidate: Candidate, problem: Problem, options: PlanningOptions, limit: int) -> bool:
    """Plan a candidate unless an option or the workspace limit rejects it.

    Return whether it is planned; otherwise its `rejection_reason` has the reason.
    """
    candidate.rejection_reason = rejection_by_options(candidate, problem, options)
    executable = None if candidate.rejection_reason else candidate.prepare()
    if executable is None:
        return False
    if executable.workspace_size > limit:
        candidate.rejection_reason = f"needs {bytes_text(executable.workspace_size)}, the limit is {bytes_text(limit)}"
        return False
    return True
