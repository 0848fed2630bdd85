"""GraphProblem: a graph on a device as a problem to plan, with its candidates and the values that its operands may have."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cudnnpy import raw
from cudnnpy._checks.option_values import error_repr
from cudnnpy._core.layouts import TensorSpec, are_channels_last, byte_extent, channels_last_strides, strides_of
from cudnnpy._core.untrusted_json import parse_json
from cudnnpy._launch.steps import Executable, Step, StepSequence, fill
from cudnnpy._planning.candidates import Candidate, all_engines, candidate_for_engine, heuristic_candidates, rejected
from cudnnpy._planning.choice import Engine
from cudnnpy._planning.engines import GraphExecutable, Target
from cudnnpy._planning.known_issues import ProblemTraits
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import FLAGS, POSITIVE, Read, Values, values_of
from cudnnpy._planning.problem_notation import ParsedText, ProblemSyntax, ProblemTextError
from cudnnpy.backend import Descriptor
from cudnnpy.graph.attention_lowerings import Part, parts
from cudnnpy.graph.broken_rules import broken_rule, check_graph
from cudnnpy.graph.descriptors import build_graph
from cudnnpy.graph.graph_facts import facts
from cudnnpy.graph.graph_json import graph_from_json, graph_to_json
from cudnnpy.graph.kinds import KINDS, pointwise_name
from cudnnpy.graph.operation_graph import Operation, OperationGraph, Uids, c_number, each_uid
from cudnnpy.names import short_name
from cudnnpy.typing import ElementName

# Operands that must be positive so that the result is not NaN, operands that are flags, and operands that must be positive so
# that the result is; by the mode of an elementwise operation or the kind of another operation.
_POSITIVE = {
    **dict.fromkeys(("sqrt", "rsqrt", "log", "pow", "reciprocal"), ("x",)),
    **dict.fromkeys(("div", "mod", "floor_mod"), ("b",)),
    "norm_forward": ("input_running_var",),
    "norm_backward": ("inv_variance",),
    "bn_finalize": ("y_sq_sum", "prev_running_var"),
    "bn_bwd_weights": ("invstd",),
    "block_scale_dequantize": ("scale",),  # engine 7 takes absolute values
}
_FLAGS = {
    **dict.fromkeys(("logical_and", "logical_or", "logical_not"), ("x", "b")),
    "binary_select": ("t",),
}
_SAME_SIGN = {
    **dict.fromkeys(("add", "mul", "div", "max", "min", "identity", "add_square"), ("x", "b")),
    **dict.fromkeys(("reduction", "resample_fwd"), ("x",)),
    "convolution_forward": ("x", "w"),
    "matmul": ("a", "b"),
}
_CLEARED = 90600  # the first release whose engines clear the buffer of dq
# Kinds of matrix products, also within attention.
_PRODUCTS = {"matmul", "moe_grouped_matmul", "moe_grouped_matmul_bwd", "paged_cache_load", "sdpa_bwd", "sdpa_fwd"}


@dataclass(frozen=True)
class GraphProblem:
    """A canonical graph on a device; it implements cudnnpy._planning.problem.Problem.

    Its operands are the inputs, then the outputs, in the order of their unique ids. They have the names that the operations
    have for them, with a number if several have one name.
    """

    graph: OperationGraph = field(repr=False)
    device: int
    operation: str = "graph"
    beta: float = 0.0
    kind: str = "graph"
    has_finite_results: bool = False  # operations such as a division give infinities
    #: the caller's names of the tensors for texts, in the order of `operands`; the same graph is the same problem without them
    names: tuple[str, ...] = field(default=(), repr=False, compare=False)

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of the tensors in memory; the results come last."""
        return _names(self.graph)

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """The specs of the tensors, in the order of `operands`."""
        specs = self.graph.specs
        return tuple(specs[uid] for uid in self.graph.in_memory)

    @property
    def ragged(self) -> tuple[bool, ...]:
        """Whether each of the operands is ragged, so that only its offsets say where it ends."""
        ragged = {tensor.uid for tensor in self.graph.tensors if tensor.ragged}
        return tuple(uid in ragged for uid in self.graph.in_memory)

    @property
    def results(self) -> int:
        """The number of results among the operands."""
        return len(self.graph.outputs)

    @property
    def compute_dtype(self) -> ElementName:
        """The data type in which the first operation that has one computes."""
        found = (operation.option("compute_dtype") for operation in self.graph.operations)
        return next((dtype for dtype in found if dtype), "float32")

    @property
    def reduction_length(self) -> int:
        """The largest number of terms that an operation adds for one element of a result."""
        specs = self.graph.specs
        return max(_terms(operation, specs) for operation in self.graph.operations)

    @property
    def title(self) -> str:
        """The operations in order: "graph of matmul, add, gelu_fwd"."""
        return f"graph of {', '.join(map(_name_of, self.graph.operations))}"

    def __str__(self) -> str:
        tensors = ", ".join(
            f"{name} {spec.dtype}{list(spec.shape)}"
            for name, spec in zip(self.names or self.operands, self.specs, strict=True)
        )
        return f"{self.title}: {tensors}"

    def proposed_candidates(self, target: Target) -> Iterator[Candidate]:
        """Yield the proposals of cuDNN's heuristics, for each lowering."""
        for lowering in self.lowerings():
            yield from heuristic_candidates(lowering, target)

    def engines(self, target: Target) -> Iterator[Candidate]:
        """Yield every engine with its default knobs, for each lowering."""
        for lowering in self.lowerings():
            yield from all_engines(lowering, target)

    def functions(self, options: PlanningOptions, target: Target) -> Iterator[Candidate]:
        """Return no candidates: no C function computes a graph."""
        return iter(())

    def forced_candidate(self, options: PlanningOptions, target: Target) -> Candidate:
        """Return the candidate of the Engine `options.algorithm`. Raises ValueError for anything else."""
        given = options.algorithm
        if not isinstance(given, Engine):
            raise ValueError(f"algorithm must be a cudnnpy.Engine for a graph; got {error_repr(given)}")
        lowering = next((one for one in self.lowerings() if one.lowering_options == given._lowering_options), None)
        if lowering is None:
            return rejected("engines", f"engine {given.index}", "the graph has no such lowering")
        return candidate_for_engine(lowering, target, given)

    @property
    def value_ranges(self) -> tuple[Values, ...]:
        """The distribution of each operand's values.

        They are positive for a divisor, a logarithm or a variance, flags for a mask, and valid lengths and indices.
        """
        positive, flags = _restricted(self.graph)
        special = dict.fromkeys(flags, FLAGS) | dict.fromkeys(positive, POSITIVE) | _indices(self.graph)
        return tuple(
            special.get(uid) or values_of(spec) for uid, spec in zip(self.graph.in_memory, self.specs, strict=True)
        )

    @property
    def traits(self) -> ProblemTraits:
        """The properties that known issues of engines depend on. Each output of a convolution's shape counts as its y."""
        graph, specs, outputs = self.graph, self.graph.specs, set(self.graph.outputs)
        is_attention = sum(operation.kind == "matmul" for operation in graph.operations) > 1

        def in_rows(operation: Operation) -> bool:
            """Whether it is a sum within attention, in one order: of a row, or of the heads that share one."""
            is_virtual = outputs.isdisjoint(uid for _, uid in operation.results)
            return is_attention and (is_virtual or operation.option("shape") is not None)

        convolutions = []
        for operation in graph.operations:
            if operation.kind.startswith("convolution"):
                found = {name.removeprefix("d"): specs[uid] for name, uid in operation.tensors.items()}
                results = (found["y"], *(specs[uid] for uid in graph.outputs if specs[uid].shape == found["y"].shape))
                convolutions += [(found["x"], found["w"], y) for y in results]
        return ProblemTraits(
            "graph",
            tuple(convolutions),
            frozenset(
                pointwise_name(one.option("mode")).removesuffix("_fwd")
                for one in graph.operations
                if one.kind == "pointwise"
            ),
            frozenset(
                short_name(one.option("op")) for one in graph.operations if one.kind == "reduction" and not in_rows(one)
            ),
            is_aligned=all(spec.alignment >= 16 for spec in self.specs),
            facts=facts(graph),
        )

    @property
    def broken_rule(self) -> str:
        """The rule of cuDNN's engines that the graph breaks; "" if it breaks no known one."""
        return broken_rule(self.graph)

    @property
    def format_advice(self) -> str:
        """The line about tensors that are not channels last, which the engines of most graphs need.

        If all are, and for matrix products, whose tensors have no channels, it names the page with the requirements.
        """
        kinds = {operation.kind for operation in self.graph.operations}
        others = {
            name: channels_last_strides(spec.shape)
            for name, spec in zip(self.names or self.operands, self.specs, strict=True)
            if len(spec.shape) > 3 and not are_channels_last(spec)
        }
        if not others or not kinds.isdisjoint(_PRODUCTS):
            return "\n  docs/graphs.md lists what engines require"
        name, strides = next(iter(others.items()))
        return (
            f"\n  Engines for most graphs need tensors that are channels last in memory; {', '.join(others)} "
            f"{'is' if len(others) == 1 else 'are'} not. The strides of {name} would be {strides}"
        )

    def float64_elements(self, positions: Sequence[tuple[int, ...]], read: Read) -> None:
        """Return None: single elements of a graph are not computed."""

    def lowerings(self) -> Iterator[GraphLowering]:
        """Yield the lowerings: one, or for the gradient of attention two."""
        for part in parts(self.graph):
            yield GraphLowering(self, part)

    def aligned(self) -> GraphProblem:
        """Return the problem with 16-byte alignment of every tensor."""
        tensors = tuple(one._replace(spec=one.spec._replace(alignment=16)) for one in self.graph.tensors)
        return replace(self, graph=self.graph._replace(tensors=tensors))


