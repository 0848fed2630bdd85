"""An owner for every descriptor of the C API beneath the graph API.

Those that convolutions and simple layers need take everything when they are made, and do not change afterwards; their
properties read it back from C. The others are made empty, set and read by the names of C (GeneralDescriptor). dtypes
and modes are short names ("float32", "relu": see cudnnpy.names) or enumerators of cudnnpy.raw; they come back as short
names. The values that C can judge are left to C: it refuses them with BadParameterError or NotSupportedError.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_size_t
from typing import Any

from cudnnpy import raw
from cudnnpy._descriptor import Descriptor, GeneralDescriptor, integer, integers, shape_of, to_c
from cudnnpy.handle import Handle
from cudnnpy.names import data_type, enumerator, short_name

_MOST_DIMENSIONS = raw.CUDNN_DIM_MAX
_MOST_SPATIAL = raw.CUDNN_DIM_MAX - 2


class TensorDescriptor(Descriptor):
    """A tensor's shape (N, C, spatial...), element type and strides.

    `strides` count elements, one for each dimension; without them the tensor is packed, as `format` says: "nchw" (the
    default), "nhwc" (channels last, the shape still N, C, spatial...) or "nchw_vect_c".
    C functions: cudnnSetTensor4dDescriptor[Ex] for four dimensions, cudnnSetTensorNdDescriptor[Ex] for others.
    """

    _create = "cudnnCreateTensorDescriptor"
    _destroy = "cudnnDestroyTensorDescriptor"

    def __init__(
        self,
        shape: Sequence[int],
        dtype: Any = "float32",
        *,
        strides: Sequence[int] | None = None,
        format: Any = None,
    ) -> None:
        shape, kind = shape_of(shape), data_type(dtype)
        setter: tuple[Any, ...]
        if strides is None:
            order = enumerator(raw.cudnnTensorFormat_t, "nchw" if format is None else format, "format")
            if len(shape) == 4:
                setter = "cudnnSetTensor4dDescriptor", order, kind, *shape
            else:
                setter = "cudnnSetTensorNdDescriptorEx", order, kind, len(shape), shape
        else:
            if format is not None:
                raise ValueError(f"format: strides say already what {format!r} would; give one of the two")
            strides = integers(strides, "strides", len(shape))
            if len(shape) == 4:
                setter = "cudnnSetTensor4dDescriptorEx", kind, *shape, *strides
            else:
                setter = "cudnnSetTensorNdDescriptor", kind, len(shape), shape, strides
        with self._created():
            self._set(*setter)

    def _read(self) -> dict[str, Any]:
        return self.get("cudnnGetTensorNdDescriptor", _MOST_DIMENSIONS)

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, C, spatial...)."""
        read = self._read()
        return tuple(read["dimA"][: read["nbDims"]])

    @property
    def strides(self) -> tuple[int, ...]:
        """How many elements lie between neighbours, for each dimension."""
        read = self._read()
        return tuple(read["strideA"][: read["nbDims"]])

    @property
    def dtype(self) -> str:
        """The element type's name."""
        return short_name(self._read()["dataType"])

    @property
    def nbytes(self) -> int:
        """The bytes from the first element to the end of the last."""
        return int(self.get("cudnnGetTensorSizeInBytes")["size"])


class FilterDescriptor(Descriptor):
    """A filter's shape (K, C, spatial...), element type and format ("nchw", "nhwc" or "nchw_vect_c").

    C functions: cudnnSetFilter4dDescriptor for four dimensions, cudnnSetFilterNdDescriptor for others.
    """

    _create = "cudnnCreateFilterDescriptor"
    _destroy = "cudnnDestroyFilterDescriptor"

    def __init__(self, shape: Sequence[int], dtype: Any = "float32", *, format: Any = "nchw") -> None:
        shape, kind = shape_of(shape), data_type(dtype)
        order = enumerator(raw.cudnnTensorFormat_t, format, "format")
        with self._created():
            if len(shape) == 4:
                self._set("cudnnSetFilter4dDescriptor", kind, order, *shape)
            else:
                self._set("cudnnSetFilterNdDescriptor", kind, order, len(shape), shape)

    def _read(self) -> dict[str, Any]:
        return self.get("cudnnGetFilterNdDescriptor", _MOST_DIMENSIONS)

    @property
    def shape(self) -> tuple[int, ...]:
        """(K, C, spatial...)."""
        read = self._read()
        return tuple(read["filterDimA"][: read["nbDims"]])

    @property
    def dtype(self) -> str:
        """The element type's name."""
        return short_name(self._read()["dataType"])

    @property
    def format(self) -> str:
        """How the filter lies in memory."""
        return short_name(self._read()["format"])

    @property
    def nbytes(self) -> int:
        """The bytes that the filter takes."""
        return int(self.get("cudnnGetFilterSizeInBytes")["size"])


