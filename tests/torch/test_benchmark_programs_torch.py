"""Whole networks and steps on torch's CPU tensors."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tools.benchmark.networks import catalogue, collect, compile_ahead, measure_programs, models, plain
from tools.benchmark.networks.measure_programs import Absent, Program

pytestmark = pytest.mark.usefixtures("networks_on_the_host")


# --- whole networks


def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small network in place of the large ones, in float32 (the CPU has no fast float16)."""

    def build(torch: Any, name: str) -> Any:
        torch.manual_seed(0)
        n = torch.nn
        body = [n.Conv2d(3, 8, 3, 2, 1), n.BatchNorm2d(8), n.ReLU(), n.AdaptiveAvgPool2d(1), n.Flatten()]
        return n.Sequential(*body, n.Dropout(0.5), n.Linear(8, 1000))

    monkeypatch.setattr(models, "build", build)
    monkeypatch.setitem(models.SIZES, "resnet50", 16)
    monkeypatch.setattr(models, "poison", lambda torch: None)
    monkeypatch.setattr(measure_programs, "REPETITION_MS", 0.1)
    monkeypatch.setattr(measure_programs, "TIMING_SECONDS", 0.0)
    monkeypatch.setattr(measure_programs, "captured", lambda torch, call: call)
    monkeypatch.setattr(torch, "compile", lambda model, mode: model)


def _program(part: str) -> dict[str, Any]:
    row: dict[str, Any] = {"error": None}
    flags = torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32
    try:
        measure_programs.measure(torch, Program(part, "resnet50", 4), row, 0.5)
    finally:
        torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = flags
    return row


def test_an_inference_without_the_example_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _small(monkeypatch)
    monkeypatch.setattr(
        measure_programs, "converted", lambda model, x: _converted(model, x, tmp_path / "torch_network.py")
    )
    row = _program("inference")
    assert row["error"] is None
    assert set(row["ms"]) == {"torch", "torch, again", "torch, graph", "torch.compile"}
    why = "docs/examples/torch_network.py is not there"
    assert row["absent"] == {"cudnnpy": why, "cudnnpy, graph": why}
    assert row["difference"]["torch"] < 1e-2


_converted = measure_programs.converted


@pytest.mark.parametrize(("factor", "error"), [(1.0, None), (1.1, "cudnnpy: wrong by 0.1 of the float32 result")])
def test_an_inference_by_the_example_is_compared(
    factor: float, error: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _small(monkeypatch)
    file = tmp_path / "torch_network.py"
    file.write_text(
        "def convert(module, x):\n"
        f"    network = lambda x: module(x) * {factor}\n"
        "    network.rows = [Row('conv', 'cudnnpy', 'engine 1'), Row('fc', 'torch', 'Linear')]\n"
        "    module.converted = getattr(module, 'converted', 0) + 1\n"
        "    assert module.converted == 1\n"  # one conversion for both ways to run it
        "    return network\n"
        "from collections import namedtuple\n"
        "Row = namedtuple('Row', 'layer by detail')\n"
    )
    monkeypatch.setattr(measure_programs, "converted", lambda model, x: _converted(model, x, file))
    row = _program("inference")
    assert (row["error"] or "").startswith(error or "")
    assert bool(row["error"]) is bool(error)
    assert {"cudnnpy", "cudnnpy, graph"} <= row["difference"].keys()
    assert ({"cudnnpy", "cudnnpy, graph"} <= row["ms"].keys()) is (error is None)
    assert row["layers"] == {"cudnnpy": 1, "torch": 1}
    assert row["left"] == ["fc: Linear"]
    assert row["convert_s"] >= 0


def test_the_example_itself_is_found_with_its_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    _small(monkeypatch)
    row = _program("inference")
    assert row["error"] is None
    assert row["left"] == ["the whole module: its inputs are on cpu, not on a CUDA device"]
    assert {"cudnnpy", "cudnnpy, graph"} <= row["ms"].keys()


def test_an_example_without_the_function_says_so(tmp_path: Path) -> None:
    file = tmp_path / "torch_network.py"
    file.write_text("")
    with pytest.raises(Absent, match="has no function convert"):
        _converted(None, None, file)


def test_a_compiler_that_does_not_work_is_absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _small(monkeypatch)

    def compile(model: Any, mode: str) -> Any:
        raise RuntimeError("no C compiler\nwas found")

    monkeypatch.setattr(torch, "compile", compile)
    row = _program("inference")
    assert row["absent"]["torch.compile"] == "does not work here: RuntimeError: no C compiler was found"
    assert row["error"] is None


@pytest.mark.parametrize("factor", [None, 1.0, 3.0])
def test_a_training_step_is_timed_with_and_without(factor: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    _small(monkeypatch)
    given: list[dict[str, Any]] = []

    @contextmanager
    def enable(**options: Any) -> Any:
        given.append(options)
        before = torch.nn.functional.cross_entropy
        torch.nn.functional.cross_entropy = lambda *some: before(*some) * factor
        try:
            yield
        finally:
            torch.nn.functional.cross_entropy = before

    def find(name: str) -> Any:
        assert name == "cudnnpy.torch"
        if factor is None:
            raise ModuleNotFoundError("none", name=name)
        taken = {"forward": 3}
        return SimpleNamespace(
            enable=enable, stats=lambda: SimpleNamespace(handled=taken.copy(), fallbacks={}), reset_stats=taken.clear
        )

    monkeypatch.setattr(measure_programs, "importlib", SimpleNamespace(import_module=find))
    row = _program("training")
    if factor is None:
        assert row["absent"]["cudnnpy"] == "no module cudnnpy.torch"
        assert set(row["ms"]) == {"torch", "torch, again"}
    else:
        assert {"cudnnpy", "cudnnpy, fastest"} == row["difference"].keys() - {"torch"}
        assert {"prefer": "fastest"} in given
        assert {"tune_seconds": 0.5} in given
        assert (row.get("convolutions") == {"taken": {"forward": 3}, "left": {}}) is (factor == 1.0)
    assert bool(row["error"]) is (factor == 3.0)
    assert ("cudnnpy" in row["ms"]) is (factor == 1.0)


def test_a_timer_of_calls_in_a_row_waits_outside_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("wait"))
    assert models.wall_timer(torch, lambda: log.append("call"), 3)() >= 0
    assert log == ["wait", "call", "call", "call", "wait"]


def test_the_float32_reference_leaves_torch_s_switches_as_they_were() -> None:
    before = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    with pytest.raises(ZeroDivisionError), models.exact_float32(torch):
        assert not torch.backends.cudnn.allow_tf32
        raise ZeroDivisionError
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark) == before


