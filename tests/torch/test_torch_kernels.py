"""cudnnpy.torch between PyTorch's dispatcher and a launch: results, gradients and their memory order are PyTorch's own."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import opinfo
import pytest
import torch
from cpu_kernels import Machine, draw, leaf, twice
from opinfo_samples import Sample, samples_of
from torch.nn import functional as F

import cudnnpy.torch

NAMES = [f"nn.functional.conv{kind}{rank}d" for kind in ("", "_transpose") for rank in (1, 2, 3)]
CONVOLUTIONS: dict[bool, list[Callable[..., torch.Tensor]]] = {
    False: [F.conv1d, F.conv2d, F.conv3d],
    True: [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d],
}
LAST = {1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d}


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    return samples_of(NAMES, tmp_path_factory.mktemp("opinfo"))


@pytest.mark.parametrize("name", NAMES)
def test_pytorchs_samples_with_first_and_second_derivatives(machine: Machine, name: str, samples: list[Sample]) -> None:
    chosen = [sample for sample in samples if (sample.name, sample.dtype) == (name, "float64")]
    assert len(chosen) > 5
    for sample in chosen:

        def call(sample: Any = sample) -> tuple[torch.Tensor, ...]:
            leaves: list[torch.Tensor] = []

            def given(value: Any) -> Any:
                if not isinstance(value, torch.Tensor):
                    return value
                leaves.append(leaf(value))
                return leaves[-1]

            keywords = {key: given(value) for key, value in sample.keywords.items()}
            y = opinfo.torch_function(name)(*map(given, sample.arguments), **keywords)
            first = torch.autograd.grad(y.square().sum(), leaves, create_graph=True)
            second = torch.autograd.grad(torch.stack([one.square().sum() for one in first]).sum(), leaves)
            return (y, *first, *second)

        with warnings.catch_warnings(action="ignore"):  # of even windows that are padded to the same size
            twice(call, 1e-10)
    assert cudnnpy.torch.stats().fallbacks == {}
    assert min(cudnnpy.torch.stats().handled.values()) >= len(chosen)


def memories(tensor: torch.Tensor, rank: int) -> Iterator[torch.Tensor]:
    """The tensor in other places of memory."""
    yield tensor
    yield tensor.contiguous(memory_format=LAST[rank])
    yield tensor.transpose(0, 1).contiguous().transpose(0, 1)
    yield tensor.transpose(1, -1).contiguous().transpose(1, -1)
    yield torch.cat([tensor, tensor], -1)[..., : tensor.shape[-1]]  # with gaps
    yield torch.cat([tensor.flatten()[:1], tensor.flatten()])[1:].view(tensor.shape)  # misaligned


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 4])
def test_every_memory_order(machine: Machine, is_transposed: bool, rank: int, groups: int) -> None:
    function = CONVOLUTIONS[is_transposed][rank - 1]
    sizes = (7, 6, 5)[:rank]
    for x in memories(draw(2, 4, *sizes), rank):
        for w in memories(draw(4, 4 // groups, *(3,) * rank, seed=1), rank):
            for number in range(3):

                def call(x: Any = x, w: Any = w, number: int = number) -> tuple[torch.Tensor, ...]:
                    leaves = [x.detach().requires_grad_(), w.detach().requires_grad_(), leaf(draw(4, seed=2))]
                    y = function(*leaves, stride=2, padding=1, groups=groups)
                    dy = [draw(*y.shape, seed=3), torch.ones(()).expand(y.shape), None][number]
                    if dy is None:
                        dy = draw(*y.shape, seed=4).contiguous(memory_format=LAST[rank])
                    return (y, *torch.autograd.grad(y, leaves, dy))

                twice(call)
    assert cudnnpy.torch.stats().fallbacks == {}


def test_one_element_for_every_axis(machine: Machine) -> None:
    x, w = draw(2, 4, 6, 6), draw(4, 4, 3, 3)
    twice(lambda: (torch.convolution(x, w, None, [2], [1], [1], False, [0], 1),))
    twice(lambda: (torch.convolution(x, w, None, [2], [1], [1], True, [1], 1),))
    assert cudnnpy.torch.stats().fallbacks == {}


def test_tensors_of_two_memory_orders_are_brought_to_one(machine: Machine) -> None:
    """As PyTorch's own kernel does it, and as cuDNN is fast."""
    x, w = draw(2, 4, 6, 6), draw(4, 4, 3, 3)
    x_last, w_last = (one.contiguous(memory_format=torch.channels_last) for one in (x, w))
    for given in ((x, w_last), (x_last, w)):
        twice(lambda given=given: (F.conv2d(*given),))
        problem = machine.problems[-1]
        assert (problem.x.strides, problem.w.strides) == (x_last.stride(), w_last.stride())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_types(machine: Machine, dtype: torch.dtype) -> None:
    def call() -> tuple[torch.Tensor, ...]:
        leaves = [leaf(draw(2, 3, 6, 6, dtype=dtype)), leaf(draw(4, 3, 3, 3, dtype=dtype)), leaf(draw(4, dtype=dtype))]
        y = F.conv2d(*leaves)
        return (y, *torch.autograd.grad(y, leaves, torch.ones_like(y)))

    twice(call, 2e-2)
    assert cudnnpy.torch.stats() == ({"forward": 1, "backward_data": 1, "backward_filter": 1}, {})


