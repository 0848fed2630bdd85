"""The names of the data types that arrays may have."""

from __future__ import annotations

from typing import Any, cast, get_args

from cudnnpy.typing import ElementName

ELEMENT_NAMES: tuple[str, ...] = get_args(ElementName)
ALIASES = {"float": "float32", "double": "float64", "half": "float16", "float8_e4m3": "float8_e4m3fn"}


def element_name(given: Any) -> ElementName | None:
    """Return the data type of a name, a NumPy dtype or scalar type, or a framework's dtype (torch.float16); None if unknown."""
    name = (
        given
        if isinstance(given, str)
        else getattr(given, "name", None) or getattr(given, "__name__", None) or str(given)
    )
    name = name.rsplit(".", 1)[-1]
    name = ALIASES.get(name, name)
    return cast(ElementName, name) if name in ELEMENT_NAMES else None
