"""Choose a candidate by measurement (prefer="autotune"): bench.py runs, checks and times each usable one on the GPU."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from cudnnpy._planning import engines
from cudnnpy._planning.bench import Bench, milliseconds
from cudnnpy._planning.candidates import Candidate, from_configuration
from cudnnpy._planning.engines import Target
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import Problem
from cudnnpy._planning.selection import is_usable
from cudnnpy.errors import StatusError
from cudnnpy.handle import Handle

_NOISE = 1.01  # times whose ratio is at most this are equal
_REFINED = 3  # the number of engines for which other knobs are tried
_PASSES = 3  # the most passes over the knobs of one engine
_SAMPLES = 16  # about the most values of a knob that are tried in one pass


class Tuner:
    """Measure the candidates of one problem on given addresses and a stream. An instance is the `tune` of selection.choose."""

    def __init__(self, handle: Handle, inputs: tuple[int, ...], result: int | None, stream: int) -> None:
        self._handle, self._inputs, self._result, self._stream = handle, inputs, result, stream

    def __call__(
        self, problem: Problem, options: PlanningOptions, target: Target, candidates: Iterable[Candidate], limit: int
    ) -> Candidate | None:
        """Return the fastest of the candidates, or None if none ran. After `tune_seconds`, return the fastest so far.

        The first candidate that can be used is what would be chosen without measuring. The result is never slower: if
        there is no memory to measure it, a MemoryError is raised, since none of the others can be shown to be faster.
        """
        deadline = time.monotonic() + options.tune_seconds
        self._handle.set_stream(self._stream)
        bench = Bench(problem, options, self._handle, self._inputs, self._result, self._stream, limit)
        guess: Candidate | None = None
        ran: list[Candidate] = []
        for candidate in candidates:
            if ran and time.monotonic() > deadline:
                candidate.refused = (
                    candidate.refused or f"not measured: tune_seconds={options.tune_seconds} were used up"
                )
            elif is_usable(candidate, problem, options, limit):
                guess = guess or candidate
                if bench.measure(candidate):
                    ran.append(candidate)
                elif candidate is guess and candidate.refused.startswith("out of memory"):
                    raise MemoryError(f"{candidate.name}, the best guess, cannot be measured: {candidate.refused}")
        for candidate in _other_knobs([candidate for candidate in ran if not candidate.refused], target):
            if time.monotonic() > deadline:
                break
            if is_usable(candidate, problem, options, limit) and bench.measure(candidate):
                ran.append(candidate)
        return _winner(bench.finalists([candidate for candidate in ran if not candidate.refused], guess), guess)


def _winner(finalists: list[Candidate], guess: Candidate | None) -> Candidate | None:
    """Return the fastest; among those within noise of it, the guess if it is one, else the one with the least workspace."""
    fastest = min(finalists, key=milliseconds, default=None)
    if fastest is None:
        return None
    equal = [candidate for candidate in finalists if milliseconds(candidate) <= _NOISE * milliseconds(fastest)]
    return min(equal, key=lambda c: (c is not guess, c.workspace_size or 0, milliseconds(c)))


def _other_knobs(ran: list[Candidate], target: Target) -> Iterator[Candidate]:
    """Yield the fastest engines with other knobs. The caller measures each candidate before it takes the next.

    This is a coordinate descent: one knob after the other, those with the fewest values first, is set to the value with
    which the engine is fastest, until a pass over all knobs brings no improvement.
    """
    best: dict[tuple[int, bool], Candidate] = {}
    for candidate in sorted(ran, key=milliseconds):
        if candidate.engine is not None and candidate.engine.knobs:
            best.setdefault((candidate.engine.index, candidate.engine.in_blocks), candidate)
    known = {candidate.name for candidate in ran}
    for current in list(best.values())[:_REFINED]:
        if current.lowering is None or current.engine is None:
            continue
        lowering, index, fastest = current.lowering, current.engine.index, current
        built = lowering.built(target)
        ranges = engines.knob_ranges(built, target, index)
        for _ in range(_PASSES):
            before = fastest
            for kind, values in sorted(ranges.items(), key=lambda item: len(item[1])):
                knobs = dict(fastest.engine.knobs or ()) if fastest.engine else {}
                if kind not in knobs:
                    continue
                for value in _sample(values, knobs[kind]):
                    try:
                        found = engines.engine(built, target, index, {**knobs, kind: value})
                    except StatusError:
                        continue
                    candidate = from_configuration(lowering, target, "knobs", found)
                    if candidate.name not in known:
                        known.add(candidate.name)
                        yield candidate
                        if not candidate.refused:
                            fastest = min(fastest, candidate, key=milliseconds)
            if fastest is before:
                break


def _sample(values: range, current: int) -> list[int]:
    """Return the values of a knob to try: all, or, if there are many, a sample of the range and those next to the current."""
    if len(values) <= _SAMPLES:
        chosen = set(values)
    else:
        at = (current - values.start) // values.step
        near = values[max(at - _SAMPLES // 4, 0) : at + _SAMPLES // 4 + 1]
        chosen = {*values[:: -(-len(values) // _SAMPLES)], *near}
    return sorted(chosen - {current})
