"""The reference's layer, RMS and instance normalization against the textbook's with autograd.

x and its results have 8 to 53 bits here and the statistics 24 or 53, so what the textbook has in float64 is compared up
to half a unit in the last place of the result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import autograd.numpy as anp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import moments, root_mean_square, standardize, standardize_by, value_and_pullback
from reference_checks import FLOATS, MEMORY, NAN, assert_same, in_memory_order, normal_numbers, seeds, shapes

from cudnnpy.reference import (
    InstanceNormalization,
    LayerNormalization,
    RMSNormalization,
)

NAMES = {1: ("NCW", "NWC"), 2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}
epsilons = st.sampled_from([1e-5, 1e-3, 0.5])
memories = st.sampled_from(MEMORY)


def nearly(actual: np.ndarray, expected: np.ndarray, dtype: Any) -> None:
    """Equal but for one rounding to the dtype, and the order of float64 operations on numbers of at most some 1000."""
    assert type(actual) is np.ndarray
    assert actual.dtype == dtype
    assert actual.shape == expected.shape
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    limits = ml_dtypes.finfo(dtype)
    expected = np.nan_to_num(expected, nan=0.0)
    ulp = float(limits.eps) * np.abs(expected) + float(limits.smallest_subnormal)
    found = np.nan_to_num(actual.astype(np.float64), nan=0.0)
    np.testing.assert_array_less(np.abs(found - expected), 0.5001 * ulp + 1e-9)


@dataclass(frozen=True)
class Problem:
    """One normalization of x over its last axes, or of each of its channels over the positions."""

    shape: tuple[int, ...]
    kept: int
    layout: str
    epsilon: float
    dtype: np.dtype[Any]
    memory: str
    seed: int
    with_scale: bool = True
    with_bias: bool = True
    own: bool = False

    @property
    def wide(self) -> np.dtype[Any]:
        """The statistics' dtype."""
        return np.dtype(np.float64 if self.dtype == np.float64 else np.float32)

    @property
    def parameter_dtype(self) -> np.dtype[Any]:
        return self.dtype if self.own else self.wide

    @property
    def gradient_dtype(self) -> np.dtype[Any]:
        """The dtype of dscale and dbias."""
        return self.parameter_dtype if self.with_scale else self.dtype

    def tensors(self, number: int) -> list[np.ndarray]:
        """Arrays of x's shape."""
        given = [1 + 2 * normal_numbers(self.seed + at, self.shape) for at in range(number)]
        return [in_memory_order(array.astype(self.dtype), self.memory) for array in given]

    def parameters(self, shape: tuple[int, ...]) -> list[np.ndarray | None]:
        """A scale and a bias, each of which may be missing."""
        dtype = self.parameter_dtype
        given = [normal_numbers(self.seed + 10 + at, shape, dtype, self.memory) for at in range(2)]
        return [array if there else None for array, there in zip(given, (self.with_scale, self.with_bias), strict=True)]

    def results(self) -> tuple[np.ndarray, np.ndarray]:
        """An out of x's shape, filled with NaN: it is not to be read; and a gradient for y."""
        dy = normal_numbers(self.seed + 2, self.shape).astype(self.dtype)
        return in_memory_order(np.full(self.shape, NAN, self.dtype), self.memory), in_memory_order(dy, self.memory)


@st.composite
def sizes(draw: st.DrawFn, ranks: tuple[int, ...], layout: str = "NCHW") -> tuple[int, ...]:
    """A shape; of ten one has sizes of 0."""
    shape = list(draw(shapes(ranks, layout)))
    if draw(st.integers(0, 9)) == 0:
        for axis in draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, max_size=2)):
            shape[axis] = 0
    return tuple(shape)


@st.composite
def problems(draw: st.DrawFn, shape: tuple[int, ...], kept: int, layout: str = "") -> Problem:
    return Problem(
        shape,
        kept,
        layout,
        epsilon=draw(epsilons),
        dtype=draw(st.sampled_from(FLOATS)),
        memory=draw(memories),
        seed=draw(seeds),
        with_scale=draw(st.booleans()),
        with_bias=draw(st.booleans()),
        own=draw(st.booleans()),
    )


@st.composite
def layers(draw: st.DrawFn) -> Problem:
    shape = draw(sizes((1, 2, 3, 4, 5)))
    return draw(problems(shape, draw(st.integers(0, len(shape) - 1))))