@pytest.mark.parametrize(
    ("last", "groups", "fuses"), [(False, 1, False), (True, 1, True), (True, 4, False), (False, 4, False)]
)
def test_a_bias_is_added_once(machine: Machine, last: bool, groups: int, fuses: bool) -> None:
    """By the plan where that is known to be fast."""
    order = torch.channels_last if last else torch.contiguous_format
    x, w = draw(2, 4, 6, 6).contiguous(memory_format=order), draw(4, 4 // groups, 3, 3).contiguous(memory_format=order)
    twice(lambda: (F.conv2d(x, w, draw(4), groups=groups), F.conv2d(x, w, groups=groups)))
    assert [problem.bias is not None for problem in machine.problems] == [fuses, False]


@pytest.mark.parametrize("last", [False, True])
def test_a_bias_with_gaps_is_added(machine: Machine, last: bool) -> None:
    """cuDNN adds contiguous ones alone."""
    x = draw(2, 4, 6, 6).contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    for bias in (draw(8)[::2], draw(1).expand(4), draw(4).flip(0)):
        twice(lambda bias=bias: (F.conv2d(x, draw(4, 4, 3, 3), bias),))
    assert cudnnpy.torch.stats() == ({"forward": 3, "backward_data": 0, "backward_filter": 0}, {})


def test_only_the_gradients_that_are_asked_for(machine: Machine) -> None:
    x, w, b = draw(2, 3, 6, 6), draw(4, 3, 3, 3), draw(4)
    for wanted in ([x], [w], [b], [x, b], [w, b], [x, w]):
        plain = [one.requires_grad_(False) for one in (x, w, b)]
        for one in wanted:
            one.requires_grad_()

        def call(plain: Any = plain, wanted: Any = wanted) -> tuple[torch.Tensor, ...]:
            return torch.autograd.grad(F.conv2d(*plain).square().sum(), wanted)

        machine.launched.clear()
        twice(call)
        names = {"backward_data": x, "backward_filter": w}
        assert machine.launched == ["forward", *(name for name, one in names.items() if any(one is t for t in wanted))]


def test_each_thread_plans_for_itself(machine: Machine) -> None:
    x, w = draw(2, 3, 6, 6), draw(4, 3, 3, 3)
    expected = F.conv2d(x, w)
    found: list[torch.Tensor] = []

    def several() -> None:
        found.extend(F.conv2d(x, w) for _ in range(20))

    with cudnnpy.torch.enable():
        threads = [threading.Thread(target=several) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 80
    for one in found:
        torch.testing.assert_close(one, expected)
    assert cudnnpy.torch.stats() == ({"forward": 80, "backward_data": 0, "backward_filter": 0}, {})
    assert len(machine.planned) == 4


def test_launches_are_on_the_current_stream(machine: Machine) -> None:
    x, w = draw(2, 3, 6, 6), draw(4, 3, 3, 3)
    with cudnnpy.torch.enable():
        for machine.stream in (0x50, 0x60, 0x50):
            F.conv2d(x, w)
    assert machine.streams == [0x50, 0x60, 0x50]


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("which", [0, 1])
def test_tensors_whose_memory_was_freed_are_rejected(which: int) -> None:
    """As programs that shard their parameters free it, between the uses of a parameter."""
    tensors = draw(2, 3, 6, 6), draw(4, 3, 3, 3)
    with cudnnpy.torch.enable():
        F.conv2d(*tensors)
        tensors[which].untyped_storage().resize_(0)
        with pytest.raises(ValueError, match="null"):
            F.conv2d(*tensors)
