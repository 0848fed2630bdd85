"""FUNCTIONS, the kinds of operations of cuDNN's graph API in NumPy: one function for each row of cudnnpy.graph.kinds.

A function takes the options, the operands and the specs of operands and results, all by name, and returns its results by
name (some that the operation may lack too). Operands are float64, int64 or bool arrays, and tuples of them for a list.
Results are not rounded. "Not confirmed on a GPU" marks a meaning that neither cuDNN's documentation nor a run has settled.
The layers (cudnnpy.reference.Convolution, ...) compute by the same formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from cudnnpy import raw
from cudnnpy._core.dtypes import numpy_dtype
from cudnnpy._core.layouts import TensorSpec, strides_of
from cudnnpy.graph.kinds import KINDS, as_fraction, pointwise_name
from cudnnpy.reference._arrays import Array, Float64, Shape
from cudnnpy.reference._geometry import Geometry
from cudnnpy.reference._products import correlate, correlate_data, correlate_filter

Options: TypeAlias = Mapping[str, Any]
Given: TypeAlias = Mapping[str, Any]  # arrays by the names of operands
Specs: TypeAlias = Mapping[str, Any]  # TensorSpecs by the names of operands and results
Made: TypeAlias = dict[str, Any]

# Convolutions


def convolved(operation: str, options: Options, first: Float64, second: Float64, geometry: Geometry) -> Float64:
    """Return alpha * the result of a convolution's operation on its two operands. Mode "convolution" reverses the filter."""
    axes = tuple(range(2, second.ndim)) if options.get("mode") == raw.CUDNN_CONVOLUTION else ()
    if operation == "backward_filter":
        product = np.flip(correlate_filter(first, second, geometry), axes)
    else:
        product = (correlate if operation == "forward" else correlate_data)(first, np.flip(second, axes), geometry)
    return np.asarray(options.get("alpha", 1.0) * product)


def _convolution(operation: str, names: Sequence[str], options: Options, given: Given, specs: Specs) -> Made:
    """Return the result of a convolution's operation. `names` are of its two operands and its result."""
    x, w, y = (next(specs[name].shape for name in names if name in (role, f"d{role}")) for role in "xwy")
    padding = tuple(zip(options["pre_padding"], options["post_padding"], strict=True))
    geometry = Geometry(x[2:], w[2:], y[2:], padding, options["stride"], options["dilation"], x[1] // w[1])
    return {names[2]: convolved(operation, options, given[names[0]], given[names[1]], geometry)}


def convolution_forward(options: Options, given: Given, specs: Specs) -> Made:
    """Return y (N, K, P...), alpha * the convolution of x (N, C, D...) with w (K, C / groups, R...)."""
    return _convolution("forward", ("x", "w", "y"), options, given, specs)


def convolution_backward_data(options: Options, given: Given, specs: Specs) -> Made:
    """Return dx (N, C, D...) = alpha * the sum over y of dy (N, K, P...) * dy/dx, for w (K, C / groups, R...)."""
    return _convolution("backward_data", ("dy", "w", "dx"), options, given, specs)


def convolution_backward_filter(options: Options, given: Given, specs: Specs) -> Made:
    """Return dw (K, C / groups, R...) = alpha * the sum over y of dy (N, K, P...) * dy/dw, for x (N, C, D...)."""
    return _convolution("backward_filter", ("dy", "x", "dw"), options, given, specs)


# Elementwise operations


def erf(x: Float64) -> Float64:
    """Return the error function of each element."""
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x)).astype(np.float64)


def _sigmoid(x: Float64) -> Float64:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def _relu(x: Float64, o: Options) -> Float64:
    low, slope = o.get("relu_lower_clip", 0.0), o.get("relu_lower_clip_slope", 0.0)
    below = low + slope * (x - low) if slope else low
    return np.minimum(np.where(x <= low, below, x), o.get("relu_upper_clip", math.inf))  # NaN stays NaN


def _relu_slope(x: Float64, o: Options) -> Float64:
    below = np.where(x > o.get("relu_lower_clip", 0.0), 1.0, o.get("relu_lower_clip_slope", 0.0))
    return np.where(x >= o.get("relu_upper_clip", math.nan), 0.0, below)  # without a clip also for infinity


def _swish_slope(x: Float64, o: Options) -> Any:
    bx = o.get("swish_beta", 1.0) * x
    return _sigmoid(bx) * (1 + bx * _sigmoid(-bx))


def _gelu_slope(x: Float64, o: Options) -> Float64:
    return (1 + erf(x / math.sqrt(2))) / 2 + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _tanh_of_gelu(x: Float64) -> Float64:
    return np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def _gelu_approx_slope(x: Float64, o: Options) -> Float64:
    top = _tanh_of_gelu(x)
    return (1 + top) / 2 + x / 2 * (1 - top * top) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)