def test_a_network_s_batch_norms_have_seen_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models.SIZES, "unet", 32)
    monkeypatch.setattr(models, "unet", lambda torch: _UNET(torch, width=4, levels=2))
    model = models.build(torch, "unet")
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    assert all(norm.momentum == 0.1 and norm.running_var.min() != 1 for norm in norms)
    assert model.eval()(models.pictures(torch, "unet", 2)).shape == (2, 2, 32, 32)


_UNET = models.unet


# --- networks without torchvision, and compiling ahead


@pytest.mark.parametrize("name", plain.MODELS)
def test_the_networks_that_take_torchvision_s_place_have_its_convolutions(name: str) -> None:
    model = plain.MODELS[name](torch).to("meta")
    size = models.SIZES[name]
    found = collect.convolutions(torch, lambda: model(torch.empty(2, 3, size, size, device="meta")))
    (network,) = (network for network in catalogue.read() if network.name == name)
    assert set(found) == set(network.layers)
    assert model(torch.empty(2, 3, size, size, device="meta")).shape == (2, 1000)


@pytest.mark.parametrize("there", [False, True])
def test_torchvision_s_networks_are_taken_where_it_is_installed(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    theirs = SimpleNamespace(get_model=lambda name, weights: made.append("torchvision") or torch.nn.ReLU())
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: object() if there else None)
    monkeypatch.setattr(models.importlib, "import_module", lambda name: theirs)
    monkeypatch.setitem(plain.MODELS, "resnet50", lambda torch: made.append("plain") or torch.nn.ReLU())
    monkeypatch.setitem(models.SIZES, "resnet50", 8)
    models.build(torch, "resnet50")
    assert made == ["torchvision" if there else "plain"]
    assert models.source("resnet50").startswith("torchvision" if there else "tools/benchmark")
    assert models.source("unet") == "tools/benchmark"


def test_networks_are_compiled_side_by_side_and_the_slow_ones_are_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n"  # -m MODULE NETWORK BATCH
        f'echo "$3 $4 $TORCHINDUCTOR_COMPILE_THREADS" > {tmp_path}/$3\n'
        "case $3 in resnet50) exit 0;; unet) exit 1;; esac\n"
        f"echo $$ > {tmp_path}/pid; exec sleep 600\n"
    )
    python.chmod(0o755)
    monkeypatch.setattr(compile_ahead.sys, "executable", str(python))
    programs = [Program("inference", name, 64) for name in ("mobilenet_v2", "resnet50", "unet")]
    assert compile_ahead.compile_ahead(programs, 4.0) == 1
    assert (tmp_path / "resnet50").read_text() == f"resnet50 64 {compile_ahead.THREADS}\n"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_what_is_compiled_ahead_is_what_a_row_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def compile(model: Any, mode: str) -> Any:
        assert not torch.is_grad_enabled() or asked == []
        return lambda x: asked.append((mode, x.dtype, tuple(x.shape), next(model.parameters()).dtype, model.training))

    _small(monkeypatch)
    monkeypatch.setattr(torch, "compile", compile)
    flags = torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32
    try:
        compile_ahead.main("resnet50", "4")
    finally:
        torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = flags
    _program("inference")
    assert asked[0] == ("reduce-overhead", torch.float16, (4, 3, 16, 16), torch.float16, False)
    assert set(asked) == {asked[0]}
