"""The fallbacks of cudnnpy.torch to PyTorch's own kernels, and their counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cpu_kernels import Machine, draw, leaf
from torch.nn import functional as F

import cudnnpy.torch
from cudnnpy.errors import LibraryNotFoundError, NoAlgorithmError, NotSupportedError
from cudnnpy.torch import fallback_stats, kernels, planning, pytorch_kernels
from cudnnpy.torch.settings import Settings


def left(call: Callable[[], Any], **options: Any) -> dict[str, int]:
    """Why calls are left, the same call twice, which must give PyTorch's own results."""
    expected = call()
    cudnnpy.torch.reset_stats()
    with cudnnpy.torch.enable(**options):
        for _ in range(2):
            torch.testing.assert_close(call(), expected)
    return cudnnpy.torch.stats().fallbacks


def test_cudnn_is_off(machine: Machine) -> None:
    with torch.backends.cudnn.flags(enabled=False):
        assert left(lambda: F.conv2d(draw(2, 3, 6, 6), draw(4, 3, 3, 3))) == {fallback_stats.CUDNN_OFF: 2}
    assert machine.planned == []


@pytest.mark.parametrize("shape", [(0, 3, 6, 6), (2, 0, 6, 6)])
def test_tensors_without_elements(machine: Machine, shape: tuple[int, ...]) -> None:
    x, w = leaf(draw(*shape)), leaf(draw(4, shape[1], 3, 3))

    def call() -> tuple[torch.Tensor, ...]:
        y = F.conv2d(x, w)
        return (y, *torch.autograd.grad(y.sum(), (x, w)))

    assert left(call) == {fallback_stats.EMPTY: 4}
    assert machine.planned == []


def test_other_element_types(machine: Machine) -> None:
    x, w = torch.arange(50).view(1, 2, 5, 5), torch.arange(18).view(1, 2, 3, 3)
    assert left(lambda: F.conv2d(x, w)) == {fallback_stats.DATA_TYPE: 2}
    assert machine.planned == []


