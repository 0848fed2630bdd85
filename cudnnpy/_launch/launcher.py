"""The launches of a plan in one thread: by cuDNN at first, then by passing its kernels to the driver directly.

A cuDNN launch binds the addresses and calls cudnnBackendExecute, about 11 us of host time on the machine of an H200.
A direct launch (direct/DESIGN.md) takes about 5 us, at any addresses. It is made after the second cuDNN launch of a plan,
if all facts that it relies on are verified; otherwise cuDNN launches the plan every time. A stream that is being captured
by the user records the same kernels.

Variant packs are not cached by their addresses. Of 372 plans of networks 342 are launched directly. For the others a ready
pack would save 4 us a launch where addresses return, which is not worth a table with limits over the process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet

from cudnnpy import raw
from cudnnpy._core.driver import current_device, has_several_devices, is_stream_or_torch_capturing, make_current
from cudnnpy._launch.address_validation import Addresses
from cudnnpy._launch.steps import WORKSPACE_ALIGNMENT, BoundLaunch, Executable
from cudnnpy._process_state import declare, in_forked_child, process_cache
from cudnnpy.handle import Handle, in_use, on_device

# cuDNN launches of a plan before its direct launch is made. A plan that is launched once never pays for it.
_DIRECT_THRESHOLD = 2
# Whether direct launches may be made and used; those that exist are not used while it is false.
_is_direct_allowed = True

declare(__name__, "_is_direct_allowed")


class Launchable(Protocol):
    """A plan or a program: an executable, and the facts that its launcher needs.

    `name` is for errors, `workspace_size` is in bytes, and `is_relocatable` is true if the same kernels serve all
    addresses, which are multiples of 16 then.
    """

    name: str
    device: int
    workspace_size: int
    is_relocatable: bool

    @property
    def _planning_ms(self) -> float:
        """The host time of planning, in milliseconds; 0 if it is unknown."""

    @property
    def _trace_text(self) -> Callable[[], str]:
        """The function that returns the beginning of a traced line (tracing.py), up to the source of the choice."""

    @property
    def executable(self) -> Executable:
        """The executable, which is bound to addresses that were checked."""

    def check_addresses(self, operands: Addresses, workspace: int) -> None:
        """Raise ValueError for invalid addresses of the operands or of the workspace."""


class DirectLaunch(Protocol):
    """The kernels of a plan, which are passed to the driver at the addresses of each launch."""

    addresses: Addresses | None  #: the addresses of the last launch, which are valid; None before the first one

    def launch(self, addresses: Addresses, stream: int) -> bool:
        """Queue the kernels. Return False, with nothing queued, if cuDNN has to launch them."""


MakeDirectLaunch = Callable[[Callable[[Addresses], BoundLaunch], Handle, Addresses], DirectLaunch | None]


@process_cache
def _direct_launch_maker() -> MakeDirectLaunch | None:
    """Return the function that makes direct launches, or None in an installation without the package `direct`."""
    try:
        from cudnnpy._launch.direct import make_direct_launch
    except ModuleNotFoundError as error:
        if error.name != "cudnnpy._launch.direct":
            raise
        logging.getLogger("cudnnpy").debug("direct launches are not installed: cuDNN launches every plan")
        return None
    return make_direct_launch


def allow_direct_launches(is_allowed: bool) -> None:
    """Set whether kernels may be passed to the driver directly, in all threads."""
    global _is_direct_allowed
    _is_direct_allowed = is_allowed


def are_direct_launches_allowed() -> bool:
    """Return whether kernels may be passed to the driver directly."""
    return _is_direct_allowed


def direct_launch_count() -> int:
    """Return the number of plans, in all threads, that are launched directly."""
    return len(_direct_launchers) if _is_direct_allowed else 0


class Launcher:
    """A plan in one thread: the thread's cuDNN handle, and the direct launch once there is one."""

    __slots__ = (
        "__weakref__",
        "_check_addresses",
        "_cudnn_launches",
        "_has_several_devices",
        "_may_be_direct",
        "device",
        "direct",
        "handle",
        "planned",
    )

    def __init__(self, planned: Launchable) -> None:
        self.planned, self.device = planned, planned.device
        self._check_addresses = planned.check_addresses
        self.handle = Handle.default(self.device)
        if current_device() < 0:  # the first CUDA call of this thread: the driver's functions need a context
            make_current(self.device)
        self._has_several_devices = has_several_devices()
        self.direct: DirectLaunch | None = None
        self._may_be_direct, self._cudnn_launches = planned.is_relocatable, 0

    def run(self, addresses: Addresses, stream: int, are_valid: object = False) -> None:
        """Queue the work on the addresses (of the operands, then of the workspace) and the stream.

        `are_valid` is true for addresses that need no check: aligned as the plan's are, not null, and without overlaps.
        """
        if self._has_several_devices and current_device() != self.device:
            with on_device(self.device):
                return self.run(addresses, stream, are_valid)
        direct = self.direct
        if not (are_valid or (direct is not None and addresses == direct.addresses)):
            self._check_addresses(addresses[:-1], addresses[-1])
        if direct is None or not (_is_direct_allowed and direct.launch(addresses, stream)):
            self._run_by_cudnn(addresses, stream)
        return None

    def _run_by_cudnn(self, addresses: Addresses, stream: int) -> None:
        """Queue the work by a launch that is bound to the addresses. Make the direct launch after a few of them."""
        launch = self._bind(addresses)
        handle = self.handle
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
            del launch  # a traceback would keep it alive
            raise raw.error_of(status, self.planned.name)
        if self._may_be_direct:
            self._cudnn_launches += 1
            if self._cudnn_launches >= _DIRECT_THRESHOLD:
                self._make_direct(addresses, stream)

    def _bind(self, addresses: Addresses) -> BoundLaunch:
        return self.planned.executable.bind(self.handle, addresses[:-1], addresses[-1])

    def _make_direct(self, addresses: Addresses, stream: int) -> None:
        """Make the direct launch, unless a later launch has to: it needs an aligned workspace, and no capture in progress."""
        if not _is_direct_allowed or addresses[-1] % WORKSPACE_ALIGNMENT or is_stream_or_torch_capturing(stream):
            return
        self._may_be_direct = False  # there is one attempt, also if garbage collection launches the same plan meanwhile
        make = _direct_launch_maker()
        if make is None:
            return
        with in_use(self.handle, stream):  # the stream that it had before may be destroyed
            self.direct = make(self._bind, self.handle, addresses)
        if self.direct is not None:
            _direct_launchers.add(self)


_direct_launchers: WeakSet[Launcher] = WeakSet()  # of all threads, with a direct launch


def _drop_direct_launches() -> None:
    """In a forked child, which cannot use CUDA's objects of its parent: cuDNN launches, and raises the error."""
    for launcher in list(_direct_launchers):
        launcher.direct = None
    _direct_launchers.clear()


declare(__name__, "_direct_launchers", resets=False)
in_forked_child(_drop_direct_launches)
