"""Steps: addresses and scratch memory of C functions and programs; and operands that overlap."""

from __future__ import annotations

import math
from collections.abc import Callable
from ctypes import c_double, c_float
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudnnpy import TensorSpec, raw
from cudnnpy._core.layouts import packed_strides
from cudnnpy._launch import program as programs
from cudnnpy._launch.dispatch import Call, Specs
from cudnnpy._launch.operands import check_no_overlaps
from cudnnpy._launch.program import Operand, Program, with_conversion_copies
from cudnnpy._launch.steps import Step, scaling_arguments

HANDLE: Any = SimpleNamespace(pointer=0x77)


class Recorder:
    """A launch that keeps the addresses it is bound to, and a log of what ran."""

    def __init__(self, name: str = "made up", workspace_size: int = 0, log: list[Any] | None = None) -> None:
        self.name, self.workspace_size = name, workspace_size
        self.log: list[Any] = [] if log is None else log
        self.bound: list[tuple[tuple[int, ...], int]] = []

    def bind(self, handle: Any, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
        assert handle is HANDLE
        self.bound.append((pointers, workspace))

        def launch() -> int:
            self.log.append((self.name, pointers))
            return 0

        return launch


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What raw.bound's functions are called with: (name, arguments)."""
    seen: list[Any] = []
    monkeypatch.setattr(raw, "bound", lambda name: logging(seen, name))
    return seen


def logging(log: list[Any], name: str) -> Callable[..., int]:
    """A function that only notes its name and its arguments."""

    def launch(*arguments: Any) -> int:
        log.append((name, arguments))
        return 0

    return launch


# A function's arguments


# alpha and beta


@given(st.floats(-1e30, 1e30), st.floats(-1e30, 1e30))
def test_scales_are_doubles_for_float64_alone(alpha: float, beta: float) -> None:
    for dtype in ("float16", "bfloat16", "float32"):
        one, two = scaling_arguments(alpha, beta, dtype)
        assert (type(one), type(two), one.value, two.value) == (
            c_float,
            c_float,
            c_float(alpha).value,
            c_float(beta).value,
        )
    one, two = scaling_arguments(alpha, beta, "float64")
    assert (type(one), type(two), one.value, two.value) == (c_double, c_double, alpha, beta)


# Programs


@given(
    st.lists(st.integers(0, 5000), max_size=4),
    st.lists(st.integers(0, 3000), min_size=1, max_size=4),
    st.integers(1, 3),
)
def test_scratch_parts_are_aligned_apart_and_inside_the_workspace(
    scratch: list[int], spaces: list[int], operands: int
) -> None:
    spec = TensorSpec((4,), "float32", (1,))
    steps = [Recorder(str(at), space) for at, space in enumerate(spaces)]
    places = tuple(range(operands + len(scratch)))
    program = Program(
        "made up", 0, [Operand(f"x{n}", spec) for n in range(operands)], [Step(s, places) for s in steps], scratch
    )
    start = 1 << 20
    given = tuple(4096 * (at + 1) for at in range(operands))
    assert program.executable.bind(HANDLE, given, start)() == 0
    for step, space in zip(steps, spaces, strict=True):
        ((pointers, workspace),) = step.bound
        assert pointers[:operands] == given
        ends = [*pointers[operands:], workspace][1:] if scratch else []
        for part, size, end in zip(pointers[operands:], scratch, ends, strict=True):
            assert part % 256 == 0
            assert start <= part
            assert part + size <= end
        assert workspace % 256 == 0
        assert workspace + space <= start + program.workspace_size
    assert program.workspace_size <= sum(scratch) + 255 * len(scratch) + max(spaces)


def test_steps_run_in_turn_on_the_operands_that_they_name() -> None:
    log: list[Any] = []
    spec = TensorSpec((4,), "float32", (1,))
    steps = [Step(Recorder("one", log=log), (1,)), Step(Recorder("two", log=log), (0, 2, 1))]
    program = Program("made up", 0, [Operand("x", spec), Operand("y", spec)], steps, [8])
    launch = program.executable.bind(HANDLE, (4096, 8192), 1 << 20)
    launch()
    launch()
    assert log == [("one", (8192,)), ("two", (4096, 1 << 20, 8192))] * 2


def test_a_step_that_fails_ends_the_launch() -> None:
    class Failing(Recorder):
        def bind(self, handle: Any, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
            return lambda: 3000

    log: list[Any] = []
    steps = [Step(Recorder("one", log=log), ()), Step(Failing(), ()), Step(Recorder("three", log=log), ())]
    assert Program("made up", 0, [], steps).executable.bind(HANDLE, (), 0)() == 3000
    assert log == [("one", ())]


# Copies of operands that do not lie as a function wants them

FIRST = TensorSpec((2, 3, 4, 5), "float32", packed_strides((2, 3, 4, 5)))
LAST = FIRST._replace(strides=(60, 1, 15, 3))
BYTES = 4 * 120
ADDRESSES = (1 << 12, 1 << 14)  # x, y
SPACE = 1 << 20


def carried(launched: list[Any]) -> list[tuple[int, int, float]]:
    """Copies among the launches: (from, to, beta)."""
    found = []
    for name, arguments in launched:
        assert name == "cudnnTransformTensor"
        _, _, _, source, beta, _, target = arguments
        found.append((source, target, beta._obj.value))
    return found


@pytest.mark.parametrize(("beta", "is_read"), [(0.0, False), (0.0, True), (0.5, False)])
@pytest.mark.parametrize("x", [FIRST, LAST, FIRST._replace(alignment=4), FIRST._replace(dtype="float16")])
@pytest.mark.parametrize("y", [FIRST, LAST, FIRST._replace(alignment=4), FIRST._replace(dtype="float16")])
def test_only_what_lies_otherwise_is_copied(
    launched: list[Any], x: TensorSpec, y: TensorSpec, beta: float, is_read: bool
) -> None:
    """In before, and a result out after; a result in as well, where beta or the launch reads it."""
    inner = Recorder()
    operands = [Operand("x", x), Operand("y", y, True, is_read=is_read)]
    program = with_conversion_copies("made up", 0, operands, inner, [FIRST, FIRST], beta)
    program.executable.bind(HANDLE, ADDRESSES, SPACE)()
    copied = [spec != FIRST for spec in (x, y)]
    parts = [SPACE, SPACE + 512][: sum(copied)]
    of_x = parts[0] if copied[0] else ADDRESSES[0]
    of_y = parts[-1] if copied[1] else ADDRESSES[1]
    assert inner.bound == [((of_x, of_y), SPACE + 512 * len(parts))]
    expected = [(ADDRESSES[0], of_x, 0.0)] if copied[0] else []
    expected += [(ADDRESSES[1], of_y, 0.0)] if copied[1] and (beta or is_read) else []
    expected += [(of_y, ADDRESSES[1], 0.0)] if copied[1] else []
    assert carried(launched) == expected
    assert program.scratch == [BYTES] * len(parts)


# Overlaps


def operand(name: str, shape: tuple[int, ...] = (8,), **more: Any) -> Operand:
    strides = more.pop("strides", packed_strides(shape))
    return Operand(name, TensorSpec(shape, "float32", strides), **more)


RESULT: dict[str, Any] = {"is_result": True, "in_place": ("x",)}


@pytest.mark.parametrize(
    ("out", "at", "fine"),
    [
        (operand("out", **RESULT), 1032, True),
        (operand("out", **RESULT), 968, True),
        (operand("out", **RESULT), 1000, True),  # in place
        (operand("out", **RESULT), 1004, False),
        (operand("out", **RESULT), 996, False),
        (operand("out", **RESULT), 1028, False),
        (operand("out", is_result=True), 1000, False),
        (operand("out", is_result=True, in_place=("y",)), 1000, False),
        (operand("out", (2, 4), **RESULT), 1000, False),  # of another shape
        (operand("out", strides=(2,), **RESULT), 1000, False),  # not each element in its own place
        (operand("out", strides=(2,), **RESULT), 944, False),
        (operand("out", strides=(2,), **RESULT), 940, True),
        (operand("out"), 1000, True),  # inputs may be the same memory
    ],
)
def test_results_overlap_nothing_but_what_they_are_in_place_of(out: Operand, at: int, fine: bool) -> None:
    program = Program("made up", 0, [operand("x"), out], [Step(Recorder(), (0, 1))])
    call = Call(Specs(), {"x": 1000, "out": at}, 0, 0, {})
    if fine:
        program.check_addresses((1000, at), 0)
        assert check_no_overlaps(call, program.operands) is program.operands
    else:
        for check in (
            lambda: program.check_addresses((1000, at), 0),
            lambda: check_no_overlaps(call, program.operands),
        ):
            with pytest.raises(ValueError, match=r"^out must not overlap x in memory; got"):
                check()


def test_two_results_may_not_overlap_and_new_ones_are_not_looked_at() -> None:
    operands = [operand("x"), operand("out", **RESULT), operand("more", is_result=True)]
    call = Call(Specs(), {"x": 1000, "out": 1000}, 0, 0, {})
    assert check_no_overlaps(call, operands) is operands
    with pytest.raises(ValueError, match="out must not overlap more"):
        check_no_overlaps(call._replace(addresses={"x": 5000, "out": 1000, "more": 1016}), operands)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_parts_of_one_array_do_not_overlap(data: st.DataObject) -> None:
    """Nor do they where their bytes alternate. Of parts that are moved, none that share a byte are accepted."""
    shape = data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=4))
    whole = np.arange(math.prod(shape)).reshape(shape).transpose(data.draw(st.permutations(range(len(shape)))))
    axis = data.draw(st.integers(0, len(shape) - 1))
    parts = np.split(whole, [data.draw(st.integers(0, whole.shape[axis]))], axis)
    moved = data.draw(st.sampled_from((0, 0, 4, -4, 2)))
    places = [1000 + 4 * parts[0], 1000 + 4 * parts[1] + moved]  # of the elements in memory
    operands = [
        operand(name, part.shape, strides=tuple(stride // 8 for stride in part.strides), is_result=name == "out")
        for name, part in zip(("out", "x"), parts, strict=True)
    ]
    starts = [int(place.min(initial=2000)) for place in places]
    try:
        check_no_overlaps(Call(Specs(), dict(zip(("out", "x"), starts, strict=True)), 0, 0, {}), operands)
    except ValueError:
        assert moved
    else:
        out, x = ({int(at) + byte for at in place.ravel() for byte in range(4)} for place in places)
        assert out.isdisjoint(x)


@pytest.mark.parametrize("flags", [(True, True), (True, False), (False, True)])
def test_a_program_is_relocatable_if_each_step_is(flags: tuple[bool, bool]) -> None:
    x = Operand("x", TensorSpec((4,), "float32", (1,)))
    steps = [Step(SimpleNamespace(is_relocatable=flag, workspace_size=0), (0,)) for flag in flags]
    assert Program("two steps", 0, [x], steps).is_relocatable == all(flags)


# Nothing to do


def test_a_program_without_steps_launches_nothing() -> None:
    """Its operands may lie anywhere, since they have no elements, and there is nothing to launch directly."""
    empty = TensorSpec((0, 3), "float32", (3, 1))
    program = Program("nothing", 0, [Operand("x", empty), Operand("out", empty, True)], [])
    assert program.workspace_size == 0
    assert not program.is_relocatable
    for pointers in ((0, 0), (4096, 4096)):
        program.check_addresses(pointers, 0)
        assert program.executable.bind(HANDLE, pointers, 0)() == 0


@given(st.integers(0, 64), st.integers(0, 64))
def test_what_has_no_elements_overlaps_nothing(one: int, other: int) -> None:
    full, empty = TensorSpec((16,), "float32", (1,)), TensorSpec((0,), "float32", (1,))
    for x, out in ((full, empty), (empty, full), (empty, empty)):
        programs.check_overlaps([Operand("x", x), Operand("out", out, True)], [one, other])
