"""docs/examples/torch_network.py on the host: memory that results share, streams, captures, and other signatures."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from host_plans import Host
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


def stack(count: int, act: Callable[[], nn.Module] = nn.ReLU) -> nn.Module:
    return nn.Sequential(*[part for _ in range(count) for part in (nn.Conv2d(8, 8, 3, padding=1), act())]).eval()


# --- any order of operations

STEPS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "conv": lambda part, a, b: part(a),
    "conv, add": lambda part, a, b: part(a) + b,
    "conv, add in place": lambda part, a, b: part(a).add_(b),
    "conv, relu": lambda part, a, b: F.relu(part(a)),
    "conv, relu in place": lambda part, a, b: F.relu_(part(a)),
    "conv, add, relu": lambda part, a, b: torch.relu(b + part(a)),
    "relu": lambda part, a, b: F.relu(a),
    "relu in place": lambda part, a, b: F.relu_(a),
    "add in place": lambda part, a, b: a.add_(b),
    "half": lambda part, a, b: torch.cat([a.chunk(2, 1)[0], b.chunk(2, 1)[1]], 1),
    "view": lambda part, a, b: a.view(a.shape),
    "permuted": lambda part, a, b: a.transpose(2, 3),
    "dropout": lambda part, a, b: F.dropout(a, 0.5, False),
    "another result": lambda part, a, b: b,
}


class Drawn(nn.Module):
    """Steps on tensors that were made before, by number; their results and views of them are used in any order."""

    def __init__(self, steps: list[tuple[str, int, int]], results: list[int]) -> None:
        super().__init__()
        self.steps, self.results = steps, results
        self.parts = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in steps)

    def forward(self, x: Any) -> Any:
        made = [x * 1]
        for part, (name, a, b) in zip(self.parts, self.steps, strict=True):
            made.append(STEPS[name](part, made[a % len(made)], made[b % len(made)]))
        return [made[number % len(made)] for number in self.results]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.sampled_from(list(STEPS)), st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=9),
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
)
def test_any_order_of_operations_gives_torchs_results(
    host: Host, steps: list[tuple[str, int, int]], results: list[int]
) -> None:
    torch.manual_seed(0)
    module = Drawn(steps, results).eval()
    inputs = [torch.randn(2, 8, 6, 6) for _ in range(2)]
    try:
        with torch.no_grad():
            expected = [module(x.clone()) for x in inputs]
    except RuntimeError:  # PyTorch does not add a transposed view of a tensor to it in place
        reject()
    network = host.example.convert(module, inputs[0])
    made = [network(x) for x in inputs]
    for ours, theirs in zip(made, expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


# --- the shared block


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 12), st.integers(0, 6)), max_size=14))
def test_buffers_that_are_in_use_together_do_not_overlap(drawn: list[tuple[int, int, int]]) -> None:
    from network_program import ALIGNMENT, Buffer, packed

    buffers = [Buffer(size, first, first + length) for size, first, length in drawn]
    offsets, whole = packed(buffers)
    for number, (one, start) in enumerate(zip(buffers, offsets, strict=True)):
        assert start % ALIGNMENT == 0
        assert 0 <= start <= whole - one.size
        for other, begin in zip(buffers[:number], offsets, strict=False):
            together = one.first <= other.last and other.first <= one.last
            assert not together or start + one.size <= begin or begin + other.size <= start


def test_a_result_survives_the_next_call_also_as_a_view(host: Host) -> None:
    module = nn.Sequential(stack(2), nn.Flatten()).eval()
    x, other = torch.randn(2, 8, 6, 6), torch.randn(2, 8, 6, 6)
    network = host.example.convert(module, x)
    first = network(x)
    kept = first.clone()
    network(other)
    assert torch.equal(first, kept)


# --- streams, threads, captures


def test_streams_and_threads_have_memory_of_their_own_and_few_are_kept(host: Host) -> None:
    x = torch.randn(2, 8, 6, 6)
    network = host.example.convert(stack(3), x)
    right = network(x)
    (program,) = network._programs.values()
    for stream in range(12):
        host.stream = stream
        assert torch.equal(network(x), right)
    blocks = [bound.block.data_ptr() for bound in program._bound.values()]
    assert len(set(blocks)) == len(blocks) == host.program.MOST_STREAMS
    thread = threading.Thread(target=lambda: network(x))
    thread.start()
    thread.join()
    assert len({thread for thread, _ in program._bound}) == 2


def test_a_capture_takes_memory_that_is_not_kept(host: Host) -> None:
    x = torch.randn(2, 8, 6, 6)
    network = host.example.convert(stack(3), x)
    right = network(x)
    (program,) = network._programs.values()
    before = dict(program._bound)
    host.capturing = True
    assert torch.equal(network(x), right)
    assert program._bound == before


def test_a_new_signature_in_a_capture_runs_on_torch(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    module = stack(2)
    x, other = torch.randn(2, 8, 6, 6), torch.randn(3, 8, 6, 6)
    network = host.example.convert(module, x)
    host.capturing = True
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    assert torch.equal(network(other), module(other))
    assert len(network._programs) == 1


# --- signatures and inputs


@pytest.mark.parametrize(
    "of",
    [
        lambda x: x.contiguous(memory_format=torch.channels_last),
        lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
        lambda x: torch.cat([x, x], 1)[:, 4:12],
        lambda x: torch.cat([x.flatten(), x.flatten()])[1 : 1 + x.numel()].view(x.shape),
    ],
)
def test_inputs_in_any_memory_order_and_at_any_address(host: Host, of: Callable[[Any], Any]) -> None:
    module, x = stack(2), of(torch.randn(2, 8, 6, 6))
    torch.testing.assert_close(host.example.convert(module, x)(x), module(x), rtol=1e-5, atol=1e-5)


def test_a_shape_that_depends_on_data_is_computed_by_the_module(host: Host) -> None:
    class Positive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x: Any) -> Any:
            return self.a(x[x.sum((1, 2, 3)) > 0])

    torch.manual_seed(0)
    module, x = Positive(), torch.randn(6, 8, 5, 5)
    network = host.example.convert(module, x)
    for one in (x, -x, x.abs(), -x.abs()):
        torch.testing.assert_close(network(one), module(one), rtol=1e-5, atol=1e-5)


def test_several_inputs(host: Host) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x: Any, y: Any) -> Any:
            return F.relu(self.a(x) + y)

    module, inputs = Two(), [torch.randn(2, 8, 6, 6) for _ in range(2)]
    network = host.example.convert(module, *inputs)
    assert host.rows(network) == [("a + add + relu", "cudnnpy")]
    torch.testing.assert_close(network(*inputs), module(*inputs), rtol=1e-5, atol=1e-5)


def test_autocast_is_left_to_torch(host: Host) -> None:
    module, x = stack(2), torch.randn(2, 8, 6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        network = host.example.convert(module, x)
        torch.testing.assert_close(network(x), module(x))
    assert all(by == "torch" for _, by in host.rows(network))


def test_weights_are_copied(host: Host) -> None:
    module, x = stack(1), torch.randn(2, 8, 6, 6)
    network = host.example.convert(module, x)
    right = network(x)
    changed = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(2)
    assert torch.equal(network(x), right)
    assert not torch.allclose(module(x), changed(x))


def test_no_gradients_are_recorded(host: Host) -> None:
    network = host.example.convert(nn.Sequential(stack(1), nn.Linear(6, 3)), torch.randn(2, 8, 6, 6))
    assert not network(torch.randn(2, 8, 6, 6)).requires_grad


# --- without a GPU


def test_a_module_on_the_host_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    from host_plans import FOLDER

    monkeypatch.syspath_prepend(FOLDER)
    import torch_network

    module, x = stack(1), torch.randn(2, 8, 6, 6)
    network = torch_network.convert(module, x)
    assert (
        network.report()
        == "the whole module: torch, its inputs are on cpu, not on a CUDA device\n0 of 1 run on cudnnpy"
    )
    assert torch.equal(network(x), module(x))
