"""Descriptors of layers without weights: activation, pooling, local response normalization, dropout."""

from __future__ import annotations

from ctypes import byref, c_size_t
from typing import Any

from cudnnpy import raw
from cudnnpy._core.descriptor import Descriptor, reading
from cudnnpy._core.values import integer, integers, nan_propagation, to_c
from cudnnpy.descriptors.tensors import TensorDescriptor
from cudnnpy.handle import Handle
from cudnnpy.names import enumerator, short_name
from cudnnpy.typing import ActivationMode, CudnnPoolingMode, PerAxis, Shape


class ActivationDescriptor(Descriptor[raw.cudnnActivationDescriptor_t]):
    """An activation.

    C functions: cudnnSetActivationDescriptor, and cudnnSetActivationDescriptorSwishBeta if `swish_beta` is passed.

    Parameters
    ----------
    mode : str or cudnnActivationMode_t
        "sigmoid", "relu", "tanh", "clipped_relu", "elu", "identity" or "swish".
    coefficient : float
        The ceiling of the clipped ReLU, or the alpha of the ELU.
    propagate_nan : bool
        Whether the ReLU of NaN is NaN.
    swish_beta : float or None
        The beta of the swish. None is C's default.

    Examples
    --------
    >>> from cudnnpy.descriptors import ActivationDescriptor
    >>> ActivationDescriptor("relu").mode
    'relu'
    """

    _reader = ("cudnnGetActivationDescriptor",)

    def __init__(
        self,
        mode: ActivationMode | raw.cudnnActivationMode_t,
        *,
        coefficient: float = 0.0,
        propagate_nan: bool = False,
        swish_beta: float | None = None,
    ) -> None:
        activation = enumerator(raw.cudnnActivationMode_t, mode, "mode")
        coefficient = to_c("double", coefficient, "coefficient")
        beta = None if swish_beta is None else to_c("double", swish_beta, "swish_beta")
        nan = nan_propagation(propagate_nan)
        with self._created():
            self._set("cudnnSetActivationDescriptor", activation, nan, coefficient)
            if beta is not None:
                self._set("cudnnSetActivationDescriptorSwishBeta", beta)

    mode: str = reading("mode", short_name, "The activation.")
    coefficient: float = reading("coef", float, "The ceiling of the clipped ReLU, or the alpha of the ELU.")
    propagate_nan: bool = reading("reluNanOpt", bool, "Whether the ReLU of NaN is NaN.")

    @property
    def swish_beta(self) -> float:
        """The beta of the swish."""
        return float(self.get("cudnnGetActivationDescriptorSwishBeta")["swish_beta"])


class PoolingDescriptor(Descriptor[raw.cudnnPoolingDescriptor_t]):
    """A pooling.

    C functions: cudnnSetPooling2dDescriptor for two spatial dimensions, cudnnSetPoolingNdDescriptor for others.

    Parameters
    ----------
    mode : str or cudnnPoolingMode_t
        "max", "average_include_padding", "average_exclude_padding" or "max_deterministic".
    window : sequence of ints
        The size of the window along each spatial dimension.
    padding : int or sequence of ints
        The padding on both sides: one number for all spatial dimensions, or one for each.
    stride : int, sequence of ints or None
        The step of the window: one number for all spatial dimensions, or one for each. None is the window.
    propagate_nan : bool
        Whether the maximum over a NaN is NaN.

    Examples
    --------
    >>> from cudnnpy.descriptors import PoolingDescriptor
    >>> PoolingDescriptor("max", (2, 2), stride=2).window
    (2, 2)
    """

    def __init__(
        self,
        mode: CudnnPoolingMode | raw.cudnnPoolingMode_t,
        window: Shape,
        *,
        padding: PerAxis = 0,
        stride: PerAxis | None = None,
        propagate_nan: bool = False,
    ) -> None:
        pooling, nan = enumerator(raw.cudnnPoolingMode_t, mode, "mode"), nan_propagation(propagate_nan)
        window = integers(window, "window", most=raw.CUDNN_DIM_MAX - 2)
        padding = integers(padding, "padding", len(window))
        stride = window if stride is None else integers(stride, "stride", len(window))
        self._rank = len(window)
        with self._created():
            if len(window) == 2:
                self._set("cudnnSetPooling2dDescriptor", pooling, nan, *window, *padding, *stride)
            else:
                self._set("cudnnSetPoolingNdDescriptor", pooling, nan, len(window), window, padding, stride)

    def _read(self) -> dict[str, Any]:
        return self.get("cudnnGetPoolingNdDescriptor", self._rank)

    mode: str = reading("mode", short_name, "The pooling mode.")
    propagate_nan: bool = reading("maxpoolingNanOpt", bool, "Whether the maximum over a NaN is NaN.")
    window: tuple[int, ...] = reading("windowDimA", tuple, "The size of the window along each spatial dimension.")
    padding: tuple[int, ...] = reading("paddingA", tuple, "The padding on both sides of each spatial dimension.")
    stride: tuple[int, ...] = reading("strideA", tuple, "The step of the window along each spatial dimension.")

    def output_shape(self, x: TensorDescriptor) -> tuple[int, ...]:
        """Return the shape of the result: cudnnGetPoolingNdForwardOutputDim."""
        return tuple(self.get("cudnnGetPoolingNdForwardOutputDim", x, self._rank + 2)["outputTensorDimA"])


