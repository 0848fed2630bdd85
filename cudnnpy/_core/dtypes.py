"""The data types of arrays: their names, their cuDNN numbers and their sizes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from ctypes import c_float
from math import isnan
from typing import Any, NamedTuple

from cudnnpy import raw
from cudnnpy._checks.dtype_names import element_name
from cudnnpy._checks.option_values import error_repr
from cudnnpy._checks.suggestions import suggest_value
from cudnnpy._process.installation import with_extra
from cudnnpy.errors import LibraryNotFoundError
from cudnnpy.typing import ElementName


class Dtype(NamedTuple):
    """A data type: its name in NumPy (with ml_dtypes), its cudnnDataType_t, its size in bytes."""

    name: ElementName
    number: raw.cudnnDataType_t
    itemsize: int


_ALL = (
    Dtype("float32", raw.CUDNN_DATA_FLOAT, 4),
    Dtype("float64", raw.CUDNN_DATA_DOUBLE, 8),
    Dtype("float16", raw.CUDNN_DATA_HALF, 2),
    Dtype("bfloat16", raw.CUDNN_DATA_BFLOAT16, 2),
    Dtype("int8", raw.CUDNN_DATA_INT8, 1),
    Dtype("int32", raw.CUDNN_DATA_INT32, 4),
    Dtype("uint8", raw.CUDNN_DATA_UINT8, 1),
    Dtype("float8_e4m3fn", raw.CUDNN_DATA_FP8_E4M3, 1),
    Dtype("float8_e5m2", raw.CUDNN_DATA_FP8_E5M2, 1),
    # of operands and intermediate results of graphs
    Dtype("float8_e8m0fnu", raw.CUDNN_DATA_FP8_E8M0, 1),
    Dtype("bool", raw.CUDNN_DATA_BYTE_BOOLEAN, 1),
    Dtype("int64", raw.CUDNN_DATA_INT64, 8),
)
# The unit roundoff of each data type: half the distance from 1 to the next representable number
ROUNDOFF: Mapping[str, float] = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "tf32": 2.0**-11,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
}
_BY_NAME: dict[str, Dtype] = {dtype.name: dtype for dtype in _ALL}


def dtype_of(given: Any, argument: str = "dtype") -> Dtype:
    """Return the Dtype of a name, a NumPy dtype, a framework's dtype (torch.float16) or a cudnnDataType_t.

    Raises TypeError, naming the argument, for a data type that the operations here do not support.
    """
    if isinstance(given, Dtype):
        return given
    if given.__class__ is str and given in _BY_NAME:
        return _BY_NAME[given]
    if isinstance(given, raw.cudnnDataType_t):
        name = next((dtype.name for dtype in _ALL if dtype.number is given), None)
    else:
        name = element_name(given)
    if name is None:
        expected, advice = ", ".join(map(repr, _BY_NAME)), suggest_value(str(given), _BY_NAME)
        raise TypeError(f"{argument} must be one of {expected}; got {error_repr(given)}{advice}")
    return _BY_NAME[name]


def numpy_dtype(name: str) -> Any:
    """Return the NumPy dtype of a data type by its name.

    bfloat16 and float8 come from the package ml_dtypes. Raises LibraryNotFoundError if it is not installed.
    """
    import numpy as np

    if name != "bfloat16" and not name.startswith("float8"):
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        advice = f"Install it: pip install {with_extra('dtypes')}"
        raise LibraryNotFoundError(f"NumPy has {name} from the package ml-dtypes, which is missing", advice) from None
    return np.dtype(getattr(ml_dtypes, name))


def bits_of(number: float, dtype: str) -> int:
    """Return the bits of a number in float16, bfloat16 or float32, rounded to even, or in int32.

    Floats that do not fit are infinite.
    """
    if dtype == "int32":
        return int(number) & 0xFFFFFFFF
    if dtype == "float16":
        try:
            return int.from_bytes(struct.pack("<e", number), "little")
        except OverflowError:
            return 0x7C00 if number > 0 else 0xFC00
    bits = int.from_bytes(bytes(c_float(number)), "little")
    if dtype == "float32":
        return bits
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 if not isnan(number) else 0x7FC0  # the upper half
