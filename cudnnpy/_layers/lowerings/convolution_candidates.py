"""Candidates for a convolution: the engines of each of its lowerings, and the algorithms of the v7 functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ctypes import byref, c_size_t
from typing import Self

from cudnnpy import raw
from cudnnpy._checks.option_values import error_repr
from cudnnpy._convolution import notation
from cudnnpy._convolution.float64_elements import float64_elements
from cudnnpy._convolution.options import algorithm_named, algorithm_names
from cudnnpy._convolution.specification import ROLES, ConvolutionSpec
from cudnnpy._core.layouts import TensorSpec, is_packed, packed_strides, with_two_spatial_axes
from cudnnpy._launch.steps import (
    WORKSPACE,
    Executable,
    FunctionCall,
    OperandAddress,
    scaling_arguments,
    tensor_descriptor,
)
from cudnnpy._layers.lowerings.convolution_lowerings import ConvolutionLowering, lowerings
from cudnnpy._planning import known_issues
from cudnnpy._planning.candidates import (
    Candidate,
    all_engines,
    candidate_for_engine,
    heuristic_candidates,
    rejected,
)
from cudnnpy._planning.choice import Choice, Engine
from cudnnpy._planning.engines import Target
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import Read, Values, is_strict, values_of
from cudnnpy._planning.problem_notation import ParsedText, text_of
from cudnnpy.descriptors import FUNCTIONS, ConvolutionDescriptor, FilterDescriptor, TensorDescriptor, permitted_math
from cudnnpy.handle import Handle
from cudnnpy.names import short_names

_NO_COPIES = "needs copies, which int8 and float8 tensors cannot have"
_NO_LOWERING = {
    "space_to_depth": "the problem has no space-to-depth lowering",
    "channels_last_copies": "the problem has no lowering to channels last",
    "flipped_forward": "the problem has no lowering to a forward convolution",
    "accumulation": "the problem is not the gradient of attention",
}

# Such engines take up to 15 s to compile, and some give wrong results (forward-not-proposed in known_issues.json).
_NOT_PROPOSED = "compiled at run time, and cuDNN's heuristics do not propose it"


class ConvolutionProblem(ConvolutionSpec):
    """A ConvolutionSpec with its candidates; it implements cudnnpy._planning.problem.Problem."""

    __slots__ = ()

    kind = "convolution"  #: the kind of problem in serialized plans
    has_finite_results = True  #: sums of products of finite numbers are finite
    broken_rule = ""  #: there are engines for every kind of convolution
    format_advice = ""  #: the tensors are converted to the format that an engine needs

    def __str__(self) -> str:
        return text_of(self)

    @property
    def value_ranges(self) -> tuple[Values, ...]:
        """The distribution of each operand's values in a measurement: any values suit sums of products."""
        return tuple(map(values_of, self.specs))

    def float64_elements(self, positions: Sequence[tuple[int, ...]], read: Read) -> tuple[list[float], list[float]]:
        """Return elements of the result, computed in float64, and the magnitude that scales the tolerance of each."""
        return float64_elements(self, positions, read)

    def lowerings(self) -> Iterator[ConvolutionLowering]:
        """Return the lowerings to the graph API."""
        return lowerings(self)

    def aligned(self) -> Self:
        """Return the problem with 16-byte alignment of every tensor."""
        tensors = {name: getattr(self, name) for name in ("x", "w", "y", "bias")}
        return self._replace(**{name: spec and spec._replace(alignment=16) for name, spec in tensors.items()})

    def proposed_candidates(self, target: Target) -> Iterator[Candidate]:
        """Yield the proposals of cuDNN's heuristics. The best one of each lowering comes before the others."""
        return _best_of_each_first([heuristic_candidates(lowering, target) for lowering in self.ordered_lowerings()])

    def ordered_lowerings(self) -> list[ConvolutionLowering]:
        """Return the lowerings; those whose engines with tensor cores are rejected come last."""
        return sorted(lowerings(self), key=lambda one: known_issues.rejects_tensor_cores(one.traits))

    def engines(self, target: Target) -> Iterator[Candidate]:
        """Yield every engine for every lowering. Engines that are compiled at run time are rejected (see _NOT_PROPOSED)."""
        for lowering in lowerings(self):
            for candidate in all_engines(lowering, target):
                if candidate.compiled_at_run_time and not candidate.rejection_reason:
                    candidate.rejection_reason = _NOT_PROPOSED
                yield candidate

    def functions(self, options: PlanningOptions, target: Target) -> Iterator[Candidate]:
        """Yield the v7 algorithms. They require a handle; a device profile has none."""
        if target.handle is not None:
            for name in algorithm_names(self.operation):
                yield from_algorithm(self, is_strict(self, options), target, name)

    def forced_candidate(self, options: PlanningOptions, target: Target) -> Candidate:
        """Return the candidate that `options.algorithm` forces. Raises ValueError or TypeError if it is not an algorithm."""
        given = options.algorithm
        if isinstance(given, Engine):
            lowering = next((one for one in lowerings(self) if one.lowering_options == given._lowering_options), None)
            if lowering is None:
                reason = next((_NO_LOWERING[name] for name in given._lowering_options), _NO_COPIES)
                return rejected("engines", f"engine {given.index}", reason)
            return candidate_for_engine(lowering, target, given)
        if isinstance(given, str):
            name = algorithm_named(self.operation, given)
            return from_algorithm(self, is_strict(self, options), target, name)
        raise TypeError(f"algorithm must be a v7 algorithm's name, a cudnnpy.Engine or a Plan; got {error_repr(given)}")


