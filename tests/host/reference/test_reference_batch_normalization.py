"""The reference's batch normalization against the textbook's with autograd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import moments, standardize, value_and_pullback
from reference_checks import (
    MEMORY,
    NAN,
    assert_close,
    assert_same,
    check_scales,
    dtypes,
    in_memory_order,
    normal_numbers,
    only_nan,
    parameter_dtype,
    scales,
    seeds,
    shapes,
)

from cudnnpy.reference import BatchNormalization
from cudnnpy.reference._arrays import rounded

RUNNING = ("running_mean", "running_variance")
FIRST = {2: "NCHW", 3: "NCW", 4: "NCHW", 5: "NCDHW"}
LAST = {2: "NHWC", 3: "NWC", 4: "NHWC", 5: "NDHWC"}
memories = st.sampled_from(MEMORY)


@dataclass(frozen=True)
class Problem:
    """One batch normalization; the shape is in the layout's axis order."""

    mode: str
    layout: str
    shape: tuple[int, ...]
    epsilon: float
    memory: str
    seed: int

    @property
    def operation(self) -> BatchNormalization:
        return BatchNormalization(self.mode, self.epsilon, layout=self.layout)

    @property
    def parameter_shape(self) -> tuple[int, ...]:
        if self.mode == "per_activation":
            return self.shape[1:]
        return (self.shape[-1 if self.layout.endswith("C") else 1],)

    @property
    def count(self) -> int:
        """How many values each mean is of."""
        return int(np.prod(self.shape)) // int(np.prod(self.parameter_shape))

    def tensors(self, number: int, dtype: Any = np.float64) -> list[np.ndarray]:
        """Arrays of x's shape."""
        return [1 + 2 * normal_numbers(self.seed + at, self.shape, dtype, self.memory) for at in range(number)]

    def parameters(self, number: int, dtype: Any = np.float64) -> list[np.ndarray]:
        """Arrays of the parameters' shape, whose values are those of a float32."""
        given = [normal_numbers(self.seed + 10 + at, self.parameter_shape, np.float32) for at in range(number)]
        return [in_memory_order(array.astype(dtype), self.memory) for array in given]

    def flat(self, array: np.ndarray) -> np.ndarray:
        """x as (N, parameters, rest)."""
        if self.mode == "spatial" and self.layout.endswith("C"):
            array = np.moveaxis(array, -1, 1)
        return array.reshape(len(array), int(np.prod(self.parameter_shape)), -1)

    def in_layout(self, array: np.ndarray) -> np.ndarray:
        """Back from that."""
        if self.mode == "spatial" and self.layout.endswith("C"):
            return np.moveaxis(array, 1, -1).reshape(self.shape)
        return array.reshape(self.shape)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    rank = draw(st.integers(2, 5))
    layout = draw(st.sampled_from([FIRST[rank], LAST[rank], "NCHW", "NHWC"]))
    return Problem(
        mode=draw(st.sampled_from(["spatial", "per_activation"])),
        layout=layout,
        shape=draw(shapes((rank,), layout)),
        epsilon=draw(st.sampled_from([1e-5, 1e-3, 0.5])),
        memory=draw(memories),
        seed=draw(seeds),
    )


@settings(deadline=None, max_examples=300)
@given(problems(), st.floats(-1.5, 1.5), st.booleans(), st.booleans())
def test_training_and_gradients_match_the_textbook(
    problem: Problem, factor: float, with_scale: bool, with_bias: bool
) -> None:
    op = problem.operation
    x, dy = problem.tensors(2)
    scale, bias, running_mean, running_variance = problem.parameters(4)
    scale = scale if with_scale else np.ones_like(scale)
    bias = bias if with_bias else np.zeros_like(bias)
    expected, gradients = value_and_pullback(
        lambda x, scale, bias: standardize(x, (0, 2), problem.epsilon) * scale[:, None] + bias[:, None],
        *(problem.flat(x), scale.ravel(), bias.ravel()),
    )
    batch_mean, variance = (array.reshape(problem.parameter_shape) for array in moments(problem.flat(x), (0, 2)))
    unbiased = variance * problem.count / max(problem.count - 1, 1)  # of one value, it is 0
    running = [
        factor * batch + (1 - factor) * before
        for batch, before in ((batch_mean, running_mean), (unbiased, running_variance))
    ]

    given_ = scale if with_scale else None, bias if with_bias else None
    averages = {"running_mean": running_mean, "running_variance": running_variance}
    y, mean, inverse = op.forward_training(x, *given_, **averages, average_factor=factor)
    assert_close(y, problem.in_layout(expected))
    assert_close(mean, batch_mean)
    assert_close(inverse, 1 / np.sqrt(variance + problem.epsilon))
    assert_close(running_mean, running[0])
    assert_close(running_variance, running[1])
    wanted = gradients(problem.flat(dy))
    for saved in ((), (mean, inverse)):
        for asked in (with_bias, None) if with_bias == with_scale else (with_bias,):
            dx, *parameters = op.backward(dy, x, given_[0], *saved, bias=asked)
            assert_close(dx, problem.in_layout(wanted[0]))
            for gradient, right, there in zip(parameters, wanted[1:], (with_scale, with_bias), strict=True):
                assert (gradient is not None) == there
                if gradient is not None:
                    assert_close(gradient, right.reshape(problem.parameter_shape))


