"""Arguments that the reference's layer, RMS and instance normalization reject, and the types of their results."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from reference_checks import BAD_ARRAYS, NAN, assert_refused, assert_same, bad_outs, normal_numbers
from test_reference_layer_normalization import KINDS, SCALE, X

from cudnnpy.reference import (
    BatchNormalization,
    InstanceNormalization,
    LayerNormalization,
    LocalResponseNormalization,
    RMSNormalization,
)

# What is refused


@pytest.mark.parametrize("kind", [LayerNormalization, RMSNormalization, InstanceNormalization])
def test_bad_option(kind: Any) -> None:
    assert_refused(lambda: kind(-1.0), ValueError, "epsilon must be a finite number of 0 or more...; got -1.0")
    assert_refused(lambda: kind(NAN), ValueError, "epsilon must be a finite number of 0 or more...; got nan")
    assert_refused(lambda: kind(float("inf")), ValueError, "epsilon must be a finite number of 0 or more...; got inf")
    assert_refused(lambda: kind(None), TypeError, "epsilon must be a finite number of 0 or more; got None")
    if kind is InstanceNormalization:
        assert_refused(lambda: kind(layout="CHW"), ValueError, "layout must be one of...; got 'CHW'")
        assert_refused(
            lambda: kind(layout=None), TypeError, "layout must be one of 'NCW', 'NCHW', 'NCDHW'...; got None"
        )
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
            ([1.0], TypeError, " must be a numpy.ndarray; got a builtins.list"),
            (array.astype(np.int32), TypeError, " must be float...; got int32"),
            (array.astype(np.float64), TypeError, " must be float...; got float64"),
            (array[..., :2], ValueError, f" must have ...; got shape {(*array.shape[:-1], 2)}"),
            (array[None], ValueError, f" must have ...; got shape {(1, *array.shape)}"),
        ]
        if name not in ("scale", "bias"):
            bad.append((None, TypeError, " must be a numpy.ndarray; got a builtins.NoneType"))
        if name == "x":  # which comes before scale, so that its own shape is only too short or too long
            bad = [tuple(case[1:]) for case in BAD_ARRAYS if case[0] != "empty"]  # type: ignore[misc]
        elif name != "dy":
            bad.append((array.astype(np.float16), TypeError, " must be float32...; got float16"))
        for other, error, message in bad:
            out = np.full(X.shape, 7, np.float32)
            assert_refused(partial(call, **right | {name: other}, out=out), error, name + message)
            assert (out == 7).all()
    for _, not_out, error, message in bad_outs(X.shape):
        assert_refused(partial(call, **right, out=not_out), error, message)


@pytest.mark.parametrize(("call", "right"), CALLS.values(), ids=CALLS)
def test_out_may_not_overlap_an_input(call: Callable[..., object], right: dict[str, np.ndarray]) -> None:
    for name, array in right.items():
        memory = np.ones(X.size + 1, np.float32)
        part, out = memory[: array.size].reshape(array.shape), memory[1:].reshape(X.shape)
        message = f"out must not overlap {name} in memory"
        assert_refused(partial(call, **right | {name: part}, out=out), ValueError, message)
        assert_refused(
            partial(call, **right | {name: out if name in ("x", "dy") else part}, out=out), ValueError, message
        )
        assert (memory == 1).all()


def test_bad_scale() -> None:
    """It must be the last axes of x."""
    x = np.ones((2, 3, 4), np.float32)
    for shape in ((), (3,), (4, 1), (1, 2, 3, 4), (2, 4), (1,), (2, 3)):
        array = np.ones(shape, np.float32)
        message = f" must have the shape of the last axes of x, (4,) or (3, 4) or (2, 3, 4)...; got shape {shape}"
        for op in (LayerNormalization(), RMSNormalization()):
            assert_refused(lambda op=op, array=array: op.forward_training(x, array), ValueError, "scale" + message)
        assert_refused(
            lambda array=array: LayerNormalization().forward_training(x, None, array), ValueError, "bias" + message
        )
    four = np.ones(4, np.float32)
    assert_refused(
        lambda: LayerNormalization().forward_inference(x, four, x[0]),
        ValueError,
        "bias must have shape (4,), the shape of scale; got shape (3, 4)",
    )


@pytest.mark.parametrize("kind", [LayerNormalization, RMSNormalization])
@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (None, TypeError, "normalized_shape must be the sizes of x's last axes where there is no scale...; got None"),
        ((), ValueError, "normalized_shape must be None...; got ()"),
        (3, ValueError, "of the last axes of x, (4,) or (3, 4) or (2, 3, 4); got (3,)"),
        ((2, 3), ValueError, "(2, 3, 4); got (2, 3)"),
        ((1, 2, 3, 4), ValueError, "(2, 3, 4); got (1, 2, 3, 4)"),
        (4.0, TypeError, "normalized_shape must be None...; got 4.0"),
        (True, TypeError, "normalized_shape must be None...; got True"),
        ("4", TypeError, "normalized_shape must be None...; got '4'"),
        ((4.0,), TypeError, "normalized_shape must be None...; got (4.0,)"),
        ((3, -4), ValueError, "normalized_shape must be None...; got (3, -4)"),
    ],
)
def test_bad_normalized_shape(kind: Any, given: Any, error: type[Exception], message: str) -> None:
    x = np.ones((2, 3, 4), np.float32)
    assert_refused(lambda: kind().forward_training(x, normalized_shape=given), error, message)
    assert_refused(lambda: kind().forward_inference(x, normalized_shape=given), error, message)


@pytest.mark.parametrize("kind", [LayerNormalization, RMSNormalization])
def test_normalized_shape(kind: Any) -> None:
    """Sequences and integers of any kind; and it has to agree with scale's."""
    x = normal_numbers(0, (2, 3, 4), np.float32)
    expected = kind().forward_training(x, np.ones(4, np.float32))
    for shape in (4, np.int64(4), (4,), [4], np.array([4])):
        for result, wanted in zip(kind().forward_training(x, normalized_shape=shape), expected, strict=True):
            assert_same(result, wanted)
    message = "scale must have shape (3, 4), normalized_shape...; got shape (4,)"
    assert_refused(lambda: kind().forward_training(x, x[0, 0], normalized_shape=(3, 4)), ValueError, message)


