"""The launches of a plan: one for each tuple of addresses, replayed as a CUDA graph once it has been used a few times.

New addresses are bound and launched (about 12 us of host time on the machine of an H200), and nothing is kept. A tuple
that is used again keeps its launch, so that cudnnBackendExecute remains (about 6 us). After a few launches, the work that
they queue is captured into a CUDA graph, if there is room for one, and later launches are one cuGraphLaunch (1.6 us) of
the same kernels. kept.py bounds both over the process. A stream that is itself being captured cannot take a graph
launch: there the plain launch is recorded.
"""

from __future__ import annotations

from typing import Protocol

from cudnnpy import raw
from cudnnpy._core.driver import capture_nearby, current_device, make_current, several_devices
from cudnnpy._runtime.addresses import Pointers
from cudnnpy._runtime.cuda_graph import Launch, Replay
from cudnnpy._runtime.executables import Executable
from cudnnpy._runtime.kept import LAUNCHES, REPLAYS, SEEN, Table
from cudnnpy.handle import Handle, on_device

_UNTIL_REPLAY = 4  # plain launches of a tuple before a graph is made, which takes about 0.1 ms
_NEVER = -(1 << 60)  # the uses of a launch that cannot be captured


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

    def check_addresses(self, operands: Pointers, workspace: int) -> None:
        """Raise ValueError for invalid addresses of the operands or of the workspace."""


class Kept:
    """A launch that is kept, and how often it was used."""

    __slots__ = ("launch", "uses")

    def __init__(self, launch: Launch, uses: int) -> None:
        self.launch, self.uses = launch, uses


class Launcher:
    """A plan in one thread: the thread's cuDNN handle, and the launches of addresses that were used repeatedly."""

    __slots__ = ("_several", "device", "handle", "launches", "planned", "replayable", "replays")

    def __init__(self, planned: Planned) -> None:
        self.planned, self.device, self.replayable = planned, planned.device, planned.replayable
        self.handle = Handle.default(self.device)
        if current_device() < 0:  # the first CUDA call of this thread: the driver's functions need a context
            make_current(self.device)
        self._several = several_devices()
        self.launches: Table[Kept] = Table(LAUNCHES)
        self.replays: Table[Replay] = Table(REPLAYS)

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
        kept = self.launches.get(pointers)
        if kept is None:
            replay = self.replays.get(pointers)  # of a stream that is being captured
            return self._run_new(pointers) if replay is None else self._check(replay.plain())
        status = kept.launch()
        if status:
            self._check(status)
        if self.replayable:
            kept.uses += 1
            if kept.uses >= _UNTIL_REPLAY:
                self._make_replay(pointers, kept, stream)
        return None

    def _check(self, status: int) -> None:
        if status:
            raise raw.error_of(status, self.planned.name)

    def _run_new(self, pointers: Pointers) -> None:
        """Check new addresses, and launch on them. The launch is kept if the addresses were used before."""
        operands, workspace = pointers[:-1], pointers[-1]
        planned = self.planned
        planned.check_addresses(operands, workspace)
        launch = planned.executable.bind(self.handle, operands, workspace)
        status = launch()
        if status:
            del launch  # a traceback would keep it
            self._check(status)
        if SEEN.again(self, pointers):
            LAUNCHES.keep(self.launches, pointers, Kept(launch, 2))

    def _make_replay(self, pointers: Pointers, kept: Kept, stream: int) -> None:
        """Replace a launch by a CUDA graph of it, unless there is no room or a capture is going on."""
        if not REPLAYS.has_room() or capture_nearby(stream):
            return
        replay = Replay.of(kept.launch, self.handle)
        if replay is None:
            kept.uses = _NEVER
            return
        REPLAYS.keep(self.replays, pointers, replay)
        LAUNCHES.forget(self.launches, pointers)
