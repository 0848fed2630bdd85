"""Options, methods and documentation of Activation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from cudnnpy._options.base import Operation
from cudnnpy._options.checks import check_number, check_option
from cudnnpy._options.suggestions import with_suggestions
from cudnnpy.typing import ActivationMode, Array, ArrayT, Stream

MODES: tuple[ActivationMode, ...] = get_args(ActivationMode)


@with_suggestions
@dataclass(frozen=True)
class ActivationBase(Operation):
    """An elementwise activation and its gradient.

    ============  ======================================  ===================================
    mode          f(x)                                    gradient, times dy
    ============  ======================================  ===================================
    sigmoid       1 / (1 + exp(-x))                       y * (1 - y)
    relu          max(x, 0)                               1 where x > 0, else 0
    tanh          tanh(x)                                 1 - y * y
    clipped_relu  min(max(x, 0), c)                       1 where 0 < x < c, else 0
    elu           x where x > 0, else c * (exp(x) - 1)    1 where x > 0, else c * exp(x)
    identity      x                                       1
    swish         x / (1 + exp(-c * x))                   the derivative of f at x
    ============  ======================================  ===================================

    Parameters
    ----------
    mode : {"sigmoid", "relu", "tanh", "clipped_relu", "elu", "identity", "swish"}
        The activation.
    coefficient : float
        c of the table: the upper bound of clipped_relu, the alpha of elu, the beta of swish. The other modes ignore it.

    Raises
    ------
    TypeError, ValueError
        An option is of another type, or out of range.

    Notes
    -----
    Arrays are float16, bfloat16, float32 or float64 and have 1 to 5 axes of any size. The activation of NaN is NaN. swish of
    -infinity (of infinity for c < 0) is an infinity times 0, and so NaN as well. A gradient that is "else 0" is 0 whatever dy
    is, and where x is NaN.
    Operations raise TypeError and ValueError for arguments that do not fit, and NotSupportedError for unsupported ones. Work
    is queued on `stream`, by default the library's current stream. `cudnnpy.reference` ignores it, computes in float64 and
    rounds once.

    Examples
    --------
    >>> import numpy as np
    >>> from cudnnpy import reference
    >>> x = np.array([[-1.0, 2.0]], np.float32)
    >>> reference.Activation("relu").forward(x).tolist()
    [[0.0, 2.0]]
    """

    mode: ActivationMode = "relu"
    coefficient: float = 1.0

    def _canonical(self) -> dict[str, Any]:
        check_option("mode", self.mode, MODES)
        return {"coefficient": check_number("coefficient", self.coefficient)}

    def forward(
        self,
        x: ArrayT,
        out: ArrayT | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Compute alpha * activation(x) + beta * out (cudnnActivationForward).

        Parameters
        ----------
        x : array
            The input.
        out : array, optional
            The result, of x's shape and dtype; it may be x itself (in place).
        alpha, beta : float
            Factors of the activation and of `out`; out is not read if beta is 0.
        stream : stream, optional
            Where the work is queued.

        Returns
        -------
        array
            `out`, or a new array of x's library, shape, dtype and memory format.
        """
        implementation, names = type(self)._forward, ("x", "out")
        return self._run("Activation.forward", self, implementation, names, (x,), (out,), stream, alpha, beta)

    def backward(
        self,
        dy: ArrayT,
        x: Array,
        y: Array,
        out: ArrayT | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Compute alpha * dx + beta * out, with the gradient dx with respect to x (cudnnActivationBackward).

        sigmoid and tanh read only y; relu, clipped_relu and swish read only x; elu reads either. After a forward in place,
        pass y for both x and y: this is correct for sigmoid, tanh, relu and clipped_relu.

        Parameters
        ----------
        dy : array
            The gradient with respect to y.
        x, y : array
            forward's input and result, of dy's shape and dtype.
        out : array, optional
            The result, of dy's shape and dtype; it may be dy itself (in place).
        alpha, beta, stream
            As for `forward`.

        Returns
        -------
        array
            `out`, or a new array of dy's library, shape, dtype and memory format.
        """
        implementation, names = type(self)._backward, ("dy", "x", "y", "out")
        inputs, outs = (dy, x, y), (out,)
        return self._run("Activation.backward", self, implementation, names, inputs, outs, stream, alpha, beta)
