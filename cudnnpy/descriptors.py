"""A class for every descriptor of the C API below the graph API, and the choice of a v7 algorithm.

The descriptors of convolutions and simple layers are set when they are created. They do not change afterwards, except for the
math type that choose_algorithm sets; their properties read the values from C. The others are created empty, and are set and
read by C's names (GeneralDescriptor). Data types and modes are short names ("float32", "relu": see cudnnpy.names) or
enumerators of cudnnpy.raw, and are read back as short names. Values that C checks are not checked here: C rejects them with
BadParameterError or NotSupportedError.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_double, c_int, c_size_t
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

from cudnnpy import raw
from cudnnpy._arrays import workspace as memory
from cudnnpy._arrays.array_libraries import library_of, read, spec_of
from cudnnpy._checks.byte_counts import bytes_text
from cudnnpy._checks.option_values import check_channels, check_integer, check_option, error_repr
from cudnnpy._checks.preferences import PreferenceOptions
from cudnnpy._checks.public_dir import complete_module
from cudnnpy._checks.suggestions import explained
from cudnnpy._core.candidate_table import table
from cudnnpy._core.descriptor import Descriptor, GeneralDescriptor, by_axes, reading
from cudnnpy._core.driver import is_stream_or_torch_capturing
from cudnnpy._core.layouts import byte_extent, packed_strides
from cudnnpy._core.owned import Owned, PointerT
from cudnnpy._core.values import integer, integers, nan_propagation, to_c
from cudnnpy.errors import CaptureError, NoAlgorithmError
from cudnnpy.handle import Handle, on_device
from cudnnpy.names import ElementType, data_type, enumerator, short_name
from cudnnpy.typing import (
    ActivationMode,
    Array,
    ConvolutionMode,
    ConvolutionOperation,
    CudnnPoolingMode,
    FusedOperations,
    IndicesType,
    MathType,
    PerAxis,
    Preference,
    ReduceIndices,
    ReduceOperation,
    Shape,
    TensorFormat,
    TensorOperation,
)

__all__ = [
    "ActivationDescriptor",
    "AlgorithmCandidate",
    "AlgorithmChoice",
    "AttnDescriptor",
    "CTCLossDescriptor",
    "ConvolutionDescriptor",
    "DropoutDescriptor",
    "FilterDescriptor",
    "FusedOpsConstParamPack",
    "FusedOpsPlan",
    "FusedOpsVariantParamPack",
    "LRNDescriptor",
    "OpTensorDescriptor",
    "PoolingDescriptor",
    "RNNDataDescriptor",
    "RNNDescriptor",
    "ReduceTensorDescriptor",
    "SeqDataDescriptor",
    "SpatialTransformerDescriptor",
    "TensorDescriptor",
    "TensorTransformDescriptor",
    "choose_algorithm",
    "workspace_size",
]

# Tensors and filters

_MAX_DIMENSIONS = raw.CUDNN_DIM_MAX  # more crash cuDNN
_VECTOR_LENGTHS = {
    raw.CUDNN_DATA_INT8x4: 4,
    raw.CUDNN_DATA_UINT8x4: 4,
    raw.CUDNN_DATA_INT8x32: 32,
}  # channels of an element


def _check_vectors(shape: tuple[int, ...], dtype: raw.cudnnDataType_t, format: int) -> None:
    """Raise ValueError if the channels do not fill the vectors. cuDNN drops a filter's channels in a partial vector."""
    length = _VECTOR_LENGTHS.get(dtype, 1)
    if format == raw.CUDNN_TENSOR_NCHW_VECT_C and len(shape) > 1 and shape[1] % length:
        raise ValueError(f"shape must have a multiple of {length} channels for vectors of {length}; got {shape[1]}")


class TensorDescriptor(Descriptor[raw.cudnnTensorDescriptor_t]):
    """A tensor's shape, data type and strides.

    C functions: cudnnSetTensor4dDescriptor[Ex] for four dimensions, cudnnSetTensorNdDescriptor[Ex] for others.

    Parameters
    ----------
    shape : sequence of ints
        (N, C, spatial...).
    dtype : str, numpy.dtype or cudnnDataType_t
        The data type.
    strides : sequence of ints or None
        The strides in elements, one for each dimension. None is packed in `format`.
    format : str, cudnnTensorFormat_t or None
        "nchw" (the default), "nhwc" (channels last in memory; the shape is still N, C, spatial...) or "nchw_vect_c".

    Examples
    --------
    >>> from cudnnpy.descriptors import TensorDescriptor
    >>> TensorDescriptor((8, 3, 32, 32), "float16", format="nhwc").strides
    (3072, 1, 96, 3)
    """

    _reader = "cudnnGetTensorNdDescriptor", _MAX_DIMENSIONS

    def __init__(
        self,
        shape: Shape,
        dtype: ElementType = "float32",
        *,
        strides: Shape | None = None,
        format: TensorFormat | raw.cudnnTensorFormat_t | None = None,
    ) -> None:
        shape, data = integers(shape, "shape", most=_MAX_DIMENSIONS), data_type(dtype)
        if strides is None:
            layout = enumerator(raw.cudnnTensorFormat_t, "nchw" if format is None else format, "format")
            _check_vectors(shape, data, layout)
            setter = by_axes("cudnnSetTensor4dDescriptor", "cudnnSetTensorNdDescriptorEx", layout, data, shape)
        elif format is not None:
            raise ValueError(f"format must be None where strides are passed; got {format!r}")
        else:
            strides = integers(strides, "strides", len(shape))
            setter = by_axes("cudnnSetTensor4dDescriptorEx", "cudnnSetTensorNdDescriptor", data, shape, strides)
        self._make(setter)

    shape: tuple[int, ...] = reading("dimA", tuple, "(N, C, spatial...).")
    strides: tuple[int, ...] = reading("strideA", tuple, "The stride of each dimension in elements.")
    dtype: str = reading("dataType", short_name, "The name of the data type.")
    nbytes: int = reading(
        "size", int, "The byte extent: from the first element to the end of the last.", "cudnnGetTensorSizeInBytes"
    )


