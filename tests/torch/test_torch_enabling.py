"""cudnnpy.torch on and off: the registered kernels, the options and PyTorch's flags, and calls that share a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cpu_kernels import Machine, alike, draw, leaf
from torch.nn import functional as F

import cudnnpy.torch
from cudnnpy._launch import plan_cache
from cudnnpy.torch import kernels, planning, pytorch_kernels

# On and off


def registered() -> str:
    """Every kernel of both operations."""
    names = ("aten::_convolution", "aten::convolution_backward")
    return "".join(map(torch._C._dispatch_dump, names))


@pytest.mark.parametrize("key", ["CPU", "CUDA"])
def test_disabling_restores_pytorch(machine: Machine, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudnnpy.torch.registration.DISPATCH_KEY", key)
    before = registered()
    for _ in range(2):
        cudnnpy.torch.enable()
        assert registered() != before
        assert cudnnpy.torch.is_enabled()
        cudnnpy.torch.disable()
        assert registered() == before
        assert not cudnnpy.torch.is_enabled()
    cudnnpy.torch.disable()
    with pytest.raises(ZeroDivisionError), cudnnpy.torch.enable():
        raise ZeroDivisionError
    assert registered() == before


def prefers(machine: Machine) -> str:
    """The preference that holds; "" for PyTorch's own kernels."""
    plan_cache.clear_cache()
    machine.planned.clear()
    F.conv2d(draw(1, 3, 5, 5), draw(4, 3, 3, 3))
    return machine.planned[0][1].prefer if machine.planned else ""


def test_the_end_of_a_block_restores_what_held_before(machine: Machine) -> None:
    assert prefers(machine) == ""
    with cudnnpy.torch.enable(prefer="no_workspace"):
        assert prefers(machine) == "no_workspace"
        with cudnnpy.torch.enable(prefer="autotune"):
            assert prefers(machine) == "autotune"
            with cudnnpy.torch.disable():
                assert prefers(machine) == ""
            assert prefers(machine) == "autotune"
        assert prefers(machine) == "no_workspace"
        cudnnpy.torch.enable()
        assert prefers(machine) == "fastest"
    assert prefers(machine) == ""
    cudnnpy.torch.enable(prefer="limited_workspace")
    with cudnnpy.torch.enable():
        cudnnpy.torch.disable()
        assert prefers(machine) == ""
    assert prefers(machine) == "limited_workspace"


def test_a_graph_that_was_recorded_before_runs_backward_on_either(machine: Machine) -> None:
    x, w = draw(2, 3, 6, 6), leaf(draw(4, 3, 3, 3))
    y = F.conv2d(x, w)
    (expected,) = torch.autograd.grad(y.square().sum(), w, retain_graph=True)
    with cudnnpy.torch.enable():
        z = F.conv2d(x, w)
        (found,) = torch.autograd.grad(y.square().sum(), w)
    alike(found, expected)
    alike(torch.autograd.grad(z.square().sum(), w)[0], expected)
    assert machine.launched == ["forward", "backward_filter"]


# Options and flags


def planned_with(machine: Machine, **options: Any) -> list[dict[str, Any]]:
    """The options of the plans of a convolution and its gradients."""
    machine.planned.clear()
    with cudnnpy.torch.enable(**options):
        F.conv2d(leaf(draw(1, 3, 5, 5)), leaf(draw(4, 3, 3, 3))).sum().backward()
    names = ("prefer", "workspace_limit", "deterministic", "tf32", "tune_seconds")
    found = [{name: getattr(one, name) for name in names} for _, one in machine.planned]
    assert len(found) in (0, 3)
    return found


PLAIN = {"prefer": "fastest", "workspace_limit": None, "deterministic": False, "tf32": True, "tune_seconds": 2.0}


@pytest.mark.parametrize(
    ("flags", "options", "expected"),
    [
        ({}, {}, {}),
        ({"benchmark": True}, {}, {"prefer": "autotune"}),
        ({"benchmark": True}, {"prefer": "fastest"}, {"prefer": "fastest"}),
        ({"deterministic": True}, {}, {"deterministic": True}),
        ({"deterministic": True}, {"deterministic": False}, {"deterministic": False}),
        ({"allow_tf32": False}, {}, {"tf32": False}),
        ({"allow_tf32": False}, {"tf32": True}, {"tf32": True}),
        ({}, {"tf32": False, "deterministic": True}, {"tf32": False, "deterministic": True}),
        ({}, {"workspace_limit": 5, "tune_seconds": 2, "prefer": "limited_workspace"}, None),
    ],
)
def test_options_and_pytorchs_flags(
    machine: Machine, flags: dict[str, bool], options: dict[str, Any], expected: dict[str, Any] | None
) -> None:
    given = {"enabled": True, "benchmark": False, "deterministic": False, "allow_tf32": True} | flags
    with torch.backends.cudnn.flags(**given):
        found = planned_with(machine, **options)
    assert found == [PLAIN | (options if expected is None else expected)] * 3


