"""Operations on NumPy arrays: check the caller's arrays, and round float64 results once to their dtype.

bfloat16 and float8 are recognized by the names of their dtypes, which ml_dtypes defines; this module does not import it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from cudnnpy._checks.numpy_conversions import numpy_conversion
from cudnnpy._checks.options import Options
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import TensorSpec, to_packed
from cudnnpy._launch.dispatch import Call, Specs
from cudnnpy._launch.program import Operand

Array: TypeAlias = NDArray[Any]
ScalarT = TypeVar("ScalarT", bound=np.generic)
Float64: TypeAlias = NDArray[np.float64]
Shape: TypeAlias = tuple[int, ...]

FLOATS = ("float16", "bfloat16", "float32", "float64")
FLOAT8 = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}  # with their greatest numbers


def check_array(name: str, array: object, dtypes: tuple[str, ...]) -> Array:
    """Return a NumPy array of one of the dtypes as a plain numpy.ndarray in the same memory; raise TypeError for others.

    Subclasses such as numpy.memmap are accepted, except masked arrays and matrices, whose operations differ.
    """
    array = check_kind(name, array)
    if array.dtype.name not in dtypes:
        raise TypeError(f"{name} must be {' or '.join(dtypes)}; got {array.dtype.name}")
    return array


def check_kind(name: str, array: object) -> Array:
    """Return a NumPy array of any dtype as `check_array` does; raise TypeError for other objects."""
    if not isinstance(array, np.ndarray) or _has_other_operations(array):
        kind = f"{type(array).__module__}.{type(array).__qualname__}"
        call = numpy_conversion(name, array)
        raise TypeError(f"{name} must be a numpy.ndarray; got a {kind}{f'. Convert it with {call}' if call else ''}")
    return np.asarray(array)


def _has_other_operations(array: Array) -> bool:
    """Return whether an array is masked, or is a matrix, which has 2 axes after every operation."""
    return type(array) is not np.ndarray and isinstance(array, (np.ma.MaskedArray, np.matrix))


def check_same_dtype(name: str, array: Array, other_name: str, other: Array) -> None:
    """Raise TypeError for two arrays of different dtypes."""
    if array.dtype.name != other.dtype.name:
        raise TypeError(
            f"{name} must be {other.dtype.name}, as {other_name}; got {array.dtype.name}. "
            "Convert one of them with astype"
        )


def check_written(
    name: str, array: object, shape: tuple[int, ...], dtypes: tuple[str, ...], others: Mapping[str, Array | None]
) -> None:
    """Check that an array, if it is given, has a shape and one of the dtypes, and `check_writable`."""
    if array is None:
        return
    array = check_array(name, array, dtypes)
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}; got shape {array.shape}")
    check_writable(name, array, others)


def check_writable(name: str, array: Array, others: Mapping[str, Array | None], in_place: tuple[str, ...] = ()) -> None:
    """Check that an array can be written to and overlaps none of the others, except those in in_place."""
    if not array.flags.writeable:
        raise ValueError(f"{name} must be a writable array; got a read-only one")
    repeats = any(stride == 0 and size > 1 for stride, size in zip(array.strides, array.shape, strict=True))
    if repeats and array.size:  # the strides of an empty array have no meaning
        raise ValueError(
            f"{name} must have no stride of 0, which would write one element twice; got strides {array.strides}"
        )
    reach = 0
    for stride, size in sorted((abs(stride), size) for stride, size in zip(array.strides, array.shape, strict=True)):
        if size > 1 and array.size and stride < reach + array.itemsize:
            raise ValueError(
                f"{name} must not overlap itself in memory; got shape {array.shape}, strides {array.strides}"
            )
        reach += stride * (size - 1)
    for other_name, other in others.items():
        if other is None or (other_name in in_place and _place(array) == _place(other)):
            continue
        if _overlap(array, other):
            raise ValueError(f"{name} must not overlap {other_name} in memory; got overlapping arrays")


def check_results(results: Sequence[tuple[str, Array | None, Shape, str]], inputs: Mapping[str, Array | None]) -> None:
    """Check that results, as (name, array, shape, dtype), can be written to and overlap no input and no other result."""
    others = dict(inputs)
    for name, array, shape, dtype in results:
        check_written(name, array, shape, (dtype,), others)
        others[name] = array


def _place(array: Array) -> tuple[object, ...]:
    """Return a value that is equal for two arrays of the same elements in the same memory."""
    strides = [stride for stride, size in zip(array.strides, array.shape, strict=True) if size > 1]
    return array.__array_interface__["data"][0], array.shape, strides, array.dtype


def _overlap(a: Array, b: Array) -> bool:
    try:
        return np.shares_memory(a, b, max_work=10_000)  # type: ignore[arg-type]  # the stubs know only the extremes
    except np.exceptions.TooHardError:  # undecided within max_work: treated as an overlap
        return True


def logical(array: Array, layout: str) -> Float64:
    """Return an array in a layout's axis order as (N, C, spatial...) in float64, which represents every dtype exactly."""
    return np.asarray(np.moveaxis(array, -1, 1) if layout.endswith("C") else array, np.float64)


