"""Dropout and its gradient."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cudnnpy.reference import _arrays
from cudnnpy.reference._numbers import integer, real

Array: TypeAlias = NDArray[Any]
UInt8: TypeAlias = NDArray[np.uint8]

SEEDS = 1 << 64


@dataclass(frozen=True)
class Dropout:
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

    probability: float = 0.5
    seed: int = 0
    _random: np.random.Generator = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the options, and begin with the random numbers."""
        probability, seed = real("probability", self.probability), integer("seed", self.seed, 0)
        if not 0 <= probability < 1:
            raise ValueError(f"probability must be a number of 0 or more and below 1; got {probability}")
        if seed >= SEEDS:
            raise ValueError(f"seed must be an integer below 2 ** 64; got {seed}")
        for name, value in {"probability": probability, "seed": seed, "_random": np.random.default_rng(seed)}.items():
            object.__setattr__(self, name, value)

    def forward(self, x: Array, out: Array | None = None, stream: object = None) -> tuple[Array, UInt8]:
        """Return y, of x's shape and dtype, and what backward needs to know.

        y is x / (1 - probability), or 0 where an element is dropped, whatever it was. x is float16, bfloat16, float32
        or float64 and has 1 to 5 axes of any size. The second is a uint8 array of one bit for each element of x in C
        order, 1 where it is kept. Computed in float64 and rounded once. stream is ignored.

        Raises TypeError for a wrong type or dtype, ValueError for a wrong shape, or an out that is read-only or
        overlaps x. A call that is refused draws no random numbers.
        """
        x = _arrays.check_tensor("x", x, empty="any")
        if out is not None:
            _arrays.check_out(out, x.shape, (x.dtype.name,), x=x)
        kept = self._random.random(x.shape) >= self.probability
        return self._apply(x, kept, out), np.packbits(kept)

    def backward(self, dy: Array, reserve: UInt8, out: Array | None = None, stream: object = None) -> Array:
        """Return the gradient in x: dy / (1 - probability), or 0 where forward dropped the element.

        reserve is what forward returned beside y; it is not changed, and may be used again. The rest is as for
        `forward`; no random numbers are drawn.
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
