"""The reference's layer, RMS and instance normalization against the textbook's with autograd.

x and its results have 8 to 24 bits here and the parameters and statistics 24, so what the textbook has in float64 is
compared up to half a unit in the last place of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import autograd.numpy as anp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operands import BAD_ARRAYS, FLOATS, MEMORY, NAN, bad_outs, laid_out, normal, refuses, same, seeds, shapes
from oracles import moments, pull_back, root_mean_square, standardize, standardize_by

from cudnnpy.reference import InstanceNormalization, LayerNormalization, RMSNormalization

NARROW = FLOATS[:3]
NAMES = {1: ("NCW", "NWC"), 2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}
epsilons = st.sampled_from([1e-5, 1e-3, 0.5])
memories = st.sampled_from(MEMORY)


def nearly(actual: np.ndarray, expected: np.ndarray, dtype: Any) -> None:
    """Equal but for one rounding to the dtype, and the order of float64 operations on numbers of at most some 1000."""
    assert actual.dtype == dtype
    assert actual.shape == expected.shape
    limits = ml_dtypes.finfo(dtype)
    ulp = float(limits.eps) * np.abs(expected) + float(limits.smallest_subnormal)
    np.testing.assert_array_less(np.abs(actual.astype(np.float64) - expected), 0.5001 * ulp + 1e-9)


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

    def tensors(self, number: int) -> list[np.ndarray]:
        """Arrays of x's shape."""
        given = [1 + 2 * normal(self.seed + at, self.shape) for at in range(number)]
        return [laid_out(array.astype(self.dtype), self.memory) for array in given]

    def parameters(self, shape: tuple[int, ...]) -> list[np.ndarray]:
        """A scale and a bias."""
        return [normal(self.seed + 10 + at, shape, np.float32, self.memory) for at in range(2)]

    def results(self) -> tuple[np.ndarray, np.ndarray]:
        """An out of x's shape, filled with NaN: it is not to be read; and a gradient for y."""
        dy = normal(self.seed + 2, self.shape).astype(self.dtype)
        return laid_out(np.full(self.shape, NAN, self.dtype), self.memory), laid_out(dy, self.memory)


@st.composite
def layers(draw: st.DrawFn) -> Problem:
    shape = draw(shapes((2, 3, 4, 5)))
    kept = draw(st.integers(1, len(shape) - 1))
    return Problem(shape, kept, "", draw(epsilons), draw(st.sampled_from(NARROW)), draw(memories), draw(seeds))


@st.composite
def instances(draw: st.DrawFn) -> Problem:
    rank = draw(st.integers(1, 3))
    layout = draw(st.sampled_from([*NAMES[rank], "NCHW", "NHWC"]))
    shape = draw(shapes((rank + 2,), layout))
    return Problem(shape, 2, layout, draw(epsilons), draw(st.sampled_from(NARROW)), draw(memories), draw(seeds))


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

    y, mean, inverse = op.forward_training(x, scale, bias)
    nearly(y, standardize(exact, axes, problem.epsilon) * scale + bias, problem.dtype)
    nearly(mean, exact_mean, np.float32)
    nearly(inverse, (variance + problem.epsilon) ** -0.5, np.float32)
    same(op.forward_inference(x, scale, bias, stream=object()), y)
    for forward in (op.forward_inference, lambda *given: op.forward_training(*given, stream=object())[0]):
        into = laid_out(out, problem.memory)
        assert forward(x, scale, bias, into) is into
        same(into, y)

    # The gradient by the statistics as rounded to float32.
    rounded = [array.astype(np.float64).reshape(*before, *[1] * len(axes)) for array in (mean, inverse)]
    _, expected = pull_back(lambda x, s, b: standardize_by(x, axes, *rounded) * s + b, x, scale, bias)
    gradients = op.backward(dy, x, scale, mean, inverse)
    for gradient, wanted, dtype in zip(
        gradients, expected(dy.astype(np.float64)), (problem.dtype, np.float32, np.float32), strict=True
    ):
        nearly(gradient, wanted, dtype)
    assert op.backward(dy, x, scale, mean, inverse, out, stream=object())[0] is out
    same(out, gradients[0])


