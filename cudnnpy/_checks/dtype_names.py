"""The names of the data types that arrays may have."""

from __future__ import annotations

from typing import Any, cast, get_args

from cudnnpy.typing import ElementName

ELEMENT_NAMES: tuple[str, ...] = get_args(ElementName)
# Of other libraries. The word "float" is none: it is float64 in NumPy, and float32 in C and PyTorch.
ALIASES: dict[str, ElementName] = {
    "double": "float64",
    "single": "float32",
    "half": "float16",
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "float8_e4m3": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    # NumPy's codes, as in array.dtype.str without the order of the bytes
    "f8": "float64",
    "f4": "float32",
    "f2": "float16",
    "i8": "int64",
    "i4": "int32",
    "i1": "int8",
    "u1": "uint8",
    "b1": "bool",
}


def element_name(given: Any) -> ElementName | None:
    """Return the data type of a name, a NumPy dtype or scalar type, or a framework's dtype (torch.float16); None if unknown.

    Python's type float is float64, as in NumPy.
    """
    if given is float:
        return "float64"
    name = (
        given
        if isinstance(given, str)
        else getattr(given, "name", None) or getattr(given, "__name__", None) or str(given)
    )
    name = name.rsplit(".", 1)[-1].lstrip("<=|")
    name = ALIASES.get(name, name)
    return cast(ElementName, name) if name in ELEMENT_NAMES else None
