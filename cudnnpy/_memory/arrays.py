"""Device arrays of any library: their address, shape, strides and stream; and new arrays in the same library.

PyTorch tensors are read by their own methods (the fastest way, and the only one that knows float8); everything else
(CuPy, JAX, Numba, cuda.core views, DeviceArray) through cuda.core's StridedMemoryView, which speaks DLPack and the CUDA
Array Interface. Strides count elements; addresses and streams are integers.

What each library's "current stream" is: PyTorch's and CuPy's own; the legacy default stream (0) for the others. JAX
arrays are futures: they are waited for before they are read, and a result is complete before it becomes a JAX array.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple

from cudnnpy._core.dtypes import Dtype, dtype_of
from cudnnpy._core.layouts import MEMORY_LAYOUTS, TensorSpec, memory_order, packed_strides
from cudnnpy._core.validation import check_option
from cudnnpy._cuda_python import cuda_python
from cudnnpy._installation import with_extra
from cudnnpy.errors import LibraryNotFoundError
from cudnnpy.handle import on_device
from cudnnpy.typing import Array, MemoryLayout, Shape, SupportsHandle
from cudnnpy.typing import Dtype as DtypeArgument

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

# What tells two arrays apart for planning: (shape, strides or None for C-contiguous, the library's own dtype, device).
Signature = tuple[Any, Any, Any, int]


class ArrayLibrary(NamedTuple):
    """How one library's arrays are read and made."""

    name: str
    read: Callable[[Any], tuple[int, Signature]]
    current_stream: Callable[[int], int]
    # (shape, strides, dtype, device, stream) -> a function without arguments that makes a new array
    maker: Callable[[tuple[int, ...], tuple[int, ...], Dtype, int], Callable[[], Any]]
    writable: Callable[[Any], bool]
    address: Callable[[Any], int]


_libraries: dict[type, ArrayLibrary] = {}


def library_of(array: Any, argument: str = "x") -> ArrayLibrary:
    """The library of a device array. Raises TypeError, naming the argument, for anything else."""
    kind = type(array)
    known = _libraries.get(kind)
    if known is None:
        known = _libraries[kind] = _find_library(array, argument)
    return known


def read(array: Any, argument: str) -> tuple[int, Signature]:
    """The address and the signature of a device array; TypeError, naming the argument, for a host array."""
    pointer, signature = library_of(array, argument).read(array)
    if signature[3] < 0:
        raise TypeError(
            f"{argument} must be an array on a CUDA device; got a host array ({_describe(array)}). "
            "Copy it with cudnnpy.to_device(array), or use the reference implementation on the CPU, cudnnpy.reference"
        )
    return pointer, signature


