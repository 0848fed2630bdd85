"""Adapters of array libraries: the functions that read and make the device arrays of each library.

PyTorch tensors are read by their own methods, which is the fastest way and the only one that supports float8. All other
arrays (CuPy, JAX, Numba, cuda.core views, DeviceArray) are read through cuda.core's StridedMemoryView, which supports
DLPack and the CUDA Array Interface. Strides count elements; addresses and streams are integers.

The current stream is the library's for PyTorch and CuPy, and the legacy default stream (0) for the others. JAX arrays are
futures: a call waits for them before it reads them, and completes a result before it becomes a JAX array.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from cudnnpy._arrays.device_array import DeviceArray, allocate, empty, synchronize
from cudnnpy._checks.numpy_conversions import numpy_conversion
from cudnnpy._core.cuda_python import can_load_driver, cuda_python, without_cuda
from cudnnpy._core.dtypes import Dtype, dtype_of, numpy_dtype
from cudnnpy._core.layouts import TensorSpec, has_same_layout, packed_strides, stride_order
from cudnnpy._process.cuda_state import NO_DRIVER
from cudnnpy._process.module_state import declare
from cudnnpy.errors import LibraryNotFoundError

# Array metadata: (shape, strides or None for C-contiguous, the dtype of the library, device).
ArrayMetadata = tuple[Any, Any, Any, int]


class ArrayLibrary(NamedTuple):
    """The functions that read and make the arrays of one library."""

    name: str
    read: Callable[[Any], tuple[int, ArrayMetadata]]
    current_stream: Callable[[int], int]
    # (shape, strides, dtype, device) -> a function without arguments that makes a new array
    maker: Callable[[tuple[int, ...], tuple[int, ...], Dtype, int], Callable[[], Any]]
    writable: Callable[[Any], bool]
    address: Callable[[Any], int]


_libraries: dict[type, ArrayLibrary] = {}

declare(__name__, "_libraries")


def library_of(array: Any, argument: str = "x") -> ArrayLibrary:
    """Return the library of a device array. Raises TypeError, naming the argument, for any other object."""
    array_type = type(array)
    library = _libraries.get(array_type)
    if library is None:
        library = _libraries[array_type] = _find_library(array, argument)
    return library


def check_writable(name: str, out: Any) -> None:
    """Raise ValueError if a result cannot be written."""
    if not library_of(out, name).writable(out):
        raise ValueError(f"{name} must be a writable array; got a read-only one")


def read(array: Any, argument: str) -> tuple[int, ArrayMetadata]:
    """Return the address and the metadata of a device array. Raises TypeError, naming the argument, for a host array."""
    pointer, signature = library_of(array, argument).read(array)
    if signature[3] < 0:
        raise TypeError(_host_array_text(array, argument, signature))
    return pointer, signature


def read_metadata(array: Any, argument: str) -> ArrayMetadata:
    """Return the metadata of an array on a device or on the host, whose elements are not read."""
    return library_of(array, argument).read(array)[1]


def _host_array_text(array: Any, argument: str, signature: ArrayMetadata) -> str:
    """Return the message for a host array. Without a driver it says so first, and advises no copy."""
    text = f"{argument} must be an array on a CUDA device; got a host array ({_describe(array)})"
    call = "" if type(array).__module__ == "numpy" else numpy_conversion("array", array)
    if not can_load_driver():
        like = spec_of(signature)
        is_packed = like.strides is None or like.strides == packed_strides(like.shape)
        strides = "" if is_packed else f", {like.strides}"
        spec = f"cudnnpy.TensorSpec({like.shape}, {like.dtype!r}{strides})"
        return f"{NO_DRIVER}. {text}. A plan takes {spec}{f', and the reference {call}' if call else ''}"
    return (
        f"{text}. Copy it with cudnnpy.to_device(array), or use the reference implementation on the CPU, cudnnpy.reference"
        f"{f', with {call}' if call else ''}"
    )


def spec_of(signature: ArrayMetadata, alignment: int = 16) -> TensorSpec:
    """Return array metadata as a TensorSpec."""
    shape, strides, dtype, _ = signature
    canonical = dtype_of(dtype)
    if strides is not None:
        # cuda.core gives a negative stride in bytes, divided as if it were unsigned
        wrap = 2**64 // canonical.itemsize
        strides = tuple(stride - wrap if stride > wrap // 2 else stride for stride in strides)
    return TensorSpec._make((tuple(shape), canonical.name, strides, alignment))  # checked where it is used, by its name


def _describe(array: Any) -> str:
    array_type = type(array)
    return (
        f"{array_type.__module__.split('.')[0]}.{array_type.__qualname__} of shape {tuple(getattr(array, 'shape', ()))}"
    )


def _find_library(array: Any, argument: str) -> ArrayLibrary:
    packages = [base.__module__.split(".")[0] for base in type(array).__mro__]
    for name, make in (("torch", _torch), ("cupy", _cupy), ("jax", _jax), ("jaxlib", _jax), ("numba", _numba)):
        if name in packages and name.removesuffix("lib") in sys.modules:
            return make()
    if isinstance(array, DeviceArray):
        return OWN
    if any(hasattr(array, name) for name in ("__dlpack__", "__cuda_array_interface__")):
        return _OTHER
    raise TypeError(
        f"{argument} must be a device array (PyTorch, CuPy, JAX, Numba, cudnnpy.to_device(...), or anything with "
        f"__dlpack__ or __cuda_array_interface__); got {array!r:.60}{_suggest_spec(array)}"
    )


def _suggest_spec(given: Any) -> str:
    """Return the end of the error for a TensorSpec where memory is needed, or for a shape where only the memory is not."""
    if isinstance(given, TensorSpec):
        return ". A TensorSpec has no memory: it is for plan, candidates and Graph.tensor"
    if isinstance(given, tuple | list) and given and all(type(size) is int for size in given):
        return f". To plan without an array, pass cudnnpy.TensorSpec({tuple(given)!r:.60}, dtype)"
    return ""


# Every other library, through StridedMemoryView


def _view(array: Any) -> Any:
    StridedMemoryView = cuda_python("core.utils").StridedMemoryView
    if isinstance(array, StridedMemoryView):
        return array
    return StridedMemoryView.from_any_interface(array, stream_ptr=-1)


def _read_view(array: Any) -> tuple[int, ArrayMetadata]:
    try:
        view = _view(array)
    except (BufferError, LibraryNotFoundError):  # DLPack lacks the data type, or cuda-python is missing
        if not _in_host_memory(array):
            raise
        return 0, (array.shape, None, str(array.dtype), -1)
    except Exception as error:
        raise without_cuda(error) from None
    return view.ptr, (view.shape, view.strides, view.dtype.name, view.device_id if view.is_device_accessible else -1)


def _in_host_memory(array: Any) -> bool:
    """Return whether the array is known to be in host memory, without reading it."""
    dlpack_device = getattr(array, "__dlpack_device__", None)
    return type(array).__module__ == "numpy" or (dlpack_device is not None and dlpack_device()[0] == 1)  # kDLCPU


def _address_of_view(array: Any) -> int:
    return int(_view(array).ptr)


def _default_stream(device: int) -> int:
    return 0


# PyTorch


def _torch() -> ArrayLibrary:
    torch: Any = sys.modules["torch"]

    def read_tensor(tensor: Any) -> tuple[int, ArrayMetadata]:
        return tensor.data_ptr(), (tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device())

    # Compiled PyTorch programs allocate with this function, always on the current device: a third of the cost
    fast_empty = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), "_empty_strided_cuda", None)

    def maker(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Dtype, device: int) -> Callable[[], Any]:
        torch_dtype = getattr(torch, dtype.name)
        empty = partial(torch.empty_strided, shape, strides, dtype=torch_dtype, device=torch.device("cuda", device))
        if fast_empty is None:
            return empty
        fast = partial(fast_empty, shape, strides, torch_dtype)
        if torch.cuda.device_count() == 1:
            return fast
        current_device = torch._C._cuda_getDevice
        return lambda: fast() if current_device() == device else empty()

    raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)

    def public_stream(device: int) -> int:
        return int(torch.cuda.current_stream(device).cuda_stream) if device >= 0 else 0

    return ArrayLibrary(
        "torch", read_tensor, raw_stream or public_stream, maker, lambda tensor: True, torch.Tensor.data_ptr
    )


# CuPy


def _cupy() -> ArrayLibrary:
    cupy: Any = sys.modules["cupy"]

    def maker(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Dtype, device: int) -> Callable[[], Any]:
        order = stride_order(strides)
        inverse = [order.index(axis) for axis in range(len(order))]
        memory_shape = tuple(shape[axis] for axis in order)
        element = numpy_dtype(dtype.name)

        def make() -> Any:
            with cupy.cuda.Device(device):
                return cupy.empty(memory_shape, element).transpose(inverse)

        return make

    def stream(device: int) -> int:
        return int(cupy.cuda.get_current_stream(device).ptr)

    return ArrayLibrary("cupy", _read_view, stream, maker, lambda array: True, lambda array: int(array.data.ptr))


# JAX


def _jax() -> ArrayLibrary:
    def read_array(array: Any) -> tuple[int, ArrayMetadata]:
        array.block_until_ready()
        if next(iter(array.devices())).platform == "cpu":
            return 0, (array.shape, None, array.dtype.name, -1)
        # JAX takes the stream literally: 1 is the legacy default stream, and -1 would be an error
        return _read_view(cuda_python("core.utils").StridedMemoryView.from_dlpack(array, stream_ptr=1))

    def maker(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Dtype, device: int) -> Callable[[], Any]:
        if not has_same_layout(TensorSpec(shape, strides=strides), TensorSpec(shape)):
            raise TypeError(
                "a result in JAX must be packed in C order, as all JAX arrays are; got another memory format"
            )
        return lambda: empty(shape, dtype, device=device)

    def address(array: Any) -> int:
        return OWN.address(array) if isinstance(array, DeviceArray) else read_array(array)[0]  # of an incomplete result

    return ArrayLibrary("jax", read_array, _default_stream, maker, lambda array: False, address)


def to_jax(array: Any, stream: int) -> Any:
    """Return a result as an array of JAX, once the work on `stream` is done."""
    synchronize(stream, array.device)
    jax = sys.modules["jax"]
    width = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}.get(array.dtype)
    if width is None:
        return jax.dlpack.from_dlpack(array)
    # cuda.core exports no type that NumPy lacks: integers are exported, and JAX views their bits as the type
    bits = DeviceArray(array._buffer, array.shape, array.strides, array.dtype, array.device, exported=width)
    return jax.dlpack.from_dlpack(bits).view(array.dtype)


# Numba


def _numba() -> ArrayLibrary:
    from numba import cuda

    def maker(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Dtype, device: int) -> Callable[[], Any]:
        element = numpy_dtype(dtype.name)
        byte_strides = tuple(stride * dtype.itemsize for stride in strides)

        def make() -> Any:
            with cuda.gpus[device]:
                return cuda.device_array(shape, element, strides=byte_strides)

        return make

    return ArrayLibrary("numba", _read_view, _default_stream, maker, lambda array: True, _address_of_view)


# DeviceArray, and any other library


OWN = ArrayLibrary(
    "cudnnpy",
    lambda array: (array.pointer, array._signature),
    _default_stream,
    lambda shape, strides, dtype, device: lambda: allocate(shape, strides, dtype, device),
    lambda array: True,
    lambda array: int(array.pointer),
)
_OTHER = ArrayLibrary(
    "other", _read_view, _default_stream, OWN.maker, lambda array: not _view(array).readonly, _address_of_view
)
