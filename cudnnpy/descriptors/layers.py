"""Layers without weights: activations, pooling, local response normalisation, dropout."""

from __future__ import annotations

from ctypes import byref, c_size_t
from typing import Any

from cudnnpy import raw
from cudnnpy._core.descriptor import Descriptor
from cudnnpy._core.values import integer, integers, nan_propagation, to_c
from cudnnpy.descriptors.tensors import TensorDescriptor
from cudnnpy.handle import Handle
from cudnnpy.names import enumerator, short_name
from cudnnpy.typing import ActivationMode, CudnnPoolingMode, PerAxis, Shape


class ActivationDescriptor(Descriptor[raw.cudnnActivationDescriptor_t]):
    """An activation: "sigmoid", "relu", "tanh", "clipped_relu", "elu", "identity" or "swish".

    `coefficient` is the clipped relu's ceiling and the elu's alpha. C functions: cudnnSetActivationDescriptor, and
    cudnnSetActivationDescriptorSwishBeta if `swish_beta` is given.
    """

    _create = "cudnnCreateActivationDescriptor"
    _destroy = "cudnnDestroyActivationDescriptor"

    def __init__(
        self,
        mode: ActivationMode | raw.cudnnActivationMode_t,
        *,
        coefficient: float = 0.0,
        propagate_nan: bool = False,
        swish_beta: float | None = None,
    ) -> None:
        kind = enumerator(raw.cudnnActivationMode_t, mode, "mode")
        coefficient = to_c("double", coefficient, "coefficient")
        beta = None if swish_beta is None else to_c("double", swish_beta, "swish_beta")
        nan = nan_propagation(propagate_nan)
        with self._created():
            self._set("cudnnSetActivationDescriptor", kind, nan, coefficient)
            if beta is not None:
                self._set("cudnnSetActivationDescriptorSwishBeta", beta)

    @property
    def mode(self) -> str:
        """Which activation."""
        return short_name(self.get("cudnnGetActivationDescriptor")["mode"])

    @property
    def coefficient(self) -> float:
        """The clipped relu's ceiling, the elu's alpha."""
        return float(self.get("cudnnGetActivationDescriptor")["coef"])

    @property
    def propagate_nan(self) -> bool:
        """Whether the relu of NaN is NaN."""
        return bool(self.get("cudnnGetActivationDescriptor")["reluNanOpt"])

    @property
    def swish_beta(self) -> float:
        """The swish's beta."""
        return float(self.get("cudnnGetActivationDescriptorSwishBeta")["swish_beta"])


class PoolingDescriptor(Descriptor[raw.cudnnPoolingDescriptor_t]):
    """Pooling: "max", "average_include_padding", "average_exclude_padding" or "max_deterministic".

    `window` has one number for each spatial dimension; `padding` and `stride` (None: the window itself) have as many,
    or are one number for all. C functions: cudnnSetPooling2dDescriptor for two, cudnnSetPoolingNdDescriptor for others.
    """

    _create = "cudnnCreatePoolingDescriptor"
    _destroy = "cudnnDestroyPoolingDescriptor"

    def __init__(
        self,
        mode: CudnnPoolingMode | raw.cudnnPoolingMode_t,
        window: Shape,
        *,
        padding: PerAxis = 0,
        stride: PerAxis | None = None,
        propagate_nan: bool = False,
    ) -> None:
        kind, nan = enumerator(raw.cudnnPoolingMode_t, mode, "mode"), nan_propagation(propagate_nan)
        window = integers(window, "window", most=raw.CUDNN_DIM_MAX - 2)
        padding = integers(padding, "padding", len(window))
        stride = window if stride is None else integers(stride, "stride", len(window))
        self._rank = len(window)
        with self._created():
            if len(window) == 2:
                self._set("cudnnSetPooling2dDescriptor", kind, nan, *window, *padding, *stride)
            else:
                self._set("cudnnSetPoolingNdDescriptor", kind, nan, len(window), window, padding, stride)

    def _read(self, name: str) -> Any:
        return self.get("cudnnGetPoolingNdDescriptor", self._rank)[name]

    @property
    def mode(self) -> str:
        """Which pooling."""
        return short_name(self._read("mode"))

    @property
    def propagate_nan(self) -> bool:
        """Whether the maximum over a NaN is NaN."""
        return bool(self._read("maxpoolingNanOpt"))

    @property
    def window(self) -> tuple[int, ...]:
        """The window's size along each spatial dimension."""
        return tuple(self._read("windowDimA"))

    @property
    def padding(self) -> tuple[int, ...]:
        """The padding on both sides of each spatial dimension."""
        return tuple(self._read("paddingA"))

    @property
    def stride(self) -> tuple[int, ...]:
        """The window's step along each spatial dimension."""
        return tuple(self._read("strideA"))

    def output_shape(self, x: TensorDescriptor) -> tuple[int, ...]:
        """The shape of the result, as cudnnGetPoolingNdForwardOutputDim gives it."""
        return tuple(self.get("cudnnGetPoolingNdForwardOutputDim", x, self._rank + 2)["outputTensorDimA"])


class LRNDescriptor(Descriptor[raw.cudnnLRNDescriptor_t]):
    """Local response normalisation over `n` channels: x / (k + alpha / n * sum of squares) ** beta."""

    _create = "cudnnCreateLRNDescriptor"
    _destroy = "cudnnDestroyLRNDescriptor"

    def __init__(self, n: int = 5, alpha: float = 1e-4, beta: float = 0.75, k: float = 2.0) -> None:
        numbers = [to_c("unsigned int", n, "n")]
        numbers += [to_c("double", v, name) for v, name in ((alpha, "alpha"), (beta, "beta"), (k, "k"))]
        with self._created():
            self._set("cudnnSetLRNDescriptor", *numbers)

    @property
    def n(self) -> int:
        """The channels in the window."""
        return int(self.get("cudnnGetLRNDescriptor")["lrnN"])

    @property
    def alpha(self) -> float:
        """What the mean square is multiplied by."""
        return float(self.get("cudnnGetLRNDescriptor")["lrnAlpha"])

    @property
    def beta(self) -> float:
        """The exponent."""
        return float(self.get("cudnnGetLRNDescriptor")["lrnBeta"])

    @property
    def k(self) -> float:
        """What is added before the power is taken."""
        return float(self.get("cudnnGetLRNDescriptor")["lrnK"])


class DropoutDescriptor(Descriptor[raw.cudnnDropoutDescriptor_t]):
    """Dropout with random states in device memory, `states_size` bytes at address `states`, owned by the caller.

    Without a handle it is left unset, which is what an RNN or attention descriptor without dropout needs. `restore`
    takes the states as an earlier descriptor left them, rather than seeding them anew.
    C functions: cudnnSetDropoutDescriptor, cudnnRestoreDropoutDescriptor.
    """

    _create = "cudnnCreateDropoutDescriptor"
    _destroy = "cudnnDestroyDropoutDescriptor"

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

    @staticmethod
    def needed_states_size(handle: Handle) -> int:
        """The bytes that the states take on the handle's device: cudnnDropoutGetStatesSize."""
        size = c_size_t()
        raw.call("cudnnDropoutGetStatesSize", handle, byref(size))
        return size.value
