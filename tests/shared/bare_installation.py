"""The program that test_installation.py runs where cudnnpy and its three requirements are all that is installed.

It uses every public name and prints, as JSON, what each use answered: [its text, the exception or "", the message].
"""

from __future__ import annotations

import ctypes  # noqa: F401  (for the uses, which are text)
import inspect
import json
import sys
from collections.abc import Iterator
from importlib import import_module  # noqa: F401  (for the uses)
from typing import Any

import numpy as np

import cudnnpy
from cudnnpy import raw
from cudnnpy._arrays import workspace  # noqa: F401  (for the uses)

X = np.ones((2, 3, 8, 8), np.float32)
W = np.ones((4, 3, 3, 3), np.float32)
C = np.ones((1, 3, 1, 1), np.float32)
SX, SW = cudnnpy.TensorSpec((2, 3, 8, 8)), cudnnpy.TensorSpec((4, 3, 3, 3))


class OnGpu:
    """An array that says that it is on a GPU."""

    def __init__(self, *shape: int) -> None:
        self.__cuda_array_interface__ = {"shape": shape, "typestr": "<f4", "data": (1 << 20, False), "version": 3}


class DlpackOnGpu:
    def __dlpack__(self, **_: Any) -> Any:
        raise AssertionError("nobody can read it here")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


class DlpackOnHost:
    """Of a library that is not NumPy."""

    shape, dtype = (2, 3), "float32"

    def __dlpack__(self, **_: Any) -> Any:
        raise AssertionError("nobody can read it here")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


G, H = OnGpu(2, 3, 8, 8), OnGpu(4, 3, 3, 3)


def graph(x: Any = SX) -> cudnnpy.Graph:
    made = cudnnpy.Graph()
    made.output("y", made.pointwise("relu_fwd", made.tensor("x", x)))
    return made


HOST = """
cudnnpy.Convolution(padding=1).forward(X, W)
cudnnpy.Convolution(padding=1).forward(X, W, stream=7)
cudnnpy.Convolution(padding=1).backward_data(X, W, (2, 3, 8, 8))
cudnnpy.Convolution(padding=1).backward_filter(X, X, (3, 3, 3, 3))
cudnnpy.Convolution().backward_bias(X)
cudnnpy.Convolution().plan("forward", X, W)
cudnnpy.Convolution().candidates("forward", X, W)
cudnnpy.Convolution().forward(DlpackOnHost(), DlpackOnHost())
cudnnpy.ConvolutionTranspose().forward(X, W)
cudnnpy.FusedConvolution().forward(X, W)
cudnnpy.Attention().forward(X, X, X)
cudnnpy.Activation("relu").forward(X)
cudnnpy.Activation("relu").backward(X, X, X)
cudnnpy.Pooling("max", (2, 2)).forward(X)
cudnnpy.Softmax().forward(X)
cudnnpy.BatchNormalization().forward_inference(X, C, C, mean=C, variance=C)
graph().run(x=X)
"""  # TypeError: a host array

NO_GPU = """
cudnnpy.Convolution(padding=1).forward(G, H)
cudnnpy.Convolution(padding=1).forward(DlpackOnGpu(), H)
cudnnpy.Convolution(padding=1).backward_data(G, H, (2, 3, 8, 8))
cudnnpy.Convolution().backward_bias(G)
cudnnpy.Convolution().plan("forward", SX, SW)
cudnnpy.Convolution().candidates("forward", SX, SW)
cudnnpy.ConvolutionTranspose().forward(G, H)
cudnnpy.FusedConvolution().forward(G, H)
cudnnpy.Attention().forward(G, H, H)
cudnnpy.Activation("relu").forward(G)
cudnnpy.Softmax().forward(G)
cudnnpy.Pooling("max", (2, 2)).forward(G)
cudnnpy.BatchNormalization().forward_inference(G, None, None, mean=G, variance=G)
cudnnpy.to_numpy(G)
cudnnpy.to_device(X)
cudnnpy.to_device(X, device=0)
cudnnpy.empty((2, 3))
cudnnpy.empty((2, 3), device=0)
cudnnpy.empty((2, 3), "bfloat16")
cudnnpy.Handle()
cudnnpy.Handle(0)
cudnnpy.Handle.default()
workspace.allocate(16, 0, 0)
workspace.workspace(16, 0, 0)
graph().plan()
graph().run(x=G)
import_module("cudnnpy.torch").enable()
"""  # LibraryNotFoundError: a driver is missing; otherwise cuda-python, or PyTorch

