"""The steps in docs/how-it-works.md are the steps of a real call, a known one and a first one."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from stand_in_device import Array, StandInDevice

import cudnnpy
from cudnnpy._launch import launcher
from cudnnpy._launch.direct.captured_nodes import KernelNode
from cudnnpy._launch.direct.direct_launch import DirectLaunch
from cudnnpy._launch.direct.relocations import Relocation
from cudnnpy._launch.steps import Executable
from cudnnpy._measuring.tuner import Tuner
from cudnnpy._memory import arrays
from cudnnpy._planning import selection, stored_choice
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.measurement import Measurement
from cudnnpy._planning.selection import choose
from cudnnpy.convolution.candidates import ConvolutionProblem
from cudnnpy.typing import Preference

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = Path(cudnnpy.__file__).parent


def entered(call: Callable[[], object]) -> list[str]:
    """The modules of the package whose functions a call enters, in the order of their first."""
    found: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        file = Path(frame.f_code.co_filename.partition(",")[0])
        if event == "call" and PACKAGE in file.parents:
            found[".".join(("cudnnpy", *file.relative_to(PACKAGE).with_suffix("").parts))] = None

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return list(found)


def count_of_functions(call: Callable[[], object]) -> int:
    """The number of functions that a call enters, without those of `_core`, which check the launch in the stand-in."""
    count = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        file = Path(frame.f_code.co_filename.partition(",")[0])
        count += event == "call" and PACKAGE in file.parents and file.parent.name != "_core"

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


def steps(page: str) -> list[str]:
    """The modules of the table of a known call, and of the sentence after it."""
    text = page.partition("**A known call**")[2].partition("The call signature is")[0]
    return re.findall(r"`(cudnnpy\.[\w.]+)`", text)


class Memory(Array):
    """An array that is read as a DeviceArray is."""

    @property
    def _signature(self) -> Any:
        return self.shape, self.strides, self.dtype, self.device


def direct_launch_of(operands: int) -> DirectLaunch:
    """The direct launch of one kernel, whose parameters are the addresses."""
    node = KernelNode(0x400, (1, 1, 1), (32, 1, 1), 0, (8,) * operands, False, (), False, bytes(8 * operands))
    relocations = [Relocation(True, 8 * at, at, 0) for at in range(operands)]
    return DirectLaunch([node], [relocations], operands)


def test_a_known_call_takes_the_steps_of_the_page(stand_in: StandInDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = steps((ROOT / "docs" / "how-it-works.md").read_text())
    by_cudnn = [name for name in listed if ".direct." not in name]
    direct = listed[: len(listed) - 2]
    assert (len(by_cudnn), len(direct)) == (9, 9)
    monkeypatch.setitem(arrays._libraries, Memory, arrays.OWN)
    monkeypatch.setattr(launcher, "_direct_launch_maker", lambda: lambda *_: direct_launch_of(4))
    stand_in.driver.functions.update(cuLaunchKernelEx=lambda *_: 0, cuPointerGetAttribute=lambda *_: 1)
    stand_in.stream, stand_in.workspace_size, stand_in.is_relocatable = 0, 1000, True
    conv = cudnnpy.Convolution(padding=1)

    def call() -> None:
        conv.forward(Memory(2, 4, 6, 6), Memory(8, 4, 3, 3), out=Memory(2, 8, 6, 6))

    cudnnpy.set_direct_launches(False)
    call()
    assert [name for name in entered(call) if name in {*by_cudnn, *direct}] == by_cudnn
    cudnnpy.set_direct_launches(True)
    call()
    found = entered(call)
    assert [name for name in found if name in {*by_cudnn, *direct}] == direct
    assert not [
        name for name in found if name.startswith(("cudnnpy._planning", "cudnnpy._measuring", "cudnnpy._store"))
    ]
    assert (len(stand_in.choices), len(stand_in.launches)) == (1, 3)
    x, w, y = Memory(2, 4, 6, 6), Memory(8, 4, 3, 3), Memory(2, 8, 6, 6)
    new, same = (count_of_functions(lambda: conv.forward(x, w, out=y)) for _ in range(2))
    assert (new, same) == (12, 10)  # each takes the host 0.05 to 0.1 us: three read an array


def functions_entered(call: Callable[[], object]) -> list[str]:
    """The functions of the package that a call enters, in order, each as often as it is entered."""
    found = []

    def note(frame: FrameType, event: str, _: object) -> None:
        file = Path(frame.f_code.co_filename.partition(",")[0])
        if event == "call" and PACKAGE in file.parents:
            module = ".".join(("cudnnpy", *file.relative_to(PACKAGE).with_suffix("").parts))
            found.append(f"{module}.{frame.f_code.co_qualname}")

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def steps_of_a_first_call(page: str) -> list[str]:
    """The functions of the table of a first call."""
    table = page.partition("**Any other new call signature**")[2].partition("The launch follows as above")[0]
    return re.findall(r"^\| \d+ \| `(cudnnpy\.[\w.]+)` \|", table, re.M)


class Choosing:
    """Two made-up candidates in place of cuDNN's, of which an option rejects the first; and no GPU that measures."""

    def __init__(self, stand_in: StandInDevice, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stand_in, self.planned = stand_in, 0
        monkeypatch.setattr(selection, "choose", choose)
        monkeypatch.setattr(stored_choice, "gpu_kind", lambda target: ("NVIDIA H200", "9.0", 132))
        monkeypatch.setattr(ConvolutionProblem, "proposed_candidates", lambda problem, *_: self.candidates(problem))
        monkeypatch.setattr(Tuner, "_in_turn", lambda *_: Measurement(None, "there is no GPU"))

    def candidates(self, problem: ConvolutionProblem) -> Iterator[Candidate]:
        def make() -> Executable:
            self.planned += 1
            return self.stand_in.executable(tuple(range(len(problem.operands))), problem.operands)

        for number, is_deterministic in enumerate((False, True)):
            yield Candidate("heuristics", f"made up {number}", (), is_deterministic, make)


@pytest.mark.parametrize("prefer", ["fastest", "limited_workspace", "no_workspace", "autotune"])
def test_a_first_call_takes_the_steps_of_the_page(
    stand_in: StandInDevice, monkeypatch: pytest.MonkeyPatch, prefer: Preference
) -> None:
    """Each once, and one plan is made."""
    listed = steps_of_a_first_call((ROOT / "docs" / "how-it-works.md").read_text())
    measures = "cudnnpy._measuring.tuner.Tuner.measure"
    assert listed.index(measures) == 7
    made = Choosing(stand_in, monkeypatch)
    conv = cudnnpy.Convolution(padding=1, prefer=prefer, deterministic=True)
    found = functions_entered(lambda: conv.forward(Array(2, 4, 6, 6), Array(8, 4, 3, 3)))
    wanted = [name for name in listed if name != measures or prefer == "autotune"]
    assert [*dict.fromkeys(name for name in found if name in listed)] == wanted
    tried = "cudnnpy._planning.candidate_filter.try_plan"
    assert {name: found.count(name) for name in wanted} == {name: 2 if name == tried else 1 for name in wanted}
    assert (made.planned, len(stand_in.launches)) == (1, 1)


def test_every_operation_with_a_choice_of_engines_plans_by_the_same_functions() -> None:
    """One function plans, and one gives the callback that measures, wherever a call plans."""
    package = {file: file.read_text() for file in PACKAGE.rglob("*.py")}
    callers = {str(file.relative_to(PACKAGE)) for file, source in package.items() if re.search(r"\bplan_for\(", source)}
    assert callers == {
        "_planning/selection.py",
        "convolution/convolution.py",
        "convolution/fused.py",
        "graph/graph.py",
        "_child_process.py",
    }
    measuring = {name for name in callers if "measurer_for(" in (PACKAGE / name).read_text()}
    assert measuring == callers - {"_planning/selection.py"}
