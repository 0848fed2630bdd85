"""cudnnpy.Convolution on a GPU against cudnnpy.reference, with NumPy and hypothesis alone: a file to copy.

hypothesis shrinks a failure to the smallest problem that fails, and prints it. docs/test-your-convolution.md explains the
bound, and how to repeat a failure. test_convolution_properties.py is the large campaign.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

import cudnnpy

# The operands, the result last; y has the shape of dy, and so on.
OPERANDS = {"forward": "xwy", "backward_data": "ywx", "backward_filter": "yxw", "backward_bias": "yb"}


class Problem(NamedTuple):
    x_shape: tuple[int, ...]  # (N, C, spatial...)
    w_shape: tuple[int, ...]  # (K, C / groups, spatial...)
    options: dict[str, Any]  # of Convolution
    memory: str  # "NCHW"; "channels_last": the same axes in another order in memory; "NHWC": other axes
    dtype: str
    alpha: float
    beta: float
    seed: int  # of the values


SIZE, CHANNELS = st.integers(1, 3), st.sampled_from([1, 2, 3, 4, 8])
PADDING = st.sampled_from([(0, 0), (1, 1), (2, 2), (0, 1), (1, 0), (2, 1)])  # before, after
STEPS = st.sampled_from([(1, 1), (2, 1), (1, 2), (3, 1), (1, 3), (2, 2)])  # stride, dilation
# One spatial axis: filter, steps, padding, and the image's surplus over what these need. An axis is four draws, few enough
# that shrinking removes it in one step.
AXIS = st.tuples(SIZE, STEPS, PADDING, st.integers(0, 6))


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Problems whose sizes fit together by construction: nothing is filtered out, so that all of them shrink."""
    taps, steps, padding, extra = zip(*draw(st.lists(AXIS, min_size=1, max_size=3)), strict=True)
    stride, dilation = zip(*steps, strict=True)
    needed = [max(1, (r - 1) * d + 1 - sum(p)) for r, d, p in zip(taps, dilation, padding, strict=True)]
    groups, channels = draw(SIZE), draw(CHANNELS)
    return Problem(
        x_shape=(draw(SIZE), groups * channels, *map(sum, zip(needed, extra, strict=True))),
        w_shape=(groups * draw(CHANNELS), channels, *taps),
        options={"padding": padding, "stride": stride, "dilation": dilation, "groups": groups},
        memory=draw(st.sampled_from(["NCHW", "channels_last", "NHWC"])),
        dtype=draw(st.sampled_from(["float32", "float16"])),
        alpha=draw(st.sampled_from([1.0, 0.5, -2.0])),
        beta=draw(st.sampled_from([0.0, 1.0, -0.5])),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


def in_memory(array: np.ndarray, memory: str) -> np.ndarray:
    """An array with the axes (N, C, spatial...) in a memory format."""
    if memory == "NCHW" or array.ndim == 1:
        return array
    last = np.moveaxis(array, 1, -1).copy()
    return last if memory == "NHWC" else np.moveaxis(last, -1, 1)


@pytest.mark.parametrize("prefer", ["fastest", "limited_workspace", "no_workspace", "autotune"])
@pytest.mark.parametrize("operation", OPERANDS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(problem=problems())
def test_convolution_against_reference(operation: str, prefer: str, problem: Problem) -> None:
    x_shape, w_shape, options, memory, dtype, alpha, beta, seed = problem
    y_shape = cudnnpy.reference.Convolution(**options).output_shape(x_shape, w_shape)
    shapes = {"x": x_shape, "w": w_shape, "y": y_shape, "b": y_shape[1:2]}
    random = np.random.default_rng(seed)
    values = [random.standard_normal(shapes[name]).astype(dtype) for name in OPERANDS[operation]]
    if beta == 0:
        values[-1][...] = np.nan  # every element must be written, and none be read
    arrays = [in_memory(array, memory) for array in values]
    options = {**options, "layout": "NHWC" if memory == "NHWC" else "NCHW"}

    def exact(arrays: list[np.ndarray], alpha: float, beta: float) -> np.ndarray:
        *inputs, out = (array.astype(np.float64) for array in arrays)
        return getattr(cudnnpy.reference.Convolution(**options), operation)(*inputs, out=out, alpha=alpha, beta=beta)

    # A sum of n products in arithmetic of unit roundoff u, in any order, is off by at most n u sum |a b| (Higham, section
    # 3.1); the reference counts the products on ones. Sums are in float32 (u = 2^-24). The result is rounded to its dtype,
    # and so are the tiles that Winograd and FFT kernels transform, which spread an error over a tile: hence the largest sum
    # of all elements, and the factor 64.
    n = exact([np.ones_like(array) for array in arrays], 1.0, 0.0).max()
    largest = exact([np.abs(array) for array in arrays], abs(alpha), abs(beta)).max()
    bound = 64 * (n * 2.0**-24 + np.finfo(dtype).eps) * largest

    convolution = cudnnpy.Convolution(**options, prefer=prefer, tf32=False, tune_seconds=0.2)
    *inputs, out = map(cudnnpy.to_device, arrays)
    try:
        getattr(convolution, operation)(*inputs, out=out, alpha=alpha, beta=beta)
    except cudnnpy.NoAlgorithmError:
        reject()  # as most gradients without workspace; hypothesis draws others, and fails a test that rejects all
    np.testing.assert_allclose(cudnnpy.to_numpy(out), exact(arrays, alpha, beta), rtol=0, atol=bound)
