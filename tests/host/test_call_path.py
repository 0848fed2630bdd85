"""The steps in docs/how-it-works.md are those of a real call."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from stand_in_device import Array, StandInDevice

import cudnnpy
from cudnnpy._launch import launcher
from cudnnpy._launch.direct import direct_launch
from cudnnpy._launch.direct.captured_nodes import KernelNode
from cudnnpy._launch.direct.direct_launch import DirectLaunch
from cudnnpy._launch.direct.relocations import Relocation
from cudnnpy._memory import arrays

ROOT = Path(__file__).resolve().parents[2]
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


def direct_launch_of(monkeypatch: pytest.MonkeyPatch, operands: int) -> DirectLaunch:
    """The direct launch of one kernel, whose parameters are the addresses."""
    driver = SimpleNamespace(cuLaunchKernelEx=lambda *_: 0)
    monkeypatch.setattr(direct_launch, "driver_library", lambda: driver)
    node = KernelNode(0x400, (1, 1, 1), (32, 1, 1), 0, (8,) * operands, False, (), False, bytes(8 * operands))
    relocations = [Relocation(True, 8 * at, at, 0) for at in range(operands)]
    return DirectLaunch([node], [relocations], operands)


@pytest.mark.usefixtures("cache_limits")
def test_a_known_call_takes_the_steps_of_the_page(stand_in: StandInDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = steps((ROOT / "docs" / "how-it-works.md").read_text())
    by_cudnn = [name for name in listed if ".direct." not in name]
    direct = listed[: len(listed) - 2]
    assert (len(by_cudnn), len(direct)) == (10, 10)
    monkeypatch.setitem(arrays._libraries, Memory, arrays.OWN)
    monkeypatch.setattr(launcher, "_direct_launch_maker", lambda: lambda *_: direct_launch_of(monkeypatch, 4))
    stand_in.stream, stand_in.workspace_size, stand_in.is_relocatable = 0, 1000, True
    conv = cudnnpy.Convolution(padding=1)

    def call() -> None:
        conv.forward(Memory(2, 4, 6, 6), Memory(8, 4, 3, 3), out=Memory(2, 8, 6, 6))

    cudnnpy.set_cache_limit(direct=False)
    call()
    assert [name for name in entered(call) if name in {*by_cudnn, *direct}] == by_cudnn
    cudnnpy.set_cache_limit(direct=True)
    call()
    found = entered(call)
    assert [name for name in found if name in {*by_cudnn, *direct}] == direct
    assert not [
        name for name in found if name.startswith(("cudnnpy._planning", "cudnnpy._measuring", "cudnnpy._store"))
    ]
    assert (len(stand_in.choices), len(stand_in.launches)) == (1, 3)
    x, w, y = Memory(2, 4, 6, 6), Memory(8, 4, 3, 3), Memory(2, 8, 6, 6)
    new, same = (count_of_functions(lambda: conv.forward(x, w, out=y)) for _ in range(2))
    assert (new, same) == (13, 11)  # each takes the host 0.05 to 0.1 us: three read an array


def test_a_new_call_plans_after_the_look_up(stand_in: StandInDevice) -> None:
    """A stand-in selects and runs here, so that the modules of the choice are not entered."""
    conv = cudnnpy.Convolution(padding=1)
    found = entered(lambda: conv.forward(Array(2, 4, 6, 6), Array(8, 4, 3, 3), out=Array(2, 8, 6, 6)))
    order = ["_launch.dispatch", "_launch.plan_cache", "convolution.problem", "_planning.selection", "_planning.plan"]
    names = [f"cudnnpy.{name}" for name in (*order, "_launch.launcher")]
    assert [name for name in found if name in names] == names
