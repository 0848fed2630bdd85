"""cuDNN from Python: the whole C API (`cudnnpy.raw`), and a small convolution layer on it.

Importing this package loads nothing: neither libcudnn, nor cuda.core, nor NumPy. Names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module

from cudnnpy._version import __version__

TYPE_CHECKING = False  # spelled out, since importing typing costs more than the rest of this file

if TYPE_CHECKING:
    from typing import Any

    from cudnnpy import backend, descriptors, errors, names, raw, reference, workspace
    from cudnnpy.activation import Activation
    from cudnnpy.arrays import DeviceArray, empty, to_device, to_numpy
    from cudnnpy.availability import is_available, why_unavailable
    from cudnnpy.convolution.candidates import Candidate, Engine
    from cudnnpy.convolution.candidates import table as candidates_table
    from cudnnpy.convolution.convolution import Convolution
    from cudnnpy.convolution.plan import Plan
    from cudnnpy.convolution.transpose import ConvolutionTranspose
    from cudnnpy.dropout import Dropout
    from cudnnpy.errors import CudnnError, NoAlgorithmError
    from cudnnpy.fused import FusedConvolution
    from cudnnpy.graph import Graph
    from cudnnpy.handle import Handle
    from cudnnpy.instance_normalization import InstanceNormalization
    from cudnnpy.layer_normalization import LayerNormalization, RMSNormalization
    from cudnnpy.layouts import TensorSpec
    from cudnnpy.local_response import LocalResponseNormalization
    from cudnnpy.normalization import BatchNormalization
    from cudnnpy.plan_cache import cache_info, clear_cache, set_cache_limit
    from cudnnpy.pooling import Pooling
    from cudnnpy.reduction import reduce_tensor
    from cudnnpy.softmax import Softmax
    from cudnnpy.tensors import add_tensor, scale_tensor, set_tensor, transform_tensor
    from cudnnpy.workspace import release_workspace, set_allocator

# Public name -> (the module that has it, its name there); a module maps to None.
_LAZY: dict[str, tuple[str, str] | None] = {
    "Activation": ("activation", "Activation"),
    "BatchNormalization": ("normalization", "BatchNormalization"),
    "Candidate": ("convolution.candidates", "Candidate"),
    "Convolution": ("convolution.convolution", "Convolution"),
    "ConvolutionTranspose": ("convolution.transpose", "ConvolutionTranspose"),
    "CudnnError": ("errors", "CudnnError"),
    "DeviceArray": ("arrays", "DeviceArray"),
    "Dropout": ("dropout", "Dropout"),
    "Engine": ("convolution.candidates", "Engine"),
    "FusedConvolution": ("fused", "FusedConvolution"),
    "Graph": ("graph", "Graph"),
    "Handle": ("handle", "Handle"),
    "InstanceNormalization": ("instance_normalization", "InstanceNormalization"),
    "LayerNormalization": ("layer_normalization", "LayerNormalization"),
    "LocalResponseNormalization": ("local_response", "LocalResponseNormalization"),
    "NoAlgorithmError": ("errors", "NoAlgorithmError"),
    "Plan": ("convolution.plan", "Plan"),
    "Pooling": ("pooling", "Pooling"),
    "RMSNormalization": ("layer_normalization", "RMSNormalization"),
    "Softmax": ("softmax", "Softmax"),
    "TensorSpec": ("layouts", "TensorSpec"),
    "add_tensor": ("tensors", "add_tensor"),
    "backend": None,
    "cache_info": ("plan_cache", "cache_info"),
    "candidates_table": ("convolution.candidates", "table"),
    "clear_cache": ("plan_cache", "clear_cache"),
    "descriptors": None,
    "empty": ("arrays", "empty"),
    "errors": None,
    "is_available": ("availability", "is_available"),
    "names": None,
    "raw": None,
    "reduce_tensor": ("reduction", "reduce_tensor"),
    "reference": None,
    "release_workspace": ("workspace", "release_workspace"),
    "scale_tensor": ("tensors", "scale_tensor"),
    "set_allocator": ("workspace", "set_allocator"),
    "set_cache_limit": ("plan_cache", "set_cache_limit"),
    "set_tensor": ("tensors", "set_tensor"),
    "to_device": ("arrays", "to_device"),
    "to_numpy": ("arrays", "to_numpy"),
    "transform_tensor": ("tensors", "transform_tensor"),
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