class ConvolutionDescriptor(Descriptor):
    """A convolution's geometry and arithmetic.

    `padding` has one number for each spatial dimension; `stride` and `dilation` have as many, or are one number for
    all. `mode` is "cross_correlation" or "convolution" (which flips the filter), `math_type` "default_math",
    "tensor_op_math", "tensor_op_math_allow_conversion" or "fma_math".
    C functions: cudnnSetConvolution2dDescriptor for two spatial dimensions, cudnnSetConvolutionNdDescriptor for
    others, cudnnSetConvolutionGroupCount, cudnnSetConvolutionMathType.
    """

    _create = "cudnnCreateConvolutionDescriptor"
    _destroy = "cudnnDestroyConvolutionDescriptor"

    def __init__(
        self,
        padding: Sequence[int],
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        *,
        mode: Any = "cross_correlation",
        compute_dtype: Any = "float32",
        groups: int = 1,
        math_type: Any = "default_math",
    ) -> None:
        padding = integers(padding, "padding")
        geometry = padding, integers(stride, "stride", len(padding)), integers(dilation, "dilation", len(padding))
        arithmetic = (
            enumerator(raw.cudnnConvolutionMode_t, mode, "mode"),
            data_type(compute_dtype, "compute_dtype"),
        )
        groups = integer(groups, "groups")
        math = enumerator(raw.cudnnMathType_t, math_type, "math_type")
        with self._created():
            if len(padding) == 2:
                self._set("cudnnSetConvolution2dDescriptor", *(n for pair in geometry for n in pair), *arithmetic)
            else:
                self._set("cudnnSetConvolutionNdDescriptor", len(padding), *geometry, *arithmetic)
            self._set("cudnnSetConvolutionGroupCount", groups)
            self._set("cudnnSetConvolutionMathType", math)

    def _read(self, name: str) -> Any:
        read = self.get("cudnnGetConvolutionNdDescriptor", _MOST_SPATIAL)
        value = read[name]
        return value[: read["arrayLength"]] if isinstance(value, tuple) else value

    @property
    def padding(self) -> tuple[int, ...]:
        """Zeros on both sides of each spatial dimension."""
        return tuple(self._read("padA"))

    @property
    def stride(self) -> tuple[int, ...]:
        """The filter's step along each spatial dimension."""
        return tuple(self._read("strideA"))

    @property
    def dilation(self) -> tuple[int, ...]:
        """The distance of the filter's elements along each spatial dimension."""
        return tuple(self._read("dilationA"))

    @property
    def mode(self) -> str:
        """ "cross_correlation" or "convolution"."""
        return short_name(self._read("mode"))

    @property
    def compute_dtype(self) -> str:
        """What is added up in."""
        return short_name(self._read("computeType"))

    @property
    def groups(self) -> int:
        """How many groups the channels fall into."""
        return int(self.get("cudnnGetConvolutionGroupCount")["groupCount"])

    @property
    def math_type(self) -> str:
        """Whether tensor cores may be used, and inputs converted for them."""
        return short_name(self.get("cudnnGetConvolutionMathType")["mathType"])

    def output_shape(self, x: TensorDescriptor, w: FilterDescriptor) -> tuple[int, ...]:
        """The shape of the result, as cudnnGetConvolutionNdForwardOutputDim gives it."""
        rank = len(self.padding) + 2
        return tuple(self.get("cudnnGetConvolutionNdForwardOutputDim", x, w, rank)["tensorOuputDimA"])


