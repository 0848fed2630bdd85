"""ConvolutionSpec: one convolution or gradient on one device, immutable and hashable, with its sizes and the checks of both.

Everything that affects a result or the choice of a plan is in the ConvolutionSpec or the options. Shapes are logical,
(N, C, spatial...), in every layout; filters are (K, C / groups, spatial...).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, get_args

from cudnnpy._checks.call_arguments import check_activation, check_scales
from cudnnpy._checks.option_values import (
    check_channels,
    check_layout_rank,
    check_shape,
    error_repr,
    expand_per_axis,
    in_array_order,
    is_channels_last,
)
from cudnnpy._convolution.options import ConvolutionOptions, GeometryOptions, TransposeOptions, compute_dtype_for
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import (
    CHANNELS_FIRST,
    TensorSpec,
    canonical_spec,
    from_logical,
    in_layout,
    is_format_ambiguous,
    normalize_unit_strides,
    to_logical,
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


Sizes: TypeAlias = tuple[int, ...]


class Geometry(NamedTuple):
    """The padding, stride and dilation of one problem, with one element for each spatial axis."""

    pre_padding: Sizes
    post_padding: Sizes
    stride: Sizes
    dilation: Sizes


def geometry(options: GeometryOptions, x_spatial: Sequence[int], w_spatial: Sequence[int]) -> Geometry:
    """Return the padding, stride and dilation for each spatial axis of the given sizes."""
    rank, given = len(x_spatial), options.padding
    stride, dilation = (expand_per_axis(name, getattr(options, name), rank) for name in ("stride", "dilation"))
    reach = [(taps - 1) * step + 1 for taps, step in zip(w_spatial, dilation, strict=True)]
    if not isinstance(given, str):
        sides = expand_per_axis("padding", given, rank)
        pairs = [side if isinstance(side, tuple) else (side, side) for side in sides]
    elif given == "same":  # as in TensorFlow: the smallest padding for which the output has size ceil(x / stride)
        sizes = zip(x_spatial, reach, stride, strict=True)
        total = [max((-(-size // step) - 1) * step + span - size, 0) for size, span, step in sizes]
        pairs = [(both // 2, both - both // 2) for both in total]
    else:
        pairs = [{"valid": (0, 0), "half": (span // 2,) * 2, "full": (span - 1,) * 2}[given] for span in reach]
    return Geometry(tuple(before for before, _ in pairs), tuple(after for _, after in pairs), stride, dilation)


def _room(kernel: Sequence[int], spatial: Geometry) -> list[int]:
    """Return for each axis the padding less the size of the dilated filter."""
    axes = zip(kernel, spatial.pre_padding, spatial.post_padding, spatial.dilation, strict=True)
    return [before + after - (taps - 1) * step - 1 for taps, before, after, step in axes]


def output_sizes(x_spatial: Sequence[int], w_spatial: Sequence[int], spatial: Geometry) -> list[int]:
    """Return the spatial sizes of y. One is less than 1 where the filter does not fit into x with its padding."""
    axes = zip(x_spatial, _room(w_spatial, spatial), spatial.stride, strict=True)
    return [(size + room) // step + 1 for size, room, step in axes]


def output_shape(options: GeometryOptions, x_shape: Sequence[int], w_shape: Sequence[int]) -> Sizes:
    """Return the logical shape of y for the logical shapes of x and w. Raises ValueError for shapes that do not fit.

    Each spatial size is floor((x + padding before + padding after - dilation * (w - 1) - 1) / stride) + 1. The batch size
    and the number of channels may be 0.
    """
    x_shape, w_shape = check_shape("x_shape", x_shape, low=0), check_shape("w_shape", w_shape, low=0)
    rank = _check_rank(options, x_shape)
    if len(w_shape) != rank:
        x, w = (in_array_order(shape, options.layout) for shape in (x_shape, w_shape))
        raise ValueError(f"w must have {rank} axes, as x; got shape {w} (x has shape {x})")
    check_channels(x_shape, w_shape, options.groups, options.layout)
    for name, shape, empty in (("x", x_shape, "N or C"), ("w", w_shape, "C / groups")):
        if 0 in (shape[2:] if name == "x" else (shape[0], *shape[2:])):
            shape = in_array_order(shape, options.layout)
            raise ValueError(f"{name} must have sizes of 1 or more, except for {empty}; got shape {shape}")
    spatial = geometry(options, x_shape[2:], w_shape[2:])
    sizes = output_sizes(x_shape[2:], w_shape[2:], spatial)
    for at, found in enumerate(sizes):
        if found < 1:
            raise ValueError(
                f"w must fit into x with padding; got a filter of size {w_shape[2 + at]} with dilation "
                f"{spatial.dilation[at]} on an axis of size {x_shape[2 + at]} with padding "
                f"({spatial.pre_padding[at]}, {spatial.post_padding[at]}), for which the output would be empty"
            )
    return (x_shape[0], w_shape[0], *sizes)


def output_shape_in_layout(options: GeometryOptions, x_shape: Any, w_shape: Any) -> Sizes:
    """Return the shape of y for the shapes of x and w, all in the layout's axis order."""
    last = is_channels_last(options.layout)
    x, w = check_shape("x_shape", x_shape, low=0), check_shape("w_shape", w_shape, low=0)
    return from_logical(output_shape(options, to_logical(x, last), to_logical(w, last)), last)


