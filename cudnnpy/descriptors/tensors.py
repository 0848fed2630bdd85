"""Descriptors of tensors and filters: shapes, data types, strides and formats."""

from __future__ import annotations

from typing import Any

from cudnnpy import raw
from cudnnpy._core.descriptor import Descriptor, reading
from cudnnpy._core.values import integers, shape_of
from cudnnpy.names import ElementType, data_type, enumerator, short_name
from cudnnpy.typing import Shape, TensorFormat

_MAX_DIMENSIONS = raw.CUDNN_DIM_MAX
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
        shape, data = shape_of(shape), data_type(dtype)
        setter: tuple[Any, ...]
        if strides is None:
            layout = enumerator(raw.cudnnTensorFormat_t, "nchw" if format is None else format, "format")
            _check_vectors(shape, data, layout)
            if len(shape) == 4:
                setter = "cudnnSetTensor4dDescriptor", layout, data, *shape
            else:
                setter = "cudnnSetTensorNdDescriptorEx", layout, data, len(shape), shape
        else:
            if format is not None:
                raise ValueError(f"format must be None where strides are passed; got {format!r}")
            strides = integers(strides, "strides", len(shape))
            if len(shape) == 4:
                setter = "cudnnSetTensor4dDescriptorEx", data, *shape, *strides
            else:
                setter = "cudnnSetTensorNdDescriptor", data, len(shape), shape, strides
        with self._created():
            self._set(*setter)

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, C, spatial...)."""
        read = self._read()
        return tuple(read["dimA"][: read["nbDims"]])

    @property
    def strides(self) -> tuple[int, ...]:
        """The stride of each dimension in elements."""
        read = self._read()
        return tuple(read["strideA"][: read["nbDims"]])

    dtype: str = reading("dataType", short_name, "The name of the data type.")

    @property
    def nbytes(self) -> int:
        """The byte extent: from the first element to the end of the last."""
        return int(self.get("cudnnGetTensorSizeInBytes")["size"])


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
        shape, data = shape_of(shape), data_type(dtype)
        layout = enumerator(raw.cudnnTensorFormat_t, format, "format")
        _check_vectors(shape, data, layout)
        with self._created():
            if len(shape) == 4:
                self._set("cudnnSetFilter4dDescriptor", data, layout, *shape)
            else:
                self._set("cudnnSetFilterNdDescriptor", data, layout, len(shape), shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """(K, C, spatial...)."""
        read = self._read()
        return tuple(read["filterDimA"][: read["nbDims"]])

    dtype: str = reading("dataType", short_name, "The name of the data type.")
    format: str = reading("format", short_name, "The format of the filter.")

    @property
    def nbytes(self) -> int:
        """The size of the filter in bytes."""
        return int(self.get("cudnnGetFilterSizeInBytes")["size"])
