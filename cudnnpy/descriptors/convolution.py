"""ConvolutionDescriptor: a convolution's geometry, data type of computation and math type."""

from __future__ import annotations

from typing import Any

from cudnnpy import raw
from cudnnpy._core.descriptor import Descriptor
from cudnnpy._core.values import integer, integers
from cudnnpy.descriptors.tensors import FilterDescriptor, TensorDescriptor
from cudnnpy.names import ElementType, data_type, enumerator, short_name
from cudnnpy.typing import ConvolutionMode, MathType, PerAxis, Shape

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

    _create = "cudnnCreateConvolutionDescriptor"
    _destroy = "cudnnDestroyConvolutionDescriptor"

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
        read = self.get("cudnnGetConvolutionNdDescriptor", _MAX_SPATIAL_AXES)
        value = read[name]
        return value[: read["arrayLength"]] if isinstance(value, tuple) else value

    @property
    def padding(self) -> tuple[int, ...]:
        """The zeros on both sides of each spatial dimension."""
        return tuple(self._read("padA"))

    @property
    def stride(self) -> tuple[int, ...]:
        """The step of the filter along each spatial dimension."""
        return tuple(self._read("strideA"))

    @property
    def dilation(self) -> tuple[int, ...]:
        """The distance between neighboring filter elements along each spatial dimension."""
        return tuple(self._read("dilationA"))

    @property
    def mode(self) -> str:
        """ "cross_correlation" or "convolution"."""
        return short_name(self._read("mode"))

    @property
    def compute_dtype(self) -> str:
        """The data type in which products are summed."""
        return short_name(self._read("computeType"))

    @property
    def groups(self) -> int:
        """The number of groups of channels."""
        return int(self.get("cudnnGetConvolutionGroupCount")["groupCount"])

    @property
    def math_type(self) -> str:
        """Whether tensor cores may be used, and inputs converted for them."""
        return short_name(self.get("cudnnGetConvolutionMathType")["mathType"])

    def output_shape(self, x: TensorDescriptor, w: FilterDescriptor) -> tuple[int, ...]:
        """Return the shape of the result: cudnnGetConvolutionNdForwardOutputDim."""
        rank = len(self.padding) + 2
        return tuple(self.get("cudnnGetConvolutionNdForwardOutputDim", x, w, rank)["tensorOuputDimA"])
