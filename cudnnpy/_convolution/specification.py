"""ConvolutionSpec: one convolution or gradient on one device, immutable and hashable. Its arguments are checked here.

Everything that affects a result or the choice of a plan is in the ConvolutionSpec or the options. Shapes are logical,
(N, C, spatial...), in every layout; filters are (K, C / groups, spatial...).
"""

from __future__ import annotations

import math
from typing import NamedTuple, get_args

from cudnnpy._checks.call_arguments import check_activation, check_scales
from cudnnpy._checks.option_values import error_repr, in_array_order, is_channels_last
from cudnnpy._convolution.options import ConvolutionOptions, GeometryOptions, compute_dtype_for
from cudnnpy._convolution.sizes import Geometry, geometry, output_shape
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import (
    TensorSpec,
    canonical_spec,
    in_layout,
    is_format_ambiguous,
    normalize_unit_strides,
)
from cudnnpy._planning.known_issues import ProblemTraits
from cudnnpy._planning.options import PlanningOptions
from cudnnpy.typing import ConvolutionMode, ConvolutionOperation, ElementName

OPERATIONS: tuple[ConvolutionOperation, ...] = get_args(ConvolutionOperation)
ACTIVATIONS = ("identity", "relu", "sigmoid", "tanh", "elu", "swish")
OPERANDS = {"forward": ("x", "w", "y"), "backward_data": ("dy", "w", "dx"), "backward_filter": ("dy", "x", "dw")}
INPUTS = {operation: names[:2] for operation, names in OPERANDS.items()}  # in the order of a call's arguments
# Of operands: fields of a ConvolutionSpec.
ROLES = {"x": "x", "dx": "x", "w": "w", "dw": "w", "y": "y", "dy": "y", "bias": "bias"}


def planning_options(options: ConvolutionOptions) -> PlanningOptions:
    """Return the part of the options that the choice of a plan depends on."""
    return PlanningOptions(**options._preferences(), algorithm=options.algorithm)


