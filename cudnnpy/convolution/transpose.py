"""ConvolutionTranspose: the gradient of a convolution with respect to its input, as a layer ("deconvolution")."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from cudnnpy._core.layouts import CHANNELS_FIRST, TensorSpec, from_logical, to_logical
from cudnnpy._launch.device_operation import DeviceOperation
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.program import Program
from cudnnpy._options.arguments import gradient_shape
from cudnnpy._options.checks import check_layout_rank, check_shape, expand_per_axis, is_channels_last
from cudnnpy._options.convolution import ConvolutionOptions
from cudnnpy._options.convolution_methods import ConvolutionTransposeBase
from cudnnpy.convolution.bias_gradient import bias_gradient
from cudnnpy.convolution.call_problem import OperationRequest
from cudnnpy.convolution.convolution import Convolution, Prepared, check_forced
from cudnnpy.convolution.problem import geometry
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
            x_shape = self._input_shape(dy_shape, w_shape) if out is None else out.shape
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
        padding = self._axes(to_logical(w_shape, is_channels_last(self.layout))[2:])[0]
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
        last = is_channels_last(self.layout)
        x_shape = check_shape("x_shape", x_shape, low=0)
        rank = len(x_shape)
        if rank not in CHANNELS_FIRST:
            raise ValueError(f"x must have 3, 4 or 5 axes (N, C and 1 to 3 spatial axes); got shape {x_shape}")
        check_layout_rank(self.layout, "x", rank)
        x, w = to_logical(x_shape, last), to_logical(check_shape("w_shape", w_shape, rank), last)
        if 0 in x[1:]:
            raise ValueError(f"x must have sizes of 1 or more, except for a batch of 0; got shape {x} (logical order)")
        if x[1] != w[0]:
            raise ValueError(f"x must have {w[0]} channels, as w; got {x[1]} (x has shape {x}, w {w}, logical order)")
        if w[0] % self.groups:
            raise ValueError(f"groups must divide the {w[0]} input channels; got {self.groups}")
        pairs, stride, dilation, extra = self._axes(w[2:])
        sizes = []
        for size, kernel, (before, after), step, spread, more in zip(
            x[2:], w[2:], pairs, stride, dilation, extra, strict=True
        ):
            length = (size - 1) * step - before - after + spread * (kernel - 1) + 1 + more
            if length < 1:
                raise ValueError(
                    f"padding must be smaller; got ({before}, {after}) for a filter of size {kernel} with dilation {spread} "
                    f"and stride {step} on an axis of size {size}, for which the output would be empty"
                )
            sizes.append(length)
        return from_logical((x[0], w[1] * self.groups, *sizes), last)

    def _input_shape(self, dy_shape: tuple[int, ...], w_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the x whose result has dy's shape, if there is one."""
        last, rank = is_channels_last(self.layout), len(w_shape)
        if len(dy_shape) != rank or rank not in CHANNELS_FIRST:
            raise ValueError(f"dy and w must both have 3, 4 or 5 axes; got shapes {dy_shape} and {w_shape}")
        dy, w = to_logical(dy_shape, last), to_logical(w_shape, last)
        sizes = []
        for size, taps, (before, after), step, spread, more in zip(dy[2:], w[2:], *self._axes(w[2:]), strict=True):
            room = size + before + after - spread * (taps - 1) - 1 - more
            if room < 0:
                raise ValueError(
                    f"dy must have size {size - room} or more where it has {size}, which is what an x of size 1 gives with "
                    f"a filter of size {taps}; got shape {dy_shape}"
                )
            sizes.append(room // step + 1)
        return from_logical((dy[0], w[0], *sizes), last)

    def _axes(self, kernel: tuple[int, ...]) -> tuple[Any, Any, Any, Any]:
        rank = len(kernel)
        stride, dilation, extra = (
            expand_per_axis(name, getattr(self, name), rank) for name in ("stride", "dilation", "output_padding")
        )
        for more, step, spread in zip(extra, stride, dilation, strict=True):
            if more >= max(step, spread):
                raise ValueError(
                    f"output_padding must be less than the stride, {step}, or the dilation, {spread}; got {more}"
                )
        if self.padding == "same":
            total = [max(d * (k - 1) + 1 - s, 0) for k, s, d in zip(kernel, stride, dilation, strict=True)]
            return tuple((t // 2, t - t // 2) for t in total), stride, dilation, extra
        # the sizes of x only matter for "same"
        spatial = geometry(self, kernel, kernel)
        return tuple(zip(spatial.pre_padding, spatial.post_padding, strict=True)), stride, dilation, extra
