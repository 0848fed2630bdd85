"""cuDNN from Python: the whole C API (`cudnnpy.raw`), and a small convolution layer on it.

Importing this package loads nothing: neither libcudnn, nor cuda.core, nor NumPy. Names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module

from cudnnpy._version import __version__

TYPE_CHECKING = False  # spelled out, since importing typing costs more than the rest of this file

if TYPE_CHECKING:
    from typing import Any

    from cudnnpy import errors, raw, reference
    from cudnnpy.arrays import DeviceArray, TensorSpec, empty, to_device, to_numpy
    from cudnnpy.availability import is_available, why_unavailable
    from cudnnpy.convolution.candidates import Candidate, Engine
    from cudnnpy.convolution.candidates import table as candidates_table
    from cudnnpy.convolution.convolution import Convolution
    from cudnnpy.convolution.plan import Plan
    from cudnnpy.convolution.transpose import ConvolutionTranspose
    from cudnnpy.errors import CudnnError, NoAlgorithmError
    from cudnnpy.handle import Handle
    from cudnnpy.plan_cache import cache_info, clear_cache, set_cache_limit
    from cudnnpy.workspace import set_allocator

# Public name -> (the module that has it, its name there); a module maps to None.
_LAZY: dict[str, tuple[str, str] | None] = {
    "Candidate": ("convolution.candidates", "Candidate"),
    "Convolution": ("convolution.convolution", "Convolution"),
    "ConvolutionTranspose": ("convolution.transpose", "ConvolutionTranspose"),
    "CudnnError": ("errors", "CudnnError"),
    "DeviceArray": ("arrays", "DeviceArray"),
    "Engine": ("convolution.candidates", "Engine"),
    "Handle": ("handle", "Handle"),
    "NoAlgorithmError": ("errors", "NoAlgorithmError"),
    "Plan": ("convolution.plan", "Plan"),
    "TensorSpec": ("arrays", "TensorSpec"),
    "cache_info": ("plan_cache", "cache_info"),
    "candidates_table": ("convolution.candidates", "table"),
    "clear_cache": ("plan_cache", "clear_cache"),
    "empty": ("arrays", "empty"),
    "errors": None,
    "is_available": ("availability", "is_available"),
    "raw": None,
    "reference": None,
    "set_allocator": ("workspace", "set_allocator"),
    "set_cache_limit": ("plan_cache", "set_cache_limit"),
    "to_device": ("arrays", "to_device"),
    "to_numpy": ("arrays", "to_numpy"),
    "why_unavailable": ("availability", "why_unavailable"),
}

__all__ = [
    "Candidate",
    "Convolution",
    "ConvolutionTranspose",
    "CudnnError",
    "DeviceArray",
    "Engine",
    "Handle",
    "NoAlgorithmError",
    "Plan",
    "TensorSpec",
    "__version__",
    "cache_info",
    "candidates_table",
    "clear_cache",
    "empty",
    "errors",
    "is_available",
    "raw",
    "reference",
    "set_allocator",
    "set_cache_limit",
    "to_device",
    "to_numpy",
    "why_unavailable",
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
