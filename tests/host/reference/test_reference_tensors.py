"""The reference's sums, multiples, copies and reductions of tensors against Python's numbers."""

from __future__ import annotations

import subprocess
import sys
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import oracles
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reference_checks import (
    BAD_ARRAYS,
    FLOATS,
    INF,
    MEMORY,
    NAN,
    assert_close,
    assert_refused,
    assert_same,
    bad_outs,
    check_overlap,
    check_scales,
    dtypes,
    in_memory_order,
    normal_numbers,
    scales,
    seeds,
    shapes,
)

from cudnnpy.reference import add_tensor, reduce_tensor, scale_tensor, set_tensor, transform_tensor
from cudnnpy.reference._arrays import rounded

ranks = (1, 2, 3, 4, 5)
memories = st.sampled_from(MEMORY)
X = np.ones((2, 3, 5, 5), np.float32)


# add_tensor


@settings(deadline=None, max_examples=200)
@given(st.data(), shapes(ranks, empty=True), seeds, dtypes, memories, scales, scales)
def test_add(data: Any, shape: Any, seed: int, dtype: Any, memory: str, alpha: float, beta: float) -> None:
    ones = data.draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)))
    a_shape = tuple(1 if one else size for size, one in zip(shape, ones, strict=True))
    a, b = normal_numbers(seed, a_shape, dtype, memory), normal_numbers(seed + 1, shape, dtype, memory)
    expected = rounded(alpha * a.astype(np.float64) + beta * b.astype(np.float64), dtype)
    result = add_tensor(a, b, alpha=alpha, beta=beta, stream=object())
    assert_same(result, expected)
    assert result.flags.c_contiguous
    assert_same(add_tensor(a, b), rounded(a.astype(np.float64) + b.astype(np.float64), dtype))
    out = in_memory_order(np.full(shape, NAN, dtype), memory)
    assert add_tensor(a, b, out, alpha, beta) is out
    assert_same(out, expected)
    b_again = b.copy()
    assert add_tensor(a, b_again, b_again, alpha, beta) is b_again
    assert_same(b_again, expected)
    if a_shape == shape:
        a_again = a.copy()
        assert add_tensor(a_again, b, a_again, alpha, beta) is a_again
        assert_same(a_again, expected)
    elif prod(a_shape) < prod(shape):
        assert_refused(
            lambda: add_tensor(a, b, out=a.copy()), ValueError, f"out must have shape {shape}...; got shape {a_shape}"
        )
    check_overlap(lambda a, b, out: add_tensor(a, b, out), [a, b], shape)


def test_add_by_hand() -> None:
    a, b = normal_numbers(0, (1, 3, 1, 4)), normal_numbers(1, (2, 3, 5, 4))
    assert_close(add_tensor(a, b, alpha=2.0, beta=-3.0), -3 * b + 2 * a)


def test_add_without_beta_does_not_read_b() -> None:
    a, b = np.array([1.0, INF]), np.array([NAN, NAN])
    assert_same(add_tensor(a, b, beta=0.0), a)
    assert_same(add_tensor(a, np.array([1.0, -INF])), np.array([2.0, NAN]))
    assert_same(add_tensor(np.array([NAN]), np.zeros(2)), np.array([NAN, NAN]))


@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (3, 5, 5), (2, 2, 5, 5), (1, 2, 3, 5, 5), (4, 3, 5, 5)])
def test_add_refuses_a_shape(shape: tuple[int, ...]) -> None:
    out = np.full(X.shape, 7, np.float32)
    message = f"a must have shape (2, 3, 5, 5), as b, or 1 for any of its sizes...; got shape {shape}"
    assert_refused(lambda: add_tensor(np.ones(shape, np.float32), X, out), ValueError, message)
    assert_refused(
        lambda: add_tensor(X, X[:1], out), ValueError, "a must have shape (1, 3, 5, 5)...; got shape (2, 3, 5, 5)"
    )
    assert (out == 7).all()


def test_add_into_an_input_that_overlaps_the_other() -> None:
    b = np.ones((2, 3))
    assert_refused(
        lambda: add_tensor(b[:1], b, out=b), ValueError, "out must not overlap a in memory; got overlapping arrays"
    )
    assert (b == 1).all()


# scale_tensor


