"""What PyTorch's operations are in ours: for the arguments of a torch function, the calls that give its result and gradients.

Every function here takes `nn`, which is cudnnpy.reference (with NumPy's arrays) or cudnnpy (with tensors on a GPU), and the
arguments of torch's function under its names. It returns what was computed, and NoCounterpart is raised for an option that
ours have no counterpart for. An axis that torch leaves out is added, and taken away from the results.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np


class NoCounterpart(Exception):
    """Names the option."""


class Computed(NamedTuple):
    y: Any
    gradients: Callable[[Any], dict[str, Any]] | None = None  # for a gradient of y, those of the arguments, by name
    changed: dict[str, Any] = {}  # arguments that were written, by name
    factor: Any = None  # an array by whose size the terms are multiplied that cancel in a gradient


def each(value: Any, rank: int) -> tuple[int, ...]:
    """One entry for each of an operation's axes, as torch repeats a single one."""
    entries = (value,) if isinstance(value, int) else tuple(value)
    return entries * rank if len(entries) == 1 else entries


def _type(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")


def given(**gradients: Any) -> dict[str, Any]:
    """Without those of arguments that were not given."""
    return {name: gradient for name, gradient in gradients.items() if gradient is not None}


# Convolutions


def _convolution(layer: Any, x: Any, w: Any, bias: Any) -> Computed:
    alone = x.ndim == w.ndim - 1
    images = x[None] if alone else x
    y = layer.forward(images, w, bias)

    def gradients(dy: Any) -> dict[str, Any]:
        dy = dy[None] if alone else dy
        dx = layer.backward_data(dy, w, tuple(images.shape))
        dw = layer.backward_filter(dy, images, tuple(w.shape))
        return given(x=dx[0] if alone else dx, w=dw, bias=None if bias is None else layer.backward_bias(dy))

    return Computed(y[0] if alone else y, gradients)


def _strict(layer: Callable[..., Any]) -> dict[str, Any]:
    return {"tf32": False} if "tf32" in inspect.signature(layer).parameters else {}


def conv(
    nn: Any, x: Any, w: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Computed:
    options = {"padding": padding, "stride": stride, "dilation": dilation, "groups": groups}
    return _convolution(nn.Convolution(**options, **_strict(nn.Convolution)), x, w, bias)


def conv_transpose(
    nn: Any,
    x: Any,
    w: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Computed:
    options = {"padding": padding, "stride": stride, "dilation": dilation, "groups": groups}
    layer = nn.ConvolutionTranspose(**options, output_padding=output_padding, **_strict(nn.ConvolutionTranspose))
    return _convolution(layer, x, w, bias)


# Pooling


def _pooling(nn: Any, rank: int, x: Any, mode: str, options: dict[str, Any], alpha: float = 1.0) -> Computed:
    layer = nn.Pooling(mode, **options)
    alone = x.ndim == rank + 1
    images = x[None] if alone else x
    y = layer.forward(images, alpha=alpha)

    def gradients(dy: Any) -> dict[str, Any]:
        dx = layer.backward(dy[None] if alone else dy, images, y, alpha=alpha)
        return {"x": dx[0] if alone else dx}

    return Computed(y[0] if alone else y, gradients)


CUT_OFF = "ceil_mode, where the last window does not fit"


def _window(rank: int, x: Any, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool) -> dict[str, Any]:
    window = each(kernel_size, rank)
    stride = window if stride is None or stride == () else each(stride, rank)
    options = {"window": window, "padding": each(padding, rank), "stride": stride}
    sizes = zip(x.shape[-rank:], *options.values(), strict=True)
    if ceil_mode and any((size + 2 * pad - span) % step for size, span, pad, step in sizes):
        raise NoCounterpart(CUT_OFF)
    return options


def max_pool(
    rank: int,
    nn: Any,
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Computed:
    if set(each(dilation, rank)) != {1}:
        raise NoCounterpart("dilation")
    if return_indices:
        raise NoCounterpart("return_indices")
    return _pooling(nn, rank, x, "max", _window(rank, x, kernel_size, stride, padding, ceil_mode))


WIDENED = "float64 made of a narrower type"


def avg_pool(
    rank: int,
    nn: Any,
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Computed:
    options = _window(rank, x, kernel_size, stride, padding, ceil_mode)
    if divisor_override is None:
        mode = "average_include_padding" if count_include_pad else "average_exclude_padding"
        return _pooling(nn, rank, x, mode, options)
    return _pooling(
        nn, rank, x, "average_include_padding", options, alpha=math.prod(options["window"]) / divisor_override
    )


# Softmax and activations


def softmax(algorithm: str, nn: Any, x: Any, dim: int, dtype: Any = None) -> Computed:
    """Any axis is the channels of an array of three: what lies before it, the axis, and what lies behind."""
    shape = tuple(x.shape) or (1,)
    dim %= len(shape)
    flat = (math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :]))
    kind, wide = _type(x), str(dtype).removeprefix("torch.")
    if wide == "float64" != kind:
        raise NoCounterpart(WIDENED)
    layer = nn.Softmax(algorithm, layout="NCW")
    channels = x.reshape(flat)
    y = layer.forward(channels if dtype is None else nn.transform_tensor(channels, dtype=wide))

    def gradients(dy: Any) -> dict[str, Any]:
        dx = layer.backward(dy.reshape(flat), y)
        dx = dx if dtype is None else nn.transform_tensor(dx, dtype=kind)
        return {"x": dx.reshape(x.shape)}

    return Computed(y.reshape(x.shape), gradients)


def activation(mode: str, nn: Any, x: Any, alpha: float = 1.0, inplace: bool = False) -> Computed:
    layer = nn.Activation(mode, 6.0 if mode == "clipped_relu" else alpha)
    flat = x.reshape(1) if x.ndim == 0 else x
    y = layer.forward(flat)
    return Computed(
        y.reshape(x.shape), lambda dy: {"x": layer.backward(dy.reshape(flat.shape), flat, y).reshape(x.shape)}
    )


# Normalizations


def _checked(eps: float) -> float:
    if eps < 0:
        raise NoCounterpart("eps below 0")
    return eps


def batch_norm(
    nn: Any,
    x: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Computed:
    layer = nn.BatchNormalization("spatial", _checked(eps))
    if not training:  # which has no gradient in cuDNN
        return Computed(layer.forward_inference(x, weight, bias, running_mean, running_var))
    y, *saved = layer.forward_training(x, weight, bias, running_mean, running_var, momentum)

    def gradients(dy: Any) -> dict[str, Any]:
        dx, dweight, dbias = layer.backward(dy, x, weight, *saved, bias=bias is not None)
        return given(x=dx, weight=dweight, bias=dbias)

    return Computed(y, gradients, given(running_mean=running_mean, running_var=running_var))


def instance_norm(
    nn: Any,
    x: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Computed:
    """Ours keeps no running statistics; they change nothing of y."""
    if not use_input_stats:
        raise NoCounterpart("use_input_stats=False")
    epsilon = _checked(eps)
    layer = nn.InstanceNormalization(epsilon)
    y, mean, inverse = layer.forward_training(x, weight, bias)

    def gradients(dy: Any) -> dict[str, Any]:
        dx, dweight, dbias = layer.backward(dy, x, weight, mean, inverse)
        return given(x=dx, weight=dweight if weight is not None else None, bias=dbias if bias is not None else None)

    return Computed(y, gradients)


def layer_norm(
    nn: Any, x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Computed:
    epsilon = _checked(eps)
    layer = nn.LayerNormalization(epsilon)
    shape = {"normalized_shape": tuple(normalized_shape)} if weight is None else {}
    y, mean, inverse = layer.forward_training(x, weight, bias, **shape)

    def gradients(dy: Any) -> dict[str, Any]:
        dx, dweight, dbias = layer.backward(dy, x, weight, mean, inverse)
        return given(x=dx, weight=dweight if weight is not None else None, bias=dbias if bias is not None else None)

    return Computed(y, gradients, factor=inverse)


def rms_norm(nn: Any, x: Any, normalized_shape: Any, weight: Any = None, eps: float = 1e-5) -> Computed:
    epsilon = _checked(eps)
    layer = nn.RMSNormalization(epsilon)
    shape = {"normalized_shape": tuple(normalized_shape)} if weight is None else {}
    y, inverse = layer.forward_training(x, weight, **shape)

    def gradients(dy: Any) -> dict[str, Any]:
        dx, dweight = layer.backward(dy, x, weight, inverse)
        return given(x=dx, weight=dweight if weight is not None else None)

    return Computed(y, gradients, factor=inverse)


def _reversed(x: Any) -> Any:
    return x.flip(1) if hasattr(x, "flip") else np.flip(x, 1)


def local_response_norm(
    nn: Any, x: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Computed:
    """Of a window of an even size torch has the extra channel before, ours behind: the same with the channels reversed."""
    layer = nn.LocalResponseNormalization(size, alpha=alpha, beta=beta, k=k)
    turned = _reversed(x)
    y = layer.forward(turned)
    return Computed(_reversed(y), lambda dy: {"x": _reversed(layer.backward(_reversed(dy), turned, y))})


# Reductions


def reduction(op: str, nn: Any, x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Computed:
    """Ours have no gradient."""
    flat = x.reshape(1) if x.ndim == 0 else x
    if dtype is not None:
        flat = nn.transform_tensor(flat, dtype=str(dtype).removeprefix("torch."))
    axes = (dim,) if isinstance(dim, int) else tuple(dim or range(flat.ndim))
    y = nn.reduce_tensor(flat, op, axes)
    if x.ndim == 0:
        return Computed(y.reshape(()))
    left = {axis % x.ndim for axis in axes}
    return Computed(y if keepdim else y.reshape([size for axis, size in enumerate(x.shape) if axis not in left]))


NORMS = {1: "norm1", 2: "norm2", math.inf: "amax"}


def vector_norm(nn: Any, x: Any, ord: float = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Computed:
    if ord not in NORMS:
        raise NoCounterpart("ord other than 1, 2 and infinity")
    return reduction(NORMS[ord], nn, x, dim, keepdim, dtype)


CALLS: dict[str, Callable[..., Computed]] = {
    **{f"nn.functional.conv{rank}d": conv for rank in (1, 2, 3)},
    **{f"nn.functional.conv_transpose{rank}d": conv_transpose for rank in (1, 2, 3)},
    **{f"nn.functional.max_pool{rank}d": partial(max_pool, rank) for rank in (1, 2, 3)},
    **{f"nn.functional.avg_pool{rank}d": partial(avg_pool, rank) for rank in (1, 2, 3)},
    **{f"softmax{variant}": partial(softmax, "accurate") for variant in ("", ",with_dtype")},
    **{f"log_softmax{variant}": partial(softmax, "log") for variant in ("", ",with_dtype")},
    "nn.functional.relu": partial(activation, "relu"),
    "nn.functional.relu6": partial(activation, "clipped_relu"),
    "nn.functional.elu": partial(activation, "elu"),
    "nn.functional.silu": partial(activation, "swish"),
    "sigmoid": partial(activation, "sigmoid"),
    "tanh": partial(activation, "tanh"),
    "nn.functional.batch_norm": batch_norm,
    "nn.functional.instance_norm": instance_norm,
    "nn.functional.layer_norm": layer_norm,
    "nn.functional.rms_norm": rms_norm,
    "nn.functional.local_response_norm": local_response_norm,
    "sum": partial(reduction, "add"),
    "mean": partial(reduction, "avg"),
    "prod": partial(reduction, "mul"),
    "amax": partial(reduction, "max"),
    "amin": partial(reduction, "min"),
    **{f"max,reduction_{dims}": partial(reduction, "max") for dims in ("with_dim", "no_dim")},
    **{f"min,reduction_{dims}": partial(reduction, "min") for dims in ("with_dim", "no_dim")},
    "linalg.vector_norm": vector_norm,
}
# The options that these functions refuse, and why.
NO_COUNTERPART: dict[tuple[str, str], str] = {
    **dict.fromkeys(
        [(f"{name},with_dtype", WIDENED) for name in ("softmax", "log_softmax")],
        "cudnnTransformTensor reads its factors as float for some shapes and as double for others",
    ),
    **dict.fromkeys(
        [(f"nn.functional.max_pool{rank}d", "dilation") for rank in (2, 3)], "cuDNN's windows have no gaps"
    ),
    **dict.fromkeys(
        [(f"nn.functional.max_pool{rank}d", "return_indices") for rank in (1, 2, 3)],
        "cuDNN does not say where a maximum was",
    ),
    **dict.fromkeys(
        [(f"nn.functional.{kind}_pool{rank}d", CUT_OFF) for kind in ("max", "avg") for rank in (1, 2, 3)],
        "cuDNN's windows lie in the padded tensor",
    ),
    **dict.fromkeys(
        [(f"nn.functional.{name}_norm", "eps below 0") for name in ("layer", "rms")],
        "it is no number to add to a variance",
    ),
    ("linalg.vector_norm", "ord other than 1, 2 and infinity"): "cuDNN reduces to the norms 1, 2 and infinity",
}
