"""A convolution problem as an operation graph."""

from __future__ import annotations

from typing import Any

from cudnnpy import raw
from cudnnpy.backend import Descriptor
from cudnnpy.convolution.problem import Problem
from cudnnpy.dtypes import dtype_of
from cudnnpy.engines import Target, graph_of
from cudnnpy.engines import tensor as plain_tensor
from cudnnpy.layouts import TensorSpec, result_strides, spelled_channels_last, with_height

_MODES = {"cross_correlation": raw.CUDNN_CROSS_CORRELATION, "convolution": raw.CUDNN_CONVOLUTION}
_ACTIVATIONS = {
    "relu": raw.CUDNN_POINTWISE_RELU_FWD,
    "sigmoid": raw.CUDNN_POINTWISE_SIGMOID_FWD,
    "tanh": raw.CUDNN_POINTWISE_TANH_FWD,
    "elu": raw.CUDNN_POINTWISE_ELU_FWD,
    "swish": raw.CUDNN_POINTWISE_SWISH_FWD,
}
# operation: (descriptor kind, the attributes' common part, names of the tensors' attributes in the order of x, w, y)
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
X, W, Y, BIAS, CONVOLVED, BIASED = 1, 2, 3, 4, 5, 6  # unique ids of the tensors in a graph
_UIDS = {"x": X, "dx": X, "w": W, "dw": W, "y": Y, "dy": Y, "bias": BIAS, "convolved": CONVOLVED}


def uids(operands: tuple[str, ...]) -> tuple[int, ...]:
    """The unique ids of operands by name."""
    return tuple(_UIDS[name] for name in operands)


def tensor(uid: int, spec: TensorSpec, *, virtual: bool = False) -> Descriptor:
    """A tensor of a convolution's graph: with two spatial axes at least."""
    shape, strides = with_height(spec)
    return plain_tensor(uid, spec._replace(shape=shape, strides=strides), virtual=virtual)


def _spatial(values: tuple[int, ...], first: int) -> tuple[int, ...]:
    return (first, *values) if len(values) == 1 else values


def operation_graph(problem: Problem, target: Target) -> Descriptor:
    """The problem as a finalized operation graph: the convolution, then the bias and the activation if there are."""
    x, w, y = problem.x, problem.w, problem.y
    wide = _wide(problem.compute_dtype)
    fused = problem.bias is not None or problem.activation is not None
    if fused:
        x, w, y = spelled_channels_last(x, w, y)
    tensors = {X: tensor(X, x), W: tensor(W, w)}
    between = y._replace(dtype=wide)
    tensors[CONVOLVED if fused else Y] = tensor(CONVOLVED, between, virtual=True) if fused else tensor(Y, y)
    operations = [_convolution(problem, tensors[X], tensors[W], tensors[CONVOLVED if fused else Y])]
    if fused:
        operations += _epilogue(y, problem.bias, problem.activation, tensors[CONVOLVED], wide)
    return graph_of(operations, target)


def epilogue_graph(y: TensorSpec, bias: TensorSpec | None, activation: str | None, target: Target) -> Descriptor:
    """A bias and an activation alone, on a result that a plain convolution has left in memory."""
    return graph_of(_epilogue(y, bias, activation, tensor(CONVOLVED, y), _wide(y.dtype)), target)


def _wide(dtype: str) -> str:
    """What values between two operations have: float64 for float64, else float32."""
    return "float64" if dtype == "float64" else "float32"


def _epilogue(
    y: TensorSpec, bias: TensorSpec | None, activation: str | None, last: Descriptor, wide: str
) -> list[Descriptor]:
    operations = []
    if bias is not None:
        shape = (1, y.shape[1], *(1 for _ in y.shape[2:]))
        added = tensor(BIAS, bias._replace(shape=shape, strides=result_strides(shape, y)))
        biased = tensor(BIASED, y._replace(dtype=wide), virtual=True) if activation else tensor(Y, y)
        operations.append(_pointwise(raw.CUDNN_POINTWISE_ADD, wide, last, biased, added))
        last = biased
    if activation is not None:
        operations.append(_pointwise(_ACTIVATIONS[activation], wide, last, tensor(Y, y)))
    return operations


def _convolution(problem: Problem, x: Descriptor, w: Descriptor, y: Descriptor) -> Descriptor:
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


def _pointwise(mode: int, dtype: str, x: Descriptor, y: Descriptor, b: Descriptor | None = None) -> Descriptor:
    how: dict[int, Any] = {
        raw.CUDNN_ATTR_POINTWISE_MODE: mode,
        raw.CUDNN_ATTR_POINTWISE_MATH_PREC: dtype_of(dtype).number,
    }
    return Descriptor(
        raw.CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
        {
            raw.CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR: Descriptor(raw.CUDNN_BACKEND_POINTWISE_DESCRIPTOR, how),
            raw.CUDNN_ATTR_OPERATION_POINTWISE_XDESC: x,
            raw.CUDNN_ATTR_OPERATION_POINTWISE_BDESC: b,
            raw.CUDNN_ATTR_OPERATION_POINTWISE_YDESC: y,
        },
    )
