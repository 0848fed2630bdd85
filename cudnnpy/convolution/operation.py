"""Run forward, backward_data, backward_filter or backward_bias on arrays: make the problem, choose its plan, launch it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex

from cudnnpy._autotune import measurer_for
from cudnnpy._core.cache_token import TokenizedOptions, cache_token
from cudnnpy._core.layouts import (
    CHANNELS_FIRST,
    TensorSpec,
    byte_extent,
    canonical,
    packed_strides,
    result_strides,
    to_logical,
)
from cudnnpy._launch import dispatch
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.fill_executables import program_for_empty_input
from cudnnpy._launch.operands import check_no_overlaps, in_logical_order
from cudnnpy._launch.program import Operand, Program
from cudnnpy._launch.step_builder import StepBuilder
from cudnnpy._memory import workspace as memory
from cudnnpy._options.algorithms import algorithm_named, check_algorithm
from cudnnpy._options.arguments import check_no_beta, check_scales
from cudnnpy._options.checks import check_shape, error_repr, is_channels_last
from cudnnpy._options.convolution import ConvolutionOptions
from cudnnpy._planning.candidates import Candidate, Engine
from cudnnpy._planning.engines import Target
from cudnnpy._planning.measurement_freeze import is_frozen
from cudnnpy._planning.plan import Plan
from cudnnpy._planning.selection import plan_for, survey
from cudnnpy.convolution import problem as ask
from cudnnpy.convolution.candidates import ConvolutionProblem
from cudnnpy.convolution.problem import INPUTS
from cudnnpy.graph.reductions import reduction
from cudnnpy.handle import Handle, on_device
from cudnnpy.typing import Array, ArrayT, ConvolutionActivation, ConvolutionOperation, Stream

# The inputs' names for the callers of a transposed convolution.
TRANSPOSE_INPUT_NAMES = {"forward": ("dy", "w"), "backward_data": ("x", "w"), "backward_filter": ("x", "dy")}


@dataclass(frozen=True, kw_only=True)
class BiasGradient(TokenizedOptions):
    """The operation backward_bias, with the convolution options that it depends on."""

    layout: str
    deterministic: bool

    def _prepare(self, call: Call, alpha: float, beta: float) -> tuple[Program, list[TensorSpec]]:
        """Return a reduction of dy.

        cudnnConvolutionBackwardBias is not used: on an H200 with cuDNN 9.19 it takes 6 to 19 times as long as the memory
        bandwidth allows on large tensors, and it faults on misaligned addresses (bias-gradient-misaligned in
        docs/known-issues.md).
        """
        spec = canonical(logical(call.specs["dy"], "dy", self.layout), "dy")
        if spec.dtype not in ("float16", "bfloat16", "float32", "float64"):
            raise TypeError(f"dy must be float16, bfloat16, float32 or float64; got {spec.dtype}")
        if 0 in spec.shape[1:]:
            raise ValueError(
                f"dy must have sizes of 1 or more, except for a batch of 0; got shape {spec.shape} (logical order)"
            )
        channels, out = (spec.shape[1],), call.specs.get("out")
        if out is None:
            check_no_beta("beta", beta, "out")
        check_scales(alpha, beta)
        if out is not None and (out.shape != channels or out.dtype != spec.dtype or out.strides not in (None, (1,))):
            raise ValueError(
                f"out must be packed {spec.dtype} of shape {channels}; got {out.dtype} of shape {out.shape}"
            )
        row = (1, *channels, *(1 for _ in spec.shape[2:]))
        sums = TensorSpec(row, spec.dtype, packed_strides(row))  # the same memory as (K,)
        operands = check_no_overlaps(call, (Operand("dy", spec), Operand("out", sums, True)))
        program = reduction(
            "bias gradient", call.device, operands, "add", float(alpha), float(beta), self.deterministic, call
        )
        return program, [TensorSpec(channels, spec.dtype)]


class Operation:
    """The operations of a convolution with given options.

    `inputs` has the caller's names of the arrays of each operation, for errors.
    """

    uses_suggested_format = True  # for a result, if the memory formats of x and w are ambiguous (dispatch.Owner)

    def __init__(self, options: ConvolutionOptions, inputs: dict[str, tuple[str, str]] = INPUTS) -> None:
        check_forced(options.algorithm)
        self.options, self.planning, self.inputs = options, ask.planning_options(options), inputs
        self._names = {operation: (*names, "bias", "out") for operation, names in inputs.items()}
        self._token = cache_token(Operation, *options._fields().values())
        self._prepared_by = type(self)._prepare
        self._bias_gradient = BiasGradient(layout=self.options.layout, deterministic=self.options.deterministic)
        # For policy "once": the engine of the first shape, by kind of graph, since engine indices differ between kinds.
        self._first: dict[tuple[str, bool, str | None], Engine] = {}

    def run(
        self,
        operation: ConvolutionOperation,
        first: ArrayT,
        second: Array,
        shape: Sequence[SupportsIndex] | None,
        bias: Array | None,
        activation: ConvolutionActivation | None,
        out: ArrayT | None,
        alpha: float,
        beta: float,
        stream: Stream | None,
    ) -> ArrayT:
        """Run an operation on two arrays; return `out` or a new array of the first one's library."""
        result: ArrayT = dispatch.run(
            operation,
            self,
            self._prepared_by,
            self._names[operation],
            (first, second, bias),
            (out,),
            stream,
            operation,
            activation,
            alpha,
            beta,
            *(shape or ()),
        )
        return result

    def run_bias(self, dy: ArrayT, out: ArrayT | None, alpha: float, beta: float, stream: Stream | None) -> ArrayT:
        """Run backward_bias, whose input is dy; return `out` or a new array of dy's library."""
        owner, prepare = self._bias_gradient, BiasGradient._prepare
        db: ArrayT = dispatch.run("backward_bias", owner, prepare, ("dy", "out"), (dy,), (out,), stream, alpha, beta)
        return db

    # Set-up, once for each signature

    def _prepare(
        self, call: Call, operation: str, activation: str | None, alpha: float, beta: float, *shape: Any
    ) -> tuple[Plan | Program, list[TensorSpec]]:
        first, second = (call.specs[name] for name in self.inputs[operation])
        problem = self.problem(
            operation,
            first,
            second,
            shape or None,
            bias=call.specs.get("bias"),
            activation=activation,
            out=call.specs.get("out"),
            alpha=alpha,
            beta=beta,
            device=call.device,
            last=call.suggests_channels_last,
        )
        results = [ask.result_in_layout(self.options, problem.specs[-1], problem.x, problem.w, problem.y)]
        if problem.is_empty:
            return self._without_elements(call, problem, self._operands(call, problem)), results
        return self._plan(call, problem), results

    def _operands(self, call: Call, problem: ConvolutionProblem) -> list[Operand]:
        """Return the operands of a problem under the caller's names."""
        names = [name for name in self._names[problem.operation] if name in call.specs or name == "out"]
        return [Operand(name, spec, name == "out") for name, spec in zip(names, problem.specs, strict=True)]

    def _without_elements(self, call: Call, problem: ConvolutionProblem, operands: list[Operand]) -> Program:
        """Return the program of a problem with an empty tensor, whose sums are all 0."""
        name = f"{problem.operation} of empty tensors"
        check_no_overlaps(call, operands)
        if problem.operation != "forward" or 0 in problem.y.shape:
            return program_for_empty_input(name, call.device, operands, beta=problem.beta)
        # x and w have 0 channels: for the bias and the activation of sums of 0, zeros replace them
        plain = Operation(replace(self.options, algorithm=None, policy="on_shape_change"))
        x, w, geometry = ask.zeros_for(problem.y, problem.x.dtype)
        part = problem._replace(x=x, w=w, geometry=geometry, groups=1)
        plan = plain._plan(call, part, byte_extent(x), byte_extent(w))
        builder = StepBuilder({operand.name: operand.spec for operand in operands})
        replaced = builder.scratch(x), builder.scratch(w)
        for tensor in replaced:
            builder.clear(tensor)
        builder.add(plan.executable, *replaced, *[*builder.operands.values()][2:])
        return builder.program(name, call.device, operands, plan)

    def _plan(self, call: Call, problem: ConvolutionProblem, *scratch: int) -> Plan:
        """The plan of a call, beside scratch memory of some sizes."""
        measurer = measurer_for(self.planning, call.device, call.stream)
        cap = call.workspace_cap_with_scratch(*scratch)
        plan = plan_for(problem, self.planning, measurer, self._before(problem), cap, lists_candidates=False)
        self._note(problem, plan)
        return plan

    def problem(
        self,
        operation: str,
        first: TensorSpec,
        second: TensorSpec,
        shape: Any = None,
        *,
        bias: TensorSpec | None = None,
        activation: str | None = None,
        out: TensorSpec | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        device: int = 0,
        last: bool = False,
    ) -> ConvolutionProblem:
        """Return the problem of two inputs in the arrays' own axis order. `shape` is the result's, for gradients.

        `last`: a new result is channels last if the inputs' memory formats are ambiguous.
        """
        if isinstance(self.options.algorithm, str):
            algorithm_named(operation, self.options.algorithm)
        if out is None:
            check_no_beta("beta", beta, "out")
        if operation == "forward" and shape is not None:
            raise ValueError(f"shape must be None for forward, where it follows from x and w; got {error_repr(shape)}")
        names = self.inputs[operation]
        one, two = logical(first, names[0], self.options.layout), logical(second, names[1], self.options.layout)
        result = None if out is None else logical(out, "out", self.options.layout)
        if operation == "forward":
            wanted: tuple[int, ...] = ask.output_shape(self.options, one.shape, two.shape)
        else:
            name = "x_shape" if operation == "backward_data" else "w_shape"
            given = ask.given_shape(name, shape, None if out is None else out.shape)
            wanted = to_logical(check_shape(name, given, len(one.shape), low=0), is_channels_last(self.options.layout))
        if result is None:
            dtype = "int32" if one.dtype == "int8" else one.dtype
            like = canonical(one, names[0]), canonical(two, names[1])
            result = TensorSpec(wanted, dtype, result_strides(wanted, *like, last=last))
        elif result.shape != wanted:
            raise ValueError(f"out must have shape {wanted} (logical order); got shape {result.shape}")
        x, w, y = {
            "forward": (one, two, result),
            "backward_data": (result, two, one),
            "backward_filter": (two, result, one),
        }[operation]
        made = ask.make_problem(
            self.options,
            operation,
            x,
            w,
            y,
            alpha=alpha,
            beta=beta,
            bias=bias,
            activation=activation,
            device=device,
            called=names,
        )
        return ConvolutionProblem(*made)

    def choose_plan(self, problem: ConvolutionProblem, stream: int) -> Plan:
        """The plan that the options ask for, on the problem's device. Raises NoAlgorithmError."""
        measurer = measurer_for(self.planning, problem.device, stream)
        plan = plan_for(problem, self.planning, measurer, self._before(problem))
        self._note(problem, plan)
        return plan

    def _before(self, problem: ConvolutionProblem) -> Engine | None:
        """Return the engine of the first shape of this kind of problem, for policy "once"."""
        return self._first.get(_kind(problem)) if self.options.policy == "once" else None

    def _note(self, problem: ConvolutionProblem, plan: Plan) -> None:
        is_guess = self.options.prefer == "autotune" and is_frozen()  # to be measured when the freeze has ended
        if plan.engine is not None and not is_guess:
            self._first.setdefault(_kind(problem), plan.engine)

    def candidates(self, problem: ConvolutionProblem) -> list[Candidate]:
        """Return every candidate for a problem, with rejection reasons."""
        with on_device(problem.device):
            target = Target(Handle.default(problem.device))
            return survey(problem, self.planning, target, memory.free_bytes(problem.device))


def _kind(problem: ConvolutionProblem) -> tuple[str, bool, str | None]:
    """Return the kind of graph. Within a kind, an engine has the same index for all problems."""
    return problem.operation, problem.bias is None, problem.activation


def logical(spec: TensorSpec, name: str, layout: str) -> TensorSpec:
    """Return a tensor with its axes as (N, C, spatial...). Raises ValueError if it does not have 3, 4 or 5 axes."""
    rank = len(spec.shape)
    if rank not in CHANNELS_FIRST:
        raise ValueError(f"{name} must have 3, 4 or 5 axes; got shape {tuple(spec.shape)}")
    return in_logical_order(spec, name, layout)


def check_forced(given: object) -> None:
    """Raise TypeError or ValueError unless it is None, a v7 algorithm's name, an Engine or the plan of a convolution."""
    check_algorithm(given)
    if not (given is None or isinstance(given, str | Engine | Plan)):
        raise TypeError(f"algorithm must be a v7 algorithm's name, a cudnnpy.Engine or a Plan; got {error_repr(given)}")
    if isinstance(given, Plan) and given.problem.kind != "convolution":
        raise TypeError("algorithm must be the plan of a convolution; got the plan of a graph")
