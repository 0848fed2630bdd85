"""Helpers of the normalizations: checks of epsilon, scale and bias, and the gradients that a call computes."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, cast

from cudnnpy._checks.option_values import check_number
from cudnnpy.typing import ElementName

# (whether dscale is computed, whether dbias is) -> the names of the results after dx
GRADIENTS = {
    (False, False): (),
    (True, False): ("dscale",),
    (False, True): ("dbias",),
    (True, True): ("dscale", "dbias"),
}


def check_epsilon(value: Any) -> float:
    """Return epsilon as a float of 0 or more."""
    return check_number("epsilon", value, 0.0, finite=True)


def statistics_dtype(dtype: str) -> ElementName:
    """Return the dtype of the statistics of an x of this dtype: float64 for float64, else float32."""
    return "float64" if dtype == "float64" else "float32"


def parameter_dtypes(dtype: str) -> tuple[ElementName, ...]:
    """Return the dtypes allowed for scale and bias of an x of this dtype: the same, and float32 for 16 bits."""
    own = cast(ElementName, dtype)
    return (own,) if own in ("float32", "float64") else ("float32", own)


def check_both_or_neither(given: Container[str], first: str, second: str) -> bool:
    """Return whether two arrays that belong together are among the given names; ValueError for one without the other."""
    if (first in given) != (second in given):
        present, missing = (first, second) if first in given else (second, first)
        raise ValueError(f"{present} and {missing} must be passed together; got None for {missing}")
    return first in given


def check_channels(given: Container[str], count: int) -> None:
    """Raise ValueError for a scale or bias where x has 0 channels, as PyTorch does."""
    for name in ("scale", "bias"):
        if not count and name in given:
            raise ValueError(f"{name} must be None for an x of 0 channels; got an array")


def unpack_gradients(results: Any, *computed: bool) -> Any:
    """Return (dx, dscale, ...) from the results of a call, with None for gradients that were not computed."""
    if all(computed):
        return results
    remaining = iter(results if any(computed) else (results,))
    return (next(remaining), *(next(remaining) if is_computed else None for is_computed in computed))
