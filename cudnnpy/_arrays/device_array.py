"""DeviceArray, a plain array in device memory, for programs that use no other array library."""

from __future__ import annotations

from typing import Any

from cudnnpy._checks.option_values import check_option, check_shape
from cudnnpy._checks.public_dir import PublicDir
from cudnnpy._core.cuda_python import cuda_python
from cudnnpy._core.dtypes import Dtype, dtype_of, numpy_dtype
from cudnnpy._core.layouts import MEMORY_LAYOUTS, TensorSpec, byte_extent, packed_strides
from cudnnpy.handle import on_device
from cudnnpy.typing import Dtype as DtypeArgument
from cudnnpy.typing import MemoryLayout, Shape, SupportsHandle


class DeviceArray(PublicDir):
    """A plain array in device memory, for programs that use no other array library.

    `empty` and `to_device` make one; `to_numpy` copies it to the host. It supports DLPack and, for data types that
    NumPy has without extensions, the CUDA Array Interface. The memory is freed with the array, after the work queued on
    the legacy default stream.

    Examples
    --------
    >>> # on a GPU
    >>> import cudnnpy
    >>> array = cudnnpy.empty((2, 3), "float16")
    >>> type(array).__name__, array.shape, array.strides
    ('DeviceArray', (2, 3), (3, 1))
    """

    pointer: int  #: the address of the first element
    shape: tuple[int, ...]
    strides: tuple[int, ...]  #: in elements
    dtype: str  #: the name of the data type, as NumPy and ml_dtypes have it
    device: int  #: the ordinal of the device

    def __init__(
        self,
        buffer: SupportsHandle,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: DtypeArgument | Dtype,
        device: int,
        exported: str | None = None,
    ) -> None:
        canonical = dtype_of(dtype)
        self._exported = exported or canonical.name
        self._buffer = buffer
        self.pointer: int = int(buffer.handle)
        self.shape, self.strides, self.dtype, self.device = shape, strides, canonical.name, device
        self._signature = (shape, strides, canonical.name, device)

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype!r}, strides={self.strides}, device={self.device})"

    def __dlpack__(self, **options: object) -> object:
        """Return the DLPack capsule. Consumers wait for the work queued on the legacy default stream."""
        view = cuda_python("core.utils").StridedMemoryView
        exported = view.from_buffer(self._buffer, self.shape, self.strides, dtype=numpy_dtype(self._exported))
        capsule: object = exported.__dlpack__(**options)
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device  # kDLCUDA

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        dtype = dtype_of(self.dtype)
        if dtype.name.startswith(("bfloat", "float8")):
            raise AttributeError(f"the CUDA Array Interface has no name for {dtype.name}; use DLPack")
        return {
            "shape": self.shape,
            "typestr": numpy_dtype(dtype.name).str,
            "data": (self.pointer, False),
            "strides": tuple(stride * dtype.itemsize for stride in self.strides),
            "version": 3,
            "stream": 1,
        }


def allocate(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Dtype, device: int) -> DeviceArray:
    """Return a new, unfilled array, in the order of the legacy default stream. Raises MemoryError."""
    core = cuda_python("core")
    size = max(byte_extent(TensorSpec(shape, dtype.name, strides)), 1)
    try:
        with on_device(device):
            buffer = core.Device(device).memory_resource.allocate(size, stream=core.LEGACY_DEFAULT_STREAM)
    except Exception as error:
        if "OUT_OF_MEMORY" in str(error):
            raise MemoryError(f"device {device} cannot give {size} bytes for {dtype.name} of shape {shape}") from error
        raise
    return DeviceArray(buffer, shape, strides, dtype, device)


def empty(
    shape: Shape, dtype: DtypeArgument = "float32", *, layout: MemoryLayout = "C", device: int | None = None
) -> DeviceArray:
    """Return a new, unfilled array in device memory.

    Parameters
    ----------
    shape : sequence of ints
        The logical shape (N, C, spatial...).
    dtype : str or numpy.dtype
        The data type: a name, a NumPy dtype or a dtype of a framework.
    layout : {"C", "channels_last"}
        The memory format: "C" is row-major, "channels_last" has the channels as the fastest axis.
    device : int or None
        The ordinal of the device. None is the current device.

    Raises
    ------
    MemoryError
        If the device has too little free memory.
    TypeError, ValueError
        If an argument is invalid.

    Examples
    --------
    >>> # on a GPU
    >>> import cudnnpy
    >>> cudnnpy.empty((8, 3, 32, 32), "float16", layout="channels_last").strides  # in elements
    (3072, 1, 96, 3)
    """
    dims = check_shape("shape", shape, low=0)
    check_option("layout", layout, MEMORY_LAYOUTS)
    order = None if layout == "C" else [0, *range(2, len(dims)), 1]
    return allocate(dims, packed_strides(dims, order), dtype_of(dtype), current_device() if device is None else device)


def current_device() -> int:
    """Return the ordinal of the calling thread's current CUDA device. Raises NotInitializedError if there is none."""
    with on_device(None) as (ordinal, _):
        return ordinal


# Calls of the driver


def checked_result(result: tuple[Any, ...]) -> Any:
    """Return the value of a call of cuda.bindings.driver. Raises RuntimeError for an error of the driver."""
    driver = cuda_python("bindings.driver")
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"CUDA driver: {status.name} ({int(status)})")
    return values[0] if values else None


def synchronize(stream: int, device: int) -> None:
    """Wait until the work queued on a stream is done."""
    driver = cuda_python("bindings.driver")
    with on_device(device):
        checked_result(driver.cuStreamSynchronize(stream))