class FilterDescriptor(Descriptor[raw.cudnnFilterDescriptor_t]):
    """A filter's shape, data type and format.

    C functions: cudnnSetFilter4dDescriptor for four dimensions, cudnnSetFilterNdDescriptor for others.

    Parameters
    ----------
    shape : sequence of ints
        (K, C, spatial...).
    dtype : str, numpy.dtype or cudnnDataType_t
        The data type.
    format : str or cudnnTensorFormat_t
        "nchw", "nhwc" or "nchw_vect_c".

    Examples
    --------
    >>> from cudnnpy.descriptors import FilterDescriptor
    >>> FilterDescriptor((64, 3, 7, 7), "float16").shape
    (64, 3, 7, 7)
    """

    _reader = "cudnnGetFilterNdDescriptor", _MAX_DIMENSIONS

    def __init__(
        self,
        shape: Shape,
        dtype: ElementType = "float32",
        *,
        format: TensorFormat | raw.cudnnTensorFormat_t = "nchw",
    ) -> None:
        shape, data = integers(shape, "shape", most=_MAX_DIMENSIONS), data_type(dtype)
        layout = enumerator(raw.cudnnTensorFormat_t, format, "format")
        _check_vectors(shape, data, layout)
        self._make(by_axes("cudnnSetFilter4dDescriptor", "cudnnSetFilterNdDescriptor", data, layout, shape))

    shape: tuple[int, ...] = reading("filterDimA", tuple, "(K, C, spatial...).")
    dtype: str = reading("dataType", short_name, "The name of the data type.")
    format: str = reading("format", short_name, "The format of the filter.")
    nbytes: int = reading("size", int, "The size of the filter in bytes.", "cudnnGetFilterSizeInBytes")


# Convolutions

_MAX_SPATIAL_AXES = raw.CUDNN_DIM_MAX - 2


class ConvolutionDescriptor(Descriptor[raw.cudnnConvolutionDescriptor_t]):
    """A convolution's geometry, data type of computation and math type.

    C functions: cudnnSetConvolution2dDescriptor for two spatial dimensions, cudnnSetConvolutionNdDescriptor for others,
    cudnnSetConvolutionGroupCount, cudnnSetConvolutionMathType.

    Parameters
    ----------
    padding : sequence of ints
        The zeros on both sides of each spatial dimension.
    stride, dilation : int or sequence of ints
        One number for all spatial dimensions, or one for each.
    mode : str or cudnnConvolutionMode_t
        "cross_correlation", or "convolution", which flips the filter.
    compute_dtype : str, numpy.dtype or cudnnDataType_t
        The data type in which products are summed.
    groups : int
        The number of groups of channels.
    math_type : str or cudnnMathType_t
        "default_math", "tensor_op_math", "tensor_op_math_allow_conversion" or "fma_math".

    Examples
    --------
    >>> from cudnnpy.descriptors import ConvolutionDescriptor
    >>> convolution = ConvolutionDescriptor((1, 1), stride=2)
    >>> convolution.padding, convolution.stride
    ((1, 1), (2, 2))
    """

    _reader = "cudnnGetConvolutionNdDescriptor", _MAX_SPATIAL_AXES

    def __init__(
        self,
        padding: Shape,
        stride: PerAxis = 1,
        dilation: PerAxis = 1,
        *,
        mode: ConvolutionMode | raw.cudnnConvolutionMode_t = "cross_correlation",
        compute_dtype: ElementType = "float32",
        groups: int = 1,
        math_type: MathType | raw.cudnnMathType_t = "default_math",
    ) -> None:
        padding = integers(padding, "padding", most=_MAX_SPATIAL_AXES)
        geometry = padding, integers(stride, "stride", len(padding)), integers(dilation, "dilation", len(padding))
        arithmetic = (enumerator(raw.cudnnConvolutionMode_t, mode, "mode"), data_type(compute_dtype, "compute_dtype"))
        setters = "cudnnSetConvolution2dDescriptor", "cudnnSetConvolutionNdDescriptor"
        groups = integer(groups, "groups")
        math = enumerator(raw.cudnnMathType_t, math_type, "math_type")
        others = ("cudnnSetConvolutionGroupCount", groups), ("cudnnSetConvolutionMathType", math)
        self._make(by_axes(*setters, *geometry, *arithmetic), *others)

    padding: tuple[int, ...] = reading("padA", tuple, "The zeros on both sides of each spatial dimension.")
    stride: tuple[int, ...] = reading("strideA", tuple, "The step of the filter along each spatial dimension.")
    dilation: tuple[int, ...] = reading(
        "dilationA", tuple, "The distance between neighboring filter elements along each spatial dimension."
    )
    mode: str = reading("mode", short_name, '"cross_correlation" or "convolution".')
    compute_dtype: str = reading("computeType", short_name, "The data type in which products are summed.")
    groups: int = reading("groupCount", int, "The number of groups of channels.", "cudnnGetConvolutionGroupCount")
    math_type: str = reading(
        "mathType",
        short_name,
        "Whether tensor cores may be used, and inputs converted for them.",
        "cudnnGetConvolutionMathType",
    )

    def output_shape(self, x: TensorDescriptor, w: FilterDescriptor) -> tuple[int, ...]:
        """Return the shape of the result: cudnnGetConvolutionNdForwardOutputDim."""
        rank = len(self.padding) + 2
        return tuple(self.get("cudnnGetConvolutionNdForwardOutputDim", x, w, rank)["tensorOuputDimA"])


