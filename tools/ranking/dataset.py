"""The arrays of surveys' rows that a model is trained on, and the vocabulary of tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple, cast

import numpy as np

from cudnnpy import raw
from cudnnpy._convolution.specification import ConvolutionSpec
from cudnnpy._planning import problem_notation
from cudnnpy._planning.problem import is_strict
from cudnnpy.tuning.ranking.convolution_features import features, kind_number
from cudnnpy.tuning.ranking.model import Configuration, Positions, Token, engine_number, lowering_names
from tools.ranking.rows import Candidate, Problem

_LEAST = 60  # the number of candidates that have a token, without which it is not in the vocabulary
_GAIN = 0.0007  # the least mean gain in log time of an engine that the heuristics do not propose
_FAR = 1.1  # larger logarithms of times over the fastest one's are reduced to this one


class Described(NamedTuple):
    """A problem with its features, and the configurations of its candidates."""

    problem: Problem
    features: list[float]
    kind: int
    configurations: list[Configuration]

    @property
    def times(self) -> np.ndarray:
        """The time of each candidate over the fastest one's; NaN for candidates that were not chosen to be measured."""
        return np.array([candidate.over_best for candidate in self.problem.candidates])

    @property
    def is_complete(self) -> bool:
        """Whether every candidate was measured."""
        return not np.isnan(self.times).any()


def configuration(one: Candidate, problem: ConvolutionSpec) -> Configuration:
    """Return the configuration of a row."""
    knobs = tuple(sorted((_knob(name), value) for name, value in one.knobs.items()))
    names = lowering_names(one.lowering)
    operation = "forward" if "forward" in names else problem.operation
    number = engine_number(one.engine, operation, problem.bias is not None and "epilogue" not in names)
    return Configuration(number, knobs or None, one.lowering, one.position)


def _knob(name: str) -> int:
    return int(raw.cudnnBackendKnobType_t[f"CUDNN_KNOB_TYPE_{name.upper()}"])


def _described(problem: Problem) -> Described | None:
    parsed, options = problem_notation.parse(problem.text)
    convolution, strict = cast("ConvolutionSpec", parsed), is_strict(parsed, options)
    found = features(convolution, strict)
    if found is None:
        return None
    configurations = [configuration(one, convolution) for one in problem.candidates]
    return Described(problem, found, kind_number(convolution, strict), configurations)


def describe(problems: Iterable[Problem], processes: int) -> list[Described]:
    """Return the problems that a model knows, with their features."""
    with ProcessPoolExecutor(processes) as pool:
        return [one for one in pool.map(_described, problems, chunksize=64) if one is not None]


class Vocabulary(NamedTuple):
    """The tokens and engines of a model, each with its index, in ascending order; and the other engines, by kind of problem."""

    tokens: dict[Token, int]
    engines: dict[int, int]
    others: list[tuple[int, int]]


def vocabulary(given: Sequence[Described]) -> Vocabulary:
    """Return the vocabulary of problems."""
    counts = Counter(token for one in given for each in one.configurations for token in set(each.tokens()))
    engines = {c.engine for one in given for c in one.configurations if c.position >= 0 and not c.lowering}
    return Vocabulary(
        {token: n for n, token in enumerate(sorted(token for token, count in counts.items() if count >= _LEAST))},
        {engine: n for n, engine in enumerate(sorted(engines))},
        [(kind, engine) for kind in sorted({one.kind for one in given}) for engine in _others(given, kind)],
    )


def _others(given: Sequence[Described], kind: int) -> list[int]:
    """Return the engines of a kind that shorten the time of the fastest candidate where the heuristics do not propose them."""
    fastest, found = [], []  # logarithms: of the fastest proposal, and of each other engine
    for one in given:
        if one.kind == kind and one.is_complete:
            times = np.log(one.times).clip(0, _FAR)
            pairs = list(zip(one.configurations, times, strict=True))
            fastest.append(min((time for each, time in pairs if each.position >= 0), default=_FAR))
            found.append({each.engine: time for each, time in pairs if is_other(each)})
    chosen: list[int] = []
    candidates = {engine for times in found for engine in times}
    while candidates:
        gains = {
            engine: sum(max(0.0, time - others.get(engine, _FAR)) for time, others in zip(fastest, found, strict=True))
            for engine in sorted(candidates)
        }
        best = max(gains, key=lambda engine: gains[engine])
        if gains[best] < _GAIN * len(fastest):
            break
        chosen.append(best)
        candidates.discard(best)
        fastest = [min(time, others.get(best, _FAR)) for time, others in zip(fastest, found, strict=True)]
    return chosen


def is_other(one: Configuration) -> bool:
    """Return whether a candidate is an engine with its default knobs that the heuristics do not propose."""
    return one.position < 0 and not one.knobs and not one.lowering


class Arrays(NamedTuple):
    """The inputs of a network: of each problem, and of each candidate that was measured.

    `starts` has each problem's first candidate.
    """

    problems: np.ndarray
    tokens: np.ndarray  # of each candidate, 1 + its index; 0 after the last one
    numbers: np.ndarray
    is_ranked: np.ndarray  # of each candidate, whether planning ranks it
    logarithms: np.ndarray  # of each candidate's time over the fastest one's
    starts: np.ndarray


_MOST_TOKENS = 16


def arrays(given: Sequence[Described], known: Vocabulary) -> Arrays:
    """Return the inputs of a network for problems."""
    rows, numbers, problems, ranked, times, counts = [], [], [], [], [], []
    others = set(known.others)
    for one in given:
        positions = Positions(one.configurations)
        problems.append([*one.features, *positions.of_problem(known.engines)])
        measured = np.flatnonzero(~np.isnan(one.times))
        for each in (one.configurations[number] for number in measured):
            found = [1 + known.tokens[token] for token in each.tokens() if token in known.tokens]
            rows.append((found + [0] * _MOST_TOKENS)[:_MOST_TOKENS])
            numbers.append(positions.of(each))
            ranked.append(is_ranked(each, one.kind, others))
        times += [one.times[measured]]
        counts.append(len(measured))
    return Arrays(
        np.array(problems, np.float32),
        np.array(rows, np.int16),
        np.array(numbers, np.float32),
        np.array(ranked),
        np.log(np.concatenate(times)),
        np.cumsum([0, *counts]),
    )


def is_ranked(one: Configuration, kind: int, others: set[tuple[int, int]]) -> bool:
    """Return whether planning ranks a candidate: a proposal, or another engine of the vocabulary with default knobs."""
    return one.position >= 0 or (is_other(one) and (kind, one.engine) in others)
