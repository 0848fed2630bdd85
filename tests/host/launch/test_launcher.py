"""The launches of a plan in one thread: by cuDNN, then direct ones where those are on and possible. No GPU here."""

from __future__ import annotations

import gc
import logging
import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from stand_in_driver import DriverFixture

import cudnnpy
from cudnnpy import availability, raw
from cudnnpy._core import driver as driver_calls
from cudnnpy._launch import launcher as launcher_module
from cudnnpy._launch.address_validation import Addresses
from cudnnpy._launch.direct import direct_launch
from cudnnpy._launch.launcher import Launcher
from cudnnpy.errors import ClosedError, StatusError
from cudnnpy.handle import Handle

STREAM, OTHER = 0x5000, 0x6000
HERE: Addresses = (16, 32, 0)


class Log(list[Any]):
    """The events in order; `take` empties it."""

    def take(self) -> list[Any]:
        events, self[:] = list(self), []
        return events


class FakeHandle(Handle):
    def __init__(self, log: Log) -> None:
        self._log, self._address = log, 0
        self._pointer = raw.cudnnHandle_t()

    def set_stream(self, stream: Any) -> None:
        if stream != self._address:
            self._log.append(("set_stream", stream))
        self._address = stream


class FakePlan:
    name, device, workspace_size = "fake plan", 0, 0

    def __init__(self, log: Log, *, is_relocatable: bool = False) -> None:
        self._log, self.is_relocatable, self.status = log, is_relocatable, 0
        self._launches: list[weakref.ref[Any]] = []

    @property
    def executable(self) -> FakePlan:
        return self

    def _trace_text(self) -> str:
        return "a problem # an engine"

    def check_addresses(self, operands: Sequence[int], workspace: int) -> None:
        self._log.append(("check", (*operands, workspace)))

    def bind(self, handle: Any, operands: Addresses, workspace: int) -> Any:
        assert handle.pointer is not None  # raises ClosedError
        addresses = (*operands, workspace)
        self._log.append(("bind", addresses))

        def launch() -> int:
            self._log.append(("launch", addresses, handle._address))
            return self.status

        self._launches.append(weakref.ref(launch))
        return launch

    def alive(self) -> int:
        """The number of bound launches that are alive."""
        gc.collect()
        return sum(launch() is not None for launch in self._launches)


