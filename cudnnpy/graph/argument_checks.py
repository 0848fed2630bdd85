"""Checks of the arguments of a graph's operations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import index
from typing import Any, SupportsIndex

from cudnnpy._options.checks import bounded, check_number, check_per_axis, error_repr, expand_per_axis
from cudnnpy.graph.nodes import Node

_HOW = ("relu_lower_clip", "relu_upper_clip", "relu_lower_clip_slope", "elu_alpha", "softplus_beta", "swish_beta")


def each_axis(name: str, given: Any, low: int, rank: int) -> tuple[int, ...]:
    """Return one int for each of `rank` spatial axes."""
    return expand_per_axis(name, check_per_axis(name, given, low), rank)


def checked_axes(axes: Iterable[SupportsIndex], rank: int) -> set[int]:
    """Return the axes of a tensor, counted from the first. Raises for an axis that is out of range or occurs twice."""
    expected = f"one or more of {-rank} to {rank - 1}, each axis once"
    given: Any = axes if isinstance(axes, str | bytes) or not isinstance(axes, Iterable) else bounded(axes)
    try:
        numbers = [index(axis) for axis in given if not isinstance(axis, bool)]
        if len(numbers) != len(given):
            raise TypeError
    except TypeError:
        raise TypeError(f"axes must be integers, {expected}; got {error_repr(given)}") from None
    found = {axis % rank for axis in numbers}
    if not numbers or len(found) != len(numbers) or any(not -rank <= axis < rank for axis in numbers):
        raise ValueError(f"axes must be {expected}; got {error_repr(given)}")
    return found


def checked_how(how: Mapping[str, float] | None) -> dict[str, float]:
    """Check the options of an elementwise operation, which may be infinite; return them by name."""
    if how is None:
        return {}
    if not isinstance(how, Mapping):
        raise TypeError(f"how must be a mapping with keys among {', '.join(_HOW)}; got {error_repr(how)}")
    if unknown := [name for name in how if name not in _HOW]:
        raise ValueError(f"how must have keys among {', '.join(_HOW)}; got {unknown[0]!r}")
    return {name: check_number(f"how[{name!r}]", value) for name, value in how.items()}


def check_statistic(name: str, node: Node, x: Node) -> None:
    """Raise ValueError for a tensor that does not broadcast to x."""
    if len(node.shape) != len(x.shape) or any(s not in (1, n) for s, n in zip(node.shape, x.shape, strict=True)):
        raise ValueError(
            f"{name} must have {len(x.shape)} axes of the sizes of x, {x.shape}, or 1; got shape {node.shape}"
        )