# Layers without weights


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
        of_swish = [] if beta is None else [("cudnnSetActivationDescriptorSwishBeta", beta)]
        self._make(("cudnnSetActivationDescriptor", activation, nan, coefficient), *of_swish)

    mode: str = reading("mode", short_name, "The activation.")
    coefficient: float = reading("coef", float, "The ceiling of the clipped ReLU, or the alpha of the ELU.")
    propagate_nan: bool = reading("reluNanOpt", bool, "Whether the ReLU of NaN is NaN.")
    swish_beta: float = reading("swish_beta", float, "The beta of the swish.", "cudnnGetActivationDescriptorSwishBeta")


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

    _reader = "cudnnGetPoolingNdDescriptor", _MAX_SPATIAL_AXES

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
        window = integers(window, "window", most=_MAX_SPATIAL_AXES)
        padding = integers(padding, "padding", len(window))
        stride = window if stride is None else integers(stride, "stride", len(window))
        setters = "cudnnSetPooling2dDescriptor", "cudnnSetPoolingNdDescriptor"
        self._make(by_axes(*setters, pooling, nan, window, padding, stride))

    mode: str = reading("mode", short_name, "The pooling mode.")
    propagate_nan: bool = reading("maxpoolingNanOpt", bool, "Whether the maximum over a NaN is NaN.")
    window: tuple[int, ...] = reading("windowDimA", tuple, "The size of the window along each spatial dimension.")
    padding: tuple[int, ...] = reading("paddingA", tuple, "The padding on both sides of each spatial dimension.")
    stride: tuple[int, ...] = reading("strideA", tuple, "The step of the window along each spatial dimension.")

    def output_shape(self, x: TensorDescriptor) -> tuple[int, ...]:
        """Return the shape of the result: cudnnGetPoolingNdForwardOutputDim."""
        return tuple(self.get("cudnnGetPoolingNdForwardOutputDim", x, len(self.window) + 2)["outputTensorDimA"])


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
        self._make(("cudnnSetLRNDescriptor", *numbers))

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


# Elementwise operations and reductions


class OpTensorDescriptor(Descriptor[raw.cudnnOpTensorDescriptor_t]):
    """An elementwise operation of cudnnOpTensor. C function: cudnnSetOpTensorDescriptor.

    Parameters
    ----------
    operation : str or cudnnOpTensorOp_t
        "add", "mul", "min", "max", "sqrt" or "not".
    compute_dtype : str, numpy.dtype or cudnnDataType_t
        The data type of the computation.
    propagate_nan : bool
        Whether the minimum or maximum of a NaN and a number is NaN.

    Examples
    --------
    >>> from cudnnpy.descriptors import OpTensorDescriptor
    >>> OpTensorDescriptor("add").operation
    'add'
    """

    _reader = ("cudnnGetOpTensorDescriptor",)

    def __init__(
        self,
        operation: TensorOperation | raw.cudnnOpTensorOp_t,
        *,
        compute_dtype: ElementType = "float32",
        propagate_nan: bool = False,
    ) -> None:
        op = enumerator(raw.cudnnOpTensorOp_t, operation, "operation")
        dtype, nan = data_type(compute_dtype, "compute_dtype"), nan_propagation(propagate_nan)
        self._make(("cudnnSetOpTensorDescriptor", op, dtype, nan))

    operation: str = reading("opTensorOp", short_name, "The operation.")
    compute_dtype: str = reading("opTensorCompType", short_name, "The data type of the computation.")
    propagate_nan: bool = reading(
        "opTensorNanOpt", bool, "Whether the minimum or maximum of a NaN and a number is NaN."
    )