def test_parameters_are_of_one_dtype() -> None:
    x, half = X.astype(np.float16), SCALE.astype(np.float16)
    for op, scale, own in ((LayerNormalization(), SCALE, half), (InstanceNormalization(), SCALE[:3], half[:3])):
        message = "bias must be float32, as scale...; got float16"
        assert_refused(lambda op=op, scale=scale, own=own: op.forward_training(x, scale, own), TypeError, message)
    brain = SCALE.astype(ml_dtypes.bfloat16)
    message = "scale must be float32 or float16...; got bfloat16"
    assert_refused(lambda: LayerNormalization().forward_training(x, brain), TypeError, message)
    message = "scale must be float64...; got float32"
    assert_refused(lambda: RMSNormalization().forward_training(X.astype(np.float64), SCALE), TypeError, message)


def test_bad_statistics_without_scale() -> None:
    """Their axes say which are normalized."""
    for shape in ((5,), (4, 2), (3, 5)):
        array = np.ones(shape, np.float32)
        message = (
            f"inverse_rms must have shape {X.shape[: len(shape)]}, the axes of x before...; got shape {array.shape}"
        )
        assert_refused(lambda array=array: RMSNormalization().backward(X, X, None, array), ValueError, message)
    message = "mean must have the shape of the first axes of x, () or (4,) or (4, 3)...; got shape (4, 3, 5)"
    assert_refused(lambda: LayerNormalization().backward(X, X, None, X, X), ValueError, message)
    for op in (LayerNormalization(), InstanceNormalization()):
        message = "bias must be a bool or None; got an array (numpy.ndarray of shape (1, 2))"
        assert_refused(
            lambda op=op: op.backward(X, X, None, X[..., 0], X[..., 0], bias=np.ones((1, 2))), TypeError, message
        )


def test_parameters_of_no_channels() -> None:
    x, none = np.ones((2, 0, 3), np.float32), np.ones(0, np.float32)
    for pair, name in (((none, None), "scale"), ((None, none), "bias"), ((none, none), "scale")):
        message = f"{name} must be None for an x of 0 channels; got an array"
        assert_refused(lambda pair=pair: InstanceNormalization().forward_training(x, *pair), ValueError, message)
    assert_same(InstanceNormalization().forward_inference(x), x)


def test_bad_rank() -> None:
    one = np.ones(3, np.float32)
    for layout, rank in (("NCW", 4), ("NDHWC", 4), ("NWC", 5)):
        x = np.ones((3,) * rank, np.float32)
        assert_refused(
            lambda layout=layout, x=x: InstanceNormalization(layout=layout).forward_training(x, one, one),
            ValueError,
            f"layout must have {rank} axes, as x; got {layout!r}",
        )
    assert_refused(
        lambda: InstanceNormalization().forward_inference(np.ones((2, 3), np.float32), one, one),
        ValueError,
        "x must have 3 to 5 axes; got shape",
    )
    assert_refused(
        lambda: InstanceNormalization(layout="NHWC").forward_inference(X, one, one),
        ValueError,
        "scale must have shape (5,), one for each channel of x...; got shape (3,)",
    )


class Sub(np.ndarray):
    """An array of a class of one's own."""


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(4, 3, 5), (0, 3, 5)], ids=str)
def test_results_are_plain_arrays_of_their_own(shape: tuple[int, ...], dtype: Any) -> None:
    """Of subclasses too, with parameters and without; float64 is copied as well."""
    x, last, channels = (normal_numbers(at, size, dtype).view(Sub) for at, size in enumerate((shape, (5,), (3,))))
    kinds: list[tuple[Any, Any, dict[str, Any]]] = [
        (LayerNormalization(), last, {"normalized_shape": 5}),
        (RMSNormalization(), last, {"normalized_shape": 5}),
        (InstanceNormalization(), channels, {}),
        (BatchNormalization(), channels, {}),
    ]
    found = [LocalResponseNormalization().forward(x), LocalResponseNormalization().backward(x, x, x)]
    for op, scale, shapes_ in kinds:
        for given_ in (scale, None):
            y, *statistics = op.forward_training(x, given_, **shapes_)
            found += [y, *statistics, *op.backward(x, x, given_, *(array.view(Sub) for array in statistics))]
    for array in found:
        if array is not None:
            assert type(array) is np.ndarray
            assert not any(np.shares_memory(array, other) for other in (x, last, channels))
