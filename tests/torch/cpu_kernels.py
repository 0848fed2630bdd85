"""cudnnpy.torch for CPU tensors: its kernels are registered for them, and plans run the reference on the tensors' memory.

Everything between PyTorch's dispatcher and the addresses of a launch is real. `Machine` says what was planned and launched,
and can be told what fails.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cudnnpy.torch
from cudnnpy import reference
from cudnnpy._arrays import array_libraries
from cudnnpy._arrays.array_libraries import ArrayLibrary
from cudnnpy._core import driver
from cudnnpy._core.layouts import byte_extent
from cudnnpy._launch import dispatch
from cudnnpy._launch.program import Program
from cudnnpy._layers.convolution import Convolution
from cudnnpy._layers.lowerings.convolution_candidates import ConvolutionProblem
from cudnnpy.errors import ExecutionFailedError
from cudnnpy.torch import planning, registration

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from numpy_machine import NumpyExecutable, run_steps, tensor_in

WORKSPACE = 64  # bytes that every plan needs


@dataclass
class Machine:
    """What was planned and launched, and what is to fail."""

    planned: list[tuple[str, Any]] = field(default_factory=list)  # the operations of cuDNN, and the options
    problems: list[ConvolutionProblem] = field(default_factory=list)  # of the plans
    launched: list[str] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)
    stream: int = 0x50
    no_algorithm: set[str] = field(default_factory=set)  # operations that planning fails for, with `error`
    error: Exception | None = None
    fails: bool = False  # every launch does
    is_full: bool = False  # no tensor can be made
    has_no_workspace: bool = False  # no workspace can be made
    capturing: bool = False


def bytes_at(address: int, size: int) -> np.ndarray:
    """Memory of the process."""
    return np.frombuffer((ctypes.c_char * size).from_address(address), np.uint8)


class ReferencePlan(NumpyExecutable):
    """In the place of a plan, and its executable."""

    def __init__(self, machine: Machine, problem: ConvolutionProblem) -> None:
        self.machine, self.problem, self.device = machine, problem, problem.device
        self.name, self.workspace_size, self.executable, self.is_relocatable = "reference", WORKSPACE, self, False

    def run(self, *memories: np.ndarray) -> None:
        """Computes the result from what lies in memory."""
        problem, g = self.problem, self.problem.geometry
        tensors = [tensor_in(memory, spec) for memory, spec in zip(memories, problem.specs, strict=True)]
        pairs = tuple(zip(g.pre_padding, g.post_padding, strict=True))
        layer = reference.Convolution(padding=pairs, stride=g.stride, dilation=g.dilation, groups=problem.groups)
        first, second, *bias, out = tensors
        shape = () if problem.operation == "forward" else (out.shape,)
        out[...] = getattr(layer, problem.operation)(first, second, *shape)
        for values in bias:
            out += values.reshape(-1, *(1,) * (out.ndim - 2))
        self.machine.launched.append(problem.operation)


class ReferenceLauncher:
    """In the place of a launcher. A transposed convolution with copies around its plan is a Program."""

    def __init__(self, planned: ReferencePlan | Program) -> None:
        self.planned, self.device = planned, planned.device

    def run(self, pointers: tuple[int, ...], stream: int, are_valid: object = False) -> None:
        *operands, workspace = pointers
        assert workspace
        if not are_valid and not all(operands):
            raise ValueError("an address is null")
        assert all(operands)
        planned = self.planned
        plan = planned.plan if isinstance(planned, Program) else planned
        specs = [one.spec for one in planned.operands] if isinstance(planned, Program) else plan.problem.specs
        assert all(address % spec.alignment == 0 for address, spec in zip(operands, specs, strict=True))
        memories = [bytes_at(address, byte_extent(spec)) for address, spec in zip(operands, specs, strict=True)]
        plan.machine.streams.append(stream)
        if plan.machine.fails:
            raise ExecutionFailedError("cudnnBackendExecute", 5000, "CUDNN_STATUS_EXECUTION_FAILED")
        if isinstance(planned, Program):
            run_steps(planned.steps, planned.scratch, *memories)
        else:
            ctypes.memset(workspace, 0xFF, planned.workspace_size)
            planned.run(*memories)


def library_on(machine: Machine) -> ArrayLibrary:
    """CPU tensors as an array library of a device."""

    def read(tensor: torch.Tensor) -> Any:
        return tensor.data_ptr(), (tensor.shape, tensor.stride(), tensor.dtype, 0)

    def maker(shape: Any, strides: Any, dtype: Any, device: int) -> Any:
        def make() -> torch.Tensor:
            if machine.is_full or (machine.has_no_workspace and dtype.name == "uint8"):
                raise torch.OutOfMemoryError("CUDA out of memory")
            made = torch.empty_strided(shape, strides, dtype=getattr(torch, dtype.name))
            return made.fill_(float("nan")) if made.is_floating_point() else made

        return make

    return ArrayLibrary("torch", read, lambda device: machine.stream, maker, lambda tensor: True, torch.Tensor.data_ptr)


# Tensors, and calls with the kernels and without


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def leaf(tensor: torch.Tensor) -> torch.Tensor:
    """With the same strides."""
    return tensor.detach().clone(memory_format=torch.preserve_format).requires_grad_()


def alike(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-4) -> None:
    """The same values, and the same places in memory."""
    assert found.stride() == expected.stride()
    scale = float(expected.detach().abs().max()) if expected.numel() else 1.0
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * max(scale, 1.0))


def twice(call: Callable[[], tuple[torch.Tensor, ...]], tolerance: float = 1e-4) -> None:
    """PyTorch's own results, and those with the kernels on."""
    expected = call()
    with cudnnpy.torch.enable():
        found = call()
    for ours, theirs in zip(found, expected, strict=True):
        alike(ours, theirs, tolerance)


def installed(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The fixture `machine`: nothing is enabled yet, and the counts are 0."""
    machine = Machine()
    library = library_on(machine)
    for kind in (torch.Tensor, torch.nn.Parameter):
        monkeypatch.setitem(array_libraries._libraries, kind, library)

    def plan(self: Convolution, call: Any, problem: ConvolutionProblem, *_: Any) -> ReferencePlan:
        machine.planned.append((problem.operation, self.options))
        if problem.operation in machine.no_algorithm and machine.error is not None:
            raise machine.error
        machine.problems.append(problem)
        return ReferencePlan(machine, problem)

    monkeypatch.setattr(Convolution, "_plan_in", plan)
    monkeypatch.setattr(planning, "Launcher", ReferenceLauncher)
    monkeypatch.setattr(planning, "on_device", lambda device: contextlib.nullcontext())
    for module in (dispatch, driver):
        monkeypatch.setattr(module, "is_stream_or_torch_capturing", lambda stream: machine.capturing)
    monkeypatch.setattr(registration, "DISPATCH_KEY", "CPU")
    return machine
