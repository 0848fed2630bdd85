"""GraphProblem: a graph on a device as a problem to plan, with its lowering and its candidates."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cudnnpy._core.choice import Engine
from cudnnpy._core.layouts import TensorSpec
from cudnnpy._core.untrusted_json import invalid_json, parse_json, spec_of
from cudnnpy._launch.steps import Executable
from cudnnpy._options.checks import error_repr
from cudnnpy._planning.candidates import Candidate, all_engines, candidate_for_engine, heuristic_candidates
from cudnnpy._planning.engines import GraphExecutable, Target
from cudnnpy._planning.issue_conditions import ProblemTraits
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import FLAGS, POSITIVE, Read, Values, values_of
from cudnnpy._planning.problem_notation import ParsedText, ProblemSyntax, ProblemTextError
from cudnnpy.backend import Descriptor
from cudnnpy.graph.graph_json import calls_to_json, graph_from_json
from cudnnpy.graph.nodes import RecordedCall
from cudnnpy.graph.operations import GraphOperations
from cudnnpy.typing import ElementName


@dataclass(frozen=True, eq=False)
class GraphProblem:
    """A graph with the specs of its tensors in memory; it implements cudnnpy._planning.problem.Problem."""

    graph: GraphOperations = field(repr=False)
    calls: tuple[RecordedCall, ...] = field(repr=False)  # the calls that built it so far
    operands: tuple[str, ...]
    specs: tuple[TensorSpec, ...]
    results: int
    reduction_length: int
    compute_dtype: ElementName
    device: int
    operation: str = "graph"
    beta: float = 0.0
    kind: str = "graph"
    has_finite_results: bool = False  # operations such as a division give infinities

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GraphProblem) and (self.device, self.to_dict()) == (other.device, other.to_dict())

    def __hash__(self) -> int:
        return hash((self.operands, self.specs, self.device))

    def __str__(self) -> str:
        tensors = ", ".join(
            f"{name} {spec.dtype}{list(spec.shape)}" for name, spec in zip(self.operands, self.specs, strict=True)
        )
        return f"graph of {', '.join(self.graph.operations)}: {tensors}"

    def proposed_candidates(self, options: PlanningOptions, target: Target) -> Iterator[Candidate]:
        """Return the proposals of cuDNN's heuristics."""
        return heuristic_candidates(GraphLowering(self), target)

    def engines(self, target: Target) -> Iterator[Candidate]:
        """Return every engine with its default knobs."""
        return all_engines(GraphLowering(self), target)

    def functions(self, options: PlanningOptions, target: Target) -> Iterator[Candidate]:
        """Return no candidates: no C function computes a graph."""
        return iter(())

    def forced_candidate(self, options: PlanningOptions, target: Target) -> Candidate:
        """Return the candidate of the Engine `options.algorithm`. Raises ValueError for anything else."""
        if not isinstance(options.algorithm, Engine):
            raise ValueError(f"algorithm must be a cudnnpy.Engine for a graph; got {error_repr(options.algorithm)}")
        return candidate_for_engine(GraphLowering(self), target, options.algorithm)

    @property
    def value_ranges(self) -> tuple[Values, ...]:
        """The distribution of each operand's values: positive for a divisor, a logarithm or a variance, flags for a mask."""
        positive, flags = self.graph.restricted()
        nodes = (*self.graph.inputs, *self.graph.outputs)
        return tuple(
            POSITIVE if node.uid in positive else FLAGS if node.uid in flags else values_of(spec)
            for node, spec in zip(nodes, self.specs, strict=True)
        )

    def float64_elements(self, positions: Sequence[tuple[int, ...]], read: Read) -> None:
        """Return None: single elements of a graph are not computed."""

    def lowerings(self) -> Iterator[GraphLowering]:
        """Yield the only lowering, which is the graph itself."""
        yield GraphLowering(self)

    def aligned(self) -> GraphProblem:
        """Return the problem with 16-byte alignment of every tensor."""
        return replace(self, specs=tuple(spec._replace(alignment=16) for spec in self.specs))

    def to_dict(self) -> dict[str, Any]:
        """Return the graph and its tensors in memory as JSON, without the device."""
        tensors = [[name, *map(_listed, spec)] for name, spec in zip(self.operands, self.specs, strict=True)]
        return {"compute_dtype": self.compute_dtype, "calls": calls_to_json(self.calls), "tensors": tensors}