class ReduceTensorDescriptor(Descriptor[raw.cudnnReduceTensorDescriptor_t]):
    """A reduction of cudnnReduceTensor. C function: cudnnSetReduceTensorDescriptor.

    Parameters
    ----------
    operation : str or cudnnReduceTensorOp_t
        "add", "mul", "min", "max", "amax", "avg", "norm1", "norm2" or "mul_no_zeros".
    compute_dtype : str, numpy.dtype or cudnnDataType_t
        The data type of the computation.
    propagate_nan : bool
        Whether the minimum or maximum over a NaN is NaN.
    indices : str or cudnnReduceTensorIndices_t
        "no_indices", or "flattened_indices" for the positions of minima or maxima.
    indices_type : str or cudnnIndicesType_t
        "32bit_indices", "64bit_indices", "16bit_indices" or "8bit_indices".

    Examples
    --------
    >>> from cudnnpy.descriptors import ReduceTensorDescriptor
    >>> ReduceTensorDescriptor("add").operation
    'add'
    """

    _reader = ("cudnnGetReduceTensorDescriptor",)

    def __init__(
        self,
        operation: ReduceOperation | raw.cudnnReduceTensorOp_t,
        *,
        compute_dtype: ElementType = "float32",
        propagate_nan: bool = False,
        indices: ReduceIndices | raw.cudnnReduceTensorIndices_t = "no_indices",
        indices_type: IndicesType | raw.cudnnIndicesType_t = "32bit_indices",
    ) -> None:
        arguments = (
            enumerator(raw.cudnnReduceTensorOp_t, operation, "operation"),
            data_type(compute_dtype, "compute_dtype"),
            nan_propagation(propagate_nan),
            enumerator(raw.cudnnReduceTensorIndices_t, indices, "indices"),
            enumerator(raw.cudnnIndicesType_t, indices_type, "indices_type"),
        )
        self._make(("cudnnSetReduceTensorDescriptor", *arguments))

    operation: str = reading("reduceTensorOp", short_name, "The reduction.")
    compute_dtype: str = reading("reduceTensorCompType", short_name, "The data type of the computation.")
    propagate_nan: bool = reading("reduceTensorNanOpt", bool, "Whether the minimum or maximum over a NaN is NaN.")
    indices: str = reading("reduceTensorIndices", short_name, "Whether the positions of minima or maxima are returned.")
    indices_type: str = reading("reduceTensorIndicesType", short_name, "The integer type of the positions.")


# Descriptors that are created empty, and set and read by C's names


class TensorTransformDescriptor(GeneralDescriptor[raw.cudnnTensorTransformDescriptor_t]):
    """A transform of cudnnTransformTensorEx: cudnnSetTensorTransformDescriptor, cudnnGetTensorTransformDescriptor.

    Examples
    --------
    >>> from cudnnpy.descriptors import TensorTransformDescriptor
    >>> with TensorTransformDescriptor() as transform:
    ...     transform.closed
    False
    """

    _reader = "cudnnGetTensorTransformDescriptor", raw.CUDNN_DIM_MAX


class SpatialTransformerDescriptor(GeneralDescriptor[raw.cudnnSpatialTransformerDescriptor_t]):
    """A spatial transformer: cudnnSetSpatialTransformerNdDescriptor.

    Examples
    --------
    >>> from cudnnpy.descriptors import SpatialTransformerDescriptor
    >>> with SpatialTransformerDescriptor() as descriptor:  # descriptor.set("cudnnSet...", ...) sets it
    ...     descriptor.closed
    False
    """


class RNNDescriptor(GeneralDescriptor[raw.cudnnRNNDescriptor_t]):
    """A recurrent neural network: cudnnSetRNNDescriptor_v8, cudnnGetRNNDescriptor_v8, cudnnRNNSetClip_v9.

    Examples
    --------
    >>> from cudnnpy.descriptors import RNNDescriptor
    >>> with RNNDescriptor() as descriptor:  # descriptor.set("cudnnSet...", ...) sets it
    ...     descriptor.closed
    False
    """

    _reader = ("cudnnGetRNNDescriptor_v8",)


class RNNDataDescriptor(GeneralDescriptor[raw.cudnnRNNDataDescriptor_t]):
    """A batch of sequences for a recurrent neural network: cudnnSetRNNDataDescriptor, cudnnGetRNNDataDescriptor.

    Examples
    --------
    >>> from cudnnpy.descriptors import RNNDataDescriptor
    >>> with RNNDataDescriptor() as descriptor:  # descriptor.set("cudnnSet...", ...) sets it
    ...     descriptor.closed
    False
    """

    _reader = "cudnnGetRNNDataDescriptor", 0, (c_double * 1)()  # C writes the padding value there


class CTCLossDescriptor(GeneralDescriptor[raw.cudnnCTCLossDescriptor_t]):
    """A CTC loss: cudnnSetCTCLossDescriptor_v9, cudnnGetCTCLossDescriptor_v9.

    Examples
    --------
    >>> from cudnnpy.descriptors import CTCLossDescriptor
    >>> with CTCLossDescriptor() as descriptor:  # descriptor.set("cudnnSet...", ...) sets it
    ...     descriptor.closed
    False
    """

    _reader = ("cudnnGetCTCLossDescriptor_v9",)


class SeqDataDescriptor(GeneralDescriptor[raw.cudnnSeqDataDescriptor_t]):
    """A batch of sequences for attention: cudnnSetSeqDataDescriptor, cudnnGetSeqDataDescriptor.

    Examples
    --------
    >>> from cudnnpy.descriptors import SeqDataDescriptor
    >>> with SeqDataDescriptor() as descriptor:  # descriptor.set("cudnnSet...", ...) sets it
    ...     descriptor.closed
    False
    """

    _reader = "cudnnGetSeqDataDescriptor", raw.CUDNN_SEQDATA_DIM_COUNT, 0, None