class FakeDriver:
    """The driver's calls on the path of a launch, and the maker of direct launches."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.capturing: set[int] = set()
        self.device, self.devices = 0, 1
        self.why_not, self.other_pointers = "", 0  # no direct launch can be made; of one, pointers of no operand

    def cuStreamIsCapturing(self, stream: int, state: Any) -> int:
        state._obj.value = int(stream in self.capturing)
        return 0

    def cuCtxGetDevice(self, device: Any) -> int:
        device._obj.value = self.device
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = self.devices
        return 0

    def make(self, bind: Callable[[Addresses], Any], handle: Any, addresses: Addresses) -> FakeDirect | str:
        self.log.append("make")
        return self.why_not or FakeDirect(self)


class FakeDirect:
    """A direct launch."""

    def __init__(self, driver: FakeDriver) -> None:
        self.driver = driver
        self.addresses: Addresses | None = None
        self.other_pointers = driver.other_pointers

    def launch(self, addresses: Addresses, stream: int) -> bool:
        self.addresses = addresses
        self.driver.log.append(("direct", addresses, stream))
        return True


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture(autouse=True)
def driver(log: Log, monkeypatch: pytest.MonkeyPatch, cuda_driver: DriverFixture) -> Iterator[FakeDriver]:
    """A driver, one device and a handle."""
    fake = FakeDriver(log)
    handle = FakeHandle(log)
    cuda_driver(libcuda=fake)
    driver_calls.has_several_devices.cache_clear()
    monkeypatch.setattr(direct_launch, "make_direct_launch", lambda *given: fake.make(*given))
    monkeypatch.setattr(Handle, "default", classmethod(lambda cls, device: handle))
    cudnnpy.set_direct_launches(True)
    yield fake
    driver_calls.has_several_devices.cache_clear()


def run(launcher: Launcher, count: int = 1, addresses: Addresses = HERE, stream: int = STREAM) -> None:
    for _ in range(count):
        launcher.run(addresses, stream)


def test_the_last_two_tuples_of_addresses_are_bound_once(log: Log) -> None:
    plan = FakePlan(log)
    launcher = Launcher(plan)
    other, third = (16, 48, 0), (16, 32, 256)
    run(launcher)
    assert log.take() == [("check", HERE), ("bind", HERE), ("set_stream", STREAM), ("launch", HERE, STREAM)]
    run(launcher)
    assert log.take() == [("check", HERE), ("launch", HERE, STREAM)]
    run(launcher, 1, other, OTHER)
    assert log.take()[1:] == [("bind", other), ("set_stream", OTHER), ("launch", other, OTHER)]
    run(launcher)
    run(launcher, 1, other)
    assert log.take() == [
        *[("check", HERE), ("set_stream", STREAM), ("launch", HERE, STREAM)],
        *[("check", other), ("launch", other, STREAM)],
    ]
    run(launcher, 1, third)
    assert plan.alive() == 2
    run(launcher, 1, other)
    run(launcher)  # was evicted
    assert [event for event in log.take() if event[0] == "bind"] == [("bind", third), ("bind", HERE)]
    del launcher
    assert plan.alive() == 0


def test_bound_launches_end_with_the_handle_and_with_a_direct_launch(log: Log) -> None:
    plan = FakePlan(log, is_relocatable=True)
    launcher = Launcher(plan)
    run(launcher)
    assert plan.alive() == 1
    run(launcher, 2)
    assert log[-1] == ("direct", HERE, STREAM)
    assert plan.alive() == 0
    plan = FakePlan(log)
    launcher = Launcher(plan)
    run(launcher)
    launcher.handle.close()
    assert plan.alive() == 0
    with pytest.raises(ClosedError):
        run(launcher)


def test_nothing_is_made_during_a_capture_or_for_a_less_aligned_workspace_but_after_it(
    log: Log, driver: FakeDriver
) -> None:
    launcher = Launcher(FakePlan(log, is_relocatable=True))
    driver.capturing = {STREAM}
    run(launcher, 5)
    driver.capturing = set()
    run(launcher, 5, (16, 32, 16))
    assert "make" not in log.take()
    run(launcher, 2, (16, 32, 256))
    assert log.take()[-3:] == ["make", ("check", (16, 32, 256)), ("direct", (16, 32, 256), STREAM)]


def test_the_switch_turns_direct_launches_off_and_on(log: Log) -> None:
    launcher = Launcher(FakePlan(log, is_relocatable=True))
    run(launcher, 3)
    assert cudnnpy.cache_info()[4:] == (1, True)
    cudnnpy.set_direct_launches(False)
    log.clear()
    run(launcher, 2)
    assert [event[0] for event in log.take() if event[0] != "check"] == ["bind", "launch", "launch"]
    assert cudnnpy.cache_info()[4:] == (0, False)
    late = Launcher(FakePlan(log, is_relocatable=True))
    run(late, 5)
    assert "make" not in log.take()
    cudnnpy.set_direct_launches(True)
    for each in (launcher, late):  # by cuDNN once more, after which the direct launch is made
        run(each, 2)
        assert [event[0] for event in log.take()] == ["check", "launch", "m", "check", "direct"]
    assert cudnnpy.cache_info()[4:] == (2, True)
    for bad in (1, "yes"):
        with pytest.raises(TypeError, match=f"is_on must be True, False or None; got {bad!r}"):
            cudnnpy.set_direct_launches(bad)  # type: ignore[arg-type]
    del launcher, late, each
    gc.collect()
    assert cudnnpy.cache_info().direct_launches == 0


@pytest.mark.parametrize(
    ("capability", "cudnn", "runtime", "release", "why"),
    [
        ("9.0", 91900, 13000, (580, 65, 6), ""),
        ("9.0", 91900, 13010, (580,), ""),
        ("9.0", 91900, 13000, (590, 1, 1), "compute capability 9.0, cuDNN 9.19.0 for CUDA 13, driver 590"),
        ("9.0", 91900, 13000, None, "compute capability 9.0, cuDNN 9.19.0 for CUDA 13, driver unknown"),
        ("9.0", 91900, 12090, (580, 65, 6), "compute capability 9.0, cuDNN 9.19.0 for CUDA 12"),
        ("9.0", 91901, 13000, (580, 65, 6), "compute capability 9.0, cuDNN 9.19.1 for CUDA 13"),
        ("10.0", 91900, 13000, (580, 65, 6), "compute capability 10.0, cuDNN 9.19.0 for CUDA 13"),
    ],
)
def test_the_default_is_on_for_the_rows_of_the_table_alone(
    log: Log, monkeypatch: pytest.MonkeyPatch, capability: str, cudnn: int, runtime: int, release: Any, why: str
) -> None:
    def asked() -> Any:
        if release is None:
            raise RuntimeError("there is no NVML")
        return release

    modules = {"core.system": SimpleNamespace(get_kernel_mode_driver_version=asked)}
    monkeypatch.setattr(launcher_module, "gpu_facts", lambda device: ("a GPU", capability, 132))
    monkeypatch.setattr(launcher_module, "cuda_python", modules.__getitem__)
    monkeypatch.setattr(raw, "version", lambda: cudnn)
    monkeypatch.setattr(raw, "cudnnGetCudartVersion", lambda: runtime)
    launcher_module.why_not_proven.cache_clear()  # type: ignore[attr-defined]
    cudnnpy.set_direct_launches(None)
    launcher = Launcher(FakePlan(log, is_relocatable=True))
    run(launcher, 4)
    assert ("make" in log) is (why == "")
    assert launcher.launch_text() == (f"by cuDNN (unproven: {why})" if why else "direct")
    major, minor = map(int, capability.split("."))
    gpu = availability.Gpu(0, "a GPU", (major, minor), 1 << 30)
    text = f"by cuDNN (unproven: {why})" if why else "direct, where they are verified"
    assert availability._launches(gpu) == text
    rows = [*replace(availability.report(), gpus=(gpu,), launches=(text,)).rows()]
    assert rows[-1] == ("  launches", text)
    cudnnpy.set_direct_launches(True)
    run(launcher, 2)
    assert log[-1] == ("direct", HERE, STREAM)


@pytest.mark.parametrize(
    ("why_not", "pointers", "text"),
    [
        ("", 0, "direct"),
        ("", 2, "direct (pointers of no operand: 2)"),
        ("no stream", 0, "by cuDNN (not verified: no stream)"),
    ],
)
def test_the_log_says_who_launches_a_plan(
    log: Log, driver: FakeDriver, caplog: pytest.LogCaptureFixture, why_not: str, pointers: int, text: str
) -> None:
    driver.why_not, driver.other_pointers = why_not, pointers
    with caplog.at_level(logging.DEBUG, "cudnnpy"):
        run(Launcher(FakePlan(log, is_relocatable=True)), 5)
    assert [record.message for record in caplog.records] == [f"a problem # an engine; {text}"]


def test_a_forked_child_launches_nothing_directly_and_with_no_launch_of_its_parent(log: Log) -> None:
    launcher, plain = Launcher(FakePlan(log, is_relocatable=True)), Launcher(FakePlan(log))
    run(launcher, 3)
    run(plain)
    log.clear()
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside other threads
        child = os.fork()
    if not child:
        try:
            launcher.handle._forget()  # as for every object that was made before
            for each in (launcher, plain):
                with pytest.raises(ClosedError):
                    run(each)
            os.write(writing, repr([cudnnpy.cache_info().direct_launches, *log]).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        assert answer.read() == repr([0, ("check", HERE), ("check", HERE)])
    assert cudnnpy.cache_info().direct_launches == 1
    run(launcher)
    assert log == [("direct", HERE, STREAM)]


def test_a_bad_status_raises_and_names_the_plan(log: Log) -> None:
    plan = FakePlan(log, is_relocatable=True)
    launcher = Launcher(plan)
    plan.status = int(raw.CUDNN_STATUS_EXECUTION_FAILED)
    for _ in range(10):
        with pytest.raises(StatusError, match=r"fake plan returned CUDNN_STATUS_EXECUTION_FAILED \(5000\)"):
            run(launcher)
    assert "make" not in log
    assert plan.alive() == 0
    plan.status = 0
    run(launcher)
    plan.status = int(raw.CUDNN_STATUS_EXECUTION_FAILED)
    with pytest.raises(StatusError) as raised:
        run(launcher, 1, (16, 48, 0))
    assert raised
    assert plan.alive() == 0  # though the traceback is


def test_addresses_that_are_valid_are_not_checked(log: Log) -> None:
    launcher = Launcher(FakePlan(log, is_relocatable=True))
    for number in range(4):
        launcher.run((16, 32 + 16 * number, 0), STREAM, True)
    assert [event[0] for event in log] == ["bind", "set_stream", "launch", "bind", "launch", "m", "direct", "direct"]


def test_a_launch_that_interrupts_a_launch_leaves_its_stream(log: Log) -> None:
    """A signal handler, or a destructor that garbage collection runs, launches while the handle is in use."""
    plan, other = FakePlan(log), FakePlan(log)
    launcher, ending = Launcher(plan), Launcher(other)
    bind = plan.bind

    def interrupted(handle: Any, operands: Addresses, workspace: int) -> Any:
        launch = bind(handle, operands, workspace)

        def first() -> int:
            run(ending, 1, (64, 80, 0), OTHER)
            return int(launch())

        return first

    plan.bind = interrupted  # type: ignore[method-assign]
    run(launcher)
    assert [event[1:] for event in log if event[0] == "launch"] == [((64, 80, 0), OTHER), (HERE, STREAM)]


def test_the_arrays_device_is_made_current(log: Log, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[int] = []

    class On:
        def __init__(self, device: int) -> None:
            entered.append(device)

        def __enter__(self) -> None:
            log.append("on device")
            driver.device = 1

        def __exit__(self, *_: object) -> None:
            log.append("back")
            driver.device = 0

    driver.devices = 2
    monkeypatch.setattr(launcher_module, "on_device", On)
    plan = FakePlan(log)
    plan.device = 1
    launcher = Launcher(plan)
    run(launcher)
    assert entered == [1]
    assert [log[0], log[-1]] == ["on device", "back"]
    driver.device = 1
    run(launcher)
    assert entered == [1]


def test_the_only_visible_device_is_not_checked(driver, monkeypatch, log):
    """CUDA_VISIBLE_DEVICES hides the other GPUs of a machine."""
    monkeypatch.setattr("cuda.core.system.get_num_devices", lambda: 8)
    launcher = Launcher(FakePlan(log))
    driver.device = 1  # it would be changed, if it was compared
    monkeypatch.setattr(launcher_module, "on_device", None)
    run(launcher)
    assert log[-1][0] == "launch"


def test_a_thread_without_a_device_gets_the_plans(
    log: Log, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    monkeypatch.setattr(launcher_module, "make_current", made.append)
    Launcher(FakePlan(log))
    assert made == []
    driver.device = -1
    Launcher(FakePlan(log))
    assert made == [0]


def test_the_legacy_default_stream_cannot_be_capturing(driver: FakeDriver) -> None:
    """The default stream of the thread can: CU_STREAM_PER_THREAD, which is 2."""
    driver.capturing = {0, 1, 2, STREAM}
    assert [driver_calls.is_capturing(stream) for stream in (0, 1, 2, STREAM, OTHER)] == [
        False,
        False,
        True,
        True,
        False,
    ]