@settings(deadline=None, max_examples=300)
@given(layers())
def test_rms_matches_the_textbook(problem: Problem) -> None:
    op = RMSNormalization(problem.epsilon)
    (x,) = problem.tensors(1)
    normalized = problem.shape[problem.kept :]
    axes = tuple(range(problem.kept, len(problem.shape)))
    scale = problem.parameters(normalized)[0]
    out, dy = problem.results()
    exact = x.astype(np.float64)

    y, inverse = op.forward_training(x, scale)
    nearly(y, root_mean_square(exact, axes, problem.epsilon) * scale, problem.dtype)
    square = np.square(exact).mean(axis=axes)
    nearly(inverse, (square + problem.epsilon) ** -0.5, np.float32)
    same(op.forward_inference(x, scale, stream=object()), y)
    for forward in (op.forward_inference, lambda *given: op.forward_training(*given, stream=object())[0]):
        into = laid_out(out, problem.memory)
        assert forward(x, scale, into) is into
        same(into, y)

    # inverse is rounded to float32; it is exact for some epsilon close by, another one for each mean.
    nearby = (inverse.astype(np.float64) ** -2 - square).reshape(*square.shape, *[1] * len(axes))
    _, expected = pull_back(lambda x, scale: root_mean_square(x, axes, nearby) * scale, x, scale)
    gradients = op.backward(dy, x, scale, inverse)
    for gradient, wanted, dtype in zip(
        gradients, expected(dy.astype(np.float64)), (problem.dtype, np.float32), strict=True
    ):
        nearly(gradient, wanted, dtype)
    assert op.backward(dy, x, scale, inverse, out, stream=object())[0] is out
    same(out, gradients[0])


@settings(deadline=None, max_examples=300)
@given(instances())
def test_instance_matches_the_textbook(problem: Problem) -> None:
    op = InstanceNormalization(problem.epsilon, problem.layout)
    (x,) = problem.tensors(1)
    last = problem.layout.endswith("C")

    def first(array: np.ndarray) -> np.ndarray:
        return (np.moveaxis(array, -1, 1) if last else array).astype(np.float64)

    def in_layout(array: np.ndarray) -> np.ndarray:
        return np.moveaxis(array, 1, -1) if last else array

    exact = first(x)
    batch, channels = exact.shape[:2]
    axes = tuple(range(2, exact.ndim))
    ones = (-1, *[1] * len(axes))
    scale, bias = problem.parameters((channels,))
    out, dy = problem.results()
    exact_mean, variance = (array.reshape(batch, channels) for array in moments(exact, axes))
    expected = standardize(exact, axes, problem.epsilon) * scale.reshape(ones) + bias.reshape(ones)

    y, mean, inverse = op.forward_training(x, scale, bias)
    nearly(y, in_layout(expected), problem.dtype)
    nearly(mean, exact_mean, np.float32)
    nearly(inverse, (variance + problem.epsilon) ** -0.5, np.float32)
    same(op.forward_inference(x, scale, bias, stream=object()), y)
    for forward in (op.forward_inference, lambda *given: op.forward_training(*given, stream=object())[0]):
        into = laid_out(out, problem.memory)
        assert forward(x, scale, bias, into) is into
        same(into, y)

    rounded = [array.astype(np.float64).reshape(batch, *[channels, *ones[1:]]) for array in (mean, inverse)]
    _, pull = pull_back(
        lambda x, s, b: standardize_by(x, axes, *rounded) * anp.reshape(s, ones) + anp.reshape(b, ones),
        exact,
        scale,
        bias,
    )
    wanted_dx, *wanted = pull(first(dy))
    gradients = op.backward(dy, x, scale, mean, inverse)
    nearly(gradients[0], in_layout(wanted_dx), problem.dtype)
    for gradient, of_parameter in zip(gradients[1:], wanted, strict=True):
        nearly(gradient, of_parameter, np.float32)
    assert op.backward(dy, x, scale, mean, inverse, out, stream=object())[0] is out
    same(out, gradients[0])


