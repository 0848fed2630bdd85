"""Handle: a cuDNN context on a device and a stream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_void_p
from functools import partial
from operator import index
from typing import Any

from cudnnpy import raw
from cudnnpy._checks.option_values import error_repr, is_integer
from cudnnpy._core.cuda_python import cuda_python, without_cuda
from cudnnpy._core.owned import Owned
from cudnnpy._process.module_state import declare
from cudnnpy.typing import Device, Stream

# Each cudnnHandle_t whose Handle was garbage collected without close(), by CUDA context. Garbage collection runs at any
# moment, and cudnnDestroy synchronizes the device: during a stream capture this would make every later launch fail. So the
# next Handle of the context reuses one of these. There are never more than Handles that were alive at the same time.
_idle: dict[int, list[Any]] = {}
_of_thread = threading.local()  # .handles: the default Handles, by device

declare(__name__, "_of_thread")
declare(__name__, "_idle", in_child=True)


class Handle(Owned[raw.cudnnHandle_t]):
    """A cuDNN context on one device, whose work goes to one stream. It must be used by one thread at a time.

    Functions of `cudnnpy.raw` take a Handle where C takes a cudnnHandle_t; its device must be current when they run.
    C functions: cudnnCreate, cudnnDestroy.

    Parameters
    ----------
    device : int, cuda.core.Device or None
        The device, or its ordinal. None is the current device.
    stream : stream or None
        The stream, as `stream_address` takes it. None is the default stream.

    Raises
    ------
    NotInitializedError
        If there is no driver or no GPU.
    TypeError, ValueError
        If the device or the stream is invalid.

    Notes
    -----
    close() calls cudnnDestroy, which synchronizes the device. The cudnnHandle_t of a Handle that is garbage collected without
    close(), or is in use while it is closed, is reused by the next Handle instead.

    Examples
    --------
    >>> # on a GPU
    >>> import cudnnpy
    >>> with cudnnpy.Handle() as handle:
    ...     handle.device
    0
    """

    _create = "cudnnCreate"
    _destroy = "cudnnDestroy"

    # The stream of the work in progress. A destructor that garbage collection runs, or a signal handler, may launch in between;
    # after that launch this stream is set again.
    _in_use: int | None = None

    def __init__(self, device: Device | None = None, stream: Stream | None = None) -> None:
        stream_address(stream)
        with on_device(device) as (self._device, self._context), self._created():
            self._address: int | None = None
            self.set_stream(stream)

    @classmethod
    def default(cls, device: Device | None = None) -> Handle:
        """Return the Handle of the calling thread for a device. The first call makes it.

        All users in the thread share it, so the stream must be set before each use.

        Parameters
        ----------
        device : int, cuda.core.Device or None
            The device, or its ordinal. None is the current device.
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
        """The address of the stream, by cudnnGetStream; 0 is the default stream."""
        address = c_void_p()
        raw.call("cudnnGetStream", self, byref(address))
        self._address = address.value or 0
        return self._address

    def set_stream(self, stream: Stream | None) -> None:
        """Send later work to a stream, and refer to the stream object while it is set. C function: cudnnSetStream.

        cudnnSetStream is called only if the stream changes. A stream that was set through `cudnnpy.raw` is noticed when
        `stream` is read.

        Parameters
        ----------
        stream : stream or None
            The stream, as `stream_address` takes it. None is the default stream.
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

    def _forget(self) -> None:
        for launcher in tuple(self.__dict__.get("_launchers", ())):  # whose bound launches refer to the pointer
            launcher.drop_bound_launches()
        super()._forget()


def stream_address(stream: Stream | None) -> int:
    """Return the address of a stream: its cudaStream_t as an integer.

    Parameters
    ----------
    stream : stream or None
        None (the default stream), an address, an object with `__cuda_stream__` (cuda.core, PyTorch), or a stream of a
        library that predates this protocol: `.cuda_stream` (PyTorch), `.ptr` (CuPy), `.handle` (Numba).

    Raises
    ------
    TypeError
        If the object is not a stream.
    ValueError
        If the number is not an address of 64 bits.
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
    if isinstance(address, bool) or not is_integer(address):
        raise TypeError(
            "stream must be None, an address, or an object with __cuda_stream__; "
            f"got {error_repr(stream)} ({type(stream).__name__})"
        )
    if not 0 <= index(address) < 1 << 64:
        raise ValueError(f"stream must be an address of 64 bits; got {error_repr(address)}")
    return index(address)


@contextmanager
def in_use(handle: Handle, stream: int) -> Iterator[None]:
    """Send the work of a handle to a stream within the block, also after a launch that interrupts the block."""
    interrupted = handle._in_use
    try:
        handle._in_use = stream
        handle.set_stream(stream)
        yield
    finally:
        handle._in_use = interrupted
        if interrupted is not None:
            handle.set_stream(interrupted)


def _keep(context: int, pointer: Any) -> None:
    _idle.setdefault(context, []).append(pointer)


def _check_device(device: object) -> None:
    if isinstance(device, bool) or not (device is None or isinstance(device, int) or hasattr(device, "device_id")):
        raise TypeError(
            f"device must be an ordinal, a cuda.core Device or None; got {error_repr(device)} ({type(device).__name__})"
        )
    if isinstance(device, int) and device < 0:
        raise ValueError(f"device must be an ordinal of 0 or more; got {device}")


def _cuda_device(device: Device | None) -> Any:
    """Return the cuda.core.Device. Raises NotInitializedError if there is no driver or no GPU."""
    _check_device(device)
    if hasattr(device, "device_id"):
        return device
    core = cuda_python("core")
    try:
        return core.Device(device)
    except ValueError:  # no such ordinal
        raise
    except Exception as error:
        raise without_cuda(error) from None


@contextmanager
def on_device(device: Device | None) -> Iterator[tuple[int, int]]:
    """Make a device current within the block, and yield its ordinal and its CUDA context.

    After the block the previous context is current again. If there was none, the device stays current, as with the CUDA
    runtime.
    """
    chosen = _cuda_device(device)
    driver = cuda_python("bindings.driver")
    before = driver.cuCtxGetCurrent()[1]
    chosen.set_current()  # even if it is current already: cuda.core requires it in every thread
    try:
        yield chosen.device_id, int(driver.cuCtxGetCurrent()[1])
    finally:
        if int(before):
            driver.cuCtxSetCurrent(before)
