"""The benchmark's host rows on torch's CPU tensors: address tuples, and the contenders that vary them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tools.benchmark import host, timing
from tools.benchmark.host import Contender, Tensors
from tools.benchmark.timing import Budget


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """torch, whose new tensors are on the CPU."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    drawn = torch.randn
    monkeypatch.setattr(torch, "randn", lambda *shape, device, dtype: drawn(*shape, dtype=dtype))
    monkeypatch.setattr(host, "PAIRS", 8)
    monkeypatch.setattr(host, "FILTERS", 4)
    return torch


def test_the_shapes_are_those_of_a_convolution(cpu: Any) -> None:
    x, w, y = Tensors(cpu, "float32", 1).turns()()
    assert (tuple(x.shape), tuple(w.shape), tuple(y.shape)) == (host.X_SHAPE, host.W_SHAPE, host.Y_SHAPE)
    assert all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in (x, w, y))
    assert torch.nn.functional.conv2d(x, w, padding=host.PADDING).shape == y.shape


@pytest.mark.parametrize("tuples", [1, 16])
def test_tuples_come_in_turn(tuples: int, cpu: Any) -> None:
    turn = Tensors(cpu, "float16", tuples).addresses()
    seen = [turn() for _ in range(3 * tuples)]
    assert len(set(seen)) == tuples
    assert seen[:tuples] == seen[tuples : 2 * tuples]


def test_a_new_tuple_never_comes_again(cpu: Any) -> None:
    turn = Tensors(cpu, "float16", host.NEW).addresses()
    seen = [turn() for _ in range(32)]
    assert len(set(seen)) == 32
    assert all(address % 16 == 0 for addresses in seen for address in addresses)
    with pytest.raises(StopIteration):
        turn()


def test_there_are_enough_new_tuples_for_a_run() -> None:
    assert (host.MOST + 3) * (timing.HOST_BATCH + timing.HOST_WARM_UP) < 4096 * 512


def test_contenders_are_timed_with_each_number_of_tuples(monkeypatch: pytest.MonkeyPatch, cpu: Any) -> None:
    def in_turn(t: Tensors) -> Callable[[], object]:
        turn = t.turns()
        return lambda: tuple(tensor.shape for tensor in turn())

    def fails(t: Tensors) -> Callable[[], object]:
        raise ValueError("no such thing")

    contenders = {
        "torch F.conv2d": Contender(in_turn, varies=True),
        "pack ready": Contender(host._ready_pack, varies=True),
        "fixed": Contender(in_turn),
    }
    monkeypatch.setattr(host, "CONTENDERS", contenders)
    monkeypatch.setattr(host, "PAIRS", 4096)
    monkeypatch.setattr(host, "MOST", 1)
    monkeypatch.setattr(host, "_plan", fails)
    row: dict[str, Any] = {}
    host.measure(cpu, "float16", row, Budget(0.01))
    assert set(row["us"]) == {*(f"torch F.conv2d, {tuples}" for tuples in host.TUPLES), "fixed, 1"}
    assert all(time["median"] > 0 for time in row["us"].values())
    assert row["error"].count("ValueError: no such thing") == len(host.TUPLES) - 1
    assert row["absent"] == {"pack ready, new": "no pack can be ready for unknown addresses"}
    host.measure(cpu, "float32", row, Budget(0.01))
    assert set(row["us"]) == {"torch F.conv2d, 1", "fixed, 1"}


def test_a_contender_s_switch_is_off_for_the_others(monkeypatch: pytest.MonkeyPatch, cpu: Any) -> None:
    is_on = False

    @contextmanager
    def switch() -> Iterator[None]:
        nonlocal is_on
        is_on = True
        yield
        is_on = False

    def expects(on: bool) -> Callable[[Tensors], Callable[[], object]]:
        def call() -> None:
            assert is_on is on

        return lambda t: call

    contenders = {
        "torch F.conv2d": Contender(expects(False), varies=True),
        "enabled": Contender(expects(True), varies=True, around=switch),
    }
    monkeypatch.setattr(host, "CONTENDERS", contenders)
    monkeypatch.setattr(host, "MOST", 1)
    row: dict[str, Any] = {}
    host.measure(cpu, "float16", row, Budget(0.01))
    assert len(row["us"]) == 2 * len(host.TUPLES)
    assert row["error"] is None
