"""Short names for cuDNN's enumerators: "float32" for CUDNN_DATA_FLOAT, "relu" for CUDNN_ACTIVATION_RELU.

A short name is the C name in lower case, without the prefix that the members of its enum share. Data types have the
names of NumPy. Functions accept short names in any case, and the enumerators themselves.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache, lru_cache
from itertools import takewhile
from typing import Any, TypeAlias, TypeVar

from cudnnpy import raw
from cudnnpy._checks.dtype_names import element_name
from cudnnpy._checks.option_values import error_repr
from cudnnpy._checks.public_dir import complete_module
from cudnnpy._checks.suggestions import suggest_value
from cudnnpy.typing import DataType, Dtype

__all__ = ["ElementType", "data_type", "enumerator", "short_name", "short_names"]

_Enum = TypeVar("_Enum", bound=IntEnum)

ElementType: TypeAlias = DataType | Dtype | raw.cudnnDataType_t
"""A data type of cuDNN: its short name, an alias, a NumPy dtype or scalar type, a framework's dtype, or an enumerator."""

# C names whose short name is NumPy's, or a shorter one.
_RENAMED = {
    "CUDNN_DATA_FLOAT": "float32",
    "CUDNN_DATA_DOUBLE": "float64",
    "CUDNN_DATA_HALF": "float16",
    "CUDNN_DATA_FP8_E4M3": "float8_e4m3fn",
    "CUDNN_DATA_FP8_E5M2": "float8_e5m2",
    "CUDNN_DATA_FP8_E8M0": "float8_e8m0fnu",
    "CUDNN_DATA_FP4_E2M1": "float4_e2m1fn",
    "CUDNN_DATA_COMPLEX_FP32": "complex64",
    "CUDNN_DATA_COMPLEX_FP64": "complex128",
    "CUDNN_DATA_BOOLEAN": "packed_bool",  # eight to a byte
    "CUDNN_DATA_BYTE_BOOLEAN": "bool",
    "CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING": "average_include_padding",
    "CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING": "average_exclude_padding",
}


def short_names(kind: type[_Enum]) -> dict[str, _Enum]:
    """Return the enumerators of an enum of `cudnnpy.raw` by their short names, in the order of C.

    Examples
    --------
    >>> from cudnnpy import names, raw
    >>> names.short_names(raw.cudnnTensorFormat_t)["nhwc"].name
    'CUDNN_TENSOR_NHWC'
    """
    if not (isinstance(kind, type) and issubclass(kind, IntEnum)):
        raise TypeError(f"kind must be an enum, such as raw.cudnnActivationMode_t; got {error_repr(kind)}")
    found: dict[str, _Enum] = _short_names(kind)
    return found


@cache
def _short_names(kind: type[IntEnum]) -> dict[str, Any]:
    return dict(zip(shortened(list(kind.__members__)), kind.__members__.values(), strict=True))


def shortened(names_of_c: list[str]) -> list[str]:
    """Return the short names of the enumerators of an enum."""
    words = [name.split("_") for name in names_of_c]
    shared = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*words, strict=False)))
    shared = min(shared, min(map(len, words)) - 1)
    return [_RENAMED.get(name, "_".join(parts[shared:]).lower()) for name, parts in zip(names_of_c, words, strict=True)]


def short_name(member: IntEnum) -> str:
    """Return the short name of an enumerator.

    Examples
    --------
    >>> from cudnnpy import names, raw
    >>> names.short_name(raw.CUDNN_ACTIVATION_RELU)
    'relu'
    """
    if not isinstance(member, IntEnum):
        raise TypeError(f"member must be an enumerator, such as raw.CUDNN_ACTIVATION_RELU; got {error_repr(member)}")
    return _short_name(member)


@lru_cache(maxsize=None, typed=True)  # enumerators of different enums with the same number are equal
def _short_name(member: IntEnum) -> str:
    return next(name for name, value in short_names(type(member)).items() if value is member)


def enumerator(kind: type[_Enum], value: object, argument: str = "value") -> _Enum:
    """Return the enumerator of a short name; an enumerator of the enum is returned as it is.

    Parameters
    ----------
    kind : type
        An enum of `cudnnpy.raw`.
    value : str or enumerator
        A short name of the enum, in any case, or one of its enumerators.
    argument : str
        The name of the argument in errors.

    Raises
    ------
    ValueError
        If the name is unknown.
    TypeError
        If the value is neither a string nor an enumerator of this enum.

    Examples
    --------
    >>> from cudnnpy import names, raw
    >>> names.enumerator(raw.cudnnActivationMode_t, "relu", "mode").name
    'CUDNN_ACTIVATION_RELU'
    """
    known = short_names(kind)
    if isinstance(value, kind):
        return value
    if not isinstance(value, str):
        raise TypeError(
            f"{argument} must be a name or a {kind.__name__}; got {error_repr(value)} ({type(value).__name__})"
        )
    found: _Enum | None = known.get(value.lower())
    if found is None:
        raise ValueError(
            f"{argument} must be one of {', '.join(map(repr, known))}; got {error_repr(value)}"
            f"{suggest_value(value, known)}"
        )
    return found


def data_type(dtype: ElementType, argument: str = "dtype") -> raw.cudnnDataType_t:
    """Return the cudnnDataType_t of a data type.

    Parameters
    ----------
    dtype : str, numpy.dtype, torch.dtype or cudnnDataType_t
        The data type: a short name such as "bfloat16", an alias such as "bf16", a NumPy dtype or scalar type, a framework's
        dtype, or an enumerator. Python's type float is float64, as in NumPy. The word "float" is refused, since NumPy and C
        mean different types by it.
    argument : str
        The name of the argument in errors.

    Raises
    ------
    ValueError
        If cuDNN has no such type.
    TypeError
        If the value is not a dtype.

    Examples
    --------
    >>> from cudnnpy import names
    >>> names.data_type("float16").name
    'CUDNN_DATA_HALF'
    """
    if isinstance(dtype, IntEnum):  # an enumerator has a name, too
        return enumerator(raw.cudnnDataType_t, dtype, argument)
    name = element_name(dtype.lower() if isinstance(dtype, str) else dtype)
    return enumerator(raw.cudnnDataType_t, getattr(dtype, "name", dtype) if name is None else name, argument)


complete_module(globals())
