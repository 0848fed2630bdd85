"""Convolution, transposed convolution and their gradients; a convolution with a scale, a bias, a residual and an activation.

The classes on device arrays check the arguments, in the methods that plan a call there; those here compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from cudnnpy import raw
from cudnnpy._checks.call_arguments import check_activation
from cudnnpy._convolution.options import ConvolutionOptions, FusedOptions
from cudnnpy._convolution.specification import OPERANDS, ROLES
from cudnnpy._core.dtypes import numpy_dtype
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.program import Operand
from cudnnpy._layers import convolution as device
from cudnnpy._layers import fused as device_fused
from cudnnpy._layers import transpose as device_transpose
from cudnnpy._layers.arguments import OperationRequest, problem_of_call
from cudnnpy._layers.lowerings.convolution_candidates import ConvolutionProblem
from cudnnpy._layers.lowerings.sums import bias_operands
from cudnnpy.reference import _arrays, _geometry
from cudnnpy.reference._arrays import Array, Float64, NotInReference, NumpyOperation, Shape
from cudnnpy.reference._geometry import Geometry
from cudnnpy.reference._kinds import convolved
from cudnnpy.reference.activation import ACTIVATIONS


class _NumpyConvolution(ConvolutionOptions, NumpyOperation):
    """The operations: the products of a convolution with bias, activation, alpha, beta and rounding."""

    @property
    def channels_last(self) -> bool:
        """Whether the arrays' last axis holds the channels."""
        return self.layout.endswith("C")

    def _geometry(self, shapes: Mapping[str, Shape]) -> Geometry:
        """Return the geometry of the convolution of x and w to y, by their logical shapes."""
        raise NotImplementedError

    def _computed(
        self, request: OperationRequest, problem: ConvolutionProblem, operands: Sequence[Operand]
    ) -> list[Array]:
        """Return the result of a convolution's operation on the arrays of a request. `operands` are in logical order."""
        arrays, operation, result = request.call.arrays, request.operation, operands[-1].spec
        out, bias, act = arrays["out"], arrays["bias"], ACTIVATIONS[problem.activation or "identity"]
        _arrays.check_operands(operands, request.call.arrays)
        first, second = (_arrays.logical(arrays[name], self.layout) for name in request.names)
        roles = (ROLES[name] for name in OPERANDS[operation])
        geometry = self._geometry(dict(zip(roles, (first.shape, second.shape, result.shape), strict=True)))
        mode = raw.CUDNN_CONVOLUTION if self.mode == "convolution" else raw.CUDNN_CROSS_CORRELATION
        options = {"alpha": problem.alpha, "mode": mode}
        values = convolved(operation, options, first, second, geometry)
        if problem.beta:
            values += problem.beta * _arrays.logical(out, self.layout)
        if bias is not None:
            values += np.asarray(bias, np.float64).reshape(-1, *[1] * len(geometry.kernel))
        return [_arrays.store(_arrays.in_layout(act(values), self.layout), numpy_dtype(result.dtype), out)]

    def _backward_bias(self, call: Call, alpha: float, beta: float) -> list[Array]:
        _arrays.check_operands(bias_operands(self, call, alpha, beta), call.arrays)
        dy, out = call.arrays["dy"], call.arrays["out"]
        values = _arrays.logical(dy, self.layout).sum(axis=(0, *range(2, dy.ndim)))
        return [_arrays.store_scaled(values, dy.dtype, out, alpha, beta)]


class Convolution(_NumpyConvolution, device.Convolution):  # type: ignore[misc]
    __doc__ = device.Convolution.__doc__
    plan = candidates = NotInReference()

    def _prepare(self, request: OperationRequest) -> list[Array]:
        problem = problem_of_call(self, request)
        return self._computed(request, problem, device.operands_of(request, problem))

    def _geometry(self, shapes: Mapping[str, Shape]) -> Geometry:
        return _geometry.convolution(self, shapes["x"], shapes["w"])


class ConvolutionTranspose(_NumpyConvolution, device_transpose.ConvolutionTranspose):  # type: ignore[misc]
    __doc__ = device_transpose.ConvolutionTranspose.__doc__

    def _prepare(self, call: Call, w_shape: Shape, operation: str, *arguments: Any) -> list[Array]:
        convolution, surplus = self._transposed(w_shape), device_transpose.surplus_of(self, len(w_shape) - 2)
        request = OperationRequest(call, operation, device_transpose.INPUT_NAMES[operation], *arguments)
        return self._computed(request, *device_transpose.extended_problem(convolution, surplus, request))

    def _geometry(self, shapes: Mapping[str, Shape]) -> Geometry:
        return _geometry.transpose(self, self.output_padding, shapes["y"], shapes["w"])


class FusedConvolution(NumpyOperation, device_fused.FusedConvolution):
    __doc__ = device_fused.FusedConvolution.__doc__
    plan = NotInReference()

    def _forward(self, call: Call, activation: str | None) -> list[Array]:
        check_activation(activation, device_fused.ACTIVATIONS)
        operands = self._operands(call)
        _arrays.check_operands(operands, call.arrays)
        convolution = Convolution(**{option.name: getattr(self, option.name) for option in fields(FusedOptions)})
        arrays = {name: np.asarray(array, np.float64) for name, array in call.arrays.items() if name != "out"}
        values: Float64 = convolution.forward(arrays["x"], arrays["w"])
        ones = () if convolution.channels_last else (1,) * (values.ndim - 2)
        if "scale" in arrays:
            values *= arrays["scale"].reshape(-1, *ones)
        if "bias" in arrays:
            values += arrays["bias"].reshape(-1, *ones)
        if "residual" in arrays:
            values += arrays["residual"]
        dtype = numpy_dtype(operands[-1].spec.dtype)
        return [_arrays.store(ACTIVATIONS[activation or "identity"](values), dtype, call.arrays["out"])]
