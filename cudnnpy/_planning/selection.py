"""Which candidate: the four preferences, the filters, and the table that says why not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from cudnnpy._memory import workspace as memory
from cudnnpy._planning.candidates import Candidate, Engine, bytes_text, table
from cudnnpy._planning.engines import Target
from cudnnpy._planning.options import DEFAULT_LIMIT, PlanningOptions
from cudnnpy._planning.plan import Plan
from cudnnpy._planning.problem import Problem, is_strict
from cudnnpy.errors import NoAlgorithmError
from cudnnpy.handle import Handle

_BEST = 8  # of the heuristics' list, measured before all engines

# measures the usable candidates of a problem and returns the fastest (autotune.py)
Tune = Callable[[Problem, PlanningOptions, Iterable[Candidate], int], Candidate | None]


def limit_of(options: PlanningOptions, free_bytes: int) -> int:
    """How many bytes of workspace a candidate may need.

    no_workspace: none. limited_workspace: `workspace_limit`, 1 GiB by default. fastest and autotune: `workspace_limit`,
    by default the device's free memory. Never more than that memory.
    """
    if options.prefer == "no_workspace":
        return 0
    limit = options.workspace_limit
    if limit is None:
        limit = DEFAULT_LIMIT if options.prefer == "limited_workspace" else free_bytes
    return min(limit, free_bytes)


def refusal(candidate: Candidate, problem: Problem, options: PlanningOptions) -> str:
    """Why the options rule a candidate out by what is known before it is planned; "" if they do not."""
    if candidate.refused:
        return candidate.refused
    if options.deterministic and not candidate.deterministic:
        return "not deterministic"
    if is_strict(problem, options) and candidate.uses_tf32:
        return "uses tf32"
    return ""


def is_usable(candidate: Candidate, problem: Problem, options: PlanningOptions, limit: int) -> bool:
    """Plans a candidate if the options allow it; False, with the reason in `refused`, if it cannot be used."""
    candidate.refused = refusal(candidate, problem, options)
    executable = None if candidate.refused else candidate.prepare()
    if executable is None:
        return False
    if executable.workspace_size > limit:
        candidate.refused = f"needs {bytes_text(executable.workspace_size)}, the limit is {bytes_text(limit)}"
        return False
    return True


def usable(
    candidates: Iterable[Candidate],
    problem: Problem,
    options: PlanningOptions,
    limit: int,
    tried: list[Candidate],
) -> Iterator[Candidate]:
    """The candidates that can be used, planned; every one that was looked at is added to `tried`."""
    for candidate in candidates:
        tried.append(candidate)
        if is_usable(candidate, problem, options, limit):
            yield candidate


def guesses(problem: Problem, options: PlanningOptions, target: Target) -> Iterator[Candidate]:
    """Every candidate once, the best guess first: the likely ones, then every engine, then the plain functions."""
    seen: set[str] = set()
    for candidate in chain(
        problem.likely(options, target), problem.engines(target), problem.functions(options, target)
    ):
        if candidate.name not in seen:
            seen.add(candidate.name)
            yield candidate


def choose(
    problem: Problem,
    options: PlanningOptions,
    target: Target,
    free_bytes: int,
    tune: Tune | None = None,
    before: Engine | None = None,
    cap: int | None = None,
) -> tuple[Candidate, list[Candidate]]:
    """The candidate that the options ask for, planned, and all that were looked at. Raises NoAlgorithmError with their table.

    `cap` is a further limit on the workspace: what the device turned out to have.

    `before` is an engine that served an earlier shape (policy "once"): it is taken if it can run this one too.
    """
    limit = limit_of(options, free_bytes)
    limit = limit if cap is None else min(limit, cap)
    tried: list[Candidate] = []

    def first(candidates: Iterable[Candidate]) -> Candidate | None:
        return next(usable(candidates, problem, options, limit, tried), None)

    if options.algorithm is not None:
        found = first([problem.forced(options, target)])
    else:
        found = None if before is None else first([problem.forced(options._replace(algorithm=before), target)])
        if found is None and options.prefer == "autotune" and tune is not None:
            tried.clear()
            tried += _to_measure(problem, options, target, limit)
            try:
                found = tune(problem, options, tried, limit)
                scarce = found is None and not any(c.refused.startswith("wrong result") for c in tried)
                scarce = scarce and any(c.refused.startswith("out of memory") for c in tried)
            except MemoryError:
                scarce = True
            if scarce:  # there is none to measure in
                tried.clear()
                found = first(guesses(problem, options, target))
            elif found is None:
                found = first(problem.functions(options, target))
        elif found is None:
            found = first(guesses(problem, options, target))
    if found is None:
        raise NoAlgorithmError(str(problem), wanted(options, limit), table(tried), tried)
    return found, tried


def _to_measure(problem: Problem, options: PlanningOptions, target: Target, limit: int) -> list[Candidate]:
    """What autotune measures, in an order that serves a short `tune_seconds`.

    First one that can run and does plain arithmetic, with whose result the others' are compared; then the heuristics'
    best, every engine at its own knobs (the heuristics leave some fast ones out), and the rest of the heuristics' list.
    Engines that compile at run time come last, and only those that the heuristics propose: of the others one took 15 s to
    plan, and none was ever the fastest (84 problems on an H200, docs/benchmarks).
    """
    ranked = list(problem.likely(options, target))
    found = [*ranked[:_BEST], *problem.engines(target), *ranked[_BEST:]]
    measured: dict[str, Candidate] = {}
    for candidate in sorted(found, key=lambda candidate: candidate.compiled_at_run_time):
        if candidate.name not in measured or measured[candidate.name].refused:
            measured[candidate.name] = candidate
    anchor = next((c for c in measured.values() if c.is_plain and is_usable(c, problem, options, limit)), None)
    return sorted(measured.values(), key=lambda candidate: candidate is not anchor)


def plan_for(
    problem: Problem,
    options: PlanningOptions,
    tune: Tune | None = None,
    before: Engine | None = None,
    cap: int | None = None,
) -> Plan:
    """The plan that the options ask for; its `candidates` are all that were looked at. `before` and `cap`: see choose.

    Raises NoAlgorithmError, and ValueError where `options.algorithm` is the plan of another problem.
    """
    given = options.algorithm
    if isinstance(given, Plan):
        given.check_serves(problem)
        return given
    target = Target(Handle.default(problem.device))
    candidate, tried = choose(problem, options, target, memory.free_bytes(problem.device), tune, before, cap)
    plan = Plan(problem, candidate)
    plan.candidates = tried
    return plan


def plan_to_keep(
    problem: Problem,
    options: PlanningOptions,
    tune: Tune | None = None,
    before: Engine | None = None,
    cap: int | None = None,
) -> Plan:
    """plan_for, for the cache of plans: it may hold thousands, which need not keep their candidates."""
    plan = plan_for(problem, options, tune, before, cap)
    if plan is not options.algorithm:
        plan.candidates = []
    return plan


def survey(problem: Problem, options: PlanningOptions, target: Target, free_bytes: int) -> list[Candidate]:
    """Every candidate, planned where the options allow it, with the reason of each that they leave out."""
    limit = limit_of(options, free_bytes)
    found = list(guesses(problem, options, target))
    for candidate in found:
        is_usable(candidate, problem, options, limit)
    return found


def wanted(options: PlanningOptions, limit: int) -> str:
    """The options that rule candidates out, as text."""
    parts: list[Any] = [f"prefer={options.prefer!r}, so at most {bytes_text(limit)} of workspace"]
    if options.algorithm is not None:
        parts.append(f"algorithm={options.algorithm!r}")
    if options.deterministic:
        parts.append("deterministic=True")
    if not options.tf32:
        parts.append("tf32=False")
    return ", ".join(parts)
