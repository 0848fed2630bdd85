"""The rows of surveys in a compressed file: one JSON list a line, `[text, network, candidates]`, for each problem.

A candidate is `[name, position, milliseconds]`. The position is its number among the proposals of cuDNN's heuristics for its
lowering; -1 for others. Instead of milliseconds, "4.5x" is a candidate that was not measured, since its engine took 4.5 times
as long as the fastest candidate, and null one that the survey did not choose to measure.
Candidates that cannot be used are left out.
"""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

NOT_CHOSEN = "not chosen"  #: the rejection reason of such a candidate
LIMIT_EXCEEDED = "fault: limit exceeded"  #: the rejection reason of a candidate that ran too long
_FAR_AT_LIMIT = 50  # times as long as the fastest one, or more than 0.5 s
_FAR = re.compile(r"not measured: engine \d+ took ([\d.e+]+) times as long")
_NAME = re.compile(r"engine (\d+)(?: \((.*)\))?(.*)")


class Candidate(NamedTuple):
    """A candidate of a problem: its engine, knobs and lowering, its position, and its time over the fastest one's.

    The time is NaN if the candidate was not chosen to be measured.
    """

    name: str
    position: int
    over_best: float

    @property
    def engine(self) -> int:
        """The index of its engine."""
        return int(self._parts[0])

    @property
    def knobs(self) -> dict[str, int]:
        """The values of its knobs by their names; none for an engine's defaults."""
        pairs = (pair.split("=") for pair in (self._parts[1] or "").split(", ") if pair)
        return {name: int(value) for name, value in pairs}

    @property
    def lowering(self) -> str:
        """The suffix of its lowering."""
        return str(self._parts[2])

    @property
    def _parts(self) -> tuple[Any, ...]:
        match = _NAME.fullmatch(self.name)
        assert match is not None, self.name
        return match.groups()


class Problem(NamedTuple):
    """A problem with the network that it is of or drawn around, and its candidates."""

    text: str
    network: str
    candidates: tuple[Candidate, ...]


def pack(surveys: Iterable[Path], file: Path) -> int:
    """Write the rows of surveys (survey.py) to a compressed file; return the number of problems."""
    lines: dict[int, str] = {}
    for survey in surveys:
        for row in map(json.loads, survey.read_text(encoding="utf-8").splitlines()[1:]):
            found = [list(packed) for packed in map(_packed, row["rows"]) if packed is not None]
            lines[row["number"]] = json.dumps([row["text"], row["network"], found], separators=(",", ":"))
    with gzip.GzipFile(file, "wb", 9, mtime=0) as stream:
        stream.write("".join(f"{lines[number]}\n" for number in sorted(lines)).encode())
    return len(lines)


def _packed(row: list[Any]) -> tuple[str, int, float | str | None] | None:
    name, position, ms, _, _, reason = row
    if ms is not None:
        return name, position, float(f"{ms:.4g}")
    if reason == NOT_CHOSEN:
        return name, position, None
    if reason == LIMIT_EXCEEDED:
        return name, position, f"{_FAR_AT_LIMIT}x"
    far = _FAR.match(reason)
    return (name, position, f"{far[1]}x") if far and _NAME.fullmatch(name) else None


def read(files: Iterable[Path]) -> Iterator[Problem]:
    """Yield the problems of compressed files that have two measured candidates or more."""
    for file in files:
        with gzip.open(file, "rt", encoding="utf-8") as stream:
            for text, network, rows in map(json.loads, stream):
                times = [value for _, _, value in rows if isinstance(value, float)]
                if len(times) > 1:
                    yield Problem(text, network, tuple(_read(row, min(times)) for row in rows))


def _read(row: list[Any], best: float) -> Candidate:
    name, position, value = row
    if value is None:
        return Candidate(name, position, math.nan)
    return Candidate(name, position, float(value[:-1]) if isinstance(value, str) else value / best)