def in_layout(values: Float64, layout: str) -> Float64:
    """View (N, C, spatial...) in a layout's axis order."""
    return np.moveaxis(values, 1, -1) if layout.endswith("C") else values


def store_scaled(values: Float64, dtype: np.dtype[Any], out: Array | None, alpha: float, beta: float) -> Array:
    """Store alpha * values + beta * out, rounded once. If out is None or beta is 0, the second term is omitted."""
    values = float(alpha) * values
    if out is not None and beta:
        values += float(beta) * np.asarray(out, np.float64)
    return store(values, dtype, out)


def store(values: Float64, dtype: np.dtype[Any], out: Array | None) -> Array:
    """Round float64 values once and store them in out, or, if out is None, in a new contiguous array of the dtype.

    The new array is a plain numpy.ndarray, even if the values are a subclass.
    """
    if out is None:
        return rounded(values, dtype).astype(dtype, order="C", copy=False, subok=False)
    np.asarray(out)[...] = rounded(values, out.dtype)
    return out


def rounded(values: Array, dtype: np.dtype[Any]) -> Array:
    """Round to the nearest value of a dtype, ties to even; integers and float8 saturate at their range, as in cuDNN."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return np.clip(values if values.dtype.kind in "iu" else np.rint(values), limits.min, limits.max).astype(dtype)
    if greatest := FLOAT8.get(dtype.name):
        values = np.clip(values, -greatest, greatest)
    if dtype.name in ("bfloat16", *FLOAT8, "float8_e8m0fnu"):
        return _odd_float32(values.astype(np.float64, copy=False)).astype(dtype)
    return values.astype(dtype, copy=False)


def _odd_float32(values: Float64) -> NDArray[np.float32]:
    """Round to float32 to odd, so that a second rounding to fewer bits gives the result of a single rounding.

    ml_dtypes converts float64 via float32, and two roundings to nearest can end on the wrong side of a tie. Rounding to
    odd (truncate, then set the last bit if the value was inexact) avoids this.
    """
    nearest = values.astype(np.float32, order="C")
    bits = nearest.view(np.int32)
    inexact = (nearest != values) & ~np.isnan(values)
    bits -= inexact & (np.abs(nearest) > np.abs(values))
    bits |= inexact
    return nearest


# Operations


class Arrays(dict[str, Any]):
    """The arrays that were passed to a call, by name; `arrays[name]` is None for a missing one."""

    def __missing__(self, name: str) -> None:
        return None


class _NumpySpecs(Specs):
    def __missing__(self, name: str) -> TensorSpec:
        check_kind(name, None)
        raise AssertionError


def call_of(names: Sequence[str], inputs: Sequence[Any], outs: Sequence[Any]) -> Call:
    """Return a call for the checks of the operation on device arrays. The arrays count as packed, wherever they lie.

    Inputs of a subclass of ndarray become plain arrays. Results stay as they are, since they are returned.
    """
    arrays, specs = Arrays(), _NumpySpecs()
    for at, (name, array) in enumerate(zip(names, (*inputs, *outs), strict=True)):
        if array is not None:
            plain = check_kind(name, array)
            arrays[name] = plain if at < len(inputs) else array
            specs[name] = to_packed(TensorSpec._make((plain.shape, dtype_of(plain.dtype, name).name, None, 16)))
    return Call(specs, {}, 0, 0, arrays)


def check_operands(operands: Sequence[Operand], arrays: Mapping[str, Array]) -> None:
    """Check that the results among the operands that were passed can be written to and overlap no others."""
    for operand in operands:
        if operand.is_result and operand.name in arrays:
            others = {name: array for name, array in arrays.items() if name != operand.name}
            check_writable(operand.name, np.asarray(arrays[operand.name]), others, operand.in_place)


class NotInReference:
    """A method of the device class that needs a GPU: the reference does not have the attribute."""

    def __get__(self, operation: object, kind: type) -> NoReturn:
        raise AttributeError


class NumpyOperation(Options):
    """An operation whose implementations compute on NumPy arrays.

    A subclass inherits from this class first, and then from the class on device arrays, whose options and
    public methods it has. Its implementations take a Call and the arguments of the method, as those on device arrays, whose
    checks they use, and return the results.
    """

    def _derived(self) -> dict[str, Any]:
        """Return nothing: plans are not cached."""
        return {}

    @staticmethod
    def _run(
        name: str,
        operation: NumpyOperation,
        implementation: Callable[..., Sequence[Any]],
        names: Sequence[str],
        inputs: Sequence[Any],
        outs: Sequence[Any],
        stream: object,
        *arguments: Any,
    ) -> Any:
        """Compute the result, or a tuple of the results, without warnings about floating-point numbers."""
        with np.errstate(all="ignore"):
            results = implementation(operation, call_of(names, inputs, outs), *arguments)
        return results[0] if len(results) == 1 else tuple(results)
