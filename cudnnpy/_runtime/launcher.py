"""The launches of a plan: one for each tuple of addresses, replayed as a CUDA graph once it has been used a few times.

Frameworks reuse memory, so the same addresses recur. The first launches of a tuple go through cudnnBackendExecute
(about 6 us of host time on the machine of an H200). After a few of them, the work that a launch queues is captured into
a CUDA graph, and later launches are one cuGraphLaunch (1.6 us) of the same kernels. A stream that is itself being
captured cannot take a graph launch: there the plain launch is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cudnnpy import raw
from cudnnpy._core.driver import capture_nearby, current_device, make_current, several_devices
from cudnnpy._runtime.cuda_graph import Launch, Replay
from cudnnpy._runtime.executables import Executable
from cudnnpy.handle import Handle, on_device

_LAUNCHES = 256  # address tuples that are remembered for one plan in one thread
_UNTIL_REPLAY = 4  # plain launches of a tuple before a graph is made, which takes about 0.1 ms

Pointers = tuple[int, ...]


class Planned(Protocol):
    """The result of planning, as dispatch uses it: an executable, and what its launcher needs to know.

    A Plan is one, and so is a Program. `name` is for errors, `workspace_size` is in bytes, and `replayable` says
    whether launches are worth a CUDA graph.
    """

    name: str
    device: int
    workspace_size: int
    replayable: bool

    @property
    def executable(self) -> Executable:
        """The executable, which is bound to addresses that were checked."""

    def check_addresses(self, operands: Sequence[int], workspace: int) -> None:
        """Raise ValueError for invalid addresses of the operands or of the workspace."""


class Launcher:
    """A plan in one thread: the thread's cuDNN handle, and the launches of the addresses that were used before."""

    __slots__ = ("_several", "device", "handle", "launches", "planned", "replayable", "replays", "uses")

    def __init__(self, planned: Planned) -> None:
        self.planned, self.device, self.replayable = planned, planned.device, planned.replayable
        self.handle = Handle.default(self.device)
        if current_device() < 0:  # the first CUDA call of this thread: the driver's functions need a context
            make_current(self.device)
        self._several = several_devices()
        self.launches: dict[Pointers, Launch] = {}
        self.replays: dict[Pointers, Replay] = {}
        self.uses: dict[Pointers, int] = {}

    def run(self, pointers: Pointers, stream: int) -> None:
        """Queue the work on the addresses (of the operands, then of the workspace) and the stream."""
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
        """Queue the work by a plain launch, on the current device."""
        handle = self.handle
        if handle._address != stream:
            handle.set_stream(stream)
        launch = self.launches.get(pointers)
        if launch is None:
            launch = self._launch_of(pointers)
        status = launch()
        if status:
            raise raw.error_of(status, self.planned.name)
        if self.replayable:
            uses = self.uses[pointers] = self.uses.get(pointers, 0) + 1
            if uses == _UNTIL_REPLAY:
                if capture_nearby(stream):
                    self.uses[pointers] = uses - 1  # the next launch after the capture makes the graph
                    return
                replay = Replay.of(launch, handle)
                if replay is not None:
                    self.replays[pointers] = replay

    def _launch_of(self, pointers: Pointers) -> Launch:
        """Check new addresses, bind the executable to them, and remember the launch. The oldest beyond 256 is dropped."""
        *operands, workspace = pointers
        self.planned.check_addresses(operands, workspace)
        launch = self.planned.executable.bind(self.handle, tuple(operands), workspace)
        if len(self.launches) >= _LAUNCHES:
            oldest = next(iter(self.launches))
            for known in (self.launches, self.replays, self.uses):
                known.pop(oldest, None)
        self.launches[pointers] = launch
        return launch
