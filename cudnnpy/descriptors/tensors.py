"""Tensors and filters: shapes, element types and how they lie in memory."""

from __future__ import annotations

from typing import Any

from cudnnpy import raw
from cudnnpy._core.descriptor import Descriptor
from cudnnpy._core.values import integers, shape_of
from cudnnpy.names import ElementType, data_type, enumerator, short_name
from cudnnpy.typing import Shape, TensorFormat

_MOST_DIMENSIONS = raw.CUDNN_DIM_MAX
_VECTORS = {raw.CUDNN_DATA_INT8x4: 4, raw.CUDNN_DATA_UINT8x4: 4, raw.CUDNN_DATA_INT8x32: 32}  # channels in an element


def _check_vectors(shape: tuple[int, ...], kind: raw.cudnnDataType_t, order: int) -> None:
    """cuDNN drops the channels of a filter that do not fill a vector."""
    length = _VECTORS.get(kind, 1)
    if order == raw.CUDNN_TENSOR_NCHW_VECT_C and len(shape) > 1 and shape[1] % length:
        raise ValueError(f"shape must have a multiple of {length} channels for vectors of {length}; got {shape[1]}")


class TensorDescriptor(Descriptor[raw.cudnnTensorDescriptor_t]):
    """A tensor's shape (N, C, spatial...), element type and strides.

    `strides` count elements, one for each dimension; without them the tensor is packed, as `format` says: "nchw" (the
    default), "nhwc" (channels last, the shape still N, C, spatial...) or "nchw_vect_c".
    C functions: cudnnSetTensor4dDescriptor[Ex] for four dimensions, cudnnSetTensorNdDescriptor[Ex] for others.
    """

    _create = "cudnnCreateTensorDescriptor"
    _destroy = "cudnnDestroyTensorDescriptor"

    def __init__(
        self,
        shape: Shape,
        dtype: ElementType = "float32",
        *,
        strides: Shape | None = None,
        format: TensorFormat | raw.cudnnTensorFormat_t | None = None,
    ) -> None:
        shape, kind = shape_of(shape), data_type(dtype)
        setter: tuple[Any, ...]
        if strides is None:
            order = enumerator(raw.cudnnTensorFormat_t, "nchw" if format is None else format, "format")
            _check_vectors(shape, kind, order)
            if len(shape) == 4:
                setter = "cudnnSetTensor4dDescriptor", order, kind, *shape
            else:
                setter = "cudnnSetTensorNdDescriptorEx", order, kind, len(shape), shape
        else:
            if format is not None:
                raise ValueError(f"format must be None where strides are passed; got {format!r}")
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


class FilterDescriptor(Descriptor[raw.cudnnFilterDescriptor_t]):
    """A filter's shape (K, C, spatial...), element type and format ("nchw", "nhwc" or "nchw_vect_c").

    C functions: cudnnSetFilter4dDescriptor for four dimensions, cudnnSetFilterNdDescriptor for others.
    """

    _create = "cudnnCreateFilterDescriptor"
    _destroy = "cudnnDestroyFilterDescriptor"

    def __init__(
        self,
        shape: Shape,
        dtype: ElementType = "float32",
        *,
        format: TensorFormat | raw.cudnnTensorFormat_t = "nchw",
    ) -> None:
        shape, kind = shape_of(shape), data_type(dtype)
        order = enumerator(raw.cudnnTensorFormat_t, format, "format")
        _check_vectors(shape, kind, order)
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
