"""Arguments that the reference's batch normalization rejects; parameter types, or none, and sizes of 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from reference_checks import (
    FLOATS,
    NAN,
    assert_refused,
    assert_same,
    normal_numbers,
    parameter_dtype,
)

from cudnnpy.reference import BatchNormalization
from cudnnpy.reference._arrays import rounded

# What is refused


X, ONES = np.ones((2, 3, 4, 5), np.float32), np.ones(3, np.float32)
OP = BatchNormalization()


def test_parameters_of_the_other_mode() -> None:
    assert_refused(
        lambda: BatchNormalization("per_activation").forward_training(X, ONES, ONES),
        ValueError,
        "scale must have shape (3, 4, 5); got shape (3,)",
    )
    assert_refused(
        lambda: BatchNormalization(layout="NHWC").forward_training(X, ONES, ONES),
        ValueError,
        "scale must have shape (5,); got shape (3,)",
    )
    assert_refused(
        lambda: OP.forward_training(X.astype(np.float64), ONES, ONES), TypeError, "scale must ...; got float32"
    )


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=str)
def test_parameters_of_xs_own_type(dtype: Any) -> None:
    """Each is rounded to its own type, what is saved to float32."""
    x, dy = normal_numbers(0, (4, 3, 5), dtype), normal_numbers(1, (4, 3, 5), dtype)
    scale, bias, mean, variance = (np.abs(normal_numbers(2 + at, (3,), dtype)) for at in range(4))
    x64, dy64, scale64, bias64, mean64, variance64 = (
        a.astype(np.float64) for a in (x, dy, scale, bias, mean, variance)
    )
    narrow, wide = {"mean": mean, "variance": variance}, {"mean": mean64, "variance": variance64}
    assert_same(OP.forward_inference(x, scale, bias, **narrow),
         rounded(OP.forward_inference(x64, scale64, bias64, **wide), dtype))  # fmt: skip
    narrow, wide = ({f"running_{name}": array for name, array in means.items()} for means in (narrow, wide))
    found = OP.forward_training(x, scale, bias, **narrow, average_factor=0.5)
    exact = OP.forward_training(x64, scale64, bias64, **wide, average_factor=0.5)
    for a, b, kind in zip(found, exact, (dtype, np.float32, np.float32), strict=True):
        assert_same(a, rounded(b, np.dtype(kind)))
    assert_same(mean, rounded(mean64, dtype))
    assert_same(variance, rounded(variance64, dtype))
    out = bias.copy()
    gradients = OP.backward(dy, x, scale, out_bias=out, parameter_beta=0.0)
    for gradient, wanted in zip(gradients, OP.backward(dy64, x64, scale64), strict=True):
        assert_same(gradient, rounded(wanted, dtype))
    assert gradients[2] is out
    for without, kind in (
        (OP.backward(dy, x, bias=True)[2], dtype),
        (OP.backward(x, x, bias=True, out_bias=np.ones(3, np.float32))[2], np.float32),
    ):
        assert without.dtype == kind
    message = f"bias must be {np.dtype(dtype).name}, as scale; got float32"
    assert_refused(lambda: OP.forward_training(x, scale, np.ones(3, np.float32)), TypeError, message)
    message = f"out_scale must be {np.dtype(dtype).name}...; got float32"
    assert_refused(lambda: OP.backward(dy, x, scale, out_scale=ONES), TypeError, message)


# Sizes of 0

EMPTY = [(0, 3), (0, 3, 4), (2, 3, 0), (0, 3, 4, 5), (2, 3, 0, 5), (0, 3, 2, 4, 5)]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", EMPTY, ids=str)
def test_no_elements(shape: tuple[int, ...], dtype: Any) -> None:
    """As torch has it: running statistics stay, the gradients of parameters are 0."""
    x = np.ones(shape, dtype)
    running = np.full(3, 2.0, parameter_dtype(x)), np.full(3, 3.0, parameter_dtype(x))
    before = [array.copy() for array in running]
    scale, bias = before
    for layout in ("NCHW", "NHWC"):
        op = BatchNormalization(layout=layout)
        last = layout == "NHWC" and x.ndim > 2
        here = np.moveaxis(x, 1, -1) if last else x
        named = dict(zip(("running_mean", "running_variance"), running, strict=True))
        y, mean, inverse = op.forward_training(here, scale, bias, **named, activation="relu")
        assert_same(y, here)
        assert_same(mean, np.zeros_like(scale))
        assert_same(inverse, np.full_like(scale, NAN))
        for now, old in zip(running, before, strict=True):
            assert_same(now, old)
        assert_same(op.forward_inference(here, scale, bias, mean=running[0], variance=running[1]), here)
        for saved in ((), (mean, inverse)):
            dx, dscale, dbias = op.backward(here, here, scale, *saved)
            assert_same(dx, here)
            for gradient in (dscale, dbias):
                assert_same(gradient, np.zeros_like(scale))
        outs = [array.copy() for array in before]
        results = op.backward(here, here, scale, out_scale=outs[0], out_bias=outs[1], parameter_beta=0.5)
        for result, out, old in zip(results[1:], outs, before, strict=True):
            assert result is out
            assert_same(out, old / 2)


@pytest.mark.parametrize("shape", [(2, 0), (2, 0, 4), (0, 0, 3, 3), (0,)], ids=str)
def test_no_channels(shape: tuple[int, ...]) -> None:
    """torch takes them without scale and bias."""
    x, none = np.ones(shape, np.float32), np.ones(0, np.float32)
    y, mean, inverse = OP.forward_training(x, running_mean=none, running_variance=none.copy())
    assert_same(y, x)
    assert_same(mean, none)
    assert_same(inverse, none)
    assert_same(OP.forward_inference(x, None, None, mean=none, variance=none), x)
    assert [gradient is None for gradient in OP.backward(x, x)] == [False, True, True]
    for pair, name in (((none, none), "scale"), ((None, none), "bias")):
        message = f"{name} must be None for an x of 0 channels; got an array"
        assert_refused(lambda pair=pair: OP.forward_training(x, *pair), ValueError, message)
