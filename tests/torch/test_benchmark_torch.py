"""The benchmark's layers against torch's count of operations, and its plan cache row on torch's tensors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from clock import Clock
from torch.utils.flop_counter import FlopCounterMode

from tools.benchmark import cache
from tools.benchmark.networks import catalogue
from tools.benchmark.timing import Budget


def test_shapes_and_operations_are_those_of_torch() -> None:
    for layer in {layer for network in catalogue.read() for layer in network.layers if not layer.transposed}:
        x, w = torch.empty(layer.x_shape(2), device="meta"), torch.empty(layer.w_shape, device="meta")
        axes = layer.stride, layer.padding, layer.dilation
        with FlopCounterMode(display=False) as counter:
            y = torch.ops.aten.convolution(x, w, None, *axes, False, layer.output_padding, layer.groups)
        assert tuple(y.shape) == layer.y_shape(2)
        if layer.groups == 1:
            assert counter.get_total_flops() == layer.operations(2)
        assert layer.moved_bytes(2, 2) == 2 * (x.numel() + w.numel() + y.numel())


class FakeLibrary:
    """The part of cudnnpy that the cache section uses, with a count of what is cached."""

    def __init__(self, clock: Clock, seconds_for_a_plan: float) -> None:
        self.cached: set[Any] = set()
        self.limit, self.limits = 1000, [1000]
        self.clock, self.seconds = clock, seconds_for_a_plan

    def Convolution(self, padding: int) -> FakeLibrary:
        return self

    def forward(self, x: Any, w: Any, out: Any) -> None:
        assert x.shape == out.shape
        assert x.data_ptr() != out.data_ptr()
        if x.shape not in self.cached:
            self.clock.now += self.seconds
            self.cached.add(x.shape)
            assert len(self.cached) <= self.limit

    def set_cache_limit(self, limit: int) -> None:
        self.limit = limit
        self.limits.append(limit)

    def clear_cache(self) -> None:
        self.cached.clear()

    def cache_info(self) -> Any:
        return SimpleNamespace(size=len(self.cached), limit=self.limit)


@pytest.mark.parametrize(("seconds", "reached"), [(0.0, 10_000), (0.1, 899)])
def test_the_cache_is_filled_as_far_as_the_time_allows(
    seconds: float, reached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    library = FakeLibrary(clock, seconds)
    fake_torch = SimpleNamespace(
        randn=lambda *shape, device, dtype: torch.zeros(shape, dtype=dtype),
        empty_like=torch.empty_like,
        float16=torch.float16,
        channels_last=torch.channels_last,
        no_grad=torch.no_grad,
        nn=SimpleNamespace(functional=SimpleNamespace(conv2d=lambda *given, **options: None)),
        cuda=SimpleNamespace(synchronize=lambda: None),
    )
    monkeypatch.setattr(cache, "cudnnpy", library)
    monkeypatch.setattr(cache, "MOST", 1)
    monkeypatch.setattr(
        library,
        "clear_cache",
        lambda: (most.extend([len(library.cached)] if library.cached else []), library.cached.clear()),
    )
    most: list[int] = []
    row: dict[str, Any] = {}
    cache.measure(fake_torch, row, Budget(100, clock))
    assert row["signatures"] == [1, 100, pytest.approx(reached, abs=2)]
    assert len(row["us"]) == 9
    assert most == row["signatures"][-1:]
    assert not library.cached
    assert library.limits[-1] == 1000
