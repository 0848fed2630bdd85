"""Methods and documentation of Convolution and ConvolutionTranspose."""

from __future__ import annotations

from typing import SupportsIndex

from cudnnpy._options.base import Operation
from cudnnpy._options.checks import check_shape
from cudnnpy._options.convolution import ConvolutionOptions, TransposeOptions
from cudnnpy.typing import Array, ArrayT, ConvolutionActivation, Shape, Stream


class ConvolutionBase(ConvolutionOptions, Operation):
    """A convolution over 1, 2 or 3 spatial axes and its gradients.

    An object has the geometry and the choice of algorithms, and no weights. It is immutable, and may be shared by threads.

    Parameters
    ----------
    padding : int, tuple or {"valid", "same", "half", "full"}
        An int; or one int or one (before, after) pair for each spatial axis; or a name: "valid" is 0, "half" is half of the
        dilated filter, "full" is the dilated filter less 1, and "same" gives outputs of size ceil(input / stride).
    stride, dilation : int or tuple of ints
        An int, or one int for each spatial axis.
    groups : int
        The number of groups of channels; C groups make a depthwise convolution.
    mode : {"cross_correlation", "convolution"}
        "convolution" flips the filter.
    layout : {"NCHW", "NHWC", "NCW", "NWC", "NCDHW", "NDHWC"}
        The order of the axes of the arrays. "NCHW" is (N, C, spatial...) with filters (K, C / groups, spatial...), "NHWC" is
        (N, spatial..., C) with filters (K, spatial..., C / groups), both for any number of spatial axes; the other names
        are checked against the number of axes. Any memory format is accepted: strides may be channels last with "NCHW".
    compute_dtype : dtype-like, optional
        The dtype in which products are accumulated: by default float64 for float64, int32 for int8, and float32 for the others.
    prefer : {"fastest", "limited_workspace", "no_workspace", "autotune"}
        How an algorithm is chosen. "fastest" takes the default choice: the first candidate of the ranking that runs. The
        ranking has the candidates that were fast for near problems measured on such a GPU, then the proposals of cuDNN's
        heuristics. "limited_workspace" takes the first within `workspace_limit`, "no_workspace" the first that needs no
        workspace. "autotune" runs and times the candidates and takes the fastest, which is never slower than the default
        choice.
    workspace_limit : int, optional
        The maximum workspace in bytes. By default 1 GiB for "limited_workspace", and the free memory of the device for
        "fastest" and "autotune". By default "autotune" measures no candidate that needs more than a quarter of the device's
        memory, except the default choice.
    deterministic : bool
        Whether every result must have the same bits every time.
    tf32 : bool
        Whether float32 may be rounded to tf32 for the tensor cores.
    algorithm : str, Engine or Plan, optional
        Forces one algorithm: the short name of a v7 algorithm ("implicit_gemm", "winograd_nonfused", "0" for ALGO_0, or
        Theano's names), an engine of the graph API, or a plan.
    policy : {"on_shape_change", "once"}
        "on_shape_change" chooses for every new shape; "once" reuses the engine that was chosen for the first shape of an
        operation as long as it can run later ones.
    tune_seconds : float
        The time limit of "autotune" for one problem, in seconds, planning included; then it takes the fastest candidate so
        far.

    Raises
    ------
    TypeError, ValueError
        An option is of another type, or out of range.

    Notes
    -----
    Arrays are arrays of PyTorch, CuPy, JAX, Numba or `cudnnpy.to_device`, in float16, bfloat16, float32 or float64; forward
    also takes int8 and float8 where the GPU supports them. Results are in the library, the dtype (int32 for int8) and the
    memory format of the first array, or in `out`. Work is queued on `stream`, by default the library's current stream. The
    first call with a signature plans; later calls launch.

    A batch of 0 gives empty results, and gradients with respect to w and bias of 0 (or beta * out). With 0 channels in x and
    w the result is activation(beta * out + bias). Other sizes are 1 or more.

    Every operation raises TypeError and ValueError for arguments that do not fit, before any C call, NoAlgorithmError (with
    a table of the rejection reasons) if no algorithm can run, CaptureError for a call that has to plan during a stream
    capture, MemoryError if the device lacks memory, and StatusError if cuDNN fails.

    `cudnnpy.reference` takes NumPy arrays, accumulates in float64 (int8 exactly) and rounds once. It checks the options on
    the choice of an algorithm, which have no effect there, and ignores `stream`.

    Examples
    --------
    >>> import numpy as np
    >>> from cudnnpy import reference
    >>> x, w = np.ones((8, 3, 32, 32), np.float32), np.ones((16, 3, 3, 3), np.float32)
    >>> conv = reference.Convolution(padding=1)  # cudnnpy.Convolution on a GPU
    >>> y = conv.forward(x, w)
    >>> y.shape
    (8, 16, 32, 32)
    >>> conv.backward_data(y, w, x.shape).shape
    (8, 3, 32, 32)
    """

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
        """Compute activation(alpha * convolution(x, w) + beta * out + bias).

        C functions: cudnnBackendExecute; for a forced v7 algorithm, cudnnConvolutionForward.

        Parameters
        ----------
        x : array
            (N, C, spatial...), in float16, bfloat16, float32, float64, int8 or float8.
        w : array
            (K, C / groups, spatial...), of x's dtype.
        bias : array, optional
            (K,), packed, of the result's dtype; float32 for results of 8 bits.
        activation : {"identity", "relu", "sigmoid", "tanh", "elu", "swish"}, optional
            Fused into the convolution, as the bias is, if an engine can.
        out : array, optional
            The result, (N, K, spatial...), of x's dtype; for int8 also int32 or float32, for float8 also float32, float16
            or bfloat16.
        alpha, beta : float
            Factors of the convolution and of `out`; out is not read if beta is 0.
        stream : stream, optional
            Where the work is queued.

        Returns
        -------
        array
            `out`, or a new array of x's library, dtype (int32 for int8) and memory format.
        """
        implementation, names, inputs = type(self)._forward, ("x", "w", "bias", "out"), (x, w, bias)
        return self._run("forward", self, implementation, names, inputs, (out,), stream, activation, alpha, beta)

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
        """Compute alpha * dx + beta * out, with the gradient dx with respect to x.

        C functions: cudnnBackendExecute; for a forced v7 algorithm, cudnnConvolutionBackwardData.

        Parameters
        ----------
        dy : array
            The gradient with respect to forward's result, (N, K, spatial...), in float16, bfloat16, float32 or float64.
        w : array
            As for `forward`, of dy's dtype.
        x_shape : tuple of ints, optional
            The shape of x, in the arrays' axis order. May be None if `out` is given.
        out, alpha, beta, stream
            As for `forward`.

        Returns
        -------
        array
            `out`, or a new array of shape x_shape, of dy's library, dtype and memory format.
        """
        shape = x_shape if isinstance(x_shape, tuple) and x_shape else _shape_argument("x_shape", x_shape)
        implementation, names = type(self)._backward_data, ("dy", "w", "out")
        return self._run("backward_data", self, implementation, names, (dy, w), (out,), stream, alpha, beta, *shape)

    def backward_filter(
        self,
        dy: ArrayT,
        x: Array,
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
            `out`, or a new array of shape w_shape, of dy's library, dtype and memory format.
        """
        shape = w_shape if isinstance(w_shape, tuple) and w_shape else _shape_argument("w_shape", w_shape)
        implementation, names = type(self)._backward_filter, ("dy", "x", "out")
        return self._run("backward_filter", self, implementation, names, (dy, x), (out,), stream, alpha, beta, *shape)

    def backward_bias(
        self,
        dy: ArrayT,
        out: ArrayT | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Compute alpha * db + beta * out, with db the sum of dy over all axes except the channels.

        This is a reduction (cudnnBackendExecute or cudnnReduceTensor): of the options, only `layout` and `deterministic`
        apply.

        Parameters
        ----------
        dy : array
            As for `backward_data`; sizes other than the batch are 1 or more.
        out, alpha, beta, stream
            As for `forward`; out is packed.

        Returns
        -------
        array
            `out`, or a new array of shape (K,), of dy's library and dtype.
        """
        implementation, names = type(self)._backward_bias, ("dy", "out")
        return self._run("backward_bias", self, implementation, names, (dy,), (out,), stream, alpha, beta)

    def output_shape(self, x_shape: Shape, w_shape: Shape) -> tuple[int, ...]:
        """The shape of forward's result for the shapes of x and w, all in the arrays' axis order.

        Each spatial size is floor((x + padding before + padding after - dilation * (w - 1) - 1) / stride) + 1. Raises
        TypeError and ValueError for shapes that do not fit together.
        """
        return self._output_shape(x_shape, w_shape)


class ConvolutionTransposeBase(TransposeOptions, Operation):
    """The transpose of a `Convolution` with the same options, and its gradients.

    forward is the convolution's backward_data, and backward_data its forward. Filters are the filters of the convolution that
    is transposed: (C_in, C_out / groups, spatial...), or with layout "NHWC" (C_in, spatial..., C_out / groups). Each spatial
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
    Arrays, streams and errors are as for `Convolution`. A batch of 0 gives empty results; other sizes are 1 or more. If
    `output_padding` reaches the stride, one of the tensors is copied to scratch memory, which `workspace_limit` does not
    count.

    Examples
    --------
    >>> import numpy as np
    >>> from cudnnpy import reference
    >>> x, w = np.ones((1, 16, 8, 8), np.float32), np.ones((16, 4, 2, 2), np.float32)  # w: (C_in, C_out, R, S)
    >>> reference.ConvolutionTranspose(stride=2).forward(x, w).shape
    (1, 4, 16, 16)
    """

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
            `out`, or a new array of x's library, dtype and memory format.
        """
        implementation, names, inputs = type(self)._forward, ("x", "w", "bias", "out"), (x, w, bias)
        return self._run("forward", self, implementation, names, inputs, (out,), stream, activation, alpha, beta)

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
            `out`, or a new array of x's shape, of dy's library, dtype and memory format.
        """
        shape = x_shape if isinstance(x_shape, tuple) and x_shape else _shape_argument("x_shape", x_shape)
        implementation, names = type(self)._backward_data, ("dy", "w", "out")
        return self._run("backward_data", self, implementation, names, (dy, w), (out,), stream, alpha, beta, *shape)

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
            `out`, or a new array of shape w_shape, of x's library, dtype and memory format.
        """
        shape = w_shape if isinstance(w_shape, tuple) and w_shape else _shape_argument("w_shape", w_shape)
        # In the order of the operands: x is the gradient with respect to the result of the convolution that is transposed.
        implementation, names = type(self)._backward_filter, ("x", "dy", "out")
        return self._run("backward_filter", self, implementation, names, (x, dy), (out,), stream, alpha, beta, *shape)

    def backward_bias(
        self,
        dy: ArrayT,
        out: ArrayT | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Compute alpha * db + beta * out, with db, of shape (C_out,), the sum of dy over all axes except the channels.

        Parameters and result are as for `Convolution.backward_bias`.
        """
        implementation, names = type(self)._backward_bias, ("dy", "out")
        return self._run("backward_bias", self, implementation, names, (dy,), (out,), stream, alpha, beta)

    def output_shape(self, x_shape: Shape, w_shape: Shape) -> tuple[int, ...]:
        """The shape of forward's result for the shapes of x and w, all in the arrays' axis order.

        Raises TypeError and ValueError for shapes that do not fit together.
        """
        return self._output_shape(x_shape, w_shape)


def _shape_argument(name: str, shape: Shape | None) -> tuple[SupportsIndex, ...]:
    """Return the shape of a gradient as a tuple, whose elements the implementation checks; () for None.

    Raises ValueError for an empty shape.
    """
    if shape is None:
        return ()
    sizes = shape if isinstance(shape, tuple) else check_shape(name, shape, low=0)
    if not sizes:
        raise ValueError(f"{name} must be a tuple of 3, 4 or 5 sizes; got ()")
    return sizes