class AttnDescriptor(GeneralDescriptor[raw.cudnnAttnDescriptor_t]):
    """Multi-head attention: cudnnSetAttnDescriptor, cudnnGetAttnDescriptor.

    Examples
    --------
    >>> from cudnnpy.descriptors import AttnDescriptor
    >>> with AttnDescriptor() as descriptor:  # descriptor.set("cudnnSet...", ...) sets it
    ...     descriptor.closed
    False
    """

    _reader = ("cudnnGetAttnDescriptor",)


class _FusedOps(GeneralDescriptor[PointerT]):
    def __init__(self, ops: FusedOperations | raw.cudnnFusedOps_t) -> None:
        with self._created(enumerator(raw.cudnnFusedOps_t, ops, "ops")):
            pass


class FusedOpsConstParamPack(_FusedOps[raw.cudnnFusedOpsConstParamPack_t]):
    """The constant parameters of a fused operation: cudnnSetFusedOpsConstParamPackAttribute.

    Examples
    --------
    >>> from cudnnpy.descriptors import FusedOpsConstParamPack
    >>> with FusedOpsConstParamPack("scale_bias_activation_conv_bnstats") as owner:
    ...     owner.closed
    False
    """


class FusedOpsVariantParamPack(_FusedOps[raw.cudnnFusedOpsVariantParamPack_t]):
    """The pointers of a fused operation: cudnnSetFusedOpsVariantParamPackAttribute.

    Examples
    --------
    >>> from cudnnpy.descriptors import FusedOpsVariantParamPack
    >>> with FusedOpsVariantParamPack("scale_bias_activation_conv_bnstats") as owner:
    ...     owner.closed
    False
    """


class FusedOpsPlan(_FusedOps[raw.cudnnFusedOpsPlan_t]):
    """A fused operation that is ready to run.

    get("cudnnMakeFusedOpsPlan", handle, pack) prepares it, and returns the size of its workspace in bytes.

    Examples
    --------
    >>> from cudnnpy.descriptors import FusedOpsPlan
    >>> with FusedOpsPlan("scale_bias_activation_conv_bnstats") as owner:
    ...     owner.closed
    False
    """


# The choice of a v7 algorithm

Algorithm: TypeAlias = (
    raw.cudnnConvolutionFwdAlgo_t | raw.cudnnConvolutionBwdDataAlgo_t | raw.cudnnConvolutionBwdFilterAlgo_t
)
Tensor: TypeAlias = TensorDescriptor | raw.cudnnTensorDescriptor_t
Filter: TypeAlias = FilterDescriptor | raw.cudnnFilterDescriptor_t
Convolution: TypeAlias = ConvolutionDescriptor | raw.cudnnConvolutionDescriptor_t
_OwnedT = TypeVar("_OwnedT", bound=Owned[Any])
_FLOATS = ("float16", "bfloat16", "float32", "float64")


class _ConvolutionFunctions(NamedTuple):
    """The C functions of a convolution operation."""

    direction: str  # in the names of the functions
    algorithms: type[Algorithm]
    operands: str  # x, w and y in the order of the functions; the last is written
    nondeterministic: str = ""  # the digits of nondeterministic algorithms

    def function(self, name: str) -> str:
        """Return the name of a function: cudnnConvolutionForward of "cudnnConvolution{}"."""
        return name.format(self.direction)


FUNCTIONS = {
    "forward": _ConvolutionFunctions("Forward", raw.cudnnConvolutionFwdAlgo_t, "xwy"),
    "backward_data": _ConvolutionFunctions("BackwardData", raw.cudnnConvolutionBwdDataAlgo_t, "wyx", "0"),
    "backward_filter": _ConvolutionFunctions("BackwardFilter", raw.cudnnConvolutionBwdFilterAlgo_t, "xyw", "03"),
}


def permitted_math(dtype: str, *, tf32: bool) -> raw.cudnnMathType_t:
    """Return the least restrictive math type for the data type of x and `tf32`."""
    if dtype == "float32" and not tf32:
        return raw.CUDNN_FMA_MATH
    return raw.CUDNN_TENSOR_OP_MATH if dtype in ("float16", "bfloat16") else raw.CUDNN_DEFAULT_MATH


@dataclass(frozen=True)
class AlgorithmCandidate:
    """A v7 algorithm with a math type, and the reason if it is rejected. `cudnnpy.candidates_table` shows several.

    Examples
    --------
    >>> # on a GPU
    >>> from cudnnpy.descriptors import ConvolutionDescriptor, FilterDescriptor, TensorDescriptor, choose_algorithm
    >>> x, w, convolution = TensorDescriptor((8, 64, 28, 28)), FilterDescriptor((64, 64, 3, 3)), ConvolutionDescriptor((1, 1))
    >>> first, *_ = choose_algorithm("forward", x, w, convolution, x).candidates
    >>> first.workspace_size >= 0
    True
    """

    algorithm: Algorithm  #: cuDNN's enumerator
    math_type: raw.cudnnMathType_t  #: the math type that the algorithm requires
    workspace_size: int  #: in bytes
    deterministic: bool  #: whether the result has the same bits every time
    time: float | None  #: the measured time in milliseconds; None if it was not measured
    status: int  #: raw.CUDNN_STATUS_SUCCESS if cuDNN supports the algorithm here
    rejection_reason: str  #: "" if the algorithm can be used
    name: str  #: the short name of the algorithm
    notes: tuple[str]  #: the short name of the math type
    source: str  #: "legacy", as of v7 algorithms in `cudnnpy.Candidate`

    @property
    def milliseconds(self) -> float | None:
        """`time`, as `cudnnpy.Candidate` calls it."""
        return self.time


