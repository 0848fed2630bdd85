"""The rows of surveys: every candidate of a convolution, with its time.

A row is a line of JSON: `layer`, `networks`, `batch`, `kind` and `operation` as rows of `tools.benchmark --only networks` have
them, and `candidates` in the order of prefer="fastest", each with its `name`, `engine`, `knobs`, `source` and `notes`, and with
`ms` if it ran. Rows of `tools.benchmark --only networks` have two: what prefer="fastest" and prefer="autotune" chose.

An entry of a store's export is such a row, too, if it is of a convolution that was tuned without a table (CUDNNPY_TABLES="")
and without a limit: the names of its candidates have the engines and knobs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from cudnnpy import raw
from cudnnpy._planning import measurement_table
from cudnnpy._planning.candidates import Engine
from cudnnpy._planning.measurement_table import Configuration, Features
from cudnnpy._planning.problem import is_strict
from cudnnpy._planning.problem_notation import parse
from cudnnpy._store import exports
from cudnnpy._store.entry import Entry, Key, StoredCandidate
from cudnnpy.convolution import heuristic_overrides
from cudnnpy.convolution.candidates import ConvolutionProblem
from cudnnpy.convolution.lowering import ConvolutionLowering, lowerings
from cudnnpy.convolution.table_features import features
from tools import rows
from tools.benchmark.networks.catalogue import layer
from tools.benchmark.networks.cells import KINDS, Cell
from tools.ranking.problems import problem_of

_NAME = re.compile(r"engine (?P<engine>\d+)(?: \((?P<knobs>[^()]*=[^()]*)\))?")  # of a candidate
WRONG = 0.1  # the difference of two results from which one of them is wrong, relative to their size


class Row(NamedTuple):
    """A problem, the networks that have it, the times of its candidates in milliseconds, and the default choice for it.

    `times` is in the order of the ranking. `first` is the current default choice without a table.
    """

    key: str
    features: Features
    networks: frozenset[str]
    times: dict[Configuration, float]
    first: Configuration

    @property
    def best(self) -> float:
        """The time of the fastest candidate."""
        return min(self.times.values())


class _Proposal(NamedTuple):
    """A proposal of the heuristics that ran, as first_guess orders it."""

    configuration: Configuration
    rejection_reason: str = ""
    uses_tf32: bool = False  # which does not run for strict float32

    @property
    def engine(self) -> Engine:
        """The engine with its knobs."""
        return Engine(self.configuration.engine, self.configuration.knobs)


def read(files: Iterable[Path], capability: str = "", release: str = "") -> list[Row]:
    """Return the rows of files, except for those that failed and those of problems that are not looked up.

    Of several rows for a problem, the last counts. Of a store's export, the entries for a compute capability and a release of
    cuDNN count.
    """
    found: dict[str, Row] = {}
    for file in files:
        if exports.is_export(file):
            entries = (entry for entry in exports.read(file).entries if _is_of(entry.key, capability, release))
            found.update((row.key, row) for row in map(_row_of_entry, entries) if row is not None)
            continue
        for given in rows.read(file):
            if ("candidates" in given or "plans" in given) and not given.get("error"):
                row = _row(given)
                if row is not None:
                    found[row.key] = row
    return list(found.values())


def _row(given: dict[str, Any]) -> Row | None:
    kind = next(kind for kind in KINDS if kind.name == given["kind"])
    cell = Cell(layer(given["layer"]), given["batch"], kind, given["operation"], tuple(given["networks"]))
    problem, options = problem_of(cell)
    candidates = given.get("candidates") or _of_plans(given)
    return _judged(given["key"], frozenset(given["networks"]), problem, is_strict(problem, options), candidates)


def _is_of(key: Key, capability: str, release: str) -> bool:
    return key.capability == capability and raw.version_text(key.cudnn).startswith(f"{release}.")


def _row_of_entry(entry: Entry) -> Row | None:
    """Return the row of an entry; each problem is a network of its own, so that it is left out by itself."""
    problem, options = parse(entry.text)
    limited = options.deterministic or options.workspace_limit is not None
    is_from_table = any(measurement_table.is_source(one.source) for one in entry.candidates)
    if limited or is_from_table or not isinstance(problem, ConvolutionProblem):
        return None
    candidates = [_measured(one) for one in entry.candidates if one.milliseconds is not None and not one.refused]
    return _judged(entry.text, frozenset([entry.text]), problem, is_strict(problem, options), candidates)


def _measured(one: StoredCandidate) -> dict[str, Any]:
    """Return a candidate of an entry as a row of a survey has it."""
    name = _NAME.match(one.name)
    pairs = [] if name is None else [pair.rpartition("=") for pair in (name["knobs"] or "").split(", ") if pair]
    return {
        "name": one.name,
        "engine": None if name is None else int(name["engine"]),
        "knobs": [[_knob(knob), int(value)] for knob, _, value in pairs],
        "source": one.source,
        "notes": one.notes,
        "ms": one.milliseconds,
    }


def _knob(name: str) -> int:
    """Return the number of a knob, whose name is one of cuDNN's or "knob 99" for one of a newer release."""
    known = raw.cudnnBackendKnobType_t.__members__.get(f"CUDNN_KNOB_TYPE_{name.upper()}")
    return int(name.removeprefix("knob ")) if known is None else int(known)


