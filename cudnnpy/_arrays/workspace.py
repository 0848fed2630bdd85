"""Workspace: device memory that an operation uses while it runs, and how long it stays, also for captured launches.

Each thread has one buffer for each device and stream, which grows on demand and is shared by all operations there. It
comes from cuda.core's stream-ordered pool, or from the allocator of a framework (`set_allocator`). Work on one stream
runs in order, so that the next operation may use the same bytes. An outgrown buffer is freed in stream order, after the
work that uses it. Buffers of a stream capture belong to its CUDA graph and are not freed, because the graph uses them again.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from cudnnpy._arrays.array_libraries import read
from cudnnpy._arrays.device_array import checked_result
from cudnnpy._checks.option_values import check_flag, error_repr
from cudnnpy._core.cuda_python import cuda_python
from cudnnpy._core.driver import is_capturing, is_stream_or_torch_capturing, relaxed_capture
from cudnnpy._process.module_state import declare
from cudnnpy.handle import on_device
from cudnnpy.typing import Array, SupportsHandle

# Unused bytes that a pool may hold after a search. Most searches need less, so that none of them maps memory again, which takes
# milliseconds.
_POOL_RESERVE_BYTES = 1 << 30


class Allocator(Protocol):
    """The type of an allocator: a function of (size in bytes, device ordinal, stream address).

    It returns a device array or buffer of at least that size: torch.empty, cupy.empty, a cuda.core Buffer. The memory
    may be reused after the last reference to it is gone, but not before the work queued on the stream is done.
    """

    def __call__(self, size: int, device: int, stream: int, /) -> Array | SupportsHandle:
        """Return device memory of at least `size` bytes, for use on the stream."""


_allocator: Allocator | None = None
_generation = 0
_captured: list[Any] = []
_constants: dict[tuple[int, int, int], tuple[int, int, Any]] = {}
_of_thread = threading.local()  # .buffers and the .generation that they are of
_pools: set[int] = set()  # devices whose pool has allocated memory
_when_short: list[Callable[[], None]] = []

declare(__name__, "_allocator", "_generation", "_captured", "_constants", "_of_thread", "_pools")
declare(__name__, "_when_short", resets=False)


def call_when_short(action: Callable[[], None]) -> None:
    """Register an action that frees device memory. `release_workspace` and `ask_for_memory` call it."""
    _when_short.append(action)


def ask_for_memory() -> None:
    """Call the actions that free device memory."""
    for action in _when_short:
        action()


def set_allocator(allocator: Allocator | None) -> None:
    """Set the allocator of workspace.

        cudnnpy.set_allocator(lambda size, device, stream: torch.empty(size, dtype=torch.uint8, device=device))

    Parameters
    ----------
    allocator : Allocator or None
        A function of (size in bytes, device ordinal, stream address) that returns a device array or buffer of at least
        that size. None is cuda.core's stream-ordered pool, the default. Where memory is exhausted, the allocator
        raises MemoryError or the OutOfMemoryError of its library.

    Raises
    ------
    TypeError
        If the allocator cannot be called with three arguments.

    Examples
    --------
    >>> # on a GPU
    >>> import cudnnpy
    >>> cudnnpy.set_allocator(lambda size, device, stream: cudnnpy.empty((size,), "uint8", device=device))
    >>> cudnnpy.set_allocator(None)  # the default again
    """
    global _allocator, _generation
    if allocator is not None and not callable(allocator):
        raise TypeError(f"allocator must be a function of (size, device, stream), or None; got {error_repr(allocator)}")
    if allocator is not None:
        with suppress(ValueError):  # a builtin function may have no signature
            parameters = inspect.signature(allocator)
            try:
                parameters.bind(0, 0, 0)
            except TypeError:
                raise TypeError(f"allocator must take (size, device, stream); got a function of {parameters}") from None
    _allocator, _generation = allocator, _generation + 1


def workspace(size: int, device: int, stream: int) -> int:
    """Return the address of at least `size` bytes for the next launch on the stream. Raises MemoryError."""
    buffers = _of_thread.__dict__.get("buffers")
    if buffers is None or _of_thread.generation != _generation:
        buffers = _of_thread.buffers = {}
        _of_thread.generation = _generation
    # Graphs may be launched side by side, whatever stream they are captured on: each has its own buffers.
    capture = capture_id(stream) if is_capturing(stream) else 0
    key = device, stream, capture
    buffer = buffers.get(key)
    if buffer is None or buffer[1] < size:
        buffer = None  # the traceback of a MemoryError must not hold a reference to it
        buffer = buffers[key] = allocate(size, device, stream, bool(capture))
        if capture:
            _captured.append(buffer[2])
    return int(buffer[0])


def constant(value: int, count: int, device: int, stream: int) -> int:
    """Return the address of equal numbers of int32 on the current device. They stay, since CUDA graphs may read them.

    The stream is synchronized when they are written, so that other streams may read them. Raises MemoryError.
    """
    key = value, count, device
    if key not in _constants:
        driver = cuda_python("bindings.driver")
        made = allocate(4 * count, device, stream)
        with relaxed_capture():
            checked_result(driver.cuMemsetD32Async(made[0], value, count, stream))
            checked_result(driver.cuStreamSynchronize(stream))
        _constants[key] = made
    return _constants[key][0]


def max_allocatable(size: int, device: int, stream: int) -> int:
    """Return the number of bytes, at most `size`, that can be allocated for a stream now, to a sixteenth or 1 MiB.

    The number is found by allocating. The driver's free memory would be wrong: an allocator may have memory of its own, and
    free memory may be fragmented. The memory that is allocated here is freed, and so is the buffer of the stream.
    """
    _of_thread.__dict__.get("buffers", {}).pop((device, stream, 0), None)

    def can_take(size: int) -> bool:
        try:
            allocate(size, device, stream)
        except MemoryError:
            return False
        return True

    if can_take(size):
        return size
    low, high = 0, size
    while high - low > max(high // 16, 1 << 20):
        middle = (low + high) // 512 * 256
        if can_take(middle):
            low = middle
        else:
            high = middle
    return low


def release_workspace(*, captured: bool = False) -> None:
    """Free the workspace of every stream, and return the memory to the driver for other allocators.

    Freeing is stream-ordered: queued and running work keeps its memory until it is done. The streams of the buffers are
    synchronized. Then cuda.core's pools return all unused memory to the driver, where the allocators of PyTorch and CuPy can
    take it. The pools are not trimmed during a stream capture, or if an allocator is set (`set_allocator`). Other threads free
    their buffers in their next call; a later call of this function returns their memory.

    There is one buffer for each stream that was used, so call this before streams are destroyed.

    Parameters
    ----------
    captured : bool
        Whether to free the workspace of captured CUDA graphs, too. These graphs must not be launched again.

    Examples
    --------
    >>> # on a GPU
    >>> import cudnnpy
    >>> cudnnpy.release_workspace()
    """
    global _generation
    check_flag("captured", captured)
    ask_for_memory()
    _generation += 1
    buffers: dict[tuple[int, int, int], Any] = _of_thread.__dict__.pop("buffers", {})
    streams = {(device, stream) for device, stream, capture in buffers if not capture}
    buffers.clear()
    if captured:
        _captured.clear()
    for device in sorted(_pools):
        _trim_pool(device, [stream for where, stream in streams if where == device], 0)


@contextmanager
def trim_pool_afterwards(device: int, stream: int) -> Iterator[None]:
    """Return memory that the block allocated and freed in cuda.core's pool to the driver.

    Without this the pool would withhold all memory from other allocators, since its release threshold is unlimited. The
    pool's earlier reserve or 1 GiB, whichever is larger, stays. The stream is synchronized after the block.
    """
    unused = 0
    if _allocator is None:
        with suppress(Exception), on_device(device):
            unused = _unused(device)
    try:
        yield
    finally:
        _trim_pool(device, [stream], max(unused, _POOL_RESERVE_BYTES), unused)


def _trim_pool(device: int, streams: Iterable[int], *kept: int) -> None:
    """Trim cuda.core's pool so that at most `kept[0]` unused bytes remain. Smaller targets follow because memory is released in
    mapped blocks.

    The streams are synchronized, since their queued frees count. Nothing is trimmed with another allocator, or during a
    stream capture, which a synchronization would invalidate. A failure to trim is ignored.
    """
    if _allocator is not None:
        return
    with suppress(Exception):
        if any(map(is_stream_or_torch_capturing, (0, *streams))):
            return
        driver = cuda_python("bindings.driver")
        with on_device(device), relaxed_capture():
            for stream in streams:
                driver.cuStreamSynchronize(stream)
            pool = cuda_python("core").Device(device).memory_resource
            for number in kept:
                if _unused(device) > kept[0]:
                    driver.cuMemPoolTrimTo(pool.handle, int(pool.attributes.used_mem_current) + number)


def allocate(size: int, device: int, stream: int, capturing: bool = False) -> tuple[int, int, Any]:
    """Return (address, size, owner) of memory from the current allocator. Raises MemoryError."""
    if _allocator is not None:
        try:
            owner = _allocator(size, device, stream)
        except Exception as error:
            if is_out_of_memory(error):
                raise MemoryError(f"the allocator has no {size} bytes of memory on device {device}: {error}") from error
            raise
        handle = getattr(owner, "handle", None)
        address = int(handle) if isinstance(handle, int) else read(owner, "the allocator's result")[0]
        return address, size, owner
    return allocate_from_pool(size, device, stream, capturing)


def allocate_from_pool(size: int, device: int, stream: int, capturing: bool = False) -> tuple[int, int, Any]:
    """Return (address, size, owner) of memory from cuda.core's pool of the device, in the order of the stream.

    Raises MemoryError if the device has too little free memory.
    """
    core = cuda_python("core")
    gpu = core.Device(device)
    _pools.add(device)
    try:
        if not capturing:
            with on_device(device):
                buffer = gpu.memory_resource.allocate(size, stream=core.Stream.from_handle(stream))
        else:
            # An allocation on the captured stream would become part of the graph: another stream is used.
            with relaxed_capture(), on_device(device):
                own = gpu.create_stream()
                buffer = gpu.memory_resource.allocate(size, stream=own)
                own.sync()
    except Exception as error:
        if is_out_of_memory(error):
            raise MemoryError(
                f"device {device} has no {size} bytes of memory ({free_bytes(device)} are free)"
            ) from error
        raise
    return int(buffer.handle), size, buffer


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an allocator ran out of memory. Each library has an exception of its own."""
    text = str(error).lower().replace("_", " ")
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "out of memory" in text


