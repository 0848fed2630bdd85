"""Build the cuDNN operation graph of a convolution problem: convolution, bias and activation."""

from __future__ import annotations

from cudnnpy import raw
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import TensorSpec, result_strides, with_channels_last_strides, with_two_spatial_axes
from cudnnpy._planning.engines import Target, graph_of, tensor
from cudnnpy.backend import Descriptor
from cudnnpy.convolution.problem import ROLES, ConvolutionSpec
from cudnnpy.typing import ElementName

_MODES = {"cross_correlation": raw.CUDNN_CROSS_CORRELATION, "convolution": raw.CUDNN_CONVOLUTION}
_ACTIVATIONS = {
    "relu": raw.CUDNN_POINTWISE_RELU_FWD,
    "sigmoid": raw.CUDNN_POINTWISE_SIGMOID_FWD,
    "tanh": raw.CUDNN_POINTWISE_TANH_FWD,
    "elu": raw.CUDNN_POINTWISE_ELU_FWD,
    "swish": raw.CUDNN_POINTWISE_SWISH_FWD,
}
# operation: (descriptor kind, common part of the attributes' names, the tensors' attributes in the order of x, w, y)
_OPERATIONS = {
    "forward": (raw.CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, "FORWARD", "X", "W", "Y"),
    "backward_data": (raw.CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, "BWD_DATA", "DX", "W", "DY"),
    "backward_filter": (
        raw.CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
        "BWD_FILTER",
        "X",
        "DW",
        "DY",
    ),
}
# The unique ids of the tensors in a graph; "biased" is the result before the activation.
_UIDS = {"x": 1, "w": 2, "y": 3, "bias": 4, "convolved": 5, "biased": 6}


def uids(operands: tuple[str, ...]) -> tuple[int, ...]:
    """Return the unique ids of operands by name."""
    return tuple(_UIDS[ROLES.get(name, name)] for name in operands)


def operation_graph(problem: ConvolutionSpec, target: Target) -> Descriptor:
    """Return the finalized operation graph of a problem: the convolution, then its bias and activation."""
    x, w, y = problem.x, problem.w, problem.y
    if problem.bias is None and problem.activation is None:
        return graph_of([_convolution(problem, _tensor("x", x), _tensor("w", w), _tensor("y", y))], target)
    x, w, y = with_channels_last_strides(x, w, y)
    wide = _wide(problem.compute_dtype)
    convolved = _tensor("convolved", y._replace(dtype=wide), virtual=True)
    convolution = _convolution(problem, _tensor("x", x), _tensor("w", w), convolved)
    return graph_of([convolution, *_epilogue(convolved, y, problem.bias, problem.activation, wide)], target)


def epilogue_graph(y: TensorSpec, bias: TensorSpec | None, activation: str | None, target: Target) -> Descriptor:
    """Return the operation graph of a bias and an activation on a convolution's result in memory, in place."""
    return graph_of(_epilogue(_tensor("convolved", y), y, bias, activation, _wide(y.dtype)), target)


def _epilogue(
    last: Descriptor, y: TensorSpec, bias: TensorSpec | None, activation: str | None, wide: ElementName
) -> list[Descriptor]:
    """Return the operations of a bias and an activation on `last`, the convolution's result, computed in the dtype `wide`."""
    result, operations = _tensor("y", y), []
    if bias is not None:
        shape = (1, y.shape[1], *(1 for _ in y.shape[2:]))
        row = _tensor("bias", bias._replace(shape=shape, strides=result_strides(shape, y)))
        biased = result if activation is None else _tensor("biased", y._replace(dtype=wide), virtual=True)
        operations.append(_pointwise(raw.CUDNN_POINTWISE_ADD, wide, last, biased, row))
        last = biased
    if activation is not None:
        operations.append(_pointwise(_ACTIVATIONS[activation], wide, last, result))
    return operations


def _wide(dtype: ElementName) -> ElementName:
    """Return the dtype of values between two operations: float64 for float64, else float32."""
    return "float64" if dtype == "float64" else "float32"


def _tensor(name: str, spec: TensorSpec, *, virtual: bool = False) -> Descriptor:
    """Return the descriptor of a tensor, with at least two spatial axes. A virtual one is between two operations."""
    shape, strides = with_two_spatial_axes(spec)
    return tensor(_UIDS[name], spec._replace(shape=shape, strides=strides), virtual=virtual)


def _convolution(problem: ConvolutionSpec, x: Descriptor, w: Descriptor, y: Descriptor) -> Descriptor:
    g = problem.geometry
    how = Descriptor(
        raw.CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR,
        {
            raw.CUDNN_ATTR_CONVOLUTION_COMP_TYPE: dtype_of(problem.compute_dtype).number,
            raw.CUDNN_ATTR_CONVOLUTION_CONV_MODE: _MODES[problem.mode],
            raw.CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS: max(len(g.stride), 2),
            raw.CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS: _spatial(g.pre_padding, 0),
            raw.CUDNN_ATTR_CONVOLUTION_POST_PADDINGS: _spatial(g.post_padding, 0),
            raw.CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES: _spatial(g.stride, 1),
            raw.CUDNN_ATTR_CONVOLUTION_DILATIONS: _spatial(g.dilation, 1),
        },
    )
    kind, part, *names = _OPERATIONS[problem.operation]
    operation = Descriptor(kind)
    prefix = f"CUDNN_ATTR_OPERATION_CONVOLUTION_{part}_"
    for name, operand in zip(names, (x, w, y), strict=True):
        operation[getattr(raw, prefix + name)] = operand
    operation[getattr(raw, prefix + "CONV_DESC")] = how
    scale = raw.CUDNN_TYPE_DOUBLE if problem.compute_dtype == "float64" else raw.CUDNN_TYPE_FLOAT
    operation.set(getattr(raw, prefix + "ALPHA"), problem.alpha, scale)
    operation.set(getattr(raw, prefix + "BETA"), problem.beta, scale)
    operation.finalize()
    return operation


def _pointwise(mode: int, dtype: ElementName, x: Descriptor, y: Descriptor, b: Descriptor | None = None) -> Descriptor:
    """Return an elementwise operation on x, and optionally b, with the result y."""
    how = Descriptor(
        raw.CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
        {raw.CUDNN_ATTR_POINTWISE_MODE: mode, raw.CUDNN_ATTR_POINTWISE_MATH_PREC: dtype_of(dtype).number},
    )
    return Descriptor(
        raw.CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
        {
            raw.CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR: how,
            raw.CUDNN_ATTR_OPERATION_POINTWISE_XDESC: x,
            raw.CUDNN_ATTR_OPERATION_POINTWISE_BDESC: b,
            raw.CUDNN_ATTR_OPERATION_POINTWISE_YDESC: y,
        },
    )


def _spatial(values: tuple[int, ...], first: int) -> tuple[int, ...]:
    """Return the values for at least two spatial axes; `first` is the value of an added axis."""
    return (first, *values) if len(values) == 1 else values
