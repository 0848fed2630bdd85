"""Base class of the reference implementations, which take signatures and docstrings from the classes on device arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from cudnnpy._checks.options import Options


class Arrays(dict[str, Any]):
    """The arrays that were passed to a call, by name; `arrays[name]` is None for a missing one."""

    def __missing__(self, name: str) -> None:
        return None


class NotInReference:
    """A method of the device class that needs a GPU: the reference does not have the attribute."""

    def __get__(self, operation: object, kind: type) -> NoReturn:
        raise AttributeError


class NumpyOperation(Options):
    """An operation whose implementations compute on NumPy arrays.

    A subclass inherits from this class first, and then from the class on device arrays, whose options and
    public methods it has. Its implementations take the arrays by name and the arguments of the method, and return the results.
    """

    def _derived(self) -> dict[str, Any]:
        """Return nothing: plans are not cached."""
        return {}

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
