"""Handle: a cuDNN context on a device and a stream."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_void_p
from functools import partial
from operator import index
from typing import Any

from cudnnpy import raw
from cudnnpy._core.owned import Owned
from cudnnpy._core.validation import shown
from cudnnpy._cuda_python import cuda_python
from cudnnpy.typing import Device, Stream

# cudnnHandle_t of Handles that were garbage collected unclosed, by the CUDA context that they belong to. Collection
# comes at any moment and cudnnDestroy synchronises the device (in the middle of a stream capture it poisons every later
# launch), so they wait here, and the next Handle of the context takes one: the list is never longer than the number of
# handles that were once alive together.
_idle: dict[int, list[Any]] = {}
os.register_at_fork(after_in_child=_idle.clear)

_of_thread = threading.local()


class Handle(Owned[raw.cudnnHandle_t]):
    """A cuDNN context on one device, for one thread at a time, whose work goes to one stream.

    `device` is an ordinal, a cuda.core Device, or None for the current one; `stream` is what stream_address() takes.
    Functions of cudnnpy.raw take a Handle where C takes a cudnnHandle_t; its device must be current when they run.

    close() calls cudnnDestroy, which waits for the device. One that is garbage collected instead, or still in use when it
    is closed, is kept for reuse.

    Raises NotInitializedError without a driver or a GPU; TypeError and ValueError for a bad device or stream.
    """

    _create = "cudnnCreate"
    _destroy = "cudnnDestroy"

    def __init__(self, device: Device | None = None, stream: Stream | None = None) -> None:
        _check_device(device)
        stream_address(stream)
        with on_device(device) as (self._device, self._context), self._created():
            self._address: int | None = None
            self.set_stream(stream)

    @classmethod
    def default(cls, device: Device | None = None) -> Handle:
        """The calling thread's own Handle for a device (None: the current one), made on first use.

        Everyone in the thread shares it: set the stream before each use.
        """
        ordinal = device if type(device) is int else _cuda_device(device).device_id
        handles: dict[int, Handle] = _of_thread.__dict__.setdefault("handles", {})
        handle = handles.get(ordinal)
        if handle is None or handle.closed:
            handle = handles[ordinal] = cls(ordinal)
        return handle

    @property
    def device(self) -> int:
        """The ordinal of the device."""
        return self._device

    @property
    def stream(self) -> int:
        """The address of the stream, as cudnnGetStream gives it; 0 is the default stream."""
        address = c_void_p()
        raw.call("cudnnGetStream", self, byref(address))
        self._address = address.value or 0
        return self._address

    def set_stream(self, stream: Stream | None) -> None:
        """Sends the work that follows to a stream (see stream_address), which is kept alive as long as it is set.

        Calls cudnnSetStream only where the stream changes; one set by cudnnpy.raw is noticed when `stream` is read.
        """
        address = stream_address(stream)
        if address != self._address or self.closed:
            raw.call("cudnnSetStream", self, address)
            self._address = address
        self._stream_given = stream

    def _new(self, *arguments: Any) -> Any:
        try:
            return _idle[self._context].pop()
        except LookupError:
            return super()._new(*arguments)

    def _when_collected(self, pointer: Any) -> Callable[[], object]:
        return partial(_keep, self._context, pointer)


def stream_address(stream: Stream | None) -> int:
    """The cudaStream_t of a stream, as a number.

    Takes None (the default stream, 0), a number, anything with `__cuda_stream__` (cuda.core, torch), and the stream
    objects of libraries from before that protocol: `.cuda_stream` (torch), `.ptr` (CuPy), `.handle` (Numba).
    Raises TypeError for anything else, ValueError for a number that is no address.
    """
    if stream is None:
        return 0
    address: Any = stream
    if not isinstance(stream, int):
        protocol = getattr(stream, "__cuda_stream__", None)
        if protocol is not None:
            version, address = protocol() if callable(protocol) else protocol
            if version != 0:
                raise TypeError(
                    f"stream must have version 0 of the __cuda_stream__ protocol; got version {version} of {stream!r}"
                )
        else:
            names = (name for name in ("cuda_stream", "ptr", "handle") if hasattr(stream, name))
            address = getattr(stream, next(names, ""), stream)
            if isinstance(address, c_void_p):
                address = address.value or 0
    if isinstance(address, bool) or not hasattr(address, "__index__"):
        raise TypeError(
            "stream must be None, an address, or an object with __cuda_stream__; "
            f"got {stream!r} ({type(stream).__name__})"
        )
    if not 0 <= index(address) < 1 << 64:
        raise ValueError(f"stream must be an address of 64 bits; got {shown(address)}")
    return index(address)


def _keep(context: int, pointer: Any) -> None:
    _idle.setdefault(context, []).append(pointer)


def _check_device(device: object) -> None:
    if isinstance(device, bool) or not (device is None or isinstance(device, int) or hasattr(device, "device_id")):
        raise TypeError(
            f"device must be an ordinal, a cuda.core Device or None; got {device!r} ({type(device).__name__})"
        )
    if isinstance(device, int) and device < 0:
        raise ValueError(f"device must be an ordinal of 0 or more; got {device}")


def _cuda_device(device: Device | None) -> Any:
    """cuda.core's Device. Where there is no driver or no GPU, cuDNN's own error for that is raised."""
    _check_device(device)
    if hasattr(device, "device_id"):
        return device
    core = cuda_python("core")
    try:
        return core.Device(device)
    except ValueError:  # no such ordinal
        raise
    except Exception:
        probe = raw.cudnnHandle_t()
        raw.call("cudnnCreate", byref(probe))
        raw.call("cudnnDestroy", probe)
        raise


@contextmanager
def on_device(device: Device | None) -> Iterator[tuple[int, int]]:
    """Makes a device current for the block, and after it what was current before: its ordinal and CUDA context.

    Where nothing was current the device stays so, as with the CUDA runtime.
    """
    chosen = _cuda_device(device)
    driver = cuda_python("bindings.driver")
    before = driver.cuCtxGetCurrent()[1]
    chosen.set_current()  # also where it is: cuda.core wants it said in every thread
    try:
        yield chosen.device_id, int(driver.cuCtxGetCurrent()[1])
    finally:
        if int(before):
            driver.cuCtxSetCurrent(before)
