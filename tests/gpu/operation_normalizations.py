"""Batch normalization: its arrays and errors (see operation_problem)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from operation_problem import (
    Arrays,
    Float64,
    Kind,
    Problem,
    arithmetic_roundoff,
    rounded_to,
    sum_error,
    uniform,
    with_special_values,
)


class Statistics:
    """Mean, variance and 1 / sqrt(variance + epsilon) over some axes of x, each with its error.

    Over m elements: mean sum(m) mean|x|; variance 2 sum(m) mean(x^2), which allows mean(x^2) - mean^2; the inverse what
    the variance's error does to it, and 8 v of itself.
    """

    def __init__(self, x: Float64, axes: tuple[int, ...], epsilon: float, v: float) -> None:
        self.v, self.axes = v, axes
        self.count = math.prod(x.shape[axis] for axis in axes)
        summed = sum_error(self.count, v)
        square = (x * x).mean(axis=axes, keepdims=True)
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
        self, dy: Float64, x: Float64, scale: Float64, over: tuple[int, ...]
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
        terms = w + mean(w) + n * mean(w * n)
        error = 8.0 * v * terms + summed * mean(w)
        error = error + n * (summed * mean(w * n) + mean(w * n_error)) + n_error * mean(w * n)
        dx = self.inverse * error + self.inverse_error * terms
        share = sum_error(math.prod(x.shape[axis] for axis in over), v)
        dscale = (share * g * n + g * n_error).sum(axis=over)
        return np.asarray(dx), np.asarray(dscale), np.asarray(share * g.sum(axis=over))


class _Batch(Kind):
    """What the calls share: parameters, in the arithmetic's type or x's own, and where they lie."""

    def dtype_of(self, p: Problem, name: str) -> str:
        if name in ("running_mean", "running_variance", "mean", "variance"):
            return p.other_dtype or self.wide(p)
        if name in ("x", "dy", "y", "dx"):
            return p.dtype
        if name in ("scale", "bias", "dscale", "dbias"):
            own = name == "dbias" and "scale" in p.without
            return p.dtype if own else p.other_dtype or self.wide(p)
        return self.wide(p)

    def wide(self, p: Problem) -> str:
        """The statistics' type."""
        return "float64" if p.dtype == "float64" else "float32"

    def is_tensor(self, p: Problem, name: str, values: Float64) -> bool:
        return name in ("x", "dy")

    def over(self, p: Problem) -> tuple[int, ...]:
        """What a mean is over, and a parameter's gradient is summed over."""
        if p.options.get("mode") == "per_activation":
            return (0,)
        return tuple(axis for axis in range(len(p.shape)) if axis != p.channel_axis)

    def parameter_shape(self, p: Problem) -> tuple[int, ...]:
        return p.in_layout(p.shape)[1:] if p.options.get("mode") == "per_activation" else (p.shape[1],)

    def spread(self, p: Problem, parameter: Float64) -> Float64:
        """A parameter as x's axes see it."""
        over = self.over(p)
        return parameter.reshape([1 if axis in over else n for axis, n in enumerate(p.in_layout(p.shape))])

    def make(self, p: Problem, random: np.random.Generator) -> Arrays:
        """x, and the parameters."""
        x = with_special_values(p, uniform(random, p.in_layout(p.shape), -2, 2), random)
        shape = self.parameter_shape(p)
        numbers = {"scale": uniform(random, shape, 0.5, 2.0), "bias": uniform(random, shape)}
        return {"x": x, **{name: numbers[name] for name in numbers if name not in p.without}}

    def of(self, p: Problem, x: Float64) -> Statistics:
        return Statistics(x, self.over(p), p.options.get("epsilon", 1e-5), arithmetic_roundoff(p.dtype))

    def inputs(self, p: Problem, random: np.random.Generator) -> Arrays:
        return self.make(p, random)

    def forward_error(self, p: Problem, a: Arrays) -> tuple[Statistics, Float64]:
        found = self.of(p, a["x"])
        bias = self.spread(p, a["bias"]) if "bias" in a else np.zeros(())
        return found, found.forward_error(a["x"], self.scale(p, a), bias)

    def scale(self, p: Problem, a: Arrays) -> Float64:
        """The scale as x's axes see it, 1 where there is none."""
        return self.spread(p, a["scale"]) if "scale" in a else np.ones(())

    def errors(self, p: Problem, a: Arrays, f: Arrays) -> Arrays:
        found, error = self.forward_error(p, a)
        saved = {"saved_mean": found.mean_error, "saved_inverse_variance": found.inverse_error}
        return {"y": error, **{name: saved[name].reshape(f[name].shape) for name in self.results if name != "y"}}


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
                errors[f"running_{name}"] = abs(share) * error.reshape(before.shape) + 8.0 * found.v * (
                    before + np.abs(f[f"running_{name}"])
                )
        return errors


class BatchInference(_Batch):
    """As Statistics says, with mean and variance exact."""

    def inputs(self, p: Problem, random: np.random.Generator) -> Arrays:
        shape = self.parameter_shape(p)
        return {**self.make(p, random), "mean": uniform(random, shape), "variance": uniform(random, shape, 0.1, 2.0)}

    def errors(self, p: Problem, a: Arrays, f: Arrays) -> Arrays:
        mean, variance = (np.abs(self.spread(p, a[name])) for name in ("mean", "variance"))
        scale, bias = np.abs(self.scale(p, a)), np.abs(self.spread(p, a["bias"])) if "bias" in a else np.zeros(())
        inverse = (variance + p.options.get("epsilon", 1e-5)) ** -0.5
        return {"y": 16.0 * arithmetic_roundoff(p.dtype) * (scale * inverse * (np.abs(a["x"]) + mean) + bias)}


class BatchBackward(_Batch):
    """As Statistics says. The reference computes the statistics that forward_training saved, which are inputs."""

    tensors = 2
    results: tuple[str, ...] = ("dx", "dscale", "dbias")

    def inputs(self, p: Problem, random: np.random.Generator) -> Arrays:
        made = self.make(p, random)
        x = rounded_to(made["x"], p.dtype)
        found, shape = self.of(p, x), self.parameter_shape(p)
        saved = {"saved_mean": found.mean.reshape(shape), "saved_inverse_variance": found.inverse.reshape(shape)}
        scale = {name: made[name] for name in ("scale",) if name in made}
        return {"dy": uniform(random, x.shape), "x": x, **scale, **(saved if "saved_mean" in p.given else {})}

    def results_of(self, p: Problem) -> tuple[str, ...]:
        there = {"dscale": "scale" not in p.without, "dbias": p.keywords.get("bias", "scale" not in p.without)}
        return tuple(name for name in self.results if there.get(name, True))

    def errors(self, p: Problem, a: Arrays, f: Arrays) -> Arrays:
        errors = self.of(p, a["x"]).backward_errors(a["dy"], a["x"], self.scale(p, a), self.over(p))
        there = zip(self.results, errors, strict=False)
        return {name: error.reshape(f[name].shape) for name, error in there if name in f}

    def outs(self, p: Problem) -> dict[str, str]:
        named = {"dscale": "out_scale", "dbias": "out_bias"}
        return super().outs(p) | {result: name for result, name in named.items() if name in p.given}

    def blend(self, p: Problem, result: str) -> tuple[float, float]:
        if result == "dx":
            return p.alpha, p.beta
        return p.keywords.get("parameter_alpha", 1.0), p.keywords.get("parameter_beta", 0.0)

    def reference_keywords(self, p: Problem) -> dict[str, Any]:
        return {name: value for name, value in p.keywords.items() if name == "bias"}
