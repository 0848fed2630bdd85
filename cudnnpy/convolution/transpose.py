"""ConvolutionTranspose: the gradient of a convolution to its input, as an operation of its own ("deconvolution")."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cudnnpy._core.layouts import CHANNELS_FIRST, from_logical, to_logical
from cudnnpy._memory.arrays import read
from cudnnpy._options.checks import check_layout_rank, check_shape, for_each_axis
from cudnnpy._options.convolution import TransposeOptions
from cudnnpy.convolution import problem as ask
from cudnnpy.convolution.layer_base import Layer
from cudnnpy.convolution.operation import TRANSPOSE_INPUT_NAMES, Operation
from cudnnpy.convolution.zero_extension import ZeroExtended, surplus_of
from cudnnpy.typing import Array, ArrayT, ConvolutionActivation, Shape, Stream

_MOST_KNOWN = 1000  # pairs of shapes, for which nothing is worked out again


@dataclass(frozen=True, kw_only=True, repr=False)
class ConvolutionTranspose(TransposeOptions, Layer):
    """The transpose of a `Convolution` with the same options, and its gradients, on device arrays.

    forward is the convolution's backward_data, and backward_data its forward. Filters are those of the convolution that is
    transposed: (C_in, C_out / groups, spatial...), or with layout "NHWC" (C_in, spatial..., C_out / groups). Each spatial
    size of the output is

        (x - 1) * stride - padding before - padding after + dilation * (w - 1) + 1 + output_padding

    Parameters
    ----------
    padding : int, tuple or {"valid", "same", "half", "full"}
        As for `Convolution`; it crops the output. "same" gives outputs of size x * stride, or of the dilated filter if that
        is larger.
    output_padding : int or tuple of ints
        The number of elements added at the end of each spatial axis of the output, less than the stride or than the
        dilation. Below the stride, it selects one of the sizes that the convolution maps to x's.
    stride, dilation, groups, mode, layout, compute_dtype, prefer, workspace_limit, deterministic, tf32, algorithm, policy
        As for `Convolution`.
    tune_seconds : float
        As for `Convolution`.

    Raises
    ------
    TypeError, ValueError
        An option is of another type, or out of range.

    Notes
    -----
    Arrays, streams and errors are those of `Convolution`. A batch of 0 gives empty results; other sizes are 1 or more. If
    `output_padding` reaches the stride, one of the tensors is copied to scratch memory, which `workspace_limit` does not
    count.
    """

    _operations: dict[Any, Operation] = field(init=False, repr=False, compare=False)  # by padding and surplus
    _known: dict[Any, tuple[Operation, tuple[int, ...]]] = field(
        init=False, repr=False, compare=False
    )  # by the shapes of x and w

    def _derived(self) -> dict[str, Any]:
        return {**super()._derived(), "_operations": {}, "_known": {}}

    def forward(
        self,
        x: ArrayT,
        w: Array,
        bias: Array | None = None,
        activation: ConvolutionActivation | None = None,
        out: ArrayT | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Compute activation(alpha * transposed convolution(x, w) + beta * out + bias).

        C functions: cudnnBackendExecute; for a forced v7 algorithm, cudnnConvolutionBackwardData.

        Parameters
        ----------
        x : array
            (N, C_in, spatial...), in float16, bfloat16, float32 or float64.
        w : array
            (C_in, C_out / groups, spatial...), of x's dtype.
        bias : array, optional
            (C_out,), packed, of x's dtype.
        activation : {"identity", "relu", "sigmoid", "tanh", "elu", "swish"}, optional
            Fused into the convolution, as the bias is, if an engine can.
        out : array, optional
            The result, (N, C_out, spatial...), of x's dtype.
        alpha, beta : float
            Factors of the convolution and of `out`; out is not read if beta is 0.
        stream : stream, optional
            Where the work is queued.

        Returns
        -------
        array
            `out`, or a new array of x's library, dtype and memory order.
        """
        operation, shape = self._behind(_shape(x, "x"), _shape(w, "w"))
        return operation.run("backward_data", x, w, shape, bias, activation, out, alpha, beta, stream)

    def backward_data(
        self,
        dy: ArrayT,
        w: Array,
        x_shape: Shape | None = None,
        out: ArrayT | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Compute alpha * dx + beta * out; the gradient dx with respect to x is the convolution of dy with w.

        C functions: cudnnBackendExecute; for a forced v7 algorithm, cudnnConvolutionForward.

        Parameters
        ----------
        dy : array
            The gradient with respect to forward's result, (N, C_out, spatial...).
        w : array
            As for `forward`, of dy's dtype.
        x_shape : tuple of ints, optional
            The shape of x, in the arrays' axis order; by default it follows from dy and w.
        out, alpha, beta, stream
            As for `forward`.

        Returns
        -------
        array
            `out`, or a new array of x's shape, of dy's library, dtype and memory order.
        """
        filters, of_dy = _shape(w, "w"), _shape(dy, "dy")
        if x_shape is None:
            x_shape = self._input_shape(of_dy, filters) if out is None else _shape(out, "out")
        x_shape = check_shape("x_shape", x_shape, len(filters), low=0)
        operation, wanted = self._behind(x_shape, filters)
        if of_dy != wanted:
            raise ValueError(
                f"dy must have shape {wanted}, that of the result for x of shape {x_shape}; got shape {of_dy}"
            )
        return operation.run("forward", dy, w, None, None, None, out, alpha, beta, stream)

    def backward_filter(
        self,
        dy: Array,
        x: ArrayT,
        w_shape: Shape | None = None,
        out: ArrayT | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Compute alpha * dw + beta * out, with the gradient dw with respect to w.

        C functions: cudnnBackendExecute; for a forced v7 algorithm, cudnnConvolutionBackwardFilter.

        Parameters
        ----------
        dy : array
            As for `backward_data`.
        x : array
            As for `forward`, of dy's dtype.
        w_shape : tuple of ints, optional
            The shape of w, in the arrays' axis order. May be None if `out` is given.
        out, alpha, beta, stream
            As for `forward`.

        Returns
        -------
        array
            `out`, or a new array of shape w_shape, of x's library, dtype and memory order.
        """
        given = _wanted("w_shape", w_shape, out)
        filters = check_shape("w_shape", given, len(_shape(x, "x")))
        operation, wanted = self._behind(_shape(x, "x"), filters)
        if _shape(dy, "dy") != wanted:
            raise ValueError(f"dy must have shape {wanted}; got shape {_shape(dy, 'dy')}")
        return operation.run("backward_filter", x, dy, filters, None, None, out, alpha, beta, stream)

    def backward_bias(
        self,
        dy: ArrayT,
        out: ArrayT | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Compute alpha * db + beta * out, with db, of shape (C_out,), the sum of dy over all axes except the channels.

        Parameters and result are those of `Convolution.backward_bias`.
        """
        if not self._operations:
            self._operations[None] = Operation(self.options._replace(output_padding=0))
        return next(iter(self._operations.values())).run_bias(dy, out, alpha, beta, stream)

    def output_shape(self, x_shape: Shape, w_shape: Shape) -> tuple[int, ...]:
        """The shape of forward's result for the shapes of x and w, all in the arrays' axis order.

        Raises TypeError and ValueError for shapes that do not fit together.
        """
        last = self.options.channels_last
        x_shape = check_shape("x_shape", x_shape, low=0)
        rank = len(x_shape)
        if rank not in CHANNELS_FIRST:
            raise ValueError(f"x must have 3, 4 or 5 axes (N, C and 1 to 3 spatial axes); got shape {x_shape}")
        check_layout_rank(self.options.layout, "x", rank)
        x, w = to_logical(x_shape, last), to_logical(check_shape("w_shape", w_shape, rank), last)
        if 0 in x[1:]:
            raise ValueError(f"x must have sizes of 1 or more, except for a batch of 0; got shape {x} (logical order)")
        if x[1] != w[0]:
            raise ValueError(f"x must have {w[0]} channels, as w; got {x[1]} (x has shape {x}, w {w}, logical order)")
        if w[0] % self.options.groups:
            raise ValueError(f"groups must divide the {w[0]} input channels; got {self.options.groups}")
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
        return from_logical((x[0], w[1] * self.options.groups, *sizes), last)

    def _input_shape(self, dy_shape: tuple[int, ...], w_shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the x whose result has dy's shape, if there is one."""
        last, rank = self.options.channels_last, len(w_shape)
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
            for_each_axis(name, getattr(self.options, name), rank) for name in ("stride", "dilation", "output_padding")
        )
        for more, step, spread in zip(extra, stride, dilation, strict=True):
            if more >= max(step, spread):
                raise ValueError(
                    f"output_padding must be less than the stride, {step}, or the dilation, {spread}; got {more}"
                )
        if self.options.padding == "same":
            total = [max(d * (k - 1) + 1 - s, 0) for k, s, d in zip(kernel, stride, dilation, strict=True)]
            return tuple((t // 2, t - t // 2) for t in total), stride, dilation, extra
        # the sizes of x only matter for "same"
        spatial = ask.geometry(self.options, kernel, kernel)
        return tuple(zip(spatial.pre_padding, spatial.post_padding, strict=True)), stride, dilation, extra

    def _behind(self, x_shape: tuple[int, ...], w_shape: tuple[int, ...]) -> tuple[Operation, tuple[int, ...]]:
        """The plain convolution behind the transpose, with its padding spelled out; and y's shape."""
        found = self._known.get((x_shape, w_shape))
        if found is None:
            y_shape = self.output_shape(x_shape, w_shape)
            kernel = to_logical(w_shape, self.options.channels_last)[2:]
            pairs, surplus = self._axes(kernel)[0], surplus_of(self.options, len(kernel))
            operation = self._operations.get((pairs, surplus))
            if operation is None:
                options = self.options._replace(padding=pairs, output_padding=0)
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