class ActivationDescriptor(Descriptor):
    """An activation: "sigmoid", "relu", "tanh", "clipped_relu", "elu", "identity" or "swish".

    `coefficient` is the clipped relu's ceiling and the elu's alpha. C functions: cudnnSetActivationDescriptor, and
    cudnnSetActivationDescriptorSwishBeta if `swish_beta` is given.
    """

    _create = "cudnnCreateActivationDescriptor"
    _destroy = "cudnnDestroyActivationDescriptor"

    def __init__(
        self, mode: Any, *, coefficient: float = 0.0, propagate_nan: bool = False, swish_beta: float | None = None
    ) -> None:
        kind = enumerator(raw.cudnnActivationMode_t, mode, "mode")
        coefficient = to_c("double", coefficient, "coefficient")
        beta = None if swish_beta is None else to_c("double", swish_beta, "swish_beta")
        nan = _nan(propagate_nan)
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


class PoolingDescriptor(Descriptor):
    """Pooling: "max", "average_include_padding", "average_exclude_padding" or "max_deterministic".

    `window` has one number for each spatial dimension; `padding` and `stride` (None: the window itself) have as many,
    or are one number for all. C functions: cudnnSetPooling2dDescriptor for two, cudnnSetPoolingNdDescriptor for others.
    """

    _create = "cudnnCreatePoolingDescriptor"
    _destroy = "cudnnDestroyPoolingDescriptor"

    def __init__(
        self,
        mode: Any,
        window: Sequence[int],
        *,
        padding: int | Sequence[int] = 0,
        stride: int | Sequence[int] | None = None,
        propagate_nan: bool = False,
    ) -> None:
        kind, nan = enumerator(raw.cudnnPoolingMode_t, mode, "mode"), _nan(propagate_nan)
        window = integers(window, "window")
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


class OpTensorDescriptor(Descriptor):
    """An elementwise operation of cudnnOpTensor: "add", "mul", "min", "max", "sqrt" or "not"."""

    _create = "cudnnCreateOpTensorDescriptor"
    _destroy = "cudnnDestroyOpTensorDescriptor"

    def __init__(self, operation: Any, *, compute_dtype: Any = "float32", propagate_nan: bool = False) -> None:
        kind = enumerator(raw.cudnnOpTensorOp_t, operation, "operation")
        dtype, nan = data_type(compute_dtype, "compute_dtype"), _nan(propagate_nan)
        with self._created():
            self._set("cudnnSetOpTensorDescriptor", kind, dtype, nan)

    @property
    def operation(self) -> str:
        """Which operation."""
        return short_name(self.get("cudnnGetOpTensorDescriptor")["opTensorOp"])

    @property
    def compute_dtype(self) -> str:
        """What is computed in."""
        return short_name(self.get("cudnnGetOpTensorDescriptor")["opTensorCompType"])

    @property
    def propagate_nan(self) -> bool:
        """Whether the minimum or maximum with a NaN is NaN."""
        return bool(self.get("cudnnGetOpTensorDescriptor")["opTensorNanOpt"])


class ReduceTensorDescriptor(Descriptor):
    """A reduction of cudnnReduceTensor: "add", "mul", "min", "max", "amax", "avg", "norm1", "norm2", "mul_no_zeros".

    `indices` is "no_indices" or, for a minimum's or maximum's place, "flattened_indices"; `indices_type` is
    "32bit_indices", "64bit_indices", "16bit_indices" or "8bit_indices".
    """

    _create = "cudnnCreateReduceTensorDescriptor"
    _destroy = "cudnnDestroyReduceTensorDescriptor"

    def __init__(
        self,
        operation: Any,
        *,
        compute_dtype: Any = "float32",
        propagate_nan: bool = False,
        indices: Any = "no_indices",
        indices_type: Any = "32bit_indices",
    ) -> None:
        arguments = (
            enumerator(raw.cudnnReduceTensorOp_t, operation, "operation"),
            data_type(compute_dtype, "compute_dtype"),
            _nan(propagate_nan),
            enumerator(raw.cudnnReduceTensorIndices_t, indices, "indices"),
            enumerator(raw.cudnnIndicesType_t, indices_type, "indices_type"),
        )
        with self._created():
            self._set("cudnnSetReduceTensorDescriptor", *arguments)

    def _read(self, name: str) -> Any:
        return self.get("cudnnGetReduceTensorDescriptor")[name]

    @property
    def operation(self) -> str:
        """Which reduction."""
        return short_name(self._read("reduceTensorOp"))

    @property
    def compute_dtype(self) -> str:
        """What is computed in."""
        return short_name(self._read("reduceTensorCompType"))

    @property
    def propagate_nan(self) -> bool:
        """Whether the minimum or maximum over a NaN is NaN."""
        return bool(self._read("reduceTensorNanOpt"))

    @property
    def indices(self) -> str:
        """Whether the places of minima and maxima are wanted."""
        return short_name(self._read("reduceTensorIndices"))

    @property
    def indices_type(self) -> str:
        """The integers that the places are written in."""
        return short_name(self._read("reduceTensorIndicesType"))


