"""Dropout and its gradient."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cudnnpy._options.operations import DropoutOptions
from cudnnpy.reference import _arrays
from cudnnpy.reference._arrays import ScalarT

Array: TypeAlias = NDArray[Any]
UInt8: TypeAlias = NDArray[np.uint8]


@dataclass(frozen=True)
class Dropout(DropoutOptions):
    """Elements set to 0 at random and the others made larger, and the gradient, on NumPy arrays.

    The object holds the state of its random numbers, which forward changes: the same seed and the same calls give the
    same masks again. Equality compares the options, not the state; a copy has a copy of the state. The masks differ from
    those on a GPU. A wrong option raises ValueError or TypeError.

    Parameters
    ----------
    probability : float
        Of an element to become 0: at least 0, less than 1.
    seed : int
        From 0 to 2 ** 64 - 1.
    """

    _random: np.random.Generator = field(init=False, repr=False, compare=False)

    def _derived(self) -> dict[str, Any]:
        return {**super()._derived(), "_random": np.random.default_rng(self.seed)}

    def __reduce__(self) -> tuple[Any, ...]:
        """By the options and the state of the random numbers."""
        return *super().__reduce__(), {"_random": self._random}

    def forward(
        self,
        x: NDArray[ScalarT],
        out: NDArray[ScalarT] | None = None,
        stream: object = None,
    ) -> tuple[NDArray[ScalarT], UInt8]:
        """Return y and what `backward` needs.

        y is x / (1 - probability), or 0 where an element is dropped, whatever it is; computed in float64 and rounded once.

        Parameters
        ----------
        x : numpy.ndarray
            float16, bfloat16, float32 or float64, of 1 to 5 axes of any size.
        out : numpy.ndarray, optional
            y, of x's shape and dtype.
        stream : object
            Ignored.

        Returns
        -------
        y : numpy.ndarray
            `out`, or a new array of x's shape and dtype.
        reserve : numpy.ndarray
            uint8, one bit for each element of x in C order: 1 where it is kept.

        Raises
        ------
        TypeError, ValueError
            Arguments do not fit, or out is read-only or overlaps an input. No random numbers are drawn then.
        """
        x = _arrays.check_tensor("x", x, empty="any")
        if out is not None:
            _arrays.check_out(out, x.shape, (x.dtype.name,), x=x)
        kept = self._random.random(x.shape) >= self.probability
        return self._apply(x, kept, out), np.packbits(kept)

    def backward(
        self,
        dy: NDArray[ScalarT],
        reserve: UInt8,
        out: NDArray[ScalarT] | None = None,
        stream: object = None,
    ) -> NDArray[ScalarT]:
        """Return the gradient with respect to x: dy / (1 - probability), or 0 where forward dropped the element.

        Parameters
        ----------
        dy : numpy.ndarray
            The gradient with respect to y.
        reserve : numpy.ndarray
            What `forward` returned with y.
        out : numpy.ndarray, optional
            The result, of dy's shape and dtype.
        stream : object
            Ignored.

        Returns
        -------
        numpy.ndarray
            `out`, or a new array of dy's shape and dtype.

        Raises
        ------
        TypeError, ValueError
            Arguments do not fit, or out is read-only or overlaps an input.
        """
        dy = _arrays.check_tensor("dy", dy, empty="any")
        reserve = _arrays.check_array("reserve", reserve, ("uint8",))
        size = (dy.size + 7) // 8
        if reserve.shape != (size,):
            raise ValueError(
                f"reserve must have shape ({size},), as forward returns it for x of shape {dy.shape}; "
                f"got shape {reserve.shape}"
            )
        if out is not None:
            _arrays.check_out(out, dy.shape, (dy.dtype.name,), dy=dy, reserve=reserve)
        kept = np.unpackbits(reserve, count=dy.size).reshape(dy.shape).astype(bool)
        return self._apply(dy, kept, out)

    def _apply(self, array: Array, kept: NDArray[np.bool_], out: Array | None) -> Array:
        """Divide the kept elements by 1 - probability and set the others to 0."""
        with np.errstate(all="ignore"):
            values = np.where(kept, array.astype(np.float64) / (1.0 - self.probability), 0.0)
            return _arrays.store(values, array.dtype, out)