def spec_of(signature: Signature, alignment: int = 16) -> TensorSpec:
    """A signature in plain terms."""
    shape, strides, dtype, _ = signature
    kind = dtype_of(dtype)
    if strides is not None:
        # cuda.core gives a negative stride in bytes, divided as if it were unsigned
        wrap = 2**64 // kind.itemsize
        strides = tuple(stride - wrap if stride > wrap // 2 else stride for stride in strides)
    return TensorSpec(tuple(shape), kind.name, strides, alignment)


def _describe(array: Any) -> str:
    kind = type(array)
    return f"{kind.__module__.split('.')[0]}.{kind.__qualname__} of shape {tuple(getattr(array, 'shape', ()))}"


def _find_library(array: Any, argument: str) -> ArrayLibrary:
    kinds = [kind.__module__.split(".")[0] for kind in type(array).__mro__]
    for name, make in (("torch", _torch), ("cupy", _cupy), ("jax", _jax), ("jaxlib", _jax), ("numba", _numba)):
        if name in kinds and name.removesuffix("lib") in sys.modules:
            return make()
    if isinstance(array, DeviceArray):
        return OWN
    if any(hasattr(array, name) for name in ("__dlpack__", "__cuda_array_interface__")):
        return _OTHER
    raise TypeError(
        f"{argument} must be a device array (PyTorch, CuPy, JAX, Numba, cudnnpy.to_device(...), or anything with "
        f"__dlpack__ or __cuda_array_interface__); got {array!r:.60}"
    )


# Any library, through StridedMemoryView


def _view(array: Any) -> Any:
    StridedMemoryView = cuda_python("core.utils").StridedMemoryView
    if isinstance(array, StridedMemoryView):
        return array
    return StridedMemoryView.from_any_interface(array, stream_ptr=-1)


def _read_view(array: Any) -> tuple[int, Signature]:
    try:
        view = _view(array)
    except (BufferError, LibraryNotFoundError):  # a type that DLPack cannot tell; no cuda-python
        if not _in_host_memory(array):
            raise
        return 0, (array.shape, None, str(array.dtype), -1)
    return view.ptr, (view.shape, view.strides, view.dtype.name, view.device_id if view.is_device_accessible else -1)


def _in_host_memory(array: Any) -> bool:
    """Whether that can be told without reading the array."""
    ask = getattr(array, "__dlpack_device__", None)
    return type(array).__module__ == "numpy" or (ask is not None and ask()[0] == 1)  # kDLCPU


def _address_of_view(array: Any) -> int:
    return int(_view(array).ptr)


def _default_stream(device: int) -> int:
    return 0


# PyTorch


def _torch() -> ArrayLibrary:
    torch: Any = sys.modules["torch"]

    def read_tensor(tensor: Any) -> tuple[int, Signature]:
        return tensor.data_ptr(), (tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device())

    # What compiled PyTorch programs allocate with: a third of the cost, always on the current device
    fast = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), "_empty_strided_cuda", None)

    def maker(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Dtype, device: int) -> Callable[[], Any]:
        kind = getattr(torch, dtype.name)
        if fast is not None and torch.cuda.device_count() == 1:
            return partial(fast, shape, strides, kind)
        return partial(torch.empty_strided, shape, strides, dtype=kind, device=torch.device("cuda", device))

    raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)

    def public(device: int) -> int:
        return int(torch.cuda.current_stream(device).cuda_stream) if device >= 0 else 0

    return ArrayLibrary("torch", read_tensor, raw_stream or public, maker, lambda tensor: True, torch.Tensor.data_ptr)


# CuPy


def _cupy() -> ArrayLibrary:
    cupy: Any = sys.modules["cupy"]

    def maker(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Dtype, device: int) -> Callable[[], Any]:
        order = memory_order(strides)
        inverse = [order.index(axis) for axis in range(len(order))]
        memory_shape = tuple(shape[axis] for axis in order)
        kind = _numpy_dtype(dtype)

        def make() -> Any:
            with cupy.cuda.Device(device):
                return cupy.empty(memory_shape, kind).transpose(inverse)

        return make

    def stream(device: int) -> int:
        return int(cupy.cuda.get_current_stream(device).ptr)

    return ArrayLibrary("cupy", _read_view, stream, maker, lambda array: True, lambda array: int(array.data.ptr))


# JAX


def _jax() -> ArrayLibrary:
    def read_array(array: Any) -> tuple[int, Signature]:
        array.block_until_ready()
        if next(iter(array.devices())).platform == "cpu":
            return 0, (array.shape, None, array.dtype.name, -1)
        # JAX takes a stream to wait on literally: 1 is the legacy default stream, and -1 would be an error
        return _read_view(cuda_python("core.utils").StridedMemoryView.from_dlpack(array, stream_ptr=1))

    def maker(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Dtype, device: int) -> Callable[[], Any]:
        if strides != packed_strides(shape):
            raise TypeError(
                "a result in JAX must be packed in C order, as all JAX arrays are; got another memory order"
            )
        return lambda: empty(shape, dtype, device=device)

    return ArrayLibrary(
        "jax", read_array, _default_stream, maker, lambda array: False, lambda array: read_array(array)[0]
    )