class LRNDescriptor(Descriptor):
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


class DropoutDescriptor(Descriptor):
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


class TensorTransformDescriptor(GeneralDescriptor):
    """What cudnnTransformTensorEx does: cudnnSetTensorTransformDescriptor, cudnnGetTensorTransformDescriptor."""

    _create = "cudnnCreateTensorTransformDescriptor"
    _destroy = "cudnnDestroyTensorTransformDescriptor"


class SpatialTransformerDescriptor(GeneralDescriptor):
    """A spatial transformer: cudnnSetSpatialTransformerNdDescriptor."""

    _create = "cudnnCreateSpatialTransformerDescriptor"
    _destroy = "cudnnDestroySpatialTransformerDescriptor"


class RNNDescriptor(GeneralDescriptor):
    """A recurrent network: cudnnSetRNNDescriptor_v8, cudnnGetRNNDescriptor_v8, cudnnRNNSetClip_v9."""

    _create = "cudnnCreateRNNDescriptor"
    _destroy = "cudnnDestroyRNNDescriptor"


class RNNDataDescriptor(GeneralDescriptor):
    """A batch of sequences for a recurrent network: cudnnSetRNNDataDescriptor, cudnnGetRNNDataDescriptor."""

    _create = "cudnnCreateRNNDataDescriptor"
    _destroy = "cudnnDestroyRNNDataDescriptor"


class CTCLossDescriptor(GeneralDescriptor):
    """A CTC loss: cudnnSetCTCLossDescriptor_v9, cudnnGetCTCLossDescriptor_v9."""

    _create = "cudnnCreateCTCLossDescriptor"
    _destroy = "cudnnDestroyCTCLossDescriptor"


class SeqDataDescriptor(GeneralDescriptor):
    """A batch of sequences for attention: cudnnSetSeqDataDescriptor, cudnnGetSeqDataDescriptor."""

    _create = "cudnnCreateSeqDataDescriptor"
    _destroy = "cudnnDestroySeqDataDescriptor"


class AttnDescriptor(GeneralDescriptor):
    """Multi-head attention: cudnnSetAttnDescriptor, cudnnGetAttnDescriptor."""

    _create = "cudnnCreateAttnDescriptor"
    _destroy = "cudnnDestroyAttnDescriptor"


class _FusedOps(GeneralDescriptor):
    def __init__(self, ops: Any) -> None:
        with self._created(enumerator(raw.cudnnFusedOps_t, ops, "ops")):
            pass


class FusedOpsConstParamPack(_FusedOps):
    """The fixed parameters of a fused operation: cudnnSetFusedOpsConstParamPackAttribute."""

    _create = "cudnnCreateFusedOpsConstParamPack"
    _destroy = "cudnnDestroyFusedOpsConstParamPack"


class FusedOpsVariantParamPack(_FusedOps):
    """The pointers of a fused operation: cudnnSetFusedOpsVariantParamPackAttribute."""

    _create = "cudnnCreateFusedOpsVariantParamPack"
    _destroy = "cudnnDestroyFusedOpsVariantParamPack"


class FusedOpsPlan(_FusedOps):
    """A fused operation ready to run: get("cudnnMakeFusedOpsPlan", handle, pack) returns its workspace's bytes."""

    _create = "cudnnCreateFusedOpsPlan"
    _destroy = "cudnnDestroyFusedOpsPlan"


def _nan(propagate: bool) -> raw.cudnnNanPropagation_t:
    if not isinstance(propagate, bool):
        raise TypeError(f"propagate_nan: expected True or False, not {propagate!r} ({type(propagate).__name__})")
    return raw.CUDNN_PROPAGATE_NAN if propagate else raw.CUDNN_NOT_PROPAGATE_NAN