def _judged(
    key: str, networks: frozenset[str], problem: ConvolutionProblem, strict: bool, candidates: Iterable[dict[str, Any]]
) -> Row | None:
    described = features(problem, strict)
    ran = [
        (_configuration(candidate), candidate)
        for candidate in candidates
        if "ms" in candidate and candidate["engine"] is not None and candidate.get("difference", 0.0) < WRONG
    ]
    first = next(_guesses(problem, strict, ran), None)
    if described is None or first is None:
        return None
    times: dict[Configuration, float] = {}
    for configuration, candidate in ran:
        if configuration == first or not _is_less_exact(candidate, strict):
            times.setdefault(configuration, candidate["ms"])
    return Row(key, described, networks, times, first)


def _of_plans(given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the candidates of a row that compares plans; none if the default choice was not the heuristics' first proposal."""
    if given["plans"]["fastest"]["source"] != "heuristics":
        return
    for prefer in ("fastest", "autotune"):
        plan = given["plans"][prefer]
        engine = plan["engine"] or {"index": None, "knobs": None}
        yield {**plan, "engine": engine["index"], "knobs": engine["knobs"], "ms": given["ms"][prefer]["median"]}


def _is_less_exact(candidate: dict[str, Any], strict: bool) -> bool:
    """Return whether a candidate rounds more than the default choice may, which is not checked, or is rejected since."""
    approximations = {"down_convert_inputs", "reduced_precision_reduction"} | (set() if strict else {"winograd"})
    return not approximations.isdisjoint(candidate["notes"])


def _guesses(
    problem: ConvolutionProblem, strict: bool, ran: list[tuple[Configuration, dict[str, Any]]]
) -> Iterator[Configuration]:
    """Yield the candidates that ran in the order of ConvolutionProblem.likely without a table."""
    found = list(lowerings(problem, strict))
    faster = [
        configuration
        for lowering in heuristic_overrides.instead_of_plain(problem, found)
        for configuration in _instead_of_plain(lowering, ran)
    ]
    for lowering in found:
        for configuration in _of_lowering(lowering, strict, ran):
            if (configuration.engine, configuration.knobs) == (
                heuristic_overrides.ENGINE_0.index,
                None,
            ) and not lowering.lowering_options:
                yield from faster
            yield configuration


def _instead_of_plain(
    lowering: ConvolutionLowering, ran: list[tuple[Configuration, dict[str, Any]]]
) -> list[Configuration]:
    """Return what comes before engine 0, in a list of at most one."""
    if lowering.flipped_forward:
        forward = Configuration(lowering.suffix, heuristic_overrides.ENGINE_0.index, None)
        return [found for found, _ in ran if found == forward][:1]
    compiled = (found for found, candidate in ran if candidate["source"] == "heuristics" and candidate.get("compiled"))
    return [found for found in compiled if found.lowering == lowering.suffix][:1]


def _of_lowering(
    lowering: ConvolutionLowering, strict: bool, ran: list[tuple[Configuration, dict[str, Any]]]
) -> Iterator[Configuration]:
    alike = [(found, candidate) for found, candidate in ran if found.lowering == lowering.suffix]
    if heuristic_overrides.is_for_winograd(lowering.part, strict):
        yield from (found for found, candidate in alike if "winograd" in candidate["notes"])
    if heuristic_overrides.is_for_plain_engine(lowering.part):
        yield from (
            found for found, _ in alike if found.engine == heuristic_overrides.ENGINE_0.index and not found.knobs
        )
    proposed = (_Proposal(found) for found, candidate in alike if candidate["source"] == "heuristics")
    yield from (one.configuration for one in heuristic_overrides.apply_overrides(lowering.part, strict, proposed))


def _configuration(candidate: dict[str, Any]) -> Configuration:
    _, plus, suffix = candidate["name"].partition(" + ")
    knobs = candidate["knobs"]
    return Configuration(plus + suffix, candidate["engine"], tuple((k, v) for k, v in knobs) if knobs else None)