def graph_problem(graph: GraphOperations, device: int, alignment: Mapping[str, int]) -> GraphProblem:
    """Return the problem of a graph on a device. `alignment` gives the alignment of tensors by name."""
    nodes = (*graph.inputs, *graph.outputs)
    described = graph.described()
    specs = tuple(
        described[node.uid]._replace(alignment=alignment.get(node.name, node.spec.alignment)) for node in nodes
    )
    names = tuple(node.name for node in nodes)
    calls, results, length = tuple(graph._calls), len(graph.outputs), graph._max_reduction_length
    return GraphProblem(graph, calls, names, specs, results, length, graph.compute_dtype, device)


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _read(given: Any, device: int) -> GraphProblem:
    """Return the problem from the JSON of GraphProblem.to_dict. Raises ValueError for anything else."""
    if not isinstance(given, dict) or given.keys() != {"compute_dtype", "calls", "tensors"}:
        raise invalid_json(f"it has {', '.join(sorted(given))[:200] or 'nothing'}")
    tensors = given["tensors"]
    if not isinstance(tensors, list) or not all(isinstance(one, list) and len(one) == 5 for one in tensors):
        raise invalid_json("its tensors are not names, shapes, dtypes, strides and alignments")
    graph = graph_from_json(given["compute_dtype"], given["calls"])
    alignment = {str(name): spec_of("a tensor", spec).alignment for name, *spec in tensors}
    problem = graph_problem(graph, device, alignment)
    if problem.to_dict() != given:
        raise invalid_json(f"it is not in canonical form: {problem}")
    return problem


def _words(problem: GraphProblem) -> list[str]:
    """Return the words of the notation: the graph as JSON."""
    return [problem.operation, json.dumps(problem.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)]


def _read_text(given: ParsedText, device: int) -> GraphProblem:
    """Return the problem of a text in the notation. Raises ValueError for anything else."""
    if len(given.operands) != 1:
        raise ValueError(f"graph must have one JSON object; got {len(given.operands)}")
    (word,) = given.operands
    try:
        return _read(parse_json(word.text), device)
    except ValueError as error:
        at = min(error.pos, len(word.text) - 1) if isinstance(error, json.JSONDecodeError) else 0
        raise ProblemTextError(
            f"graph must be the JSON of a graph; got invalid JSON: {str(error)[:500]}", word.column + at
        ) from error


SYNTAX = ProblemSyntax(("graph",), re.compile(r"\{"), {}, {}, {}, {}, _words, _read_text)


@dataclass(frozen=True)
class GraphLowering:
    """The lowering of a graph, which is the graph itself (cudnnpy._planning.candidates.Lowering)."""

    problem: GraphProblem
    suffix: str = ""

    @property
    def lowering_options(self) -> dict[str, bool]:
        """The options of an Engine that runs on it: none."""
        return {}

    def build_graph(self, target: Target) -> Descriptor:
        """Return the finalized operation graph. Raises StatusError if cuDNN rejects it."""
        problem = self.problem
        alignment = {name: spec.alignment for name, spec in zip(problem.operands, problem.specs, strict=True)}
        return target.memoize("graph", problem, make=lambda: problem.graph.build_graph(target, alignment))

    def executable(self, plan: Descriptor, target: Target) -> Executable:
        """Return the executable of an execution plan, with the numbers of the graph as constants."""
        graph = self.problem.graph
        uids = tuple(node.uid for node in (*graph.inputs, *graph.outputs))
        return GraphExecutable(plan, uids, tuple((node.uid, node.number) for node in graph._constants))

    @property
    def traits(self) -> ProblemTraits:
        """The properties that known issues of engines depend on."""
        return self.problem.graph.traits

    @property
    def part_text(self) -> str:
        """The empty string: the lowering is the whole graph."""
        return ""
