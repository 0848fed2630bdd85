"""ConvolutionDescriptor: a convolution's geometry, data type of computation and math type."""

from __future__ import annotations

from typing import Any

from cudnnpy import raw
from cudnnpy._core.descriptor import Descriptor, reading
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
        groups = integer(groups, "groups")
        math = enumerator(raw.cudnnMathType_t, math_type, "math_type")
        with self._created():
            if len(padding) == 2:
                self._set("cudnnSetConvolution2dDescriptor", *(n for pair in geometry for n in pair), *arithmetic)
            else:
                self._set("cudnnSetConvolutionNdDescriptor", len(padding), *geometry, *arithmetic)
            self._set("cudnnSetConvolutionGroupCount", groups)
            self._set("cudnnSetConvolutionMathType", math)

    def _read(self) -> dict[str, Any]:
        read = super()._read()
        count = read["arrayLength"]
        return {name: value[:count] if isinstance(value, tuple) else value for name, value in read.items()}

    padding: tuple[int, ...] = reading("padA", tuple, "The zeros on both sides of each spatial dimension.")
    stride: tuple[int, ...] = reading("strideA", tuple, "The step of the filter along each spatial dimension.")
    dilation: tuple[int, ...] = reading(
        "dilationA", tuple, "The distance between neighboring filter elements along each spatial dimension."
    )
    mode: str = reading("mode", short_name, '"cross_correlation" or "convolution".')
    compute_dtype: str = reading("computeType", short_name, "The data type in which products are summed.")

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