def test_deterministic_algorithms(machine: Machine) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert planned_with(machine) == [PLAIN | {"deterministic": True}] * 3
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_flag_is_read_at_each_call(machine: Machine) -> None:
    x, w = leaf(draw(1, 3, 5, 5)), draw(4, 3, 3, 3)
    with cudnnpy.torch.enable():
        for benchmark in (False, True, False, True):
            with torch.backends.cudnn.flags(enabled=True, benchmark=benchmark):
                F.conv2d(x, w).sum().backward()
    assert [options.prefer for _, options in machine.planned] == ["fastest"] * 2 + ["autotune"] * 2


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="this PyTorch has one flag for all of cuDNN")
def test_another_precision_for_convolutions_than_for_rnns(machine: Machine) -> None:
    before = torch.backends.cudnn.conv.fp32_precision
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    try:
        assert planned_with(machine) == [PLAIN | {"tf32": False}] * 3
    finally:
        torch.backends.cudnn.conv.fp32_precision = before


def precisions() -> list[Any]:
    backends = torch.backends
    return [backends, backends.cudnn, backends.cudnn.conv, backends.cudnn.rnn]


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="this PyTorch has one flag for all of cuDNN")
def test_every_setting_of_the_precision_is_read_as_pytorch_reads_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward, PyTorch passes its flags; backward they are read."""
    given: list[tuple[bool, ...]] = []
    plan = planning.plan_forward
    monkeypatch.setattr(kernels, "plan_forward", lambda *args: given.append(args[3]) or plan(*args))
    before = [place.fp32_precision for place in precisions()]
    try:
        for place in precisions():
            for precision in ("ieee", "tf32", "none"):
                place.fp32_precision = precision
                cudnnpy.clear_cache()
                with cudnnpy.torch.enable():
                    F.conv2d(draw(1, 3, 5, 5), draw(4, 3, 3, 3))
                assert pytorch_kernels.flags(torch.float32) == given[-1], (place, precision)
    finally:
        for place, precision in zip(precisions(), before, strict=True):
            place.fp32_precision = precision
    assert {flags[3] for flags in given} == {False, True}


def test_a_bad_option_changes_nothing(machine: Machine) -> None:
    with cudnnpy.torch.enable(prefer="autotune"):
        with pytest.raises(TypeError, match="deterministic must be a bool; got 1"):
            cudnnpy.torch.enable(deterministic=1)  # type: ignore[arg-type]
        assert prefers(machine) == "autotune"


# The cache


def test_a_known_signature_is_not_planned_again(machine: Machine) -> None:
    x, w = draw(2, 3, 6, 6), draw(4, 3, 3, 3)
    with cudnnpy.torch.enable():
        for _ in range(3):
            F.conv2d(x, w)
            F.conv2d(x.clone(), w.clone())
        assert len(machine.planned) == 1
    with cudnnpy.torch.enable():  # equal options have the same plans
        F.conv2d(x, w)
        assert len(machine.planned) == 1
        cudnnpy.clear_cache()
        F.conv2d(x, w)
        assert len(machine.planned) == 2


def test_everything_that_matters_is_in_the_signature(machine: Machine) -> None:
    x, w, b = draw(2, 4, 6, 6), draw(4, 4, 3, 3), draw(4)
    misaligned = torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape)
    calls: list[Callable[[], torch.Tensor]] = [
        lambda: F.conv2d(x, w),
        lambda: F.conv2d(x, w, b),
        lambda: F.conv2d(x, w, stride=2),
        lambda: F.conv2d(x, w, padding=2),
        lambda: F.conv2d(x, w, dilation=2),
        lambda: F.conv2d(x, w[:, :2], groups=2),
        lambda: F.conv2d(x, w[..., :2]),
        lambda: F.conv2d(x[:1], w),
        lambda: F.conv2d(misaligned, w),
        lambda: F.conv2d(x.contiguous(memory_format=torch.channels_last), w),
        lambda: F.conv2d(x, w.contiguous(memory_format=torch.channels_last)),
        lambda: F.conv2d(x.double(), w.double()),
        lambda: F.conv_transpose2d(x, w),
        lambda: F.conv_transpose2d(x, w, stride=2),
        lambda: F.conv_transpose2d(x, w, stride=2, output_padding=1),
        lambda: F.conv_transpose2d(x, w[:, :2]),
        lambda: F.conv_transpose2d(x, w[:, :2], groups=2),
    ]
    for count, call in enumerate(calls, 1):
        with cudnnpy.torch.disable():
            expected = call()
        with cudnnpy.torch.enable():
            alike(call(), expected)
            alike(call(), expected)
        assert len(machine.planned) == count
    w.requires_grad_()
    for number, tf32 in enumerate([False, True], 1):
        with cudnnpy.torch.enable(tf32=tf32):
            calls[0]().sum().backward()
        assert len(machine.planned) == len(calls) + 2 * number
