"""The launches of a plan: by cuDNN, by the driver directly, or replayed as CUDA graphs.

A plain launch binds the addresses and calls cudnnBackendExecute (about 10 us of host time on the machine of an H200), and
nothing is kept. A tuple of addresses that is used again keeps its launch, so that cudnnBackendExecute remains (about 7
us). A plan that is launched often passes its kernels to the driver directly, at any addresses (about 5 us,
direct_launch.py), if it is certain how. Where the GPU waits for the host (pace.py), the work of addresses that are used
a few times is captured into a CUDA graph, if there is room for one, and later launches are one cuGraphLaunch (1.6 us) of
the same kernels. kept.py bounds all of this over the process. A stream that is itself being captured cannot take a graph
launch: there the kernels are recorded.
"""

from __future__ import annotations

from typing import Protocol

from cudnnpy import raw
from cudnnpy._core.driver import capture_nearby, current_device, make_current, several_devices
from cudnnpy._launch.address_validation import Addresses
from cudnnpy._launch.cuda_graph import Replay
from cudnnpy._launch.direct.direct_launch import DirectLaunch
from cudnnpy._launch.direct.relocations import SPACE_ALIGNMENT
from cudnnpy._launch.direct.stream_capture import Launch
from cudnnpy._launch.kept import DIRECT, LAUNCHES, NEVER, REPLAYS, SEEN, Table, Wish
from cudnnpy._launch.pace import Pace
from cudnnpy._launch.steps import Executable
from cudnnpy.handle import Handle, in_use, on_device

# Launches before a graph or a direct launch is made: at most as many as cost, in all, what making it costs.
_UNTIL_REPLAY = 4  # of one tuple, for 0.3 ms; fewer, since most programs leave room for graphs
_UNTIL_LAST_REPLAYS = 100  # of one tuple, once half of the room is taken: of a direct launch a graph saves 3 us
# Of a plan, for 3 ms; fewer, so that it is done in a network's first steps. More than until a graph, which may replace it.
_UNTIL_DIRECT = 5
# Launches in which what takes the place of another one proves to be used more often.
_CONTEST = 16
_ANYWHERE = ()  # the key of what serves all addresses


class Planned(Protocol):
    """The result of planning, as dispatch uses it: an executable, and what its launcher needs to know.

    A Plan is one, and so is a Program. `name` is for errors, `workspace_size` is in bytes, `replayable` says whether
    launches are worth keeping, `movable` whether the same kernels serve all addresses, which are multiples of 16 then, and
    `is_long` whether the GPU takes longer for a launch than the host does.
    """

    name: str
    device: int
    workspace_size: int
    replayable: bool
    movable: bool
    is_long: bool

    @property
    def executable(self) -> Executable:
        """The executable, which is bound to addresses that were checked."""

    def check_addresses(self, operands: Addresses, workspace: int) -> None:
        """Raise ValueError for invalid addresses of the operands or of the workspace."""


class Kept(Wish):
    """The launch of a tuple of addresses that is used again, and its wish for a CUDA graph.

    The launch is None where a direct launch makes it unnecessary.
    """

    __slots__ = ("launch",)

    def __init__(self, launch: Launch | None) -> None:
        super().__init__(_UNTIL_REPLAY, _CONTEST, uses=2)
        self.launch = launch


