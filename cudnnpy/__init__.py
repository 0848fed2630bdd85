"""cuDNN from Python: the whole C API (`cudnnpy.raw`), and a small convolution layer on it.

Importing this package loads nothing: neither libcudnn, nor cuda.core, nor NumPy. Names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module

from cudnnpy._version import __version__

TYPE_CHECKING = False  # spelled out, since importing typing costs more than the rest of this file

if TYPE_CHECKING:
    from typing import Any

    from cudnnpy import backend, descriptors, errors, names, raw, reference
    from cudnnpy._core.layouts import TensorSpec
    from cudnnpy._memory import workspace
    from cudnnpy._memory.arrays import DeviceArray, empty, to_device, to_numpy
    from cudnnpy._memory.workspace import release_workspace, set_allocator
    from cudnnpy._planning.candidates import Candidate, Engine
    from cudnnpy._planning.candidates import table as candidates_table
    from cudnnpy._planning.plan import Plan
    from cudnnpy._runtime.plan_cache import cache_info, clear_cache, set_cache_limit
    from cudnnpy.availability import is_available, why_unavailable
    from cudnnpy.convolution.convolution import Convolution
    from cudnnpy.convolution.fused import FusedConvolution
    from cudnnpy.convolution.transpose import ConvolutionTranspose
    from cudnnpy.errors import CudnnError, NoAlgorithmError
    from cudnnpy.graph.graph import Graph
    from cudnnpy.handle import Handle
    from cudnnpy.ops.activation import Activation
    from cudnnpy.ops.batch_normalization import BatchNormalization
    from cudnnpy.ops.dropout import Dropout
    from cudnnpy.ops.instance_normalization import InstanceNormalization
    from cudnnpy.ops.layer_normalization import LayerNormalization, RMSNormalization
    from cudnnpy.ops.local_response import LocalResponseNormalization
    from cudnnpy.ops.pooling import Pooling
    from cudnnpy.ops.reduction import reduce_tensor
    from cudnnpy.ops.softmax import Softmax
    from cudnnpy.ops.tensors import add_tensor, scale_tensor, set_tensor, transform_tensor

# Public name -> (the module that has it, its name there); a module maps to None.
_LAZY: dict[str, tuple[str, str] | None] = {
    "Activation": ("ops.activation", "Activation"),
    "BatchNormalization": ("ops.batch_normalization", "BatchNormalization"),
    "Candidate": ("_planning.candidates", "Candidate"),
    "Convolution": ("convolution.convolution", "Convolution"),
    "ConvolutionTranspose": ("convolution.transpose", "ConvolutionTranspose"),
    "CudnnError": ("errors", "CudnnError"),
    "DeviceArray": ("_memory.arrays", "DeviceArray"),
    "Dropout": ("ops.dropout", "Dropout"),
    "Engine": ("_planning.candidates", "Engine"),
    "FusedConvolution": ("convolution.fused", "FusedConvolution"),
    "Graph": ("graph.graph", "Graph"),
    "Handle": ("handle", "Handle"),
    "InstanceNormalization": ("ops.instance_normalization", "InstanceNormalization"),
    "LayerNormalization": ("ops.layer_normalization", "LayerNormalization"),
    "LocalResponseNormalization": ("ops.local_response", "LocalResponseNormalization"),
    "NoAlgorithmError": ("errors", "NoAlgorithmError"),
    "Plan": ("_planning.plan", "Plan"),
    "Pooling": ("ops.pooling", "Pooling"),
    "RMSNormalization": ("ops.layer_normalization", "RMSNormalization"),
    "Softmax": ("ops.softmax", "Softmax"),
    "TensorSpec": ("_core.layouts", "TensorSpec"),
    "add_tensor": ("ops.tensors", "add_tensor"),
    "backend": None,
    "cache_info": ("_runtime.plan_cache", "cache_info"),
    "candidates_table": ("_planning.candidates", "table"),
    "clear_cache": ("_runtime.plan_cache", "clear_cache"),
    "descriptors": None,
    "empty": ("_memory.arrays", "empty"),
    "errors": None,
    "is_available": ("availability", "is_available"),
    "names": None,
    "raw": None,
    "reduce_tensor": ("ops.reduction", "reduce_tensor"),
    "reference": None,
    "release_workspace": ("_memory.workspace", "release_workspace"),
    "scale_tensor": ("ops.tensors", "scale_tensor"),
    "set_allocator": ("_memory.workspace", "set_allocator"),
    "set_cache_limit": ("_runtime.plan_cache", "set_cache_limit"),
    "set_tensor": ("ops.tensors", "set_tensor"),
    "to_device": ("_memory.arrays", "to_device"),
    "to_numpy": ("_memory.arrays", "to_numpy"),
    "transform_tensor": ("ops.tensors", "transform_tensor"),
    "why_unavailable": ("availability", "why_unavailable"),
    "workspace": None,
}

__all__ = [
    "Activation",
    "BatchNormalization",
    "Candidate",
    "Convolution",
    "ConvolutionTranspose",
    "CudnnError",
    "DeviceArray",
    "Dropout",
    "Engine",
    "FusedConvolution",
    "Graph",
    "Handle",
    "InstanceNormalization",
    "LayerNormalization",
    "LocalResponseNormalization",
    "NoAlgorithmError",
    "Plan",
    "Pooling",
    "RMSNormalization",
    "Softmax",
    "TensorSpec",
    "__version__",
    "add_tensor",
    "backend",
    "cache_info",
    "candidates_table",
    "clear_cache",
    "descriptors",
    "empty",
    "errors",
    "is_available",
    "names",
    "raw",
    "reduce_tensor",
    "reference",
    "release_workspace",
    "scale_tensor",
    "set_allocator",
    "set_cache_limit",
    "set_tensor",
    "to_device",
    "to_numpy",
    "transform_tensor",
    "why_unavailable",
    "workspace",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'cudnnpy' has no attribute {name!r}")
    home = _LAZY[name]
    value = import_module(f"cudnnpy.{name}") if home is None else getattr(import_module(f"cudnnpy.{home[0]}"), home[1])
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
