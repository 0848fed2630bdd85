"""Plans for docs/examples/torch_network.py that run on the host: cudnnpy's own objects are built and checked, and torch
and cudnnpy.reference compute at the addresses that a plan is executed with.
"""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import cudnnpy
from cudnnpy import reference

FOLDER = str(Path(__file__).resolve().parents[2] / "docs" / "examples")
UNWRITTEN = 0xFF  # bytes that nobody has written: NaN in every element type


def tensor_at(address: int, spec: Any) -> torch.Tensor:
    """The tensor in the host's memory."""
    strides = spec.strides or torch.empty(spec.shape, device="meta").stride()
    dtype = getattr(torch, spec.dtype)
    assert address
    assert address % 16 == 0
    memory = (ctypes.c_char * (prod(spec.shape) * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).as_strided(spec.shape, strides)


class HostPlan:
    """A plan whose `compute` takes the tensors of its inputs, and returns the result."""

    workspace_size = 96
    wrong: dict[str, float] = {}  # factors of the results of plans whose name begins so

    def __init__(self, name: str, operands: tuple[str, ...], specs: list[Any], compute: Any) -> None:
        self.name, self.operands, self.specs, self.compute = name, operands, specs, compute
        self.runs = 0

    def execute(self, *addresses: int) -> None:
        *operands, workspace, stream = addresses
        assert stream == torch.cuda.current_stream().cuda_stream
        tensors = [tensor_at(address, spec) for address, spec in zip(operands, self.specs, strict=True)]
        ctypes.memset(workspace, UNWRITTEN, self.workspace_size)
        ctypes.memset(operands[-1], UNWRITTEN, tensors[-1].nbytes)  # a result that overlaps an input destroys it
        factor = next((factor for start, factor in self.wrong.items() if self.name.startswith(start)), 1.0)
        tensors[-1].copy_(self.compute(*tensors[:-1]) * factor)
        self.runs += 1


POINTWISE = {
    "add": torch.add,
    "mul": torch.mul,
    "min": torch.minimum,
    "swish_fwd": lambda x, swish_beta: x * torch.sigmoid(swish_beta * x),
    "sigmoid_fwd": torch.sigmoid,
    "tanh_fwd": torch.tanh,
    "elu_fwd": lambda x, elu_alpha: F.elu(x, elu_alpha),
    "gelu_fwd": F.gelu,
    "gelu_approx_tanh_fwd": lambda x: F.gelu(x, approximate="tanh"),
}


def _relu(x: Any, relu_upper_clip: float = float("inf"), relu_lower_clip_slope: float = 0.0) -> Any:
    return torch.where(x > 0, x, x * relu_lower_clip_slope).clamp(max=relu_upper_clip)


class HostGraph(cudnnpy.Graph):
    """A Graph whose plans compute with torch."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._ways: dict[Any, Any] = {}

    def number(self, value: float, rank: int = 4) -> Any:
        node = super().number(value, rank)
        self._ways[node] = lambda values: torch.full((1,) * rank, value)
        return node

    def convolution(self, x: Any, w: Any, **how: Any) -> Any:
        node = super().convolution(x, w, **how)
        sides = [size for pair in reversed(how["padding"]) for size in pair]
        function = {4: F.conv2d, 5: F.conv3d}[len(x.shape)]
        groups = x.shape[1] // w.shape[1]

        def compute(values: Any) -> Any:
            return function(F.pad(values[x], sides), values[w], None, how["stride"], 0, how["dilation"], groups)

        self._ways[node] = compute
        return node

    def pointwise(self, mode: Any, x: Any, b: Any = None, t: Any = None, how: Any = None) -> Any:
        node = super().pointwise(mode, x, b, t, how)
        function = _relu if mode == "relu_fwd" else POINTWISE[mode]
        inputs = [one for one in (x, b) if one is not None]
        self._ways[node] = lambda values: function(*[values[one] for one in inputs], **(how or {}))
        return node

    def plan(self, device: int = 0) -> Any:
        self.problem(device)
        (output,) = self.outputs

        def compute(*tensors: Any) -> Any:
            values = dict(zip(self.inputs, tensors, strict=True))
            for node, way in self._ways.items():
                values[node] = way(values)
            return values[output]

        nodes = [*self.inputs, output]
        name = "graph " + " ".join(self.operations)
        return HostPlan(name, tuple(node.name for node in nodes), [node.spec for node in nodes], compute)


def _plan(self: Any, operation: str, first: Any, second: Any, shape: Any = None, **more: Any) -> HostPlan:
    """In place of Convolution.plan."""
    problem = self._problem(
        operation, first, second, shape, more.get("bias"), more.get("activation"), more["out"], 1.0, 0.0, 0
    )
    options = {name: getattr(self, name) for name in ("padding", "stride", "dilation", "groups")}
    convolution = reference.Convolution(**options)
    activation = more.get("activation") or "identity"

    def compute(*tensors: Any) -> Any:
        arrays = [np.ascontiguousarray(tensor.float().numpy()) for tensor in tensors]
        if operation == "forward":
            made = convolution.forward(*arrays, activation=activation)
        else:
            made = convolution.backward_data(*arrays[:2], shape)
            made = made if len(arrays) < 3 else made + arrays[2].reshape(1, -1, *[1] * (made.ndim - 2))
            made = reference.Activation(activation).forward(made) if activation != "identity" else made
        return torch.from_numpy(np.ascontiguousarray(made))

    specs = [first, second, *([more["bias"]] if more.get("bias") else []), more["out"]]
    assert len(problem.operands) == len(specs)
    return HostPlan(f"convolution {operation}", problem.operands, specs, compute)


class Host:
    """The example on the host: its modules, and what it may be made to meet."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(FOLDER)
        import network_plans
        import network_program
        import network_rewriting
        import network_tracing
        import torch_network

        self.plans, self.program, self.rewriting, self.tracing, self.example = (
            network_plans,
            network_program,
            network_rewriting,
            network_tracing,
            torch_network,
        )
        network_plans.elementwise.cache_clear()
        self.stream, self.capturing = 7, False
        # of ways whose name begins so; 1 for others, 2 for torch, and for a convolution alone 0.9
        self.times: dict[str, float] = {}
        self.gpu_times: dict[str, float] = {}  # where they are not the same
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(cudnnpy.Handle, "default", lambda device: None)
        stand_in = SimpleNamespace(
            **{name: getattr(cudnnpy, name) for name in ("Convolution", "TensorSpec")}, Graph=HostGraph
        )
        monkeypatch.setattr(network_plans, "cudnnpy", stand_in)
        monkeypatch.setattr(cudnnpy.Convolution, "plan", _plan)
        monkeypatch.setattr(network_plans, "times_of", self._times_of)
        monkeypatch.setattr(torch_network, "unusable", lambda device: None)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "device", lambda ordinal: nullcontext())
        monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: SimpleNamespace(cuda_stream=self.stream))
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)

    @property
    def wrong(self) -> dict[str, float]:
        """What plans whose name begins so multiply their results with."""
        return HostPlan.wrong

    @wrong.setter
    def wrong(self, value: dict[str, float]) -> None:
        self._monkeypatch.setattr(HostPlan, "wrong", value)

    def _times_of(self, call: Any, device: Any) -> Any:
        call()
        launches = call.args[0] if isinstance(call.args[0], tuple) else None
        name = "torch" if launches is None else self.plans.names_of(launches)
        if launches is not None and launches[-1].operands[-1] == "between":
            name = "alone"

        def given(times: dict[str, float]) -> float | None:
            return next((ms for start, ms in times.items() if name.startswith(start)), None)

        eager, gpu = given(self.times), given(self.gpu_times)
        eager = {"torch": 2.0, "alone": 0.9}.get(name, 1.0) if eager is None else eager
        return self.plans.Times(eager, eager if gpu is None else gpu)

    def rows(self, network: Any) -> list[tuple[str, str]]:
        """What each layer became."""
        return [(row.layer, row.by) for row in network.rows]
