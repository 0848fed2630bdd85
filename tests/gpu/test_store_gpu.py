"""Choices that outlast a process, on the GPU: nothing is measured again, processes choose alike, wrong choices are found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import cudnnpy
import cudnnpy.torch
from cudnnpy import Convolution, ConvolutionTranspose, FusedConvolution, Graph, TensorSpec
from cudnnpy._planning.engines import Target, gpu_kind
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.selection import plan_for
from cudnnpy.handle import Handle
from cudnnpy.tuning import chooser as tuning_chooser
from cudnnpy.tuning import stored_choice
from cudnnpy.tuning.chooser import TuningChooser
from cudnnpy.tuning.measuring import search
from cudnnpy.tuning.measuring.search import Search
from cudnnpy.tuning.store import levels
from cudnnpy.tuning.store.entry import Entry

HERE = Path(__file__).resolve().parent
SECONDS = 600.0
X, W = (8, 64, 28, 28), (64, 64, 3, 3)


def started(store: Path, tune_seconds: float, *start: Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(HERE / "store_child.py"), str(tune_seconds), *map(str, start)]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "CUDNNPY_STORE": str(store)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def answer(process: subprocess.Popen[str]) -> Any:
    out, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, errors[-4000:]
    return json.loads(out.splitlines()[-1])


def choices(found: Any) -> dict[str, Any]:
    return {problem: chosen[:3] for problem, chosen in found["chosen"].items()}


def test_a_second_process_measures_nothing_and_plans_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = answer(started(tmp_path / "store.jsonl", 4.0))  # enough for the start of the process that measures
    second = answer(started(tmp_path / "store.jsonl", 4.0))
    assert first["seconds"] > 0.0
    assert choices(second) == choices(first)
    assert {chosen[3] for chosen in second["chosen"].values()} == {"user"}
    ratios = [one / other for one, other in zip(second["stored"], second["fastest"], strict=True)]
    with capsys.disabled():
        print(
            f"\n{len(ratios)} problems: {first['seconds']:.1f} s in the tuner in the first process, {second['seconds']:.2f} in "
            f"the second; planning over prefer='fastest': {geometric_mean(ratios):.3f} in the geometric mean, "
            f"{max(ratios):.3f} at most"
        )


def test_processes_on_one_gpu_choose_alike(tmp_path: Path) -> None:
    """Whatever they measured or found measured. One that waits too long for its turn takes the choice of "fastest"."""
    start = tmp_path / "start"
    processes = [started(tmp_path / "store.jsonl", 0.2, start) for _ in range(8)]
    start.touch()
    found = [answer(process) for process in processes]
    measured: dict[str, set[str]] = {}
    for problem, (name, _, milliseconds) in (choice for one in found for choice in choices(one).items()):
        measured.setdefault(problem, set()).update([name] if milliseconds is not None else [])
    assert {problem for problem, names in measured.items() if names}
    assert not {problem: names for problem, names in measured.items() if len(names) > 1}


# In one process, with the store in a file


@pytest.fixture
def new_process(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """What a process has that starts now, with the store of the others."""

    def start() -> None:
        cudnnpy.clear_cache()
        levels.use(str(tmp_path / "store.jsonl"))

    start()
    yield start
    cudnnpy.clear_cache()


def random(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype).to(memory_format=torch.channels_last)


def convolution() -> torch.Tensor:
    return Convolution(padding=1, prefer="autotune", tune_seconds=2.0).forward(random(*X), random(*W))


def gradient() -> torch.Tensor:
    conv = Convolution(padding=1, prefer="autotune", tune_seconds=2.0, tf32=False)
    x, dy = random(*X, dtype=torch.float32), random(*X, dtype=torch.float32)
    return conv.backward_filter(dy, x, W)


def transposed() -> torch.Tensor:
    conv = ConvolutionTranspose(padding=1, stride=2, prefer="autotune", tune_seconds=2.0)
    return conv.forward(random(*X), random(*W), bias=random(1, 64, 1, 1).reshape(64))


def fused() -> torch.Tensor:
    conv = FusedConvolution(padding=1, prefer="autotune", tune_seconds=2.0)
    return conv.forward(random(*X), random(*W), bias=torch.randn(64, device="cuda", dtype=torch.float16))


def graph() -> torch.Tensor:
    x, w = random(*X), random(*W)
    g = Graph(prefer="autotune", tune_seconds=2.0)
    y = g.pointwise("relu_fwd", g.convolution(g.tensor("x", x), g.tensor("w", w), padding=1))
    g.output("y", y, "float16")
    found = g.run(x=x, w=w)
    assert isinstance(found, torch.Tensor)
    return found


def program() -> torch.Tensor:
    with cudnnpy.torch.enable(prefer="autotune", tune_seconds=2.0):
        return F.conv2d(random(*X), random(*W), padding=1)


@pytest.mark.parametrize("road", [convolution, gradient, transposed, fused, graph, program])
def test_every_road_takes_the_stored_choice(
    road: Callable[[], torch.Tensor], new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    first = road()
    assert len(levels.current().user) > 0

    def never(*_: Any) -> Any:
        raise AssertionError("something was measured")

    monkeypatch.setattr(TuningChooser, "_measured", never)
    new_process()
    torch.manual_seed(0)
    torch.testing.assert_close(road(), first, rtol=1e-2, atol=5e-2)
    assert levels.current().user.faults() == []


# The first run of what was not measured here


CONVOLUTION = Convolution(padding=1, prefer="autotune", tune_seconds=2.0)
SPECS = TensorSpec(X, "float32"), TensorSpec(W, "float32")


def of_another_driver() -> Entry:
    """Tune, and replace the entry by one that was measured elsewhere."""
    plan = CONVOLUTION.plan("forward", *SPECS)
    key = stored_choice.key_of(plan.problem, PlanningOptions(), gpu_kind(Target(Handle.default(0))))
    found = levels.current().get(key)
    assert found is not None
    assert key.gpu
    assert key.multiprocessors > 0
    return levels.current().writable.put(
        found.entry._replace(made_with={**found.entry.made_with, "driver": "another"}), replace=True
    )


def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The problems whose stored choice is run once to be checked."""
    seen: list[str] = []
    confirmed = TuningChooser._confirmed

    def noted(self: TuningChooser, entry: Entry) -> str:
        seen.append(entry.text)
        return confirmed(self, entry)

    monkeypatch.setattr(TuningChooser, "_confirmed", noted)
    return seen


