"""Autotune as a whole on memory of the host. The candidates and the clock are stand-ins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver
from made_up_candidates import made_up
from memory_stand_in import Memory, view
from numpy_machine import tensor_in
from stand_in_driver import DONE, DriverFixture, StandInDriver

from cudnnpy import TensorSpec, reference
from cudnnpy._arrays import workspace
from cudnnpy._convolution import specification
from cudnnpy._convolution.options import ConvolutionOptions
from cudnnpy._core.layouts import byte_extent
from cudnnpy._launch import launcher
from cudnnpy._launch.launcher import Launcher
from cudnnpy._layers.lowerings.convolution_candidates import ConvolutionProblem
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.choice import Choice
from cudnnpy._planning.engines import Target
from cudnnpy._planning.options import PlanningOptions
from cudnnpy.handle import Handle
from cudnnpy.tuning.measuring import bench, result_comparison, search, timing
from cudnnpy.tuning.measuring.search import Search
from cudnnpy.tuning.measuring.timing import ContextLost, Watch

SHAPES = ((2, 6, 7, 8), (4, 6, 3, 3), (2, 4, 7, 8))
Spoil = Callable[[np.ndarray], None]


class Device(Memory):
    """Memory, and a clock that the launches of candidates advance."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, driver: StandInDriver) -> None:
        super().__init__(monkeypatch, driver)
        self.clock = 0.0  # milliseconds
        self.events: dict[int, float] = {}
        self.total = 1 << 40  # bytes
        self.held_after: list[int] = []  # what was not freed when memory was given back
        self.status = driver.CUresult.CUDA_SUCCESS  # of what the GPU runs
        monkeypatch.setattr(workspace, "total_bytes", lambda device: self.total)
        monkeypatch.setattr(workspace, "trim_pool_afterwards", self.temporary)
        monkeypatch.setattr(search, "Target", lambda handle: Target())
        monkeypatch.setattr(result_comparison.MaxAbs, "__call__", self.largest)
        driver.functions |= {
            "cuStreamSynchronize": lambda stream: (self.status,),
            "cuEventRecord": lambda event, _: self.events.update({id(event): self.clock}),
            "cuEventCreate": lambda flags: (*DONE, SimpleNamespace()),
            "cuEventElapsedTime": lambda a, b: (*DONE, self.events[id(b)] - self.events[id(a)]),
            "cuEventDestroy": lambda event: DONE,
        }
        # The host computes the results, and would be taken to queue them slowly.
        clocks = SimpleNamespace(perf_counter=lambda: 0.0, monotonic=lambda: self.clock / 1e3)
        for module in (bench, timing):
            monkeypatch.setattr(module, "time", clocks)
        monkeypatch.setattr(
            timing, "_FILL_GB_S", 1.0
        )  # as fast as memory of a GPU it would be filled millions of times

    @contextmanager
    def temporary(self, device: int, stream: int) -> Iterator[None]:
        assert (device, stream) == (0, 0)
        try:
            yield
        finally:
            self.held_after.append(self.count)

    def largest(self, spec: TensorSpec, address: int, size: int, minus: int | None = None) -> float:
        assert not self.is_mapped(address)  # that cuDNN's own functions read nothing outside is not known
        found = view(address, size).view(spec.dtype)
        with np.errstate(all="ignore"):
            if minus is not None:
                found -= view(minus, size).view(spec.dtype)
            return float(np.abs(found.astype(float)).max())


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, cuda_driver: DriverFixture) -> Device:
    return Device(monkeypatch, cuda_driver())


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The streams of the launches of a Launcher, on the only device."""
    monkeypatch.setattr(launcher, "current_device", lambda: 0)
    monkeypatch.setattr(launcher, "has_several_devices", lambda: False)
    monkeypatch.setattr(launcher, "is_stream_or_torch_capturing", lambda stream: False)
    return []


class Case:
    """A convolution, and candidates for it. With `gaps`, x and y are parts of tensors of more channels."""

    def __init__(self, device: Device, beta: float = 0.0, gaps: int = 0) -> None:
        options = ConvolutionOptions(padding=1)
        specs = [TensorSpec(shape, "float32") for shape in SHAPES]
        if gaps:
            for at in (0, 2):
                _, c, h, w = SHAPES[at]
                specs[at] = specs[at]._replace(strides=((c + gaps) * h * w, h * w, w, 1))
        self.device = device
        self.problem = ConvolutionProblem(*specification.make_problem(options, "forward", *specs, beta=beta))
        self.launched: list[str] = []
        self.places: list[tuple[int, ...]] = []  # the addresses of the launches
        self.streams = set[int]()
        self.interrupt: Callable[[Any], object] = lambda handle: None
        self.reports: list[tuple[str, Any]] = []  # (callback, name) of a watch

    def candidate(
        self,
        name: str,
        milliseconds: float,
        spoil: Spoil | None = None,
        space: int = 0,
        status: int = 0,
        notes: Any = (),
        raw: Callable[[tuple[int, ...], int], object] | None = None,
    ) -> Candidate:
        """A candidate; `spoil` changes its result, `raw` is given the addresses of operands and workspace after it."""
        specs, beta = self.problem.specs, self.problem.beta

        def bind(handle: Any, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
            assert bool(workspace) == bool(space)
            self.interrupt(handle)

            def launch() -> int:
                self.launched.append(name)
                self.places.append((*pointers, workspace))
                self.streams.add(handle._address)
                self.device.clock += milliseconds
                x, w, y = (
                    tensor_in(view(at, byte_extent(spec)), spec) for at, spec in zip(pointers, specs, strict=True)
                )
                first = y.flat[0]
                if spoil is not unwritten:
                    wide = reference.Convolution(padding=1).forward(
                        x.astype(float), w.astype(float), out=y.astype(float), beta=beta
                    )
                    y[...] = wide
                if spoil is first_unwritten:
                    y[0, 0, 0, 0] = first
                elif spoil is not None:
                    spoil(y)
                if raw is not None:
                    raw(pointers, workspace)
                if space:
                    view(workspace, space)[:] = 0xFF
                return status

            return launch

        executable: Any = SimpleNamespace(bind=bind, workspace_size=space)
        return made_up(name, "engines", notes=tuple(notes), make=lambda: executable)

    def tuner(self) -> Search:
        handle: Any = SimpleNamespace(_address=0, _in_use=None)
        handle.set_stream = lambda stream: setattr(handle, "_address", stream)
        watch = Watch(
            lambda given, seconds: self.reports.append(("begin", (given.name if given else "", seconds))),
            lambda candidate: self.reports.append(("measured", candidate.name)),
            lambda candidate: self.reports.append(("best", candidate.name)),
        )
        return Search(handle, watch=watch)

    def confirmed(self, given: Candidate, limit: int = 1 << 30) -> str:
        """The rejection reason of a candidate that is run once."""
        assert given.prepare() is not None
        self.tuner().verify(self.problem, PlanningOptions(), given, limit)
        return given.rejection_reason

    def tuned(self, *candidates: Candidate, limit: int = 1 << 30, **options: Any) -> str:
        chosen = self.tuner()(self.problem, PlanningOptions(), candidates, limit, **options)
        assert chosen is not None
        assert chosen.executable is not None
        assert chosen.milliseconds is not None
        return chosen.name


def unwritten(y: np.ndarray) -> None: ...


def first_unwritten(y: np.ndarray) -> None: ...


def in_a_corner(y: np.ndarray) -> None:
    y[-1, -1, -1, -1] += 1.0


def scaled(y: np.ndarray) -> None:
    y *= 1.01


WRONG = [unwritten, in_a_corner, scaled]


@pytest.mark.parametrize("beta", [0.0, 2.0])
@pytest.mark.parametrize("gaps", [0, 2])
def test_the_fastest_wins(device: Device, beta: float, gaps: int) -> None:
    case = Case(device, beta, gaps)
    fast = case.candidate("fast", 0.5, space=1000)
    others = [case.candidate("default", 1.0), case.candidate("slow", 30.0), case.candidate("fair", 0.9)]
    assert case.tuned(others[0], fast, *others[1:]) == "fast"
    assert case.launched.count("slow") == 1
    assert not [candidate.rejection_reason for candidate in others if candidate.rejection_reason]
    assert device.ever_mapped


def test_a_launch_that_interrupts_tuning_leaves_its_stream(
    device: Device, log: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(device)
    plan: Any = SimpleNamespace(
        name="of a destructor",
        device=0,
        is_relocatable=False,
        check_addresses=lambda *addresses: None,
    )
    plan.executable = SimpleNamespace(bind=lambda handle, *_: lambda: int(log.append(handle._address) or 0))  # type: ignore[func-returns-value]

    def interrupt(handle: Any) -> None:
        monkeypatch.setattr(Handle, "default", lambda device: handle)
        Launcher(plan).run((16, 0), 99)

    case.interrupt = interrupt
    assert case.tuned(case.candidate("default", 1.0), case.candidate("fast", 0.5)) == "fast"
    assert set(log) == {99}
    assert case.streams == {0}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("beta", [0.0, 2.0])
def test_a_wrong_candidate_loses_however_fast(device: Device, wrong: Spoil, beta: float) -> None:
    case = Case(device, beta)
    bad = case.candidate("bad", 0.1, wrong)
    assert case.tuned(case.candidate("default", 1.0), bad, case.candidate("fast", 0.8)) == "fast"
    assert bad.rejection_reason.startswith("wrong result: off by ")


@pytest.mark.parametrize("wrong", WRONG[1:])
@pytest.mark.parametrize("milliseconds", [0.1, 2.0])
def test_a_wrong_default_loses_to_the_arbiter(device: Device, wrong: Spoil, milliseconds: float) -> None:
    case = Case(device)
    default = case.candidate("default", milliseconds, wrong)
    right = case.candidate("right", 1.0, notes=("winograd",))
    assert case.tuned(default, right, case.candidate("slow", 3.0, notes=("fft",))) == "right"
    assert default.rejection_reason.startswith("wrong result: off by ")


def test_what_fails_or_finds_no_memory_costs_the_gain_alone(device: Device) -> None:
    case = Case(device)
    device.most = 100_000
    failing, hungry = case.candidate("failing", 0.1, status=3000), case.candidate("hungry", 0.1, space=200_000)
    beyond = case.candidate("beyond", 0.1, space=60_000)
    assert case.tuned(case.candidate("default", 1.0), failing, hungry, beyond, limit=50_000) == "default"
    assert failing.rejection_reason.startswith("failed when run: ")
    assert hungry.rejection_reason.startswith("needs 195.3 KiB, the limit is ")
    assert beyond.rejection_reason.startswith("needs 58.59 KiB, the limit is ")
    hungry = case.candidate("hungry", 0.1, space=200_000)
    assert case.tuned(case.candidate("default", 1.0), hungry, limit=1 << 30) == "default"
    assert hungry.rejection_reason.startswith("out of memory: ")


def test_without_memory_for_the_default_nothing_is_chosen_by_measurement(device: Device) -> None:
    case = Case(device)
    device.most = 100_000
    with pytest.raises(MemoryError, match="the default choice, cannot be measured"):
        case.tuned(case.candidate("default", 1.0, space=200_000), case.candidate("other", 3.0))
    device.most = 100
    with pytest.raises(MemoryError):
        case.tuned(case.candidate("default", 1.0))


def test_all_memory_is_freed_before_it_is_given_back(device: Device) -> None:
    """Also that of a search that fails, whose traceback refers to it."""
    case = Case(device)
    fast = case.candidate("fast", 0.5, space=1000)
    assert case.tuned(case.candidate("default", 1.0), fast) == "fast"
    assert device.held_after == [0]
    assert fast.prepare() is not None
    case.tuner().verify(case.problem, PlanningOptions(), fast, 1 << 30)
    assert device.held_after == [0, 0]
    for most in (100_000, 5000):  # too little for a workspace; for more than some operands
        device.most = most
        with pytest.raises(MemoryError):
            case.tuned(case.candidate("default", 1.0, space=200_000))
        with pytest.raises(MemoryError):
            case.confirmed(case.candidate("default", 1.0, space=200_000))
    assert device.held_after == [0] * 6


def test_a_choice_says_how_its_times_vary_and_how_exact_it_is(device: Device) -> None:
    case = Case(device)
    times = iter([0.5, 0.5, 0.6] * 1000)
    fast, default = case.candidate("fast", 0.0), case.candidate("default", 3.0)
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
    assert case.tuned(default, fast) == "fast"
    assert fast.spread is not None
    assert 0.0 < fast.spread < 0.4
    assert fast.error is not None
    assert 0.0 <= fast.error < 0.5  # of the default choice's result


@pytest.mark.parametrize("beta", [0.0, 2.0])
def test_a_stored_choice_is_confirmed_by_a_run_at_each_end(device: Device, beta: float) -> None:
    case = Case(device, beta)
    assert case.confirmed(case.candidate("right", 1.0, space=1000)) == ""
    assert case.launched == ["right"] * 2
    assert len(set(case.places)) == 2


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


def test_where_elements_cannot_be_computed_a_plain_candidate_confirms(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(device)
    kind = type(case.problem)
    monkeypatch.setattr(kind, "float64_elements", lambda *_: None)
    others = [case.candidate("fast", 0.1, notes=("winograd",)), case.candidate("failing", 1.0, status=3000)]
    others += [case.candidate("plain", 9.0), case.candidate("other", 9.0)]
    monkeypatch.setattr(kind, "proposed_candidates", lambda *_: iter(others[:2]))
    monkeypatch.setattr(kind, "engines", lambda *_: iter(others[2:]))
    assert case.confirmed(case.candidate("right", 1.0)) == ""
    assert case.launched == ["right", "right", "failing", "plain"]
    assert case.confirmed(case.candidate("wrong", 1.0, in_a_corner)).startswith("wrong result: off by 1")
    monkeypatch.setattr(kind, "engines", lambda *_: iter(()))
    assert case.confirmed(case.candidate("alone", 1.0, in_a_corner)) == ""


# What is around the operands and in them before


def reads_workspace(case: Case, space: int) -> Callable[[tuple[int, ...], int], object]:
    """The result depends on a number in the workspace, which is not NaN."""

    def run(pointers: tuple[int, ...], workspace: int) -> None:
        y = view(pointers[2], 4).view(np.float32)
        y += np.nan_to_num(view(workspace, space)[:4].view(np.float32), nan=0.0)

    return run


def poisoned_by_workspace(pointers: tuple[int, ...], workspace: int) -> None:
    view(pointers[2], 4).view(np.float32)[:] += 0.0 * view(workspace, 4).view(np.float32)


@pytest.mark.parametrize("is_default", [False, True])
def test_a_result_that_depends_on_the_workspaces_content_is_rejected(device: Device, is_default: bool) -> None:
    for run in (reads_workspace, lambda *_: poisoned_by_workspace):
        case = Case(device)
        bad = case.candidate("bad", 0.5, space=1000, raw=run(case, 1000))
        others = [case.candidate("right", 1.0), case.candidate("slow", 2.0)]
        assert case.tuned(*([bad, *others] if is_default else [others[0], bad, others[1]])) == "right"
        assert bad.rejection_reason.startswith("wrong result")


def writes_a_gap(value: float) -> Callable[[tuple[int, ...], int], object]:
    """After the last channel of the first image."""

    def run(pointers: tuple[int, ...], workspace: int) -> None:
        _, c, h, w = SHAPES[2]
        view(pointers[2] + 4 * c * h * w, 4).view(np.float32)[:] = value

    return run


@pytest.mark.parametrize("value", [0.0, 5.0, np.nan])
@pytest.mark.parametrize("beta", [0.0, 2.0])
@pytest.mark.parametrize("is_default", [False, True])
def test_the_gaps_of_a_result_stay_as_they_are(device: Device, value: float, beta: float, is_default: bool) -> None:
    case = Case(device, beta, gaps=2)
    bad = case.candidate("bad", 0.5, raw=writes_a_gap(value))
    others = [case.candidate("right", 1.0), case.candidate("slow", 2.0)]
    assert case.tuned(*([bad, *others] if is_default else [others[0], bad, others[1]])) == "right"
    is_first = is_default and np.isnan(value)  # the result of the first run must be finite
    expected = "unwritten, infinite or NaN" if is_first else "changes the gaps of its result"
    assert bad.rejection_reason == f"wrong result: {expected}"


def test_a_gap_of_an_input_that_is_read_shows(device: Device) -> None:
    def adds_a_gap(pointers: tuple[int, ...], workspace: int) -> None:
        _, c, h, w = SHAPES[0]
        y = view(pointers[2], 4).view(np.float32)
        y += 0.0 * view(pointers[0] + 4 * c * h * w, 4).view(np.float32)

    case = Case(device, gaps=2)
    bad = case.candidate("bad", 0.5, raw=adds_a_gap)
    assert case.tuned(case.candidate("default", 1.0), bad) == "default"
    assert bad.rejection_reason.startswith("wrong result: off by nan")


@pytest.mark.parametrize("is_default", [False, True])
def test_an_element_that_is_not_written_shows_in_whole_numbers_too(device: Device, is_default: bool) -> None:
    """No int8 is NaN, and the byte that is there before may be what is right."""
    case = Case(device)
    case.problem = case.problem._replace(
        **{name: getattr(case.problem, name)._replace(dtype="int8") for name in ("x", "w", "y")}
    )

    bad = case.candidate("bad", 0.5, first_unwritten)
    others = [case.candidate("right", 1.0), case.candidate("slow", 2.0)]
    assert case.tuned(*([bad, *others] if is_default else [others[0], bad, others[1]])) == "right"
    assert bad.rejection_reason.startswith("wrong result: off by ")


def test_without_memory_for_copies_the_fastest_wins_too(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of copies, timed runs take the operands of verified ones, and with beta they add up."""
    case = Case(device, beta=2.0)
    monkeypatch.setattr(type(case.problem), "float64_elements", lambda *_: None)
    device.most = 3 * (1 << 12)
    candidates = [case.candidate("default", 1.0), case.candidate("fast", 0.5)]
    assert case.tuned(*candidates) == "fast"
    assert not [candidate.rejection_reason for candidate in candidates if candidate.rejection_reason]