@dataclass(frozen=True)
class AlgorithmChoice:
    """The algorithm that `choose_algorithm` chose. Its math type has been set on the convolution descriptor.

    Examples
    --------
    >>> # on a GPU
    >>> from cudnnpy.descriptors import ConvolutionDescriptor, FilterDescriptor, TensorDescriptor, choose_algorithm
    >>> x, w, convolution = TensorDescriptor((8, 64, 28, 28)), FilterDescriptor((64, 64, 3, 3)), ConvolutionDescriptor((1, 1))
    >>> choice = choose_algorithm("forward", x, w, convolution, x)
    >>> choice.algorithm in [candidate.algorithm for candidate in choice.candidates]
    True
    """

    algorithm: Algorithm  #: cuDNN's enumerator
    math_type: raw.cudnnMathType_t  #: the math type that the algorithm requires
    workspace_size: int  #: in bytes
    deterministic: bool  #: whether the result has the same bits every time
    time: float | None  #: the measured time in milliseconds; None if it was not measured
    candidates: tuple[AlgorithmCandidate, ...]  #: every algorithm with every math type, in cuDNN's order


@explained
def choose_algorithm(
    operation: ConvolutionOperation,
    x: Tensor,
    w: Filter,
    convolution: Convolution,
    y: Tensor,
    *,
    prefer: Preference = "fastest",
    workspace_limit: int | None = None,
    deterministic: bool = False,
    tf32: bool = True,
    handle: Handle | raw.cudnnHandle_t | None = None,
    arrays: Sequence[Array | int] | None = None,
    workspace: Array | None = None,
) -> AlgorithmChoice:
    """Choose an algorithm of cudnnConvolutionForward, -BackwardData or -BackwardFilter, and set its math type.

    The first candidate that meets the options is chosen, in the order of cudnnGetConvolution...Algorithm_v7, or for "autotune"
    of cudnnFindConvolution...AlgorithmEx, which runs every algorithm in the process of the caller.

    Parameters
    ----------
    operation : {"forward", "backward_data", "backward_filter"}
        The operation.
    x, w, convolution, y : descriptors or raw handles
        The image or dx, the filter or dw, the convolution, and the result of forward or dy. The math type of the convolution
        descriptor is ignored.
    prefer : {"fastest", "limited_workspace", "no_workspace", "autotune"}
        How to choose.
    workspace_limit : int or None
        The largest workspace in bytes. None is 1 GiB for "limited_workspace", and no limit for "fastest" and "autotune".
    deterministic, tf32 : bool
        Whether every result must have the same bits, and whether float32 may be rounded to tf32.
    handle : Handle, cudnnHandle_t or None
        "autotune" runs on its stream; the device of a cudnnHandle_t must be current. None is the calling thread's Handle for
        the current device, on the default stream.
    arrays : sequence of three device arrays or addresses, or None
        Memory of x, w and y for "autotune". The memory of the operation's result is overwritten. The size behind an address is
        not checked. None allocates the memory as workspace is allocated, and frees it.
    workspace : device array or None
        Memory for the workspace of "autotune", which is overwritten. None allocates and frees it.

    Raises
    ------
    cudnnpy.NoAlgorithmError
        If no candidate meets the options. After every error the descriptor has its previous math type.
    TypeError, ValueError
        If an argument is invalid, or the descriptors are inconsistent.
    MemoryError, CaptureError
        If "autotune" cannot allocate x, w and y, or a stream is being captured.

    Examples
    --------
    >>> # on a GPU
    >>> from cudnnpy.descriptors import ConvolutionDescriptor, FilterDescriptor, TensorDescriptor, choose_algorithm
    >>> x, w, convolution = TensorDescriptor((8, 64, 28, 28)), FilterDescriptor((64, 64, 3, 3)), ConvolutionDescriptor((1, 1))
    >>> choose_algorithm("forward", x, w, convolution, x, prefer="no_workspace").workspace_size
    0
    """
    functions = FUNCTIONS[check_option("operation", operation, tuple(FUNCTIONS))]
    options = dict[str, Any](prefer=prefer, workspace_limit=workspace_limit, deterministic=deterministic, tf32=tf32)
    limit = PreferenceOptions(**options)._permitted_workspace()
    for name, value in (("arrays", arrays), ("workspace", workspace)):
        if value is not None and prefer != "autotune":
            raise ValueError(f"{name} must be None unless prefer is 'autotune'; got {error_repr(value)}")
    tensors = _tensors(x, w, convolution, y)
    target, device = _handle(handle)
    previous = tensors.convolution.get("cudnnGetConvolutionMathType")["mathType"]
    permitted = permitted_math(tensors.x.dtype, tf32=tf32)
    with on_device(device) as (device, _):
        try:
            raw.call("cudnnSetConvolutionMathType", tensors.convolution, permitted)
            if prefer == "autotune":
                with memory.trim_pool_afterwards(device, target.stream):
                    results = _search(functions, target, tensors, device, limit, arrays, workspace)
            else:
                results = _heuristics(functions, target, tensors)
            candidates = tuple(_candidate(functions, result, permitted, deterministic, limit) for result in results)
            chosen = next((candidate for candidate in candidates if not candidate.rejection_reason), None)
            if chosen is None:
                requested = ", ".join(f"{name}={value!r}" for name, value in options.items())
                problem = f"{operation} of {tensors.x}, {tensors.w}, {tensors.convolution}, {tensors.y}"
                raise NoAlgorithmError(problem, requested, table(candidates), candidates)
            raw.call("cudnnSetConvolutionMathType", tensors.convolution, chosen.math_type)
        except BaseException:
            raw.call("cudnnSetConvolutionMathType", tensors.convolution, previous)
            raise
    return AlgorithmChoice(
        chosen.algorithm, chosen.math_type, chosen.workspace_size, chosen.deterministic, chosen.time, candidates
    )


