"""Base class of the reference implementation's operations beside the convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cudnnpy._options.options_base import ImmutableOptions


class Arrays(dict[str, Any]):
    """The arrays of a call by name; None for an array that was not passed."""

    def __missing__(self, name: str) -> None:
        return None


class NumpyOperation(ImmutableOptions):
    """An operation whose implementations compute on NumPy arrays.

    They take the arrays by name and the arguments of the method, and return the results.
    """

    @staticmethod
    def _run(
        name: str,
        operation: NumpyOperation,
        implementation: Callable[..., Sequence[Any]],
        names: Sequence[str],
        inputs: Sequence[Any],
        outs: Sequence[Any],
        stream: object,
        *arguments: Any,
    ) -> Any:
        """Compute the result, or a tuple of the results."""
        arrays = Arrays(zip(names, (*inputs, *outs), strict=True))
        results = implementation(operation, arrays, *arguments)
        return results[0] if len(results) == 1 else tuple(results)
