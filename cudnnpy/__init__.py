"""Every function of NVIDIA's cuDNN 9 C API from Python, and a small convolution layer on it with four clear choices.

`raw` is the C API, and `Convolution` the layer. The choices are "fastest", "limited_workspace", "no_workspace", "autotune".

- operations: Convolution, ConvolutionTranspose, FusedConvolution, Graph, Attention, Activation,
  BatchNormalization, Pooling, Softmax
- planning: plan, Plan, explain, TensorSpec, DeviceProfile, Candidate, candidates_table, Engine, NoAlgorithmError
- arrays: to_device, to_numpy, empty, DeviceArray, set_allocator, release_workspace
- the process: trace, record, freeze, cache_info, clear_cache, set_cache_limit, set_direct_launches, Handle, log_to,
  is_available, why_unavailable, CudnnError
- modules: raw, backend, descriptors, errors, names, reference, store, workspace; to be imported by name: torch, typing

`help(cudnnpy.Convolution)` explains a name. Importing this package loads nothing: neither libcudnn, nor cuda.core, nor NumPy.
Names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from types import FunctionType

from cudnnpy._version import __version__

# Public name -> the module that has it, with ":name" where its name there is another one; "" for a module itself.
# Editors and type checkers read __init__.pyi, which `python -m tools.generate` makes of this table.
_LAZY = {
    "Activation": "_layers.activation",
    "Attention": "_layers.attention",
    "BatchNormalization": "_layers.batch_normalization",
    "Candidate": "_planning.candidates",
    "Convolution": "_layers.convolution",
    "ConvolutionTranspose": "_layers.transpose",
    "CudnnError": "errors",
    "DeviceArray": "_arrays.device_array",
    "DeviceProfile": "tuning.profiles.device_profile",
    "Engine": "_planning.choice",
    "FusedConvolution": "_layers.fused",
    "Graph": "_layers.graph",
    "Handle": "handle",
    "NoAlgorithmError": "errors",
    "Plan": "_planning.plan",
    "Pooling": "_layers.pooling",
    "Softmax": "_layers.softmax",
    "TensorSpec": "_core.layouts",
    "backend": "",
    "cache_info": "_launch.plan_cache",
    "candidates_table": "_core.candidate_table:table",
    "clear_cache": "_launch.plan_cache",
    "descriptors": "",
    "empty": "_arrays.device_array",
    "errors": "",
    "explain": "cli.explain.explain",
    "freeze": "tuning.recording",
    "is_available": "availability",
    "log_to": "_core.logging_bridge",
    "names": "",
    "plan": "_planning.selection",
    "raw": "",
    "record": "tuning.recording",
    "reference": "",
    "release_workspace": "_arrays.workspace",
    "set_allocator": "_arrays.workspace",
    "set_cache_limit": "_launch.plan_cache",
    "set_direct_launches": "_launch.launcher",
    "store": "",
    "to_device": "_arrays.copies",
    "to_numpy": "_arrays.copies",
    "trace": "_launch.tracing",
    "why_unavailable": "availability",
    "workspace": "",
}

__all__ = [*_LAZY, "__version__"]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        from cudnnpy._checks.unknown_names import missing

        raise AttributeError(missing(name, _LAZY))
    home, _, there = _LAZY[name].partition(":")
    try:
        module = import_module(f"cudnnpy.{home or name}")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("cudnnpy."):
            raise
        raise ImportError(f"cudnnpy.{name} needs {error.name}, which this copy of the package lacks") from None
    value = getattr(module, there or name) if home else module
    if isinstance(value, FunctionType):
        from cudnnpy._checks.suggestions import explained

        value = explained(value)
        value.__module__, value.__qualname__ = __name__, name  # where pickle finds it
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
