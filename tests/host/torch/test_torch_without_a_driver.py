"""A CUDA build of PyTorch where there is no driver: asking it about streams raises, and nothing of ours may ask."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fresh_process import python
from stand_in_device import STREAM, Array, StandInDevice

import cudnnpy
from cudnnpy._core import driver


class AcceleratorError(RuntimeError):
    """What such a PyTorch raises."""


def no_driver(*_: Any) -> Any:
    raise AcceleratorError("CUDA error: CUDA driver version is insufficient for CUDA runtime version")


class Tensor:
    """A tensor of that PyTorch; all that such a machine has are host tensors."""

    __module__ = "torch"

    def __init__(self, *shape: int) -> None:
        self.shape, self.dtype = shape, "float32"

    def data_ptr(self) -> int:
        return 1 << 20

    def stride(self) -> tuple[int, ...]:
        return tuple(int(np.prod(self.shape[axis + 1 :])) for axis in range(len(self.shape)))

    def get_device(self) -> int:
        return -1


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = ModuleType("torch")
    module.Tensor = Tensor
    module.version = SimpleNamespace(cuda="13.0")
    module.cuda = SimpleNamespace(
        is_initialized=lambda: False, is_current_stream_capturing=no_driver, current_stream=no_driver
    )
    module._C = SimpleNamespace(_cuda_getCurrentRawStream=no_driver)
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


CALLS: dict[str, Callable[[Any], Any]] = {
    "forward": lambda x: cudnnpy.Convolution().forward(x, x),
    "forward on a stream": lambda x: cudnnpy.Convolution().forward(x, x, stream=STREAM),
    "backward_bias": lambda x: cudnnpy.Convolution().backward_bias(x),
    "plan": lambda x: cudnnpy.Convolution().plan("forward", x, x),
    "candidates": lambda x: cudnnpy.Convolution().candidates("forward", x, x),
    "transpose": lambda x: cudnnpy.ConvolutionTranspose().forward(x, x),
    "fused": lambda x: cudnnpy.FusedConvolution().forward(x, x),
    "activation": lambda x: cudnnpy.Activation("relu").forward(x),
    "pooling": lambda x: cudnnpy.Pooling("max", (2, 2)).forward(x),
    "softmax": lambda x: cudnnpy.Softmax().forward(x),
    "to_numpy": cudnnpy.to_numpy,
}


@pytest.mark.parametrize("name", CALLS)
def test_a_host_tensor_is_refused_as_a_host_array(torch: Any, name: str) -> None:
    with pytest.raises(
        TypeError,
        match=r"must be an array on a CUDA device; got a host array \(torch\.Tensor of shape \(2, 3, 4, 4\)\)",
    ):
        CALLS[name](Tensor(2, 3, 4, 4))


def test_a_numpy_array_is_refused_as_a_host_array(torch: Any) -> None:
    x = np.zeros((2, 3, 4, 4), np.float32)
    with pytest.raises(TypeError, match=r"must be an array on a CUDA device; got a host array \(numpy\.ndarray"):
        cudnnpy.Convolution().forward(x, x)


def test_calls_on_other_arrays_do_not_ask_pytorch(torch: Any, stand_in: StandInDevice) -> None:
    for stream in (None, STREAM):
        for _ in range(8):  # past the number of launches that are made into a graph
            cudnnpy.Convolution(padding=1).forward(Array(2, 3, 8, 8), Array(4, 3, 3, 3), stream=stream)
    assert stand_in.c_calls["cudnnBackendExecute"] == 16


def test_pytorch_is_asked_from_the_time_that_it_has_initialized_cuda(torch: Any, monkeypatch: Any) -> None:
    assert not driver.is_stream_or_torch_capturing(0)
    torch.cuda.is_initialized = lambda: True
    torch.cuda.is_current_stream_capturing = lambda: True
    assert driver.is_stream_or_torch_capturing(0)
    torch.cuda.is_initialized = no_driver  # once is enough: not on the path of every call
    assert driver.is_stream_or_torch_capturing(0)


def test_pytorch_is_not_asked_while_another_thread_imports_it(torch: Any) -> None:
    del torch.cuda.is_initialized
    assert not driver.is_stream_or_torch_capturing(0)
    del torch.cuda
    assert not driver.is_stream_or_torch_capturing(0)


def test_a_device_whose_stream_pytorch_cannot_tell_is_pytorchs_own_error(torch: Any) -> None:
    tensor = Tensor(2, 3, 4, 4)
    tensor.get_device = lambda: 0  # type: ignore[method-assign]
    with pytest.raises(AcceleratorError):
        cudnnpy.Convolution().forward(tensor, tensor)


def test_a_forked_child_asks_anew() -> None:
    program = """
import os, sys, types
from cudnnpy._core import driver
def refuse(): raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
cuda = types.SimpleNamespace(is_initialized=lambda: True, is_current_stream_capturing=lambda: True)
sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
assert driver.is_stream_or_torch_capturing(0)
cuda.is_initialized, cuda.is_current_stream_capturing = (lambda: False), refuse
child = os.fork()
if not child:
    os._exit(driver.is_stream_or_torch_capturing(0))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    python(program)
