"""The path of every call: a ready launch for each tuple of addresses, replayed as a CUDA graph once it is known.

Frameworks reuse memory, so the same addresses come again and again. The first launches of a tuple go through
cudnnBackendExecute (about 6 us of host time on an H200's machine); after a few, the work that it queues is captured once
into a CUDA graph, and later launches are one cuGraphLaunch (1.6 us) of the very same kernels. A stream that is itself
being captured cannot take a graph launch: there the plain launch is recorded.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_int, c_void_p
from functools import cache
from typing import Any, Protocol

from cudnnpy import raw
from cudnnpy.handle import Handle, on_device

_LAUNCHES = 256  # address tuples remembered for one plan in one thread
_UNTIL_REPLAY = 4  # plain launches of a tuple before it is worth a graph (about 0.1 ms to make)

Pointers = tuple[int, ...]
Launch = Callable[[], int]


class Launchable(Protocol):
    """What a Launcher runs: a plan, or anything else that binds addresses to a launch."""

    name: str
    device: int
    replayable: bool

    def bind(self, handle: Handle, pointers: Pointers) -> Launch:
        """Checks a tuple of addresses (the operands' and the workspace's) and makes its launch, which gives a status."""


class Launcher:
    """One plan in one thread: the thread's cuDNN handle, and the launches of the addresses seen before."""

    __slots__ = ("_several", "device", "handle", "launches", "plan", "replays", "uses")

    def __init__(self, plan: Launchable) -> None:
        self.plan = plan
        self.device = plan.device
        self.handle = Handle.default(self.device)
        if current_device() < 0:  # a thread whose first CUDA call this is: the driver's own functions need a context
            _make_current(self.device)
        self._several = several_devices()
        self.launches: dict[Pointers, Launch] = {}
        self.replays: dict[Pointers, _Replay] = {}
        self.uses: dict[Pointers, int] = {}

    def run(self, pointers: Pointers, stream: int) -> None:
        """Queues the work on the addresses (the operands', then the workspace's) and the stream."""
        if self._several and current_device() != self.device:
            with on_device(self.device):
                return self._run(pointers, stream)
        replay = self.replays.get(pointers)
        if replay is not None and (not stream or not capture_nearby(stream)):
            if replay.launch(replay.graph, stream):
                raise raw.error_of(raw.CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER, "cuGraphLaunch")
            return None
        return self._run(pointers, stream)

    def _run(self, pointers: Pointers, stream: int) -> None:
        """Without a replay, on the current device."""
        handle = self.handle
        if handle._address != stream:
            handle.set_stream(stream)
        launch = self.launches.get(pointers)
        if launch is None:
            launch = self.admit(pointers)
        status = launch()
        if status:
            raise raw.error_of(status, self.plan.name)
        if self.plan.replayable:
            uses = self.uses[pointers] = self.uses.get(pointers, 0) + 1
            if uses == _UNTIL_REPLAY:
                if capture_nearby(stream):
                    self.uses[pointers] = uses - 1  # after the capture, then
                    return
                replay = _Replay.of(launch, handle)
                if replay is not None:
                    self.replays[pointers] = replay

    def admit(self, pointers: Pointers, launch: Launch | None = None) -> Launch:
        """Binds a tuple of addresses, or takes a launch that was bound elsewhere, and forgets the oldest beyond 256."""
        launch = launch or self.plan.bind(self.handle, pointers)
        if len(self.launches) >= _LAUNCHES:
            oldest = next(iter(self.launches))
            for known in (self.launches, self.replays, self.uses):
                known.pop(oldest, None)
        self.launches[pointers] = launch
        return launch


@contextmanager
def relaxed_capture() -> Iterator[None]:
    """Lets the calling thread allocate and make graphs while a stream is captured (cuThreadExchangeStreamCaptureMode)."""
    from cuda.bindings import driver

    before = driver.cuThreadExchangeStreamCaptureMode(driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)[1]
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(before)


