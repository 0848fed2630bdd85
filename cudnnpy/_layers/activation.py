"""Activations and their gradients: cudnnActivationForward and cudnnActivationBackward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, get_args

from cudnnpy._checks.call_arguments import check_scales
from cudnnpy._checks.option_values import check_number, check_option
from cudnnpy._checks.suggestions import with_suggestions
from cudnnpy._core.layouts import TensorSpec, byte_extent, has_same_layout, is_dense, is_too_large, with_strides_of
from cudnnpy._launch.dispatch import ArrayOperation, Call
from cudnnpy._launch.operands import check_input, check_like, check_no_overlaps, resolve_output
from cudnnpy._launch.program import Operand, Program, with_conversion_copies
from cudnnpy._launch.steps import (
    Executable,
    FunctionCall,
    OperandAddress,
    Step,
    copy,
    in_parts,
    scaling_arguments,
    tensor_descriptor,
)
from cudnnpy.descriptors import ActivationDescriptor
from cudnnpy.typing import ActivationMode, Array, ArrayT, Stream

MODES: tuple[ActivationMode, ...] = get_args(ActivationMode)


@with_suggestions
@dataclass(frozen=True)
class Activation(ArrayOperation):
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

    # Set-up, once for each call signature

    def _descriptor(self, coefficient: float) -> ActivationDescriptor:
        swish = coefficient if self.mode == "swish" else None
        return ActivationDescriptor(self.mode, coefficient=coefficient, propagate_nan=True, swish_beta=swish)

    def _forward(self, call: Call, alpha: float, beta: float) -> tuple[Program, list[TensorSpec]]:
        operands = self._forward_operands(call, alpha, beta)
        x, y = (operand.spec for operand in operands)
        if not byte_extent(y):
            return Program("activation", call.device, operands, []), [y]
        if self.mode == "identity":  # cuDNN rejects IDENTITY
            return Program("activation", call.device, operands, [Step(copy(x, y, alpha, beta), (0, 1))]), [y]
        how = self._descriptor(self.coefficient)
        executable = function_in_parts("cudnnActivationForward", how, alpha, beta, *_flattened(x, y))
        return Program("activation", call.device, operands, [Step(executable, (0, 1))]), [y]

    def _backward(self, call: Call, alpha: float, beta: float) -> tuple[Program, list[TensorSpec]]:
        operands = self._backward_operands(call, alpha, beta)
        dy, x, y, dx = (operand.spec for operand in operands)
        name = "activation gradient"
        if not byte_extent(dx):
            return Program(name, call.device, operands, []), [dx]
        if self.mode == "identity":
            return Program(name, call.device, operands, [Step(copy(dy, dx, alpha, beta), (0, 3))]), [dx]
        clipped = self.mode == "clipped_relu"
        how = self._descriptor(_below(self.coefficient, dy.dtype) if clipped else self.coefficient)
        # For tanh, cuDNN compares the strides of axes of size 1, too.
        alike = with_strides_of(dx, dy) if has_same_layout(dx, dy) else dx
        required_specs = dy, with_strides_of(x, alike), with_strides_of(y, dy), alike
        executable = function_in_parts("cudnnActivationBackward", how, alpha, beta, *_flattened(*required_specs))
        return with_conversion_copies(name, call.device, operands, executable, required_specs, beta), [dx]

    def _forward_operands(self, call: Call, alpha: float, beta: float) -> Sequence[Operand]:
        x = check_input(call, "x", empty=True)
        check_scales(alpha, beta, out=call.specs.get("out"))
        y = resolve_output(call, "out", x.shape, x.dtype, x)
        return check_no_overlaps(call, (Operand("x", x), Operand("out", y, True, ("x",))))

    def _backward_operands(self, call: Call, alpha: float, beta: float) -> Sequence[Operand]:
        dy = check_input(call, "dy", empty=True)
        check_scales(alpha, beta, out=call.specs.get("out"))
        x, y = (check_like(call, name, dy.shape, dy.dtype) for name in ("x", "y"))
        dx = resolve_output(call, "out", dy.shape, dy.dtype, dy)
        return check_no_overlaps(
            call, (Operand("dy", dy), Operand("x", x), Operand("y", y), Operand("out", dx, True, ("dy",)))
        )


def function_in_parts(name: str, how: object, alpha: float, beta: float, *specs: TensorSpec) -> Executable:
    """The function of an activation or a pooling on x and y, or the one of its gradient on dy, x, y and dx."""
    a, b = scaling_arguments(alpha, beta, specs[0].dtype)
    order = (0, 1) if len(specs) == 2 else (2, 0, 1, 3)  # of C's arguments

    def function(*parts: TensorSpec) -> FunctionCall:
        *inputs, result = ((tensor_descriptor(parts[at]), OperandAddress(at)) for at in order)
        return FunctionCall(name, how, a, *chain(*inputs), b, *result)

    return in_parts(function, *specs)


def _flattened(*specs: TensorSpec) -> tuple[TensorSpec, ...]:
    """The tensors; with one axis if they exceed a descriptor and are dense in one memory format, to be cut anywhere."""
    first = specs[0]
    if not is_too_large(first) or not is_dense(first) or not all(has_same_layout(first, spec) for spec in specs):
        return specs
    return tuple(spec._replace(shape=(math.prod(spec.shape),), strides=(1,)) for spec in specs)


def _below(ceiling: float, dtype: str) -> float:
    """The largest number of a dtype below a ceiling.

    The gradient of cudnnActivationBackward at the ceiling itself is dy: clipped-relu-ceiling in docs/known-issues.md.
    """
    import numpy as np

    if ceiling <= 0.0:  # the gradient is 0 everywhere
        return ceiling
    own, step = (np.dtype("float32"), 1 << 16) if dtype == "bfloat16" else (np.dtype(dtype), 1)  # its upper half
    unsigned = np.dtype(f"uint{8 * own.itemsize}")
    with np.errstate(over="ignore"):
        bits = int(own.type(ceiling).view(unsigned)) // step * step
    lower, lowest = map(float, np.array([bits, max(bits - step, 0)], unsigned).view(own))
    return lower if lower < ceiling else lowest
