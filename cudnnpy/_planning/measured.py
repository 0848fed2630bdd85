"""The first guess from measurements: the configurations that were fastest for the nearest problems in a table.

A table belongs to one architecture of GPUs and one release of cuDNN (major and minor), since engines and their speed differ
between them. It is a file of JSON lines in the folder `tables`, which tools/measured writes:

    {"format": 1, "capability": "9.0", "cudnn": "9.19", "sha256": ..., ...}
    {"configurations": [["", 38, [[2, 5], [14, 4]]], ...]}
    {"kind": ["forward", "float16", ...], "problems": [[[128, 64, 56, 56, 256, 1], [7, 0, 12, 35], 140], ...]}

The digest is that of the lines that follow. A configuration is the suffix of a lowering, an engine and its knobs. A line of a
kind has the problems of equal Features.kind. Each problem has its sizes; its fastest configurations, as pairs of a number in
the list of configurations and the thousandths by which it takes longer than the fastest; and the thousandths of the first
guess without a table.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from cudnnpy import raw
from cudnnpy._planning.candidates import Candidate, Engine, Lowering, with_engine
from cudnnpy._planning.engines import Target

FORMAT = 1
NEAREST = 3  # the problems whose measurements are used
# The gain, in the logarithm of the time, from which the order of the heuristics is changed, and what is added to it for each
# unit of the distance of the nearest problem. docs/dev/benchmarks.md has what these numbers were judged by.
LEAST, LEAST_FOR_DISTANCE = 0.05, 0.35
# The largest loss that counts, so that no problem at a distance of 3 or more changes the order. It is assumed for a
# configuration that is not among the fastest of a problem.
_ABSENT = math.log(3.0)

_VARIABLE = "CUDNNPY_TABLES"
_TABLES = str(Path(__file__).with_name("tables"))

Kind: TypeAlias = tuple[str | int | bool | tuple[int, ...], ...]


class Features(NamedTuple):
    """The properties by which a problem is looked up: `kind` must be equal, and the logarithms of `sizes` near.

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


class Problem(NamedTuple):
    """A problem of a table: its sizes, their logarithms, and the loss of each configuration and of the first guess.

    A loss is the logarithm of a time over that of the fastest configuration.
    """

    sizes: tuple[int, ...]
    logarithms: tuple[float, ...]
    losses: dict[int, float]
    first: float


class Proposal(NamedTuple):
    """A configuration that was fast for near problems, and the sizes of the nearest of these."""

    configuration: Configuration
    sizes: tuple[int, ...]


class Table:
    """The measurements for one architecture and one release of cuDNN.

    Raises ValueError, TypeError or KeyError if a text is not the table of `key`, a compute capability and a release.
    """

    def __init__(self, text: str, key: tuple[str, str]) -> None:
        first, _, rest = text.partition("\n")
        header = json.loads(first)
        found = header["format"], header["capability"], header["cudnn"]
        if found != (FORMAT, *key):
            raise ValueError(f"its first line must be of format, GPU and cuDNN {(FORMAT, *key)}; got {found}")
        if digest(rest) != header["sha256"]:
            raise ValueError("its digest must be that of its lines; got a changed or truncated table")
        listed, *kinds = json.loads(f"[{','.join(rest.splitlines())}]")
        self._configurations: list[Any] = listed["configurations"]
        self._plain: dict[Kind, list[Any]] = {_hashable(line["kind"]): line["problems"] for line in kinds}
        self._problems: dict[Kind, list[Problem]] = {}

    def proposals(self, features: Features) -> list[Proposal]:
        """Return the configurations that beat the first guess for the nearest problems, the fastest first."""
        near = self._nearest(features)
        if not near:
            return []
        weights = [math.exp(-distance) for distance, _ in near]
        total = sum(weights)

        def mean(losses: Iterable[float]) -> float:
            return sum(weight * min(loss, _ABSENT) for weight, loss in zip(weights, losses, strict=True)) / total

        found: dict[int, tuple[float, Proposal]] = {}
        for _, problem in near:
            for number in problem.losses.keys() - found.keys():
                loss = mean(other.losses.get(number, _ABSENT) for _, other in near)
                found[number] = loss, Proposal(self._configuration(number), problem.sizes)
        most = mean(problem.first for _, problem in near) - LEAST - LEAST_FOR_DISTANCE * near[0][0]
        ranked = sorted(found.values(), key=lambda pair: pair[0])
        return [proposal for loss, proposal in ranked if loss <= most]

    def _nearest(self, features: Features) -> list[tuple[float, Problem]]:
        """Return the nearest problems of the same kind, the nearest first, with the distances of the logarithms of sizes."""
        if features.kind not in self._problems:
            self._problems[features.kind] = [_problem(*given) for given in self._plain.get(features.kind, ())]
        here = _logarithms(features.sizes)
        found = [(math.dist(here, problem.logarithms), problem) for problem in self._problems[features.kind]]
        return sorted(found, key=lambda pair: pair[0])[:NEAREST]

    def _configuration(self, number: int) -> Configuration:
        lowering, engine, knobs = self._configurations[number]
        return Configuration(lowering, engine, None if knobs is None else tuple((kind, value) for kind, value in knobs))


