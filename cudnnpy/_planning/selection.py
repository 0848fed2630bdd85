"""Which candidate: the four preferences, the filters, and the table that says why not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from cudnnpy._planning.candidates import (
    Candidate,
    Engine,
    all_candidates,
    bytes_text,
    engines,
    forced,
    is_strict,
    legacy_candidates,
    likely,
    table,
)
from cudnnpy._planning.engines import Target
from cudnnpy.convolution.problem import DEFAULT_LIMIT, Options, Problem
from cudnnpy.errors import NoAlgorithmError

_BEST = 8  # of the heuristics' list, measured before all engines

# measures the usable candidates of a problem and returns the fastest (autotune.py)
Tuner = Callable[[Problem, Options, Iterable[Candidate], int], Candidate | None]


def limit_of(options: Options, free_bytes: int) -> int:
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


def refusal(candidate: Candidate, problem: Problem, options: Options) -> str:
    """Why the options rule a candidate out by what is known before it is planned; "" if they do not."""
    if candidate.refused:
        return candidate.refused
    if options.deterministic and not candidate.deterministic:
        return "not deterministic"
    if is_strict(problem, options) and candidate.source != "legacy" and candidate.uses_tf32:
        return "uses tf32"
    return ""


def is_usable(candidate: Candidate, problem: Problem, options: Options, limit: int) -> bool:
    """Plans a candidate if the options allow it; False, with the reason in `refused`, if it cannot be used."""
    candidate.refused = refusal(candidate, problem, options)
    executable = None if candidate.refused else candidate.prepare()
    if executable is None:
        return False
    if executable.workspace_size > limit:
        candidate.refused = f"needs {bytes_text(executable.workspace_size)}, the limit is {bytes_text(limit)}"
        return False
    return True


def choose(
    problem: Problem,
    options: Options,
    target: Target,
    free_bytes: int,
    tune: Tuner | None = None,
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
        for candidate in candidates:
            tried.append(candidate)
            if is_usable(candidate, problem, options, limit):
                return candidate
        return None

    def guessed() -> Candidate | None:
        found = first(likely(problem, options, target)) or first(engines(problem, target))
        return found or first(legacy_candidates(problem, options, target))

    if options.algorithm is not None:
        found = first([forced(problem, options, target)])
    else:
        found = None if before is None else first([forced(problem, options._replace(algorithm=before), target)])
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
                found = guessed()
            elif found is None:
                found = first(legacy_candidates(problem, options, target))
        elif found is None:
            found = guessed()
    if found is None:
        raise NoAlgorithmError(str(problem), wanted(options, limit), table(tried), tried)
    return found, tried


def _to_measure(problem: Problem, options: Options, target: Target, limit: int) -> list[Candidate]:
    """What autotune measures, in an order that serves a short `tune_seconds`.

    First one that can run and does plain arithmetic, with whose result the others' are compared; then the heuristics'
    best, every engine at its own knobs (the heuristics leave some fast ones out), and the rest of the heuristics' list.
    Engines that compile at run time come last, and only those that the heuristics propose: of the others one took 15 s to
    plan, and none was ever the fastest (84 problems on an H200, docs/benchmarks).
    """
    ranked = list(likely(problem, options, target))
    found = [*ranked[:_BEST], *engines(problem, target), *ranked[_BEST:]]
    measured: dict[str, Candidate] = {}
    for candidate in sorted(found, key=lambda candidate: candidate.compiled_at_run_time):
        if candidate.name not in measured or measured[candidate.name].refused:
            measured[candidate.name] = candidate
    anchor = next((c for c in measured.values() if c.is_plain and is_usable(c, problem, options, limit)), None)
    return sorted(measured.values(), key=lambda candidate: candidate is not anchor)


def survey(problem: Problem, options: Options, target: Target, free_bytes: int) -> list[Candidate]:
    """Every candidate, planned where the options allow it, with the reason of each that they leave out."""
    limit = limit_of(options, free_bytes)
    found = list(all_candidates(problem, options, target))
    for candidate in found:
        is_usable(candidate, problem, options, limit)
    return found


def wanted(options: Options, limit: int) -> str:
    """The options that rule candidates out, as text."""
    parts: list[Any] = [f"prefer={options.prefer!r}, so at most {bytes_text(limit)} of workspace"]
    if options.algorithm is not None:
        parts.append(f"algorithm={options.algorithm!r}")
    if options.deterministic:
        parts.append("deterministic=True")
    if not options.tf32:
        parts.append("tf32=False")
    return ", ".join(parts)
