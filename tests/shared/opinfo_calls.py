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


class NoCounterpart(Exception):
    """Names the option."""


class Computed(NamedTuple):
    y: Any
    gradients: Callable[[Any], dict[str, Any]] | None = None  # for a gradient of y, those of the arguments, by name
    changed: dict[str, Any] = {}  # arguments that were written, by name


def each(value: Any, rank: int) -> tuple[int, ...]:
    """One entry for each of an operation's axes, as torch repeats a single one."""
    entries = (value,) if isinstance(value, int) else tuple(value)
    return entries * rank if len(entries) == 1 else entries


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


def softmax(algorithm: str, nn: Any, x: Any, dim: int) -> Computed:
    """Any axis is the channels of an array of three: what lies before it, the axis, and what lies behind."""
    shape = tuple(x.shape) or (1,)
    dim %= len(shape)
    flat = (math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :]))
    layer = nn.Softmax(algorithm, layout="NCW")
    y = layer.forward(x.reshape(flat))
    return Computed(y.reshape(x.shape), lambda dy: {"x": layer.backward(dy.reshape(flat), y).reshape(x.shape)})


def activation(mode: str, nn: Any, x: Any, alpha: float = 1.0, inplace: bool = False) -> Computed:
    layer = nn.Activation(mode, 6.0 if mode == "clipped_relu" else alpha)
    flat = x.reshape(1) if x.ndim == 0 else x
    y = layer.forward(flat)
    return Computed(
        y.reshape(x.shape), lambda dy: {"x": layer.backward(dy.reshape(flat.shape), flat, y).reshape(x.shape)}
    )


# Normalizations


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
    layer = nn.BatchNormalization("spatial", eps)
    if not training:  # which has no gradient in cuDNN
        return Computed(layer.forward_inference(x, weight, bias, mean=running_mean, variance=running_var))
    running = {"running_mean": running_mean, "running_variance": running_var}
    y, *saved = layer.forward_training(x, weight, bias, **running, average_factor=momentum)

    def gradients(dy: Any) -> dict[str, Any]:
        dx, dweight, dbias = layer.backward(dy, x, weight, *saved, bias=bias is not None)
        return given(x=dx, weight=dweight, bias=dbias)

    return Computed(y, gradients, given(running_mean=running_mean, running_var=running_var))


CALLS: dict[str, Callable[..., Computed]] = {
    **{f"nn.functional.conv{rank}d": conv for rank in (1, 2, 3)},
    **{f"nn.functional.conv_transpose{rank}d": conv_transpose for rank in (1, 2, 3)},
    **{f"nn.functional.max_pool{rank}d": partial(max_pool, rank) for rank in (1, 2, 3)},
    **{f"nn.functional.avg_pool{rank}d": partial(avg_pool, rank) for rank in (1, 2, 3)},
    "softmax": partial(softmax, "accurate"),
    "log_softmax": partial(softmax, "log"),
    "nn.functional.relu": partial(activation, "relu"),
    "nn.functional.relu6": partial(activation, "clipped_relu"),
    "nn.functional.elu": partial(activation, "elu"),
    "nn.functional.silu": partial(activation, "swish"),
    "sigmoid": partial(activation, "sigmoid"),
    "tanh": partial(activation, "tanh"),
    "nn.functional.batch_norm": batch_norm,
}
# The options that these functions refuse, and why.
NO_COUNTERPART: dict[tuple[str, str], str] = {
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
}