def _specs(tensors: Iterable[tuple[str, Uids]], specs: Mapping[int, TensorSpec]) -> dict[str, TensorSpec]:
    return {name: specs[uid] for name, uids in tensors for uid in each_uid(uids)}


def _terms(operation: Operation, specs: Mapping[int, TensorSpec]) -> int:
    given, made = _specs(operation.operands, specs), _specs(operation.results, specs)
    return KINDS[operation.kind].terms(dict(operation.options), given, made)


def _indices(graph: OperationGraph) -> dict[int, Values]:
    """Return the values of tensors that are lengths, indices or offsets, by unique id."""
    specs = graph.specs
    found: dict[int, Values] = {}
    sizes: dict[Uids, int] = {}  # of the axes whose indices a tensor has
    for operation in graph.operations:
        rules, operands = KINDS[operation.kind].indices, dict(operation.operands)
        if operation.option("mode") == raw.CUDNN_POINTWISE_GEN_INDEX:
            ((_, index),) = operation.results
            sizes[index] = specs[index].shape[operation.option("axis")]
        elif operation.kind == "pointwise" and operands.get("x") in sizes:  # compared with a length
            size = sizes[operands["x"]]
            found.update(dict.fromkeys(each_uid(operands.get("b", ())), Values(size, size, is_whole=True, step=0)))
        for name, uids in operation.operands:
            if name in rules:
                low, step = rules[name](_specs(operation.operands, specs))
                for uid in each_uid(uids):  # one tensor may have the lengths of both q and k: the least is valid
                    values = Values(low, low, is_whole=True, step=step)
                    found[uid] = min(values, found.get(uid, values))
    for tensor in graph.tensors:
        if tensor.ragged:  # each sequence has the greatest length
            found[tensor.ragged] = Values(0, 0, is_whole=True, step=strides_of(tensor.spec)[0])
    return found


