"""The operations beside the convolutions, as the GPU tests see them: their arrays, and how far a right result may be off.

Operations compute in float32 for float16, bfloat16 and float32, and in float64 for float64, and round once at the end.
With u the unit roundoff of the result's type, v that of the arithmetic, f the exact value that the operation has before
alpha and beta, o what stood in out, and E the error of f that each kind below states, an element may be off by

    |alpha| E + 4 v (|alpha f| + |beta o|)             what happens in the arithmetic
    2 u (|alpha f| + |beta o|)                         where alpha is not 1 or beta not 0: f may be stored in between
    u |alpha f + beta o|, and the smallest subnormal   the one rounding at the end

A sum of L terms, in any order, is within sum(L) = 2 (L + 4) v of the sum of their sizes. cuDNN's fast functions get an
allowance that no analysis gives: FAST (2^-10, tanh's instruction has 2^-11) for the activations' curves, EXPONENTIAL
(2^-16, relative) for exp, log and powers elsewhere; both 2^-48 in float64. The share of its bound that each operation
uses is printed at the end of a run, so that a bound that is too wide can be seen.

NaN and infinities must stand where the exact result has them, and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from strategies import Memory
from tolerance import ROUNDOFF, SMALLEST, allowed

from cudnnpy import reference

Float64 = NDArray[np.float64]
Arrays = dict[str, Float64]


@dataclass(frozen=True)
class Problem:
    """One call of one operation, on arrays that are made from `seed`. Its repr, pasted into a test, repeats it.

    `shape` is x's, (N, C, spatial...), whatever the layout; `other` is the second array's: add_tensor's a, the filter
    of FusedConvolution, the scale of LayerNormalization and RMSNormalization. `memory` is how the arrays of tensors
    lie, inputs first, then out. `given` names the optional arrays that the call gets. `data` says what is in x:
    "nan", "infinity" (a few of them), "whole" numbers, or "after_in_place" (y in x's place).
    """

    call: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    other: tuple[int, ...] = ()
    other_dtype: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    keywords: dict[str, Any] = field(default_factory=dict)
    given: tuple[str, ...] = ()
    memory: tuple[Memory, ...] = ()
    with_out: bool = False
    in_place: bool = False
    alpha: float = 1.0
    beta: float = 0.0
    data: str = ""
    stream: str = "current"
    repeats: int = 1
    seed: int = 0

    @property
    def operation(self) -> str:
        return self.call.split(".")[0]

    @property
    def channels_last(self) -> bool:
        return str(self.options.get("layout", "NCHW")).endswith("C")

    @property
    def is_plain(self) -> bool:
        """Packed in one order, aligned."""
        last = {memory.channels_last for memory in self.memory}
        return len(last) < 2 and not any(memory.has_gaps or memory.offset for memory in self.memory)

    def in_layout(self, axes: Sequence[int]) -> tuple[int, ...]:
        """(N, C, spatial...) in the arrays' own axis order."""
        return (axes[0], *axes[2:], axes[1]) if self.channels_last and len(axes) > 2 else tuple(axes)

    def logical(self, axes: Sequence[int]) -> tuple[int, ...]:
        """The inverse of in_layout."""
        return (axes[0], axes[-1], *axes[1:-1]) if self.channels_last and len(axes) > 2 else tuple(axes)

    @property
    def channel_axis(self) -> int:
        """The channels' axis in the arrays."""
        return len(self.shape) - 1 if self.channels_last else 1

    @property
    def spatial_axes(self) -> tuple[int, ...]:
        return tuple(axis for axis in range(1, len(self.shape)) if axis != self.channel_axis)

    def __str__(self) -> str:
        plain = Problem(self.call, self.shape)
        shown = [f.name for f in fields(self) if getattr(self, f.name) != getattr(plain, f.name)]
        return f"Problem({', '.join(f'{n}={getattr(self, n)!r}' for n in ['call', 'shape', *shown])})"


def run(package: Any, problem: Problem, arrays: dict[str, Any], keywords: dict[str, Any]) -> tuple[Any, ...]:
    """The call, of cudnnpy or of its twin: arrays that must be there by position, the rest by name."""
    name, _, method = problem.call.partition(".")
    function = getattr(package, name)
    if method:
        function = getattr(function(**problem.options), method)
    positional = [array for name, array in arrays.items() if name not in problem.given]
    named = {name: array for name, array in arrays.items() if name in problem.given}
    found = function(*positional, **named, **keywords)
    return found if isinstance(found, tuple) else (found,)


def rounded(values: Float64, dtype: str) -> Float64:
    """What is left of values that are stored in a type."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(getattr(torch, dtype)).to(torch.float64).numpy()


def arithmetic(dtype: str) -> float:
    """v: the unit roundoff of what an operation computes in."""
    return ROUNDOFF["float64" if dtype == "float64" else "float32"]


def fast(dtype: str) -> float:
    return 2.0**-48 if dtype == "float64" else 2.0**-10


def exponential(dtype: str) -> float:
    return 2.0**-48 if dtype == "float64" else 2.0**-16


def sum_error(length: int, v: float) -> float:
    """A sum's error as a share of the sum of its terms' sizes."""
    return 2.0 * (length + 4) * v


def bound(f: Float64, error: Float64, dtype: str, alpha: float, beta: float, before: Float64 | None) -> Float64:
    """The error allowed in each element of a result, by the formula above."""
    u, v = ROUNDOFF[dtype], arithmetic(dtype)
    scaled, added = np.abs(alpha * f), np.abs(beta * before) if before is not None and beta else np.zeros(())
    result = alpha * f + (beta * before if before is not None and beta else 0.0)
    inside = abs(alpha) * error + 4.0 * v * (scaled + added)
    if alpha != 1.0 or beta:
        inside = inside + 2.0 * u * (scaled + added)
    return np.asarray((1.0 + u) * inside + u * np.abs(result) * (1.0 + 2.0**-10) + SMALLEST[dtype])


class Kind:
    """What the tests know of a call: its arrays in the signature's order, its results, its error."""

    tensors = 1  # arrays of x's rank among the inputs, at most
    in_place = ""  # the input that out may be
    factors: tuple[str, ...] = ("alpha", "beta")  # those of them that the call takes
    is_bound = False  # whether `errors` gives the whole bound, not E alone
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16", "float64")
    results: tuple[str, ...] = ("y",)

    def inputs(self, p: Problem, random: np.random.Generator) -> Arrays:
        """The values of the arrays, in the arrays' axis order, not yet rounded to their types."""
        return {"x": special(p, uniform(random, p.in_layout(p.shape)), random)}

    def updated(self, p: Problem) -> tuple[str, ...]:
        """The inputs that the call changes: results too."""
        return ()

    def dtype_of(self, p: Problem, name: str) -> str:
        """The type of an array, given or returned."""
        return p.dtype

    def twin_keywords(self, p: Problem) -> dict[str, Any]:
        """What the twin is told, to give f."""
        return dict(p.keywords)

    def outs(self, p: Problem) -> dict[str, str]:
        """The results that the caller gives an array for, and its keyword."""
        return {self.results[0]: "out"} if p.with_out or p.in_place else {}

    def blend(self, p: Problem, result: str) -> tuple[float, float]:
        """The alpha and beta of result = alpha f + beta out."""
        return (p.alpha, p.beta) if result == self.results[0] else (1.0, 0.0)

    def errors(self, p: Problem, a: Arrays, f: Arrays) -> Arrays:
        """E of each result, given the inputs' values and the exact results."""
        raise NotImplementedError

    def is_deterministic(self, p: Problem) -> bool:
        return True


def uniform(random: np.random.Generator, shape: Sequence[int], low: float = -1.0, high: float = 1.0) -> Float64:
    return np.asarray(random.uniform(low, high, shape))


def special(p: Problem, values: Float64, random: np.random.Generator) -> Float64:
    """With a few NaN or infinities, if the problem asks for them."""
    chosen = {"nan": [math.nan], "infinity": [math.inf, -math.inf]}.get(p.data)
    if chosen is not None:
        at = random.choice(values.size, max(1, values.size // 16), replace=False)
        values.reshape(-1)[at] = random.choice(chosen, at.size)
    return values


def zero(f: Float64) -> Float64:
    return np.zeros(f.shape)


# Element by element


class ActivationForward(Kind):
    """E: nothing for relu, clipped_relu and identity; fast x (1; |coefficient| for elu; |x| for swish)."""

    in_place = "x"

    def inputs(self, p: Problem, random: np.random.Generator) -> Arrays:
        return {"x": special(p, uniform(random, p.shape, -4, 4), random)}

    def errors(self, p: Problem, a: Arrays, f: Arrays) -> Arrays:
        mode, x = p.options.get("mode", "relu"), a["x"]
        size = {"sigmoid": 1.0, "tanh": 1.0, "elu": abs(p.options.get("coefficient", 1.0)), "swish": np.abs(x)}
        return {"y": fast(p.dtype) * size.get(mode, 0.0) * np.ones(x.shape)}


class ActivationBackward(Kind):
    """E: nothing for relu, clipped_relu, identity; 8 v |dy| for sigmoid and tanh, which are products of y; fast x |dy|
    x |coefficient| for elu, and x (1 + |coefficient x|) for swish.
    """

    tensors = 3
    in_place = "dy"
    results = ("dx",)

    def inputs(self, p: Problem, random: np.random.Generator) -> Arrays:
        x = rounded(uniform(random, p.shape, -4, 4), p.dtype)
        y = rounded(np.asarray(reference.Activation(**p.options).forward(x)), p.dtype)
        return {"dy": uniform(random, p.shape), "x": y if p.data == "after_in_place" else x, "y": y}

    def errors(self, p: Problem, a: Arrays, f: Arrays) -> Arrays:
        mode, c, dy = p.options.get("mode", "relu"), abs(p.options.get("coefficient", 1.0)), np.abs(a["dy"])
        product = 8.0 * arithmetic(p.dtype)
        share = {"sigmoid": product, "tanh": product, "elu": fast(p.dtype) * c}.get(mode, 0.0)
        if mode == "swish":
            return {"dx": fast(p.dtype) * (1.0 + c * np.abs(a["x"])) * dy}
        return {"dx": share * dy}


class AddTensor(Kind):
    """E: 4 v (|alpha a| + |beta b|), and 2 u of the same where one factor is not 1."""

    tensors = 2
    in_place = "b"
    results = ("out",)

    def blend(self, p: Problem, result: str) -> tuple[float, float]:
        return 1.0, 0.0

    def twin_keywords(self, p: Problem) -> dict[str, Any]:
        return {"alpha": p.alpha, "beta": p.beta}

    def inputs(self, p: Problem, random: np.random.Generator) -> Arrays:
        return {"a": special(p, uniform(random, p.other), random), "b": uniform(random, p.shape)}

    def errors(self, p: Problem, a: Arrays, f: Arrays) -> Arrays:
        size = np.abs(p.alpha * a["a"]) + np.abs(p.beta * a["b"])
        scaled = p.alpha != 1.0 or p.beta != 1.0
        return {"out": (4.0 * arithmetic(p.dtype) + 2.0 * ROUNDOFF[p.dtype] * scaled) * size}


class ScaleTensor(Kind):
    """E: nothing but a rounded product."""

    in_place = "x"
    factors = ("alpha",)
    results = ("out",)

    def blend(self, p: Problem, result: str) -> tuple[float, float]:
        return 1.0, 0.0

    def twin_keywords(self, p: Problem) -> dict[str, Any]:
        return {"alpha": p.alpha}

    def errors(self, p: Problem, a: Arrays, f: Arrays) -> Arrays:
        return {"out": zero(f["out"])}


class SetTensor(Kind):
    """E: nothing."""

    tensors = 0
    factors = ()
    results = ("out",)

    def inputs(self, p: Problem, random: np.random.Generator) -> Arrays:
        return {}

    def errors(self, p: Problem, a: Arrays, f: Arrays) -> Arrays:
        return {"out": zero(f["out"])}


class TransformTensor(Kind):
    """E: nothing. `other_dtype` is the result's type, told by out or by the keyword."""

    results = ("out",)

    def dtype_of(self, p: Problem, name: str) -> str:
        return p.dtype if name == "x" else p.other_dtype or p.dtype

    def twin_keywords(self, p: Problem) -> dict[str, Any]:
        return {}

    def errors(self, p: Problem, a: Arrays, f: Arrays) -> Arrays:
        return {"out": zero(f["out"])}


class ReduceTensor(Kind):
    """E over L elements: sum(L) of the sum, mean or norm of the sizes (add, avg, norm1); 4 (L + 4) v of the result for
    products and norm2; nothing for min, max, amax.
    """

    results = ("out",)

    def inputs(self, p: Problem, random: np.random.Generator) -> Arrays:
        op = p.keywords.get("op", "add")
        if not op.startswith("mul"):
            return {"x": special(p, uniform(random, p.shape), random)}
        x = random.choice([-1.0, 1.0], p.shape)  # and a few others, so that no product leaves a type's range
        at = random.choice(x.size, min(x.size, 6), replace=False)
        x.reshape(-1)[at] = uniform(random, at.shape, 0.5, 2.0)
        if op == "mul_no_zeros":
            x.reshape(-1)[random.choice(x.size, x.size // 4, replace=False)] = 0.0
        return {"x": x}

    def errors(self, p: Problem, a: Arrays, f: Arrays) -> Arrays:
        op, out = p.keywords.get("op", "add"), f["out"]
        length, v = a["x"].size // out.size, arithmetic(p.dtype)
        if op in ("min", "max", "amax"):
            return {"out": zero(out)}
        if op in ("add", "sum", "avg", "mean", "norm1"):
            axes = tuple(axis for axis in range(a["x"].ndim) if out.shape[axis] == 1)
            total = np.abs(a["x"]).sum(axis=axes, keepdims=True)
            return {"out": sum_error(length, v) * total / (length if op in ("avg", "mean") else 1)}
        return {"out": 4.0 * (length + 4) * v * np.abs(out)}


# Windows and channels


def distinct(random: np.random.Generator, shape: Sequence[int], dtype: str) -> Float64:
    """Numbers of which no two are equal, as every type holds them: 7 bits of mantissa, 25 exponents, both signs."""
    size = math.prod(shape)
    assert size <= 6400, f"{size} distinct numbers"
    chosen = random.choice(6400, size, replace=False)
    k = chosen // 2
    return np.asarray(np.where(chosen % 2, -1.0, 1.0) * (1 + k % 128 / 128) * 2.0 ** (k // 128 - 12)).reshape(shape)


def pool_shape(p: Problem) -> tuple[int, ...]:
    return tuple(reference.Pooling(**p.options).output_shape(p.in_layout(p.shape)))


def is_maximum(p: Problem) -> bool:
    return str(p.options.get("mode", "max")).startswith("max")


def window_size(p: Problem) -> int:
    window = p.options.get("window", 2)
    return window ** (len(p.shape) - 2) if isinstance(window, int) else math.prod(window)


class PoolingForward(Kind):
    """E over windows of L: nothing for the maximum; sum(L) of the average of sizes."""

    def inputs(self, p: Problem, random: np.random.Generator) -> Arrays:
        shape = p.in_layout(p.shape)
        values = distinct(random, shape, p.dtype) if is_maximum(p) else uniform(random, shape)
        return {"x": special(p, values, random)}

    def errors(self, p: Problem, a: Arrays, f: Arrays) -> Arrays:
        if is_maximum(p):
            return {"y": zero(f["y"])}
        sizes = np.asarray(reference.Pooling(**p.options).forward(np.abs(a["x"])))
        return {"y": sum_error(window_size(p), arithmetic(p.dtype)) * sizes}


class PoolingBackward(Kind):
    """E: an element gets at most L terms, one from each window that it is in: sum(L) of the sum of their sizes."""

    tensors = 3
    results = ("dx",)

    def inputs(self, p: Problem, random: np.random.Generator) -> Arrays:
        x = distinct(random, p.in_layout(p.shape), p.dtype)
        y = rounded(np.asarray(reference.Pooling(**p.options).forward(x)), p.dtype)
        return {"dy": uniform(random, y.shape), "x": x, "y": y}

    def errors(self, p: Problem, a: Arrays, f: Arrays) -> Arrays:
        sizes = np.asarray(reference.Pooling(**p.options).backward(np.abs(a["dy"]), a["x"], a["y"]))
        return {"dx": sum_error(window_size(p), arithmetic(p.dtype)) * sizes}

    def is_deterministic(self, p: Problem) -> bool:
        return p.options.get("mode", "max") != "max"


def softmax_axes(p: Problem) -> tuple[int, ...]:
    return (p.channel_axis,) if p.options.get("mode", "channel") == "channel" else tuple(range(1, len(p.shape)))


class SoftmaxForward(Kind):
    """E over L classes: y (2 exponential + 8 v max |x| + 2 sum(L)); for log, that without the factor y, and
    4 v (|x| + max |x| + |y|).
    """

    in_place = "x"

    def inputs(self, p: Problem, random: np.random.Generator) -> Arrays:
        return {"x": special(p, uniform(random, p.in_layout(p.shape), -4, 4), random)}

    def errors(self, p: Problem, a: Arrays, f: Arrays) -> Arrays:
        axes, v, x, y = softmax_axes(p), arithmetic(p.dtype), np.abs(a["x"]), np.abs(f["y"])
        length, largest = math.prod(x.shape[axis] for axis in axes), x.max(axis=axes, keepdims=True)
        share = 2.0 * exponential(p.dtype) + 8.0 * v * largest + 2.0 * sum_error(length, v)
        if p.options.get("algorithm", "accurate") == "log":
            return {"y": share + 4.0 * v * (x + largest + y)}
        return {"y": share * y}


class SoftmaxBackward(Kind):
    """E: y (8 v |dy| + 2 sum(L) sum |dy y|); for log 4 v |dy| + exp(y) (exponential + 2 sum(L)) sum |dy|."""

    tensors = 2
    in_place = "dy"
    results = ("dx",)

    def inputs(self, p: Problem, random: np.random.Generator) -> Arrays:
        x = uniform(random, p.in_layout(p.shape), -4, 4)
        return {"dy": uniform(random, x.shape), "y": np.asarray(reference.Softmax(**p.options).forward(x))}

    def errors(self, p: Problem, a: Arrays, f: Arrays) -> Arrays:
        axes, v, dy, y = softmax_axes(p), arithmetic(p.dtype), np.abs(a["dy"]), a["y"]
        summed = sum_error(math.prod(y.shape[axis] for axis in axes), v)
        if p.options.get("algorithm", "accurate") == "log":
            total = dy.sum(axis=axes, keepdims=True)
            return {"dx": 4.0 * v * dy + np.exp(y) * (exponential(p.dtype) + 2.0 * summed) * total}
        return {"dx": np.abs(y) * (8.0 * v * dy + 2.0 * summed * (dy * np.abs(y)).sum(axis=axes, keepdims=True))}


def response_base(p: Problem, x: Float64) -> Float64:
    """What LocalResponseNormalization divides by, before the power."""
    size, channels = p.options.get("size", 5), x.shape[p.channel_axis]
    squares = np.moveaxis(x * x, p.channel_axis, 0)
    total = np.stack([squares[max(0, c - (size - 1) // 2) : c + size // 2 + 1].sum(0) for c in range(channels)])
    base = p.options.get("k", 2.0) + p.options.get("alpha", 1e-4) / size * total
    return np.moveaxis(base, 0, p.channel_axis)


def response_share(p: Problem) -> float:
    """The relative error of the power: exponential, and that of the base `beta` times."""
    power = p.options.get("beta", 0.75)
    return (1.0 + power) * (exponential(p.dtype) + sum_error(p.options.get("size", 5), arithmetic(p.dtype)))


class ResponseForward(Kind):
    """E: |y| (1 + b) (exponential + sum(size)), with b the power."""

    def inputs(self, p: Problem, random: np.random.Generator) -> Arrays:
        return {"x": uniform(random, p.in_layout(p.shape), -2, 2)}

    def errors(self, p: Problem, a: Arrays, f: Arrays) -> Arrays:
        return {"y": response_share(p) * np.abs(f["y"])}


class ResponseBackward(Kind):
    """E: 2 (1 + b) (exponential + sum(size)) of the two terms' sizes, dy / base^b and the sum over the window; and 2 u of
    the sum, which may be made of the rounded y.
    """

    tensors = 3
    results = ("dx",)

    def inputs(self, p: Problem, random: np.random.Generator) -> Arrays:
        x = rounded(uniform(random, p.in_layout(p.shape), -2, 2), p.dtype)
        y = np.asarray(reference.LocalResponseNormalization(**p.options).forward(x))
        return {"dy": uniform(random, x.shape), "x": x, "y": y}

    def errors(self, p: Problem, a: Arrays, f: Arrays) -> Arrays:
        sizes = {name: np.abs(array) for name, array in a.items()}
        first = sizes["dy"] * response_base(p, a["x"]) ** -p.options.get("beta", 0.75)
        twin = reference.LocalResponseNormalization(**p.options).backward(sizes["dy"], sizes["x"], sizes["y"])
        second = np.abs(first - np.asarray(twin))
        return {"dx": 2.0 * response_share(p) * (first + second) + 2.0 * ROUNDOFF[p.dtype] * second}


# Normalizations


class Statistics:
    """Mean, variance and 1 / sqrt(variance + epsilon) over some axes of x, each with its error.

    Over m elements: mean sum(m) mean|x|; variance 2 sum(m) mean(x^2), which allows mean(x^2) - mean^2; the inverse what
    the variance's error does to it, and 8 v of itself. Not centred (RMS): the mean is 0 and exact.
    """

    def __init__(self, x: Float64, axes: tuple[int, ...], epsilon: float, v: float, centred: bool = True) -> None:
        self.v, self.axes = v, axes
        self.count = math.prod(x.shape[axis] for axis in axes)
        summed = sum_error(self.count, v)
        square = (x * x).mean(axis=axes, keepdims=True)
        self.mean, self.mean_error = np.zeros(square.shape), np.zeros(square.shape)
        self.variance, self.variance_error = square, summed * square
        if centred:
            self.mean = x.mean(axis=axes, keepdims=True)
            self.mean_error = summed * np.abs(x).mean(axis=axes, keepdims=True)
            self.variance = ((x - self.mean) ** 2).mean(axis=axes, keepdims=True)
            self.variance_error = 2.0 * summed * square
        self.inverse = (self.variance + epsilon) ** -0.5
        lowest = np.maximum(self.variance - self.variance_error, 0.0) + epsilon
        self.inverse_error = lowest**-0.5 - self.inverse + 8.0 * v * self.inverse

    def forward_error(self, x: Float64, scale: Float64, bias: Float64) -> Float64:
        """Of scale (x - mean) inverse + bias, however it is multiplied out."""
        scale, size = np.abs(scale), np.abs(x) + np.abs(self.mean)
        moved = (self.inverse + self.inverse_error) * self.mean_error
        turned = np.abs(x - self.mean) * self.inverse_error
        return np.asarray(scale * (moved + turned) + 8.0 * self.v * (scale * self.inverse * size + np.abs(bias)))

    def backward_errors(
        self, dy: Float64, x: Float64, scale: Float64, over: tuple[int, ...], centred: bool = True
    ) -> tuple[Float64, Float64, Float64]:
        """Of dx, dscale and dbias; `over` are the axes that the parameters are summed over.

        With g = |dy|, w = |scale| g and n = |x - mean| inverse, whose error is N: dx is inverse (w - mean(w) -
        n mean(w n)), each of whose terms has its own rounding, its sum's, and N's share; dscale sums g n, dbias g.
        """
        v, g = self.v, np.abs(dy)
        w, n = g * np.abs(scale), np.abs(x - self.mean) * self.inverse
        n_error = 4.0 * v * (np.abs(x) + np.abs(self.mean)) * self.inverse
        n_error = n_error + self.inverse * self.mean_error + np.abs(x - self.mean) * self.inverse_error

        def mean(values: Float64) -> Float64:
            return np.asarray(values.mean(axis=self.axes, keepdims=True))

        summed = sum_error(self.count, v)
        terms = w + (mean(w) if centred else 0.0) + n * mean(w * n)
        error = 8.0 * v * terms + summed * (mean(w) if centred else 0.0)
        error = error + n * (summed * mean(w * n) + mean(w * n_error)) + n_error * mean(w * n)
        dx = self.inverse * error + self.inverse_error * terms
        share = sum_error(math.prod(x.shape[axis] for axis in over), v)
        dscale = (share * g * n + g * n_error).sum(axis=over)
        return np.asarray(dx), np.asarray(dscale), np.asarray(share * g.sum(axis=over))


class Normalization(Kind):
    """What the four normalizations share: parameters in the arithmetic's type, and where they lie."""

    parameters = ("scale", "bias")
    statistics: tuple[str, ...] = ()  # the saved ones, as the call names them
    factors = ()
    centred = True
    dtypes = ("float32", "float16", "bfloat16")

    def dtype_of(self, p: Problem, name: str) -> str:
        if name in ("x", "dy", "y", "dx"):
            return p.dtype
        return "float64" if p.dtype == "float64" else "float32"

    def axes(self, p: Problem) -> tuple[int, ...]:
        """What a mean is over."""
        raise NotImplementedError

    def over(self, p: Problem) -> tuple[int, ...]:
        """What a parameter's gradient is summed over."""
        return tuple(axis for axis in range(len(p.shape)) if axis != p.channel_axis)

    def parameter_shape(self, p: Problem) -> tuple[int, ...]:
        return (p.shape[1],)

    def spread(self, p: Problem, parameter: Float64) -> Float64:
        """A parameter as x's axes see it."""
        over = self.over(p)
        return parameter.reshape([1 if axis in over else n for axis, n in enumerate(p.in_layout(p.shape))])

    def make(self, p: Problem, random: np.random.Generator) -> Arrays:
        """x, and the parameters."""
        x = special(p, uniform(random, p.in_layout(p.shape), -2, 2), random)
        shape = self.parameter_shape(p)
        numbers = {"scale": uniform(random, shape, 0.5, 2.0), "bias": uniform(random, shape)}
        return {"x": x, **{name: numbers[name] for name in self.parameters}}

    def of(self, p: Problem, x: Float64) -> Statistics:
        return Statistics(x, self.axes(p), p.options.get("epsilon", 1e-5), arithmetic(p.dtype), self.centred)

    def inputs(self, p: Problem, random: np.random.Generator) -> Arrays:
        return self.make(p, random)

    def forward_error(self, p: Problem, a: Arrays) -> tuple[Statistics, Float64]:
        found = self.of(p, a["x"])
        bias = self.spread(p, a["bias"]) if "bias" in a else np.zeros(())
        return found, found.forward_error(a["x"], self.spread(p, a["scale"]), bias)

    def errors(self, p: Problem, a: Arrays, f: Arrays) -> Arrays:
        found, error = self.forward_error(p, a)
        saved = {"mean": found.mean_error, "inverse_variance": found.inverse_error, "inverse_rms": found.inverse_error}
        saved |= {"saved_mean": found.mean_error, "saved_inverse_variance": found.inverse_error}
        return {"y": error, **{name: saved[name].reshape(f[name].shape) for name in self.results if name != "y"}}


class NormalizationBackward(Normalization):
    """The gradients; what forward_training saved is an input, made by the twin."""

    tensors = 2
    results = ("dx", "dscale", "dbias")

    def inputs(self, p: Problem, random: np.random.Generator) -> Arrays:
        made = self.make(p, random)
        x = rounded(made["x"], p.dtype)
        found = self.of(p, x)
        shape = self.saved_shape(p)
        values = {"mean": found.mean, "inverse_variance": found.inverse, "inverse_rms": found.inverse}
        values |= {"saved_mean": found.mean, "saved_inverse_variance": found.inverse}
        saved = {name: values[name].reshape(shape) for name in self.saved(p)}
        return {"dy": uniform(random, x.shape), "x": x, "scale": made["scale"], **saved}

    def saved(self, p: Problem) -> tuple[str, ...]:
        return self.statistics

    def saved_shape(self, p: Problem) -> tuple[int, ...]:
        return self.parameter_shape(p)

    def errors(self, p: Problem, a: Arrays, f: Arrays) -> Arrays:
        scale = self.spread(p, a["scale"])
        errors = self.of(p, a["x"]).backward_errors(a["dy"], a["x"], scale, self.over(p), self.centred)
        return {name: error.reshape(f[name].shape) for name, error in zip(self.results, errors, strict=False)}


class _Batch(Normalization):
    dtypes = ("float32", "float16", "bfloat16", "float64")
    factors = ("alpha", "beta")

    def axes(self, p: Problem) -> tuple[int, ...]:
        return self.over(p)

    def over(self, p: Problem) -> tuple[int, ...]:
        return (0,) if p.options.get("mode") == "per_activation" else super().over(p)

    def parameter_shape(self, p: Problem) -> tuple[int, ...]:
        return p.in_layout(p.shape)[1:] if p.options.get("mode") == "per_activation" else (p.shape[1],)


class BatchTraining(_Batch):
    """As Statistics says; running statistics: the share of the new ones' error, and 4 v."""

    results = ("y", "saved_mean", "saved_inverse_variance")

    def inputs(self, p: Problem, random: np.random.Generator) -> Arrays:
        made, shape = self.make(p, random), self.parameter_shape(p)
        if "running_mean" in p.given:
            made["running_mean"] = uniform(random, shape)
            made["running_variance"] = uniform(random, shape, 0.5, 2.0)
        return made

    def updated(self, p: Problem) -> tuple[str, ...]:
        return ("running_mean", "running_variance") if "running_mean" in p.given else ()

    def errors(self, p: Problem, a: Arrays, f: Arrays) -> Arrays:
        errors = super().errors(p, a, f)
        if "running_mean" in p.given:
            found, share = self.of(p, a["x"]), p.keywords.get("average_factor", 0.1)
            unbiased = found.count / max(found.count - 1, 1)
            for name, error in (("mean", found.mean_error), ("variance", unbiased * found.variance_error)):
                before = np.abs(a[f"running_{name}"])
                errors[f"running_{name}"] = share * error.reshape(before.shape) + 8.0 * found.v * (
                    before + np.abs(f[f"running_{name}"])
                )
        return errors


class BatchInference(_Batch):
    """As Statistics says, with mean and variance exact."""

    def inputs(self, p: Problem, random: np.random.Generator) -> Arrays:
        shape = self.parameter_shape(p)
        return {**self.make(p, random), "mean": uniform(random, shape), "variance": uniform(random, shape, 0.1, 2.0)}

    def errors(self, p: Problem, a: Arrays, f: Arrays) -> Arrays:
        scale, bias, mean, variance = (np.abs(self.spread(p, a[n])) for n in ("scale", "bias", "mean", "variance"))
        inverse = (variance + p.options.get("epsilon", 1e-5)) ** -0.5
        return {"y": 16.0 * arithmetic(p.dtype) * (scale * inverse * (np.abs(a["x"]) + mean) + bias)}


class BatchBackward(NormalizationBackward, _Batch):
    """As Statistics says."""

    statistics = ("saved_mean", "saved_inverse_variance")

    def outs(self, p: Problem) -> dict[str, str]:
        named = {"dscale": "out_scale", "dbias": "out_bias"}
        return super().outs(p) | {result: name for result, name in named.items() if name in p.given}

    def blend(self, p: Problem, result: str) -> tuple[float, float]:
        if result == "dx":
            return p.alpha, p.beta
        return p.keywords.get("parameter_alpha", 1.0), p.keywords.get("parameter_beta", 0.0)

    def twin_keywords(self, p: Problem) -> dict[str, Any]:
        return {}

    def saved(self, p: Problem) -> tuple[str, ...]:
        return self.statistics if "saved_mean" in p.given else ()


class _Layer(Normalization):
    def axes(self, p: Problem) -> tuple[int, ...]:
        return tuple(range(len(p.shape) - len(p.other), len(p.shape)))

    def over(self, p: Problem) -> tuple[int, ...]:
        return tuple(range(len(p.shape) - len(p.other)))

    def parameter_shape(self, p: Problem) -> tuple[int, ...]:
        return p.other


class LayerTraining(_Layer):
    """As Statistics says."""

    results = ("y", "mean", "inverse_variance")


class LayerInference(_Layer):
    """As Statistics says."""


class LayerBackward(NormalizationBackward, _Layer):
    """As Statistics says."""

    statistics = ("mean", "inverse_variance")

    def saved_shape(self, p: Problem) -> tuple[int, ...]:
        return p.shape[: len(p.shape) - len(p.other)]


class _RootMeanSquare(_Layer):
    parameters = ("scale",)
    centred = False


class RootMeanSquareTraining(_RootMeanSquare):
    """As Statistics says."""

    results = ("y", "inverse_rms")


class RootMeanSquareInference(_RootMeanSquare):
    """As Statistics says."""


class RootMeanSquareBackward(LayerBackward):
    """As Statistics says."""

    parameters = ("scale",)
    centred = False
    statistics = ("inverse_rms",)
    results = ("dx", "dscale")


class _Instance(Normalization):
    def axes(self, p: Problem) -> tuple[int, ...]:
        return p.spatial_axes


class InstanceTraining(_Instance):
    """As Statistics says."""

    results = ("y", "mean", "inverse_variance")


class InstanceInference(_Instance):
    """As Statistics says."""


class InstanceBackward(NormalizationBackward, _Instance):
    """As Statistics says."""

    statistics = ("mean", "inverse_variance")

    def saved_shape(self, p: Problem) -> tuple[int, ...]:
        return p.shape[:2]


# A convolution with all that can follow it


class Fused(Kind):
    """tolerance.allowed, with |scale| times the sum of products, and |bias| + |residual| added."""

    tensors = 3
    factors = ()
    is_bound = True
    dtypes = ("float16", "bfloat16", "float32")

    def inputs(self, p: Problem, random: np.random.Generator) -> Arrays:
        def numbers(shape: Sequence[int]) -> Float64:
            if p.data == "whole":
                return random.integers(-2, 3, shape).astype(np.float64)
            return uniform(random, shape)

        made = {"x": numbers(p.in_layout(p.shape)), "w": numbers(p.in_layout(p.other))}
        out = reference.FusedConvolution(**p.options).output_shape(made["x"].shape, made["w"].shape)
        shapes = {"scale": (p.other[0],), "bias": (p.other[0],), "residual": tuple(out)}
        return made | {name: numbers(shape) for name, shape in shapes.items() if name in p.given}

    def dtype_of(self, p: Problem, name: str) -> str:
        return p.other_dtype or p.dtype if name in ("scale", "bias") else p.dtype

    def errors(self, p: Problem, a: Arrays, f: Arrays) -> Arrays:
        conv = reference.FusedConvolution(**p.options)
        optional = {name: a[name] for name in p.given}
        # float32 is the widest type that the twin takes; what its rounding adds is far below the bound
        narrow = {name: array.astype(np.float32) for name, array in (a | optional).items()}
        z = conv.forward(**narrow, activation=None).astype(np.float64)
        sizes = {name: np.abs(array) for name, array in narrow.items() if name in ("x", "w", "scale")}
        products = conv.forward(**sizes, activation=None).astype(np.float64)
        axis = p.channel_axis
        bias = optional.get("bias", np.zeros(()))
        spread = bias.reshape([-1 if a == axis else 1 for a in range(z.ndim)]) if bias.ndim else bias
        added = np.abs(spread) + np.abs(optional.get("residual", np.zeros(())))
        return {
            "y": allowed(
                z,
                f["y"],
                products,
                added,
                inputs=p.dtype,
                stored=p.dtype,
                length=math.prod(p.other[1:]),
                tf32=p.dtype == "float32" and p.options.get("tf32", True),
                exact=p.data == "whole",
                epilogue=True,
                activation=p.keywords.get("activation", "relu"),
            )
        }

    def is_deterministic(self, p: Problem) -> bool:
        return bool(p.options.get("deterministic", False))


KINDS: dict[str, Kind] = {
    "Activation.forward": ActivationForward(),
    "Activation.backward": ActivationBackward(),
    "Pooling.forward": PoolingForward(),
    "Pooling.backward": PoolingBackward(),
    "Softmax.forward": SoftmaxForward(),
    "Softmax.backward": SoftmaxBackward(),
    "LocalResponseNormalization.forward": ResponseForward(),
    "LocalResponseNormalization.backward": ResponseBackward(),
    "add_tensor": AddTensor(),
    "scale_tensor": ScaleTensor(),
    "set_tensor": SetTensor(),
    "transform_tensor": TransformTensor(),
    "reduce_tensor": ReduceTensor(),
    "BatchNormalization.forward_training": BatchTraining(),
    "BatchNormalization.forward_inference": BatchInference(),
    "BatchNormalization.backward": BatchBackward(),
    "LayerNormalization.forward_training": LayerTraining(),
    "LayerNormalization.forward_inference": LayerInference(),
    "LayerNormalization.backward": LayerBackward(),
    "RMSNormalization.forward_training": RootMeanSquareTraining(),
    "RMSNormalization.forward_inference": RootMeanSquareInference(),
    "RMSNormalization.backward": RootMeanSquareBackward(),
    "InstanceNormalization.forward_training": InstanceTraining(),
    "InstanceNormalization.forward_inference": InstanceInference(),
    "InstanceNormalization.backward": InstanceBackward(),
    "FusedConvolution.forward": Fused(),
}