@explained
def workspace_size(
    operation: ConvolutionOperation,
    x: Tensor,
    w: Filter,
    convolution: Convolution,
    y: Tensor,
    algorithm: Algorithm | str,
    *,
    handle: Handle | raw.cudnnHandle_t | None = None,
) -> int:
    """Return the workspace in bytes of an algorithm with the math type of the convolution descriptor.

    C functions: cudnnGetConvolution...WorkspaceSize. `algorithm` is cuDNN's enumerator or its short name; the other arguments
    and their errors are the same as in `choose_algorithm`. Raises StatusError if cuDNN does not support the algorithm.

    Examples
    --------
    >>> # on a GPU
    >>> from cudnnpy.descriptors import ConvolutionDescriptor, FilterDescriptor, TensorDescriptor, workspace_size
    >>> x, w, convolution = TensorDescriptor((8, 64, 28, 28)), FilterDescriptor((64, 64, 3, 3)), ConvolutionDescriptor((1, 1))
    >>> workspace_size("forward", x, w, convolution, x, "implicit_gemm") >= 0
    True
    """
    functions = FUNCTIONS[check_option("operation", operation, tuple(FUNCTIONS))]
    number = enumerator(functions.algorithms, algorithm, "algorithm")
    tensors = _tensors(x, w, convolution, y)
    (target, device), size = _handle(handle), c_size_t()
    with on_device(device):
        name = functions.function("cudnnGetConvolution{}WorkspaceSize")
        raw.call(name, target, *tensors.ordered(functions), number, byref(size))
    return size.value


class _Tensors(NamedTuple):
    x: TensorDescriptor
    w: FilterDescriptor
    convolution: ConvolutionDescriptor
    y: TensorDescriptor

    def ordered(self, functions: _ConvolutionFunctions) -> tuple[Any, Any, ConvolutionDescriptor, Any]:
        """Return the descriptors in the order of C."""
        first, second, last = (getattr(self, role) for role in functions.operands)
        return first, second, self.convolution, last


def _tensors(x: object, w: object, convolution: object, y: object) -> _Tensors:
    """Return the descriptors. Raises TypeError or ValueError if they are inconsistent."""
    owners: tuple[type[Any], ...] = (TensorDescriptor, FilterDescriptor, ConvolutionDescriptor, TensorDescriptor)
    arguments = zip(owners, (x, w, convolution, y), _Tensors._fields, strict=True)
    tensors = _Tensors(*(_borrowed(owner, value, name) for owner, value, name in arguments))
    x_shape, w_shape, y_shape = tensors.x.shape, tensors.w.shape, tensors.y.shape
    ranks = {"w": len(w_shape), "convolution": len(tensors.convolution.padding) + 2, "y": len(y_shape)}
    for name, rank in ranks.items():
        if rank != len(x_shape):
            raise ValueError(f"{name} must have N, C and the spatial dimensions of x, {x_shape}; got {rank} dimensions")
    for name, dtype in (("w", tensors.w.dtype), ("y", tensors.y.dtype)):
        if dtype != tensors.x.dtype and tensors.x.dtype in _FLOATS:  # C combines integers with several types
            raise TypeError(f"{name} must be {tensors.x.dtype}, as x; got {dtype}")
    check_channels(x_shape, w_shape, tensors.convolution.groups)
    expected = tensors.convolution.output_shape(tensors.x, tensors.w)
    if y_shape != expected:
        raise ValueError(f"y must have shape {expected}, the result of the convolution; got shape {y_shape}")
    return tensors


def _borrowed(owner: type[_OwnedT], value: object, argument: str) -> _OwnedT:
    """Return an owner of a C object. The owner of a raw handle does not destroy it. Raises ClosedError, too."""
    name = raw.parameters(owner._create)[0][1].removesuffix(" *")
    pointer = to_c(name, value, argument)
    if not pointer:
        raise (TypeError if value is None else ValueError)(
            f"{argument} must be a {name} that is not NULL; got {error_repr(value)}"
        )
    if isinstance(value, owner):
        return value
    borrowed = owner.__new__(owner)
    borrowed._pointer = borrowed._as_parameter_ = pointer
    return borrowed


