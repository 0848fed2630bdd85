"""Types for annotations: the arguments of this package's functions and classes.

The aliases and protocols describe arguments; they are for editors, for type checkers and for code that wraps this
package. Nothing here is checked at run time by itself: each operation checks its arguments when it is made or called.

`ArrayT` types results. An operation that takes ``x: ArrayT`` and returns ``ArrayT`` returns an array of the library of
x: a `torch.Tensor` for a `torch.Tensor`, a `cupy.ndarray` for a `cupy.ndarray`. For arrays of a library that this package
does not know by name, new results are `cudnnpy.DeviceArray`.

Names that cuDNN defines are written in lower case here; the functions of `cudnnpy.descriptors` and the methods of `Graph`
take them in any case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, SupportsIndex, SupportsInt, TypeAlias, TypeVar

from cudnnpy import _enumerator_names

if TYPE_CHECKING:
    from ctypes import c_void_p

_IMPORTED = frozenset(globals())

# Arrays


class SupportsDLPack(Protocol):
    """An array that speaks DLPack: PyTorch, CuPy, JAX, cudnnpy.DeviceArray and others.

    The protocol has more, which libraries declare in different ways: keyword arguments, and `__dlpack_device__`. NumPy's
    arrays speak it as well; an operation on a device raises TypeError for them.
    """

    def __dlpack__(self) -> object:
        """The DLPack capsule."""
        ...


class SupportsCudaArrayInterface(Protocol):
    """An array that speaks the CUDA Array Interface: Numba, CuPy, PyTorch and others."""

    @property
    def __cuda_array_interface__(self) -> Mapping[str, Any]:
        """The address, shape, strides and data type."""
        ...


Array: TypeAlias = SupportsDLPack | SupportsCudaArrayInterface
"""A device array of any library."""

ArrayT = TypeVar("ArrayT", bound=Array)
"""The type of a device array; a result of this type is of the library of the argument of this type."""


class SupportsHandle(Protocol):
    """Device memory without a shape: cuda.core's Buffer."""

    @property
    def handle(self) -> SupportsInt:
        """The address."""
        ...


# Streams and devices


class SupportsCudaStream(Protocol):
    """A stream that speaks the `__cuda_stream__` protocol: cuda.core and PyTorch."""

    def __cuda_stream__(self) -> tuple[int, int]:
        """The protocol's version, 0, and the address of the cudaStream_t."""
        ...


class _TorchStream(Protocol):
    @property
    def cuda_stream(self) -> int: ...


class _CupyStream(Protocol):
    @property
    def ptr(self) -> int: ...


class _NumbaStream(Protocol):
    @property
    def handle(self) -> int | c_void_p: ...


Stream: TypeAlias = SupportsIndex | SupportsCudaStream | _TorchStream | _CupyStream | _NumbaStream
"""A CUDA stream: the address of a cudaStream_t, or a stream object of cuda.core, PyTorch, CuPy or Numba."""


class SupportsDeviceId(Protocol):
    """A device object: cuda.core's Device."""

    @property
    def device_id(self) -> int:
        """The ordinal."""
        ...


Device: TypeAlias = int | SupportsDeviceId
"""A CUDA device: its ordinal, or a device object of cuda.core."""


# Shapes and arguments for each spatial axis


class SupportsToList(Protocol):
    """A sequence of numbers that is not a Python sequence: a NumPy array of integers."""

    def tolist(self) -> Any:
        """The numbers as a list."""
        ...


Shape: TypeAlias = Iterable[SupportsIndex]
"""Sizes of the axes of an array: a tuple, a list, a torch.Size."""

PerAxis: TypeAlias = SupportsIndex | Sequence[SupportsIndex] | SupportsToList
"""An int for every spatial axis, or one int for each of them."""

PaddingName: TypeAlias = Literal["valid", "same", "half", "full"]
"""Paddings that are computed from the sizes of the image and the filter."""

Padding: TypeAlias = SupportsIndex | Sequence[SupportsIndex | Sequence[SupportsIndex]] | SupportsToList | PaddingName
"""An int for every spatial axis, one int or one (before, after) pair for each of them, or a PaddingName."""

Layout: TypeAlias = Literal["NCW", "NCHW", "NCDHW", "NWC", "NHWC", "NDHWC"]
"""The order of the axes of an array. "NCHW" and "NHWC" stand for any number of spatial axes."""

MemoryLayout: TypeAlias = Literal["C", "channels_last"]
"""The order of the elements of an array in memory, whatever the order of its axes."""


# Element types


class SupportsDtypeName(Protocol):
    """A dtype object with a name: NumPy's, which CuPy, JAX and Numba use as well."""

    @property
    def name(self) -> str:
        """The name: "float32"."""
        ...

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        ...


class _TorchDtype(Protocol):  # torch.dtype
    @property
    def is_floating_point(self) -> bool: ...

    @property
    def itemsize(self) -> int: ...


ElementName: TypeAlias = Literal[
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int8",
    "int32",
    "uint8",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e8m0fnu",
    "bool",
    "int64",
]
"""Element types of arrays, as a TensorSpec has them. Convolutions take the first nine; a Graph takes all."""

DtypeName: TypeAlias = Literal[
    ElementName, "double", "half", "fp64", "fp32", "fp16", "bf16", "float8_e4m3", "fp8_e4m3", "fp8_e5m2"
]
"""Element types of arrays, and aliases of some. The word "float" is none: NumPy and C mean different types by it."""