# What is reported, and what is known


def row(name: str, milliseconds: float | None, refused: str = "") -> Choice:
    return Choice(name, "engines", workspace_size=0, milliseconds=milliseconds, rejection_reason=refused)


def test_known_candidates_are_verified_and_not_measured_again(device: Device) -> None:
    case = Case(device)
    rows = [row("refused", None, "failed when run: no"), row("default", 9.0), row("fast", 0.5), row("slow", 30.0)]
    names = {"refused": 1.0, "default": 1.0, "fast": 0.5, "new": 0.9, "slow": 30.0}
    candidates = [case.candidate(name, time) for name, time in names.items()]
    assert case.tuned(*candidates, known={one.name: one for one in rows}) == "fast"
    assert set(case.launched) == {"default", "fast", "new"}
    assert candidates[0].rejection_reason == "failed when run: no"
    assert candidates[1].milliseconds == 1.0
    assert candidates[4].milliseconds == 30.0
    assert [what for kind, what in case.reports if kind == "measured"] == ["default", "new"]


@pytest.mark.parametrize("launch_fails", [False, True])
def test_a_lost_context_ends_the_search_with_the_candidates_name(device: Device, launch_fails: bool) -> None:
    case = Case(device)

    def lose(pointers: tuple[int, ...], workspace: int) -> None:
        device.status = driver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS

    bad = case.candidate("bad", 0.5, raw=lose, status=3000 if launch_fails else 0)
    with pytest.raises(ContextLost) as caught:
        case.tuned(case.candidate("default", 1.0), bad)
    assert (caught.value.name, caught.value.error) == ("bad", "CUDA_ERROR_ILLEGAL_ADDRESS")
    assert case.launched[-1] == "bad"
    assert ("measured", "bad") not in case.reports
