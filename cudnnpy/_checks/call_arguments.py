"""Check arguments of calls that are not arrays: alpha and beta, activations, shapes of gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

from cudnnpy._checks.option_values import NameT, check_number, check_option, check_shape, error_repr
from cudnnpy.typing import Shape


def check_scales(alpha: object, beta: object, *, prefix: str = "", **results: object) -> tuple[float, float]:
    """alpha and beta as finite floats. ValueError for a beta other than 0 where one of the results is None."""
    found = check_number(f"{prefix}alpha", alpha, finite=True), check_number(f"{prefix}beta", beta, finite=True)
    for name, result in results.items():
        if result is None and found[1]:
            raise ValueError(
                f"{prefix}beta must be 0 where {name} is None; got {found[1]}. Pass {name}, which {prefix}beta * {name} reads"
            )
    return found


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


def shape_argument(name: str, shape: Shape | None) -> tuple[SupportsIndex, ...]:
    """Return the shape of a gradient as a tuple, whose elements the implementation checks; () for None.

    Raises ValueError for an empty shape.
    """
    if shape is None:
        return ()
    sizes = shape if isinstance(shape, tuple) else check_shape(name, shape, low=0)
    if not sizes:
        raise ValueError(f"{name} must be a tuple of 3, 4 or 5 sizes; got ()")
    return sizes