@settings(deadline=None, max_examples=100)
@given(shapes(ranks, empty=True), seeds, dtypes, memories, scales)
def test_scale(shape: Any, seed: int, dtype: Any, memory: str, alpha: float) -> None:
    x = normal_numbers(seed, shape, dtype, memory)
    kept, expected = x.copy(), rounded(alpha * x.astype(np.float64), dtype)
    assert_same(scale_tensor(x, alpha, stream=object()), expected)
    out = in_memory_order(np.full(shape, NAN, dtype), memory)
    assert scale_tensor(x, alpha, out) is out
    assert_same(out, expected)
    assert_same(x, kept)
    assert scale_tensor(x, alpha, x) is x
    assert_same(x, expected)
    check_overlap(lambda x, out: scale_tensor(x, alpha, out), [x], shape)


def test_scale_no_numbers_and_infinities() -> None:
    x = np.array([NAN, INF, -INF, 1.0], np.float32)
    assert_same(scale_tensor(x, 0.0), np.array([NAN, NAN, NAN, 0], np.float32))
    assert_same(scale_tensor(x, 1e300), np.array([NAN, INF, -INF, INF], np.float32))
    with pytest.raises(ValueError, match="alpha must be a finite number; got -inf"):
        scale_tensor(x, -INF)


# set_tensor


@settings(deadline=None, max_examples=100)
@given(shapes(ranks, empty=True), dtypes, memories, st.one_of(st.floats(), st.integers(-(2**60), 2**60)))
def test_set(shape: Any, dtype: Any, memory: str, value: float) -> None:
    whole = np.full((*shape, 2), 7, dtype)
    out = whole[..., 0] if memory == "C" else in_memory_order(np.full(shape, NAN, dtype), memory)
    assert set_tensor(out, value, stream=object()) is out
    with np.errstate(all="ignore"):
        assert_same(out, np.broadcast_to(rounded(np.array([float(value)]), dtype), shape))
    assert (whole[..., 1] == 7).all()


def test_set_refuses() -> None:
    out = np.full(3, 7.0)
    for value, shown in ((None, None), ("0", "'0'"), (1j, 1j), (True, True), (np.ones(3), "an array")):
        assert_refused(lambda value=value: set_tensor(out, value), TypeError, f"value must be a number; got {shown}")
    assert (out == 7).all()
    for name, array, error, message in BAD_ARRAYS:
        assert_refused(lambda array=array: set_tensor(array, 1.0), error, "out" + message)
        assert name
    for name, array, error, message in bad_outs((2, 3)):
        if name in ("read-only", "repeated"):
            assert_refused(lambda array=array: set_tensor(array, 2.0), error, message)
            assert (array == 1).all()


# transform_tensor


@settings(deadline=None, max_examples=200)
@given(
    shapes(ranks, empty=True),
    seeds,
    dtypes,
    dtypes,
    memories,
    memories,
    st.sampled_from([None, "C", "channels_last"]),
    scales,
    scales,
)
def test_transform(
    shape: Any, seed: int, dtype: Any, to: Any, memory: str, out_memory: str, layout: Any, alpha: float, beta: float
) -> None:
    if layout == "channels_last" and len(shape) < 3:
        layout = "C"
    x = normal_numbers(seed, shape, dtype, memory)
    kept = x.copy()
    if beta:
        with pytest.raises(ValueError, match=r"beta must be 0 where out is None; got"):
            transform_tensor(x, layout=layout, dtype=to, alpha=alpha, beta=beta)
    result = transform_tensor(x, layout=layout, dtype=to, alpha=alpha, stream=object())
    assert_same(result, rounded(alpha * x.astype(np.float64), to))
    assert_same(transform_tensor(x, layout=layout, dtype=to.name, alpha=alpha), result)
    assert transform_tensor(x, layout=layout).dtype == dtype
    assert not np.shares_memory(result, x)
    if layout == "C":
        assert result.flags.c_contiguous
    elif layout == "channels_last":
        assert np.moveaxis(result, 1, -1).flags.c_contiguous
    else:
        assert result.strides == np.empty_like(x, to).strides
    before = normal_numbers(seed + 1, shape, to, out_memory)
    out = in_memory_order(before, out_memory) if beta else in_memory_order(np.full(shape, NAN, to), out_memory)
    scaled = alpha * x.astype(np.float64) + (beta * before.astype(np.float64) if beta else 0)
    assert transform_tensor(x, out, layout, "float32", alpha, beta) is out  # out decides
    assert_same(out, rounded(scaled, to))
    assert_same(x, kept)
    check_overlap(lambda x, out: transform_tensor(x, out), [x], shape)


