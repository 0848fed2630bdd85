"""Options, methods and documentation of Dropout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cudnnpy._options.base import Operation
from cudnnpy._options.checks import check_integer, check_number
from cudnnpy._options.suggestions import with_suggestions
from cudnnpy.typing import Array, ArrayT, Stream


@with_suggestions
@dataclass(frozen=True)
class DropoutBase(Operation):
    """Dropout, which sets random elements to 0 and divides the others by 1 - probability, and its gradient.

    The object holds the state of its random numbers, and forward changes it: the same seed and the same calls give the same
    masks. Equality compares the options, not the state. Use an object from one thread and on one stream at a time.

    Parameters
    ----------
    probability : float
        The probability that an element becomes 0: 0 or more, and less than 1.
    seed : int
        0 to 2 ** 64 - 1.

    Raises
    ------
    TypeError, ValueError
        An option is of another type, or out of range.

    Notes
    -----
    Arrays are float16, bfloat16, float32 or float64 and have 1 to 5 axes of any size.
    There is one state for each device, in device memory, and a copy of the object starts with its seed. In
    `cudnnpy.reference` a copy has a copy of the state, and the masks are others.
    Operations raise TypeError and ValueError for arguments that do not fit, and NotSupportedError for unsupported ones. Work
    is queued on `stream`, by default the library's current stream. `cudnnpy.reference` ignores it, computes in float64 and
    rounds once.

    Examples
    --------
    >>> import numpy as np
    >>> from cudnnpy import reference
    >>> y, mask = reference.Dropout(0.5, seed=1).forward(np.ones(1000, np.float32))
    >>> sorted(set(y.tolist()))  # what stays is divided by 1 - probability
    [0.0, 2.0]
    """

    probability: float = 0.5
    seed: int = 0

    def _canonical(self) -> dict[str, Any]:
        return {
            "probability": check_number("probability", self.probability, 0.0, below=1.0),
            "seed": check_integer("seed", self.seed, 0, 2**64 - 1),
        }

    def forward(self, x: ArrayT, out: ArrayT | None = None, stream: Stream | None = None) -> tuple[ArrayT, ArrayT]:
        """Compute y from x, and the mask that `backward` needs (cudnnDropoutForward).

        y is x / (1 - probability), or 0 where an element is dropped, whatever x is there.

        Parameters
        ----------
        x : array
            The input.
        out : array, optional
            y, of x's shape and dtype.
        stream : stream, optional
            Where the work is queued.

        Returns
        -------
        y : array
            `out`, or a new array of x's library, shape, dtype and memory format.
        reserve : array
            The mask of the elements that were not dropped: uint8, with one axis, as cuDNN stores it. `cudnnpy.reference` has
            one bit for each element of x in C order.
        """
        implementation, names = type(self)._forward, ("x", "out", "reserve")
        return self._run("Dropout.forward", self, implementation, names, (x,), (out, None), stream)

    def backward(self, dy: ArrayT, reserve: Array, out: ArrayT | None = None, stream: Stream | None = None) -> ArrayT:
        """Compute the gradient with respect to x (cudnnDropoutBackward). No random numbers are drawn.

        It is dy / (1 - probability), or 0 where forward dropped the element.

        Parameters
        ----------
        dy : array
            The gradient with respect to y.
        reserve : array
            The mask that `forward` returned with y.
        out : array, optional
            The result, of dy's shape and dtype.
        stream : stream, optional
            Where the work is queued.

        Returns
        -------
        array
            `out`, or a new array of dy's library, shape, dtype and memory format.
        """
        implementation, names = type(self)._backward, ("dy", "reserve", "out")
        return self._run("Dropout.backward", self, implementation, names, (dy, reserve), (out,), stream)