def _handle(value: object) -> tuple[Handle, int | None]:
    """Return the handle and its device; None is the current device."""
    if value is None:
        value = Handle.default()
        value.set_stream(None)
    handle = _borrowed(Handle, value, "handle")
    return handle, getattr(handle, "_device", None)


def _results(
    name: str, functions: _ConvolutionFunctions, handle: Handle, *arguments: Any, memory: tuple[Any, ...] = ()
) -> list[Any]:
    """Return the structs that a Get or Find function fills in."""
    count = c_int()
    raw.call(functions.function("cudnnGetConvolution{}AlgorithmMaxCount"), handle, byref(count))
    results = (getattr(raw, functions.algorithms.__name__.replace("Algo_t", "AlgoPerf_t")) * count.value)()
    raw.call(functions.function(name), handle, *arguments, len(results), byref(count), results, *memory)
    filled: list[Any] = results[: count.value]
    return filled


def _heuristics(functions: _ConvolutionFunctions, handle: Handle, tensors: _Tensors) -> list[Any]:
    return _results("cudnnGetConvolution{}Algorithm_v7", functions, handle, *tensors.ordered(functions))


def _search(
    functions: _ConvolutionFunctions,
    handle: Handle,
    tensors: _Tensors,
    device: int,
    limit: int | None,
    arrays: Any,
    workspace: Any,
) -> list[Any]:
    """Return cuDNN's measurements of all algorithms. Allocated memory is freed with its owner, on return."""
    stream = handle.stream
    if is_stream_or_torch_capturing(stream):  # the search would invalidate the capture
        raise CaptureError("choose_algorithm: a stream is being captured; choose before the capture, which is intact")
    if not (arrays is None or (isinstance(arrays, tuple | list) and len(arrays) == 3)):
        raise ValueError(f"arrays must be three device arrays or addresses, of x, w and y; got {error_repr(arrays)}")
    operand_memory, space = {}, None if workspace is None else _array_memory(workspace, "workspace", device)
    for index, role in enumerate("xwy"):
        size, name = getattr(tensors, role).nbytes, f"arrays[{index}]"
        operand_memory[role] = (
            memory.allocate(size, device, stream)
            if arrays is None
            else _array_memory(arrays[index], name, device, size)
        )
    result = functions.operands[-1]
    array = operand_memory[result][2]
    if arrays is not None and not isinstance(array, int) and not library_of(array).writable(array):
        raise ValueError(f"arrays[{'xwy'.index(result)}] must be a writable array; got a read-only one")
    if space is None:
        sizes = {result.memory for result in _heuristics(functions, handle, tensors) if not result.status}
        for size in sorted((size for size in sizes if limit is None or size <= limit), reverse=True):
            try:
                space = memory.allocate(size, device, stream) if size else None
            except MemoryError:
                continue
            break
    address, size, _ = space or (None, 0, None)
    size = size if limit is None else min(size, limit)
    first, second, convolution, last = tensors.ordered(functions)
    a, b, c = (operand_memory[role][0] for role in functions.operands)
    operands = (first, a, second, b, convolution, last, c)
    return _results("cudnnFindConvolution{}AlgorithmEx", functions, handle, *operands, memory=(address, size))


def _array_memory(array: Any, argument: str, device: int, min_size: int = 0) -> tuple[int, int, Any]:
    """Return the address, the bytes and the owner of an array, or of an address. Raises TypeError or ValueError."""
    if min_size and isinstance(array, int):
        expected = "a device array, or an address other than 0"
        return check_integer(argument, array, 1, (1 << 64) - 1, expected=expected), min_size, array
    address, signature = read(array, argument)
    if signature[3] != device:
        raise ValueError(f"{argument} must be on device {device}, as the handle; got device {signature[3]}")
    spec = spec_of(signature)
    size = byte_extent(spec if spec.strides is not None else spec._replace(strides=packed_strides(spec.shape)))
    if size < min_size:
        raise ValueError(f"{argument} must have {min_size} bytes, as its descriptor; got {size}")
    return address, size, array


def _candidate(
    functions: _ConvolutionFunctions,
    result: Any,
    permitted: raw.cudnnMathType_t,
    deterministic: bool,
    limit: int | None,
) -> AlgorithmCandidate:
    """Return a result of Get or Find as a candidate, with its rejection reason."""
    reason, algorithm, math_type = "", functions.algorithms(result.algo), raw.cudnnMathType_t(result.mathType)
    if result.status:
        known = (status.name for status in raw.cudnnStatus_t if status == result.status)
        reason = f"not supported here: {next(known, 'an unknown status')} ({int(result.status)})"
    elif deterministic and result.determinism != raw.CUDNN_DETERMINISTIC:
        reason = "not deterministic"
    elif permitted == raw.CUDNN_FMA_MATH and math_type != raw.CUDNN_FMA_MATH:
        reason = "uses tf32"
    elif limit is not None and result.memory > limit:
        reason = f"needs {bytes_text(result.memory)}, the limit is {bytes_text(limit)}"
    return AlgorithmCandidate(
        algorithm,
        math_type,
        result.memory,
        result.determinism == raw.CUDNN_DETERMINISTIC,
        result.time if result.time >= 0 and not result.status else None,
        int(result.status),
        reason,
        short_name(algorithm),
        (short_name(math_type),),
        "legacy",
    )


complete_module(globals())