def finish(library: ArrayLibrary, array: Any, stream: int) -> Any:
    """What the caller gets for an array that `library.maker` made, once the work on `stream` is queued."""
    if library.name != "jax":
        return array
    synchronize(stream, array.device)
    jax = sys.modules["jax"]
    width = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}.get(array.dtype)
    if width is None:
        return jax.dlpack.from_dlpack(array)
    # cuda.core exports no type that NumPy lacks: hand the bits over, and name them in JAX
    bits = DeviceArray(array._buffer, array.shape, array.strides, array.dtype, array.device, exported=width)
    return jax.dlpack.from_dlpack(bits).view(array.dtype)


# Numba


def _numba() -> ArrayLibrary:
    from numba import cuda

    def maker(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Dtype, device: int) -> Callable[[], Any]:
        kind = _numpy_dtype(dtype)
        byte_strides = tuple(stride * dtype.itemsize for stride in strides)

        def make() -> Any:
            with cuda.gpus[device]:
                return cuda.device_array(shape, kind, strides=byte_strides)

        return make

    return ArrayLibrary("numba", _read_view, _default_stream, maker, lambda array: True, _address_of_view)


# Our own


class DeviceArray:
    """A plain array in device memory, for programs that use no other library: see to_device, to_numpy and empty.

    It speaks DLPack and (for element types that NumPy knows by itself) the CUDA Array Interface. The memory is freed
    with the array, after the work queued on the legacy default stream.
    """

    pointer: int  #: the address of the first element
    shape: tuple[int, ...]
    strides: tuple[int, ...]  #: in elements
    dtype: str  #: the name of the element type, as NumPy and ml_dtypes have it
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
        kind = dtype_of(dtype)
        self._exported = exported or kind.name
        self._buffer = buffer
        self.pointer: int = int(buffer.handle)
        self.shape, self.strides, self.dtype, self.device = shape, strides, kind.name, device
        self._signature: Signature = (shape, strides, kind.name, device)

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype!r}, strides={self.strides}, device={self.device})"

    def _as_view(self) -> Any:
        from cuda.core.utils import StridedMemoryView

        return StridedMemoryView.from_buffer(
            self._buffer, self.shape, self.strides, dtype=_numpy_dtype_named(self._exported)
        )

    def __dlpack__(self, **options: object) -> object:
        """The DLPack capsule. Work queued on the legacy default stream is waited for by consumers that follow it."""
        return self._as_view().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device  # kDLCUDA

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        dtype = dtype_of(self.dtype)
        if dtype.name.startswith(("bfloat", "float8")):
            raise AttributeError(f"the CUDA Array Interface has no name for {dtype.name}; use DLPack")
        return {
            "shape": self.shape,
            "typestr": _numpy_dtype(dtype).str,
            "data": (self.pointer, False),
            "strides": tuple(stride * dtype.itemsize for stride in self.strides),
            "version": 3,
            "stream": 1,
        }


OWN = ArrayLibrary(
    "cudnnpy",
    lambda array: (array.pointer, array._signature),
    _default_stream,
    lambda shape, strides, dtype, device: lambda: _allocate(shape, strides, dtype, device),
    lambda array: True,
    lambda array: int(array.pointer),
)
_OTHER = ArrayLibrary(
    "other", _read_view, _default_stream, OWN.maker, lambda array: not _view(array).readonly, _address_of_view
)


def _numpy_dtype(dtype: Dtype) -> Any:
    return _numpy_dtype_named(dtype.name)


def _numpy_dtype_named(name: str) -> Any:
    import numpy as np

    if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        try:
            import ml_dtypes
        except ImportError:
            advice = f"Install it: pip install {with_extra('dtypes')}"
            raise LibraryNotFoundError(
                f"NumPy has {name} from the package ml-dtypes, which is missing", advice
            ) from None
        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)


