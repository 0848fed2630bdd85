"""Reductions of tensors over axes: `reduce_tensor`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, SupportsIndex

from cudnnpy._core.layouts import TensorSpec
from cudnnpy._launch import dispatch
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.operands import check_input, check_no_overlaps, resolve_output
from cudnnpy._launch.program import Operand, Program
from cudnnpy._launch.steps import scaling_arguments
from cudnnpy._options.arguments import check_axes
from cudnnpy._options.checks import bounded, check_flag, check_option, error_repr
from cudnnpy.graph.reductions_old import ALIASES, REDUCTIONS, reduction
from cudnnpy.typing import ArrayT, Reduction, Stream


def reduce_tensor(
    x: ArrayT,
    op: Reduction = "add",
    axes: Iterable[SupportsIndex] | None = None,
    out: ArrayT | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    stream: Stream | None = None,
    deterministic: bool = False,
) -> ArrayT:
    """Compute alpha * (x reduced over axes, which remain with size 1) + beta * out (cudnnReduceTensor).

    Over an axis of size 0 a sum or norm is 0, a product 1 and an average NaN. A large sum may be computed as an average times
    the number of its elements, so that its last bit may differ from the sum's.

    Parameters
    ----------
    x : array
        float16, bfloat16, float32 or float64, with 1 to 5 axes of any size.
    op : str
        "add" or "sum", "avg" or "mean", "mul", "min", "max", "amax" (the largest absolute value), "norm1" (the sum of
        absolute values), "norm2" (the square root of the sum of squares), or "mul_no_zeros" (the product of the elements
        other than 0).
    axes : tuple of int, optional
        The axes. Negative ones count from the last. All by default.
    out : array, optional
        The result, of x's dtype.
    alpha, beta : float
        Factors of the reduction and of `out`; out is not read if beta is 0.
    stream : stream, optional
        Where the work is queued; the library's current stream by default.
    deterministic : bool
        Whether the result is bitwise the same every time. Large sums are not by default. Deterministic sums take longer, in
        float16 and bfloat16 up to 250 times PyTorch's time (cudnnReduceTensor).

    Returns
    -------
    array
        `out`, or a new array of x's library and dtype.

    Raises
    ------
    TypeError, ValueError
        Arguments do not fit; also for "min", "max" or "amax" over an axis of size 0.
    NotSupportedError
        cuDNN does not support the operation.

    Examples
    --------
    >>> # on a GPU
    >>> import numpy as np
    >>> import cudnnpy
    >>> x = cudnnpy.to_device(np.arange(6, dtype=np.float32).reshape(2, 3))
    >>> cudnnpy.to_numpy(cudnnpy.reduce_tensor(x, "max", axes=(1,))).tolist()
    [[2.0], [5.0]]
    """
    if axes is not None and type(axes) is not tuple:
        try:
            axes = bounded(axes)
        except TypeError:
            raise TypeError(f"axes must be None or a tuple of integers; got {error_repr(axes)}") from None
    if axes == ():
        raise ValueError("axes must be one axis or more, each once, or None for all; got ()")
    name, names = "reduce_tensor", ("x", "out")
    return dispatch.run(
        name, None, _prepare, names, (x,), (out,), stream, op, alpha, beta, deterministic, *(axes or ())
    )


def _prepare(
    call: Call, op: str, alpha: float, beta: float, deterministic: bool, *axes: Any
) -> tuple[Program, list[TensorSpec]]:
    check_flag("deterministic", deterministic)
    check_option("op", op, (*REDUCTIONS, *ALIASES))
    op = ALIASES.get(op, op)
    x = check_input(call, "x", empty=True)
    reduced = check_axes(axes or None, len(x.shape))
    shape = tuple(1 if axis in reduced else size for axis, size in enumerate(x.shape))
    y = resolve_output(call, "out", shape, x.dtype, None, beta)
    scaling_arguments(alpha, beta, x.dtype)
    if op in ("min", "max", "amax") and any(not x.shape[axis] for axis in reduced):
        raise ValueError(f"x must have sizes of 1 or more on the axes {reduced} for op={op!r}; got shape {x.shape}")
    operands = check_no_overlaps(call, (Operand("x", x), Operand("out", y, True)))
    return reduction(f"reduction {op}", call.device, operands, op, alpha, beta, deterministic, call), [y]
