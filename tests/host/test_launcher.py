"""The path of every call: known addresses bind once, replays take over, captures get the plain launch. No GPU here."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from ctypes import c_void_p
from types import SimpleNamespace
from typing import Any

import pytest
from cudnnpy._launch import captures, cuda_graph
from cudnnpy._launch import launcher as launcher_module
from cudnnpy._launch.cuda_graph import Replay
from cudnnpy._launch.launcher import Launcher, Pointers
from cudnnpy._launch.pace import Pace
from stand_in_pace import GivenPace

from cudnnpy import raw
from cudnnpy._core import driver as driver_calls
from cudnnpy.errors import StatusError
from cudnnpy.handle import Handle

STREAM, OTHER = 0x5000, 0x6000
MANY = 50  # launches of the same addresses, of which the last are replays


class Log(list[Any]):
    """What happened, in order; `take` empties it."""

    def take(self) -> list[Any]:
        events, self[:] = list(self), []
        return events


class FakeHandle:
    def __init__(self, log: Log) -> None:
        self._log, self._address = log, 0
        self._in_use: int | None = None

    def set_stream(self, stream: int) -> None:
        if stream != self._address:
            self._log.append(("set_stream", stream))
        self._address = stream


class FakePlan:
    name, device, workspace_size, movable, is_long = "fake plan", 0, 0, False, False

    def __init__(self, log: Log, *, replayable: bool = False) -> None:
        self._log, self.replayable, self.status = log, replayable, 0
        self._launches: list[weakref.ref[Any]] = []

    @property
    def executable(self) -> FakePlan:
        return self

    def check_addresses(self, operands: Sequence[int], workspace: int) -> None:
        """Takes any."""

    def bind(self, handle: Any, operands: Pointers, workspace: int) -> Any:
        pointers = (*operands, workspace)
        self._log.append(("bind", pointers))

        def launch() -> int:
            self._log.append(("launch", pointers, handle._address))
            return self.status

        self._launches.append(weakref.ref(launch))
        return launch

    def kept(self) -> int:
        """How many launches have not been forgotten."""
        gc.collect()
        return sum(launch() is not None for launch in self._launches)


class Owner:
    """Of a CUDA graph."""

    def __init__(self, handle: int) -> None:
        self.handle = handle


class FakeDriver:
    """The three driver calls on the path of a launch."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.capturing: set[int] = set()
        self.status, self.device = 0, 0
        self.captured: dict[int, Any] = {}  # the addresses of a launch, by the CUDA graph that it was captured in
        self.graphs: weakref.WeakSet[Owner] = weakref.WeakSet()  # that have not been given back

    def cuGraphLaunch(self, graph: c_void_p, stream: int) -> int:
        number = graph.value or 0
        self._log.append(("replay", self.captured.get(number, number), stream))
        return self.status

    def cuGraphGetNodes(self, graph: c_void_p, nodes: None, count: Any) -> int:
        count._obj.value = 1
        return 0

    def cuStreamIsCapturing(self, stream: int, state: Any) -> int:
        state._obj.value = int(stream in self.capturing)
        return 0

    def cuCtxGetDevice(self, device: Any) -> int:
        device._obj.value = self.device
        return 0


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def driver(log: Log, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """A driver, one device, a handle, and replays that are made without a GPU."""
    fake = FakeDriver(log)
    handle = FakeHandle(log)
    for module in (driver_calls, cuda_graph):
        monkeypatch.setattr(module, "driver_library", lambda: fake)
    monkeypatch.setattr(launcher_module, "several_devices", lambda: False)
    monkeypatch.setattr(Pace, "of_thread", classmethod(lambda cls, device: GivenPace(SimpleNamespace(gpu_waits=True))))
    monkeypatch.setattr(Handle, "default", classmethod(lambda cls, device: handle))

    def of(launch: Any, handle: Any) -> Replay:
        graph = len(fake.captured) + 1
        assert launch() == 0
        _, fake.captured[graph], _ = log.pop()
        log.append("capture")
        owner = Owner(graph)
        fake.graphs.add(owner)
        return Replay(owner, launch)

    monkeypatch.setattr(Replay, "of", of)
    return fake


def run(launcher: Launcher, count: int = 1, pointers: Pointers = (16, 32, 0), stream: int = STREAM) -> None:
    for _ in range(count):
        launcher.run(pointers, stream)


@pytest.mark.usefixtures("driver")
def test_addresses_that_are_used_again_are_kept_and_the_stream_is_set_when_it_changes(log: Log) -> None:
    plan = FakePlan(log)
    launcher = Launcher(plan)
    run(launcher)
    assert log.take() == [("bind", (16, 32, 0)), ("set_stream", STREAM), ("launch", (16, 32, 0), STREAM)]
    assert plan.kept() == 0
    run(launcher)
    assert log.take() == [("bind", (16, 32, 0)), ("launch", (16, 32, 0), STREAM)]
    assert plan.kept() == 1
    run(launcher, 2)
    assert log.take() == [("launch", (16, 32, 0), STREAM)] * 2
    run(launcher, stream=OTHER)
    assert log.take() == [("set_stream", OTHER), ("launch", (16, 32, 0), OTHER)]
    run(launcher, pointers=(16, 48, 0), stream=OTHER)
    assert log.take() == [("bind", (16, 48, 0)), ("launch", (16, 48, 0), OTHER)]


def test_after_a_few_launches_a_replay_takes_over(log: Log, driver: FakeDriver) -> None:
    launcher = Launcher(FakePlan(log, replayable=True))
    run(launcher, 2)
    assert "capture" not in log
    run(launcher, MANY)
    events = log.take()
    assert events.count("capture") == 1
    assert ("launch", (16, 32, 0), STREAM) in events[: events.index("capture")]
    assert set(events[events.index("capture") + 1 :]) == {("replay", (16, 32, 0), STREAM)}
    run(launcher, 3)
    run(launcher, stream=OTHER)  # a graph goes to any stream, and the handle's is left alone
    run(launcher, stream=0)
    assert log.take() == [("replay", (16, 32, 0), stream) for stream in (STREAM, STREAM, STREAM, OTHER, 0)]
    run(launcher, pointers=(16, 48, 0))
    assert log.take()[0] == ("bind", (16, 48, 0))
    run(launcher, MANY, (16, 48, 0))
    log.take()
    run(launcher, pointers=(16, 48, 0))
    run(launcher, pointers=(16, 32, 0))
    assert log.take() == [("replay", (16, 48, 0), STREAM), ("replay", (16, 32, 0), STREAM)]


@pytest.mark.usefixtures("driver")
def test_what_is_not_replayable_never_is(log: Log) -> None:
    launcher = Launcher(FakePlan(log, replayable=False))
    run(launcher, MANY)
    assert "capture" not in log
    assert sum(event[0] == "launch" for event in log) == MANY


@pytest.mark.usefixtures("driver")
def test_a_replay_that_cannot_be_made_is_asked_for_once(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(Replay, "of", lambda launch, handle: asked.append(launch))
    launcher = Launcher(FakePlan(log, replayable=True))
    run(launcher, MANY)
    assert len(asked) == 1
    assert sum(event[0] == "launch" for event in log) == MANY


def test_a_capture_gets_the_plain_launch(log: Log, driver: FakeDriver) -> None:
    plan = FakePlan(log, replayable=True)
    launcher = Launcher(plan)
    run(launcher, MANY)
    assert log.take()[-1][0] == "replay"
    driver.capturing = {OTHER}
    run(launcher, stream=OTHER)
    assert log.take() == [("set_stream", OTHER), ("launch", (16, 32, 0), OTHER)]
    plan.status = int(raw.CUDNN_STATUS_EXECUTION_FAILED)
    with pytest.raises(StatusError, match="fake plan returned CUDNN_STATUS_EXECUTION_FAILED"):
        run(launcher, stream=OTHER)
    plan.status = 0
    log.take()
    run(launcher, stream=STREAM)  # another stream's capture is no concern of this one
    driver.capturing = set()
    run(launcher, stream=OTHER)
    assert log.take() == [("replay", (16, 32, 0), STREAM), ("replay", (16, 32, 0), OTHER)]


def test_no_replay_is_made_while_capturing_but_after_it(log: Log, driver: FakeDriver) -> None:
    launcher = Launcher(FakePlan(log, replayable=True))
    driver.capturing = {STREAM}
    run(launcher, MANY)
    assert "capture" not in log.take()
    driver.capturing = set()
    run(launcher, 2)
    assert log.take() == [("launch", (16, 32, 0), STREAM), "capture", ("replay", (16, 32, 0), STREAM)]


@pytest.mark.usefixtures("driver")
def test_a_bad_status_raises_and_names_the_plan(log: Log) -> None:
    plan = FakePlan(log, replayable=True)
    launcher = Launcher(plan)
    plan.status = int(raw.CUDNN_STATUS_EXECUTION_FAILED)
    for _ in range(MANY):
        with pytest.raises(StatusError, match=r"fake plan returned CUDNN_STATUS_EXECUTION_FAILED \(5000\)"):
            run(launcher)
    assert "capture" not in log
    plan.status = 0
    run(launcher)


def test_a_replay_that_fails_raises(log: Log, driver: FakeDriver) -> None:
    launcher = Launcher(FakePlan(log, replayable=True))
    run(launcher, MANY)
    driver.status = 700
    with pytest.raises(StatusError, match="cuGraphLaunch returned CUDNN_STATUS_EXECUTION_FAILED"):
        run(launcher)


@pytest.mark.usefixtures("driver")
def test_addresses_that_are_refused_are_neither_bound_nor_remembered(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = FakePlan(log)
    launcher = Launcher(plan)

    def refuse(operands: Sequence[int], workspace: int) -> None:
        assert (operands, workspace) == ((16, 32), 0)
        raise ValueError("misaligned")

    with monkeypatch.context() as patch:
        patch.setattr(plan, "check_addresses", refuse)
        for _ in range(3):
            with pytest.raises(ValueError, match="misaligned"):
                run(launcher)
    assert launcher.launches == {}
    assert log == []
    run(launcher)
    assert [event[0] for event in log] == ["bind", "set_stream", "launch"]


@pytest.mark.usefixtures("driver")
def test_addresses_that_are_valid_are_not_checked(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = FakePlan(log)
    monkeypatch.setattr(plan, "check_addresses", lambda operands, workspace: pytest.fail("they are checked"))
    Launcher(plan).run((16, 32, 0), STREAM, True)
    assert [event[0] for event in log] == ["bind", "set_stream", "launch"]


def test_the_arrays_device_is_made_current(log: Log, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[int] = []

    class On:
        def __init__(self, device: int) -> None:
            entered.append(device)

        def __enter__(self) -> None:
            log.append("on device")

        def __exit__(self, *_: object) -> None:
            log.append("back")

    monkeypatch.setattr(launcher_module, "several_devices", lambda: True)
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


# Making a replay, with a fake of cuda.bindings' driver calls


class Driver:
    """cuda.bindings.driver's calls of a capture, in the order of their coming; `failing` returns an error."""

    def __init__(self, log: Log, failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
        from cuda.bindings import driver

        def fake(name: str, *result: Any) -> None:
            def call(*_: Any) -> tuple[Any, ...]:
                log.append(name)
                bad = driver.CUresult.CUDA_ERROR_UNKNOWN
                return (bad if name == failing else driver.CUresult.CUDA_SUCCESS, *result)

            monkeypatch.setattr(driver, name, call)

        fake("cuStreamCreate", 0x9000)
        fake("cuStreamBeginCapture")
        monkeypatch.setattr(driver, "cuThreadExchangeStreamCaptureMode", lambda mode: (0, mode))
        fake("cuStreamEndCapture", 0x66)
        fake("cuGraphInstantiate", 0x77)
        for name in ("cuGraphDestroy", "cuStreamDestroy", "cuGraphExecDestroy", "cuGraphUpload", "cuStreamSynchronize"):
            fake(name)


BEGUN = ["cuStreamCreate", ("set_stream", 0x9000), "cuStreamBeginCapture"]
ENDED = [("set_stream", STREAM), "cuStreamDestroy"]


@pytest.fixture
def handle(log: Log, monkeypatch: pytest.MonkeyPatch) -> FakeHandle:
    pytest.importorskip("cuda.bindings.driver", reason="cuda.bindings is not installed")
    for module in (captures, cuda_graph):
        monkeypatch.setattr(module, "driver_library", lambda: FakeDriver(log))
    made = FakeHandle(log)
    made._address = STREAM
    return made


def test_a_launch_is_captured_on_a_stream_of_its_own(
    log: Log, handle: FakeHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    Driver(log, "", monkeypatch)
    made = Replay.of(lambda: int(log.append(("launch", handle._address)) or 0), handle)  # type: ignore[func-returns-value,arg-type]
    assert log.take() == [
        *BEGUN,
        ("launch", 0x9000),
        "cuStreamEndCapture",
        "cuGraphInstantiate",
        "cuGraphUpload",
        "cuStreamSynchronize",
        *ENDED,
        "cuGraphDestroy",
    ]
    assert made is not None
    assert made.graph.value == 0x77
    assert made.launch(made.graph, STREAM) == 0
    assert log.take() == [("replay", 0x77, STREAM)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_graph, "sys", None)  # as at exit
        del made
    assert log.take() == ["cuGraphExecDestroy"]


@pytest.mark.parametrize(
    ("failing", "events"),
    [
        ("cuStreamCreate", ["cuStreamCreate"]),
        ("cuStreamBeginCapture", [*BEGUN, *ENDED]),
        ("cuStreamEndCapture", [*BEGUN, "launch", "cuStreamEndCapture", *ENDED]),
        (
            "cuGraphInstantiate",
            [*BEGUN, "launch", "cuStreamEndCapture", "cuGraphInstantiate", *ENDED, "cuGraphDestroy"],
        ),
    ],
)
def test_a_capture_that_fails_leaves_everything_as_it_was(
    log: Log, handle: FakeHandle, monkeypatch: pytest.MonkeyPatch, failing: str, events: list[Any]
) -> None:
    Driver(log, failing, monkeypatch)

    def launch() -> int:
        log.append("launch")
        return 0

    assert Replay.of(launch, handle) is None  # type: ignore[arg-type]
    assert log == events
    assert handle._address == STREAM


def test_a_launch_that_fails_in_the_capture_makes_no_replay(
    log: Log, handle: FakeHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    Driver(log, "", monkeypatch)
    assert Replay.of(lambda: 5000, handle) is None  # type: ignore[arg-type]
    assert handle._address == STREAM
    assert log.count("cuGraphDestroy") == 1
