"""The measurement table: rank the engine configurations that were fastest for the nearest measured problems.

A table belongs to one architecture of GPUs and one release of cuDNN (major and minor), since engines and their speed differ
between them. It is a file of JSON lines in the folder `tables`, which tools/measured writes:

    {"format": 3, "capability": "9.0", "cudnn": "9.19", "sha256": ..., ...}
    {"configurations": [["", 38, [[2, 5], [14, 4]]], ...]}
    {"kind": ["forward", "half", ...], "problems": [[[128, 64, 56, 56, 256, 1], [7, 0, 12, 35], 140], ...]}

`sha256` is the digest of the lines after the first. A configuration is the suffix of a lowering, an engine and its knobs. A
line of a kind has the problems with this Features.kind. Each problem has its sizes; its fastest configurations, as pairs of an
index in the list of configurations and the thousandths by which it is slower than the fastest; and the thousandths of the
default choice without a table.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from cudnnpy import raw
from cudnnpy._cuda_python import cuda_python
from cudnnpy._planning import known_issues
from cudnnpy._planning.candidates import Candidate, Engine, Lowering, candidate_for_engine
from cudnnpy._planning.engines import Target
from cudnnpy._process_state import process_cache

FORMAT = 3
NEAREST = 3  # the problems whose measurements are used
# Minimum gain, in log time, for a measured configuration to precede the heuristics, and its increase per unit of distance to
# the nearest problem. docs/dev/benchmarks.md has the evaluation of these numbers.
MIN_LOG_GAIN, MIN_LOG_GAIN_PER_DISTANCE = 0.05, 0.7
# Larger losses are reduced to this one, so that no problem at a distance of 1.5 or more changes the order. It is also assumed
# for a configuration that is not among the fastest of a problem.
_ABSENT = math.log(3.0)

_SOURCE = re.compile(r"measured for \d{1,20}(x\d{1,20}){2,4}, \d{1,20} filters")

_MOST = 2**31 - 1  # the largest integer in a table: cuDNN has 32 bits for the kind of a knob and for a size

_VARIABLE = "CUDNNPY_TABLES"
_TABLES = str(Path(__file__).with_name("tables"))

Kind: TypeAlias = tuple[str | int | bool | tuple[int, ...], ...]


class Features(NamedTuple):
    """The properties by which a problem is looked up: problems of equal `kind`, nearest in the logarithms of `sizes`.

    The first sizes are the shape of x, with `rank` axes, and the number of filters.
    """

    kind: Kind
    sizes: tuple[int, ...]
    rank: int


class Configuration(NamedTuple):
    """An engine with its knobs, and the suffix of the lowering that it runs."""

    lowering: str
    engine: int
    knobs: tuple[tuple[int, int], ...] | None


class MeasuredProblem(NamedTuple):
    """A problem of a table: its sizes, their logarithms, and the loss of each configuration and of the default choice.

    A loss is log(time / time of the fastest configuration).
    """

    sizes: tuple[int, ...]
    logarithms: tuple[float, ...]
    losses: dict[int, float]
    first: float


class Proposal(NamedTuple):
    """A configuration that was fast for the nearest problems, the sizes of the nearest one, and its expected loss."""

    configuration: Configuration
    sizes: tuple[int, ...]
    loss: float


class Table:
    """The measurements for one architecture and one release of cuDNN.

    Raises ValueError, TypeError or KeyError if a text is not the table of `key`, a compute capability and a release. Every
    part is checked here, so that planning does not fail later: a digest shows damage, not wrong content.
    """

    def __init__(self, text: str, key: tuple[str, str]) -> None:
        first, _, rest = text.partition("\n")
        header = json.loads(first)
        found = header["format"], header["capability"], header["cudnn"]
        if found != (FORMAT, *key):
            raise ValueError(f"its first line must be of format, GPU and cuDNN {(FORMAT, *key)}; got {found}")
        if digest(rest) != header["sha256"]:
            raise ValueError("its digest must be the digest of its lines; got a changed or truncated table")
        listed, *kinds = json.loads(f"[{','.join(rest.splitlines())}]")
        self._configurations = [
            _configuration(*given) for given in _list_of("configurations", listed["configurations"])
        ]
        count = len(self._configurations)
        self._problems = {
            _hashable(line["kind"]): [_problem(count, *given) for given in _list_of("problems", line["problems"])]
            for line in kinds
        }

    def proposals(self, features: Features) -> list[Proposal]:
        """Return the configurations that beat the default choice for the nearest problems, the fastest first."""
        near = self._nearest(features)
        if not near:
            return []
        weights = [math.exp(-distance) for distance, _ in near]
        total = sum(weights)

        def mean(losses: Iterable[float]) -> float:
            return sum(weight * min(loss, _ABSENT) for weight, loss in zip(weights, losses, strict=True)) / total

        found: dict[int, Proposal] = {}
        for _, problem in near:
            for number in problem.losses.keys() - found.keys():
                loss = mean(other.losses.get(number, _ABSENT) for _, other in near)
                found[number] = Proposal(self._configurations[number], problem.sizes, loss)
        most = mean(problem.first for _, problem in near) - MIN_LOG_GAIN - MIN_LOG_GAIN_PER_DISTANCE * near[0][0]
        ranked = sorted(found.values(), key=lambda proposal: proposal.loss)
        return [proposal for proposal in ranked if proposal.loss <= most]

    def _nearest(self, features: Features) -> list[tuple[float, MeasuredProblem]]:
        """Return the nearest problems of the same kind, the nearest first, with the distances of the logarithms of sizes.

        If there are problems of exactly these sizes, the others are omitted.
        """
        here = _logarithms(features.sizes)
        found = [
            (math.dist(here, problem.logarithms), problem)
            for problem in self._problems.get(features.kind, ())
            if len(problem.sizes) == len(here)
        ]
        same = [(distance, problem) for distance, problem in found if problem.sizes == features.sizes]
        return same or sorted(found, key=lambda pair: pair[0])[:NEAREST]


def digest(text: str) -> str:
    """Return the SHA-256 of the lines of a table after the first."""
    return hashlib.sha256(text.encode()).hexdigest()


def _hashable(kind: list[Any]) -> Kind:
    return tuple(tuple(part) if isinstance(part, list) else part for part in kind)


def _configuration(lowering: Any, engine: Any, knobs: Any) -> Configuration:
    """Return a configuration of a table. Raises ValueError or TypeError if it is not one."""
    if not isinstance(lowering, str):
        raise ValueError(f"a lowering must be a str; got {lowering!r}")
    (engine,) = _integers("an engine", [engine])
    if knobs is None:
        return Configuration(lowering, engine, None)
    pairs = [_integers("a knob and its value", pair, low=-1) for pair in _list_of("knobs", knobs)]
    return Configuration(lowering, engine, tuple((kind, value) for kind, value in pairs))


def _problem(count: int, sizes: Any, pairs: Any, first: Any) -> MeasuredProblem:
    """Return a problem of a table with `count` configurations. Raises ValueError or TypeError if it is not one."""
    sizes, (first,) = _integers("sizes", sizes, low=1), _integers("the loss of the default choice", [first])
    numbers, thousandths = _integers("configurations", pairs[::2], high=count - 1), _integers("losses", pairs[1::2])
    losses = {number: math.log1p(loss / 1000) for number, loss in zip(numbers, thousandths, strict=True)}
    return MeasuredProblem(sizes, _logarithms(sizes), losses, math.log1p(first / 1000))


def _list_of(name: str, given: Any) -> list[Any]:
    """Return a list of lists. Raises ValueError for anything else."""
    if not isinstance(given, list) or not all(isinstance(part, list) for part in given):
        raise ValueError(f"{name} must be a list of lists; got {str(given)[:60]}")
    return given


def _integers(name: str, given: Any, low: int = 0, high: int = _MOST) -> tuple[int, ...]:
    """Return a list of integers within limits as a tuple. Raises ValueError for anything else."""
    if not isinstance(given, list) or not all(type(number) is int and low <= number <= high for number in given):
        raise ValueError(f"{name} must be integers from {low} to {high}; got {str(given)[:60]}")
    return tuple(given)


def _logarithms(sizes: Sequence[int]) -> tuple[float, ...]:
    return tuple(map(math.log2, sizes))


def candidates(features: Features | None, lowerings: Sequence[Lowering], target: Target) -> Iterator[Candidate]:
    """Yield the candidates that were fast for the nearest problems, best first."""
    table = None if features is None else table_for(target)
    if table is None or features is None:
        return
    for configuration, sizes, loss in table.proposals(features):
        lowering = next((one for one in lowerings if one.suffix == configuration.lowering), None)
        if lowering is not None:
            candidate = candidate_for_engine(lowering, target, Engine(configuration.engine, configuration.knobs))
            if known_issues.requires_heuristics_proposal(lowering.traits, configuration.engine, candidate.notes):
                continue
            x, filters = sizes[: features.rank], sizes[features.rank]
            candidate.source = f"measured for {'x'.join(map(str, x))}, {filters} filters"
            candidate.expected = math.exp(loss)
            yield candidate


def is_source(text: str) -> bool:
    """Return whether a text is the source of a candidate from a table."""
    return _SOURCE.fullmatch(text) is not None


def table_for(target: Target) -> Table | None:
    """Return the table for the GPU of a target and the loaded cuDNN; None if there is none."""
    release = ".".join(raw.version_text(raw.version()).split(".")[:2])
    folder = os.environ.get(_VARIABLE, _TABLES)
    return _read(folder, capability(target), release) if folder and _has_any(folder, release) else None


def capability(target: Target) -> str:
    """Return the compute capability of the GPU of a target: "9.0"; "" if it is missing in a profile."""
    if target.profile is not None:
        number = json.loads(target.profile).get("deviceVer", 0)  # 900
        return f"{number // 100}.{number % 100 // 10}" if number else ""
    return "" if target.handle is None else _capability(target.handle.device)


@process_cache
def _capability(device: int) -> str:
    major, minor = cuda_python("core").Device(device).compute_capability
    return f"{major}.{minor}"


def file_name(capability: str, release: str) -> str:
    """Return the name of the file of a table."""
    return f"sm-{capability}-cudnn-{release}.jsonl"


@cache
def _has_any(folder: str, release: str) -> bool:
    """Return whether a folder has a table for a release, so that the capability of the GPU matters."""
    try:
        return any(fnmatch(name, file_name("*", release)) for name in os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # _read gives the warning
        return True


@cache
def _read(folder: str, capability: str, release: str) -> Table | None:
    """Return a table of a folder; None if there is none, or, with a warning, if it cannot be read."""
    file = Path(folder, file_name(capability, release))
    try:
        return Table(file.read_text(encoding="utf-8"), (capability, release))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        warnings.warn(f"{file} is not used to choose engines: {type(error).__name__}: {error}"[:400], stacklevel=2)
        return None
