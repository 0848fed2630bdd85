"""Autotune as a whole on memory of the host: what its parts do together. The candidates and the clock are stand-ins."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver
from numpy_machine import tensor_in
from stand_in_pace import GivenPace

from cudnnpy import TensorSpec, reference
from cudnnpy._core.layouts import extent
from cudnnpy._measuring import bench, bench_buffers, float64_check, result_comparison
from cudnnpy._measuring.search import Search
from cudnnpy._memory import workspace
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.engines import Target
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._runtime import launcher
from cudnnpy._runtime.launcher import Launcher
from cudnnpy._runtime.pace import Pace
from cudnnpy.convolution import problem
from cudnnpy.convolution.candidates import ConvolutionProblem
from cudnnpy.handle import Handle

SHAPES = ((2, 6, 7, 8), (4, 6, 3, 3), (2, 4, 7, 8))
STREAM = 7
Spoil = Callable[[np.ndarray], None]


def view(address: int, size: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_ubyte * size).from_address(address))


class Owner:
    """What keeps an allocation."""


class Device:
    """Memory, and a clock that the launches of candidates advance."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.owned: list[np.ndarray] = []  # kept: what is freed too early would be noticed elsewhere
        self.held: weakref.WeakSet[Owner] = weakref.WeakSet()
        self.most = 1 << 20  # bytes of one allocation
        self.clock = 0.0  # milliseconds
        self.events: dict[int, float] = {}
        done = (driver.CUresult.CUDA_SUCCESS,)
        self.total = 1 << 40  # bytes
        self.held_after: list[int] = []  # the allocations that were not freed when memory was given back
        for module in (float64_check, result_comparison, bench_buffers):
            monkeypatch.setattr(module, "take", self.take)
        monkeypatch.setattr(workspace, "total_bytes", lambda device: self.total)
        monkeypatch.setattr(workspace, "temporary", self.temporary)
        monkeypatch.setattr(float64_check, "copy", self.copy)
        monkeypatch.setattr(bench_buffers, "_cache_size", lambda device: 1 << 12)
        monkeypatch.setattr(result_comparison.Largest, "__call__", self.largest)

        def move(to: int, source: int, size: int, stream: int) -> Any:
            assert stream == STREAM
            ctypes.memmove(to, source, size)
            return done

        for name in ("cuMemcpyDtoDAsync", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"):
            monkeypatch.setattr(driver, name, move)
        monkeypatch.setattr(driver, "cuMemsetD8Async", lambda to, byte, size, _: ctypes.memset(to, byte, size) and done)
        monkeypatch.setattr(driver, "cuStreamSynchronize", lambda stream: done)
        monkeypatch.setattr(driver, "cuEventRecord", lambda event, _: self.events.update({id(event): self.clock}))
        monkeypatch.setattr(driver, "cuEventCreate", lambda flags: (*done, SimpleNamespace()))
        monkeypatch.setattr(driver, "cuEventElapsedTime", lambda a, b: (*done, self.events[id(b)] - self.events[id(a)]))
        monkeypatch.setattr(driver, "cuEventDestroy", lambda event: done)
        # The host computes the results, and would be taken to queue them slowly.
        clocks = SimpleNamespace(perf_counter=lambda: 0.0, monotonic=lambda: self.clock / 1e3)
        monkeypatch.setattr(bench, "time", clocks)

    def take(self, size: int, device: int, stream: int) -> tuple[int, int, Any]:
        if size > self.most:
            raise MemoryError("no more")
        memory = np.full(size + 256, 0x7F, np.uint8)
        self.owned.append(memory)
        owner = Owner()
        self.held.add(owner)
        return -(-memory.ctypes.data // 256) * 256, size, owner

    @contextmanager
    def temporary(self, device: int, stream: int) -> Iterator[None]:
        assert (device, stream) == (0, STREAM)
        try:
            yield
        finally:
            self.held_after.append(len(self.held))

    def largest(self, spec: TensorSpec, address: int, size: int, minus: int | None = None) -> float:
        found = view(address, size).view(spec.dtype)
        if minus is not None:
            found -= view(minus, size).view(spec.dtype)
        return float(np.abs(found).max())

    def copy(self, source: TensorSpec, packed: TensorSpec) -> Any:
        def bind(handle: Any, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
            def launch() -> int:
                assert source.strides is not None
                count = 1 + sum((n - 1) * s for n, s in zip(source.shape, source.strides, strict=True))
                itemsize = np.dtype(source.dtype).itemsize
                values = tensor_in(view(pointers[0], count * itemsize), source)
                view(pointers[1], values.size * itemsize)[:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
                return 0

            return launch

        return SimpleNamespace(bind=bind)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The streams of the launches of a Launcher, on the only device."""
    monkeypatch.setattr(launcher, "current_device", lambda: 0)
    monkeypatch.setattr(launcher, "several_devices", lambda: False)
    monkeypatch.setattr(launcher, "capture_nearby", lambda stream: False)
    return []


class Case:
    """A convolution on arrays of the host, and candidates for it."""

    def __init__(self, device: Device, beta: float = 0.0) -> None:
        options = problem.checked(problem.Options(padding=1))
        specs = [TensorSpec(shape, "float32") for shape in SHAPES]
        self.device = device
        self.problem = ConvolutionProblem(*problem.make_problem(options, "forward", *specs, beta=beta))
        numbers = np.random.default_rng(0)
        self.x, self.w, self.y = (numbers.normal(size=shape).astype(np.float32) for shape in SHAPES)
        self.before = [array.copy() for array in (self.x, self.w, self.y)]
        self.launched: list[str] = []
        self.streams = set[int]()
        self.interrupt: Callable[[Any], object] = lambda handle: None

    def candidate(
        self,
        name: str,
        milliseconds: float,
        spoil: Spoil | None = None,
        space: int = 0,
        status: int = 0,
        notes: Any = (),
    ) -> Candidate:
        specs, beta = self.problem.specs, self.problem.beta

        def bind(handle: Any, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
            assert bool(workspace) == bool(space) or not space
            self.interrupt(handle)

            def launch() -> int:
                self.launched.append(name)
                self.streams.add(handle._address)
                self.device.clock += milliseconds
                x, w, y = (tensor_in(view(at, extent(spec)), spec) for at, spec in zip(pointers, specs, strict=True))
                if space:
                    view(workspace, space)[:] = 0xFF
                if spoil is not unwritten:
                    wide = reference.Convolution(padding=1).forward(
                        x.astype(float), w.astype(float), out=y.astype(float), beta=beta
                    )
                    y[...] = wide
                if spoil is not None:
                    spoil(y)
                return status

            return launch

        executable: Any = SimpleNamespace(bind=bind, workspace_size=space)
        return Candidate("engines", name, tuple(notes), True, lambda: executable)

    def tuner(self, arrays: bool = True) -> Search:
        handle: Any = SimpleNamespace(_address=0, _in_use=None)
        handle.set_stream = lambda stream: setattr(handle, "_address", stream)
        inputs = (self.x.ctypes.data, self.w.ctypes.data) if arrays else ()
        return Search(handle, inputs, self.y.ctypes.data if arrays else None, STREAM)

    def check_unchanged(self) -> None:
        for array, before in zip((self.x, self.w, self.y), self.before, strict=True):
            np.testing.assert_array_equal(array, before)

    def confirmed(self, given: Candidate, arrays: bool = True, limit: int = 1 << 30) -> str:
        """The rejection reason of a candidate that is run once."""
        assert given.prepare() is not None
        self.tuner(arrays).confirm(self.problem, PlanningOptions(), Target(), given, limit)
        self.check_unchanged()
        return given.refused

    def tuned(self, *candidates: Candidate, limit: int = 1 << 30, arrays: bool = True) -> str:
        chosen = self.tuner(arrays)(self.problem, PlanningOptions(), Target(), candidates, limit)
        self.check_unchanged()
        assert chosen is not None
        assert chosen.executable is not None
        assert chosen.milliseconds is not None
        return chosen.name


def unwritten(y: np.ndarray) -> None: ...


def in_a_corner(y: np.ndarray) -> None:
    y[-1, -1, -1, -1] += 1.0


def scaled(y: np.ndarray) -> None:
    y *= 1.01


WRONG = [unwritten, in_a_corner, scaled]


@pytest.mark.parametrize("beta", [0.0, 2.0])
@pytest.mark.parametrize("arrays", [True, False], ids=["arrays", "specs"])
def test_the_fastest_wins_and_nothing_of_the_caller_changes(device: Device, beta: float, arrays: bool) -> None:
    case = Case(device, beta)
    fast = case.candidate("fast", 0.5, space=1000)
    others = [case.candidate("guess", 1.0), case.candidate("slow", 30.0), case.candidate("fair", 0.9)]
    assert case.tuned(others[0], fast, *others[1:], arrays=arrays) == "fast"
    assert case.launched.count("slow") == 1
    assert not [candidate.refused for candidate in others if candidate.refused]


def test_a_launch_that_interrupts_tuning_leaves_its_stream(
    device: Device, log: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(device)
    plan: Any = SimpleNamespace(
        name="of a destructor",
        device=0,
        replayable=False,
        movable=False,
        is_long=False,
        check_addresses=lambda *addresses: None,
    )
    plan.executable = SimpleNamespace(bind=lambda handle, *_: lambda: int(log.append(handle._address) or 0))  # type: ignore[func-returns-value]

    def interrupt(handle: Any) -> None:
        monkeypatch.setattr(Handle, "default", lambda device: handle)
        Launcher(plan).run((16, 0), 99)

    case.interrupt = interrupt
    monkeypatch.setattr(Pace, "of_thread", classmethod(lambda cls, device: GivenPace(SimpleNamespace(gpu_waits=True))))
    assert case.tuned(case.candidate("guess", 1.0), case.candidate("fast", 0.5)) == "fast"
    assert set(log) == {99}
    assert case.streams == {STREAM}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("beta", [0.0, 2.0])
def test_a_wrong_candidate_loses_however_fast(device: Device, wrong: Spoil, beta: float) -> None:
    case = Case(device, beta)
    bad = case.candidate("bad", 0.1, wrong)
    assert case.tuned(case.candidate("guess", 1.0), bad, case.candidate("fast", 0.8)) == "fast"
    assert bad.refused.startswith("wrong result: off by ")


@pytest.mark.parametrize("wrong", WRONG[1:])
@pytest.mark.parametrize("milliseconds", [0.1, 2.0])
def test_a_wrong_guess_loses_to_the_arbiter(device: Device, wrong: Spoil, milliseconds: float) -> None:
    case = Case(device)
    guess = case.candidate("guess", milliseconds, wrong)
    right = case.candidate("right", 1.0, notes=("winograd",))
    assert case.tuned(guess, right, case.candidate("slow", 3.0, notes=("fft",))) == "right"
    assert guess.refused.startswith("wrong result: off by ")


def test_what_fails_or_finds_no_memory_costs_the_gain_alone(device: Device) -> None:
    case = Case(device)
    device.most = 100_000
    failing, hungry = case.candidate("failing", 0.1, status=3000), case.candidate("hungry", 0.1, space=200_000)
    beyond = case.candidate("beyond", 0.1, space=60_000)
    assert case.tuned(case.candidate("guess", 1.0), failing, hungry, beyond, limit=50_000) == "guess"
    assert failing.refused.startswith("failed when run: ")
    assert hungry.refused.startswith("needs 195.3 KiB, the limit is ")
    assert beyond.refused.startswith("needs 58.59 KiB, the limit is ")
    hungry = case.candidate("hungry", 0.1, space=200_000)
    assert case.tuned(case.candidate("guess", 1.0), hungry, limit=1 << 30) == "guess"
    assert hungry.refused.startswith("out of memory: ")


def test_without_memory_for_the_guess_nothing_is_chosen_by_measurement(device: Device) -> None:
    case = Case(device)
    device.most = 100_000
    with pytest.raises(MemoryError, match="the best guess, cannot be measured"):
        case.tuned(case.candidate("guess", 1.0, space=200_000), case.candidate("other", 3.0))
    device.most = 100
    with pytest.raises(MemoryError):
        case.tuned(case.candidate("guess", 1.0))


def test_all_memory_is_freed_before_it_is_given_back(device: Device) -> None:
    """Also that of a search that fails, whose traceback refers to it."""
    case = Case(device)
    fast = case.candidate("fast", 0.5, space=1000)
    assert case.tuned(case.candidate("guess", 1.0), fast) == "fast"
    assert device.held_after == [0]
    assert fast.prepare() is not None
    case.tuner(arrays=False).confirm(case.problem, PlanningOptions(), Target(), fast, 1 << 30)
    assert device.held_after == [0, 0]
    for most, arrays in ((100_000, True), (5000, False)):  # too little for a workspace; for more than random inputs
        device.most = most
        with pytest.raises(MemoryError):
            case.tuned(case.candidate("guess", 1.0, space=200_000), arrays=arrays)
        with pytest.raises(MemoryError):
            case.confirmed(case.candidate("guess", 1.0, space=200_000), arrays)
    assert device.held_after == [0] * 6


def test_what_a_stored_choice_is_compared_with_may_not_need_much_memory(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(device)
    kind = type(case.problem)
    monkeypatch.setattr(kind, "exact_elements", lambda *_: None)
    others = [case.candidate("large", 9.0, space=1001), case.candidate("plain", 9.0, space=1000)]
    monkeypatch.setattr(kind, "likely", lambda *_: iter(others))
    monkeypatch.setattr(kind, "engines", lambda *_: iter(()))
    device.total = 4003
    assert case.confirmed(case.candidate("right", 1.0, space=3000)) == ""
    assert case.launched == ["right", "plain"]


def test_a_choice_says_how_its_times_vary_and_how_exact_it_is(device: Device) -> None:
    case = Case(device)
    times = iter([0.5, 0.5, 0.6] * 1000)
    fast, guess = case.candidate("fast", 0.0), case.candidate("guess", 3.0)
    assert (fast.spread, fast.error) == (None, None)
    made = fast.make

    def unsteady() -> Any:
        executable = made()
        bind = executable.bind

        def bound(*where: Any) -> Any:
            launch = bind(*where)

            def launched() -> int:
                device.clock += next(times)
                return launch()

            return launched

        return SimpleNamespace(bind=bound, workspace_size=0)

    fast.make = unsteady  # type: ignore[method-assign]
    assert case.tuned(guess, fast) == "fast"
    assert fast.spread is not None
    assert 0.0 < fast.spread < 0.4
    assert fast.error is not None
    assert 0.0 <= fast.error < 0.5  # float32 results of float64 sums


@pytest.mark.parametrize("beta", [0.0, 2.0])
@pytest.mark.parametrize("arrays", [True, False], ids=["arrays", "specs"])
def test_a_stored_choice_is_confirmed_by_one_run(device: Device, beta: float, arrays: bool) -> None:
    case = Case(device, beta)
    assert case.confirmed(case.candidate("right", 1.0, space=1000), arrays) == ""
    assert case.launched == ["right"]


def everywhere(y: np.ndarray) -> None:
    y += 1.0


def no_number(y: np.ndarray) -> None:
    y[0, 0, 3, 3] = np.nan


@pytest.mark.parametrize("wrong", [unwritten, scaled, everywhere, no_number])
def test_a_stored_choice_that_is_wrong_is_rejected(device: Device, wrong: Spoil) -> None:
    case = Case(device)
    assert case.confirmed(case.candidate("wrong", 1.0, wrong)).startswith("wrong result: ")


def test_a_stored_choice_that_fails_is_rejected(device: Device) -> None:
    case = Case(device)
    assert case.confirmed(case.candidate("failing", 1.0, status=3000)).startswith("failed when run: ")
    device.most = 100_000
    with pytest.raises(MemoryError):
        case.confirmed(case.candidate("hungry", 1.0, space=200_000))
    device.most = 100
    with pytest.raises(MemoryError):
        case.confirmed(case.candidate("right", 1.0))


def test_inputs_that_tell_nothing_are_replaced_to_confirm_a_choice(device: Device) -> None:
    """Empty memory, as a warm-up has it, or a NaN among the inputs, is no reason to forget a choice."""
    for number in (0.0, np.nan):
        case = Case(device)
        case.x[...] = number
        case.before[0][...] = number
        assert case.confirmed(case.candidate("right", 1.0)) == ""
        assert case.confirmed(case.candidate("wrong", 1.0, scaled)).startswith("wrong result: ")


def test_where_elements_cannot_be_computed_a_plain_candidate_confirms(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(device)
    kind = type(case.problem)
    monkeypatch.setattr(kind, "exact_elements", lambda *_: None)
    others = [case.candidate("fast", 0.1, notes=("winograd",)), case.candidate("failing", 1.0, status=3000)]
    others += [case.candidate("plain", 9.0), case.candidate("other", 9.0)]
    monkeypatch.setattr(kind, "likely", lambda *_: iter(others[:2]))
    monkeypatch.setattr(kind, "engines", lambda *_: iter(others[2:]))
    assert case.confirmed(case.candidate("right", 1.0)) == ""
    assert case.launched == ["right", "failing", "plain"]
    assert case.confirmed(case.candidate("wrong", 1.0, in_a_corner)).startswith("wrong result: off by 1")
    monkeypatch.setattr(kind, "engines", lambda *_: iter(()))
    assert case.confirmed(case.candidate("alone", 1.0, in_a_corner)) == ""
