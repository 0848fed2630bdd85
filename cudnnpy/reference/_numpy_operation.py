"""Base class of the reference implementations of operations other than convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cudnnpy._options.base import Options


class Arrays(dict[str, Any]):
    """The arrays that were passed to a call, by name; `arrays[name]` is None for a missing one."""

    def __missing__(self, name: str) -> None:
        return None


class NumpyOperation(Options):
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
        """Compute the result, or a tuple of the results, without warnings about floating-point numbers."""
        passed = zip(names, (*inputs, *outs), strict=True)
        arrays = Arrays({name: array for name, array in passed if array is not None})
        with np.errstate(all="ignore"):
            results = implementation(operation, arrays, *arguments)
        return results[0] if len(results) == 1 else tuple(results)