def test_transform_keeps_or_changes_the_order_in_memory() -> None:
    x = np.moveaxis(np.ones((2, 5, 7, 3), np.float32), -1, 1)  # (2, 3, 5, 7), channels last
    assert transform_tensor(x).strides == x.strides
    assert transform_tensor(x, layout="C").strides == (420, 140, 28, 4)
    assert transform_tensor(x[:, ::2], layout="channels_last").strides == (280, 4, 56, 8)
    assert transform_tensor(x.copy(), layout="channels_last").strides == x.strides
    assert transform_tensor(np.flip(x), dtype="float64").strides == (840, 8, 168, 24)


def test_transform_copies_every_value() -> None:
    x = np.array([NAN, INF, -INF, -0.0, 1e-45, 3.4e38], np.float32)
    result = transform_tensor(x)
    assert_same(result, x)
    np.testing.assert_array_equal(np.signbit(result), np.signbit(x))
    assert_same(transform_tensor(x, dtype=np.float16), np.array([NAN, INF, -INF, 0, 0, INF], np.float16))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_transform_knows_a_dtype_by_all_its_names(dtype: np.dtype[Any]) -> None:
    for name in (dtype, dtype.name, dtype.type):
        assert transform_tensor(X, dtype=name).dtype == dtype


def test_transform_to_bfloat16_without_ml_dtypes() -> None:
    program = """
import sys
sys.modules["ml_dtypes"] = None
import numpy as np
from cudnnpy.reference import transform_tensor
try:
    transform_tensor(np.ones(3), dtype="bfloat16")
except TypeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "dtype must be one that NumPy has without ml-dtypes, which is not installed; got 'bfloat16'\n"


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"layout": "NHWC"}, ValueError, "layout must be one of 'C'...; got 'NHWC'"),
        ({"layout": 1}, TypeError, "layout must be one of 'C', 'channels_last'; got 1"),
        ({"dtype": "int8"}, TypeError, "dtype must be float16 or bfloat16 or float32 or float64...; got 'int8'"),
        ({"dtype": np.int32}, TypeError, "dtype must be float16 or bfloat16 or float32 or float64"),
        ({"dtype": ml_dtypes.float8_e5m2}, TypeError, "dtype must be float16 or bfloat16 or float32 or float64"),
        ({"dtype": float}, TypeError, "dtype must be float16...; got <class 'float'>"),
        ({"dtype": []}, TypeError, "dtype must be float16...; got []"),
        ({"alpha": "1"}, TypeError, "alpha must be a finite number; got '1'"),
        ({"beta": None}, TypeError, "beta must be a finite number; got None"),
    ],
)
def test_transform_refuses(given: dict[str, Any], error: type[Exception], message: str) -> None:
    out = np.full(X.shape, 7, np.float32)
    assert_refused(lambda: transform_tensor(X, **given), error, message)
    assert_refused(lambda: transform_tensor(X, out, **given), error, message)
    assert (out == 7).all()


def test_transform_refuses_channels_last_without_positions() -> None:
    assert_refused(
        lambda: transform_tensor(X[0, 0], layout="channels_last"),
        ValueError,
        "x must have 3, 4 or 5 axes; got shape (5, 5) (layout='channels_last')",
    )
    assert_refused(
        lambda: transform_tensor(X, out=X), ValueError, "out must not overlap x in memory; got overlapping arrays"
    )
    assert_refused(
        lambda: transform_tensor(X, out=X.astype(np.int32)), TypeError, "out must be float16 or...; got int32"
    )


# reduce_tensor


ops = st.sampled_from(list(oracles.REDUCTIONS))


@st.composite
def some_axes(draw: st.DrawFn, rank: int) -> tuple[int, ...] | None:
    """None, or some axes in any order, some of them counted from the last."""
    if draw(st.booleans()):
        return None
    axes = draw(st.lists(st.integers(0, rank - 1), min_size=1, max_size=rank, unique=True))
    return tuple(axis - rank if draw(st.booleans()) else axis for axis in axes)


def has_no_extreme(op: str, shape: tuple[int, ...], axes: tuple[int, ...] | None) -> bool:
    """Whether the largest or the smallest of no elements is asked for."""
    reduced = range(len(shape)) if axes is None else axes
    return op in ("min", "max", "amax") and any(shape[axis] == 0 for axis in reduced)


@settings(deadline=None, max_examples=300)
@given(st.data(), ops, shapes(ranks, empty=True), seeds, memories, st.booleans())
def test_reduce_matches_pythons_numbers(data: Any, op: str, shape: Any, seed: int, memory: str, zeros: bool) -> None:
    x = normal_numbers(seed, shape, memory=memory)
    if zeros:
        x[np.random.default_rng(seed).random(shape) < 0.4] = 0
    axes = data.draw(some_axes(len(shape)))
    if has_no_extreme(op, shape, axes):
        assert_refused(lambda: reduce_tensor(x, op, axes), ValueError, "x must have sizes of 1 or more on the axes ")
        return
    expected = oracles.reduce(x, op, axes)
    np.testing.assert_allclose(reduce_tensor(x, op, axes), expected, rtol=1e-10, atol=1e-12, strict=True)


@settings(deadline=None, max_examples=150)
@given(st.data(), ops, shapes(ranks, empty=True), seeds, dtypes, memories, scales, scales)
def test_reduce_scales_dtypes_and_out(
    data: Any, op: str, shape: Any, seed: int, dtype: Any, memory: str, alpha: float, beta: float
) -> None:
    axes = data.draw(some_axes(len(shape)))
    assume(not has_no_extreme(op, shape, axes))
    x = normal_numbers(seed, shape, dtype, memory)
    check_scales(lambda x, **scales: reduce_tensor(x, op, axes, **scales), [x], alpha, beta)


@pytest.mark.parametrize(
    ("op", "with_nan", "with_infinities"),
    [
        ("add", NAN, NAN),
        ("avg", NAN, NAN),
        ("mul", NAN, -INF),
        ("min", NAN, -INF),
        ("max", NAN, INF),
        ("amax", NAN, INF),
        ("norm1", NAN, INF),
        ("norm2", NAN, INF),
        ("mul_no_zeros", NAN, -INF),
    ],
)
def test_reduce_no_numbers_and_infinities(op: str, with_nan: float, with_infinities: float) -> None:
    x = np.array([[1.0, NAN, 3.0], [INF, 2.0, -INF], [1.0, 2.0, 2.0]], np.float32)
    result = reduce_tensor(x, op, (1,))
    np.testing.assert_array_equal(result[:2, 0], [with_nan, with_infinities])
    assert np.isfinite(result[2, 0])


def test_reduce_by_hand() -> None:
    x = np.array([[0.0, 2.0, -3.0], [0.0, 0.0, 0.0]])
    for op, expected in [
        ("mul", [0, 0]),
        ("mul_no_zeros", [-6, 1]),
        ("amax", [3, 0]),
        ("norm1", [5, 0]),
        ("norm2", [np.sqrt(13), 0]),
        ("avg", [-1 / 3, 0]),
    ]:
        np.testing.assert_allclose(reduce_tensor(x, op, axes=(1,))[:, 0], expected, rtol=1e-15)
    np.testing.assert_array_equal(reduce_tensor(x[:, :1], "mul_no_zeros", axes=(1,)), [[0], [0]])
    assert_same(reduce_tensor(np.full((1, 1), -2.0), "amax", [0]), np.full((1, 1), 2.0))


def test_reduce_sums_what_a_narrow_dtype_would_lose() -> None:
    x = np.array([2048, 1, 1, -2048], np.float16)
    assert_same(reduce_tensor(x), np.array([2], np.float16))
    x = np.full((1 << 16,), 2.0, np.float16)
    assert_same(reduce_tensor(x, "avg"), np.array([2], np.float16))
    assert_same(reduce_tensor(x, "norm2"), np.array([512], np.float16))
    assert_same(reduce_tensor(x), np.array([INF], np.float16))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"op": "median"}, ValueError, "op must be one of 'add', 'avg', 'mul', 'min', 'max'...; got 'median'"),
        ({"op": None}, TypeError, "op must be one of 'add', 'avg', 'mul', 'min', 'max', 'amax', 'norm1'...; got None"),
        ({"axes": 1}, TypeError, "axes must be None or a tuple of integers; got 1"),
        ({"axes": "1"}, TypeError, "axes must be None or a tuple of integers; got '1'"),
        ({"axes": (1.0,)}, TypeError, "axes must be None or a tuple of integers; got (1.0,)"),
        ({"axes": (True,)}, TypeError, "axes must be None or a tuple of integers; got (True,)"),
        ({"axes": ()}, ValueError, "axes must be one axis or more, each once, or None for all; got ()"),
        ({"axes": (0, 4)}, ValueError, "axes must be integers of -4 to 3 for the 4 axes of x; got (0, 4)"),
        ({"axes": (-5,)}, ValueError, "axes must be integers of -4 to 3 for the 4 axes of x; got (-5,)"),
        ({"axes": (1, -3)}, ValueError, "axes must be one axis or more, each once, or None for all; got (1, -3)"),
        ({"alpha": "1"}, TypeError, "alpha must be a finite number; got '1'"),
        ({"beta": None}, TypeError, "beta must be a finite number; got None"),
    ],
)
def test_reduce_refuses(given: dict[str, Any], error: type[Exception], message: str) -> None:
    out = np.full((1, 1, 1, 1), 7, np.float32)
    assert_refused(lambda: reduce_tensor(X, out=out, **given), error, message)
    assert (out == 7).all()


def test_reduce_takes_numpy_ints() -> None:
    assert_same(reduce_tensor(X, axes=np.array([0, -1])), np.full((1, 3, 5, 1), 10, np.float32))


def test_a_result_without_elements_has_extremes() -> None:
    for op in ("min", "max", "amax"):
        assert_same(reduce_tensor(np.ones((0, 3)), op, (1,)), np.ones((0, 1)))


def test_add_spreads_onto_no_elements() -> None:
    assert_same(add_tensor(np.ones((1, 3)), np.ones((0, 3))), np.ones((0, 3)))
    assert_refused(
        lambda: add_tensor(np.ones((0, 3)), np.ones((1, 3))), ValueError, "a must have shape ...; got shape (0, 3)"
    )


# All of them


@pytest.mark.parametrize(("array", "error", "message"), [bad[1:] for bad in BAD_ARRAYS], ids=[b[0] for b in BAD_ARRAYS])
def test_bad_array(array: Any, error: type[Exception], message: str) -> None:
    out = np.full(X.shape, 7, np.float32)
    assert_refused(lambda: add_tensor(array, X, out), error, "a" + message)
    assert_refused(lambda: add_tensor(X, array, out), error, "b" + message)
    assert_refused(lambda: scale_tensor(array, 2.0, out), error, "x" + message)
    assert_refused(lambda: transform_tensor(array, out), error, "x" + message)
    assert_refused(lambda: reduce_tensor(array, out=out), error, "x" + message)
    assert (out == 7).all()


def test_mixed_dtypes() -> None:
    assert_refused(lambda: add_tensor(X, X.astype(np.float16)), TypeError, "a must be float16, as b...; got float32")


@pytest.mark.parametrize("given", [{"alpha": "1"}, {"beta": None}, {"alpha": True}])
def test_bad_scale(given: dict[str, Any]) -> None:
    out = np.full(X.shape, 7, np.float32)
    ((name, value),) = given.items()
    assert_refused(lambda: add_tensor(X, X, out, **given), TypeError, f"{name} must be a finite number; got {value!r}")
    assert_refused(lambda: scale_tensor(X, value, out), TypeError, f"alpha must be a finite number; got {value!r}")
    assert (out == 7).all()


@pytest.mark.parametrize(("name", "out", "error", "message"), bad_outs(X.shape))
def test_bad_out(name: str, out: Any, error: type[Exception], message: str) -> None:
    assert_refused(lambda: add_tensor(X, X, out), error, message)
    assert_refused(lambda: scale_tensor(X, 2.0, out), error, message)
    if "dtype" not in name:
        assert_refused(lambda: transform_tensor(X, out), error, message)


@pytest.mark.parametrize(("out", "error", "message"), [bad[1:] for bad in bad_outs((1, 3, 1, 1))])
def test_bad_out_of_a_reduction(out: Any, error: type[Exception], message: str) -> None:
    assert_refused(lambda: reduce_tensor(X, axes=(0, 2, 3), out=out), error, message)
