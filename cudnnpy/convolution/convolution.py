"""Convolution: forward, backward_data, backward_filter and backward_bias on device arrays of any library."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cudnnpy._core.layouts import TensorSpec, check_spec, from_logical, to_logical
from cudnnpy._measuring.tuner import Tuner
from cudnnpy._memory.arrays import library_of, read, spec_of
from cudnnpy._memory.device_array import current_device
from cudnnpy._options.checks import check_option, check_shape
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.plan import Plan
from cudnnpy._runtime.dispatch import refuse_capture
from cudnnpy.convolution import problem as ask
from cudnnpy.convolution.candidates import ConvolutionProblem
from cudnnpy.convolution.layer_base import Layer, shape_argument
from cudnnpy.convolution.operation import Operation
from cudnnpy.convolution.problem import INPUTS, OPERATIONS
from cudnnpy.handle import on_device
from cudnnpy.typing import Array, ArrayT, ConvolutionActivation, ConvolutionOperation, Shape, Stream


@dataclass(frozen=True, kw_only=True, repr=False)
class Convolution(Layer):
    """A convolution over 1, 2 or 3 spatial axes and its gradients, on device arrays.

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
        are checked against the number of axes. The order in memory is free: strides may be channels last with "NCHW".
    compute_dtype : dtype-like, optional
        What products are accumulated in: by default float64 for float64, int32 for int8, and float32 for the others.
    prefer : {"fastest", "limited_workspace", "no_workspace", "autotune"}
        How an algorithm is chosen. "fastest" takes the first guess that runs: what was fast for near problems that were
        measured on such a GPU, then the proposals of cuDNN's heuristics. "limited_workspace" takes the first within
        `workspace_limit`, "no_workspace" the first that needs no workspace. "autotune" runs and times the candidates and
        takes the fastest, which is never slower than what "fastest" takes.
    workspace_limit : int, optional
        The most bytes of workspace. By default 1 GiB for "limited_workspace", and the free memory of the device for
        "fastest" and "autotune"; of what needs more than a quarter of the device's memory, "autotune" then measures only
        what "fastest" takes.
    deterministic : bool
        Whether only algorithms are taken that give the same bits every time.
    tf32 : bool
        Whether float32 may be rounded to tf32 for the tensor cores.
    algorithm : str, Engine or Plan, optional
        Forces one algorithm: the short name of a v7 algorithm ("implicit_gemm", "winograd_nonfused", "0" for ALGO_0, or
        Theano's names), an engine of the graph API, or a plan.
    policy : {"on_shape_change", "once"}
        "on_shape_change" chooses for every new shape; "once" keeps the engine that was chosen for the first shape of an
        operation as long as it can run later ones.
    tune_seconds : float
        The most seconds that "autotune" takes for one problem, planning included; then it takes the fastest candidate so
        far.

    Raises
    ------
    TypeError, ValueError
        An option is of another type, or out of range.

    Notes
    -----
    Arrays are those of PyTorch, CuPy, JAX, Numba or `cudnnpy.to_device`, in float16, bfloat16, float32 or float64; forward
    also takes int8 and float8 where the GPU supports them. Results are in the library, the dtype (int32 for int8) and the
    memory order of the first array, or in `out`. Work is queued on `stream`, by default the library's current stream. The
    first call with a signature plans; later calls launch.

    A batch of 0 gives empty results, and gradients with respect to w and bias of 0 (or beta * out). With 0 channels in x and
    w the result is activation(beta * out + bias). Other sizes are 1 or more.

    Every operation raises TypeError and ValueError for arguments that do not fit, before any C call, NoAlgorithmError (with
    a table of the rejection reasons) if no algorithm can run, CaptureError for a call that has to plan during a stream
    capture, MemoryError if the device lacks memory, and StatusError if cuDNN fails.
    """

    _operation: Operation = field(init=False, repr=False, compare=False)

    def _derived(self) -> dict[str, Any]:
        found = super()._derived()
        return {**found, "_operation": Operation(found["options"])}

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
            `out`, or a new array of x's library, dtype (int32 for int8) and memory order.
        """
        return self._operation.run("forward", x, w, None, bias, activation, out, alpha, beta, stream)

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
            `out`, or a new array of shape x_shape, of dy's library, dtype and memory order.
        """
        shape = x_shape if isinstance(x_shape, tuple) and x_shape else shape_argument("x_shape", x_shape)
        return self._operation.run("backward_data", dy, w, shape, None, None, out, alpha, beta, stream)

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
            `out`, or a new array of shape w_shape, of dy's library, dtype and memory order.
        """
        shape = w_shape if isinstance(w_shape, tuple) and w_shape else shape_argument("w_shape", w_shape)
        return self._operation.run("backward_filter", dy, x, shape, None, None, out, alpha, beta, stream)

    def backward_bias(
        self,
        dy: ArrayT,
        out: ArrayT | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Compute alpha * db + beta * out, with db the sum of dy over all axes except the channels.

        This is a reduction (cudnnBackendExecute or cudnnReduceTensor): of the options, only `layout` and `deterministic`
        apply.

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
        return self._operation.run_bias(dy, out, alpha, beta, stream)

    def output_shape(self, x_shape: Shape, w_shape: Shape) -> tuple[int, ...]:
        """The shape of forward's result for the shapes of x and w, all in the arrays' axis order.

        Each spatial size is floor((x + padding before + padding after - dilation * (w - 1) - 1) / stride) + 1. Raises
        TypeError and ValueError for shapes that do not fit together.
        """
        last = self.options.channels_last
        x, w = check_shape("x_shape", x_shape, low=0), check_shape("w_shape", w_shape, low=0)
        logical = ask.output_shape(self.options, to_logical(x, last), to_logical(w, last))
        return from_logical(logical, last)

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
        device: int | None = None,
    ) -> Plan:
        """Choose what an operation would run, as a plan to be executed with raw addresses.

        Each call plans anew, and the plan is not cached: keep it. What autotune measured is in the store, and is not measured
        again.

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
        device : int, optional
            The ordinal, for TensorSpecs: by default the current device. Arrays have their own.

        Returns
        -------
        Plan
            The plan.

        Raises
        ------
        TypeError, ValueError
            Arguments do not fit, or a tensor has no elements, so that there is nothing to plan.
        NoAlgorithmError
            No algorithm can run; the message has the table of candidates.
        CaptureError
            The current stream is being captured into a CUDA graph.
        """
        problem = self._problem(operation, first, second, shape, bias, activation, out, alpha, beta, device)
        arrays = [array for array in (first, second, bias) if array is not None]
        real = not any(isinstance(array, TensorSpec) for array in (*arrays, out))
        with on_device(problem.device):
            stream = library_of(first).current_stream(problem.device) if real else 0
            refuse_capture("plan", stream, "Plan before the capture, and keep the plan")
            return self._operation.choose_plan(problem, Tuner(problem.device, stream))

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
        device: int | None = None,
    ) -> list[Candidate]:
        """Plan every candidate for an operation. `cudnnpy.candidates_table` makes a table of them.

        The parameters are those of `plan`.

        Returns
        -------
        list of Candidate
            All candidates, usable or not; `rejection_reason` has the rejection reason of each.
        """
        problem = self._problem(operation, first, second, shape, bias, activation, out, alpha, beta, device)
        return self._operation.candidates(problem)

    def _problem(
        self,
        operation: ConvolutionOperation,
        first: object,
        second: object,
        shape: Shape | None,
        bias: object,
        activation: ConvolutionActivation | None,
        out: object,
        alpha: float,
        beta: float,
        device: int | None,
    ) -> ConvolutionProblem:
        check_option("operation", operation, OPERATIONS)
        names = INPUTS[operation]
        devices: dict[str, int] = {}

        def spec(array: object, name: str) -> TensorSpec | None:
            if array is None:
                return None
            if isinstance(array, TensorSpec):
                return check_spec(name, array)
            pointer, signature = read(array, name)
            devices[name] = signature[3]
            return spec_of(signature, min(pointer & -pointer, 16))

        given = spec(first, names[0]), spec(second, names[1])
        if given[0] is None or given[1] is None:
            raise TypeError(f"{names[0]} and {names[1]} must be arrays or TensorSpecs; got None")
        bias_spec, out_spec = spec(bias, "bias"), spec(out, "out")
        ordinals = set(devices.values()) | ({device} if device is not None else set())
        if len(ordinals) > 1:
            raise ValueError(f"device must be the device of the arrays, {devices}; got {device}")
        ordinal = ordinals.pop() if ordinals else None
        problem = self._operation.problem(
            operation,
            given[0],
            given[1],
            shape,
            bias=bias_spec,
            activation=activation,
            out=out_spec,
            alpha=alpha,
            beta=beta,
            device=ordinal or 0,
        )
        if problem.is_empty:
            raise ValueError(f"a planned problem must have elements; got {problem}, for which nothing is computed")
        # The driver is asked last, so that bad arguments are reported where there is none.
        return problem if ordinal is not None else problem._replace(device=current_device())
