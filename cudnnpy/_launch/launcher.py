"""Launch a plan in one thread: by cuDNN, or directly by passing its kernels to the driver.

A cuDNN launch binds the addresses and calls cudnnBackendExecute, about 11 us of host time on the machine of an H200. 4 us of it
are the variant pack. A launcher keeps its last two bound launches, by all of their addresses, because programs return to
their addresses and often alternate between two. Two slots need no limit over the process, and no look-up.

A direct launch (direct/DESIGN.md) takes about 5 us, at any addresses. It is made after the second cuDNN launch of a plan,
where direct launches are on (set_direct_launches) and if all facts that it relies on are verified. A stream that is being
captured by the user records the same kernels.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakSet

from cudnnpy import raw
from cudnnpy._checks.option_values import error_repr
from cudnnpy._core.cuda_python import cuda_python, gpu_facts
from cudnnpy._core.driver import current_device, has_several_devices, is_stream_or_torch_capturing, make_current
from cudnnpy._launch.address_validation import Addresses
from cudnnpy._launch.steps import WORKSPACE_ALIGNMENT, BoundLaunch
from cudnnpy._process.module_state import declare, in_forked_child, process_cache
from cudnnpy.handle import Handle, in_use, on_device

if TYPE_CHECKING:
    from cudnnpy._launch.direct.direct_launch import DirectLaunch
    from cudnnpy._launch.program import Program
    from cudnnpy._planning.plan import Plan

# Its executable is bound to addresses that its `check_addresses` has checked. If `is_relocatable` is true, the same kernels
# serve all addresses, which are multiples of 16 then, and have the same parameters but for the addresses.
Launchable: TypeAlias = "Plan | Program"

# cuDNN launches of a plan before its direct launch is made. A plan that is launched once never pays for it.
_DIRECT_THRESHOLD = 2

# The machines on which direct launches are on by default, because the tests ran there with them:
# the compute capability, the release of cuDNN, the major release of the CUDA runtime that cuDNN was built with, and the major
# release of the driver. A row is written by hand, in the commit that records its run of the GPU tests in docs/dev/gpu.md.
PROVEN = (("9.0", 91900, 13, 580),)

_log = logging.getLogger("cudnnpy")
_setting: bool | None = None  # of set_direct_launches
_epoch = object()  # replaced by set_direct_launches and in a forked child, where no direct launch of before may be used

declare(__name__, "_setting")
declare(__name__, "_epoch", in_child=True)


def set_direct_launches(is_on: bool | None) -> None:
    """Set whether the kernels of plans may be passed to the driver directly, without cuDNN, in all threads.

    A direct launch takes the host about half as long as a launch by cuDNN. It is made after the second launch of a plan, and
    only for kernels whose parameters were verified, bit for bit, to be the same but for the addresses of the call.

    Parameters
    ----------
    is_on : bool or None
        True: on every GPU. False: nowhere, so that cuDNN launches every plan. None, the default: on the machines for which
        the tests ran with direct launches. These are a table of compute capabilities and of releases of cuDNN, CUDA and the
        driver; ``cudnnpy info`` says whether this machine is in it.

    Raises
    ------
    TypeError
        If the argument is not a bool or None.

    Examples
    --------
    >>> import cudnnpy
    >>> cudnnpy.set_direct_launches(False)
    >>> cudnnpy.cache_info().direct
    False
    >>> cudnnpy.set_direct_launches(None)
    """
    global _setting, _epoch
    if not (is_on is None or isinstance(is_on, bool)):
        raise TypeError(f"is_on must be True, False or None; got {error_repr(is_on)}")
    _setting, _epoch = is_on, object()
    _direct_launchers.clear()


def direct_launches() -> tuple[int, bool | None]:
    """Return the number of plans, in all threads, that are launched directly, and the setting of set_direct_launches."""
    return len(_direct_launchers), _setting


def _why_not_direct(device: int) -> str:
    """Return why direct launches are off on a device; "" if they are on."""
    if _setting is None:
        return why_not_proven(gpu_facts(device)[1])
    return "" if _setting else "turned off"


# No bound launches: the addresses and the launch of the last one, then of the one before. A plan has at least one address.
_UNBOUND: tuple[Addresses, Any, Addresses, Any] = ((), None, (), None)


class Launcher:
    """A plan in one thread: the thread's cuDNN handle, the last bound launches, and the direct launch once there is one."""

    def __init__(self, planned: Launchable) -> None:
        self.planned, self.device = planned, planned.device
        self._check_addresses = planned.check_addresses
        self.handle = Handle.default(self.device)
        # its end ends the bound launches, which refer to it
        self.handle.__dict__.setdefault("_launchers", WeakSet()).add(self)
        if current_device() < 0:  # the first CUDA call of this thread: the driver's functions need a context
            make_current(self.device)
        self._has_several_devices = has_several_devices()
        self._cudnn_launches = 0
        self.drop_bound_launches()
        self._begin()

    def _begin(self) -> None:
        """Let cuDNN launch until a direct launch is made: at first, after set_direct_launches, and in a forked child."""
        _direct_launchers.discard(self)
        self._epoch = _epoch
        self.direct: DirectLaunch | None = None
        self._may_be_direct = self.planned.is_relocatable
        self._why_by_cudnn = "not verified yet" if self._may_be_direct else "not relocatable"

    def drop_bound_launches(self) -> None:
        """Destroy the bound launches that no call is using."""
        self._bound = _UNBOUND

    def launch_text(self) -> str:
        """Return who launches the plan next: "direct", or "by cuDNN" with the reason."""
        if self._epoch is not _epoch:
            self._begin()
        if self.direct is None:
            return f"by cuDNN ({self._why_by_cudnn})"
        count = self.direct.other_pointers
        return f"direct (pointers of no operand: {count})" if count else "direct"

    def run(self, addresses: Addresses, stream: int, are_valid: object = False) -> None:
        """Queue the work on the addresses (of the operands, then of the workspace) and the stream.

        `are_valid` is true for addresses that need no check: aligned as the plan's are, not null, and without overlaps.
        """
        if self._has_several_devices and current_device() != self.device:
            with on_device(self.device):
                return self.run(addresses, stream, are_valid)
        if self._epoch is not _epoch:
            self._begin()
        direct = self.direct
        if not (are_valid or (direct is not None and addresses == direct.addresses)):
            self._check_addresses(addresses[:-1], addresses[-1])
        if direct is None or not direct.launch(addresses, stream):
            self._run_by_cudnn(addresses, stream)
        return None

    def _run_by_cudnn(self, addresses: Addresses, stream: int) -> None:
        """Queue the work by a launch that is bound to the addresses. Make the direct launch after a few of them."""
        last, launch, earlier, other = self._bound
        # A launch that fails is dropped. One that garbage collection runs in between binds its own.
        self._bound = _UNBOUND
        if addresses != last:
            launch, other = other if addresses == earlier else self._bind(addresses), launch
            earlier = last
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
            del launch, other  # a traceback would keep them alive
            raise raw.error_of(status, self.planned.name)
        self._bound = addresses, launch, earlier, other
        if self._may_be_direct:
            self._cudnn_launches += 1
            if self._cudnn_launches >= _DIRECT_THRESHOLD:
                self._make_direct(addresses, stream)

    def _bind(self, addresses: Addresses) -> BoundLaunch:
        return self.planned.executable.bind(self.handle, addresses[:-1], addresses[-1])

    def _make_direct(self, addresses: Addresses, stream: int) -> None:
        """Make the direct launch, unless a later launch has to: it needs an aligned workspace, and no capture in progress."""
        if addresses[-1] % WORKSPACE_ALIGNMENT or is_stream_or_torch_capturing(stream):
            return
        self._may_be_direct = False  # there is one attempt, also if garbage collection launches the same plan meanwhile
        if why := _why_not_direct(self.device):
            self._why_by_cudnn = why
        else:
            from cudnnpy._launch.direct import direct_launch

            with in_use(self.handle, stream):  # the stream that it had before may be destroyed
                made = direct_launch.make_direct_launch(self._bind, self.handle, addresses)
            if isinstance(made, str):
                self._why_by_cudnn = f"not verified: {made}"
            else:
                self.direct = made
                self.drop_bound_launches()
                _direct_launchers.add(self)
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s; %s", self.planned._trace_text(), self.launch_text())


_direct_launchers: WeakSet[Launcher] = WeakSet()  # of all threads, with a direct launch

declare(__name__, "_direct_launchers", resets=False)
in_forked_child(_direct_launchers.clear)


@process_cache
def why_not_proven(capability: str) -> str:
    """Return why direct launches are off by default on the GPUs of a compute capability ("9.0"); "" if they are on.

    The driver is asked for its release only if the rest is in the table, because loading NVML takes a while.
    """
    cudnn, runtime = raw.version(), raw.cudnnGetCudartVersion() // 1000
    drivers = [row[3] for row in PROVEN if row[:3] == (capability, cudnn, runtime)]
    driver = _driver_release() if drivers else 0
    if driver in drivers:
        return ""
    release = f", driver {driver or 'unknown'}" if drivers else ""
    return f"unproven: compute capability {capability}, cuDNN {raw.version_text(cudnn)} for CUDA {runtime}{release}"


def _driver_release() -> int:
    """Return the major release of the driver, 580 for example; 0 if it is unknown."""
    try:
        return int(cuda_python("core.system").get_kernel_mode_driver_version()[0])
    except Exception:  # of NVML, which may be missing or fail
        return 0
