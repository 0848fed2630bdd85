"""The host's cost by addresses, on torch's CPU tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tools.benchmark import addresses, timing
from tools.benchmark.host import Tensors
from tools.benchmark.timing import Budget

# --- the host's cost by addresses


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Any:
    tensors_of = SimpleNamespace(torch=torch, x=torch.zeros(1, dtype=torch.float16), stream=0)
    monkeypatch.setattr(addresses, "PAIRS", 8)
    monkeypatch.setattr(addresses, "FILTERS", 4)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return tensors_of


@pytest.mark.parametrize("tuples", [1, 16])
def test_tuples_come_in_turn(tuples: int, tiny: Tensors) -> None:
    turn = addresses.Memory(tiny, tuples).turns(pointers=True)
    seen = [turn() for _ in range(3 * tuples)]
    assert len(set(seen)) == tuples
    assert seen[:tuples] == seen[tuples : 2 * tuples]


def test_a_new_tuple_never_comes_again(tiny: Tensors) -> None:
    turn = addresses.Memory(tiny, addresses.NEW).turns(pointers=True)
    seen = [turn() for _ in range(32)]
    assert len(set(seen)) == 32
    assert all(address % 16 == 0 for given in seen for address in given)
    with pytest.raises(StopIteration):
        turn()


def test_there_are_enough_new_tuples_for_a_run() -> None:
    per_timing = timing.HOST_BATCH + timing.HOST_WARM_UP
    assert (addresses.MOST + 3) * per_timing < 4096 * 512


def test_every_road_has_a_row_for_each_number_of_tuples(monkeypatch: pytest.MonkeyPatch, tiny: Tensors) -> None:
    def torch_s(t: Tensors, memory: addresses.Memory) -> Callable[[], object]:
        turn = memory.turns()
        return lambda: tuple(tensor.shape for tensor in turn())

    def fails(t: Tensors, memory: addresses.Memory) -> Callable[[], object]:
        raise ValueError("no such thing")

    roads = {"torch F.conv2d": torch_s, "pack ready": addresses._ready, "fails": fails}
    monkeypatch.setattr(addresses, "ROADS", roads)
    monkeypatch.setattr(addresses, "Tensors", lambda torch, dtype: tiny)
    monkeypatch.setattr(addresses, "PAIRS", 4096)
    monkeypatch.setattr(addresses, "MOST", 1)
    monkeypatch.setattr(addresses, "_plan", lambda t: fails(t, None))  # type: ignore[arg-type]
    rows = {(row["row"], row["tuples"]): row for row in addresses.measure(torch, Budget(0.01))}
    assert list(rows) == [(road, tuples) for road in roads for tuples in addresses.TUPLES]
    assert all(rows["torch F.conv2d", tuples]["us"]["median"] > 0 for tuples in addresses.TUPLES)
    assert rows["fails", 16]["error"] == "ValueError: no such thing"
    assert rows["pack ready", 16]["error"] == "ValueError: no such thing"
    assert rows["pack ready", "new"]["absent"].startswith("no pack can be ready")


def test_what_is_on_around_a_road_is_off_for_the_others(monkeypatch: pytest.MonkeyPatch, tiny: Tensors) -> None:
    is_on = False

    @contextmanager
    def switch() -> Iterator[None]:
        nonlocal is_on
        is_on = True
        yield
        is_on = False

    def expects(on: bool) -> Callable[[Tensors, addresses.Memory], Callable[[], object]]:
        def call() -> None:
            assert is_on is on

        return lambda t, memory: call

    monkeypatch.setattr(addresses, "ROADS", {"torch F.conv2d": expects(False), "enabled": expects(True)})
    monkeypatch.setattr(addresses, "AROUND", {"enabled": switch})
    monkeypatch.setattr(addresses, "Tensors", lambda torch, dtype: tiny)
    monkeypatch.setattr(addresses, "MOST", 1)
    rows = list(addresses.measure(torch, Budget(0.01)))
    assert len(rows) == 2 * len(addresses.TUPLES)
    assert not any(row["error"] for row in rows)
