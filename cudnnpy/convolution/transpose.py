"""ConvolutionTranspose: the gradient of a convolution with respect to its input, as a layer ("deconvolution")."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from cudnnpy._core.convolution_sizes import transposed_geometry, transposed_input_shape, transposed_output_shape
from cudnnpy._core.layouts import TensorSpec, to_logical
from cudnnpy._launch.device_operation import DeviceOperation
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.program import Program
from cudnnpy._options.arguments import gradient_shape
from cudnnpy._options.checks import check_shape, is_channels_last
from cudnnpy._options.convolution import ConvolutionOptions
from cudnnpy._options.convolution_methods import ConvolutionTransposeBase
from cudnnpy.convolution.bias_gradient import bias_gradient
from cudnnpy.convolution.call_problem import OperationRequest
from cudnnpy.convolution.convolution import Convolution, Prepared, check_forced
from cudnnpy.convolution.zero_extension import prepare_extended, surplus_of
from cudnnpy.typing import Shape

# The names of the arrays in place of the two inputs of each operation of the convolution that is transposed.
INPUT_NAMES = {"forward": ("dy", "w"), "backward_data": ("x", "w"), "backward_filter": ("x", "dy")}


class ConvolutionTranspose(ConvolutionTransposeBase, DeviceOperation):
    uses_suggested_format = True  # as for Convolution

    _convolutions: dict[Any, Convolution]  # which it transposes, by their padding

    def _derived(self) -> dict[str, Any]:
        check_forced(self.algorithm)
        return {**super()._derived(), "_convolutions": {}}

    # Set-up, once for each call signature

    def _forward(self, call: Call, activation: str | None, alpha: float, beta: float) -> Prepared:
        w_shape = call.specs["w"].shape
        y_shape = self.output_shape(call.specs["x"].shape, w_shape)
        return self._prepare(call, w_shape, "backward_data", activation, alpha, beta, y_shape)

    def _backward_data(self, call: Call, alpha: float, beta: float, *x_shape: int) -> Prepared:
        dy_shape, w_shape, out = call.specs["dy"].shape, call.specs["w"].shape, call.specs.get("out")
        if not x_shape:
            x_shape = transposed_input_shape(self, dy_shape, w_shape) if out is None else out.shape
        self._check_dy(dy_shape, check_shape("x_shape", x_shape, len(w_shape), low=0), w_shape)
        return self._prepare(call, w_shape, "forward", None, alpha, beta)

    def _backward_filter(self, call: Call, alpha: float, beta: float, *w_shape: int) -> Prepared:
        x_shape, out = call.specs["x"].shape, call.specs.get("out")
        w_shape = check_shape("w_shape", gradient_shape("w_shape", w_shape or None, out and out.shape), len(x_shape))
        self._check_dy(call.specs["dy"].shape, x_shape, w_shape)
        return self._prepare(call, w_shape, "backward_filter", None, alpha, beta, w_shape)

    def _backward_bias(self, call: Call, alpha: float, beta: float) -> tuple[Program, list[TensorSpec]]:
        return bias_gradient(self, call, alpha, beta)

    def _prepare(self, call: Call, w_shape: tuple[int, ...], operation: str, *arguments: Any) -> Prepared:
        """Plan an operation of the convolution that is transposed. `arguments` are the last of an OperationRequest."""
        convolution, surplus = self._transposed(w_shape), surplus_of(self, len(w_shape) - 2)
        request = OperationRequest(call, operation, INPUT_NAMES[operation], *arguments)
        return prepare_extended(convolution, surplus, request) if any(surplus) else convolution._prepare(request)

    def _transposed(self, w_shape: tuple[int, ...]) -> Convolution:
        """Return the convolution that this object transposes for filters of a shape, with explicit padding."""
        spatial, _ = transposed_geometry(self, to_logical(w_shape, is_channels_last(self.layout))[2:])
        padding = tuple(zip(spatial.pre_padding, spatial.post_padding, strict=True))
        found = self._convolutions.get(padding)
        if found is None:
            options = {option.name: getattr(self, option.name) for option in fields(ConvolutionOptions)}
            found = self._convolutions[padding] = Convolution(**{**options, "padding": padding})
        return found

    def _check_dy(self, dy_shape: tuple[int, ...], x_shape: tuple[int, ...], w_shape: tuple[int, ...]) -> None:
        expected = self.output_shape(x_shape, w_shape)
        if dy_shape != expected:
            raise ValueError(
                f"dy must have shape {expected}, the result's for x of shape {x_shape}; got shape {dy_shape}"
            )

    def _output_shape(self, x_shape: Shape, w_shape: Shape) -> tuple[int, ...]:
        return transposed_output_shape(self, x_shape, w_shape)
