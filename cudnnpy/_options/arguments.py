"""Checks of arguments of calls that are not arrays. Each error reads `{name} must be {expected}; got {given}`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from typing import Any

from cudnnpy._options.checks import NameT, as_elements, bounded, check_number, check_option, error_repr, is_integer
from cudnnpy._options.limits import MAX_AXES


def check_scales(alpha: object, beta: object, *, prefix: str = "", **results: object) -> tuple[float, float]:
    """alpha and beta as finite floats. ValueError for a beta other than 0 where one of the results is None."""
    found = check_number(f"{prefix}alpha", alpha, finite=True), check_number(f"{prefix}beta", beta, finite=True)
    for name, result in results.items():
        if result is None:
            check_no_beta(f"{prefix}beta", found[1], name)
    return found


def check_no_beta(name: str, beta: float, result: str) -> None:
    """ValueError for a beta other than 0: the result that it multiplies is None."""
    if beta:
        raise ValueError(
            f"{name} must be 0 where {result} is None; got {beta}. Pass {result}, which {name} * {result} reads"
        )


def check_activation(given: object, allowed: Sequence[NameT]) -> NameT | None:
    """None, or the name of an activation."""
    return None if given is None else check_option("activation", given, allowed)


def should_compute_bias(bias: object, scale: object) -> bool:
    """Whether dbias is asked for: `bias` says so, and None means that it is if there is a scale."""
    if bias is not None and not isinstance(bias, bool):
        raise TypeError(f"bias must be a bool or None; got {error_repr(bias)}")
    return scale is not None if bias is None else bias


def gradient_shape(name: str, shape: Any, of_out: Any) -> Any:
    """Return the given shape of a gradient, or else the shape of `out`. Raises TypeError if there is neither."""
    if shape is None and of_out is None:
        raise TypeError(f"{name} must be the shape of the result where out is None; got None")
    return of_out if shape is None else shape


def check_axes(given: Any, rank: int) -> tuple[int, ...]:
    """Axes of an array of `rank` axes, counted from the first; None is all of them."""
    if given is None:
        return tuple(range(rank))
    axes = bounded(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes) else None
    if axes is None or any(isinstance(axis, bool) or not is_integer(axis) for axis in axes):
        raise TypeError(f"axes must be None or a tuple of integers; got {error_repr(given)}")
    if not all(-rank <= axis < rank for axis in axes):
        raise ValueError(
            f"axes must be integers of {-rank} to {rank - 1} for the {rank} axes of x; got {error_repr(axes)}"
        )
    found = tuple(index(axis) % rank for axis in axes)
    if not found or len(set(found)) != len(found):
        raise ValueError(f"axes must be one axis or more, each once, or None for all; got {error_repr(axes)}")
    return found


def check_normalized_shape(given: Any) -> tuple[int, ...]:
    """The sizes of the normalized axes as a tuple of ints; () for None."""
    if given is None:
        return ()
    sizes = as_elements(given)
    sizes = (given,) if sizes is None else sizes
    kinds_fit = all(is_integer(size) and not isinstance(size, bool) for size in sizes)
    if not kinds_fit or not 0 < len(sizes) <= MAX_AXES or any(size < 0 for size in sizes):
        kind = ValueError if kinds_fit else TypeError
        expected = "None, an integer of 0 or more, or a tuple of one or more of them"
        raise kind(f"normalized_shape must be {expected}; got {error_repr(given)}")
    return tuple(map(index, sizes))