def _check_rank(options: GeometryOptions, x_shape: Sizes) -> int:
    rank = len(x_shape)
    if rank not in CHANNELS_FIRST:
        raise ValueError(f"x must have 3, 4 or 5 axes (N, C and 1 to 3 spatial axes); got shape {x_shape}")
    check_layout_rank(options.layout, "x", rank)
    return rank


# Transposed convolutions


def transposed_geometry(options: TransposeOptions, kernel: Sizes) -> tuple[Geometry, Sizes]:
    """Return the geometry of the convolution that is transposed, and output_padding, for each spatial axis of a filter."""
    stride, dilation, extra = (
        expand_per_axis(name, getattr(options, name), len(kernel)) for name in ("stride", "dilation", "output_padding")
    )
    for more, step, spread in zip(extra, stride, dilation, strict=True):
        if more >= max(step, spread):
            raise ValueError(
                f"output_padding must be less than the stride, {step}, or the dilation, {spread}; got {more}"
            )
    # The size of the convolution's x is a multiple of the stride, and "same" is then the padding of every such size.
    return geometry(options, stride, kernel), extra


def transposed_output_shape(options: TransposeOptions, x_shape: Any, w_shape: Any) -> Sizes:
    """Return the shape of forward's result, all shapes in the layout's axis order. Raises for shapes that do not fit."""
    last = is_channels_last(options.layout)
    x_shape = check_shape("x_shape", x_shape, low=0)
    rank = _check_rank(options, x_shape)
    w_shape = check_shape("w_shape", w_shape, rank)
    x, w = to_logical(x_shape, last), to_logical(w_shape, last)
    if 0 in x[1:]:
        raise ValueError(f"x must have sizes of 1 or more, except for a batch of 0; got shape {x_shape}")
    if x[1] != w[0]:
        raise ValueError(f"x must have {w[0]} channels, as w; got {x[1]} (x has shape {x_shape}, w {w_shape})")
    if w[0] % options.groups:
        raise ValueError(f"groups must divide the {w[0]} input channels; got {options.groups}")
    spatial, extra = transposed_geometry(options, w[2:])
    axes = zip(x[2:], _room(w[2:], spatial), spatial.stride, extra, strict=True)
    sizes = [(size - 1) * step - room + more for size, room, step, more in axes]
    for at, found in enumerate(sizes):
        if found < 1:
            raise ValueError(
                f"padding must be smaller; got ({spatial.pre_padding[at]}, {spatial.post_padding[at]}) for a filter of size "
                f"{w[2 + at]} with dilation {spatial.dilation[at]} and stride {spatial.stride[at]} on an axis of size "
                f"{x[2 + at]}, for which the output would be empty"
            )
    return from_logical((x[0], w[1] * options.groups, *sizes), last)


def transposed_input_shape(options: TransposeOptions, dy_shape: Sizes, w_shape: Sizes) -> Sizes:
    """Return the shape of the x whose result has dy's shape, if there is one; all in the layout's axis order."""
    last, rank = is_channels_last(options.layout), len(w_shape)
    if len(dy_shape) != rank or rank not in CHANNELS_FIRST:
        raise ValueError(f"dy and w must both have 3, 4 or 5 axes; got shapes {dy_shape} and {w_shape}")
    dy, w = to_logical(dy_shape, last), to_logical(w_shape, last)
    spatial, extra = transposed_geometry(options, w[2:])
    least = [more - room for room, more in zip(_room(w[2:], spatial), extra, strict=True)]
    for size, smallest, taps in zip(dy[2:], least, w[2:], strict=True):
        if size < smallest:
            raise ValueError(
                f"dy must have size {smallest} or more where it has {size}, which is what an x of size 1 gives with "
                f"a filter of size {taps}; got shape {dy_shape}"
            )
    sizes = [(size - smallest) // step + 1 for size, smallest, step in zip(dy[2:], least, spatial.stride, strict=True)]
    return from_logical((dy[0], w[0], *sizes), last)


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