@st.composite
def instances(draw: st.DrawFn) -> Problem:
    rank = draw(st.integers(1, 3))
    layout = draw(st.sampled_from([*NAMES[rank], "NCHW", "NHWC"]))
    shape = draw(sizes((rank + 2,), layout))
    problem = draw(problems(shape, 2, layout))
    channels = shape[-1 if layout.endswith("C") else 1]
    return problem if channels else replace(problem, with_scale=False, with_bias=False)


def whole(array: np.ndarray | None, number: float, shape: tuple[int, ...]) -> np.ndarray:
    """A parameter, or what it is where it is not there."""
    return np.full(shape, number) if array is None else array.astype(np.float64)


def pulled_back(function: Any, dy: np.ndarray, *arrays: np.ndarray) -> Any:
    """The gradients of a function with respect to each array; of no elements they are 0."""
    if not dy.size:
        return [np.zeros(array.shape) for array in arrays]
    return value_and_pullback(function, *arrays)[1](dy.astype(np.float64))


def there(gradients: tuple[np.ndarray | None, ...], expected: Any, problem: Problem) -> None:
    """The gradients are the textbook's, and None where there is nothing to be a gradient for."""
    kinds = problem.dtype, problem.gradient_dtype, problem.gradient_dtype
    there = True, problem.with_scale, problem.with_bias
    assert len(gradients) == len(expected)
    for gradient, wanted, dtype, is_there in zip(gradients, expected, kinds, there, strict=False):
        assert (gradient is not None) == is_there
        if gradient is not None:
            nearly(gradient, wanted, dtype)


@settings(deadline=None, max_examples=300)
@given(layers())
def test_layer_matches_the_textbook(problem: Problem) -> None:
    op = LayerNormalization(problem.epsilon)
    (x,) = problem.tensors(1)
    normalized = problem.shape[problem.kept :]
    scale, bias = problem.parameters(normalized)
    out, dy = problem.results()
    axes = tuple(range(problem.kept, len(problem.shape)))
    before, exact = problem.shape[: problem.kept], x.astype(np.float64)
    exact_mean, variance = (array.reshape(before) for array in moments(exact, axes))
    parameters = whole(scale, 1.0, normalized), whole(bias, 0.0, normalized)
    expected = standardize(exact, axes, problem.epsilon) * parameters[0] + parameters[1] if x.size else exact
    shape = {} if problem.with_scale and problem.seed % 2 else {"normalized_shape": normalized}

    y, mean, inverse = op.forward_training(x, scale, bias, **shape)
    nearly(y, expected, problem.dtype)
    nearly(mean, exact_mean, problem.wide)
    nearly(inverse, (variance + problem.epsilon) ** -0.5, problem.wide)
    assert_same(op.forward_inference(x, scale, bias, stream=object(), **shape), y)
    for forward in (
        op.forward_inference,
        lambda *given, **more: op.forward_training(*given, **more, stream=object())[0],
    ):
        into = in_memory_order(out, problem.memory)
        assert forward(x, scale, bias, into, **shape) is into
        assert_same(into, y)

    # The gradient by the statistics as rounded.
    rounded = [array.astype(np.float64).reshape(*before, *[1] * len(axes)) for array in (mean, inverse)]
    wanted = pulled_back(lambda x, s, b: standardize_by(x, axes, *rounded) * s + b, dy, exact, *parameters)
    for bias_too in (problem.with_bias, None) if problem.with_bias == problem.with_scale else (problem.with_bias,):
        gradients = op.backward(dy, x, scale, mean, inverse, bias=bias_too)
        there(gradients, wanted, problem)
    assert op.backward(dy, x, scale, mean, inverse, out, stream=object())[0] is out
    assert_same(out, gradients[0])