def _name_of(operation: Operation) -> str:
    """Return the mode of an elementwise operation, and the kind of any other."""
    return pointwise_name(operation.option("mode")) if operation.kind == "pointwise" else operation.kind


def _restricted(graph: OperationGraph) -> tuple[set[int], set[int]]:
    """Return the unique ids of tensors that must be positive so that no result is NaN, and of tensors that are flags."""
    positive: set[int] = set()
    flags: set[int] = set()
    for operation in reversed(graph.operations):  # from the results on
        name = _name_of(operation)
        needed = set(_POSITIVE.get(name, ()))
        if not positive.isdisjoint(uid for _, uid in operation.results):
            needed.update(_SAME_SIGN.get(name, ()))
        for operand, uids in operation.operands:
            positive.update(each_uid(uids) if operand in needed else ())
            flags.update(each_uid(uids) if operand in _FLAGS.get(name, ()) else ())
    return positive, flags


def _names(graph: OperationGraph) -> tuple[str, ...]:
    """Return the names of the tensors in memory, each from the first operation that has it."""
    names: dict[int, str] = {}
    taken: Counter[str] = Counter()
    in_memory = dict.fromkeys(graph.in_memory)
    named = [(name, uid) for one in graph.operations for name, uids in one.tensors.items() for uid in each_uid(uids)]
    for name, uid in (*named, *(("ragged", tensor.ragged) for tensor in graph.tensors)):
        if uid not in names and uid in in_memory:
            taken[name] += 1
            names[uid] = name if taken[name] == 1 else f"{name}{taken[name]}"
    return tuple(names[uid] for uid in in_memory)


