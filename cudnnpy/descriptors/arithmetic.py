"""Descriptors of elementwise operations and reductions of tensors."""

from __future__ import annotations

from cudnnpy import raw
from cudnnpy._core.descriptor import Descriptor, reading
from cudnnpy._core.values import nan_propagation
from cudnnpy.names import ElementType, data_type, enumerator, short_name
from cudnnpy.typing import IndicesType, ReduceIndices, ReduceOperation, TensorOperation


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
        with self._created():
            self._set("cudnnSetOpTensorDescriptor", op, dtype, nan)

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
        with self._created():
            self._set("cudnnSetReduceTensorDescriptor", *arguments)

    operation: str = reading("reduceTensorOp", short_name, "The reduction.")
    compute_dtype: str = reading("reduceTensorCompType", short_name, "The data type of the computation.")
    propagate_nan: bool = reading("reduceTensorNanOpt", bool, "Whether the minimum or maximum over a NaN is NaN.")
    indices: str = reading("reduceTensorIndices", short_name, "Whether the positions of minima or maxima are returned.")
    indices_type: str = reading("reduceTensorIndicesType", short_name, "The integer type of the positions.")