class ConvolutionSpec(NamedTuple):
    """One operation on one device, with the shape, strides, dtype and alignment of every tensor."""

    operation: str
    x: TensorSpec
    w: TensorSpec
    y: TensorSpec
    geometry: Geometry
    groups: int
    mode: ConvolutionMode
    compute_dtype: ElementName
    alpha: float
    beta: float
    bias: TensorSpec | None
    activation: str | None
    device: int

    @property
    def results(self) -> int:
        """The number of results among the operands; they come last."""
        return 1

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of the tensors in the order of the addresses of a plan; the result is the last."""
        *inputs, result = OPERANDS[self.operation]
        return (*inputs, result) if self.bias is None else (*inputs, "bias", result)

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """The specs of the tensors, in the order of `operands`."""
        return tuple(getattr(self, ROLES[name]) for name in self.operands)

    @property
    def traits(self) -> ProblemTraits:
        """The properties that known issues of engines depend on."""
        return ProblemTraits(
            self.operation,
            ((self.x, self.w, self.y),),
            frozenset(name for name in ("bias" if self.bias else None, self.activation) if name),
            is_aligned=all(spec.alignment >= 16 for spec in self.specs),
            pads_evenly=self.geometry.pre_padding == self.geometry.post_padding,
            alpha=self.alpha,
            beta=self.beta,
        )

    @property
    def axes(self) -> int:
        """The number of spatial axes: 1, 2 or 3."""
        return len(self.w.shape) - 2

    @property
    def is_depthwise(self) -> bool:
        """Whether each of several channels of x has filters of its own."""
        return self.groups == self.x.shape[1] > 1

    @property
    def is_empty(self) -> bool:
        """Whether a tensor is empty, so that there are no products."""
        return any(0 in spec.shape for spec in self.specs)

    @property
    def reduction_length(self) -> int:
        """The number of products that are summed for one element of the result."""
        if self.operation == "forward":
            return math.prod(self.w.shape[1:])
        if self.operation == "backward_data":
            return self.w.shape[0] // self.groups * math.prod(self.w.shape[2:])
        return self.y.shape[0] * math.prod(self.y.shape[2:])


def make_problem(
    options: ConvolutionOptions,
    operation: str,
    x: TensorSpec,
    w: TensorSpec,
    y: TensorSpec,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    bias: TensorSpec | None = None,
    activation: str | None = None,
    device: int = 0,
    called: tuple[str, str] | None = None,
) -> ConvolutionSpec:
    """Return the ConvolutionSpec of logical specs of the three tensors. Raises ValueError or TypeError naming the argument.

    `called` are the names of the two inputs in error messages, if they differ from the operation's.
    """
    expected = output_shape(options, x.shape, w.shape)
    roles = [ROLES[name] for name in OPERANDS[operation]]
    one, two = called or INPUTS[operation]
    names, tensors = dict(zip(roles, (one, two, "out"), strict=True)), {"x": x, "w": w, "y": y}
    first, second, result = (tensors[role] for role in roles)
    if tuple(y.shape) != expected:
        expected, shape = (in_array_order(shape, options.layout) for shape in (expected, y.shape))
        raise ValueError(f"{names['y']} must have shape {expected}; got shape {shape}")
    if first.dtype in ("int32", "uint8", "int64", "bool", "float8_e8m0fnu"):
        raise TypeError(f"{one} must be of a floating-point type, or int8; got {first.dtype}")
    if first.dtype != second.dtype:
        raise TypeError(f"{two} must be {first.dtype}, as {one}; got {second.dtype}")
    x, w, y = (canonical_spec(spec, names[role]) for role, spec in tensors.items())
    _check_result_dtype(operation, first.dtype, result.dtype)
    for name, given in (("bias", bias), ("activation", activation)):
        if given is not None and operation == "backward_filter":
            raise ValueError(f"{name} must be None for {operation}; got {error_repr(given)}")
    _check_bias(bias, result.shape[1], result.dtype)
    check_activation(activation, ACTIVATIONS)
    check_scales(alpha, beta)
    return with_normalized_strides(
        ConvolutionSpec(
            operation,
            x,
            w,
            y,
            geometry(options, x.shape[2:], w.shape[2:]),
            options.groups,
            options.mode,
            compute_dtype_for(options.compute_dtype, first.dtype),
            float(alpha),
            float(beta),
            None if bias is None else bias._replace(strides=(1,)),
            None if activation == "identity" else activation,
            device,
        )
    )


def result_in_layout(options: GeometryOptions, result: TensorSpec, *tensors: TensorSpec) -> TensorSpec:
    """Return a new result in the axis order of the arrays.

    If the memory formats of all tensors are ambiguous, a problem uses the one in which cuDNN is fast; the result gets the
    strides of `layout`.
    """
    if is_format_ambiguous(*tensors):
        (result,) = normalize_unit_strides(result, last=is_channels_last(options.layout))
    return in_layout(result, is_channels_last(options.layout))


def with_normalized_strides(problem: ConvolutionSpec) -> ConvolutionSpec:
    """Return the problem with normalized strides: all tensors in one memory format (layouts.normalize_unit_strides)."""
    x, w, y = normalize_unit_strides(problem.x, problem.w, problem.y, last=dtype_of(problem.x.dtype).itemsize <= 2)
    return problem._replace(x=x, w=w, y=y)


def _check_bias(bias: TensorSpec | None, channels: int, dtype: ElementName) -> None:
    """Raise ValueError or TypeError unless a bias is packed and has shape (channels,) and the dtype of the result."""
    if bias is None:
        return
    if tuple(bias.shape) != (channels,) or bias.strides not in (None, (1,)):
        raise ValueError(
            f"bias must be packed, of shape ({channels},); got shape {tuple(bias.shape)}, strides {bias.strides}"
        )
    wanted = bias_dtype(dtype)
    if bias.dtype != wanted:
        raise TypeError(f"bias must be {wanted}, as the result; got {bias.dtype}")


def bias_dtype(dtype: ElementName) -> ElementName:
    """Return the dtype of a bias for a result of a dtype."""
    return dtype if dtype_of(dtype).itemsize > 1 else "float32"


def _check_result_dtype(operation: str, given: str, result: str) -> None:
    if given == "int8":
        allowed: tuple[str, ...] = ("int32", "float32", "int8")
    elif given.startswith("float8"):
        allowed = ("float32", "float16", "bfloat16", given)
    else:
        allowed = (given,)
    if result not in allowed:
        raise TypeError(f"out must be {' or '.join(allowed)} for {given} inputs; got {result}")
    if operation != "forward" and dtype_of(given).itemsize == 1:
        raise TypeError(
            f"inputs of {operation} must be float16, bfloat16, float32 or float64; got {given}, which only forward "
            "supports"
        )
