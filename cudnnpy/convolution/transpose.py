"""ConvolutionTranspose: the gradient of a convolution with respect to its input, as a layer ("deconvolution")."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cudnnpy._core.layouts import CHANNELS_FIRST, from_logical, to_logical
from cudnnpy._memory.arrays import read
from cudnnpy._options.checks import check_layout_rank, check_shape, expand_per_axis, is_channels_last
from cudnnpy._options.convolution_methods import ConvolutionTransposeBase
from cudnnpy.convolution import problem as ask
from cudnnpy.convolution.layer_base import Layer
from cudnnpy.convolution.operation import TRANSPOSE_INPUT_NAMES, Operation
from cudnnpy.convolution.zero_extension import ZeroExtended, surplus_of
from cudnnpy.typing import Array, ConvolutionActivation, Shape, Stream

_MOST_KNOWN = 1000  # pairs of shapes in the cache of operations


class ConvolutionTranspose(ConvolutionTransposeBase, Layer):
    _operations: dict[Any, Operation]  # by padding and surplus
    _known: dict[Any, tuple[Operation, tuple[int, ...]]]  # by the shapes of x and w

    def _derived(self) -> dict[str, Any]:
        return {**super()._derived(), "_operations": {}, "_known": {}}

    def _forward(
        self,
        x: Array,
        w: Array,
        bias: Array | None,
        activation: ConvolutionActivation | None,
        out: Array | None,
        alpha: float,
        beta: float,
        stream: Stream | None,
    ) -> Array:
        operation, y_shape = self._behind(_shape(x, "x"), _shape(w, "w"))
        return operation.run("backward_data", x, w, y_shape, bias, activation, out, alpha, beta, stream)

    def _backward_data(
        self,
        dy: Array,
        w: Array,
        x_shape: Shape | None,
        out: Array | None,
        alpha: float,
        beta: float,
        stream: Stream | None,
    ) -> Array:
        filters, of_dy = _shape(w, "w"), _shape(dy, "dy")
        if x_shape is None:
            x_shape = self._input_shape(of_dy, filters) if out is None else _shape(out, "out")
        x_shape = check_shape("x_shape", x_shape, len(filters), low=0)
        operation, wanted = self._behind(x_shape, filters)
        if of_dy != wanted:
            raise ValueError(f"dy must have shape {wanted}, the result's for x of shape {x_shape}; got shape {of_dy}")
        return operation.run("forward", dy, w, None, None, None, out, alpha, beta, stream)

    def _backward_filter(
        self,
        dy: Array,
        x: Array,
        w_shape: Shape | None,
        out: Array | None,
        alpha: float,
        beta: float,
        stream: Stream | None,
    ) -> Array:
        given = _wanted("w_shape", w_shape, out)
        filters = check_shape("w_shape", given, len(_shape(x, "x")))
        operation, wanted = self._behind(_shape(x, "x"), filters)
        if _shape(dy, "dy") != wanted:
            raise ValueError(f"dy must have shape {wanted}; got shape {_shape(dy, 'dy')}")
        return operation.run("backward_filter", x, dy, filters, None, None, out, alpha, beta, stream)

    def _backward_bias(self, dy: Array, out: Array | None, alpha: float, beta: float, stream: Stream | None) -> Array:
        if not self._operations:
            self._operations[None] = Operation(self._plain_options())
        return next(iter(self._operations.values())).run_bias(dy, out, alpha, beta, stream)

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
        spatial = ask.geometry(self, kernel, kernel)
        return tuple(zip(spatial.pre_padding, spatial.post_padding, strict=True)), stride, dilation, extra

    def _behind(self, x_shape: tuple[int, ...], w_shape: tuple[int, ...]) -> tuple[Operation, tuple[int, ...]]:
        """Return the convolution that this object transposes, with explicit padding, and the shape of y."""
        found = self._known.get((x_shape, w_shape))
        if found is None:
            y_shape = self.output_shape(x_shape, w_shape)
            kernel = to_logical(w_shape, is_channels_last(self.layout))[2:]
            pairs, surplus = self._axes(kernel)[0], surplus_of(self, len(kernel))
            operation = self._operations.get((pairs, surplus))
            if operation is None:
                options = replace(self._plain_options(), padding=pairs)
                operation = (
                    ZeroExtended(options, surplus) if any(surplus) else Operation(options, TRANSPOSE_INPUT_NAMES)
                )
                self._operations[pairs, surplus] = operation
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            found = self._known[x_shape, w_shape] = operation, y_shape
        return found


def _wanted(name: str, shape: Shape | None, out: Array | None) -> Any:
    return ask.given_shape(name, shape, _shape(out, "out") if shape is None and out is not None else None)


def _shape(array: Array, name: str) -> tuple[int, ...]:
    return tuple(read(array, name)[1][0])