def _allocate(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Dtype, device: int) -> DeviceArray:
    core = cuda_python("core")
    count = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if all(shape) else 0
    size = max(count * dtype.itemsize, 1)
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
    """A new, unfilled array in device memory.

    `shape` is logical (N, C, spatial...); `layout` is the order in memory: "C" (as the shape says), or "channels_last".
    `device` is an ordinal, by default the current device.
    """
    try:
        dims = tuple(index(size) for size in shape)
    except TypeError:
        raise TypeError(f"shape must be a sequence of integers; got {shape!r}") from None
    if any(size < 0 for size in dims):
        raise ValueError(f"shape must have sizes of 0 or more; got {dims}")
    check_option("layout", layout, MEMORY_LAYOUTS)
    order = None if layout == "C" else [0, *range(2, len(dims)), 1]
    return _allocate(dims, packed_strides(dims, order), dtype_of(dtype), current_device() if device is None else device)


def current_device() -> int:
    """The ordinal of the calling thread's current CUDA device. Raises NotInitializedError where there is none."""
    with on_device(None) as (ordinal, _):
        return ordinal


def _driver(result: tuple[Any, ...]) -> Any:
    """The value of a cuda.bindings driver call, or its error as an exception."""
    from cuda.bindings import driver

    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"CUDA driver: {status.name} ({int(status)})")
    return values[0] if values else None


def synchronize(stream: int, device: int) -> None:
    """Waits for the work queued on a stream."""
    driver = cuda_python("bindings.driver")
    with on_device(device):
        _driver(driver.cuStreamSynchronize(stream))


def to_device(array: ArrayLike, dtype: DtypeArgument | None = None, *, device: int | None = None) -> DeviceArray:
    """A copy of a NumPy array (or of what numpy.asarray takes) in device memory, with the same memory order.

    `dtype` converts first. The copy is complete when the call returns.
    """
    import numpy as np

    host = np.asarray(array)
    kind = dtype_of(host.dtype if dtype is None else dtype)
    host = host.astype(_numpy_dtype(kind), copy=False)
    order = memory_order(tuple(abs(stride) for stride in host.strides))
    packed = np.ascontiguousarray(host.transpose(order))
    target = _allocate(
        host.shape, packed_strides(host.shape, order), kind, current_device() if device is None else device
    )
    if host.size:
        driver = cuda_python("bindings.driver")
        with on_device(target.device):
            _driver(driver.cuMemcpyHtoDAsync(target.pointer, packed.ctypes.data, packed.nbytes, 0))
            _driver(driver.cuStreamSynchronize(0))
    return target


def to_numpy(array: Array) -> NDArray[Any]:
    """A copy of any device array as a NumPy array (ml_dtypes for bfloat16 and float8), with the same memory order.

    Waits for the work queued on the array library's current stream.
    """
    import numpy as np

    library = library_of(array, "array")
    pointer, signature = read(array, "array")
    spec = spec_of(signature)
    kind = dtype_of(spec.dtype)
    strides = spec.strides if spec.strides is not None else packed_strides(spec.shape)
    if any(stride < 0 for stride in strides):
        raise ValueError(f"array must have strides of 0 or more; got strides {strides}")
    synchronize(library.current_stream(signature[3]), signature[3])
    if 0 in spec.shape:
        return np.empty(spec.shape, _numpy_dtype(kind))
    count = 1 + sum((size - 1) * stride for size, stride in zip(spec.shape, strides, strict=True))
    flat = np.empty(count, _numpy_dtype(kind))
    driver = cuda_python("bindings.driver")
    with on_device(signature[3]):
        _driver(driver.cuMemcpyDtoHAsync(flat.ctypes.data, pointer, flat.nbytes, 0))
        _driver(driver.cuStreamSynchronize(0))
    byte_strides = tuple(stride * kind.itemsize for stride in strides)
    return np.ndarray(spec.shape, flat.dtype, flat, strides=byte_strides).copy(order="K")
