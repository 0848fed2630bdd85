"""add_tensor, scale_tensor, set_tensor, transform_tensor (copy to another memory format or dtype) and reduce_tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex, TypeAlias

import numpy as np

from cudnnpy._options.arguments import check_axes, check_scales
from cudnnpy._options.checks import check_flag, check_number, check_option, error_repr
from cudnnpy.reference import _arrays
from cudnnpy.reference._arrays import Array, Float64, Shape
from cudnnpy.typing import Dtype, MemoryLayout, Reduction

MEMORY_LAYOUTS = ("C", "channels_last")


def add_tensor(
    a: Array,
    b: Array,
    out: Array | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    stream: object = None,
) -> Array:
    """Return alpha * a + beta * b, where a is broadcast to the shape of b.

    The result is computed in float64 and rounded once. With beta 0, b is not read. stream is ignored.

    Parameters
    ----------
    a : numpy.ndarray
        float16, bfloat16, float32 or float64, with as many axes as b, each of b's size or of size 1.
    b : numpy.ndarray
        Of a's dtype, with 1 to 5 axes of any size.
    out : numpy.ndarray, optional
        The result, of b's shape and dtype; it may be b itself (in place), or a if it has b's shape.
    alpha, beta : float
        Factors of a and of b.

    Raises
    ------
    TypeError
        The type or dtype of an argument is wrong.
    ValueError
        A shape is wrong, or out is read-only or overlaps an input without being it.

    Examples
    --------
    >>> import numpy as np
    >>> from cudnnpy import reference
    >>> bias, out = np.ones((1, 3, 1, 1), np.float32), np.zeros((2, 3, 4, 4), np.float32)
    >>> float(reference.add_tensor(bias, out).sum())
    96.0
    """
    a, b = _arrays.check_tensor("a", a, empty="any"), _arrays.check_tensor("b", b, empty="any")
    _arrays.check_same_dtype("a", a, "b", b)
    if a.ndim != b.ndim or any(size not in (1, full) for size, full in zip(a.shape, b.shape, strict=True)):
        raise ValueError(f"a must have shape {b.shape}, as b, or 1 for any of its sizes; got shape {a.shape}")
    alpha, beta = check_scales(alpha, beta)
    _arrays.check_out(out, b.shape, (b.dtype.name,), in_place=("a", "b"), a=a, b=b)
    with np.errstate(all="ignore"):
        scaled = np.broadcast_to(a.astype(np.float64), b.shape)
        values = alpha * scaled + beta * b.astype(np.float64) if beta else alpha * scaled
        return _arrays.store(values, b.dtype, out)


def scale_tensor(x: Array, alpha: float, out: Array | None = None, stream: object = None) -> Array:
    """Return alpha * x.

    The result is computed in float64 and rounded once. stream is ignored.

    Parameters
    ----------
    x : numpy.ndarray
        float16, bfloat16, float32 or float64, with 1 to 5 axes of any size.
    alpha : float
        The factor.
    out : numpy.ndarray, optional
        The result, of x's shape and dtype; it may be x itself (in place).

    Raises
    ------
    TypeError
        The type or dtype of an argument is wrong.
    ValueError
        A shape is wrong, or out is read-only or overlaps x without being it.

    Examples
    --------
    >>> import numpy as np
    >>> from cudnnpy import reference
    >>> reference.scale_tensor(np.array([1.0, 2.0], np.float32), 3.0).tolist()
    [3.0, 6.0]
    """
    x = _arrays.check_tensor("x", x, empty="any")
    alpha = check_number("alpha", alpha, finite=True)
    _arrays.check_out(out, x.shape, (x.dtype.name,), in_place=("x",), x=x)
    with np.errstate(all="ignore"):
        return _arrays.store(alpha * x.astype(np.float64), x.dtype, out)


def set_tensor(out: Array, value: float, stream: object = None) -> Array:
    """Fill an array with a value and return it. stream is ignored.

    Parameters
    ----------
    out : numpy.ndarray
        The array, which is written: float16, bfloat16, float32 or float64, with 1 to 5 axes of any size.
    value : float
        The value, which is rounded to out's dtype.

    Raises
    ------
    TypeError
        The type or dtype of an argument is wrong.
    ValueError
        The shape of out is wrong, or it is read-only.

    Examples
    --------
    >>> import numpy as np
    >>> from cudnnpy import reference
    >>> reference.set_tensor(np.empty(2, np.float32), 5.0).tolist()
    [5.0, 5.0]
    """
    _arrays.check_tensor("out", out, empty="any")
    value = check_number("value", value, nan=True)
    _arrays.check_out(out, out.shape, (out.dtype.name,))
    with np.errstate(all="ignore"):
        return _arrays.store(np.array(value), out.dtype, out)


def transform_tensor(
    x: Array,
    out: Array | None = None,
    layout: MemoryLayout | None = None,
    dtype: Dtype | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    stream: object = None,
) -> Array:
    """Return alpha * x + beta * out, in another memory format or dtype; the order of the axes stays.

    If out is given it determines the memory format and the dtype, and layout and dtype are only validated. The result is
    computed in float64 and rounded once. With beta 0, out is not read. stream is ignored.

    Parameters
    ----------
    x : numpy.ndarray
        float16, bfloat16, float32 or float64, with 1 to 5 axes.
    out : numpy.ndarray, optional
        The result.
    layout : str, optional
        The memory format of the result: "C" (the last axis varies fastest), "channels_last" (axis 1 varies fastest, then the
        last one; 3 to 5 axes), by default x's.
    dtype : str or numpy.dtype, optional
        The dtype of the result: float16, bfloat16, float32 or float64; by default x's.
    alpha, beta : float
        Factors of x and of out.

    Raises
    ------
    TypeError
        The type or dtype of an argument is wrong.
    ValueError
        A shape or layout is wrong, or out is read-only or overlaps x.

    Examples
    --------
    >>> import numpy as np
    >>> from cudnnpy import reference
    >>> x = np.zeros((2, 3, 4, 5), np.float32)
    >>> reference.transform_tensor(x, layout="channels_last").strides  # in bytes
    (240, 4, 60, 12)
    """
    x = _arrays.check_tensor("x", x, empty="any")
    if layout is not None:
        check_option("layout", layout, MEMORY_LAYOUTS)
    target = x.dtype if dtype is None else _dtype(dtype)
    if layout == "channels_last" and x.ndim < 3:
        raise ValueError(f"x must have 3, 4 or 5 axes; got shape {x.shape} (layout='channels_last')")
    alpha, beta = check_scales(alpha, beta, out=out)
    _arrays.check_out(out, x.shape, _arrays.FLOATS, x=x)
    if out is None:
        beta = 0.0
        if layout == "channels_last":
            out = np.moveaxis(np.empty((x.shape[0], *x.shape[2:], x.shape[1]), target), -1, 1)
        else:
            out = np.empty_like(x, target, "K" if layout is None else "C", subok=False)
    with np.errstate(all="ignore"):
        return _arrays.store_scaled(x.astype(np.float64), out.dtype, out, alpha, beta)


def _dtype(given: object) -> np.dtype[Any]:
    """Return the NumPy dtype for a name, a dtype or a scalar type."""
    name = given if isinstance(given, str) else getattr(given, "name", getattr(given, "__name__", None))
    if name not in _arrays.FLOATS:
        raise TypeError(f"dtype must be {' or '.join(_arrays.FLOATS)}; got {error_repr(given)}")
    if name == "bfloat16":
        try:
            import ml_dtypes
        except ImportError:
            raise TypeError(
                "dtype must be one that NumPy has without ml-dtypes, which is not installed; got 'bfloat16'"
            ) from None
        name = ml_dtypes.bfloat16
    dtype: np.dtype[Any] = np.dtype(name)
    return dtype


Reducer: TypeAlias = Callable[[Float64, Shape], Float64]

REDUCTIONS: dict[str, Reducer] = {
    "add": lambda x, axes: x.sum(axes, keepdims=True),
    "avg": lambda x, axes: x.sum(axes, keepdims=True) / np.float64(_count(x, axes)),
    "mul": lambda x, axes: x.prod(axes, keepdims=True),
    "min": lambda x, axes: x.min(axes, keepdims=True),
    "max": lambda x, axes: x.max(axes, keepdims=True),
    "amax": lambda x, axes: np.abs(x).max(axes, keepdims=True),
    "norm1": lambda x, axes: np.abs(x).sum(axes, keepdims=True),
    "norm2": lambda x, axes: np.sqrt((x * x).sum(axes, keepdims=True)),
    "mul_no_zeros": lambda x, axes: x.prod(axes, keepdims=True, where=(x != 0) | (_count(x, axes) == 1)),
}
EXTREMES = ("min", "max", "amax")  # undefined over no elements


def _count(x: Float64, axes: Shape) -> int:
    """Return the number of elements that are reduced to one."""
    return int(np.prod([x.shape[axis] for axis in axes]))


ALIASES = {"sum": "add", "mean": "avg"}


def reduce_tensor(
    x: Array,
    op: Reduction = "add",
    axes: Sequence[SupportsIndex] | None = None,
    out: Array | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    stream: object = None,
    deterministic: bool = False,
) -> Array:
    """Return alpha * (x reduced over some axes) + beta * out; these axes remain with size 1.

    The result is computed in float64 and rounded once, with the same bits every time. A NaN makes its result NaN, for
    every op. Over an axis of size 0 a sum or norm is 0, a product 1, an average NaN, and there is no minimum or maximum.

    Parameters
    ----------
    x : numpy.ndarray
        float16, bfloat16, float32 or float64, with 1 to 5 axes; the result has its dtype.
    op : str
        "add" or "sum", "avg" or "mean", "mul", "min", "max", "amax" (the largest absolute value), "norm1" (the sum of
        absolute values), "norm2" (the root of the sum of squares), or "mul_no_zeros" (the product of the nonzero
        elements; 1 if there are none; the element itself if only one is reduced).
    axes : sequence of ints, optional
        One or more axes, negative ones counted from the last; all axes by default.
    out : numpy.ndarray, optional
        The result. With beta 0 it is not read.
    alpha, beta : float
        Factors of the reduction and of out.
    stream, deterministic
        Ignored.

    Raises
    ------
    TypeError
        A wrong type or dtype.
    ValueError
        A wrong op, axis or shape; "min", "max" or "amax" over an axis of size 0; an out that is read-only or overlaps x.

    Examples
    --------
    >>> import numpy as np
    >>> from cudnnpy import reference
    >>> x = np.arange(6, dtype=np.float32).reshape(2, 3)
    >>> reference.reduce_tensor(x, "max", axes=(1,)).tolist()
    [[2.0], [5.0]]
    """
    x = _arrays.check_tensor("x", x, empty="any")
    check_option("op", op, (*REDUCTIONS, *ALIASES))
    reduced = check_axes(axes, x.ndim)
    if op in EXTREMES and not _count(x, reduced):
        raise ValueError(f"x must have sizes of 1 or more on the axes {reduced} for op={op!r}; got shape {x.shape}")
    check_flag("deterministic", deterministic)
    alpha, beta = check_scales(alpha, beta, out=out)
    shape = tuple(1 if axis in reduced else size for axis, size in enumerate(x.shape))
    _arrays.check_out(out, shape, (x.dtype.name,), x=x)
    with np.errstate(all="ignore"):
        values = REDUCTIONS[ALIASES.get(op, op)](x.astype(np.float64), reduced)
        return _arrays.store_scaled(values, x.dtype, out, alpha, beta)
