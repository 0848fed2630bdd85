"""Workspace: device memory that operations use while they run and forget afterwards.

One buffer for each thread, device and stream, grown on demand and shared by every operation there. It comes from
cuda.core's stream-ordered pool, or from the allocator that a framework gives (set_allocator). Work on one stream runs
in order, so the next operation may use the same bytes; a buffer that is outgrown is given back in stream order, after
the work that uses it. What a CUDA graph is captured with is its own and kept for good: the graph will use it again.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

from cudnnpy._core.driver import is_capturing, relaxed_capture
from cudnnpy._cuda_python import cuda_python
from cudnnpy._memory.arrays import read
from cudnnpy.handle import on_device
from cudnnpy.typing import Array, SupportsHandle


class Allocator(Protocol):
    """What set_allocator takes: a function of (size in bytes, device ordinal, stream address).

    It returns a device array or buffer of at least that size, whose memory is free again when the last reference to it
    goes, not before the work queued on the stream is done: torch.empty, cupy.empty, a cuda.core Buffer.
    """

    def __call__(self, size: int, device: int, stream: int, /) -> Array | SupportsHandle:
        """Device memory of at least `size` bytes, for use on the stream."""


_allocator: Allocator | None = None
_generation = 0
_captured: list[Any] = []
_of_thread = threading.local()


def set_allocator(allocator: Allocator | None) -> None:
    """Takes workspace from the given allocator from now on; None goes back to cuda.core's stream-ordered pool.

        cudnnpy.set_allocator(lambda size, device, stream: torch.empty(size, dtype=torch.uint8, device=device))

    Raises TypeError for what cannot be called.
    """
    global _allocator, _generation
    if allocator is not None and not callable(allocator):
        raise TypeError(f"allocator must be a function of (size, device, stream), or None; got {allocator!r}")
    _allocator, _generation = allocator, _generation + 1


def workspace(size: int, device: int, stream: int) -> int:
    """The address of at least `size` bytes for the operation that is launched next on the stream."""
    buffers = _of_thread.__dict__.get("buffers")
    if buffers is None or _of_thread.generation != _generation:
        buffers = _of_thread.buffers = {}
        _of_thread.generation = _generation
    # Graphs may be launched side by side, whatever stream they were captured on: each has buffers of its own.
    capture = capture_id(stream) if is_capturing(stream) else 0
    key = device, stream, capture
    held = buffers.get(key)
    if held is None or held[1] < size:
        held = None  # so that the traceback of a MemoryError does not hold it
        held = buffers[key] = take(size, device, stream, bool(capture))
        if capture:
            _captured.append(held[2])
    return int(held[0])


def obtainable(size: int, device: int, stream: int) -> int:
    """The number of bytes, at most `size`, that can be taken for a stream now, to a sixteenth or 1 MiB.

    The driver's free memory does not tell: another allocator has its own, and free memory comes in pieces. What is taken
    to find out is given back, and so is the buffer that the stream had.
    """
    _of_thread.__dict__.get("buffers", {}).pop((device, stream, 0), None)

    def can_take(size: int) -> bool:
        try:
            take(size, device, stream)
        except MemoryError:
            return False
        return True

    if can_take(size):
        return size
    can, cannot = 0, size
    while cannot - can > max(cannot // 16, 1 << 20):
        middle = (can + cannot) // 512 * 256
        if can_take(middle):
            can = middle
        else:
            cannot = middle
    return can


def release_workspace(*, captured: bool = False) -> None:
    """Gives every stream's workspace back, in the order of its work; in other threads when they next call.

    A buffer is kept for each stream that was used: release them before streams are destroyed. `captured`: also what CUDA
    graphs were captured with, of which none may be launched again.
    """
    global _generation
    _generation += 1
    _of_thread.__dict__.pop("buffers", None)
    if captured:
        _captured.clear()


def take(size: int, device: int, stream: int, capturing: bool = False) -> tuple[int, int, Any]:
    """(address, size, owner) of memory from the allocator that was set, or from cuda.core's pool.

    Raises MemoryError if there is not that much.
    """
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
    return allocate(size, device, stream, capturing)


def allocate(size: int, device: int, stream: int, capturing: bool = False) -> tuple[int, int, Any]:
    """(address, size, owner) of memory from cuda.core's pool of the device, in the order of the stream.

    Raises MemoryError if the device has not that much.
    """
    core = cuda_python("core")
    here = core.Device(device)
    try:
        if not capturing:
            with on_device(device):
                buffer = here.memory_resource.allocate(size, stream=core.Stream.from_handle(stream))
        else:
            # An allocation on the captured stream would become part of the graph: use a stream of our own.
            with relaxed_capture(), on_device(device):
                own = here.create_stream()
                buffer = here.memory_resource.allocate(size, stream=own)
                own.sync()
    except Exception as error:
        if is_out_of_memory(error):
            raise MemoryError(
                f"device {device} has no {size} bytes of memory ({free_bytes(device)} are free)"
            ) from error
        raise
    return int(buffer.handle), size, buffer


def is_out_of_memory(error: Exception) -> bool:
    """Whether an allocator means by an exception that there is no memory left: each library has one of its own."""
    text = str(error).lower().replace("_", " ")
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "out of memory" in text


def capture_id(stream: int) -> int:
    """The number of the capture that is under way on a stream."""
    from cuda.bindings import driver

    return int(driver.cuStreamGetCaptureInfo(stream)[2])


def free_bytes(device: int) -> int:
    """The device's free memory, in bytes, with what cuda.core's pool holds unused."""
    driver = cuda_python("bindings.driver")
    with on_device(device):
        status, free, _total = driver.cuMemGetInfo()
    return int(free) + _unused(device) if status == driver.CUresult.CUDA_SUCCESS else 0


def _unused(device: int) -> int:
    """Bytes that cuda.core's pool keeps of what was given back to it."""
    from cuda.core import Device

    pool = getattr(Device(device).memory_resource, "attributes", None)  # a GPU without pools has none
    return 0 if pool is None else max(int(pool.reserved_mem_current) - int(pool.used_mem_current), 0)