class LRNDescriptor(Descriptor[raw.cudnnLRNDescriptor_t]):
    """Local response normalization: x / (k + alpha / n * sum of squares) ** beta. C function: cudnnSetLRNDescriptor.

    Parameters
    ----------
    n : int
        The number of channels in the window.
    alpha, beta, k : float
        The factor of the mean square, the exponent, and the number added before the power.

    Examples
    --------
    >>> from cudnnpy.descriptors import LRNDescriptor
    >>> LRNDescriptor(5).n
    5
    """

    _reader = ("cudnnGetLRNDescriptor",)

    def __init__(self, n: int = 5, alpha: float = 1e-4, beta: float = 0.75, k: float = 2.0) -> None:
        numbers = [to_c("unsigned int", n, "n")]
        numbers += [to_c("double", value, name) for value, name in ((alpha, "alpha"), (beta, "beta"), (k, "k"))]
        with self._created():
            self._set("cudnnSetLRNDescriptor", *numbers)

    n: int = reading("lrnN", int, "The number of channels in the window.")
    alpha: float = reading("lrnAlpha", float, "The factor of the mean square.")
    beta: float = reading("lrnBeta", float, "The exponent.")
    k: float = reading("lrnK", float, "The number added before the power.")


class DropoutDescriptor(Descriptor[raw.cudnnDropoutDescriptor_t]):
    """Dropout, with random states in device memory that the caller owns.

    C functions: cudnnSetDropoutDescriptor, cudnnRestoreDropoutDescriptor.

    Parameters
    ----------
    handle : Handle or None
        None leaves the descriptor unset, as RNN and attention descriptors without dropout need it.
    probability : float
        The probability that an element becomes 0.
    states : int
        The address of the states.
    states_size : int
        The size of the states in bytes (see `needed_states_size`).
    seed : int
        The seed of the states.
    restore : bool
        Whether to continue with the states of an earlier descriptor instead of seeding them.

    Examples
    --------
    >>> # on a GPU
    >>> import cudnnpy
    >>> from cudnnpy.descriptors import DropoutDescriptor
    >>> handle = cudnnpy.Handle()
    >>> size = DropoutDescriptor.needed_states_size(handle)
    >>> states = cudnnpy.empty((size,), "uint8")
    >>> dropout = DropoutDescriptor(handle, 0.25, states=states.pointer, states_size=size, seed=7)
    >>> dropout.get("cudnnGetDropoutDescriptor", handle)["dropout"]
    0.25
    """

    def __init__(
        self,
        handle: Handle | None = None,
        probability: float = 0.0,
        *,
        states: int = 0,
        states_size: int = 0,
        seed: int = 0,
        restore: bool = False,
    ) -> None:
        arguments = (
            to_c("float", probability, "probability"),
            integer(states, "states", c_size_t) or None,
            integer(states_size, "states_size", c_size_t),
            to_c("unsigned long long", seed, "seed"),
        )
        with self._created():
            if handle is not None:
                function = "cudnnRestoreDropoutDescriptor" if restore else "cudnnSetDropoutDescriptor"
                self._set(function, handle, *arguments)

    def _described(self) -> dict[str, Any]:
        return self.get("cudnnGetDropoutDescriptor", *next(iter(self._kept.values())))  # with its handle

    @staticmethod
    def needed_states_size(handle: Handle) -> int:
        """Return the size of the states on the handle's device in bytes: cudnnDropoutGetStatesSize."""
        size = c_size_t()
        raw.call("cudnnDropoutGetStatesSize", handle, byref(size))
        return size.value
