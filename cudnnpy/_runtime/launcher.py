"""The path of every call: a ready launch for each tuple of addresses, replayed as a CUDA graph once it is known.

Frameworks reuse memory, so the same addresses come again and again. The first launches of a tuple go through
cudnnBackendExecute (about 6 us of host time on an H200's machine); after a few, the work that it queues is captured once
into a CUDA graph, and later launches are one cuGraphLaunch (1.6 us) of the very same kernels. A stream that is itself
being captured cannot take a graph launch: there the plain launch is recorded.
"""

from __future__ import annotations

from typing import Protocol

from cudnnpy import raw
from cudnnpy._core.driver import capture_nearby, current_device, make_current, several_devices
from cudnnpy._runtime.cuda_graph import Launch, Replay
from cudnnpy.handle import Handle, on_device

_LAUNCHES = 256  # address tuples remembered for one plan in one thread
_UNTIL_REPLAY = 4  # plain launches of a tuple before it is worth a graph (about 0.1 ms to make)

Pointers = tuple[int, ...]


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
            make_current(self.device)
        self._several = several_devices()
        self.launches: dict[Pointers, Launch] = {}
        self.replays: dict[Pointers, Replay] = {}
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
                replay = Replay.of(launch, handle)
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
