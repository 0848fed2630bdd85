"""ConvolutionTranspose: the gradient of a convolution with respect to its input, as a layer; any output_padding."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from cudnnpy._checks.call_arguments import gradient_shape, shape_argument
from cudnnpy._checks.option_values import check_shape, expand_per_axis, in_array_order, is_channels_last
from cudnnpy._convolution.options import ConvolutionOptions, TransposeOptions
from cudnnpy._convolution.sizes import (
    output_shape,
    transposed_geometry,
    transposed_input_shape,
    transposed_output_shape,
)
from cudnnpy._convolution.specification import result_in_layout
from cudnnpy._core.layouts import TensorSpec, byte_extent, canonical_spec, in_layout, result_strides, to_logical
from cudnnpy._launch.dispatch import ArrayOperation, Call, Specs
from cudnnpy._launch.operands import check_no_overlaps
from cudnnpy._launch.program import Operand, Program, StepBuilder
from cudnnpy._layers.arguments import OperationRequest, logical_spec, problem_of_call
from cudnnpy._layers.convolution import Convolution, Prepared, check_forced, operands_of
from cudnnpy._layers.lowerings.convolution_candidates import ConvolutionProblem
from cudnnpy._layers.lowerings.sums import bias_gradient
from cudnnpy.typing import Array, ArrayT, ConvolutionActivation, Shape, Stream

# The names of the arrays in place of the two inputs of each operation of the convolution that is transposed.
INPUT_NAMES = {"forward": ("dy", "w"), "backward_data": ("x", "w"), "backward_filter": ("x", "dy")}


class ConvolutionTranspose(TransposeOptions, ArrayOperation):
    """The transpose of a `Convolution` with the same options, and its gradients.

    forward is the convolution's backward_data, and backward_data its forward. Filters are the filters of the convolution that
    is transposed: (C_in, C_out / groups, spatial...), or with layout "NHWC" (C_in, spatial..., C_out / groups). Each spatial
    size of the output is

        (x - 1) * stride - padding before - padding after + dilation * (w - 1) + 1 + output_padding

    Parameters
    ----------
    padding : int, tuple or {"valid", "same", "half", "full"}
        As for `Convolution`; it crops the output. "same" gives outputs of size x * stride, or of the dilated filter if that
        is larger.
    output_padding : int or tuple of ints
        The number of elements added at the end of each spatial axis of the output, less than the stride or than the
        dilation. Below the stride, it selects one of the sizes that the convolution maps to x's.
    stride, dilation, groups, mode, layout, compute_dtype, prefer, workspace_limit, deterministic, tf32, algorithm, policy
        As for `Convolution`.
    tune_seconds : float
        As for `Convolution`.

    Raises
    ------
    TypeError, ValueError
        An option is of another type, or out of range.

    Notes
    -----
    Arrays, streams and errors are as for `Convolution`. A batch of 0 gives empty results; other sizes are 1 or more. If
    `output_padding` reaches the stride, one of the tensors is copied to scratch memory, which `workspace_limit` does not
    count.

    Examples
    --------
    >>> import numpy as np
    >>> from cudnnpy import reference
    >>> x, w = np.ones((1, 16, 8, 8), np.float32), np.ones((16, 4, 2, 2), np.float32)  # w: (C_in, C_out, R, S)
    >>> reference.ConvolutionTranspose(stride=2).forward(x, w).shape
    (1, 4, 16, 16)
    """

    uses_suggested_format = True  # as for Convolution

    _convolutions: dict[Any, Convolution]  # which it transposes, by their padding

    def _derived(self) -> dict[str, Any]:
        check_forced(self.algorithm)
        return {**super()._derived(), "_convolutions": {}}

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
        """Compute activation(alpha * transposed convolution(x, w) + beta * out + bias).

        C functions: cudnnBackendExecute; for a forced v7 algorithm, cudnnConvolutionBackwardData.

        Parameters
        ----------
        x : array
            (N, C_in, spatial...), in float16, bfloat16, float32 or float64.
        w : array
            (C_in, C_out / groups, spatial...), of x's dtype.
        bias : array, optional
            (C_out,), packed, of x's dtype.
        activation : {"identity", "relu", "sigmoid", "tanh", "elu", "swish"}, optional
            Fused into the convolution, as the bias is, if an engine can.
        out : array, optional
            The result, (N, C_out, spatial...), of x's dtype.
        alpha, beta : float
            Factors of the convolution and of `out`; out is not read if beta is 0.
        stream : stream, optional
            Where the work is queued.

        Returns
        -------
        array
            `out`, or a new array of x's library, dtype and memory format.
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
        """Compute alpha * dx + beta * out; the gradient dx with respect to x is the convolution of dy with w.

        C functions: cudnnBackendExecute; for a forced v7 algorithm, cudnnConvolutionForward.

        Parameters
        ----------
        dy : array
            The gradient with respect to forward's result, (N, C_out, spatial...).
        w : array
            As for `forward`, of dy's dtype.
        x_shape : tuple of ints, optional
            The shape of x, in the arrays' axis order; by default it follows from dy and w.
        out, alpha, beta, stream
            As for `forward`.

        Returns
        -------
        array
            `out`, or a new array of x's shape, of dy's library, dtype and memory format.
        """
        shape = x_shape if isinstance(x_shape, tuple) and x_shape else shape_argument("x_shape", x_shape)
        implementation, names = type(self)._backward_data, ("dy", "w", "out")
        return self._run("backward_data", self, implementation, names, (dy, w), (out,), stream, alpha, beta, *shape)

    def backward_filter(
        self,
        dy: Array,
        x: ArrayT,
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
            `out`, or a new array of shape w_shape, of x's library, dtype and memory format.
        """
        shape = w_shape if isinstance(w_shape, tuple) and w_shape else shape_argument("w_shape", w_shape)
        # In the order of the operands: x is the gradient with respect to the result of the convolution that is transposed.
        implementation, names = type(self)._backward_filter, ("x", "dy", "out")
        return self._run("backward_filter", self, implementation, names, (x, dy), (out,), stream, alpha, beta, *shape)

    def backward_bias(
        self,
        dy: ArrayT,
        out: ArrayT | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Compute alpha * db + beta * out, with db, of shape (C_out,), the sum of dy over all axes except the channels.

        Parameters and result are as for `Convolution.backward_bias`.
        """
        implementation, names = type(self)._backward_bias, ("dy", "out")
        return self._run("backward_bias", self, implementation, names, (dy,), (out,), stream, alpha, beta)

    def output_shape(self, x_shape: Shape, w_shape: Shape) -> tuple[int, ...]:
        """The shape of forward's result for the shapes of x and w, all in the arrays' axis order.

        Raises TypeError and ValueError for shapes that do not fit together.
        """
        return transposed_output_shape(self, x_shape, w_shape)

    # Set-up, once for each call signature

    def _forward(self, call: Call, activation: str | None, alpha: float, beta: float) -> Prepared:
        w_shape = call.specs["w"].shape
        y_shape = self.output_shape(call.specs["x"].shape, w_shape)
        return self._prepare(call, w_shape, "backward_data", activation, alpha, beta, y_shape)

    def _backward_data(self, call: Call, alpha: float, beta: float, *x_shape: int) -> Prepared:
        dy_shape, w_shape, out = call.specs["dy"].shape, call.specs["w"].shape, call.specs.get("out")
        if not x_shape:
            x_shape = transposed_input_shape(self, dy_shape, w_shape) if out is None else out.shape
        self._check_dy(dy_shape, check_shape("x_shape", x_shape, len(w_shape), low=0), w_shape)
        return self._prepare(call, w_shape, "forward", None, alpha, beta)

    def _backward_filter(self, call: Call, alpha: float, beta: float, *w_shape: int) -> Prepared:
        x_shape, out = call.specs["x"].shape, call.specs.get("out")
        w_shape = check_shape("w_shape", gradient_shape("w_shape", w_shape or None, out and out.shape), len(x_shape))
        self._check_dy(call.specs["dy"].shape, x_shape, w_shape)
        return self._prepare(call, w_shape, "backward_filter", None, alpha, beta, w_shape)

    def _backward_bias(self, call: Call, alpha: float, beta: float) -> tuple[Program, list[TensorSpec]]:
        return bias_gradient(self, call, alpha, beta)

    def _prepare(self, call: Call, w_shape: tuple[int, ...], operation: str, *arguments: Any) -> Prepared:
        """Plan an operation of the convolution that is transposed. `arguments` are the last of an OperationRequest."""
        convolution, surplus = self._transposed(w_shape), surplus_of(self, len(w_shape) - 2)
        request = OperationRequest(call, operation, INPUT_NAMES[operation], *arguments)
        return prepare_extended(convolution, surplus, request) if any(surplus) else convolution._prepare(request)

    def _transposed(self, w_shape: tuple[int, ...]) -> Convolution:
        """Return the convolution that this object transposes for filters of a shape, with explicit padding."""
        spatial, _ = transposed_geometry(self, to_logical(w_shape, is_channels_last(self.layout))[2:])
        padding = tuple(zip(spatial.pre_padding, spatial.post_padding, strict=True))
        found = self._convolutions.get(padding)
        if found is None:
            options = {option.name: getattr(self, option.name) for option in fields(ConvolutionOptions)}
            found = self._convolutions[padding] = Convolution(**{**options, "padding": padding})
        return found

    def _check_dy(self, dy_shape: tuple[int, ...], x_shape: tuple[int, ...], w_shape: tuple[int, ...]) -> None:
        expected = self.output_shape(x_shape, w_shape)
        if dy_shape != expected:
            raise ValueError(
                f"dy must have shape {expected}, the result's for x of shape {x_shape}; got shape {dy_shape}"
            )


# output_padding >= stride: the windows outnumber the elements of x. Such a transposed convolution of x equals that of x
# extended by zeros to the number of windows. So x is copied to scratch memory with zeros after it; where x is the result, the
# elements after it are dropped.


def extended_problem(
    convolution: Convolution, surplus: tuple[int, ...], request: OperationRequest
) -> tuple[ConvolutionProblem, list[Operand]]:
    """Return the problem with extended x of an operation of a convolution, and its operands, whose x is not extended.

    x is the first input or, of "forward", the result. `surplus` is the number of added zeros on each spatial axis.
    """
    call, is_forward = request.call, request.operation == "forward"
    surplus, layout, specs = (0, 0, *surplus), convolution.layout, Specs(call.specs)
    name = "out" if is_forward else request.names[0]
    x = specs.get(name)
    if x is not None:
        x = canonical_spec(logical_spec(x, name, layout), name)
        if is_forward:
            dy, w = (logical_spec(specs[name], name, layout).shape for name in request.names)
            expected = _less(output_shape(convolution, dy, w), surplus)
            if x.shape != expected:
                expected, given = (in_array_order(shape, layout) for shape in (expected, x.shape))
                raise ValueError(f"out must have shape {expected}; got shape {given}")
        extended_shape = tuple(size + more for size, more in zip(x.shape, surplus, strict=True))
        spec = TensorSpec(extended_shape, x.dtype, result_strides(extended_shape, x))
        specs[name] = in_layout(spec, is_channels_last(layout))
    problem = problem_of_call(convolution, request._replace(call=call._replace(specs=specs)))
    at = len(problem.specs) - 1 if is_forward else 0
    if x is None:
        smaller = _less(problem.specs[at].shape, surplus)
        x = TensorSpec(smaller, problem.specs[at].dtype, result_strides(smaller, problem.specs[at]))
    operands = operands_of(request, problem)
    operands[at] = operands[at]._replace(spec=x)
    return problem, operands


def prepare_extended(
    convolution: Convolution, surplus: tuple[int, ...], request: OperationRequest
) -> tuple[Program, list[TensorSpec]]:
    """Plan an operation of a convolution with extended x, as Convolution._prepare does."""
    (problem, operands), call = extended_problem(convolution, surplus, request), request.call
    at = len(problem.specs) - 1 if request.operation == "forward" else 0
    x = operands[at].spec
    check_no_overlaps(call, operands)
    results = [result_in_layout(convolution, operands[-1].spec, problem.x, problem.w, problem.y)]
    if problem.is_empty:
        return convolution._without_elements(call, problem, operands), results
    # the problem's plan, on an extended copy of x in scratch memory
    plan = convolution._plan_in(call, problem, byte_extent(problem.specs[at]))
    builder = StepBuilder({operand.name: operand.spec for operand in operands})
    tensors = [*builder.operands.values()]
    own, extended = tensors[at], builder.scratch(problem.specs[at])
    part = extended._replace(spec=extended.spec._replace(shape=x.shape))  # x's elements of `extended`
    if not operands[at].is_result:
        builder.clear(extended)
    if not operands[at].is_result or problem.beta:
        builder.copy(own, part)
    builder.add(plan.executable, *tensors[:at], extended, *tensors[at + 1 :])
    if operands[at].is_result:
        builder.copy(part, own)
    return builder.program(plan.name, call.device, operands, plan), results


def _less(shape: tuple[int, ...], surplus: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size - more for size, more in zip(shape, surplus, strict=True))


def surplus_of(options: TransposeOptions, rank: int) -> tuple[int, ...]:
    """Return the number of windows beyond the size of x, on each spatial axis."""
    extra, stride = (expand_per_axis(name, getattr(options, name), rank) for name in ("output_padding", "stride"))
    return tuple(more // step for more, step in zip(extra, stride, strict=True))
