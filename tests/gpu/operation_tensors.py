"""The operations element by element, in windows and over channels: their arrays and errors (see operation_problem)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from operation_problem import (
    Arrays,
    Float64,
    Kind,
    Problem,
    arithmetic_roundoff,
    exponential_error,
    fast_function_error,
    no_error,
    rounded_to,
    sum_error,
    uniform,
    with_special_values,
)
from tolerance import ROUNDOFF

from cudnnpy import reference

# Element by element


class ActivationForward(Kind):
    """E: nothing for relu, clipped_relu and identity; fast x (1; |coefficient| for elu; |x| for swish)."""

    in_place = "x"

    def inputs(self, p: Problem, random: np.random.Generator) -> Arrays:
        return {"x": with_special_values(p, uniform(random, p.shape, -4, 4), random)}

    def errors(self, p: Problem, a: Arrays, f: Arrays) -> Arrays:
        mode, x = p.options.get("mode", "relu"), a["x"]
        size = {"sigmoid": 1.0, "tanh": 1.0, "elu": abs(p.options.get("coefficient", 1.0)), "swish": np.abs(x)}
        return {"y": fast_function_error(p.dtype) * size.get(mode, 0.0) * np.ones(x.shape)}


class ActivationBackward(Kind):
    """E: nothing for relu, clipped_relu, identity; 8 v |dy| for sigmoid and tanh, which are products of y; fast x |dy|
    x |coefficient| for elu, and x (1 + |coefficient x|) for swish. elu may be dy (y + coefficient): u of the latter more.
    """

    tensors = 3
    in_place = "dy"
    results = ("dx",)

    def inputs(self, p: Problem, random: np.random.Generator) -> Arrays:
        x = rounded_to(uniform(random, p.shape, -4, 4), p.dtype)
        y = rounded_to(np.asarray(reference.Activation(**p.options).forward(x)), p.dtype)
        return {"dy": uniform(random, p.shape), "x": y if p.data == "after_in_place" else x, "y": y}

    def errors(self, p: Problem, a: Arrays, f: Arrays) -> Arrays:
        mode, c, dy = p.options.get("mode", "relu"), abs(p.options.get("coefficient", 1.0)), np.abs(a["dy"])
        product = 8.0 * arithmetic_roundoff(p.dtype)
        share = {
            "sigmoid": product,
            "tanh": product,
            "elu": (fast_function_error(p.dtype) + ROUNDOFF[p.dtype]) * c,
        }.get(mode, 0.0)
        if mode == "swish":
            return {"dx": fast_function_error(p.dtype) * (1.0 + c * np.abs(a["x"])) * dy}
        return {"dx": share * dy}


# Windows and channels


def distinct(random: np.random.Generator, shape: Sequence[int]) -> Float64:
    """Numbers of which no two are equal, as every type holds them: 7 bits of mantissa, 25 exponents, both signs."""
    size = math.prod(shape)
    assert size <= 6400, f"{size} distinct numbers"
    chosen = random.choice(6400, size, replace=False)
    k = chosen // 2
    return np.asarray(np.where(chosen % 2, -1.0, 1.0) * (1 + k % 128 / 128) * 2.0 ** (k // 128 - 12)).reshape(shape)


def is_maximum(p: Problem) -> bool:
    return str(p.options.get("mode", "max")).startswith("max")


def window_size(p: Problem) -> int:
    window = p.options.get("window", 2)
    return window ** (len(p.shape) - 2) if isinstance(window, int) else math.prod(window)


class PoolingForward(Kind):
    """E over windows of L: nothing for the maximum; sum(L) of the average of sizes."""

    def inputs(self, p: Problem, random: np.random.Generator) -> Arrays:
        shape = p.in_layout(p.shape)
        values = with_special_values(p, distinct(random, shape) if is_maximum(p) else uniform(random, shape), random)
        if is_maximum(p):  # of nothing but -infinity cuDNN makes the lowest number
            values[np.isneginf(values)] = np.inf
        return {"x": values}

    def errors(self, p: Problem, a: Arrays, f: Arrays) -> Arrays:
        if is_maximum(p):
            return {"y": no_error(f["y"])}
        sizes = np.asarray(reference.Pooling(**p.options).forward(np.abs(a["x"])))
        return {"y": sum_error(window_size(p), arithmetic_roundoff(p.dtype)) * sizes}


class PoolingBackward(Kind):
    """E: an element gets at most L terms, one from each window that it is in: sum(L) of the sum of their sizes.

    Maxima's are added in memory, so in the result's type: u for v.
    """

    tensors = 3
    results = ("dx",)

    def inputs(self, p: Problem, random: np.random.Generator) -> Arrays:
        x = distinct(random, p.in_layout(p.shape))
        y = rounded_to(np.asarray(reference.Pooling(**p.options).forward(x)), p.dtype)
        return {"dy": uniform(random, y.shape), "x": x, "y": y}

    def errors(self, p: Problem, a: Arrays, f: Arrays) -> Arrays:
        sizes = np.asarray(reference.Pooling(**p.options).backward(np.abs(a["dy"]), a["x"], a["y"]))
        added = ROUNDOFF[p.dtype] if is_maximum(p) else arithmetic_roundoff(p.dtype)
        return {"dx": sum_error(window_size(p), added) * sizes}

    def is_deterministic(self, p: Problem) -> bool:
        return str(p.options.get("mode", "max")) != "max"


def softmax_axes(p: Problem) -> tuple[int, ...]:
    return (p.channel_axis,) if p.options.get("mode", "channel") == "channel" else tuple(range(1, len(p.shape)))


class SoftmaxForward(Kind):
    """E over L classes: y (2 exponential + 8 v max |x| + 2 sum(L)); for log, that without the factor y, and
    4 v (|x| + max |x| + |y|). In 16 bits u more of y: cuDNN rounds the powers on the way.
    """

    in_place = "x"

    def inputs(self, p: Problem, random: np.random.Generator) -> Arrays:
        return {"x": with_special_values(p, uniform(random, p.in_layout(p.shape), -4, 4), random)}

    def errors(self, p: Problem, a: Arrays, f: Arrays) -> Arrays:
        axes, v, x, y = softmax_axes(p), arithmetic_roundoff(p.dtype), np.abs(a["x"]), np.abs(f["y"])
        length, largest = math.prod(x.shape[axis] for axis in axes), x.max(axis=axes, keepdims=True, initial=0.0)
        share = 2.0 * exponential_error(p.dtype) + 8.0 * v * largest + 2.0 * sum_error(length, v)
        stored = ROUNDOFF[p.dtype] * y if p.dtype in ("float16", "bfloat16") else 0.0
        if p.options.get("algorithm", "accurate") == "log":
            return {"y": share + 4.0 * v * (x + largest + y) + stored}
        return {"y": share * y + stored}


class SoftmaxBackward(Kind):
    """E: y (8 v |dy| + 2 sum(L) sum |dy y|); for log 4 v |dy| + exp(y) (exponential + 2 sum(L)) sum |dy|."""

    tensors = 2
    in_place = "dy"
    results = ("dx",)

    def inputs(self, p: Problem, random: np.random.Generator) -> Arrays:
        x = uniform(random, p.in_layout(p.shape), -4, 4)
        return {"dy": uniform(random, x.shape), "y": np.asarray(reference.Softmax(**p.options).forward(x))}

    def errors(self, p: Problem, a: Arrays, f: Arrays) -> Arrays:
        axes, v, dy, y = softmax_axes(p), arithmetic_roundoff(p.dtype), np.abs(a["dy"]), a["y"]
        summed = sum_error(math.prod(y.shape[axis] for axis in axes), v)
        if p.options.get("algorithm", "accurate") == "log":
            total = dy.sum(axis=axes, keepdims=True)
            return {"dx": 4.0 * v * dy + np.exp(y) * (exponential_error(p.dtype) + 2.0 * summed) * total}
        return {"dx": np.abs(y) * (8.0 * v * dy + 2.0 * summed * (dy * np.abs(y)).sum(axis=axes, keepdims=True))}