def _words(problem: GraphProblem) -> list[str]:
    """Return the words of the notation: the graph as JSON."""
    content = graph_to_json(problem.graph)
    return [problem.operation, json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)]


def _read_text(given: ParsedText, device: int) -> GraphProblem:
    """Return the problem of a text in the notation. Raises ValueError for anything else."""
    if len(given.operands) != 1:
        raise ValueError(f"graph must have one JSON object; got {len(given.operands)}")
    (word,) = given.operands
    try:
        problem = GraphProblem(graph_from_json(parse_json(word.text)), device)
    except ValueError as error:
        at = min(error.pos, len(word.text) - 1) if isinstance(error, json.JSONDecodeError) else 0
        raise ProblemTextError(
            f"graph must be the JSON of a graph; got invalid JSON: {str(error)[:500]}", word.column + at
        ) from error
    try:
        check_graph(problem.graph, dict(zip(problem.graph.in_memory, problem.operands, strict=True)))
    except ValueError as error:
        raise ProblemTextError(str(error), word.column) from error
    return problem


SYNTAX = ProblemSyntax(("graph",), re.compile(r"\{"), {}, {}, {}, {}, _words, _read_text)


@dataclass(frozen=True)
class GraphLowering:
    """A lowering of a graph (cudnnpy._planning.candidates.Lowering): mostly the graph itself (attention_lowerings.py)."""

    problem: GraphProblem
    part: Part = field(repr=False)

    @property
    def suffix(self) -> str:
        """The end of the names of candidates: " + accumulation" for the gradient of attention with a buffer of sums."""
        return " + accumulation" if self.part.buffer else ""

    @property
    def lowering_options(self) -> dict[str, bool]:
        """The options of an Engine that runs on it."""
        return {"accumulation": True} if self.part.buffer else {}

    def build_graph(self, target: Target) -> Descriptor:
        """Return the finalized operation graph. Raises StatusError if cuDNN rejects it."""
        graph = self.part.graph
        return target.memoize("graph", graph, make=lambda: build_graph(graph, target))

    def executable(self, plan: Descriptor, target: Target) -> Executable:
        """Return the executable of an execution plan, with the numbers of the graph as constants."""
        graph, views, buffer, sums, filled = self.part
        constants = tuple((uid, c_number(number, dtype)) for uid, number, dtype in graph.numbers)
        planned = GraphExecutable(plan, graph.in_memory, constants)
        operands = self.problem.graph.in_memory
        if not (views or buffer or sums or filled):
            return planned
        indices = {uid: index for index, uid in enumerate((*operands, buffer))}
        sources = tuple(indices[views.get(uid, uid)] for uid in graph.in_memory)
        cleared = [*sums, *([buffer] if buffer and raw.version() < _CLEARED else [])]
        fills = (*((uid, 0.0) for uid in cleared), *filled)
        before = [Step(fill(graph.specs[uid], value), (indices[uid],)) for uid, value in fills]
        return StepSequence([*before, Step(planned, sources)], [byte_extent(graph.specs[buffer])] if buffer else [])

    @property
    def is_deterministic(self) -> bool:
        """Whether no element of a result is added to in any order."""
        return not (self.part.buffer or self.part.sums)

    @property
    def traits(self) -> ProblemTraits:
        """The properties that known issues of engines depend on."""
        return self.problem.traits

    @property
    def part_text(self) -> str:
        """The name of the form; "" for the whole graph."""
        return self.suffix.removeprefix(" + ")
