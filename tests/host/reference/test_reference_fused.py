"""The reference's fused convolution against the textbook's convolution and activations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import ACTIVATIONS as TEXTBOOK
from oracles import convolve
from reference_checks import (
    FLOATS,
    MEMORY,
    NAN,
    assert_same,
    in_memory_order,
    normal_numbers,
    only_nan,
    seeds,
)

from cudnnpy.reference import Convolution, FusedConvolution

NARROW = FLOATS[:3]
NAMES = {1: ("NCW", "NWC"), 2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}
ACTIVATIONS: tuple[str | None, ...] = (None, "relu", "sigmoid", "tanh", "elu", "swish")


@dataclass(frozen=True)
class Problem:
    """One fused convolution; shapes are channels first."""

    x_shape: tuple[int, ...]
    w_shape: tuple[int, ...]
    padding: int
    stride: int
    dilation: int
    groups: int
    mode: str
    layout: str
    activation: str | None
    dtype: np.dtype[Any]
    wide: tuple[bool, bool]  # scale and bias in float32
    memory: str
    seed: int

    def operation(self) -> FusedConvolution:
        names = "padding", "stride", "dilation", "groups", "mode", "layout"
        return FusedConvolution(**{name: getattr(self, name) for name in names})

    def in_layout(self, array: np.ndarray) -> np.ndarray:
        return np.moveaxis(array, 1, -1) if self.layout.endswith("C") else array

    def array(self, at: int, shape: tuple[int, ...]) -> np.ndarray:
        """Of a shape that is channels first, in the layout."""
        return in_memory_order(self.in_layout(normal_numbers(self.seed + at, shape).astype(self.dtype)), self.memory)

    def parameter(self, at: int, wide: bool) -> np.ndarray:
        return normal_numbers(self.seed + at, self.w_shape[:1], np.float32 if wide else self.dtype, self.memory)

    def first(self, array: np.ndarray) -> np.ndarray:
        """In float64, channels first."""
        return (np.moveaxis(array, -1, 1) if self.layout.endswith("C") else array).astype(np.float64)

    def product(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        rank, w = len(self.x_shape) - 2, self.first(w)
        if self.mode == "convolution":
            w = np.flip(w, tuple(range(2, w.ndim)))
        padding, stride, dilation = ((at,) * rank for at in ((self.padding,) * 2, self.stride, self.dilation))
        return convolve(self.first(x), w, padding, stride, dilation, self.groups)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    rank = draw(st.integers(1, 3))
    small = st.integers(1, 3)
    groups, per_group, filters = draw(small), draw(small), draw(small)
    padding, dilation = draw(st.integers(0, 2)), draw(small)
    kernel = [draw(small) for _ in range(rank)]
    sizes = [max(1, (taps - 1) * dilation + 1 - 2 * padding) + draw(st.integers(0, 3)) for taps in kernel]
    if draw(st.integers(0, 9)) == 9:
        filters = 1025
    return Problem(
        x_shape=(draw(st.sampled_from([1, 2, 3, 0])), groups * per_group, *sizes),
        w_shape=(groups * filters, per_group, *kernel),
        padding=padding,
        stride=draw(small),
        dilation=dilation,
        groups=groups,
        mode=draw(st.sampled_from(["cross_correlation", "convolution"])),
        layout=draw(st.sampled_from([*NAMES[rank], "NCHW", "NHWC"])),
        activation=draw(st.sampled_from(list(ACTIVATIONS))),
        dtype=draw(st.sampled_from(NARROW)),
        wide=draw(st.tuples(st.booleans(), st.booleans())),
        memory=draw(st.sampled_from(MEMORY)),
        seed=draw(seeds),
    )


def nearly(actual: np.ndarray, expected: np.ndarray, dtype: Any) -> None:
    """Equal but for one rounding to the dtype, and the order of float64 operations on numbers of about 10."""
    assert actual.dtype == dtype
    assert actual.shape == expected.shape
    limits = ml_dtypes.finfo(dtype)
    ulp = float(limits.eps) * np.abs(expected) + float(limits.smallest_subnormal)
    np.testing.assert_array_less(np.abs(actual.astype(np.float64) - expected), 0.5001 * ulp + 1e-11)


@settings(deadline=None, max_examples=400)
@given(problems(), st.booleans(), st.booleans(), st.booleans())
def test_composes_as_written(problem: Problem, with_scale: bool, with_bias: bool, with_residual: bool) -> None:
    op = problem.operation()
    x, w = problem.array(0, problem.x_shape), problem.array(1, problem.w_shape)
    expected = problem.product(x, w)
    added: dict[str, np.ndarray] = {}
    ones = (-1, *[1] * (expected.ndim - 2))
    if with_scale:
        added["scale"] = problem.parameter(2, problem.wide[0])
        expected = expected * added["scale"].astype(np.float64).reshape(ones)
    if with_bias:
        added["bias"] = problem.parameter(3, problem.wide[1])
        expected = expected + added["bias"].astype(np.float64).reshape(ones)
    if with_residual:
        added["residual"] = problem.array(4, tuple(expected.shape))
        expected = expected + problem.first(added["residual"])
    wanted = problem.in_layout(TEXTBOOK[problem.activation or "identity"](expected, 1.0))
    kept = [array.copy() for array in (x, w, *added.values())]

    y = op.forward(x, w, **added, activation=problem.activation)
    nearly(y, wanted, problem.dtype)
    assert y.flags.c_contiguous
    assert op.output_shape(x.shape, w.shape) == y.shape
    out = in_memory_order(np.full(y.shape, NAN, problem.dtype), problem.memory)
    assert op.forward(x, w, **added, activation=problem.activation, out=out, stream=object()) is out
    assert_same(out, y)
    for array, before in zip((x, w, *added.values()), kept, strict=True):
        assert_same(array, before)


@settings(deadline=None, max_examples=50)
@given(problems())
def test_relu_unless_asked_otherwise(problem: Problem) -> None:
    x, w = problem.array(0, problem.x_shape), problem.array(1, problem.w_shape)
    y = problem.operation().forward(x, w)
    assert_same(y, problem.operation().forward(x, w, activation="relu"))
    assert_same(y, np.maximum(problem.operation().forward(x, w, activation=None), np.zeros((), problem.dtype)))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_nothing_is_rounded_between(dtype: Any) -> None:
    """The product and the residual cancel but for the bias, which either would swallow; or the product is too large."""
    limits = ml_dtypes.finfo(dtype)
    x, w = np.full((1, 1, 1), 4 / float(limits.eps), dtype), np.full((1, 1, 1), 4, dtype)
    y = FusedConvolution().forward(x, w, None, np.ones(1, dtype), -4 * x, None)
    assert_same(y, np.ones((1, 1, 1), dtype))
    x = np.full((1, 1, 1), 2.0 ** (limits.maxexp - 1), dtype)
    assert_same(FusedConvolution().forward(x, w, np.full(1, 0.25, dtype), activation=None), x)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_comes_through(activation: str | None) -> None:
    x, w = normal_numbers(0, (2, 3, 5), np.float32), normal_numbers(1, (4, 3, 1), np.float32)
    one, residual = np.ones(4, np.float32), np.ones((2, 4, 5), np.float32)
    forward = partial(FusedConvolution().forward, activation=activation)
    with_nan = x.copy()
    with_nan[1, 2, 3] = NAN
    only_nan(forward(with_nan, w), (1, slice(None), 3))
    at_two = np.where(np.arange(4) == 2, np.float32(NAN), one)
    only_nan(forward(x, w, at_two), (slice(None), 2))
    only_nan(forward(x, w, None, at_two), (slice(None), 2))
    residual[0, 1, 2] = NAN
    only_nan(forward(x, w, one, one, residual), (0, 1, 2))


@pytest.mark.parametrize("padding", ["same", "half", "full", ((1, 0), (0, 2)), (1, 0)])
def test_paddings_are_the_convolutions(padding: Any) -> None:
    x, w = normal_numbers(0, (2, 3, 7, 6), np.float32), normal_numbers(1, (4, 3, 3, 2), np.float32)
    options: dict[str, Any] = {"padding": padding, "stride": (2, 1)}
    assert_same(FusedConvolution(**options).forward(x, w, activation=None), Convolution(**options).forward(x, w))
