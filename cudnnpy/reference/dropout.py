"""Dropout and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudnnpy._options.dropout import DropoutBase
from cudnnpy.reference import _arrays
from cudnnpy.reference._arrays import Array
from cudnnpy.reference._numpy_operation import Arrays, NumpyOperation


class Dropout(DropoutBase, NumpyOperation):
    _random: np.random.Generator

    def _forward(self, arrays: Arrays) -> list[Array]:
        x, out = _arrays.check_tensor("x", arrays["x"], empty="any"), arrays["out"]
        _arrays.check_out(out, x.shape, (x.dtype.name,), x=x)
        mask = self._random.random(x.shape) >= self.probability
        return [self._apply(x, mask, out), np.packbits(mask)]

    def _backward(self, arrays: Arrays) -> list[Array]:
        dy, out = _arrays.check_tensor("dy", arrays["dy"], empty="any"), arrays["out"]
        reserve = _arrays.check_array("reserve", arrays["reserve"], ("uint8",))
        size = (dy.size + 7) // 8
        if reserve.shape != (size,):
            raise ValueError(
                f"reserve must have shape ({size},), as forward returns it for x of shape {dy.shape}; "
                f"got shape {reserve.shape}"
            )
        _arrays.check_out(out, dy.shape, (dy.dtype.name,), dy=dy, reserve=reserve)
        mask = np.unpackbits(reserve, count=dy.size).reshape(dy.shape).astype(bool)
        return [self._apply(dy, mask, out)]

    def _derived(self) -> dict[str, Any]:
        return {**super()._derived(), "_random": np.random.default_rng(self.seed)}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the options and the state of the random numbers."""
        return *super().__reduce__(), {"_random": self._random}

    def _apply(self, array: Array, mask: NDArray[np.bool_], out: Array | None) -> Array:
        """Divide the elements of the mask by 1 - probability and set the others to 0."""
        values = np.where(mask, array.astype(np.float64) / (1.0 - self.probability), 0.0)
        return _arrays.store(values, array.dtype, out)
