"""Arrays to call the reference with, and what all of its operations beside the convolutions promise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st
from messages import says

from cudnnpy.reference._arrays import rounded

FLOATS = [np.dtype(t) for t in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)]
NAN, INF = float("nan"), float("inf")

dtypes = st.sampled_from(FLOATS)
seeds = st.integers(0, 2**32 - 1)
scales = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(-3, 3))
MEMORY = ("C", "channels last", "reversed axes", "every other", "backwards")


@st.composite
def shapes(
    draw: st.DrawFn, ranks: Sequence[int], layout: str = "NCHW", largest: int = 5, empty: bool = False
) -> tuple[int, ...]:
    """Sizes in a layout's axis order, small, or with 1025 channels and little else; with empty, some are 0 at times."""
    rank = draw(st.sampled_from(ranks))
    sizes = draw(st.lists(st.integers(1, largest), min_size=rank, max_size=rank))
    if draw(st.integers(0, 9)) == 9:
        sizes = [min(size, 2) for size in sizes]
        sizes[-1 if layout.endswith("C") else min(1, rank - 1)] = 1025
    if empty and draw(st.integers(0, 7)) == 7:
        sizes = [size * draw(st.integers(0, 1)) for size in sizes]
    return tuple(sizes)


def in_memory_order(values: np.ndarray, memory: str) -> np.ndarray:
    """The same values in another order of memory."""
    if memory == "channels last" and values.ndim > 2:
        return np.moveaxis(np.moveaxis(values, 1, -1).copy(), -1, 1)
    if memory == "reversed axes":
        return values.T.copy().T
    if memory == "every other":
        return np.repeat(values, 2, axis=-1)[..., ::2]
    if memory == "backwards":
        return np.flip(np.flip(values).copy())
    return values.copy()


def normal_numbers(seed: int, shape: tuple[int, ...], dtype: Any = np.float64, memory: str = "C") -> np.ndarray:
    return in_memory_order(np.random.default_rng(seed).standard_normal(shape).astype(dtype), memory)


def parameter_dtype(x: np.ndarray) -> np.dtype[Any]:
    """The data type of batch normalization's parameters beside x."""
    return np.dtype(np.float64 if x.dtype == np.float64 else np.float32)


def assert_close(actual: np.ndarray, expected: np.ndarray) -> None:
    """Equal but for the order of float64 operations on numbers of about 1."""
    assert actual.dtype == np.float64
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=1e-11, atol=1e-11)


def assert_same(actual: np.ndarray, expected: np.ndarray) -> None:
    """Equal dtypes, shapes and values; NaN equals NaN."""
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual.astype(np.float64), expected.astype(np.float64), strict=True)


def only_nan(array: np.ndarray, at: Any) -> None:
    """Check that NaN is there, and nowhere else."""
    expected = np.zeros(array.shape, bool)
    expected[at] = True
    np.testing.assert_array_equal(np.isnan(array), expected)


def check_scales(
    operation: Callable[..., np.ndarray],
    arrays: Sequence[np.ndarray],
    alpha: float,
    beta: float,
    memory: str = "C",
    in_place: int | None = None,
) -> None:
    """Check that alpha * result + beta * out is rounded once, into out if there is one, and nothing else is written.

    operation takes the arrays, of one dtype, then out, alpha and beta; in_place is which of them out may be.
    """
    dtype = arrays[0].dtype
    kept = [array.copy() for array in arrays]
    exact = operation(*[array.astype(np.float64) for array in arrays])
    assert exact.dtype == np.float64
    with np.errstate(all="ignore"):
        plain = operation(*arrays)
        assert_same(plain, rounded(exact, dtype))
        assert plain.flags.c_contiguous
        assert not any(np.shares_memory(plain, array) for array in arrays)
        assert_same(operation(*arrays, alpha=alpha), rounded(alpha * exact, dtype))

        before = normal_numbers(exact.size, exact.shape, dtype)
        out = in_memory_order(before, memory)
        unread = in_memory_order(np.full(exact.shape, NAN, dtype), memory)
        scaled = alpha * exact + beta * before.astype(np.float64) if beta else alpha * exact
        assert operation(*arrays, out=out, alpha=alpha, beta=beta, stream=object()) is out
        assert_same(out, rounded(scaled, dtype))
        assert operation(*arrays, out=unread, alpha=alpha) is unread
        assert_same(unread, rounded(alpha * exact, dtype))
        for array, copy in zip(arrays, kept, strict=True):
            assert_same(array, copy)

        for at, array in enumerate(arrays):
            if array.shape != exact.shape or not array.size:
                continue
            copies = [other.copy(order="K") for other in arrays]  # float64 sums depend on the order
            if at == in_place:
                view = copies[at][...]  # another object for the same memory is in place too
                scaled = alpha * exact + beta * array.astype(np.float64) if beta else alpha * exact
                assert operation(*copies, out=view, alpha=alpha, beta=beta) is view
                assert_same(copies[at], rounded(scaled, dtype))
            else:
                assert_refused(
                    lambda copies=copies, at=at: operation(*copies, out=copies[at]),
                    ValueError,
                    "out must ...; got overlapping arrays",
                )
                assert_same(copies[at], array)
    check_overlap(operation, arrays, exact.shape)


def check_overlap(operation: Callable[..., np.ndarray], arrays: Sequence[np.ndarray], shape: tuple[int, ...]) -> None:
    """An out that shares some memory with an input, but not element by element, is refused."""
    for at, array in enumerate(arrays):
        if not (array.size and np.prod(shape)):
            continue  # what has no elements shares none
        one = np.ones(array.size + int(np.prod(shape)), array.dtype)
        copies = list(arrays)
        copies[at] = one[: array.size].reshape(array.shape)
        out = one[array.size - 1 :][: int(np.prod(shape))].reshape(shape)
        if array.size == 1 and array.shape == shape:
            continue  # one element: the same place, after all
        assert_refused(
            lambda copies=copies, out=out: operation(*copies, out=out),
            ValueError,
            "out must ...; got overlapping arrays",
        )
        assert (one == 1).all()


def assert_refused(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=says(message)):
        call()


def bad_outs(shape: tuple[int, ...]) -> list[tuple[str, object, type[Exception], str]]:
    """What is refused for the out of a float32 result of a shape."""
    frozen = np.ones(shape, np.float32)
    frozen.flags.writeable = False
    repeated = np.lib.stride_tricks.as_strided(np.ones(shape, np.float32), shape, (0,) * len(shape))
    return [
        ("list", [[1.0]], TypeError, "out must be a numpy.ndarray; got a builtins.list"),
        ("dtype", np.ones(shape, np.float16), TypeError, "out must be float32...; got float16"),
        ("wider dtype", np.ones(shape), TypeError, "out must be float32...; got float64"),
        ("shape", np.ones((*shape, 1), np.float32), ValueError, f"out must have shape...; got shape {(*shape, 1)}"),
        ("read-only", frozen, ValueError, "out must be a writable array; got a read-only one"),
        ("repeated", repeated, ValueError, "out must have no stride of 0, which would write one element twice"),
    ]
