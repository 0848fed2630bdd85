"""The benchmark of networks on torch's CPU tensors: the list's shapes, the comparison, and the measuring of layers."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

import cudnnpy
from cudnnpy import reference
from tools.benchmark import timing
from tools.benchmark.networks import catalogue, collect, measure_layers, models, tensors
from tools.benchmark.networks.catalogue import layer
from tools.benchmark.networks.cells import KINDS, Cell

pytestmark = pytest.mark.usefixtures("networks_on_the_host")

OPERATIONS = ("forward", "backward_data", "backward_filter")
STRICT = next(kind for kind in KINDS if not kind.tf32)
SMALL = (
    "4x7x6 -> 6, 3x2, stride 2x1, padding 1, bias",
    "4x7x6 -> 4, 3x3, padding 1, groups 4",
    "4x9x8 -> 8, 3x3, padding 2, dilation 2, groups 2",
    "4x5x6 -> 6, 3x3, stride 2, padding 1, transposed, output padding 1, bias",
    "4x5x6 -> 2, 4x4, stride 2, padding 1, groups 2, transposed",
    "3x20 -> 4, 5, stride 3, padding 2, bias",
    "4x10 -> 2, 4, stride 2, padding 1, transposed",
    "2x4x5x6 -> 3, 1x3x3, stride 1x2x2, padding 0x1x1",
)


# --- the list


def test_the_convolutions_that_a_module_asks_for_are_noted_once_each() -> None:
    n = torch.nn
    model = n.Sequential(
        n.Conv2d(3, 8, 3, 2, 1, bias=False),
        n.Conv2d(8, 8, 3, 1, 2, 2, groups=8),
        n.Conv2d(8, 8, 3, 1, 2, 2, groups=8),
        n.ConvTranspose2d(8, 4, 3, 2, 1, 1, bias=False),
        n.Flatten(2),
        n.Conv1d(4, 6, 5, padding="same"),
        n.Unflatten(2, (16, 4, 4)),
        n.Conv3d(6, 2, (1, 3, 3), (1, 2, 1)),
    ).to("meta")
    found = collect.convolutions(torch, lambda: model(torch.empty(2, 3, 16, 16, device="meta")))
    assert [one.text for one in found] == [
        "3x16x16 -> 8, 3x3, stride 2, padding 1",
        "8x8x8 -> 8, 3x3, padding 2, dilation 2, groups 8, bias",
        "8x8x8 -> 4, 3x3, stride 2, padding 1, transposed, output padding 1",
        "4x256 -> 6, 5, padding 2, bias",
        "6x16x4x4 -> 2, 1x3x3, stride 1x2x1, bias",
    ]


def test_the_benchmark_s_unet_is_the_one_of_the_list() -> None:
    model, size = models.unet(torch).to("meta"), models.SIZES["unet"]
    found = collect.convolutions(torch, lambda: model(torch.empty(2, 3, size, size, device="meta")))
    (listed,) = (network for network in catalogue.read() if network.name == "unet_padded")
    assert set(found) == set(listed.layers)


# --- one cell


def _cell(text: str, operation: str, kind: Any = STRICT) -> Cell:
    return Cell(layer(text), 2, kind, operation, ("a",))


def _by_reference(options: Any, operation: str, first: Any, second: Any, shape: Any, bias: Any) -> Any:
    """What Convolution's method of that name gives, and a bias behind a gradient to x."""
    convolution = reference.Convolution(**options)
    arrays = [tensor.detach().numpy() for tensor in (first, second)]
    if operation == "forward":
        return convolution.forward(*arrays, bias=None if bias is None else bias.numpy())
    result = getattr(convolution, operation)(*arrays, shape)
    return result if bias is None else result + bias.numpy().reshape(1, -1, *(1,) * (result.ndim - 2))


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("text", SMALL)
def test_cudnnpy_is_asked_for_what_torch_computes(text: str, operation: str) -> None:
    cell = _cell(text, operation)
    o = tensors.operands(torch, cell)[0]
    assert (o.bias is not None) == (cell.layer.bias and operation == "forward")
    expected = tensors.torch_call(torch, cell, o)()
    options = {name: value for name, value in measure_layers.options(cell).items() if name != "tf32"}
    result = _by_reference(options, *tensors.plan_arguments(cell, o))
    assert result.shape == tuple(expected.shape) == tuple(o.out.shape)
    numpy.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 5), (2, 3, 4, 5, 6), (1, 3, 4, 5)])