MISSING = """
cudnnpy.descriptors.TensorDescriptor((2, 3, 4, 4), "float32")
cudnnpy.descriptors.ConvolutionDescriptor((1, 1))
cudnnpy.backend.Descriptor(raw.CUDNN_BACKEND_TENSOR_DESCRIPTOR)
raw.load()
raw.version()
cudnnpy.log_to("cudnnpy")
raw.path()
raw.call("cudnnCreate", None)
raw.cudnnGetVersion()
raw.cudnnCreate(ctypes.byref(raw.cudnnHandle_t()))
"""  # LibraryNotFoundError: libcudnn is missing, which needs no driver to be loaded

WORKS = """
cudnnpy.to_numpy(X)
cudnnpy.__version__
cudnnpy.is_available()
cudnnpy.why_unavailable()
cudnnpy.Convolution(padding=1).output_shape(X.shape, W.shape)
cudnnpy.reference.Convolution(padding=1).forward(X, W)
cudnnpy.cache_info()
cudnnpy.clear_cache()
cudnnpy.set_cache_limit(100)
cudnnpy.set_direct_launches(True)
cudnnpy.set_allocator(None)
cudnnpy.release_workspace()
cudnnpy.log_to(None)
cudnnpy.candidates_table([])
cudnnpy.Candidate
cudnnpy.Engine(7)
cudnnpy.Plan
cudnnpy.Graph()
cudnnpy.DeviceArray
cudnnpy.workspace.Allocator
cudnnpy.errors
cudnnpy.store.default()
cudnnpy.freeze().end()
cudnnpy.record().end()
cudnnpy.trace(0)
cudnnpy.DeviceProfile.load("h200")
cudnnpy.plan
cudnnpy.explain
cudnnpy.CudnnError
cudnnpy.NoAlgorithmError
cudnnpy.names.short_names(raw.cudnnActivationMode_t)
raw.prototype("cudnnCreate")
raw.last_error()
"""

# What the walk through all methods gives for a parameter of this name; X for others.
BY_NAME = {"operation": "forward", "x_shape": (2, 3, 8, 8), "w_shape": (3, 3, 3, 3), "shape": (2, 3, 8, 8)}
OPERATIONS = (
    "Activation('relu')", "Attention()", "BatchNormalization()", "Convolution()", "ConvolutionTranspose()",
    "FusedConvolution()", "Graph()", "Pooling('max', (2, 2))", "Softmax()",
)  # fmt: skip


def answer(use: str, call: Any) -> list[str]:
    """What a use answered."""
    try:
        result = call()
    except Exception as error:
        return [use, type(error).__name__, str(error)]
    return [use, "", repr(result)[:200]]


def methods() -> Iterator[tuple[str, Any]]:
    """Every public method of every operation, called with arrays of NumPy's."""
    for made in OPERATIONS:
        thing = eval(f"cudnnpy.{made}")
        for name, method in inspect.getmembers(thing, callable):
            if name.startswith("_"):
                continue
            parameters = inspect.signature(method).parameters.values()
            needed = [one for one in parameters if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
            given = [BY_NAME.get(one.name, X) for one in needed]
            yield f"cudnnpy.{made}.{name}({len(given)} arguments)", lambda method=method, given=given: method(*given)


def main() -> None:
    """Print the answers of each group."""
    lines = {"host": HOST, "no_gpu": NO_GPU, "missing": MISSING, "works": WORKS}
    found = {
        name: [answer(use, lambda use=use: eval(use)) for use in text.split("\n") if use]
        for name, text in lines.items()
    }
    found["methods"] = [answer(use, call) for use, call in methods()]
    found["raw"] = [answer(name, getattr(raw, name)) for name in raw.functions()]
    names = [one for one in cudnnpy.__all__ if f"cudnnpy.{one}" not in HOST + NO_GPU + MISSING + WORKS]
    found["unused"] = [answer(f"cudnnpy.{one}", lambda one=one: getattr(cudnnpy, one)) for one in names]
    found["why"] = [["cudnnpy.why_unavailable()", "", str(cudnnpy.why_unavailable())]]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