class _Replay:
    """A launch captured as an executable CUDA graph, with its owners."""

    __slots__ = ("graph", "launch", "owner")

    def __init__(self, owner: Any, launch: Launch) -> None:
        self.owner = owner, launch
        self.graph = c_void_p(int(owner.handle))
        self.launch = driver_library().cuGraphLaunch

    @classmethod
    def of(cls, launch: Launch, handle: Handle) -> _Replay | None:
        """Captures one launch on a stream of our own; None where that cannot be done."""
        with relaxed_capture():
            return cls._made_of(launch, handle)

    @classmethod
    def _made_of(cls, launch: Launch, handle: Handle) -> _Replay | None:
        from cuda.bindings import driver

        before = handle._address
        status, stream = driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        if status != driver.CUresult.CUDA_SUCCESS:
            return None
        try:
            handle.set_stream(int(stream))
            mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
            if driver.cuStreamBeginCapture(stream, mode)[0] != driver.CUresult.CUDA_SUCCESS:
                return None  # outside a capture the launch would run
            failed = launch()
            status, graph = driver.cuStreamEndCapture(stream)
            if status != driver.CUresult.CUDA_SUCCESS:
                return None
            status, executable = driver.cuGraphInstantiate(graph, 0)
            driver.cuGraphDestroy(graph)
            if status != driver.CUresult.CUDA_SUCCESS:
                return None
            made = cls(_Executable(executable), launch)
            # The first launch would upload it, which is no call to make while another stream is under capture.
            driver.cuGraphUpload(executable, stream)
            driver.cuStreamSynchronize(stream)
            return None if failed else made
        finally:
            handle.set_stream(before)
            driver.cuStreamDestroy(stream)


class _Executable:
    """Owns a CUgraphExec. CUDA puts its destruction off until its launches are done."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def __del__(self) -> None:
        if not sys.is_finalizing():
            from cuda.bindings import driver

            driver.cuGraphExecDestroy(self.handle)


@cache
def driver_library() -> Any:
    """The CUDA driver through ctypes, for the few calls on the path of every launch."""
    library = ctypes.CDLL("libcuda.so.1")
    library.cuGraphLaunch.argtypes = (c_void_p, c_void_p)
    library.cuStreamIsCapturing.argtypes = (c_void_p, ctypes.POINTER(c_int))
    return library


def is_capturing(stream: int) -> bool:
    """Whether the stream is being captured into a CUDA graph. The default streams (0, 1, 2) cannot be."""
    if stream in (0, 1, 2):
        return False
    state = c_int()
    return driver_library().cuStreamIsCapturing(stream, byref(state)) == 0 and state.value != 0


def _make_current(device: int) -> None:
    from cuda.core import Device

    Device(device).set_current()


def capture_nearby(stream: int) -> bool:
    """Whether the stream, or PyTorch's current one, is being captured.

    While the thread captures another stream, making or launching a graph of ours can spoil that capture.
    """
    return is_capturing(stream) or bool(_torch_captures())


def _ask_torch() -> bool:
    """Whether PyTorch's current stream is being captured.

    Asking raises where there is no driver. Nothing is captured before PyTorch has initialized CUDA, and once it has, its
    own function is asked without this one in between.
    """
    global _torch_captures
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    _torch_captures = torch.cuda.is_current_stream_capturing
    return bool(_torch_captures())


def _forget_torch() -> None:
    """In a forked child PyTorch's CUDA cannot be used, and PyTorch itself says so."""
    global _torch_captures
    _torch_captures = _ask_torch


_torch_captures: Callable[[], bool] = _ask_torch
os.register_at_fork(after_in_child=_forget_torch)


@cache
def several_devices() -> bool:
    """Whether there is more than one GPU, so that the current one may be the wrong one."""
    from cuda.core import system

    return int(system.get_num_devices()) > 1


def current_device() -> int:
    """The calling thread's current device, -1 without one."""
    device = c_int(-1)
    driver_library().cuCtxGetDevice(byref(device))
    return device.value