_DtypeObject: TypeAlias = SupportsDtypeName | _TorchDtype | type[Any]

Dtype: TypeAlias = DtypeName | _DtypeObject
"""A data type: its name, a NumPy dtype or scalar type, or a framework's dtype. Python's float is float64."""

ComputeDtype: TypeAlias = (
    Literal["float32", "float64", "float16", "int32", "double", "half", "fp64", "fp32", "fp16"] | _DtypeObject
)
"""The data type in which the products of a convolution are summed."""

DataType: TypeAlias = _enumerator_names.DataTypeName
"""cudnnDataType_t: the data types of tensor descriptors."""


# The choice of an algorithm


Preference: TypeAlias = Literal["fastest", "limited_workspace", "no_workspace", "autotune"]
"""How an algorithm is chosen."""

Policy: TypeAlias = Literal["on_shape_change", "once"]
"""When an algorithm is chosen again."""

ConvolutionOperation: TypeAlias = Literal["forward", "backward_data", "backward_filter"]
"""The operations of a convolution that are planned."""

ConvolutionAlgorithm: TypeAlias = Literal[
    "implicit_gemm",
    "implicit_precomp_gemm",
    "gemm",
    "direct",
    "fft",
    "fft_tiling",
    "winograd",
    "winograd_nonfused",
    "0",
    "1",
    "3",
    "none",
    "small",
    "large",
    "deterministic",
]
"""cudnnConvolutionFwdAlgo_t, cudnnConvolutionBwdDataAlgo_t and cudnnConvolutionBwdFilterAlgo_t, and Theano's names."""


# Modes of the operations

ConvolutionMode: TypeAlias = Literal["cross_correlation", "convolution"]
"""cudnnConvolutionMode_t: whether the filter is flipped ("convolution")."""

ConvolutionActivation: TypeAlias = Literal["identity", "relu", "sigmoid", "tanh", "elu", "swish"]
"""Activations of Convolution and ConvolutionTranspose."""

FusedActivation: TypeAlias = Literal["relu", "sigmoid", "tanh", "elu", "swish"]
"""Activations of FusedConvolution."""

ActivationMode: TypeAlias = _enumerator_names.ActivationModeName
"""cudnnActivationMode_t: the modes of Activation."""

CudnnPoolingMode: TypeAlias = Literal["max", "max_deterministic", "average_include_padding", "average_exclude_padding"]
"""cudnnPoolingMode_t: the modes of PoolingDescriptor."""

PoolingMode: TypeAlias = Literal[CudnnPoolingMode, "average_inc_pad", "average_exc_pad"]
"""The modes of Pooling: cuDNN's, and Theano's names of the averages."""

AttentionOperation: TypeAlias = Literal["forward", "backward"]
"""The operations of Attention."""

AttentionLayout: TypeAlias = Literal["BHSD", "BSHD"]
"""The orders of axes of Attention: batch, heads, sequence, head size."""

CausalMask: TypeAlias = bool | Literal["bottom_right"]
"""Whether Attention has a causal mask, and that it ends at the last key ("bottom_right")."""

SoftmaxAlgorithm: TypeAlias = _enumerator_names.SoftmaxAlgorithmName
"""cudnnSoftmaxAlgorithm_t: the algorithms of Softmax."""

SoftmaxMode: TypeAlias = Literal["channel", "instance"]
"""cudnnSoftmaxMode_t: the modes of Softmax."""

NormalizationMode: TypeAlias = Literal["spatial", "per_activation"]
"""cudnnBatchNormMode_t: the modes of BatchNormalization."""

NormalizationActivation: TypeAlias = Literal["relu"]
"""Activations of BatchNormalization."""

ReduceOperation: TypeAlias = _enumerator_names.ReduceTensorOpName
"""cudnnReduceTensorOp_t: the reductions of ReduceTensorDescriptor and Graph.reduction."""


# Names of other enumerators, for cudnnpy.descriptors and cudnnpy.Graph

TensorFormat: TypeAlias = _enumerator_names.TensorFormatName
"""cudnnTensorFormat_t: the memory format of a tensor or filter descriptor."""

MathType: TypeAlias = _enumerator_names.MathTypeName
"""cudnnMathType_t: which instructions a convolution descriptor allows."""

TensorOperation: TypeAlias = _enumerator_names.OpTensorOpName
"""cudnnOpTensorOp_t: the operations of OpTensorDescriptor."""

ReduceIndices: TypeAlias = _enumerator_names.ReduceTensorIndicesName
"""cudnnReduceTensorIndices_t: whether a minimum or maximum comes with its position."""

IndicesType: TypeAlias = _enumerator_names.IndicesTypeName
"""cudnnIndicesType_t: the integers that such a position is written in."""

FusedOperations: TypeAlias = _enumerator_names.FusedOpsName
"""cudnnFusedOps_t: the operations of FusedOpsPlan and its parameter packs."""

PointwiseMode: TypeAlias = _enumerator_names.PointwiseModeName
"""cudnnPointwiseMode_t: the elementwise operations of Graph.pointwise."""

ResampleMode: TypeAlias = _enumerator_names.ResampleModeName
"""cudnnResampleMode_t: the modes of Graph.resample."""

GraphNormalization: TypeAlias = _enumerator_names.BackendNormModeName
"""cudnnBackendNormMode_t: the modes of Graph.normalization."""

__all__ = sorted(name for name in globals().keys() - _IMPORTED if not name.startswith("_"))  # noqa: PLE0605


def __dir__() -> list[str]:
    return __all__
