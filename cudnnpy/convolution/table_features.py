"""The features by which a convolution is looked up in the measurement table."""

from __future__ import annotations

from cudnnpy._core.layouts import TensorSpec, channels_last_strides, packed_strides
from cudnnpy._planning.measurement_table import Features
from cudnnpy.convolution.problem import Problem


def features(problem: Problem, strict: bool) -> Features | None:
    """Return the features of a problem; None for a kind of problem that the tables do not have.

    They have packed and aligned tensors of one data type and one memory format, without an activation or scales.
    `strict`: float32 is multiplied as float32, not as tf32.
    """
    x, w, y, g = problem.x, problem.w, problem.y, problem.geometry
    orders = _orders(x) & _orders(w) & _orders(y)
    is_usual = (
        orders
        and {x.dtype, w.dtype, y.dtype} == {x.dtype}
        and (problem.alpha, problem.beta, problem.activation) == (1.0, 0.0, None)
        and problem.mode == "cross_correlation"
        and problem.compute_dtype == "float32"
        and g.pre_padding == g.post_padding
        and all(spec.alignment >= 16 for spec in problem.specs)
        and not problem.is_empty
    )
    if not is_usual:
        return None
    is_half = x.dtype in ("float16", "bfloat16")  # the same engines, at the same speed
    kind = (
        problem.operation,
        "half" if is_half else f"{x.dtype} strict" if strict else x.dtype,
        min(orders),
        problem.axes,
        max(w.shape[2:]) > 1,
        max(g.stride) > 1,
        _group_kind(problem),
        problem.bias is not None,
        max(g.dilation),
    )
    grouped = (w.shape[1], problem.groups) if _group_kind(problem) == "grouped" else ()
    return Features(kind, (*x.shape, w.shape[0], *grouped, *w.shape[2:]), len(x.shape))


def _orders(spec: TensorSpec) -> set[str]:
    """Return the memory formats of a packed tensor, by the strides that cuDNN gets."""
    strides = {"channels first": packed_strides(spec.shape), "channels last": channels_last_strides(spec.shape)}
    return {order for order in strides if strides[order] == spec.strides}


def _group_kind(problem: Problem) -> str:
    if problem.groups == 1:
        return "dense"
    return "depthwise" if problem.is_depthwise else "grouped"