def _best_of_each_first(proposals: list[Iterator[Candidate]]) -> Iterator[Candidate]:
    """Yield candidates up to the first usable one of each lowering, then the others. The caller plans each of them."""
    for of_lowering in proposals:
        for candidate in of_lowering:
            yield candidate
            if not candidate.rejection_reason:
                break
    for of_lowering in proposals:
        yield from of_lowering


def _read(given: ParsedText, device: int) -> ConvolutionProblem:
    return ConvolutionProblem(*notation.read(given, device))


SYNTAX = notation.kind(_read)


def from_algorithm(problem: ConvolutionSpec, strict: bool, target: Target, name: str) -> Candidate:
    """Return the candidate of a v7 algorithm. `strict`: float32 is multiplied as float32, not as tf32."""
    # The v7 functions do not fuse: take the first lowering whose part has neither bias nor activation.
    plain = (one for one in lowerings(problem) if not one.lowering_options)
    lowering = next(
        (lowering for lowering in plain if (lowering.part.bias, lowering.part.activation) == (None, None)), None
    )
    if lowering is None:
        return rejected("legacy", name, _NO_COPIES)

    def make() -> Executable:
        return lowering.complete(LegacyExecutable(lowering.part, name, strict, target.handle), target)

    is_deterministic = name not in FUNCTIONS[problem.operation].nondeterministic
    choice = Choice(
        name + lowering.suffix, "legacy", None, lowering.part_text, deterministic=is_deterministic, strict=strict
    )
    return Candidate(choice, make, lowering)


# The v7 functions. Their calls take longer on the host, since cuDNN plans again in each.


class LegacyExecutable(FunctionCall):
    """The call of a v7 algorithm. Raises StatusError, with cuDNN's reason, if cuDNN does not support it here.

    `strict`: float32 is multiplied as float32, not as tf32 (CUDNN_FMA_MATH).
    """

    def __init__(self, problem: ConvolutionSpec, name: str, strict: bool, handle: Handle | None) -> None:
        if handle is None:
            raise ValueError("the v7 functions need a GPU")
        functions, g = FUNCTIONS[problem.operation], problem.geometry
        if g.pre_padding != g.post_padding:
            raise ValueError("the v7 functions need the same padding before and after")
        alpha, beta = scaling_arguments(problem.alpha, problem.beta, problem.compute_dtype)
        tensors: dict[str, TensorDescriptor | FilterDescriptor]
        tensors = {"x": tensor_descriptor(problem.x), "w": _filter(problem.w), "y": tensor_descriptor(problem.y)}
        one = len(g.stride) == 1
        convolution = ConvolutionDescriptor(
            (0, *g.pre_padding) if one else g.pre_padding,
            (1, *g.stride) if one else g.stride,
            (1, *g.dilation) if one else g.dilation,
            mode=problem.mode,
            compute_dtype=problem.compute_dtype,
            groups=problem.groups,
            math_type=permitted_math(problem.x.dtype, tf32=not strict),
        )
        first, second, last = (tensors[role] for role in functions.operands)
        given = [ROLES[operand] for operand in problem.operands if operand != "bias"]
        x, y, z = (OperandAddress(given.index(role)) for role in functions.operands)
        algorithm = short_names(functions.algorithms)[name]
        size = c_size_t()
        function = functions.function("cudnnGetConvolution{}WorkspaceSize")
        raw.call(function, handle, first, second, convolution, last, algorithm, byref(size))
        super().__init__(
            functions.function("cudnnConvolution{}"), alpha, first, x, second, y, convolution, algorithm,
            WORKSPACE, size.value, beta, last, z, workspace_size=size.value,
        )  # fmt: skip
        self.strict = strict


def _filter(spec: TensorSpec) -> FilterDescriptor:
    if not is_packed(spec):
        raise ValueError("the v7 functions need packed filters")
    return FilterDescriptor(
        with_two_spatial_axes(spec)[0],
        spec.dtype,
        format="nchw" if spec.strides == packed_strides(spec.shape) else "nhwc",
    )