@pytest.mark.parametrize("kind", [LayerNormalization, RMSNormalization, InstanceNormalization])
def test_gradients_are_differences(kind: Any) -> None:
    """Of float32 results, so roughly; by central differences in every direction."""
    x, dy = (normal(at, (2, 3, 4), np.float32).astype(np.float64) for at in range(2))
    shape = (3,) if kind is InstanceNormalization else (4,)
    parameters = [normal(at, shape, np.float32).astype(np.float64) for at in (2, 3)][
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


X, SCALE = normal(0, (4, 3, 5), np.float32), np.ones(5, np.float32)
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
    same(y, np.broadcast_to(np.arange(4, dtype=np.float16), x.shape))
    y = InstanceNormalization().forward_inference(x, np.ones(3, np.float32), np.arange(3, dtype=np.float32))
    same(y, np.broadcast_to(np.arange(3, dtype=np.float16)[:, None], x.shape))


# What is refused


@pytest.mark.parametrize("kind", [LayerNormalization, RMSNormalization, InstanceNormalization])
def test_bad_option(kind: Any) -> None:
    refuses(lambda: kind(-1.0), ValueError, "epsilon=-1.0: expected 0 or more")
    refuses(lambda: kind(NAN), ValueError, "epsilon=nan: expected 0 or more")
    refuses(lambda: kind(float("inf")), ValueError, "epsilon=inf: expected 0 or more, and finite")
    refuses(lambda: kind(None), TypeError, "epsilon=None: expected a real number")
    if kind is InstanceNormalization:
        refuses(lambda: kind(layout="CHW"), ValueError, "layout='CHW': expected one of")
        refuses(lambda: kind(layout=None), TypeError, "layout=None: expected a str")
    assert kind(1) == kind(1.0)
    assert hash(kind()) == hash(kind(1e-5))
    assert kind() != kind(0.1)
    with pytest.raises(AttributeError):
        kind().epsilon = 1


def test_kinds_with_one_epsilon_are_not_equal() -> None:
    assert LayerNormalization() != RMSNormalization() != InstanceNormalization()


CALLS = {
    f"{name} {method}": (getattr(op, method), backward if method == "backward" else forward)
    for name, (op, forward, backward) in KINDS.items()
    for method in ("forward_training", "forward_inference", "backward")
}


@pytest.mark.parametrize(("call", "right"), CALLS.values(), ids=CALLS)
def test_bad_array(call: Callable[..., object], right: dict[str, np.ndarray]) -> None:
    for name, array in right.items():
        bad: list[tuple[object, type[Exception], str]] = [
            (None, TypeError, " is a builtins.NoneType: expected a numpy.ndarray"),
            ([1.0], TypeError, " is a builtins.list: expected a numpy.ndarray"),
            (array.astype(np.int32), TypeError, " has dtype int32: expected float"),
            (array.astype(np.float64), TypeError, " has dtype float64: expected float"),
            (array[..., :2], ValueError, f" has shape {(*array.shape[:-1], 2)}: expected "),
            (array[None], ValueError, f" has shape {(1, *array.shape)}: expected "),
        ]
        if name == "x":  # which comes before scale, so that its own shape is only too short, too long or empty
            bad = [(other, error, message.split(" or bfloat16")[0]) for _, other, error, message in BAD_ARRAYS]
            bad.append((X.astype(np.float64), TypeError, " has dtype float64: expected float16 or bfloat16 or float32"))
            bad.append((X[0, 0], ValueError, " has 1 axes: expected "))
        elif name != "dy":
            bad.append((array.astype(np.float16), TypeError, " has dtype float16: expected float32"))
        for other, error, message in bad:
            out = np.full(X.shape, 7, np.float32)
            refuses(partial(call, **right | {name: other}, out=out), error, name + message)
            assert (out == 7).all()
    for _, not_out, error, message in bad_outs(X.shape):
        refuses(partial(call, **right, out=not_out), error, message)


@pytest.mark.parametrize(("call", "right"), CALLS.values(), ids=CALLS)
def test_out_may_not_overlap_an_input(call: Callable[..., object], right: dict[str, np.ndarray]) -> None:
    for name, array in right.items():
        memory = np.ones(X.size + 1, np.float32)
        part, out = memory[: array.size].reshape(array.shape), memory[1:].reshape(X.shape)
        message = f"out overlaps {name} in memory: expected an array of its own"
        refuses(partial(call, **right | {name: part}, out=out), ValueError, message)
        refuses(partial(call, **right | {name: out if name in ("x", "dy") else part}, out=out), ValueError, message)
        assert (memory == 1).all()


def test_bad_scale() -> None:
    """It must be the last axes of x, but not all of them."""
    x = np.ones((2, 3, 4), np.float32)
    for shape in ((), (3,), (4, 1), (2, 3, 4), (1, 2, 3, 4), (2, 4), (1,), (2, 3)):
        scale = np.ones(shape, np.float32)
        message = f"scale has shape {shape}: expected the last axes of x, (4,) or (3, 4)"
        refuses(lambda scale=scale: LayerNormalization().forward_training(x, scale, scale), ValueError, message)
        refuses(lambda scale=scale: RMSNormalization().forward_training(x, scale), ValueError, message)


def test_bad_rank() -> None:
    one = np.ones(3, np.float32)
    for layout, rank, expected in (("NCW", 4, "3"), ("NDHWC", 4, "5"), ("NWC", 5, "3")):
        x = np.ones((3,) * rank, np.float32)
        refuses(
            lambda layout=layout, x=x: InstanceNormalization(layout=layout).forward_training(x, one, one),
            ValueError,
            f"x has {rank} axes: layout={layout!r} expects {expected}",
        )
    refuses(
        lambda: InstanceNormalization().forward_inference(np.ones((2, 3), np.float32), one, one),
        ValueError,
        "x has 2 axes: expected 3 to 5",
    )
    refuses(
        lambda: InstanceNormalization(layout="NHWC").forward_inference(X, one, one),
        ValueError,
        "scale has shape (3,): expected (5,), one for each channel of x",
    )