_UNARY: Mapping[str, Callable[[Any], Any]] = {
    **{name: getattr(np, name) for name in ("abs", "ceil", "cos", "exp", "floor", "log", "sin", "sqrt", "tan")},
    "neg": np.negative,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": erf,
    "identity": lambda x: x,
    "reciprocal": lambda x: 1 / x,
    "logical_not": lambda x: x == 0,
}
_BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "add_square": lambda x, b: x + b * b,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "mod": np.fmod,
    "floor_mod": np.mod,
    "mul": np.multiply,
    "pow": np.power,
    "sub": np.subtract,
    "atan2": np.arctan2,
    "cmp_eq": np.equal,
    "cmp_neq": np.not_equal,
    "cmp_gt": np.greater,
    "cmp_ge": np.greater_equal,
    "cmp_lt": np.less,
    "cmp_le": np.less_equal,
    "logical_and": lambda x, b: (x != 0) & (b != 0),
    "logical_or": lambda x, b: (x != 0) | (b != 0),
}
_FORWARD: Mapping[str, Callable[[Any, Options], Any]] = {
    "relu_fwd": _relu,
    "tanh_fwd": lambda x, o: np.tanh(x),
    "sigmoid_fwd": lambda x, o: _sigmoid(x),
    "elu_fwd": lambda x, o: np.where(x > 0, x, o.get("elu_alpha", 1.0) * np.expm1(np.minimum(x, 0))),
    "gelu_fwd": lambda x, o: x / 2 * (1 + erf(x / math.sqrt(2))),
    "softplus_fwd": lambda x, o: np.logaddexp(0, o.get("softplus_beta", 1.0) * x) / o.get("softplus_beta", 1.0),
    "swish_fwd": lambda x, o: x * _sigmoid(o.get("swish_beta", 1.0) * x),
    "gelu_approx_tanh_fwd": lambda x, o: x / 2 * (1 + _tanh_of_gelu(x)),
}
_SLOPES: Mapping[str, Callable[[Any, Options], Any]] = {
    "relu_bwd": _relu_slope,
    "tanh_bwd": lambda x, o: np.cosh(x) ** -2,
    "sigmoid_bwd": lambda x, o: _sigmoid(x) * _sigmoid(-x),
    "elu_bwd": lambda x, o: np.where(x > 0, 1.0, o.get("elu_alpha", 1.0) * np.exp(np.minimum(x, 0))),
    "gelu_bwd": _gelu_slope,
    "softplus_bwd": lambda x, o: _sigmoid(o.get("softplus_beta", 1.0) * x),
    "swish_bwd": _swish_slope,
    "gelu_approx_tanh_bwd": _gelu_approx_slope,
}


def pointwise(options: Options, given: Given, specs: Specs) -> Made:
    """Return y = f(alpha1 * x, alpha2 * b), or dx = dy * f'(x) where x is the input of the forward operation.

    Shapes broadcast axis by axis. A mode is NumPy's function of the same name, except for

    - mod has the sign of x, floor_mod the sign of b; add_square is x + b * b; div by integers (compute_dtype) drops the
      fraction
    - relu: x above relu_lower_clip L, L + slope * (x - L) below, at most relu_upper_clip; its gradient is 0 from there on
    - elu: x above 0, alpha * (exp(x) - 1) below; softplus: log(1 + exp(beta * x)) / beta; swish: x * sigmoid(beta * x)
    - gelu: x / 2 * (1 + erf(x / sqrt(2))); gelu_approx_tanh: x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))
    - a comparison or logical_...: 1 where true, and a number counts as true unless it is 0
    - gen_index: the index along `axis`, in the shape of x; binary_select: x where t is true, else b

    A NaN makes max and min NaN; that, and relu with both a clip that is not 0 and a slope, are not confirmed on a GPU.
    """
    name = pointwise_name(options["mode"])
    x = np.asarray(given["x"], np.float64) * options.get("alpha1", 1.0)
    if name in _SLOPES:
        slope = _SLOPES[name](given["x"], options)
        return {"dx": np.where(slope == 0, 0.0, given["dy"] * slope)}
    if name in _FORWARD:
        return {"y": _FORWARD[name](x, options)}
    if name in _UNARY:
        return {"y": _UNARY[name](x)}
    if name == "gen_index":
        axis = options.get("axis", -1) % x.ndim
        sizes = [n if a == axis else 1 for a, n in enumerate(x.shape)]
        return {"y": np.broadcast_to(np.arange(x.shape[axis]).reshape(sizes), x.shape)}
    b = np.asarray(given["b"], np.float64) * options.get("alpha2", 1.0)
    if name == "binary_select":
        return {"y": np.where(given["t"] != 0, x, b)}
    y = _BINARY[name](x, b)
    return {"y": np.trunc(y) if name == "div" and "int" in options.get("compute_dtype", "") else y}


_REDUCTIONS: Mapping[int, Callable[[Float64, Shape], Float64]] = {
    raw.CUDNN_REDUCE_TENSOR_ADD: lambda x, axes: x.sum(axes, keepdims=True),
    raw.CUDNN_REDUCE_TENSOR_MUL: lambda x, axes: x.prod(axes, keepdims=True),
    raw.CUDNN_REDUCE_TENSOR_MIN: lambda x, axes: x.min(axes, keepdims=True, initial=np.inf),
    raw.CUDNN_REDUCE_TENSOR_MAX: lambda x, axes: x.max(axes, keepdims=True, initial=-np.inf),
    raw.CUDNN_REDUCE_TENSOR_AMAX: lambda x, axes: np.abs(x).max(axes, keepdims=True, initial=0.0),
    raw.CUDNN_REDUCE_TENSOR_AVG: lambda x, axes: mean_of(x, axes),
    raw.CUDNN_REDUCE_TENSOR_NORM1: lambda x, axes: np.abs(x).sum(axes, keepdims=True),
    raw.CUDNN_REDUCE_TENSOR_NORM2: lambda x, axes: np.sqrt(np.square(x).sum(axes, keepdims=True)),
    raw.CUDNN_REDUCE_TENSOR_MUL_NO_ZEROS: lambda x, axes: np.where(x == 0, 1.0, x).prod(axes, keepdims=True),
}


def mean_of(x: Float64, axes: Shape) -> Any:
    """Return the mean over axes, which remain with size 1; NaN of no elements."""
    return x.sum(axes, keepdims=True) / np.float64(math.prod(x.shape[axis] for axis in axes))