class Launcher:
    """A plan in one thread: the thread's cuDNN handle, and what is kept of its launches."""

    __slots__ = ("_several", "_short", "_wish", "device", "direct", "handle", "launches", "pace", "planned", "replays")

    def __init__(self, planned: Planned) -> None:
        self.planned, self.device = planned, planned.device
        self.handle = Handle.default(self.device)
        if current_device() < 0:  # the first CUDA call of this thread: the driver's functions need a context
            make_current(self.device)
        self._several = several_devices()
        self.pace, self._short = Pace.of_thread(self.device), not planned.is_long
        self.launches: Table[Kept] = Table(LAUNCHES)
        self.replays: Table[Replay] = Table(REPLAYS)
        self.direct: Table[DirectLaunch] = Table(DIRECT)
        self._wish = Wish(_UNTIL_DIRECT, _CONTEST) if planned.replayable and planned.movable else None

    def run(self, pointers: Addresses, stream: int, are_valid: object = False) -> None:
        """Queue the work on the addresses (of the operands, then of the workspace) and the stream.

        `are_valid` is true for addresses that need no check: aligned as the plan's are, not null, and without overlaps.
        """
        if self._several and current_device() != self.device:
            with on_device(self.device):
                return self._run(pointers, stream, are_valid)
        return self._run(pointers, stream, are_valid)

    def _run(self, pointers: Addresses, stream: int, are_valid: object) -> None:
        """Queue the work on the current device."""
        pace = self.pace
        pace.left -= 1
        if pace.left <= 0:
            pace.look(stream)
        gpu_waits = pace.gpu_waits
        wants_graph = self._short if gpu_waits is None else gpu_waits
        if self.replays and (wants_graph or (self._wish is not None and not self.direct)):
            replay = self.replays.get(pointers)
            if replay is not None and (not stream or not capture_nearby(stream)):
                replay.uses += 1
                if replay.launch(replay.graph, stream):
                    raise raw.error_of(raw.CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER, "cuGraphLaunch")
                return None if wants_graph else self._count(pointers, stream)
        direct = self.direct.get(_ANYWHERE)
        kept = self.launches.get(pointers) if self.launches else None
        if kept is None and not are_valid and (direct is None or pointers != direct.pointers):
            self.planned.check_addresses(pointers[:-1], pointers[-1])
        launch = None if kept is None else kept.launch
        if direct is None or not direct.launch(pointers, stream):
            launch = self._launch(pointers, stream, launch)
        elif kept is None and (not gpu_waits or direct.uses & 3):
            return None  # a graph saves little: one launch in four is looked at, where it saves anything
        if kept is not None:
            kept.launch, kept.uses = launch, kept.uses + 1
            if kept.uses >= kept.due and wants_graph and self.planned.replayable:
                self._make_replay(pointers, kept, stream)
        elif SEEN.again(self, pointers) and pointers not in self.replays:
            LAUNCHES.keep(self.launches, pointers, Kept(launch))
        return None

    def _launch(self, pointers: Addresses, stream: int, launch: Launch | None) -> Launch:
        """Queue the work by a plain launch, which is made if there is none. Return it."""
        handle = self.handle
        if launch is None:
            replay = self.replays.get(pointers)
            launch = self._bind(pointers) if replay is None else replay.plain
        interrupted = handle._in_use  # as handle.in_use does, without the cost of a context manager in each launch
        try:
            handle._in_use = stream
            if handle._address != stream:
                handle.set_stream(stream)
            status = launch()
        finally:
            handle._in_use = interrupted
            if interrupted is not None:
                handle.set_stream(interrupted)
        if status:
            del launch  # a traceback would keep it
            raise raw.error_of(status, self.planned.name)
        self._count(pointers, stream)
        return launch

    def _count(self, pointers: Addresses, stream: int) -> None:
        """Count a launch that would have been better direct."""
        wish = self._wish
        if wish is not None:
            wish.uses += 1
            if wish.uses >= wish.due:
                self._make_direct(pointers, stream, wish)

    def _bind(self, pointers: Addresses) -> Launch:
        return self.planned.executable.bind(self.handle, pointers[:-1], pointers[-1])

    def _make_replay(self, pointers: Addresses, kept: Kept, stream: int) -> None:
        """Replace a launch by a CUDA graph of it, unless there is no room or a capture is going on.

        Of hundreds of tuples that take turns, each graph would be made for a few launches.
        """
        if self.direct and kept.uses < _UNTIL_LAST_REPLAYS and 2 * len(REPLAYS) >= REPLAYS.limit:
            kept.due = _UNTIL_LAST_REPLAYS
            return
        if not REPLAYS.has_room(kept) or capture_nearby(stream):
            return
        with in_use(self.handle, stream):  # the stream that it had before may be destroyed
            replay = Replay.of(kept.launch or self._bind(pointers), self.handle)
        if replay is None:
            kept.due = NEVER
            return
        REPLAYS.keep(self.replays, pointers, replay)
        LAUNCHES.forget(self.launches, pointers)

    def _make_direct(self, pointers: Addresses, stream: int, wish: Wish) -> None:
        """Make the launch for all addresses, unless there is no room or a capture is going on."""
        if pointers[-1] % SPACE_ALIGNMENT or self.direct or not DIRECT.has_room(wish) or capture_nearby(stream):
            return
        with in_use(self.handle, stream):
            made = DirectLaunch.of(self._bind, self.handle, pointers)
        self._wish = None if made is None else Wish(_UNTIL_DIRECT, _CONTEST)
        if made is not None:
            DIRECT.keep(self.direct, _ANYWHERE, made)