@settings(deadline=None, max_examples=200)
@given(problems(), st.booleans(), st.booleans())
def test_inference_matches_the_textbook(problem: Problem, with_scale: bool, with_bias: bool) -> None:
    (x,) = problem.tensors(1)
    scale, bias, mean, variance = problem.parameters(4)
    scale = scale if with_scale else np.ones_like(scale)
    bias = bias if with_bias else np.zeros_like(bias)
    variance = np.abs(variance)
    column = {"scale": scale, "bias": bias, "mean": mean, "deviation": np.sqrt(variance + problem.epsilon)}
    column = {name: array.reshape(-1, 1) for name, array in column.items()}
    apart = (problem.flat(x) - column["mean"]) / column["deviation"]
    expected = problem.in_layout(column["scale"] * apart + column["bias"])
    given_ = scale if with_scale else None, bias if with_bias else None
    assert_close(problem.operation.forward_inference(x, *given_, mean=mean, variance=variance), expected)


@settings(deadline=None, max_examples=200)
@given(problems(), dtypes, scales, scales, memories)
def test_scales_dtypes_and_out(problem: Problem, dtype: Any, alpha: float, beta: float, memory: str) -> None:
    """All three operations round once, into out if there is one; the parameters are float32 for narrow x."""
    op = problem.operation
    x, dy = problem.tensors(2, dtype)
    given = problem.parameters(4)
    given[3] = np.abs(given[3])

    def parameters(x: np.ndarray, number: int) -> list[np.ndarray]:
        return [array.astype(parameter_dtype(x)) for array in given[:number]]

    def training(x: np.ndarray, **options: Any) -> np.ndarray:
        return op.forward_training(x, *parameters(x, 2), **options)[0]

    def inference(x: np.ndarray, **options: Any) -> np.ndarray:
        scale, bias, mean, variance = parameters(x, 4)
        return op.forward_inference(x, scale, bias, mean=mean, variance=variance, **options)

    def gradient(dy: np.ndarray, x: np.ndarray, **options: Any) -> np.ndarray:
        return op.backward(dy, x, *parameters(x, 1), **options)[0]

    def gradient_from_saved(dy: np.ndarray, x: np.ndarray, **options: Any) -> np.ndarray:
        scale, mean, _, inverse = parameters(x, 4)
        return op.backward(dy, x, scale, mean, inverse, **options)[0]

    check_scales(training, [x], alpha, beta, memory)
    check_scales(inference, [x], alpha, beta, memory)
    check_scales(gradient, [dy, x], alpha, beta, memory)
    check_scales(gradient_from_saved, [dy, x], alpha, beta, memory)


@settings(deadline=None, max_examples=150)
@given(problems(), dtypes, st.floats(0, 1), memories)
def test_statistics_are_rounded_once(problem: Problem, dtype: Any, factor: float, memory: str) -> None:
    """From the float64 ones, which the test against the textbook knows; the running ones in place."""
    op = problem.operation
    (x,) = problem.tensors(1, dtype)
    wide = parameter_dtype(x)
    scale, bias, running_mean, running_variance = problem.parameters(4, wide)
    batch = [np.zeros(problem.parameter_shape) for _ in range(2)]
    parameters64 = [array.astype(np.float64) for array in (scale, bias)]
    of_batch = dict(zip(RUNNING, batch, strict=True))
    exact = op.forward_training(x.astype(np.float64), *parameters64, **of_batch, average_factor=1.0)
    _, exact_mean, exact_inverse = exact
    running = [in_memory_order(running_mean, memory), in_memory_order(running_variance, memory)]
    named = dict(zip(RUNNING, running, strict=True))
    y, mean, inverse = op.forward_training(x, scale, bias, **named, average_factor=factor)
    assert y.dtype == dtype
    assert_same(mean, rounded(exact_mean, wide))
    assert_same(inverse, rounded(exact_inverse, wide))
    for now, before, one in zip(running, (running_mean, running_variance), batch, strict=True):
        assert_same(now, rounded(factor * one + (1 - factor) * before.astype(np.float64), wide))
    assert_same(op.forward_training(x, scale, bias)[0], y)