def test_tensors_that_are_too_large_for_32_bits(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudnnpy.torch.planning._MAX_ELEMENTS", 215)
    assert left(lambda: F.conv2d(draw(2, 3, 6, 6), draw(4, 3, 3, 3))) == {fallback_stats.LARGE: 2}
    assert left(lambda: F.conv2d(draw(2, 3, 5, 5), draw(4, 3, 3, 3))) == {}


@pytest.mark.parametrize(
    "call",
    [
        lambda: F.conv2d(draw(2, 3, 6, 6), draw(4, 2, 3, 3)),
        lambda: F.conv2d(draw(2, 3, 6, 6), draw(4, 3, 3, 3).double()),
        lambda: F.conv2d(draw(2, 3, 6, 6), draw(4, 3, 3, 3), draw(5)),
        lambda: F.conv2d(draw(2, 3, 6, 6), draw(4, 3, 7, 7)),
        lambda: F.conv2d(draw(2, 3, 6, 6), draw(4, 3, 3, 3), stride=0),
        lambda: torch.convolution(draw(2, 3, 6, 6), draw(4, 3, 3), None, [1], [0], [1], False, [0], 1),
    ],
)
def test_pytorch_says_what_does_not_fit(machine: Machine, call: Callable[[], Any]) -> None:
    with pytest.raises(RuntimeError) as theirs:
        call()
    with cudnnpy.torch.enable():
        for _ in range(2):
            with pytest.raises(RuntimeError) as ours:
                call()
            assert str(ours.value) == str(theirs.value)
    assert cudnnpy.torch.stats().fallbacks == {fallback_stats.ARGUMENTS: 2}
    assert machine.launched == []


@pytest.mark.parametrize("elsewhere", range(3))
def test_tensors_on_two_devices_are_not_planned(machine: Machine, elsewhere: int) -> None:
    """A bias counts, too, that PyTorch adds to the result."""
    tensors = [draw(2, 3, 6, 6), draw(4, 3, 3, 3), draw(4)]
    tensors[elsewhere] = tensors[elsewhere].to("meta")
    geometry: list[Any] = [[1, 1], [0, 0], [1, 1], False, [0, 0], 1]
    with pytest.raises(planning.FallbackError, match=fallback_stats.ARGUMENTS):
        planning.plan_forward(Settings(), tuple(tensors), geometry, (False, False, True, True))
    with pytest.raises(planning.FallbackError, match=fallback_stats.ARGUMENTS):
        planning.plan_backward(Settings(), tuple(tensors), geometry, (False, False, True, True), [True, True, False])
    assert machine.planned == []


def depthwise(
    monkeypatch: pytest.MonkeyPatch, backend: str, x: tuple[int, ...], w: tuple[int, ...]
) -> Callable[[], list[torch.Tensor]]:
    """A step of a convolution with two groups, for which PyTorch chooses a backend of its own."""
    monkeypatch.setattr(torch._C, "_select_conv_backend", lambda *_: getattr(torch._C._ConvBackend, backend))
    monkeypatch.setattr(torch._C, "_conv_determine_backend_memory_format", lambda *_: torch.contiguous_format)
    leaves = [leaf(draw(*x)), leaf(draw(*w))]
    convolution = F.conv2d if len(x) == 4 else F.conv3d

    def run() -> list[torch.Tensor]:
        y = convolution(*leaves, groups=2)
        return [y, *torch.autograd.grad(y.square().sum(), leaves)]

    return run


@pytest.mark.parametrize(
    ("name", "size", "is_left"),
    [
        ("CudaDepthwise3d", 64, True),
        ("CudaDepthwise3d", 63, False),
        ("Cudnn", 64, False),
    ],
)
def test_large_depthwise_convolutions_of_volumes_are_pytorchs(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, name: str, size: int, is_left: bool
) -> None:
    monkeypatch.setattr(planning, "_MIN_VOLUME_ELEMENTS", 64 * 4)
    run = depthwise(monkeypatch, name, (1, 2, size // 2, 2, 2), (2, 1, 1, 1, 1))
    assert left(run) == ({fallback_stats.DEPTHWISE: 4} if is_left else {})
    assert bool(machine.planned) != is_left


@pytest.mark.parametrize(
    ("backend", "prefer", "size", "operations"),
    [
        ("CudaDepthwise2d", "fastest", 10, ["backward_filter"]),
        ("CudaDepthwise2d", "no_workspace", 10, ["backward_filter"]),
        ("CudaDepthwise2d", "fastest", 8, ["forward", "backward_data", "backward_filter"]),
        ("Cudnn", "fastest", 10, ["forward", "backward_data", "backward_filter"]),
    ],
)
def test_large_depthwise_filters_are_pytorchs(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, backend: str, prefer: Any, size: int, operations: list[str]
) -> None:
    """But for the gradient with respect to the filter. With autotune they are measured (below)."""
    run = depthwise(monkeypatch, backend, (1, 2, 12, 12), (2, 1, size, 9))
    assert left(run, prefer=prefer) == ({fallback_stats.DEPTHWISE: 4} if len(operations) == 1 else {})
    assert [name for name, _ in machine.planned] == operations


@pytest.mark.parametrize(
    ("slower", "prefer", "backend", "deterministic"),
    [
        (("forward", "backward_data", "backward_filter"), "autotune", "CudaDepthwise2d", False),
        (("backward_filter",), "autotune", "CudaDepthwise2d", False),
        ((), "autotune", "CudaDepthwise2d", False),
        (("forward",), "autotune", "CudaDepthwise2d", True),
        (("forward", "backward_data", "backward_filter"), "fastest", "CudaDepthwise2d", False),
        (("forward", "backward_data", "backward_filter"), "autotune", "Cudnn", False),
    ],
)
def test_autotune_compares_with_pytorchs_depthwise_kernels(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    slower: tuple[str, ...],
    prefer: Any,
    backend: str,
    deterministic: bool,
) -> None:
    """Each operation by itself. The runs of the comparison compute the same, and are not counted."""
    compared = []

    def is_faster(kernel: Callable[[], Any], planned: Callable[[], Any], x: Any) -> bool:
        found = kernel()
        found = found if isinstance(found, torch.Tensor) else next(one for one in found if one is not None)
        for _ in range(pytorch_kernels.COMPARISON_RUNS):
            torch.testing.assert_close(planned(), found)
        compared.append(machine.launched[-1])
        return compared[-1] in slower

    monkeypatch.setattr(pytorch_kernels, "is_faster", is_faster)
    run = depthwise(monkeypatch, backend, (1, 2, 6, 6), (2, 1, 3, 3))
    is_compared = prefer == "autotune" and backend != "Cudnn" and not deterministic
    fallbacks = left(run, prefer=prefer, deterministic=deterministic)
    assert compared == (["forward", "backward_data", "backward_filter"] if is_compared else [])
    gone = slower if is_compared else ()
    assert fallbacks == (
        {fallback_stats.DEPTHWISE: 2 * ("forward" in gone) + 2 * ("backward_filter" in gone)} if gone else {}
    )
    assert cudnnpy.torch.stats().handled == {
        name: 0 if name in gone else 2 for name in ("forward", "backward_data", "backward_filter")
    }


def test_the_page_lists_every_reason() -> None:
    page = (Path(__file__).parents[2] / "docs" / "pytorch.md").read_text()
    reasons = [value for name, value in vars(fallback_stats).items() if name.isupper() and isinstance(value, str)]
    assert len(reasons) > 10
    assert [reason for reason in reasons if f"| `{reason}` |" not in page] == []


ERRORS = [
    (NoAlgorithmError("this", "nothing", "", []), fallback_stats.NO_ALGORITHM),
    (MemoryError("planted"), fallback_stats.MEMORY),
    (torch.OutOfMemoryError("CUDA out of memory"), fallback_stats.MEMORY),
    (NotSupportedError("cudnnBackendFinalize", 3000, "CUDNN_STATUS_NOT_SUPPORTED"), fallback_stats.FAILED),
    (ValueError("planted"), fallback_stats.ARGUMENTS),
]


def step() -> list[torch.Tensor]:
    leaves = [leaf(draw(2, 3, 6, 6)), leaf(draw(4, 3, 3, 3)), leaf(draw(4))]
    y = F.conv2d(*leaves)
    return [y, *torch.autograd.grad(y.square().sum(), leaves)]


@pytest.mark.parametrize(("error", "reason"), ERRORS, ids=[type(error).__name__ for error, _ in ERRORS])
def test_planning_that_fails_is_not_tried_again(machine: Machine, error: Exception, reason: str) -> None:
    machine.error, machine.no_algorithm = error, {"forward", "backward_data", "backward_filter"}
    assert left(step) == {reason: 4}
    assert len(machine.planned) == 3
    assert machine.launched == []


@pytest.mark.parametrize("missing", ["backward_data", "backward_filter"])
def test_one_gradient_that_cannot_be_planned_is_left(
    machine: Machine, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    masks, own = [], pytorch_kernels.convolution_backward
    monkeypatch.setattr(pytorch_kernels, "convolution_backward", lambda *given: masks.append(given[-1]) or own(*given))
    machine.error, machine.no_algorithm = NoAlgorithmError("this", "nothing", "", []), {missing}
    assert left(step) == {fallback_stats.NO_ALGORITHM: 2}
    assert masks == [[missing == "backward_data", missing == "backward_filter", False]] * 2
    assert cudnnpy.torch.stats().handled == {
        name: 0 if name == missing else 2 for name in ("forward", "backward_data", "backward_filter")
    }


def test_memory_that_runs_out_and_launches_that_fail(machine: Machine) -> None:
    """The plans are kept: later calls are taken again."""
    assert left(step) == {}
    machine.is_full = True
    assert left(step) == {fallback_stats.MEMORY: 4}
    machine.is_full, machine.fails = False, True
    assert left(step) == {fallback_stats.FAILED: 4}
    machine.fails = False
    assert left(step) == {}
    assert len(machine.planned) == 3


def test_without_memory_for_the_workspace_a_signature_is_left_from_then_on(machine: Machine) -> None:
    assert left(step) == {}
    machine.has_no_workspace = True
    assert left(step) == {fallback_stats.MEMORY: 4}
    machine.has_no_workspace = False
    assert left(step) == {fallback_stats.MEMORY: 4}
    cudnnpy.clear_cache()
    assert left(step) == {}


def test_a_signature_that_is_new_during_a_capture_is_planned_later(machine: Machine) -> None:
    machine.capturing = True
    assert left(step) == {fallback_stats.CAPTURE: 4}
    assert machine.planned == []
    machine.capturing = False
    assert left(step) == {}
    machine.capturing = True
    assert left(step) == {}
    assert len(machine.planned) == 3


def test_a_call_that_had_begun_when_another_thread_turned_the_kernels_off(machine: Machine) -> None:
    x, w = draw(2, 3, 6, 6), draw(4, 3, 3, 3)
    geometry: list[Any] = [[1, 1], [0, 0], [1, 1], False, [0, 0], 1]
    torch.testing.assert_close(kernels.convolution(x, w, None, *geometry, False, False, True, True), F.conv2d(x, w))
    dy = draw(2, 4, 4, 4)
    found = kernels.convolution_backward(dy, x, w, None, *geometry, [True, False, False])
    torch.testing.assert_close(found[0], torch.nn.grad.conv2d_input(x.shape, w, dy))
    assert cudnnpy.torch.stats().fallbacks == {fallback_stats.TURNED_OFF: 2}
    assert cudnnpy.cache_info().size == 0


def test_a_library_that_cannot_be_used_is_an_error(machine: Machine) -> None:
    machine.error, machine.no_algorithm = LibraryNotFoundError("planted"), {"forward"}
    with cudnnpy.torch.enable(), pytest.raises(LibraryNotFoundError, match="planted"):
        F.conv2d(draw(2, 3, 6, 6), draw(4, 3, 3, 3))


def test_the_counts_are_copies_and_can_be_reset(machine: Machine) -> None:
    with cudnnpy.torch.enable():
        step()
        F.conv2d(draw(0, 3, 6, 6), draw(4, 3, 3, 3))
    found = cudnnpy.torch.stats()
    assert found == ({"forward": 1, "backward_data": 1, "backward_filter": 1}, {fallback_stats.EMPTY: 1})
    found.handled.clear()
    found.fallbacks.clear()
    assert cudnnpy.torch.stats().handled["forward"] == 1
    cudnnpy.torch.reset_stats()
    assert cudnnpy.torch.stats() == ({"forward": 0, "backward_data": 0, "backward_filter": 0}, {})