def capture_id(stream: int) -> int:
    """Return the number of the capture in progress on a stream."""
    driver = cuda_python("bindings.driver")
    return int(driver.cuStreamGetCaptureInfo(stream)[2])


def free_bytes(device: int) -> int:
    """Return the free memory of the device in bytes, including the unused memory of cuda.core's pool."""
    driver = cuda_python("bindings.driver")
    with on_device(device):
        status, free, _total = driver.cuMemGetInfo()
    return int(free) + _unused(device) if status == driver.CUresult.CUDA_SUCCESS else 0


def total_bytes(device: int) -> int:
    """Return the memory of the device in bytes; 0 if the driver reports an error."""
    driver = cuda_python("bindings.driver")
    status, number = driver.cuDeviceGet(device)
    if status == driver.CUresult.CUDA_SUCCESS:
        status, total = driver.cuDeviceTotalMem(number)
    return int(total) if status == driver.CUresult.CUDA_SUCCESS else 0


def _unused(device: int) -> int:
    """Return the unused bytes of cuda.core's pool."""
    memory = cuda_python("core").Device(device).memory_resource
    pool = getattr(memory, "attributes", None)  # missing on a GPU without memory pools
    return 0 if pool is None else max(int(pool.reserved_mem_current) - int(pool.used_mem_current), 0)
