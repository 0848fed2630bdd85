"""Workspace: device memory that an operation uses while it runs.

Each thread has one buffer for each device and stream, which grows on demand and is shared by all operations there. It
comes from cuda.core's stream-ordered pool, or from the allocator of a framework (`set_allocator`). Work on one stream
runs in order, so the next operation may use the same bytes. An outgrown buffer is freed in stream order, after the work
that uses it. The buffers that a CUDA graph is captured with belong to that graph and are kept, since the graph uses
them again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from cudnnpy._core.driver import capture_nearby, is_capturing, relaxed_capture
from cudnnpy._cuda_python import cuda_python
from cudnnpy._memory.arrays import read
from cudnnpy.handle import on_device
from cudnnpy.typing import Array, SupportsHandle

# The bytes that a pool may keep unused when temporary memory was freed. Tuning of most problems needs less, and so none of it
# is mapped again for each of them, which takes milliseconds.
_KEPT = 1 << 30


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
_of_thread = threading.local()
_pools: set[int] = set()  # the devices whose pool memory was taken from
_when_short: list[Callable[[], None]] = []


def call_when_short(action: Callable[[], None]) -> None:
    """Have an action called when device memory is short, to give some back: by `release_workspace` and `ask_for_memory`."""
    _when_short.append(action)


def ask_for_memory() -> None:
    """Have others give device memory back."""
    for action in _when_short:
        action()


def set_allocator(allocator: Allocator | None) -> None:
    """Set where workspace is allocated.

        cudnnpy.set_allocator(lambda size, device, stream: torch.empty(size, dtype=torch.uint8, device=device))

    Parameters
    ----------
    allocator : Allocator or None
        A function of (size in bytes, device ordinal, stream address) that returns a device array or buffer of at least
        that size. None is cuda.core's stream-ordered pool, the default. If there is no memory left, the allocator
        raises MemoryError or the OutOfMemoryError of its library.

    Raises
    ------
    TypeError
        If the allocator cannot be called.
    """
    global _allocator, _generation
    if allocator is not None and not callable(allocator):
        raise TypeError(f"allocator must be a function of (size, device, stream), or None; got {allocator!r}")
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
    held = buffers.get(key)
    if held is None or held[1] < size:
        held = None  # the traceback of a MemoryError must not keep it alive
        held = buffers[key] = take(size, device, stream, bool(capture))
        if capture:
            _captured.append(held[2])
    return int(held[0])


def obtainable(size: int, device: int, stream: int) -> int:
    """Return how many bytes, at most `size`, can be allocated for a stream now, to a sixteenth or 1 MiB.

    The number is found by allocating. The free memory that the driver reports does not tell: an allocator may have its
    own memory, and free memory may be fragmented. What is allocated here is freed, and so is the buffer that the stream
    had.
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
    """Free the workspace of every stream, and give the memory back to the driver for other allocators.

    Freeing is stream-ordered: work that is queued or running keeps its memory until it is done. The streams of the buffers are
    synchronized, and then all memory that cuda.core's pools hold unused on the devices that were used goes back to the driver,
    where the allocators of PyTorch and CuPy can take it. The pools are left alone while a stream is being captured into a CUDA
    graph, and if an allocator is set (`set_allocator`), whose memory is its own. Other threads free their buffers in their next
    call; a call of this function after that gives back their memory.

    One buffer is kept for each stream that was used, so call this before streams are destroyed.

    Parameters
    ----------
    captured : bool
        Whether to free the workspace of captured CUDA graphs, too. None of these graphs may be launched again.
    """
    global _generation
    ask_for_memory()
    _generation += 1
    buffers: dict[tuple[int, int, int], Any] = _of_thread.__dict__.pop("buffers", {})
    streams = {(device, stream) for device, stream, capture in buffers if not capture}
    buffers.clear()
    if captured:
        _captured.clear()
    for device in sorted(_pools):
        _give_back(device, [stream for where, stream in streams if where == device], 0)


@contextmanager
def temporary(device: int, stream: int) -> Iterator[None]:
    """Give memory that the block takes from cuda.core's pool and frees back to the driver.

    The pool's release threshold is the largest number, so that it would keep all of it from other allocators. It keeps what it
    held unused before the block, or 1 GiB if that is more. The stream is synchronized after the block.
    """
    unused = 0
    if _allocator is None:
        with suppress(Exception), on_device(device):
            unused = _unused(device)
    try:
        yield
    finally:
        _give_back(device, [stream], max(unused, _KEPT), unused)


def _give_back(device: int, streams: Iterable[int], *kept: int) -> None:
    """Give memory of cuda.core's pool back to the driver, so that at most the first number in `kept` of bytes is held unused.

    The pool is trimmed to each of these numbers in turn, until that is so: memory goes back in the parts in which it was
    mapped, which may be larger than what is to be kept. Frees that are queued on the streams are waited for. Nothing is done
    with another allocator, or while a capture is in progress, which a synchronization would invalidate. Where it fails the
    pool keeps its memory.
    """
    if _allocator is not None:
        return
    with suppress(Exception):
        if any(map(capture_nearby, (0, *streams))):
            return
        driver = cuda_python("bindings.driver")
        with on_device(device), relaxed_capture():
            for stream in streams:
                driver.cuStreamSynchronize(stream)
            pool = cuda_python("core").Device(device).memory_resource
            for number in kept:
                if _unused(device) > kept[0]:
                    driver.cuMemPoolTrimTo(pool.handle, int(pool.attributes.used_mem_current) + number)


def take(size: int, device: int, stream: int, capturing: bool = False) -> tuple[int, int, Any]:
    """Return (address, size, owner) of memory from the allocator that is set, or from cuda.core's pool. Raises
    MemoryError.
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
    """Return (address, size, owner) of memory from cuda.core's pool of the device, in the order of the stream.

    Raises MemoryError if the device has too little free memory.
    """
    core = cuda_python("core")
    here = core.Device(device)
    _pools.add(device)
    try:
        if not capturing:
            with on_device(device):
                buffer = here.memory_resource.allocate(size, stream=core.Stream.from_handle(stream))
        else:
            # An allocation on the captured stream would become part of the graph: another stream is used.
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
    """Return whether an exception of an allocator means that no memory is left. Each library has its own."""
    text = str(error).lower().replace("_", " ")
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "out of memory" in text


def capture_id(stream: int) -> int:
    """Return the number of the capture in progress on a stream."""
    from cuda.bindings import driver

    return int(driver.cuStreamGetCaptureInfo(stream)[2])


def free_bytes(device: int) -> int:
    """Return the free memory of the device in bytes, including what cuda.core's pool holds unused."""
    driver = cuda_python("bindings.driver")
    with on_device(device):
        status, free, _total = driver.cuMemGetInfo()
    return int(free) + _unused(device) if status == driver.CUresult.CUDA_SUCCESS else 0


def total_bytes(device: int) -> int:
    """Return the memory of the device in bytes; 0 if the driver does not tell."""
    driver = cuda_python("bindings.driver")
    status, number = driver.cuDeviceGet(device)
    if status == driver.CUresult.CUDA_SUCCESS:
        status, total = driver.cuDeviceTotalMem(number)
    return int(total) if status == driver.CUresult.CUDA_SUCCESS else 0


def _unused(device: int) -> int:
    """Return the bytes that cuda.core's pool holds unused."""
    from cuda.core import Device

    pool = getattr(Device(device).memory_resource, "attributes", None)  # missing on a GPU without memory pools
    return 0 if pool is None else max(int(pool.reserved_mem_current) - int(pool.used_mem_current), 0)