@settings(deadline=None, max_examples=300)
@given(layers())
def test_rms_matches_the_textbook(problem: Problem) -> None:
    op = RMSNormalization(problem.epsilon)
    (x,) = problem.tensors(1)
    normalized = problem.shape[problem.kept :]
    axes = tuple(range(problem.kept, len(problem.shape)))
    scale = problem.parameters(normalized)[0]
    out, dy = problem.results()
    exact, whole_scale = x.astype(np.float64), whole(scale, 1.0, normalized)
    shape = {} if problem.with_scale and problem.seed % 2 else {"normalized_shape": normalized}

    y, inverse = op.forward_training(x, scale, **shape)
    nearly(y, root_mean_square(exact, axes, problem.epsilon) * whole_scale if x.size else exact, problem.dtype)
    square = np.square(exact).sum(axis=axes)
    square = square / math.prod(normalized) if math.prod(normalized) else np.full(square.shape, NAN)
    nearly(inverse, (square + problem.epsilon) ** -0.5, problem.wide)
    assert_same(op.forward_inference(x, scale, stream=object(), **shape), y)
    for forward in (
        op.forward_inference,
        lambda *given, **more: op.forward_training(*given, **more, stream=object())[0],
    ):
        into = in_memory_order(out, problem.memory)
        assert forward(x, scale, into, **shape) is into
        assert_same(into, y)

    # inverse is rounded; it is exact for some epsilon close by, another one for each mean.
    nearby = (inverse.astype(np.float64) ** -2 - square).reshape(*square.shape, *[1] * len(axes))
    wanted = pulled_back(lambda x, scale: root_mean_square(x, axes, nearby) * scale, dy, exact, whole_scale)
    gradients = op.backward(dy, x, scale, inverse)
    there(gradients, wanted, problem)
    assert op.backward(dy, x, scale, inverse, out, stream=object())[0] is out
    assert_same(out, gradients[0])


@settings(deadline=None, max_examples=300)
@given(instances())
def test_instance_matches_the_textbook(problem: Problem) -> None:
    op = InstanceNormalization(problem.epsilon, layout=problem.layout)
    (x,) = problem.tensors(1)
    last = problem.layout.endswith("C")

    def first(array: np.ndarray) -> np.ndarray:
        return (np.moveaxis(array, -1, 1) if last else array).astype(np.float64)

    def in_layout(array: np.ndarray) -> np.ndarray:
        return np.moveaxis(array, 1, -1) if last else array

    exact = first(x)
    batch, channels = exact.shape[:2]
    axes = tuple(range(2, exact.ndim))
    column = (channels, *[1] * len(axes))
    scale, bias = problem.parameters((channels,))
    out, dy = problem.results()
    exact_mean, variance = (array.reshape(batch, channels) for array in moments(exact, axes))
    parameters = whole(scale, 1.0, (channels,)), whole(bias, 0.0, (channels,))
    one, two = (array.reshape(column) for array in parameters)
    expected = standardize(exact, axes, problem.epsilon) * one + two if x.size else exact

    y, mean, inverse = op.forward_training(x, scale, bias)
    nearly(y, in_layout(expected), problem.dtype)
    nearly(mean, exact_mean, problem.wide)
    nearly(inverse, (variance + problem.epsilon) ** -0.5, problem.wide)
    assert_same(op.forward_inference(x, scale, bias, stream=object()), y)
    for forward in (op.forward_inference, lambda *given: op.forward_training(*given, stream=object())[0]):
        into = in_memory_order(out, problem.memory)
        assert forward(x, scale, bias, into) is into
        assert_same(into, y)

    rounded = [array.astype(np.float64).reshape(batch, *column) for array in (mean, inverse)]
    dx, *wanted = pulled_back(
        lambda x, s, b: standardize_by(x, axes, *rounded) * anp.reshape(s, column) + anp.reshape(b, column),
        first(dy),
        exact,
        *parameters,
    )
    gradients = op.backward(dy, x, scale, mean, inverse, bias=problem.with_bias)
    there(gradients, (in_layout(dx), *wanted), problem)
    assert op.backward(dy, x, scale, mean, inverse, out, stream=object())[0] is out
    assert_same(out, gradients[0])


