"""Convolution: forward, backward_data, backward_filter and backward_bias on device arrays of any library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from cudnnpy._arrays.array_libraries import library_of
from cudnnpy._arrays.device_array import current_device
from cudnnpy._checks.call_arguments import shape_argument
from cudnnpy._checks.option_values import check_option, error_repr
from cudnnpy._convolution.options import ConvolutionOptions
from cudnnpy._convolution.sizes import Geometry, output_shape_in_layout
from cudnnpy._convolution.specification import INPUTS, OPERATIONS, planning_options, result_in_layout
from cudnnpy._core.driver import check_not_capturing
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import TensorSpec, byte_extent, canonical_spec, result_strides
from cudnnpy._launch.dispatch import ArrayOperation, Call, Specs
from cudnnpy._launch.operands import check_no_overlaps
from cudnnpy._launch.program import Operand, Program, program_for_empty_input, with_conversion_copies
from cudnnpy._launch.steps import Executable, ScratchBuffer, with_implicit_operands, zero_fill
from cudnnpy._layers.arguments import OperationRequest, problem_of_call, specs_and_device
from cudnnpy._layers.lowerings.convolution_candidates import ConvolutionProblem
from cudnnpy._layers.lowerings.sums import bias_gradient
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.choice import Engine
from cudnnpy._planning.chooser import OtherGpu
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.plan import Plan
from cudnnpy._planning.selection import candidates_on, plan_for, plan_on
from cudnnpy.handle import on_device
from cudnnpy.typing import Array, ArrayT, ConvolutionActivation, ConvolutionOperation, ElementName, Shape, Stream

if TYPE_CHECKING:
    from cudnnpy.tuning.profiles.device_profile import DeviceProfile

# The result of setting a call up: the plan, or the program around it, and the specs of new results.
Prepared: TypeAlias = tuple[Plan | Program, list[TensorSpec]]


class Convolution(ConvolutionOptions, ArrayOperation):
    """A convolution over 1, 2 or 3 spatial axes and its gradients.

    An object has the geometry and the choice of algorithms, and no weights. It is immutable, and may be shared by threads.

    Parameters
    ----------
    padding : int, tuple or {"valid", "same", "half", "full"}
        An int; or one int or one (before, after) pair for each spatial axis; or a name: "valid" is 0, "half" is half of the
        dilated filter, "full" is the dilated filter less 1, and "same" gives outputs of size ceil(input / stride).
    stride, dilation : int or tuple of ints
        An int, or one int for each spatial axis.
    groups : int
        The number of groups of channels; C groups make a depthwise convolution.
    mode : {"cross_correlation", "convolution"}
        "convolution" flips the filter.
    layout : {"NCHW", "NHWC", "NCW", "NWC", "NCDHW", "NDHWC"}
        The order of the axes of the arrays. "NCHW" is (N, C, spatial...) with filters (K, C / groups, spatial...), "NHWC" is
        (N, spatial..., C) with filters (K, spatial..., C / groups), both for any number of spatial axes; the other names
        are checked against the number of axes. A filter (K, C, R, S) is transposed for "NHWC" by the caller,
        `w.transpose(0, 2, 3, 1)`: where the sizes are equal, no check can tell the two orders apart.
        Any memory format is accepted: strides may be channels last with "NCHW".
    compute_dtype : dtype-like, optional
        The dtype in which products are accumulated: by default float64 for float64, int32 for int8, and float32 for the others.
    prefer : {"fastest", "limited_workspace", "no_workspace", "autotune"}
        How an algorithm is chosen. "fastest" takes the default choice: the first candidate of the ranking that runs. The
        ranking has the candidates that were fast for near problems measured on such a GPU, then the proposals of cuDNN's
        heuristics. "limited_workspace" takes the first within `workspace_limit`, "no_workspace" the first that needs no
        workspace. "autotune" runs and times the candidates and takes the fastest, which is never slower than the default
        choice.
    workspace_limit : int, optional
        The maximum workspace in bytes. By default 1 GiB for "limited_workspace", and the free memory of the device for
        "fastest" and "autotune". By default "autotune" measures no candidate that needs more than a quarter of the device's
        memory, except the default choice.
    deterministic : bool
        Whether every result must have the same bits every time.
    tf32 : bool
        Whether float32 may be rounded to tf32 for the tensor cores.
    algorithm : str, Engine or Plan, optional
        Forces one algorithm: the short name of a v7 algorithm ("implicit_gemm", "winograd_nonfused", "0" for ALGO_0, or
        Theano's names), an engine of the graph API, or a plan.
    policy : {"on_shape_change", "once"}
        "on_shape_change" chooses for every new shape; "once" reuses the engine that was chosen for the first shape of an
        operation as long as it can run later ones.
    tune_seconds : float
        The time limit of "autotune" for one problem, in seconds, planning included; then it takes the fastest candidate so
        far.

    Raises
    ------
    TypeError, ValueError
        An option is of another type, or out of range.

    Notes
    -----
    Arrays are arrays of PyTorch, CuPy, JAX, Numba or `cudnnpy.to_device`, in float16, bfloat16, float32 or float64; forward
    also takes int8 and float8 where the GPU supports them. Results are in the library, the dtype (int32 for int8) and the
    memory format of the first array, or in `out`. Work is queued on `stream`, by default the library's current stream. The
    first call with a signature plans; later calls launch.

    A batch of 0 gives empty results, and gradients with respect to w and bias of 0 (or beta * out). With 0 channels in x and
    w the result is activation(beta * out + bias). Other sizes are 1 or more.

    Every operation raises TypeError and ValueError for arguments that do not fit, before any C call, NoAlgorithmError (with
    a table of the rejection reasons) if no algorithm can run, CaptureError for a call that has to plan during a stream
    capture, MemoryError if the device lacks memory, and StatusError if cuDNN fails.

    `cudnnpy.reference` takes NumPy arrays, accumulates in float64 (int8 exactly) and rounds once. It checks the options on
    the choice of an algorithm, which have no effect there, and ignores `stream`.

    Examples
    --------
    >>> import numpy as np
    >>> from cudnnpy import reference
    >>> x, w = np.ones((8, 3, 32, 32), np.float32), np.ones((16, 3, 3, 3), np.float32)
    >>> conv = reference.Convolution(padding=1)  # cudnnpy.Convolution on a GPU
    >>> y = conv.forward(x, w)
    >>> y.shape
    (8, 16, 32, 32)
    >>> conv.backward_data(y, w, x.shape).shape
    (8, 3, 32, 32)
    """

    uses_suggested_format = True  # for a result, if the memory formats of x and w are ambiguous (dispatch.Owner)

    _planning: PlanningOptions
    # For policy "once": the engine of the first shape, by kind of graph, since engine indices differ between kinds.
    _first: dict[tuple[str, bool, str | None], Engine]

    def _derived(self) -> dict[str, Any]:
        check_forced(self.algorithm)
        return {**super()._derived(), "_planning": planning_options(self), "_first": {}}

    def forward(
        self,
        x: ArrayT,
        w: Array,
        bias: Array | None = None,
        activation: ConvolutionActivation | None = None,
        out: ArrayT | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Compute activation(alpha * convolution(x, w) + beta * out + bias).

        C functions: cudnnBackendExecute; for a forced v7 algorithm, cudnnConvolutionForward.

        Parameters
        ----------
        x : array
            (N, C, spatial...), in float16, bfloat16, float32, float64, int8 or float8.
        w : array
            (K, C / groups, spatial...), of x's dtype.
        bias : array, optional
            (K,), packed, of the result's dtype; float32 for results of 8 bits.
        activation : {"identity", "relu", "sigmoid", "tanh", "elu", "swish"}, optional
            Fused into the convolution, as the bias is, if an engine can.
        out : array, optional
            The result, (N, K, spatial...), of x's dtype; for int8 also int32 or float32, for float8 also float32, float16
            or bfloat16.
        alpha, beta : float
            Factors of the convolution and of `out`; out is not read if beta is 0.
        stream : stream, optional
            Where the work is queued.

        Returns
        -------
        array
            `out`, or a new array of x's library, dtype (int32 for int8) and memory format.
        """
        implementation, names, inputs = type(self)._forward, ("x", "w", "bias", "out"), (x, w, bias)
        return self._run("forward", self, implementation, names, inputs, (out,), stream, activation, alpha, beta)

    def backward_data(
        self,
        dy: ArrayT,
        w: Array,
        x_shape: Shape | None = None,
        out: ArrayT | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Compute alpha * dx + beta * out, with the gradient dx with respect to x.

        C functions: cudnnBackendExecute; for a forced v7 algorithm, cudnnConvolutionBackwardData.

        Parameters
        ----------
        dy : array
            The gradient with respect to forward's result, (N, K, spatial...), in float16, bfloat16, float32 or float64.
        w : array
            As for `forward`, of dy's dtype.
        x_shape : tuple of ints, optional
            The shape of x, in the arrays' axis order. May be None if `out` is given.
        out, alpha, beta, stream
            As for `forward`.

        Returns
        -------
        array
            `out`, or a new array of shape x_shape, of dy's library, dtype and memory format.
        """
        shape = x_shape if isinstance(x_shape, tuple) and x_shape else shape_argument("x_shape", x_shape)
        implementation, names = type(self)._backward_data, ("dy", "w", "out")
        return self._run("backward_data", self, implementation, names, (dy, w), (out,), stream, alpha, beta, *shape)

    def backward_filter(
        self,
        dy: ArrayT,
        x: Array,
        w_shape: Shape | None = None,
        out: ArrayT | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Compute alpha * dw + beta * out, with the gradient dw with respect to w.

        C functions: cudnnBackendExecute; for a forced v7 algorithm, cudnnConvolutionBackwardFilter.

        Parameters
        ----------
        dy : array
            As for `backward_data`.
        x : array
            As for `forward`, of dy's dtype.
        w_shape : tuple of ints, optional
            The shape of w, in the arrays' axis order. May be None if `out` is given.
        out, alpha, beta, stream
            As for `forward`.

        Returns
        -------
        array
            `out`, or a new array of shape w_shape, of dy's library, dtype and memory format.
        """
        shape = w_shape if isinstance(w_shape, tuple) and w_shape else shape_argument("w_shape", w_shape)
        implementation, names = type(self)._backward_filter, ("dy", "x", "out")
        return self._run("backward_filter", self, implementation, names, (dy, x), (out,), stream, alpha, beta, *shape)

    def backward_bias(
        self,
        dy: ArrayT,
        out: ArrayT | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Compute alpha * db + beta * out, with db the sum of dy over all axes except the channels.

        This is a reduction (cudnnBackendExecute or cudnnReduceTensor): of the options, only `layout`, `deterministic` and
        `prefer="autotune"` with `tune_seconds` apply.

        Parameters
        ----------
        dy : array
            As for `backward_data`; sizes other than the batch are 1 or more.
        out, alpha, beta, stream
            As for `forward`; out is packed.

        Returns
        -------
        array
            `out`, or a new array of shape (K,), of dy's library and dtype.
        """
        implementation, names = type(self)._backward_bias, ("dy", "out")
        return self._run("backward_bias", self, implementation, names, (dy,), (out,), stream, alpha, beta)

    def output_shape(self, x_shape: Shape, w_shape: Shape) -> tuple[int, ...]:
        """The shape of forward's result for the shapes of x and w, all in the arrays' axis order.

        Each spatial size is floor((x + padding before + padding after - dilation * (w - 1) - 1) / stride) + 1. Raises
        TypeError and ValueError for shapes that do not fit together.
        """
        return output_shape_in_layout(self, x_shape, w_shape)

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
        if isinstance(device, OtherGpu):
            return plan_on(device, problem, self._planning)
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

        The parameters are the same as for `plan`. Of the engines that are compiled at run time, only the first three are
        compiled, and more until one can be used.

        Returns
        -------
        list of Candidate
            All candidates. `rejection_reason` is "" for a candidate that can be used.
        """
        problem = self._problem(operation, first, second, shape, bias, activation, out, alpha, beta, device)
        return candidates_on(device, problem, self._planning)

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
        problem = problem_of_call(self, OperationRequest(call, operation, names, activation, alpha, beta, shape))
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
        problem = problem_of_call(self, request)
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
        kind = problem.operation, problem.bias is None, problem.activation  # within it an index means the same engine
        plan = plan_for(
            problem,
            self._planning,
            stream=stream,
            preferred_engine=self._first.get(kind) if self.policy == "once" else None,
            memory_limit=memory_limit,
            lists_candidates=lists_candidates,
        )
        if plan.engine is not None and not plan._is_provisional:
            self._first.setdefault(kind, plan.engine)
        return plan


def operands_of(request: OperationRequest, problem: ConvolutionProblem) -> list[Operand]:
    """Return the operands of a problem under the caller's names."""
    present = [name for name in (*request.names, "bias") if name in request.call.specs]
    return [Operand(name, spec, name == "out") for name, spec in zip([*present, "out"], problem.specs, strict=True)]


def check_forced(given: object) -> None:
    """Raise TypeError unless a checked `algorithm` is None, a name, an Engine or the plan of a convolution."""
    if not (given is None or isinstance(given, str | Engine | Plan)):
        raise TypeError(f"algorithm must be a v7 algorithm's name, a cudnnpy.Engine or a Plan; got {error_repr(given)}")
    if isinstance(given, Plan) and given.problem.kind != "convolution":
        raise TypeError("algorithm must be the plan of a convolution; got the plan of a graph")


# x and w with 0 channels, whose sums are 0: a plan for zeros in scratch memory adds bias and activation


def zeros_for(y: TensorSpec, dtype: ElementName) -> tuple[TensorSpec, TensorSpec, Geometry]:
    """Return x, w and geometry of a convolution of zeros with y's shape, with a filter of size 1 and 16 bytes of channels."""
    channels, taps = 16 // dtype_of(dtype).itemsize, (1,) * len(y.shape[2:])
    shapes = (y.shape[0], channels, *y.shape[2:]), (y.shape[1], channels, *taps)
    x, w = (canonical_spec(TensorSpec(shape, dtype, result_strides(shape, y)), "zeros") for shape in shapes)
    none = (0,) * len(taps)
    return x, w, Geometry(none, none, taps, taps)


def program_on_zeros(
    name: str,
    device: int,
    operands: Sequence[Operand],
    zeros: tuple[TensorSpec, TensorSpec],
    executable: Executable,
    plan: Plan,
) -> Program:
    """Return the program on `operands` whose executable takes zeros in scratch memory in place of the first two, x and w."""
    buffers = [ScratchBuffer(size, zero_fill(size)) for size in map(byte_extent, zeros)]
    sources = [*buffers, *range(2, len(operands))]
    whole = with_implicit_operands(executable, sources, len(operands))
    return with_conversion_copies(name, device, operands, whole, [one.spec for one in operands], plan=plan)