def reduction(options: Options, given: Given, specs: Specs) -> Made:
    """Return y, x reduced by the operator `op` over the axes, which remain with size 1, or over groups to `shape`.

    add, mul, min, max; amax: max(|x|); avg: mean; norm1: sum(|x|); norm2: sqrt(sum(x * x)); mul_no_zeros: the product of the
    elements that are not 0, 1 if there are none. A group has neighbours: element i of y is of elements i * n to i * n + n - 1.
    """
    x = np.asarray(given["x"], np.float64)
    if "shape" not in options:
        return {"y": _REDUCTIONS[options["op"]](x, options["axes"])}
    shape: Shape = options["shape"]
    groups = x.reshape([part for size, n in zip(shape, x.shape, strict=True) for part in (size, n // size)])
    return {"y": _REDUCTIONS[options["op"]](groups, tuple(range(1, groups.ndim, 2))).reshape(shape)}


def repeated(x: Array, shape: Shape) -> Array:
    """Return x with each axis but the last two repeated to a shape: element i of it is element i // repeats of x."""
    for axis, size in enumerate(shape):
        x = x if x.shape[axis] == size else np.repeat(x, size // max(x.shape[axis], 1), axis)
    return x


def matmul(options: Options, given: Given, specs: Specs) -> Made:
    """Return c (B..., M, N) = a (B..., M, K) @ b (B..., K, N); axes of the batch repeat, as the heads of grouped attention
    do.

    The overrides (B, 1, 1) are the valid sizes of each matrix: the sum takes k_override elements, and c is padding_value (0
    by default) from m_override or n_override on. The padding is not confirmed on a GPU.
    """
    a, b, shape = given["a"], given["b"], specs["c"].shape
    valid = [given.get(f"{name}_override") for name in "mnk"]
    m, n, k = (np.inf if one is None else one.reshape(-1, *(1,) * (len(shape) - 1)) for one in valid)
    a = np.where(np.arange(a.shape[-1]) < k, a, 0.0)
    b = np.where(np.arange(b.shape[-2])[:, None] < k, b, 0.0)
    c = repeated(a, shape[:-2]) @ repeated(b, shape[:-2])
    inside = (np.arange(shape[-2])[:, None] < m) & (np.arange(shape[-1]) < n)
    return {"c": np.where(inside, c, options.get("padding_value", 0.0))}


# Resampling


def _samples(options: Options, x: Shape, y: Shape) -> Iterator[tuple[int, tuple[Any, ...], Any, Any]]:
    """Yield for each element of a window: its number, its places in x, whether they are inside x, and its weight."""
    window = [math.ceil(as_fraction(size)) for size in options["window"]]
    mode, rank = options["mode"], len(window)
    if mode in (raw.CUDNN_RESAMPLE_NEAREST, raw.CUDNN_RESAMPLE_BILINEAR):
        window = [1 if mode == raw.CUDNN_RESAMPLE_NEAREST else 2] * rank
    starts = [
        [p * as_fraction(stride) - as_fraction(before) for p in range(size)]
        for size, stride, before in zip(y[2:], options["stride"], options["pre_padding"], strict=True)
    ]
    for number, tap in enumerate(np.ndindex(*window)):
        at = [np.array([math.floor(s) + t for s in some], np.int64) for some, t in zip(starts, tap, strict=True)]
        inside, weight = np.ones([1] * rank, bool), np.ones([1] * rank)
        for axis, (places, size, some, t) in enumerate(zip(at, x[2:], starts, tap, strict=True)):
            along = [-1 if a == axis else 1 for a in range(rank)]
            inside = inside & ((places >= 0) & (places < size)).reshape(along)
            if mode == raw.CUDNN_RESAMPLE_BILINEAR:
                parts = np.array([float(s % 1) for s in some])
                weight = weight * (parts if t else 1 - parts).reshape(along)
        clipped = [np.clip(places, 0, max(size - 1, 0)) for places, size in zip(at, x[2:], strict=True)]
        yield number, (slice(None), slice(None), *np.ix_(*clipped)), inside, weight


def _divisor(options: Options, x: Shape, y: Shape) -> Any:
    """Return by how much the sum of a window is divided: its size, without the padding, or 1 for an interpolation."""
    if options["mode"] == raw.CUDNN_RESAMPLE_AVGPOOL_EXCLUDE_PADDING:
        return sum(inside.astype(np.float64) for _, _, inside, _ in _samples(options, x, y))
    is_average = options["mode"] == raw.CUDNN_RESAMPLE_AVGPOOL_INCLUDE_PADDING
    return math.prod(math.ceil(as_fraction(size)) for size in options["window"]) if is_average else 1


def _maxima(options: Options, x: Float64, y: Shape) -> tuple[Float64, Array]:
    """Return the maximum of each window, and its number in the window, the first one of equals."""
    best, index = np.full(y, -np.inf), np.full(y, -1)
    ignores_nan = options.get("nan_propagation") == raw.CUDNN_NOT_PROPAGATE_NAN
    padding = {raw.CUDNN_ZERO_PAD: 0.0, raw.CUDNN_NEG_INF_PAD: -np.inf}.get(options.get("padding_mode", 0))
    for number, places, inside, _ in _samples(options, x.shape, y):
        value = x[places] if padding is None else np.where(inside, x[places], padding)
        is_new = np.isnan(value) & ~np.isnan(best) & (not ignores_nan) if np.isnan(value).any() else False
        is_better = (value > best) | is_new | ((index < 0) & inside & ~np.isnan(value))
        best, index = np.where(is_better, value, best), np.where(is_better, number, index)
    return best, index


def resample_fwd(options: Options, given: Given, specs: Specs) -> Made:
    """Return y (N, C, P...), x (N, C, D...) in windows or between its elements, and the index of each maximum in its window.

    Window p begins at p * stride - pre_padding, rounded down; stride, padding and window may be fractions, (numerator,
    denominator). maxpool: the maximum; avgpool_...: the sum over the size of the window, or over the number of its elements
    inside x; nearest: the element at the beginning; bilinear: the linear interpolation there. The padding is 0, -infinity or
    the nearest element (padding_mode). The index counts in C order. Fractions and the index's order are not confirmed on a
    GPU.
    """
    x, shape, alpha = given["x"], specs["y"].shape, options.get("alpha", 1.0)
    if options["mode"] == raw.CUDNN_RESAMPLE_MAXPOOL:
        best, index = _maxima(options, x, shape)
        return {"y": alpha * best, "index": index}
    y = np.zeros(shape)
    has_edges = options.get("padding_mode") == raw.CUDNN_EDGE_VAL_PAD
    for _, places, inside, weight in _samples(options, x.shape, shape):
        y += weight * (x[places] if has_edges else np.where(inside, x[places], 0.0))
    return {"y": alpha * y / _divisor(options, x.shape, shape)}


def resample_bwd(options: Options, given: Given, specs: Specs) -> Made:
    """Return dx (N, C, D...), the gradient of `resample_fwd` for dy (N, C, P...). maxpool reads the index, or else x."""
    dy, dx, alpha = given["dy"], np.zeros(specs["dx"].shape), options.get("alpha", 1.0)
    is_max, index = options["mode"] == raw.CUDNN_RESAMPLE_MAXPOOL, given.get("index")
    if is_max and index is None:
        index = _maxima(options, given["x"], dy.shape)[1]
    has_edges = options.get("padding_mode") == raw.CUDNN_EDGE_VAL_PAD
    share = alpha * dy / _divisor(options, dx.shape, dy.shape)
    for number, places, inside, weight in _samples(options, dx.shape, dy.shape):
        taken = inside | has_edges if not is_max else (index == number) & (inside | has_edges)
        np.add.at(dx, places, np.where(taken, weight * share, 0.0))
    return {"dx": dx}


# Normalizations


def _normalized_axes(mode: int, x: Shape, scale: Shape) -> Shape:
    """Return the axes of the mean: those without a scale (batch), the spatial ones (instance), those with one (others)."""
    if mode == raw.CUDNN_BATCH_NORM:
        return tuple(axis for axis, size in enumerate(scale) if size == 1)
    if mode == raw.CUDNN_INSTANCE_NORM:
        return tuple(range(2, len(x)))
    first = 1 if mode == raw.CUDNN_ADA_LAYER_NORM else 0
    return tuple(axis for axis in range(first, len(x)) if x[axis] == scale[axis])


def _unbiased(variance: Float64, count: Any) -> Any:
    return variance * (count / np.maximum(count - 1, 1))


def _running(prefix: str, old: Sequence[Any], new: Sequence[Any], factor: Any) -> Made:
    """Return the running mean and variance, in which the new ones have the weight `factor`."""
    names = f"{prefix}_mean", f"{prefix}_var"
    return {name: (1 - factor) * a + factor * b for name, a, b in zip(names, old, new, strict=True)}


def _without_peers(given: Given) -> None:
    if given.get("peer_stats"):
        raise ValueError("peer_stats must be left out for the reference; got tensors that other GPUs write")


def norm_forward(options: Options, given: Given, specs: Specs) -> Made:
    """Return y = scale * (x - mean) * inv_variance + bias with mean and inv_variance = 1 / sqrt(variance + epsilon).

    x is (N, C, D...). The mean is over N and D... (batch), D... (instance), or the axes that scale has (layer, rms, and
    adaptive layer with scale (B, 1, D) for x (B, S, D)); statistics keep these axes with size 1. rms has no mean, and the
    mean square for the variance. The running statistics become (1 - exp_avg_factor) * old + exp_avg_factor * new, of the
    variance times n / (n - 1). An inference takes mean and inv_variance if they are given, and that of a batch normalization
    the running statistics.
    """
    _without_peers(given)
    x, scale, mode, bias = given["x"], given["scale"], options["mode"], given.get("bias")
    axes = _normalized_axes(mode, x.shape, scale.shape)
    old: list[Any] = [given.get(f"input_running_{name}") for name in ("mean", "var")]
    updates_running = old[0] is not None and "exp_avg_factor" in given
    is_inference = mode == raw.CUDNN_BATCH_NORM and options["phase"] == raw.CUDNN_NORM_FWD_INFERENCE
    takes_running = old[0] is not None and is_inference
    made: Made = {}
    mean, variance = old
    if updates_running or not (takes_running or "inv_variance" in given):
        mean = np.zeros_like(mean_of(x, axes)) if mode == raw.CUDNN_RMS_NORM else mean_of(x, axes)
        variance = mean_of(np.square(x - mean), axes)
    if updates_running:
        new = mean, _unbiased(variance, x.size // max(mean.size, 1))
        made = _running("output_running", old, new, given["exp_avg_factor"])
    if takes_running:
        mean, variance = old
    if "inv_variance" in given:
        mean, inverse = given.get("mean", 0.0), given["inv_variance"]
    else:
        inverse = 1 / np.sqrt(variance + given["epsilon"])
    y = scale * ((x - mean) * inverse) + (0.0 if bias is None else bias)
    return {"y": y, "mean": mean, "inv_variance": inverse, **made}


def norm_backward(options: Options, given: Given, specs: Specs) -> Made:
    """Return the gradients of `norm_forward` for dy, by its statistics: dx of x's shape, dscale and dbias of scale's.

    With n = (x - mean) * inv_variance and g = dy * scale, dx = inv_variance * (g - mean(g) - n * mean(g * n)), without
    mean(g) for rms; dscale = sum(dy * n) and dbias = sum(dy) over the axes that scale lacks.
    """
    _without_peers(given)
    x, dy, scale, inverse, mode = *(given[name] for name in ("x", "dy", "scale", "inv_variance")), options["mode"]
    axes, is_centered = _normalized_axes(mode, x.shape, scale.shape), mode != raw.CUDNN_RMS_NORM
    normalized = (x - (given["mean"] if is_centered else 0.0)) * inverse
    g = dy * scale
    dx = inverse * (g - normalized * mean_of(g * normalized, axes) - (mean_of(g, axes) if is_centered else 0.0))
    others = tuple(axis for axis, size in enumerate(scale.shape) if size == 1)
    return {
        "dx": dx,
        "dscale": (dy * normalized).sum(others, keepdims=True),
        "dbias": dy.sum(others, keepdims=True),
    }


def gen_stats(options: Options, given: Given, specs: Specs) -> Made:
    """Return sum and sq_sum (1, C, 1...), the sums of x (N, C, D...) and of its squares in each channel."""
    x = given["x"]
    axes = (0, *range(2, x.ndim))
    return {"sum": x.sum(axes, keepdims=True), "sq_sum": np.square(x).sum(axes, keepdims=True)}


def bn_finalize(options: Options, given: Given, specs: Specs) -> Made:
    """Return eq_scale and eq_bias (1, C, 1, 1) so that eq_scale * x + eq_bias is the batch normalization, and its statistics.

    mean = y_sum / accum_count and variance = y_sq_sum / accum_count - mean**2; eq_scale = scale * saved_inv_std and
    eq_bias = bias - mean * eq_scale, where saved_inv_std = 1 / sqrt(variance + epsilon). The running statistics are as in
    `norm_forward`. In the inference mode the previous running statistics take the place of both; not confirmed on a GPU.
    """
    count = given["accum_count"]
    mean = given["y_sum"] / count
    variance = given["y_sq_sum"] / count - np.square(mean)
    old = [given.get(f"prev_running_{name}") for name in ("mean", "var")]
    made: Made = {}
    if old[0] is not None and "exp_average_factor" in given:
        made = _running("updated_running", old, (mean, _unbiased(variance, count)), given["exp_average_factor"])
    if options.get("mode") == raw.CUDNN_BN_FINALIZE_STATISTICS_INFERENCE:
        mean, variance = old
    inverse = 1 / np.sqrt(variance + given["epsilon"])
    scale = given["scale"] * inverse
    return {
        "eq_scale": scale,
        "eq_bias": given["bias"] - mean * scale,
        "saved_mean": mean,
        "saved_inv_std": inverse,
    } | made


def bn_bwd_weights(options: Options, given: Given, specs: Specs) -> Made:
    """Return the gradients (1, C, 1, 1) of a batch normalization's scale and bias, and the factors of its dx.

    With n = (x - mean) * invstd over m elements of a channel: dbn_scale = sum(dy * n), dbn_bias = sum(dy), and
    dx = eq_dy_scale * dy + eq_x_scale * x + eq_bias, where eq_dy_scale = bn_scale * invstd,
    eq_x_scale = -eq_dy_scale * invstd * dbn_scale / m, eq_bias = -eq_dy_scale * dbn_bias / m - eq_x_scale * mean.
    """
    x, scale, mean, inverse = (given[name] for name in ("x", "bn_scale", "mean", "invstd"))
    made = norm_backward({"mode": raw.CUDNN_BATCH_NORM}, {**given, "scale": scale, "inv_variance": inverse}, {})
    dscale, dbias, count = made["dscale"], made["dbias"], x.size // max(x.shape[1], 1)
    of_dy = scale * inverse
    of_x = -of_dy * inverse * dscale / count
    made = {"dbn_scale": dscale, "dbn_bias": dbias, "eq_dy_scale": of_dy, "eq_x_scale": of_x}
    return made | {"eq_bias": -of_dy * dbias / count - of_x * mean}


# Moving elements


def concat(options: Options, given: Given, specs: Specs) -> Made:
    """Return output, the inputs one after another along an axis."""
    return {"output": np.concatenate(given["inputs"], options["axis"])}


def _offsets(spec: TensorSpec) -> Array:
    """Return the place in memory of each element, in elements."""
    strides = strides_of(spec)
    places = np.zeros(spec.shape, np.int64)
    for axis, (size, stride) in enumerate(zip(spec.shape, strides, strict=True)):
        places += np.arange(size).reshape([-1 if a == axis else 1 for a in range(len(spec.shape))]) * stride
    return places


def reshape(options: Options, given: Given, specs: Specs) -> Made:
    """Return y, the elements of x in the shape of y: in C order (CUDNN_RESHAPE_LOGICAL), or else where they lie in memory.

    In memory, y has the element of x that lies at the same place, by the strides of both; 0 where x has none there.
    """
    x, spec = given["x"], specs["y"]
    if options.get("mode") == raw.CUDNN_RESHAPE_LOGICAL:
        return {"y": x.reshape(spec.shape)}
    sources, targets = _offsets(specs["x"]), _offsets(spec)
    memory = np.zeros(1 + max(int(places.max(initial=0)) for places in (sources, targets)), x.dtype)
    memory[sources] = x
    return {"y": memory[targets]}


def transpose(options: Options, given: Given, specs: Specs) -> Made:
    """Return y, whose axis i is axis permutation[i] of x."""
    return {"y": given["x"].transpose(options["permutation"])}


def slice_(options: Options, given: Given, specs: Specs) -> Made:
    """Return y = x[start:limit:stride] on each axis."""
    bounds = zip(options["start"], options["limit"], options["stride"], strict=True)
    return {"y": given["x"][tuple(slice(*one) for one in bounds)]}


def signal(options: Options, given: Given, specs: Specs) -> Made:
    """Return y = x. The flag, which another graph sets or waits for, has no meaning in NumPy."""
    return {"y": given["x"]} if "x" in given else {}


def rng(options: Options, given: Given, specs: Specs) -> Made:
    """Return the random numbers of the caller. Raises ValueError without them: cuDNN's random bits are not documented."""
    if "y" not in given:
        raise ValueError(
            "arrays must have the result of rng, since cuDNN does not document its random bits; got none. Make it an output "
            "of the graph, run the graph on a GPU, and give the array under the output's name; or make the mask an input"
        )
    return {"y": given["y"]}


def paged_cache_load(options: Options, given: Given, specs: Specs) -> Made:
    """Return y (B, H, S, D): position s of batch b is container[page_table[b, 0, s // page, 0], :, s % page].

    container is (pages, H, page, D), page_table (B, 1, pages of a sequence, 1). From sequence[b] on, y is 0. It is transposed
    if its last size is not D, or if S = D and its strides are those of the transpose.
    """
    spec, width = specs["y"], given["container"].shape[3]
    strides = strides_of(spec)
    is_transposed = spec.shape[3] != width or (spec.shape[2] == width and strides[2] < strides[3])
    y = paged(given["container"], given["page_table"], spec.shape[3 if is_transposed else 2])
    y = np.where(np.arange(y.shape[2])[:, None] < given["sequence"].reshape(-1, 1, 1, 1), y, 0.0)
    return {"y": y.transpose(0, 1, 3, 2) if is_transposed else y}


def paged(container: Array, table: Array, length: int) -> Array:
    """Return the keys (B, H, length, D) of pages (pages, H, page, D) that a table names."""
    places, page = np.arange(length), container.shape[2]
    pages = table[:, 0, places // page, 0]
    _check_indices("page_table must have pages", pages, len(container))
    return container[pages, :, places % page].transpose(0, 2, 1, 3)


def _check_indices(expected: str, given: Array, count: int) -> None:
    """Raise ValueError for an index that is not below a count. `expected` is the beginning of the error."""
    if given.size and not 0 <= given.min() <= given.max() < count:
        found = f"{given.min()} to {given.max()}"
        raise ValueError(f"{expected} of the {count} there are for the reference; got {found}")


# Blocks with scales


def block_scale_quantize(options: Options, given: Given, specs: Specs) -> Made:
    """Return y = x / scale and scale (..., ceil(D / block_size)), one for each block of the last axis of x (..., D).

    scale = max(|x|) / the largest number of y's data type, rounded up to scale's: to a power of two for float8_e8m0fnu.
    Documented by cuDNN ("Block Scaling"). A block of zeros has the scale 1, which is not confirmed on a GPU. A scale tensor
    that is larger, as its 128x4 order needs, is padded with 1.
    """
    x, (block,), spec = given["x"], options["block_size"], specs["scale"]
    count = -(-x.shape[-1] // block)
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, count * block - x.shape[-1])])
    largest = np.abs(padded.reshape(*x.shape[:-1], count, block)).max(-1, initial=0.0)
    scale = _rounded_up(largest / _numbers(specs["y"].dtype)[-1], spec.dtype)
    scale = np.where(largest == 0, 1.0, scale)
    y = x / np.repeat(scale, block, -1)[..., : x.shape[-1]]
    room = [(0, total - size) for total, size in zip(spec.shape, scale.shape, strict=True)]
    return {"y": y, "scale": np.pad(scale, room, constant_values=1.0)}


def _numbers(dtype: str) -> Float64:
    """Return the finite numbers of a data type of 8 bits, ascending."""
    every = np.arange(256, dtype=np.uint8).view(numpy_dtype(dtype)).astype(np.float64)
    return np.unique(every[np.isfinite(every)])


def _rounded_up(values: Float64, dtype: str) -> Float64:
    """Round to the next number of a data type that is at least as large."""
    if dtype == "float8_e8m0fnu":
        mantissa, exponent = np.frexp(values)
        return np.asarray(np.ldexp(1.0, np.maximum(exponent - (mantissa == 0.5), -127)))
    if not dtype.startswith("float8"):
        return values
    numbers = _numbers(dtype)
    return np.asarray(numbers[np.minimum(np.searchsorted(numbers, values), numbers.size - 1)])


def block_scale_dequantize(options: Options, given: Given, specs: Specs) -> Made:
    """Return y = x * scale, each scale for a block of x.

    A block has block_size elements on the last axis, or on the last but one if the last axis has a scale for each element, as
    in the right matrix of a product; two sizes are for the last two axes. A larger scale tensor, as its 128x4 order
    needs, is cut. Scales are positive: some of cuDNN's engines lose the sign of one (measured with 9.19 on an H200). With
    negative_scale y = -x * scale; not confirmed on a GPU.
    """
    x, scale, sizes = given["x"], given["scale"], options["block_size"]
    first = -2 if len(sizes) == 2 or (x.ndim > 1 and scale.shape[-1] >= x.shape[-1]) else -1
    for axis, size in enumerate(sizes, first):
        scale = np.repeat(scale, size, axis)
    scale = scale[tuple(slice(None, size) for size in x.shape)]
    return {"y": x * scale * (-1.0 if options.get("negative_scale") else 1.0)}


# Band matrices: column j of row r in compact form is column r - lower_bandwidth + j of the matrix. Not confirmed on a GPU.


def _band(options: Options, rank: int, rows: int, width: int) -> tuple[Any, Array]:
    """Return the index of the rows, and the column of the matrix for each row and each place of the band."""
    lower = options["lower_bandwidth"]
    if options["axis"] != rank - 1:
        raise ValueError(f"axis must be the last, {rank - 1}, for the reference; got {options['axis']}")
    number = np.arange(rows)[:, None]
    columns = number - lower + np.arange(lower + options["upper_bandwidth"] + 1)
    return number, np.where((columns >= 0) & (columns < width), columns, width)


def expand_band_matrix(options: Options, given: Given, specs: Specs) -> Made:
    """Return y (..., rows, columns), the matrix whose band is x (..., rows, lower_bandwidth + upper_bandwidth + 1).

    Columns are on `axis`, rows on the axis before it. Outside the band y is pad_value. Not confirmed on a GPU.
    """
    if unknown := [name for name in ("kv_token_offset", "speculative_mask") if name in given]:
        raise ValueError(
            f"{unknown[0]} must be left out for the reference, since cuDNN does not document it; got a tensor"
        )
    shape, x = specs["y"].shape, given["x"]
    rows, columns = _band(options, x.ndim, x.shape[-2], shape[-1])
    y = np.full((*shape[:-1], shape[-1] + 1), options.get("pad_value", 0.0))
    y[..., rows, columns] = x
    return {"y": y[..., :-1]}


def contract_band_matrix(options: Options, given: Given, specs: Specs) -> Made:
    """Return y (..., rows, lower_bandwidth + upper_bandwidth + 1), the band of the matrix x (..., rows, columns).

    Columns are on `axis`, rows on the axis before it. Places outside the matrix, or in columns from max_token_value on, are
    pad_value. Not confirmed on a GPU.
    """
    x = given["x"]
    width = min(x.shape[-1], options.get("max_token_value", x.shape[-1]))
    rows, columns = _band(options, x.ndim, x.shape[-2], width)
    padded = np.concatenate([x[..., :width], np.full((*x.shape[:-1], 1), options.get("pad_value", 0.0))], -1)
    return {"y": padded[..., rows, columns]}


# Attention


def _lengths(given: Given, side: str) -> Any:
    """Return the length of each sequence, (B, 1, 1, 1), from the lengths or from their sums; None for full ones."""
    sums = given.get(f"cu_seq_len_{side}")
    lengths = given.get(f"seq_len_{side}") if sums is None else np.diff(sums.ravel())
    return None if lengths is None else lengths.reshape(-1, 1, 1, 1)


def diagonal_band_mask(options: Options, given: Given, specs: Specs) -> Made:
    """Return y (B, H, S_q, S_kv) = x where the comparison holds, else b.

    It compares row + S_kv - S_q + shift_right_bound with column, or with left_bound, column + left_bound - S_kv + S_q with
    row, by comparison_mode; lengths that are not given count as 0, as in cudnn-frontend's composition of this node.
    """
    x = given["x"]
    row, column = np.arange(x.shape[-2])[:, None], np.arange(x.shape[-1])
    shift = _none_as_0(_lengths(given, "kv")) - _none_as_0(_lengths(given, "q"))
    compare = _BINARY[pointwise_name(options.get("comparison_mode", raw.CUDNN_POINTWISE_CMP_GE))]
    if "left_bound" in given:
        inside = compare(column + given["left_bound"] - shift, row)
    else:
        inside = compare(row + shift + given.get("shift_right_bound", 0), column)
    return {"y": np.where(inside, x, given["b"])}


def _none_as_0(values: Any) -> Any:
    return 0 if values is None else values


def softmax(options: Options, given: Given, specs: Specs) -> Made:
    """Return y = exp(x - max) / sum_exp over the last axis, max, sum_exp, and stats = max + log(sum_exp).

    A sink (1, H, 1, 1) is one more element of each row, which has no place in y. With stats_log2, stats is divided by
    log(2). A row of -infinity has y = 0 and stats = -infinity, as in cudnn-frontend's tests.
    """
    x, sink = given["x"], given.get("sink")
    largest = x.max(-1, keepdims=True, initial=-np.inf)
    largest = largest if sink is None else np.maximum(largest, sink)
    shift = np.where(np.isneginf(largest), 0.0, largest)
    powers = np.exp(x - shift)
    total = powers.sum(-1, keepdims=True) + (0.0 if sink is None else np.exp(sink - shift))
    stats = (shift + np.log(total)) / (math.log(2) if options.get("stats_log2") else 1.0)
    return {"y": np.where(total == 0, 0.0, powers / total), "stats": stats, "max": largest, "sum_exp": total}


def _rotation(options: Options, given: Given, width: int) -> tuple[slice, Float64, Float64]:
    turned = options.get("rope_dim") or width
    angles = given["freqs"][:, 0, 0, -turned:]  # (S, turned)
    scale = options.get("output_scale", 1.0)
    return slice(width - turned, width), scale * np.cos(angles), scale * np.sin(angles)


def rope_fwd(options: Options, given: Given, specs: Specs) -> Made:
    """Return y (B, H, S, D): the last rope_dim elements (all by default) of x, in two halves (a, b), turned by freqs (S, 1,
    1, D).

    (a, b) becomes output_scale * (a * cos(first half of freqs) - b * sin(first half), b * cos(second half) + a * sin(second
    half)); the other elements are multiplied by output_scale. cuDNN documents the angles, rope_dim and the scale. The halves
    are how cudnn-frontend's tests compose this rotation of other nodes; they are not confirmed on a GPU.
    """
    x = given["x"]
    turned, cos, sin = _rotation(options, given, x.shape[-1])
    y = options.get("output_scale", 1.0) * x
    a, b = np.split(x[..., turned], 2, -1)
    y[..., turned] = x[..., turned] * cos + np.concatenate([-b, a], -1) * sin
    return {"y": y}


def rope_bwd(options: Options, given: Given, specs: Specs) -> Made:
    """Return dx (B, H, S, D), the gradient of `rope_fwd` for dy: turned back, where both halves of freqs are equal."""
    dy = given["dy"]
    turned, cos, sin = _rotation(options, given, dy.shape[-1])
    dx = options.get("output_scale", 1.0) * dy
    a, b = np.split(dy[..., turned] * sin, 2, -1)
    dx[..., turned] = dy[..., turned] * cos + np.concatenate([b, -a], -1)
    return {"dx": dx}


def _scores(given: Given, specs: Specs) -> tuple[Float64, Float64, Float64, Float64, Any]:
    """Return q, k, v with the heads of q, the scores with -infinity outside the sequences, and which rows are inside."""
    q, k, v = (given[name] * given.get(f"descale_{name}", 1.0) for name in "qkv")
    if "page_table_k" in given:
        k = paged(k, given["page_table_k"], given["page_table_k"].shape[2] * k.shape[2])
    if "page_table_v" in given:
        v = paged(v, given["page_table_v"], given["page_table_v"].shape[2] * v.shape[2])
    length = min(k.shape[2], v.shape[2])
    k, v = (repeated(one[:, :, :length], q.shape[:2]) for one in (k, v))
    scores = q @ k.transpose(0, 1, 3, 2) * given.get("scale", 1.0)
    inside_q, inside_kv = (_lengths(given, side) for side in ("q", "kv"))
    if inside_kv is not None:
        scores = np.where(np.arange(length) < inside_kv, scores, -np.inf)
    if "block_mask" in given:
        scores = np.where(_block_mask(given["block_mask"], q.shape[2], length), scores, -np.inf)
    rows = True if inside_q is None else np.arange(q.shape[2])[:, None] < inside_q
    return q, k, v, scores, rows


def _block_mask(mask: Array, rows: int, columns: int) -> Array:
    """Return which scores are in blocks (128, 128) whose element of the mask is not 0, or whose bit of it is 1.

    The mask is (B, H, ceil(S_q / 128), ceil(S_kv / 128)), or has the bits of eight blocks in each byte, the lowest first.
    """
    if mask.shape[-1] < -(-columns // 128):
        mask = ((mask[..., None] >> np.arange(8)) & 1).reshape(*mask.shape[:-1], -1)
    return np.repeat(np.repeat(mask != 0, 128, -2), 128, -1)[..., :rows, :columns]


def _check_dropout(options: Options, mask: Any) -> float:
    """Return the factor of the scores that a dropout leaves. Raises ValueError for a dropout whose mask is unknown."""
    probability: float = options.get("dropout_probability", 0.0)
    if probability and mask is None:
        raise ValueError(
            "dropout_probability must be 0 for the reference, since cuDNN does not document its random bits; got "
            f"{probability}. Make dropout_rng_dump an output of the forward graph, and give the GPU's under its name"
        )
    return 1 / (1 - probability)


def sdpa_fwd(options: Options, given: Given, specs: Specs) -> Made:
    """Return o (B, H, S_q, D_v) = softmax(scale * q @ k^T) @ v and stats (B, H, S_q, 1), the logarithm of the sum of
    exponentials.

    q is (B, H, S_q, D), k (B, H_k, S_kv, D), v (B, H_v, S_kv, D_v), or k and v are pages with page tables, as in
    `paged_cache_load`. Head h reads head h // (H / H_k) of k. Positions outside seq_len_q and seq_len_kv (B, 1, 1, 1), or
    outside the blocks of block_mask, count as -infinity; rows outside are 0. Of float8 the operands are multiplied by
    descale_..., the softmax by scale_s and descale_s (without rounding between), and o by scale_o; amax_s and amax_o are the
    largest |softmax| and |o| before them. A dropout needs its mask, dropout_rng_dump: 1 where a score remains.
    """
    _, _, v, scores, rows = _scores(given, specs)
    made = softmax({}, {"x": scores}, {})
    mask = given.get("dropout_rng_dump")
    kept = np.where(rows, made["y"], 0.0)
    factor = _check_dropout(options, mask)
    weights = kept if mask is None else kept * (mask != 0) * factor
    o = (weights * given.get("scale_s", 1.0) * given.get("descale_s", 1.0)) @ v
    amax = {f"amax_{name}": np.abs(one).max(initial=0.0).reshape(1, 1, 1, 1) for name, one in (("s", kept), ("o", o))}
    dump = np.ones(kept.shape) if mask is None else mask
    return {"o": o * given.get("scale_o", 1.0), "stats": made["stats"], "dropout_rng_dump": dump, **amax}


def sdpa_bwd(options: Options, given: Given, specs: Specs) -> Made:
    """Return the gradients of `sdpa_fwd` for do (B, H, S_q, D_v), by o and stats (natural logarithm).

    With P = exp(scores - stats) and dS = P * (do @ v^T - sum(do * o)): dv = P^T @ do, dq = scale * dS @ k, dk = scale * dS^T
    @ q, summed over the heads that share a head of k or v; dsink (1, H, 1, 1) = -sum(exp(sink - stats) * sum(do * o)); dbias
    is dS summed over the axes that the bias lacks.
    """
    _check_dropout(options, None)
    q, k, v, scores, rows = _scores(given, specs)
    do, stats, scale = np.where(rows, given["do"], 0.0), given["stats"], given.get("scale", 1.0)
    weights = np.where(rows & ~np.isneginf(scores), np.exp(scores - stats), 0.0)
    total = (do * given["o"]).sum(-1, keepdims=True)
    ds = weights * (do @ v.transpose(0, 1, 3, 2) - total)
    made = {
        "dq": scale * ds @ k,
        "dk": grouped(scale * ds.transpose(0, 1, 3, 2) @ q, specs["k"].shape),
        "dv": grouped(weights.transpose(0, 1, 3, 2) @ do, specs["v"].shape),
    }
    if "sink" in given:
        made["dsink"] = -np.where(rows, np.exp(given["sink"] - stats) * total, 0.0).sum((0, 2), keepdims=True)
    if "dbias" in specs:
        axes = tuple(axis for axis, size in enumerate(specs["dbias"].shape) if size == 1)
        made["dbias"] = ds.sum(axes, keepdims=True)
    return made


def grouped(gradient: Float64, shape: Shape) -> Float64:
    """Return the sums over the heads that share one head of a shape (B, H_k, S, D)."""
    batch, heads, *rest = gradient.shape
    return np.asarray(gradient.reshape(batch, shape[1], heads // max(shape[1], 1), *rest).sum(2))


# Mixtures of experts


def _groups(offsets: Array, experts: int, rows: int) -> Iterator[tuple[int, slice]]:
    """Yield each expert with its rows; the offsets of several batches, (batches * E, 1, 1), come one after another."""
    _check_indices("first_token_offset must have ends of rows", offsets, rows + 1)
    bounds = [*offsets.ravel().tolist(), rows]
    for number in range(len(bounds) - 1):
        yield number % experts, slice(bounds[number], bounds[number + 1])


def moe_grouped_matmul(options: Options, given: Given, specs: Specs) -> Made:
    """Return output (1, T, N): row t of token (1, T, K) times the weight (E, K, N) of the expert whose rows, from
    first_token_offset[e] (E, 1, 1) to the next one, have t.

    gather: row t is token[token_index[t]]. scatter: the product of row t goes to row token_index[t] * top_k + token_ks[t] of
    output. gather and scatter are not confirmed on a GPU.
    """
    token, weight, mode = given["token"][0], given["weight"], options.get("mode", 0)
    index, rows = given.get("token_index", np.zeros(0, np.int64)).ravel(), token
    if mode == raw.CUDNN_MOE_GROUPED_MATMUL_MODE_GATHER:
        _check_indices("token_index must have rows", index, len(token))
        rows = token[index]
    product = np.zeros((rows.shape[0], weight.shape[2]))
    for expert, part in _groups(given["first_token_offset"], weight.shape[0], rows.shape[0]):
        product[part] = rows[part] @ weight[expert]
    if mode != raw.CUDNN_MOE_GROUPED_MATMUL_MODE_SCATTER:
        return {"output": product[None]}
    output = np.zeros(specs["output"].shape)
    places = index * options.get("top_k", 1) + given["token_ks"].ravel()
    _check_indices("token_index * top_k + token_ks must have rows", places, output.shape[1])
    output[0, places] = product
    return {"output": output}


def moe_grouped_matmul_bwd(options: Options, given: Given, specs: Specs) -> Made:
    """Return dweight (E, K, N): token^T @ doutput over the rows of each expert (`moe_grouped_matmul` without gather)."""
    token, doutput = given["token"][0], given["doutput"][0]
    dweight = np.zeros(specs["dweight"].shape)
    for expert, part in _groups(given["first_token_offset"], dweight.shape[0], token.shape[0]):
        dweight[expert] += token[part].T @ doutput[part]
    return {"dweight": dweight}


FUNCTIONS: Mapping[str, Callable[[Options, Given, Specs], Made]] = {
    kind: globals().get(kind) or globals()[f"{kind}_"] for kind in KINDS
}