@pytest.mark.parametrize("kind", [LayerNormalization, RMSNormalization, InstanceNormalization])
def test_gradients_are_differences(kind: Any) -> None:
    """Of float32 results, so roughly; by central differences in every direction."""
    x, dy = (normal_numbers(at, (2, 3, 4), np.float32).astype(np.float64) for at in range(2))
    shape = (3,) if kind is InstanceNormalization else (4,)
    parameters = [normal_numbers(at, shape, np.float32).astype(np.float64) for at in (2, 3)][
        : 1 + (kind is not RMSNormalization)
    ]
    op = kind(0.5)

    def value(arrays: list[np.ndarray]) -> float:
        return float(np.vdot(op.forward_inference(*[array.astype(np.float32) for array in arrays]), dy))

    arrays = [x, *parameters]
    narrow = [array.astype(np.float32) for array in arrays]
    gradients = op.backward(dy.astype(np.float32), *narrow[:2], *op.forward_training(*narrow)[1:])
    assert len(gradients) == len(arrays)
    for at, gradient in enumerate(gradients):
        for index in np.ndindex(gradient.shape):
            values = []
            for step in (2.0**-6, -(2.0**-6)):
                moved = [array.copy() for array in arrays]
                moved[at][index] += step
                values.append(value(moved))
            assert gradient[index] == pytest.approx((values[0] - values[1]) * 2.0**5, rel=3e-3, abs=3e-3)


# One of each kind, whose means are over the last axis, or over each (n, c)


X, SCALE = normal_numbers(0, (4, 3, 5), np.float32), np.ones(5, np.float32)
KINDS: dict[str, tuple[Any, dict[str, np.ndarray], dict[str, np.ndarray]]] = {
    "layer": (
        LayerNormalization(),
        {"x": X, "scale": SCALE, "bias": SCALE},
        {"dy": X, "x": X, "scale": SCALE, "mean": X[..., 0], "inverse_variance": X[..., 1]},
    ),
    "rms": (
        RMSNormalization(),
        {"x": X, "scale": SCALE},
        {"dy": X, "x": X, "scale": SCALE, "inverse_rms": X[..., 0]},
    ),
    "instance": (
        InstanceNormalization(),
        {"x": X, "scale": SCALE[:3], "bias": SCALE[:3]},
        {"dy": X, "x": X, "scale": SCALE[:3], "mean": X[..., 0], "inverse_variance": X[..., 1]},
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_nan_spreads_as_far_as_its_mean(name: str) -> None:
    op, forward, backward = KINDS[name]
    x = X.copy()
    x[2, 1, 3] = NAN
    y, *statistics = op.forward_training(**forward | {"x": x})
    expected = np.zeros((4, 3), bool)
    expected[2, 1] = True
    np.testing.assert_array_equal(np.isnan(y), np.broadcast_to(expected[..., None], y.shape))
    assert len(statistics) == len(op.backward(**backward)) - 1
    for statistic in statistics:
        np.testing.assert_array_equal(np.isnan(statistic), expected)
    touched = np.arange(3) == 1 if name == "instance" else np.arange(5) == 3
    for argument in ("x", "dy"):
        dx, *parameters = op.backward(**backward | {argument: x})
        np.testing.assert_array_equal(np.isnan(dx), np.broadcast_to(expected[..., None], y.shape))
        np.testing.assert_array_equal(np.isnan(parameters[0]), touched)
        for gradient in parameters[1:]:
            np.testing.assert_array_equal(np.isnan(gradient), touched & (argument == "dy"))


def test_a_mean_far_above_the_deviation() -> None:
    """The mean of the squares less the square of the mean would lose all of it."""
    x = (2.0**23 + np.arange(8.0)).astype(np.float32).reshape(1, 1, 8)
    expected = (np.arange(8) - 3.5) / 5.25**0.5
    for op, size in ((LayerNormalization(0), 8), (InstanceNormalization(0), 1)):
        y, mean, inverse = op.forward_training(x, np.ones(size, np.float32), np.zeros(size, np.float32))
        nearly(y[0, 0], expected, np.float32)
        assert mean == np.float32(2.0**23 + 3.5)
        nearly(inverse, np.full((1, 1), 5.25**-0.5), np.float32)


def test_equal_values_give_the_bias() -> None:
    x = np.full((2, 3, 4), 7, np.float16)
    y = LayerNormalization().forward_inference(x, np.ones(4, np.float32), np.arange(4, dtype=np.float32))
    assert_same(y, np.broadcast_to(np.arange(4, dtype=np.float16), x.shape))
    y = InstanceNormalization().forward_inference(x, np.ones(3, np.float32), np.arange(3, dtype=np.float32))
    assert_same(y, np.broadcast_to(np.arange(3, dtype=np.float16)[:, None], x.shape))
