"""Copies between the host and the device: `to_device`, and `to_numpy` for the arrays of every library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnnpy._arrays.array_libraries import library_of, read, spec_of
from cudnnpy._arrays.device_array import DeviceArray, allocate, checked_result, current_device, synchronize
from cudnnpy._core.cuda_python import cuda_python
from cudnnpy._core.dtypes import Dtype, dtype_of, numpy_dtype
from cudnnpy._core.layouts import TensorSpec, byte_extent, packed_strides, stride_order
from cudnnpy.handle import on_device
from cudnnpy.typing import Array
from cudnnpy.typing import Dtype as DtypeArgument

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def to_device(array: ArrayLike, dtype: DtypeArgument | None = None, *, device: int | None = None) -> DeviceArray:
    """Return a copy of a host array in device memory, with the same stride order.

    The copy is complete when the call returns.

    Parameters
    ----------
    array : array_like
        A NumPy array, or anything that `numpy.asarray` takes.
    dtype : str, numpy.dtype or None
        The data type of the copy. None is the array's.
    device : int or None
        The ordinal of the device. None is the current device.

    Returns
    -------
    DeviceArray

    Raises
    ------
    MemoryError
        If the device has too little free memory.
    TypeError
        If cuDNN has no such data type.

    Examples
    --------
    >>> # on a GPU
    >>> import numpy as np
    >>> import cudnnpy
    >>> cudnnpy.to_device(np.zeros((2, 3)), "float16").shape
    (2, 3)
    """
    import numpy as np

    host = np.asarray(array)
    canonical = dtype_of(host.dtype if dtype is None else dtype)
    order = stride_order(tuple(abs(stride) for stride in host.strides))
    strides = packed_strides(host.shape, order)
    return copy_with_strides(host, canonical, strides, current_device() if device is None else device)


def copy_with_strides(host: NDArray[Any], dtype: Dtype, strides: tuple[int, ...], device: int) -> DeviceArray:
    """Return a copy of a host array in device memory, with strides in elements. Gaps are 0."""
    import numpy as np

    target = allocate(host.shape, strides, dtype, device)
    if host.size:
        size = byte_extent(TensorSpec(host.shape, dtype.name, strides))
        flat = np.zeros(size // dtype.itemsize, numpy_dtype(dtype.name))
        np.ndarray(host.shape, flat.dtype, flat, strides=tuple(one * dtype.itemsize for one in strides))[...] = host
        driver = cuda_python("bindings.driver")
        with on_device(device):
            checked_result(driver.cuMemcpyHtoDAsync(target.pointer, flat.ctypes.data, flat.nbytes, 0))
            checked_result(driver.cuStreamSynchronize(0))
    return target


def to_numpy(array: Array) -> NDArray[Any]:
    """Return a copy of a device array as a NumPy array, with the same stride order. A NumPy array is returned itself.

    Work queued on the current stream of the array's library is completed first.

    Parameters
    ----------
    array : array
        A device array of any library, or a NumPy array.

    Returns
    -------
    numpy.ndarray
        bfloat16 and float8 are data types of ml_dtypes.

    Raises
    ------
    TypeError
        If the array is another library's in host memory, or is not an array.
    ValueError
        If a stride is negative.

    Examples
    --------
    >>> # on a GPU
    >>> import numpy as np
    >>> import cudnnpy
    >>> cudnnpy.to_numpy(cudnnpy.to_device(np.array([1.0, 2.0], np.float32))).tolist()
    [1.0, 2.0]
    """
    import numpy as np

    if isinstance(array, np.ndarray):
        return array
    library = library_of(array, "array")
    pointer, signature = read(array, "array")
    spec = spec_of(signature)
    canonical = dtype_of(spec.dtype)
    strides = spec.strides if spec.strides is not None else packed_strides(spec.shape)
    if any(stride < 0 for stride in strides):
        raise ValueError(f"array must have strides of 0 or more; got strides {strides}")
    synchronize(library.current_stream(signature[3]), signature[3])
    if 0 in spec.shape:
        return np.empty(spec.shape, numpy_dtype(canonical.name))
    flat = np.empty(byte_extent(spec._replace(strides=strides)) // canonical.itemsize, numpy_dtype(canonical.name))
    driver = cuda_python("bindings.driver")
    with on_device(signature[3]):
        checked_result(driver.cuMemcpyDtoHAsync(flat.ctypes.data, pointer, flat.nbytes, 0))
        checked_result(driver.cuStreamSynchronize(0))
    byte_strides = tuple(stride * canonical.itemsize for stride in strides)
    return np.ndarray(spec.shape, flat.dtype, flat, strides=byte_strides).copy(order="K")