def test_the_memory_order_is_the_wanted_one(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    last = tensors.ordered(x, True)
    assert torch.equal(last, x)
    assert last.movedim(1, -1).is_contiguous()
    assert tensors.ordered(last, False).is_contiguous()


def test_a_difference_is_relative_and_finds_a_single_element() -> None:
    expected = torch.ones(100, 100)
    result = expected.clone()
    result[3, 4] += 0.5
    off = tensors.difference(torch, result, expected)
    assert off == pytest.approx((0.005, 0.5), rel=1e-5)
    assert not off.within(STRICT)
    assert tensors.difference(torch, expected + 1e-5, expected).within(STRICT)
    assert not tensors.Difference(1e-6, 0.1).within(STRICT)
    result[0, 0] = float("nan")
    assert not tensors.difference(torch, result, expected).within(STRICT)
    assert tensors.difference(torch, torch.zeros(3), torch.zeros(3)) == (0, 0)
    assert not tensors.difference(torch, torch.ones(3), torch.zeros(3)).within(STRICT)
    with pytest.raises(ValueError, match="the result must have shape"):
        tensors.difference(torch, torch.ones(1, 3), torch.ones(3))


def _compared(spoil: Callable[[Any], Any], theirs: Callable[[Any], Any] = lambda y: y) -> tuple[dict[str, Any], str]:
    cell = _cell(SMALL[0], "forward")
    o = tensors.operands(torch, cell)[0]
    torch_s = tensors.torch_call(torch, cell, o)
    right = torch_s().clone()

    def ours() -> Any:
        assert torch.isnan(o.out).all()  # nothing of an earlier call is left
        o.out.copy_(spoil(right.clone()))
        return o.out

    return tensors.compared(torch, cell, o, lambda: theirs(torch_s().clone()), {"fastest": ours, "autotune": ours})


def test_a_right_result_is_right() -> None:
    found, wrong = _compared(lambda y: y * (1 + 1e-6))
    assert wrong == ""
    assert set(found) == {"fastest", "autotune"}
    assert found["fastest"]["relative"] < 1e-5


def _with(y: Any, value: float) -> Any:
    y[0, 1, 2, 3] = value
    return y


@pytest.mark.parametrize("spoil", [lambda y: _with(y, float("nan")), lambda y: _with(y, 5e3), lambda y: y * 1.01])
def test_a_wrong_result_fails(spoil: Callable[[Any], Any]) -> None:
    found, wrong = _compared(spoil)
    assert "fastest: wrong by" in wrong
    assert "autotune: wrong by" in wrong
    assert found["torch, from float64"]["relative"] < 1e-5


def test_where_torch_is_wrong_ours_is_right() -> None:
    found, wrong = _compared(lambda y: y, theirs=lambda y: _with(y, 5e3))
    assert wrong == ""
    assert found["torch, from float64"]["relative"] > 1
    assert found["fastest, from float64"]["relative"] < 1e-5


def test_a_launch_that_raises_fails() -> None:
    def raises(y: Any) -> Any:
        raise MemoryError("no workspace")

    assert _compared(raises)[1] == "fastest: MemoryError: no workspace; autotune: MemoryError: no workspace"


class FakePlan:
    """Runs by addresses, as plan.execute does, what the reference says; `factor` makes it wrong."""

    def __init__(self, options: Any, asked: Any, out: Any, factor: float) -> None:
        self.options, self.asked, self.out, self.factor = options, asked, out, factor
        operation, first, second, _, bias = asked
        self.given = [tensor.data_ptr() for tensor in (first, second, bias, out) if tensor is not None]
        self.operands = tuple("abcd"[: len(self.given)])
        self.name, self.source, self.operation, self.workspace_size = "engine 7", "heuristics", operation, 32
        self.notes, self.deterministic, self.milliseconds = ("winograd",), True, 0.5
        self.engine = cudnnpy.Engine(7, {3: 4})

    def execute(self, *addresses: int) -> None:
        *given, workspace, stream = addresses
        assert workspace % 16 == stream == 0
        if given == self.given:  # the first set; what the others hold is not looked at
            result = _by_reference(self.options, *self.asked)
            self.out.copy_(torch.from_numpy(numpy.ascontiguousarray(result)) * self.factor)


def _measured(monkeypatch: pytest.MonkeyPatch, text: str, operation: str, factor: float = 1.0) -> dict[str, Any]:
    made: list[dict[str, Any]] = []

    def convolution(prefer: str, tf32: bool, tune_seconds: float | None = None, **options: Any) -> Any:
        made.append({"prefer": prefer, "tf32": tf32, "tune_seconds": tune_seconds})
        wrong = factor if prefer == "autotune" else 1.0

        def plan(operation: str, first: Any, second: Any, shape: Any, bias: Any, out: Any) -> FakePlan:
            return FakePlan(options, tensors.PlanArguments(operation, first, second, shape, bias), out, wrong)

        return SimpleNamespace(plan=plan)

    flags: dict[str, set[bool]] = {}

    def device_timer(torch: Any, calls: list[Callable[[], object]], count: int) -> Callable[[], float]:
        def timed() -> float:
            begin = time.perf_counter()
            for index in range(count):
                calls[index % len(calls)]()
            return (time.perf_counter() - begin) * 1e3 / count

        return timed

    def torch_call(torch: Any, cell: Cell, o: Any) -> Callable[[], Any]:
        call, name = tensors.torch_call(torch, cell, o), f"call {len(flags)}"
        flags[name] = set()

        def noted() -> Any:
            flags[name].add(torch.backends.cudnn.benchmark)
            return call()

        return noted

    monkeypatch.setattr(measure_layers, "torch_call", torch_call)
    monkeypatch.setattr(measure_layers.cudnnpy, "Convolution", convolution)
    monkeypatch.setattr(timing, "device_timer", device_timer)
    monkeypatch.setattr(measure_layers, "TIMING_SECONDS", 0.0)
    row: dict[str, Any] = {"error": None}
    before = torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32
    try:
        measure_layers.measure(torch, _cell(text, operation), row, 0.25)
    finally:
        torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = before
    assert made == [
        {"prefer": "fastest", "tf32": False, "tune_seconds": None},
        {"prefer": "autotune", "tf32": False, "tune_seconds": 0.25},
    ]
    # two sets of tensors: the first two calls search, the others never do
    assert list(flags.values()) == [{True}, {True}, {False}, {False}]
    return row


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("text", [SMALL[0], SMALL[3]])
def test_a_cell_is_measured(text: str, operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = _measured(monkeypatch, text, operation)
    assert row["error"] is None
    assert set(row["ms"]) == {"torch", "torch, again", "torch, no search", "fastest", "autotune"}
    assert all(found["median"] > 0 and found["runs"] == measure_layers.LEAST for found in row["ms"].values())
    assert set(row["plan_s"]) == set(row["plans"]) == {"fastest", "autotune"}
    assert row["plans"]["autotune"]["engine"]["index"] == 7
    assert row["difference"]["autotune"]["relative"] < 1e-5
    assert row["torch_search_s"] > 0


def test_a_cell_whose_result_is_wrong_fails_with_its_times(monkeypatch: pytest.MonkeyPatch) -> None:
    row = _measured(monkeypatch, SMALL[0], "forward", factor=1.01)
    assert row["error"].startswith("autotune: wrong by 0.01 of the float64 result")
    assert "fastest" not in row["error"]
    assert row["ms"]
