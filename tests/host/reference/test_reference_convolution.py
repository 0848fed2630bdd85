"""The reference convolutions against the textbook's with autograd, scipy, adjoints and differences."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import pytest
import scipy.ndimage
import scipy.signal
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import convolve, convolve_transposed, value_and_pullback

from cudnnpy.reference import Convolution, ConvolutionTranspose, _products

FIRST = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
LAST = {1: "NWC", 2: "NHWC", 3: "NDHWC"}


@dataclass(frozen=True)
class Problem:
    """One convolution, or its transpose; shapes are channels first."""

    transpose: bool
    x_shape: tuple[int, ...]
    w_shape: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    mode: str
    layout: str
    output_padding: tuple[int, ...]
    block: int
    seed: int

    @property
    def rank(self) -> int:
        return len(self.x_shape) - 2

    @property
    def channels_last(self) -> bool:
        return self.layout.endswith("C")

    def operation(self, **changes: Any) -> Convolution | ConvolutionTranspose:
        options: dict[str, Any] = {
            "padding": self.padding,
            "stride": self.stride,
            "dilation": self.dilation,
            "groups": self.groups,
            "mode": self.mode,
            "layout": self.layout,
        }
        if self.transpose:
            return ConvolutionTranspose(**options | {"output_padding": self.output_padding} | changes)
        return Convolution(**options | changes)

    def arrays(self, dtype: Any = np.float64) -> tuple[np.ndarray, np.ndarray]:
        """Read-only x and w in the problem's layout."""
        rng = np.random.default_rng(self.seed)
        arrays = []
        for shape in (self.x_shape, self.w_shape):
            array = self.in_layout(rng.standard_normal(shape).astype(dtype))
            array.flags.writeable = False
            arrays.append(array)
        return arrays[0], arrays[1]

    def in_layout(self, array: np.ndarray) -> np.ndarray:
        return np.moveaxis(array, 1, -1) if self.channels_last else array

    def first(self, array: np.ndarray) -> np.ndarray:
        """In float64, channels first."""
        return (np.moveaxis(array, -1, 1) if self.channels_last else array).astype(np.float64)

    def textbook(self, x: Any, w: Any) -> Any:
        """Channels first."""
        if self.mode == "convolution":
            w = w[(..., *[slice(None, None, -1)] * self.rank)]
        given = (x, w, self.padding, self.stride, self.dilation, self.groups)
        return convolve_transposed(*given, self.output_padding) if self.transpose else convolve(*given)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    transpose = draw(st.booleans())
    rank = draw(st.integers(1, 3))
    small = st.integers(1, 3)

    def each(entries: st.SearchStrategy[Any]) -> tuple[Any, ...]:
        return tuple(draw(entries) for _ in range(rank))

    groups, per_group, filters, batch = draw(small), draw(small), draw(small), draw(st.sampled_from([1, 2, 3, 3, 2, 0]))
    kernel, stride, dilation = each(small), each(small), each(small)
    padding = each(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    reach = [(taps - 1) * step + 1 for taps, step in zip(kernel, dilation, strict=True)]
    if transpose:
        output_padding = tuple(
            draw(st.integers(0, max(step, spread) - 1)) for step, spread in zip(stride, dilation, strict=True)
        )
        smallest = [
            max(1, -(-(1 + sum(pads) - span - extra) // step) + 1)
            for pads, span, extra, step in zip(padding, reach, output_padding, stride, strict=True)
        ]
        w_shape = (groups * filters, per_group, *kernel)
        channels = groups * filters
    else:
        output_padding = (0,) * rank
        smallest = [max(1, span - sum(pads)) for span, pads in zip(reach, padding, strict=True)]
        w_shape = (groups * filters, per_group, *kernel)
        channels = groups * per_group
    sizes = [least + draw(st.integers(0, 4)) for least in smallest]
    return Problem(
        transpose=transpose,
        x_shape=(batch, channels, *sizes),
        w_shape=w_shape,
        padding=padding,
        stride=stride,
        dilation=dilation,
        groups=groups,
        mode=draw(st.sampled_from(["cross_correlation", "convolution"])),
        layout=draw(st.sampled_from([FIRST[rank], LAST[rank], "NCHW", "NHWC"])),
        output_padding=output_padding,
        block=draw(st.sampled_from([1, 60, 300, _products.BLOCK])),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


def close(actual: np.ndarray, expected: np.ndarray) -> None:
    """Equal but for the order of float64 sums of some hundred terms of size 1."""
    assert actual.dtype == np.float64
    np.testing.assert_allclose(actual, expected, rtol=1e-11, atol=1e-11)


@settings(deadline=None, max_examples=1000)
@given(problems())
def test_all_directions_match_the_textbook(problem: Problem) -> None:
    op = problem.operation()
    x, w = problem.arrays()
    expected, gradients = value_and_pullback(problem.textbook, problem.first(x), problem.first(w))
    expected = problem.in_layout(expected)
    assert op.output_shape(x.shape, w.shape) == expected.shape
    dy = np.random.default_rng(problem.seed + 1).standard_normal(expected.shape)
    dx, dw = gradients(problem.first(dy))
    with mock.patch.object(_products, "BLOCK", problem.block):
        close(op.forward(x, w), expected)
        close(op.backward_data(dy, w, x.shape), problem.in_layout(dx))
        close(op.backward_filter(dy, x, w.shape), problem.in_layout(dw))
        if problem.transpose:  # x's shape follows
            np.testing.assert_array_equal(op.backward_data(dy, w), op.backward_data(dy, w, x.shape), strict=True)
    channel = -1 if problem.channels_last else 1
    close(op.backward_bias(dy), np.moveaxis(dy, channel, -1).reshape(-1, expected.shape[channel]).sum(0))


@settings(deadline=None, max_examples=300)
@given(problems())
def test_float32_is_the_float64_result_rounded(problem: Problem) -> None:
    """Half a unit in the last place, plus what the order of the float64 sum may move."""
    op = problem.operation()
    x, w = problem.arrays(np.float32)
    expected = problem.in_layout(problem.textbook(problem.first(x), problem.first(w)))
    y = op.forward(x, w)
    assert y.dtype == np.float32
    np.testing.assert_array_less(np.abs(y - expected), 0.5001 * np.spacing(np.abs(y)) + 1e-12)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("mode", ["cross_correlation", "convolution"])
@pytest.mark.parametrize("padding", ["valid", "full", "same"])
def test_single_channel_matches_scipy(rank: int, mode: str, padding: str) -> None:
    rng = np.random.default_rng(rank)
    x, w = rng.standard_normal((9, 8, 7)[:rank]), rng.standard_normal((3, 5, 1)[:rank])
    function = scipy.signal.correlate if mode == "cross_correlation" else scipy.signal.convolve
    y = Convolution(padding=padding, mode=mode).forward(x[None, None], w[None, None])
    close(y[0, 0], function(x, w, mode=padding, method="direct"))


@pytest.mark.parametrize("size", range(1, 12))
@pytest.mark.parametrize("kernel", range(1, 5))
@pytest.mark.parametrize("dilation", [1, 2])
def test_named_paddings(size: int, kernel: int, dilation: int) -> None:
    x, w = np.random.default_rng(size).standard_normal((1, 2, size)), np.ones((1, 2, kernel))
    span = dilation * (kernel - 1) + 1

    def forward(padding: Any, stride: int) -> np.ndarray:
        return Convolution(padding=padding, stride=stride, dilation=dilation).forward(x, w)

    for stride in range(1, 5):
        same = forward("same", stride)
        assert same.shape[2] == -(-size // stride)
        total = max((same.shape[2] - 1) * stride + span - size, 0)
        np.testing.assert_array_equal(same, forward(((total // 2, total - total // 2),), stride))
        np.testing.assert_array_equal(forward("full", stride), forward(span - 1, stride))
        if size + 2 * (span // 2) >= span:
            np.testing.assert_array_equal(forward("half", stride), forward((span // 2,), stride))
        if size >= span:
            np.testing.assert_array_equal(forward("valid", stride), forward(0, stride))
    spread = np.arange(span) % dilation == 0
    centred = scipy.ndimage.correlate1d(x[0].sum(0), spread, mode="constant", origin=span % 2 - 1)  # more zeros behind
    close(forward("same", 1)[0, 0], centred)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("batch", [0, 2])
def test_sums_over_no_channels_are_0(layout: str, groups: int, batch: int) -> None:
    conv = Convolution(layout=layout, groups=groups)
    x, w, dy = (np.ones(shape) for shape in ((batch, 0, 5, 4), (6, 0, 3, 2), (batch, 6, 3, 3)))
    if layout == "NHWC":
        x, w, dy = (np.moveaxis(array, 1, -1) for array in (x, w, dy))
    bias = np.arange(-3.0, 3)
    y = conv.forward(x, w, bias, "relu", np.full_like(dy, 2), alpha=3.0, beta=0.5)
    spread = bias if layout == "NHWC" else bias[:, None, None]
    np.testing.assert_array_equal(y, np.maximum(spread + np.ones(dy.shape), 0), strict=True)
    np.testing.assert_array_equal(conv.forward(x, w), np.zeros(dy.shape), strict=True)
    np.testing.assert_array_equal(conv.backward_data(dy, w, x.shape), x, strict=True)
    np.testing.assert_array_equal(conv.backward_filter(dy, x, w.shape), w, strict=True)


def test_gradients_of_a_batch_of_0() -> None:
    x, w, dy = np.ones((0, 4, 5, 5), np.float16), np.ones((4, 4, 3, 3), np.float16), np.ones((0, 4, 3, 3), np.float16)
    for op, y in ((Convolution(), dy), (ConvolutionTranspose(), np.ones((0, 4, 7, 7), np.float16))):
        out, db = np.full_like(w, 3), np.full(4, 3, np.float16)
        assert op.backward_filter(y, x, out=out, alpha=5, beta=0.5) is out
        assert op.backward_bias(y, db, beta=2.0) is db
        assert ((out == 1.5).all(), (db == 6).all()) == (True, True)
        np.testing.assert_array_equal(op.backward_filter(y, x, w.shape), np.zeros_like(w), strict=True)
        np.testing.assert_array_equal(op.backward_bias(y), np.zeros(4, np.float16), strict=True)
        np.testing.assert_array_equal(op.backward_data(y, w, x.shape), x, strict=True)


@pytest.mark.parametrize("direction", ["forward", "backward_data", "backward_filter"])
def test_memory_is_bounded(direction: str) -> None:
    """The columns of this problem take 144 MiB in float64; they are never held at once."""
    x, w = np.ones((2, 64, 128, 128), np.float32), np.ones((8, 64, 3, 3), np.float32)
    conv = Convolution(padding=1)
    dy = np.ones(conv.output_shape(x.shape, w.shape), np.float32)
    calls = {
        "forward": lambda: conv.forward(x, w),
        "backward_data": lambda: conv.backward_data(dy, w, x.shape),
        "backward_filter": lambda: conv.backward_filter(dy, x, w.shape),
    }
    tracemalloc.start()
    try:
        calls[direction]()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    in_float64 = 2 * x.nbytes
    assert peak < 3 * in_float64 + 4 * 8 * _products.BLOCK < 144 << 20