def digest(text: str) -> str:
    """Return the SHA-256 of the lines of a table after the first."""
    return hashlib.sha256(text.encode()).hexdigest()


def _hashable(kind: list[Any]) -> Kind:
    return tuple(tuple(part) if isinstance(part, list) else part for part in kind)


def _problem(sizes: Sequence[int], pairs: Sequence[int], first: int) -> Problem:
    losses = {number: math.log1p(loss / 1000) for number, loss in zip(pairs[::2], pairs[1::2], strict=True)}
    return Problem(tuple(sizes), _logarithms(sizes), losses, math.log1p(first / 1000))


def _logarithms(sizes: Sequence[int]) -> tuple[float, ...]:
    return tuple(map(math.log2, sizes))


def candidates(features: Features | None, lowerings: Sequence[Lowering], target: Target) -> Iterator[Candidate]:
    """Yield the candidates that were fast for problems near one with these features, best first."""
    table = None if features is None else table_for(target)
    if table is None or features is None:
        return
    for configuration, sizes in table.proposals(features):
        lowering = next((one for one in lowerings if one.suffix == configuration.lowering), None)
        if lowering is not None:
            candidate = with_engine(lowering, target, Engine(configuration.engine, configuration.knobs))
            x, filters = sizes[: features.rank], sizes[features.rank]
            candidate.source = f"measured for {'x'.join(map(str, x))}, {filters} filters"
            yield candidate


def is_source(text: str) -> bool:
    """Return whether a text is the source of a candidate from a table."""
    return re.fullmatch(r"measured for \d{1,20}(x\d{1,20}){2,4}, \d{1,20} filters", text) is not None


def table_for(target: Target) -> Table | None:
    """Return the table for the GPU of a target and the loaded cuDNN; None if there is none."""
    release = ".".join(raw.version_text(raw.version()).split(".")[:2])
    folder = os.environ.get(_VARIABLE, _TABLES)
    return _read(folder, capability(target), release) if folder and _has_any(folder, release) else None


def capability(target: Target) -> str:
    """Return the compute capability of the GPU of a target: "9.0"; "" if a profile does not tell."""
    if target.profile is not None:
        number = json.loads(target.profile).get("deviceVer", 0)  # 900
        return f"{number // 100}.{number % 100 // 10}" if number else ""
    return "" if target.handle is None else _capability(target.handle.device)


@cache
def _capability(device: int) -> str:
    from cuda.core import Device

    major, minor = Device(device).compute_capability
    return f"{major}.{minor}"


def file_name(capability: str, release: str) -> str:
    """Return the name of the file of a table."""
    return f"sm-{capability}-cudnn-{release}.jsonl"


@cache
def _has_any(folder: str, release: str) -> bool:
    """Return whether a folder has a table for a release, so that the capability of the GPU matters."""
    return any(Path(folder).glob(file_name("*", release)))


@cache
def _read(folder: str, capability: str, release: str) -> Table | None:
    """Return a table of a folder; None if there is none, or, with a warning, if it cannot be read."""
    file = Path(folder, file_name(capability, release))
    if not file.exists():
        return None
    try:
        return Table(file.read_text(encoding="utf-8"), (capability, release))
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        warnings.warn(f"{file} is not used to choose engines: {type(error).__name__}: {error}"[:400], stacklevel=2)
        return None
