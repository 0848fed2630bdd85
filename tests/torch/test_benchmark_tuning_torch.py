"""The benchmark of tuning on torch's CPU tensors: runs at varied addresses, and the faults that they find."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

import cudnnpy
from cudnnpy import reference
from tools.benchmark import tuning
from tools.benchmark.networks import measure_layers
from tools.benchmark.networks.catalogue import layer
from tools.benchmark.networks.cells import KINDS, Cell

pytestmark = pytest.mark.usefixtures("networks_on_the_host")

STRICT = next(kind for kind in KINDS if not kind.tf32)


def _at(address: int, like: Any) -> Any:
    """The NumPy array of a tensor's shape and strides at an address."""
    flat = numpy.frombuffer((ctypes.c_byte * like.nbytes).from_address(address), dtype=numpy.float32)
    return numpy.lib.stride_tricks.as_strided(flat, like.shape, [4 * stride for stride in like.stride()])


class AddressPlan:
    """A forward convolution computed by the reference from raw addresses; `spoil` makes a run faulty."""

    operands, operation, name, source = ("x", "w", "bias", "y"), "forward", "engine 7", "heuristics"
    workspace_size, notes, deterministic, milliseconds, engine = 32, (), True, 0.5, cudnnpy.Engine(7)
    candidates = (
        SimpleNamespace(name="engine 7", rejection_reason="", milliseconds=0.5),
        SimpleNamespace(name="engine 3", rejection_reason="context lost: error 700", milliseconds=None),
        SimpleNamespace(name="engine 4", rejection_reason="needs 12,000 bytes: too many", milliseconds=None),
    )

    def __init__(self, options: Any, tensors: Any, spoil: str) -> None:
        self.convolution, self.tensors, self.spoil, self.runs = reference.Convolution(**options), tensors, spoil, 0

    def execute(self, x: int, w: int, bias: int, y: int, workspace: int, stream: int) -> None:
        assert workspace % 16 == y % 16 == stream == 0
        ctypes.memset(workspace, 0, self.workspace_size)
        arrays = [_at(address, like) for address, like in zip((x, w, bias, y), self.tensors, strict=True)]
        arrays[3][...] = self.convolution.forward(arrays[0], arrays[1], bias=arrays[2])
        self.runs += 1
        if self.runs < 5:
            return
        if self.spoil == "wrong":
            arrays[3][0, 0, 0, 0] += 100
        elif self.spoil:
            ctypes.memset({"behind": y + self.tensors[3].nbytes, "before": y - 1, "input": w}[self.spoil], 0, 1)


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        ("", None),
        ("wrong", "97 of 100 runs gave a wrong result"),
        ("behind", "97 of 100 runs changed bytes"),
        ("before", "97 of 100 runs changed bytes"),
        ("input", "97 of 100 runs changed bytes"),
    ],
)
def test_a_choice_runs_at_varied_addresses(spoil: str, error: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, float | None]] = []

    def convolution(prefer: str, tf32: bool, tune_seconds: float | None = None, **options: Any) -> Any:
        asked.append((prefer, tune_seconds))

        def plan(operation: str, first: Any, second: Any, shape: Any, bias: Any, out: Any) -> AddressPlan:
            return AddressPlan(options, (first, second, bias, out), spoil)

        return SimpleNamespace(plan=plan)

    monkeypatch.setattr(measure_layers.cudnnpy, "Convolution", convolution)
    monkeypatch.setattr(tuning, "stored_faults", list)
    monkeypatch.setattr(tuning, "RUNS_SECONDS", 60.0)
    cell = Cell(layer("4x7x6 -> 6, 3x2, stride 2x1, padding 1, bias"), 2, STRICT, "forward", ("a",))
    row: dict[str, Any] = {"part": "layers", "name": cell.name, "error": None}
    before = torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32
    try:
        with torch.no_grad():
            tuning.measure(torch, cell, row, 0.25, 0.0)
    finally:
        torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = before
    assert asked == [("fastest", None), ("autotune", 0.25)]  # before there is a stored choice, and then tuned
    assert {*row["plan_s"]} == {*row["plans"]} == {"fastest", "autotune"}
    assert (row["reference"], row["runs"]["count"]) == ("float64", tuning.RUNS)
    assert (row["candidates"], row["timed"]) == (3, 1)
    assert row["rejected"] == {"context lost": 1, "needs N bytes": 1}
    assert row["faults"] == [["engine 3", "context lost: error 700"]]
    if error is None:
        assert row["error"] is None
        assert row["runs"]["largest"] < 1e-5
    else:
        assert row["error"].startswith(error)
