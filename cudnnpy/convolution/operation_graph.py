"""Build the cuDNN operation graph of a convolution problem: convolution, bias and activation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cudnnpy import raw
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import TensorSpec, result_strides, with_channels_last_strides, with_two_spatial_axes
from cudnnpy._planning.engines import Target, graph_of
from cudnnpy._planning.engines import tensor as plain_tensor
from cudnnpy.backend import Descriptor
from cudnnpy.convolution.problem import Problem
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
X, W, Y, BIAS, CONVOLVED, BIASED = 1, 2, 3, 4, 5, 6  # unique ids of the tensors in a graph
_UIDS = {"x": X, "dx": X, "w": W, "dw": W, "y": Y, "dy": Y, "bias": BIAS, "convolved": CONVOLVED}


def uids(operands: tuple[str, ...]) -> tuple[int, ...]:
    """Return the unique ids of operands by name."""
    return tuple(_UIDS[name] for name in operands)


def spatial(values: tuple[int, ...], first: int) -> tuple[int, ...]:
    """Return the values for at least two spatial axes; `first` is the value of an added axis."""
    return (first, *values) if len(values) == 1 else values


class Pointwise(NamedTuple):
    """An elementwise operation after a convolution: the unique ids of its operands x and optionally b, and of its result y."""

    mode: int
    x: int
    y: int
    b: int | None = None


class GraphDescription(NamedTuple):
    """A problem's graph as plain data, from which the graph is built.

    `tensors` are by unique id, with at least two spatial axes; those in `virtual` exist only between two operations.
    `convolved` is the id of the convolution's result, and `wide` the dtype in which later operations are computed.
    """

    tensors: dict[int, TensorSpec]
    virtual: frozenset[int]
    convolved: int
    pointwise: tuple[Pointwise, ...]
    wide: ElementName


def describe_graph(problem: Problem) -> GraphDescription:
    """Return the graph of a problem as data: the convolution, then its bias and activation."""
    x, w, y, wide = problem.x, problem.w, problem.y, _wide(problem.compute_dtype)
    if problem.bias is None and problem.activation is None:
        return GraphDescription(
            {X: _with_two_spatial_axes(x), W: _with_two_spatial_axes(w), Y: _with_two_spatial_axes(y)},
            frozenset(),
            Y,
            (),
            wide,
        )
    x, w, y = with_channels_last_strides(x, w, y)
    after = _epilogue(y._replace(dtype=wide), y, problem.bias, problem.activation, wide)
    return after._replace(
        tensors={X: _with_two_spatial_axes(x), W: _with_two_spatial_axes(w), **after.tensors},
        virtual=after.virtual | {CONVOLVED},
    )


def _epilogue(
    last: TensorSpec, y: TensorSpec, bias: TensorSpec | None, activation: str | None, wide: ElementName
) -> GraphDescription:
    """Return the operations of a bias and an activation on `last`, the convolution's result, which may be virtual."""
    tensors, virtual, pointwise, at = {CONVOLVED: _with_two_spatial_axes(last)}, set(), [], CONVOLVED
    if bias is not None:
        shape = (1, y.shape[1], *(1 for _ in y.shape[2:]))
        tensors[BIAS] = _with_two_spatial_axes(bias._replace(shape=shape, strides=result_strides(shape, y)))
        if activation is not None:
            tensors[BIASED] = _with_two_spatial_axes(y._replace(dtype=wide))
            virtual.add(BIASED)
        pointwise.append(Pointwise(raw.CUDNN_POINTWISE_ADD, at, BIASED if activation else Y, BIAS))
        at = BIASED
    if activation is not None:
        pointwise.append(Pointwise(_ACTIVATIONS[activation], at, Y))
    tensors[Y] = _with_two_spatial_axes(y)
    return GraphDescription(tensors, frozenset(virtual), CONVOLVED, tuple(pointwise), wide)


def _wide(dtype: ElementName) -> ElementName:
    """Return the dtype of values between two operations: float64 for float64, else float32."""
    return "float64" if dtype == "float64" else "float32"


def _with_two_spatial_axes(spec: TensorSpec) -> TensorSpec:
    """Return the tensor with at least two spatial axes."""
    shape, strides = with_two_spatial_axes(spec)
    return spec._replace(shape=shape, strides=strides)


def operation_graph(problem: Problem, target: Target) -> Descriptor:
    """Return the finalized operation graph of a problem."""
    what = describe_graph(problem)
    tensors = _tensors(what)
    first = _convolution(problem, tensors[X], tensors[W], tensors[what.convolved])
    return graph_of([first, *_pointwise(what, tensors)], target)


def epilogue_graph(y: TensorSpec, bias: TensorSpec | None, activation: str | None, target: Target) -> Descriptor:
    """Return the operation graph of a bias and an activation on a convolution's result in memory, in place."""
    what = _epilogue(y, y, bias, activation, _wide(y.dtype))
    return graph_of(_pointwise(what, _tensors(what)), target)


def _tensors(what: GraphDescription) -> dict[int, Descriptor]:
    return {uid: plain_tensor(uid, spec, virtual=uid in what.virtual) for uid, spec in what.tensors.items()}


def _convolution(problem: Problem, x: Descriptor, w: Descriptor, y: Descriptor) -> Descriptor:
    g = problem.geometry
    how = Descriptor(
        raw.CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR,
        {
            raw.CUDNN_ATTR_CONVOLUTION_COMP_TYPE: dtype_of(problem.compute_dtype).number,
            raw.CUDNN_ATTR_CONVOLUTION_CONV_MODE: _MODES[problem.mode],
            raw.CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS: max(len(g.stride), 2),
            raw.CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS: spatial(g.pre_padding, 0),
            raw.CUDNN_ATTR_CONVOLUTION_POST_PADDINGS: spatial(g.post_padding, 0),
            raw.CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES: spatial(g.stride, 1),
            raw.CUDNN_ATTR_CONVOLUTION_DILATIONS: spatial(g.dilation, 1),
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


def _pointwise(what: GraphDescription, tensors: Mapping[int, Descriptor]) -> list[Descriptor]:
    return [
        Descriptor(
            raw.CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
            {
                raw.CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR: Descriptor(
                    raw.CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
                    {
                        raw.CUDNN_ATTR_POINTWISE_MODE: node.mode,
                        raw.CUDNN_ATTR_POINTWISE_MATH_PREC: dtype_of(what.wide).number,
                    },
                ),
                raw.CUDNN_ATTR_OPERATION_POINTWISE_XDESC: tensors[node.x],
                raw.CUDNN_ATTR_OPERATION_POINTWISE_BDESC: None if node.b is None else tensors[node.b],
                raw.CUDNN_ATTR_OPERATION_POINTWISE_YDESC: tensors[node.y],
            },
        )
        for node in what.pointwise
    ]
