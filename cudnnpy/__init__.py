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
    from cudnnpy.availability import is_available, why_unavailable
    from cudnnpy.errors import CudnnError
    from cudnnpy.handle import Handle

# Public name -> the module that has it; a name that is its own module maps to None.
_LAZY: dict[str, str | None] = {
    "CudnnError": "errors",
    "Handle": "handle",
    "errors": None,
    "is_available": "availability",
    "raw": None,
    "reference": None,
    "why_unavailable": "availability",
}

__all__ = [
    "CudnnError",
    "Handle",
    "__version__",
    "errors",
    "is_available",
    "raw",
    "reference",
    "why_unavailable",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'cudnnpy' has no attribute {name!r}")
    home = _LAZY[name]
    value = import_module(f"cudnnpy.{name}") if home is None else getattr(import_module(f"cudnnpy.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
