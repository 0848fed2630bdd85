"""The names of the data types that arrays may have."""

from __future__ import annotations

from typing import Any, cast, get_args

from cudnnpy.typing import ElementName

ELEMENT_NAMES: tuple[str, ...] = get_args(ElementName)
# The names of other libraries, and NumPy's codes, as in array.dtype.str without the order of the bytes. The word "float" is
# none: it is float64 in NumPy, and float32 in C and PyTorch.
_ALIASES: dict[ElementName, str] = {
    "float64": "double fp64 f8",
    "float32": "single fp32 f4",
    "float16": "half fp16 f2",
    "bfloat16": "bf16",
    "float8_e4m3fn": "float8_e4m3 fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "int64": "i8",
    "int32": "i4",
    "int8": "i1",
    "uint8": "u1",
    "bool": "b1",
}
ALIASES = {alias: name for name, aliases in _ALIASES.items() for alias in aliases.split()}


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