@settings(deadline=None, max_examples=150)
@given(problems(), dtypes, scales, scales, memories, st.booleans(), st.booleans())
def test_gradients_of_the_parameters_accumulate(
    problem: Problem, dtype: Any, alpha: float, beta: float, memory: str, with_scale: bool, with_bias: bool
) -> None:
    """Apart from dx, which has alpha and beta of its own; each into its own out, or a new array."""
    op = problem.operation
    x, dy = problem.tensors(2, dtype)
    wide = parameter_dtype(x)
    scale, *before = problem.parameters(3, wide)
    x64, dy64, scale64 = (array.astype(np.float64) for array in (x, dy, scale))
    exact = op.backward(dy64, x64, scale64)
    outs = [
        in_memory_order(array if beta else np.full_like(array, NAN), memory) if wanted else None
        for array, wanted in zip(before, (with_scale, with_bias), strict=True)
    ]
    asked = {"out_scale": outs[0], "out_bias": outs[1], "parameter_alpha": alpha, "parameter_beta": beta}
    if beta and not (with_scale and with_bias):
        with pytest.raises(ValueError, match=r"parameter_beta must be 0 where out_(scale|bias) is None; got"):
            op.backward(dy, x, scale, **asked)
        return
    results = op.backward(dy, x, scale, **asked, stream=object())
    assert_same(results[0], rounded(exact[0], dtype))
    for result, out, old, gradient in zip(results[1:], outs, before, exact[1:], strict=True):
        expected = alpha * gradient
        if out is not None:
            assert result is out
            expected = expected + (beta * old.astype(np.float64) if beta else 0)
        assert_same(result, rounded(expected, wide))


@settings(deadline=None, max_examples=100)
@given(problems(), dtypes)
def test_relu_cuts_the_result(problem: Problem, dtype: Any) -> None:
    (x,) = problem.tensors(1, dtype)
    scale, bias = problem.parameters(2, parameter_dtype(x))
    plain = problem.operation.forward_training(x, scale, bias)
    cut = problem.operation.forward_training(x, scale, bias, activation="relu")
    assert_same(cut[0], np.maximum(plain[0], np.zeros((), dtype)))
    for a, b in zip(cut[1:], plain[1:], strict=True):
        assert_same(a, b)


def test_saved_statistics_are_used_as_given() -> None:
    """As cuDNN does; another batch's give another gradient, by the same formula."""
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, 5, 3, 4))
    scale, mean, inverse = rng.standard_normal((3, 3))
    dx, dscale, dbias = BatchNormalization().backward(dy, x, scale, mean, inverse)
    for c in range(3):
        normalized = (x[:, c] - mean[c]) * inverse[c]
        assert dscale[c] == pytest.approx(np.vdot(dy[:, c], normalized), rel=1e-12)
        assert dbias[c] == pytest.approx(dy[:, c].sum(), rel=1e-12)
        inner = 20 * dy[:, c] - dbias[c] - normalized * dscale[c]
        np.testing.assert_allclose(dx[:, c], scale[c] * inverse[c] / 20 * inner, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("mode", ["spatial", "per_activation"])
def test_nan_spreads_as_far_as_its_mean(mode: str) -> None:
    op = BatchNormalization(mode)
    x, dy = normal_numbers(0, (4, 3, 5)), normal_numbers(1, (4, 3, 5))
    shape = (3,) if mode == "spatial" else (3, 5)
    scale, bias, running_mean, running_variance = (np.ones(shape) for _ in range(4))
    touched = (slice(None), 1) if mode == "spatial" else (slice(None), 1, 2)
    x[2, 1, 2] = NAN
    averages = {"running_mean": running_mean, "running_variance": running_variance}
    y, mean, inverse = op.forward_training(x, scale, bias, **averages)
    only_nan(y, touched)
    for statistic in (mean, inverse, running_mean, running_variance):
        only_nan(statistic, touched[1:])
    only_nan(op.forward_training(x, scale, bias, activation="relu")[0], touched)
    only_nan(op.forward_inference(x, scale, bias, mean=bias, variance=scale), (2, 1, 2))
    dx, dscale, dbias = op.backward(dy, x, scale)
    only_nan(dx, touched)
    only_nan(dscale, touched[1:])
    assert not np.isnan(dbias).any()
    dy[2, 1, 2], x[2, 1, 2] = NAN, 0
    for gradient, at in zip(op.backward(dy, x, scale), (touched, touched[1:], touched[1:]), strict=True):
        only_nan(gradient, at)


def test_a_mean_far_above_the_deviation() -> None:
    """The mean of the squares less the square of the mean would lose all of it."""
    x = (1e8 + np.arange(8.0)).reshape(8, 1)
    y, mean, inverse = BatchNormalization(epsilon=0).forward_training(x, np.ones(1), np.zeros(1))
    assert mean == 1e8 + 3.5
    assert inverse == pytest.approx(5.25**-0.5, rel=1e-14)
    np.testing.assert_allclose(y[:, 0], (np.arange(8) - 3.5) / 5.25**0.5, rtol=1e-13)
