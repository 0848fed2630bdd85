"""Convolution: forward, backward_data, backward_filter and backward_bias on device arrays of any library."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cudnnpy._core.layouts import TensorSpec, from_logical, to_logical
from cudnnpy._core.validation import check_option, check_shape, check_spec
from cudnnpy._memory.arrays import library_of, read, spec_of
from cudnnpy._memory.device_array import current_device
from cudnnpy._planning.autotune import Tuner
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.plan import Plan
from cudnnpy._runtime.dispatch import refuse_capture
from cudnnpy.convolution import problem as ask
from cudnnpy.convolution.candidates import ConvolutionProblem
from cudnnpy.convolution.layer import Layer, shape_argument
from cudnnpy.convolution.operation import Operation
from cudnnpy.convolution.problem import INPUTS, OPERATIONS
from cudnnpy.handle import Handle, on_device


@dataclass(frozen=True, kw_only=True, repr=False)
class Convolution(Layer):
    """A convolution's geometry and how its algorithms are chosen; no weights, no state that a result depends on.

    Parameters (all by keyword)

    - `padding`: an int, one int for each spatial axis, a (before, after) pair for each, or "valid" (0), "half"
      (half the dilated filter), "full" (the dilated filter less 1), "same" (output size ceil(input / stride)).
    - `stride`, `dilation`: an int, or one for each spatial axis. `groups`: of channels; C of them is depthwise.
    - `mode`: "cross_correlation", or "convolution", which flips the filter.
    - `layout`: "NCHW" (also for arrays whose strides are channels last), or "NHWC", where the arrays' own axis order
      is (N, spatial..., C) and filters' (K, spatial..., C / groups). NCW, NWC, NCDHW, NDHWC are checked against the rank.
    - `compute_dtype`: what products are summed in; float32 by default, float64 for float64, int32 for int8.
    - `prefer`: "fastest" (cuDNN's first guess that runs), "limited_workspace" (its first within `workspace_limit`,
      1 GiB by default), "no_workspace" (its first that needs none), "autotune" (all are run and timed; the fastest).
    - `workspace_limit`: bytes; None for the preference's own.
    - `deterministic`: only algorithms that give the same bits every time. `tf32`: whether float32 may be rounded to
      tf32 for the tensor cores.
    - `algorithm`: forces one: a v7 algorithm's short name ("implicit_gemm", "winograd_nonfused", "0" for ALGO_0, or
      Theano's names), a cudnnpy.Engine(index, knobs), or a Plan.
    - `policy`: "on_shape_change" chooses for every new shape; "once" keeps the engine chosen for the first shape of an
      operation as long as it can run later ones.
    - `tune_seconds`: how long autotune may take for one problem; the best so far is taken then.

    Arrays are device arrays of PyTorch, CuPy, JAX, Numba, or cudnnpy.to_device; results come in the library of the first
    and in its memory order, with its element type (int32 for int8), or in `out`. One to three spatial axes; float16,
    bfloat16, float32, float64; forward also int8 (to int32, float32 or int8) and float8 where the GPU has them.
    Work goes to the library's current stream, or to `stream`. The first call with a signature plans; later ones launch.
    A batch of 0 gives empty results, and gradients to w and bias of 0 (or beta * out); with 0 channels in x and w the
    result is activation(beta * out + bias).

    Raises TypeError and ValueError for bad arguments before any C call, NoAlgorithmError (with a table of why) where
    nothing can run, CaptureError for an unplanned call during a graph capture, StatusError if cuDNN fails.
    """

    _operation: Operation = field(init=False, repr=False, compare=False)

    def _checked(self) -> dict[str, Any]:
        found = super()._checked()
        return {**found, "_operation": Operation(found["options"])}

    def forward(
        self,
        x: Any,
        w: Any,
        bias: Any = None,
        activation: str | None = None,
        out: Any = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Any = None,
    ) -> Any:
        """activation(alpha * convolution(x, w) + beta * out + bias).

        x (N, C, spatial...), w (K, C / groups, spatial...), bias (K,); returns (N, K, spatial...). `activation`: relu,
        sigmoid, tanh, elu, swish, identity. Bias and activation are fused into the convolution where cuDNN can.
        C functions: cudnnBackendExecute, or cudnnConvolutionForward for a forced v7 algorithm.
        """
        return self._operation.run("forward", x, w, None, bias, activation, out, alpha, beta, stream)

    def backward_data(
        self,
        dy: Any,
        w: Any,
        x_shape: Any = None,
        out: Any = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Any = None,
    ) -> Any:
        """alpha * (the gradient to x) + beta * out. `x_shape` is x's, in the arrays' axis order; `out` may stand for it."""
        shape = x_shape if isinstance(x_shape, tuple) and x_shape else shape_argument("x_shape", x_shape)
        return self._operation.run("backward_data", dy, w, shape, None, None, out, alpha, beta, stream)

    def backward_filter(
        self,
        dy: Any,
        x: Any,
        w_shape: Any = None,
        out: Any = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Any = None,
    ) -> Any:
        """alpha * (the gradient to w) + beta * out. `w_shape` is w's, in the arrays' axis order; `out` may stand for it."""
        shape = w_shape if isinstance(w_shape, tuple) and w_shape else shape_argument("w_shape", w_shape)
        return self._operation.run("backward_filter", dy, x, shape, None, None, out, alpha, beta, stream)

    def backward_bias(self, dy: Any, out: Any = None, alpha: float = 1.0, beta: float = 0.0, stream: Any = None) -> Any:
        """alpha * (dy summed over all axes but the channels) + beta * out; shape (K,).

        A reduction, and none of cuDNN's convolution algorithms: `prefer`, `workspace_limit` and `algorithm` do not apply;
        `deterministic` does.
        """
        return self._operation.run_bias(dy, out, alpha, beta, stream)

    def output_shape(self, x_shape: Any, w_shape: Any) -> tuple[int, ...]:
        """The shape of y for the shapes of x and w, in the arrays' axis order. Nothing is run."""
        last = self.options.channels_last
        x, w = check_shape("x_shape", x_shape, low=0), check_shape("w_shape", w_shape, low=0)
        logical = ask.output_shape(self.options, to_logical(x, last), to_logical(w, last))
        return from_logical(logical, last)

    def plan(
        self,
        operation: str,
        first: Any,
        second: Any,
        shape: Any = None,
        *,
        bias: Any = None,
        activation: str | None = None,
        out: Any = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        device: int | None = None,
    ) -> Plan:
        """What would run, ready to be executed with raw addresses: plan("forward", x, w).

        plan("backward_data", dy, w, x_shape) and plan("backward_filter", dy, x, w_shape) likewise; with a bias or an
        activation the former is a transposed convolution's forward. Tensors are arrays, or
        cudnnpy.TensorSpec(shape, dtype, strides=None, alignment=16) for planning without memory; `device` is then the
        ordinal (the current device by default). It plans anew each time, and is not remembered: keep the plan. Refused
        with CaptureError while a stream is captured into a CUDA graph, and with ValueError for tensors without elements,
        for which nothing is to be planned (the operations themselves take them).
        """
        problem = self._problem(operation, first, second, shape, bias, activation, out, alpha, beta, device)
        arrays = [array for array in (first, second, bias) if array is not None]
        real = not any(isinstance(array, TensorSpec) for array in (*arrays, out))
        inputs = tuple(read(array, "array")[0] for array in arrays) if real and (out is not None or not beta) else ()
        result = read(out, "out")[0] if inputs and out is not None else None
        with on_device(problem.device):
            stream = library_of(first).current_stream(problem.device) if real else 0
            refuse_capture("plan", stream, "Plan before the capture, and keep the plan")
            return self._operation.choose_plan(problem, Tuner(Handle.default(problem.device), inputs, result, stream))

    def candidates(
        self,
        operation: str,
        first: Any,
        second: Any,
        shape: Any = None,
        *,
        bias: Any = None,
        activation: str | None = None,
        out: Any = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        device: int | None = None,
    ) -> list[Candidate]:
        """Every candidate, usable or not, planned; each one's `refused` says why the options leave it out.

        Arguments as for plan. `cudnnpy.candidates_table(list)` makes a table of them.
        """
        problem = self._problem(operation, first, second, shape, bias, activation, out, alpha, beta, device)
        return self._operation.candidates(problem)

    def _problem(
        self,
        operation: str,
        first: Any,
        second: Any,
        shape: Any,
        bias: Any,
        activation: str | None,
        out: Any,
        alpha: float,
        beta: float,
        device: int | None,
    ) -> ConvolutionProblem:
        check_option("operation", operation, OPERATIONS)
        names = INPUTS[operation]
        devices: dict[str, int] = {}

        def spec(array: Any, name: str) -> TensorSpec | None:
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
        bias, out = spec(bias, "bias"), spec(out, "out")
        ordinals = set(devices.values()) | ({device} if device is not None else set())
        if len(ordinals) > 1:
            raise ValueError(f"device must be the device of the arrays, {devices}; got {device}")
        ordinal = ordinals.pop() if ordinals else current_device()
        problem = self._operation.problem(
            operation,
            given[0],
            given[1],
            shape,
            bias=bias,
            activation=activation,
            out=out,
            alpha=alpha,
            beta=beta,
            device=ordinal,
        )
        if problem.is_empty:
            raise ValueError(f"a planned problem must have elements; got {problem}, for which nothing is computed")
        return problem
