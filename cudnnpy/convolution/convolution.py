"""Convolution: forward, backward_data, backward_filter and backward_bias on device arrays of any library."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias

from cudnnpy._child_process import candidates_for_profile, measurer_for, plan_for_profile
from cudnnpy._core.choice import Engine
from cudnnpy._core.driver import check_not_capturing
from cudnnpy._core.layouts import TensorSpec, byte_extent, from_logical, to_logical
from cudnnpy._launch.device_operation import DeviceOperation
from cudnnpy._launch.dispatch import Call, Specs
from cudnnpy._launch.fill_executables import program_for_empty_input
from cudnnpy._launch.operands import check_no_overlaps
from cudnnpy._launch.program import Operand, Program
from cudnnpy._memory import workspace as memory
from cudnnpy._memory.arrays import library_of
from cudnnpy._memory.device_array import current_device
from cudnnpy._options.checks import check_option, check_shape, error_repr, is_channels_last
from cudnnpy._options.convolution_methods import ConvolutionBase
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.device_profile import DeviceProfile
from cudnnpy._planning.engines import Target
from cudnnpy._planning.measurement_freeze import Freeze
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.plan import Plan
from cudnnpy._planning.selection import plan_for, survey
from cudnnpy.convolution.bias_gradient import bias_gradient
from cudnnpy.convolution.call_problem import OperationRequest, problem_of_call
from cudnnpy.convolution.candidates import ConvolutionProblem
from cudnnpy.convolution.planned_tensors import specs_and_device
from cudnnpy.convolution.problem import INPUTS, OPERATIONS, output_shape, planning_options, result_in_layout
from cudnnpy.convolution.zero_channels import program_on_zeros, zeros_for
from cudnnpy.handle import Handle, on_device
from cudnnpy.typing import Array, ConvolutionActivation, ConvolutionOperation, Shape

# The result of setting a call up: the plan, or the program around it, and the specs of new results.
Prepared: TypeAlias = tuple[Plan | Program, list[TensorSpec]]


class Convolution(ConvolutionBase, DeviceOperation):
    uses_suggested_format = True  # for a result, if the memory formats of x and w are ambiguous (dispatch.Owner)

    _planning: PlanningOptions
    # For policy "once": the engine of the first shape, by kind of graph, since engine indices differ between kinds.
    _first: dict[tuple[str, bool, str | None], Engine]

    def _derived(self) -> dict[str, Any]:
        check_forced(self.algorithm)
        return {**super()._derived(), "_planning": planning_options(self), "_first": {}}

    def _output_shape(self, x_shape: Shape, w_shape: Shape) -> tuple[int, ...]:
        last = is_channels_last(self.layout)
        x, w = check_shape("x_shape", x_shape, low=0), check_shape("w_shape", w_shape, low=0)
        return from_logical(output_shape(self, to_logical(x, last), to_logical(w, last)), last)

    def plan(
        self,
        operation: ConvolutionOperation,
        first: Array | TensorSpec,
        second: Array | TensorSpec,
        shape: Shape | None = None,
        *,
        bias: Array | TensorSpec | None = None,
        activation: ConvolutionActivation | None = None,
        out: Array | TensorSpec | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        device: int | DeviceProfile | None = None,
    ) -> Plan:
        """Choose the plan of an operation, to be executed with raw addresses.

        Each call plans again, and the plan is not cached, so hold on to it. Choices that autotune measured are in the store and
        are not measured again.

        Parameters
        ----------
        operation : {"forward", "backward_data", "backward_filter"}
            The operation.
        first, second : array or TensorSpec
            Its first two arguments: x and w, dy and w, or dy and x.
        shape : tuple of ints, optional
            x_shape or w_shape; None for "forward", and may be None if `out` is given.
        bias, activation, out, alpha, beta
            As for `forward`; "backward_data" with a bias or an activation is the forward of a transposed convolution.
        device : int or DeviceProfile, optional
            The ordinal, for TensorSpecs: by default the current device. Arrays have their own. For a `DeviceProfile` the plan
            is made without the GPU, and has a `profile`; it cannot run in this process.

        Returns
        -------
        Plan
            The plan.

        Raises
        ------
        TypeError, ValueError
            Arguments do not fit, or a tensor is empty, so that there is nothing to plan.
        NoAlgorithmError
            No algorithm can run; the message has the table of candidates.
        CaptureError
            The current stream is being captured into a CUDA graph.
        """
        problem = self._problem(operation, first, second, shape, bias, activation, out, alpha, beta, device)
        if isinstance(device, DeviceProfile):
            return plan_for_profile(problem, self._planning, device)
        arrays = [array for array in (first, second, bias) if array is not None]
        real = not any(isinstance(array, TensorSpec) for array in (*arrays, out))
        with on_device(problem.device):
            stream = library_of(first).current_stream(problem.device) if real else 0
            check_not_capturing("plan", stream, "Plan before the capture, and keep the plan")
            return self._plan(problem, stream)

    def candidates(
        self,
        operation: ConvolutionOperation,
        first: Array | TensorSpec,
        second: Array | TensorSpec,
        shape: Shape | None = None,
        *,
        bias: Array | TensorSpec | None = None,
        activation: ConvolutionActivation | None = None,
        out: Array | TensorSpec | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        device: int | DeviceProfile | None = None,
    ) -> list[Candidate]:
        """Plan every candidate for an operation. `cudnnpy.candidates_table` makes a table of them.

        The parameters are the same as for `plan`.

        Returns
        -------
        list of Candidate
            All candidates. `rejection_reason` is "" for a candidate that can be used.
        """
        problem = self._problem(operation, first, second, shape, bias, activation, out, alpha, beta, device)
        if isinstance(device, DeviceProfile):
            return candidates_for_profile(problem, self._planning, device)
        with on_device(problem.device):
            target = Target(Handle.default(problem.device))
            return survey(problem, self._planning, target, memory.free_bytes(problem.device))

    def _problem(
        self,
        operation: ConvolutionOperation,
        first: object,
        second: object,
        shape: Shape | None = None,
        bias: object = None,
        activation: ConvolutionActivation | None = None,
        out: object = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        device: int | DeviceProfile | None = None,
    ) -> ConvolutionProblem:
        """Return the problem of arrays and TensorSpecs. Raises ValueError if a tensor is empty."""
        check_option("operation", operation, OPERATIONS)
        names = INPUTS[operation]
        given = {names[0]: first, names[1]: second, "bias": bias, "out": out}
        specs, ordinal = specs_and_device(given, device)
        if not specs.keys() >= set(names):
            raise TypeError(f"{names[0]} and {names[1]} must be arrays or TensorSpecs; got None")
        call = Call(Specs(specs), {}, ordinal or 0, 0, {})
        problem = problem_of_call(self, call, operation, names, activation, alpha, beta, shape)
        if problem.is_empty:
            raise ValueError(f"a planned problem must have elements; got {problem}, for which nothing is computed")
        # The driver is called last, so that bad arguments are reported where there is none.
        return problem if ordinal is not None else problem._replace(device=current_device())

    # Set-up, once for each call signature

    def _forward(self, call: Call, activation: str | None, alpha: float, beta: float) -> Prepared:
        return self._prepare(OperationRequest(call, "forward", INPUTS["forward"], activation, alpha, beta))

    def _backward_data(self, call: Call, alpha: float, beta: float, *x_shape: int) -> Prepared:
        names = INPUTS["backward_data"]
        return self._prepare(OperationRequest(call, "backward_data", names, None, alpha, beta, x_shape or None))

    def _backward_filter(self, call: Call, alpha: float, beta: float, *w_shape: int) -> Prepared:
        names = INPUTS["backward_filter"]
        return self._prepare(OperationRequest(call, "backward_filter", names, None, alpha, beta, w_shape or None))

    def _backward_bias(self, call: Call, alpha: float, beta: float) -> tuple[Program, list[TensorSpec]]:
        return bias_gradient(self, call, alpha, beta)

    def _prepare(self, request: OperationRequest) -> Prepared:
        """Plan an operation; return the spec of its result as well."""
        problem = problem_of_call(self, *request)
        results = [result_in_layout(self, problem.specs[-1], problem.x, problem.w, problem.y)]
        if problem.is_empty:
            return self._without_elements(request.call, problem, operands_of(request, problem)), results
        return self._plan_in(request.call, problem), results

    def _without_elements(self, call: Call, problem: ConvolutionProblem, operands: list[Operand]) -> Program:
        """Return the program of a problem with an empty tensor, whose sums are all 0."""
        name = f"{problem.operation} of empty tensors"
        check_no_overlaps(call, operands)
        if problem.operation != "forward" or 0 in problem.y.shape:
            return program_for_empty_input(name, call.device, operands, problem.beta)
        # x and w have 0 channels: for the bias and the activation of sums of 0, zeros replace them
        unforced = replace(self, algorithm=None, policy="on_shape_change")
        x, w, geometry = zeros_for(problem.y, problem.x.dtype)
        part = problem._replace(x=x, w=w, geometry=geometry, groups=1)
        plan = unforced._plan_in(call, part, byte_extent(x), byte_extent(w))
        return program_on_zeros(name, call.device, operands, (x, w), plan.executable, plan)

    def _plan_in(self, call: Call, problem: ConvolutionProblem, *scratch: int) -> Plan:
        """Return the plan of a call, beside scratch memory of these sizes in bytes."""
        memory_limit = call.memory_limit_with_scratch(*scratch)
        return self._plan(problem, call.stream, memory_limit, lists_candidates=False)

    def _plan(
        self,
        problem: ConvolutionProblem,
        stream: int,
        memory_limit: int | None = None,
        *,
        lists_candidates: bool = True,
    ) -> Plan:
        """Return the plan that the options choose, on the problem's device. Raises NoAlgorithmError."""
        measurer = measurer_for(self._planning, problem.device, stream)
        previous = self._engine_of_first(problem)
        plan = plan_for(problem, self._planning, measurer, previous, memory_limit, lists_candidates=lists_candidates)
        self._note_engine(problem, plan)
        return plan

    def _engine_of_first(self, problem: ConvolutionProblem) -> Engine | None:
        """Return the engine of the first shape of this kind of problem, for policy "once"."""
        return self._first.get(_kind(problem)) if self.policy == "once" else None

    def _note_engine(self, problem: ConvolutionProblem, plan: Plan) -> None:
        is_guess = self.prefer == "autotune" and Freeze.is_open()  # to be measured when the freeze has ended
        if plan.engine is not None and not is_guess:
            self._first.setdefault(_kind(problem), plan.engine)


def operands_of(request: OperationRequest, problem: ConvolutionProblem) -> list[Operand]:
    """Return the operands of a problem under the caller's names."""
    present = [name for name in (*request.names, "bias") if name in request.call.specs]
    return [Operand(name, spec, name == "out") for name, spec in zip([*present, "out"], problem.specs, strict=True)]


def _kind(problem: ConvolutionProblem) -> tuple[str, bool, str | None]:
    """Return the kind of graph. Within a kind, an engine has the same index for all problems."""
    return problem.operation, problem.bias is None, problem.activation


def check_forced(given: object) -> None:
    """Raise TypeError unless a checked `algorithm` is None, a name, an Engine or the plan of a convolution."""
    if not (given is None or isinstance(given, str | Engine | Plan)):
        raise TypeError(f"algorithm must be a v7 algorithm's name, a cudnnpy.Engine or a Plan; got {error_repr(given)}")
    if isinstance(given, Plan) and given.problem.kind != "convolution":
        raise TypeError("algorithm must be the plan of a convolution; got the plan of a graph")