def test_the_other_preferences_take_a_choice_once_it_was_checked(new_process: Callable[[], None]) -> None:
    fastest = Convolution(padding=1)
    tuned = CONVOLUTION.plan("forward", *SPECS)
    new_process()
    assert (fastest.plan("forward", *SPECS).name, fastest.plan("forward", *SPECS).store_layer) == (tuned.name, "user")
    of_another_driver()
    new_process()
    assert fastest.plan("forward", *SPECS).store_layer == ""
    CONVOLUTION.plan("forward", *SPECS)
    new_process()
    assert fastest.plan("forward", *SPECS).store_layer == "user"


def test_a_right_choice_of_another_machine_is_checked_once(
    new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, seen = of_another_driver(), checks(monkeypatch)
    for _ in range(2):
        new_process()
        plan = CONVOLUTION.plan("forward", *SPECS)
        assert (plan.store_layer, plan.milliseconds) == ("user", entry.choice.milliseconds)
    assert len(seen) == 1
    assert levels.current().user.faults() == []


def test_a_wrong_choice_of_another_machine_is_found_and_not_taken_again(
    new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an engine is that has an issue nobody knows of: some of its results are overwritten.

    It is measured in this process, where the engine can be spoiled.
    """
    from cuda.bindings import driver

    problem = CONVOLUTION.plan("forward", *SPECS).problem
    of_another_driver()
    seen = checks(monkeypatch)
    read = search.serialized_candidate

    def spoiled(*given: Any) -> Any:
        found = read(*given)
        make = found.make

        def made() -> Any:
            executable = make()
            bind = executable.bind

            def bound(handle: Any, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
                launch = bind(handle, pointers, workspace)

                def launched() -> int:
                    status = launch()
                    driver.cuMemsetD8Async(pointers[-1], 0x41, 4 * 8 * 64 * 28 * 28, 0)
                    return status

                return launched

            executable.bind = bound
            return executable

        found.make = made
        return found

    monkeypatch.setattr(search, "serialized_candidate", spoiled)
    new_process()
    options = PlanningOptions(prefer="autotune", tune_seconds=2.0)
    measurer = Search(Handle.default(0))
    monkeypatch.setattr(tuning_chooser, "measurer_of", lambda request: measurer)
    plan = plan_for(problem, options)
    assert (len(seen), plan.store_layer) == (1, "")
    (fault,) = levels.current().user.faults()
    assert fault.symptom == "not confirmed"
    assert "wrong result" in fault.detail
    monkeypatch.undo()
    new_process()
    assert CONVOLUTION.plan("forward", *SPECS).store_layer == "user"
