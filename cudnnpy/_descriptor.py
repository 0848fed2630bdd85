"""What all descriptors share: setters and getters called with Python values, by the generated prototypes."""

from __future__ import annotations

from collections.abc import Iterable
from ctypes import Array, c_double, c_float, c_int, c_int64, c_size_t, c_uint, c_ulonglong, c_void_p
from enum import IntEnum
from functools import cache
from operator import index
from typing import Any

from cudnnpy import raw
from cudnnpy._owned import Owned, created_type
from cudnnpy.names import data_type, enumerator

_INTEGERS = (c_int, c_uint, c_int64, c_size_t, c_ulonglong)


class Descriptor(Owned):
    """A descriptor of the C API beneath the graph API.

    What cuDNN refuses raises StatusError with its own text; the descriptor can be set again.
    """

    _kept: tuple[Any, ...] = ()

    def get(self, function: str, *arguments: Any, **named: Any) -> dict[str, Any]:
        """Calls a C function about this descriptor and returns what it puts out, by the C names of the parameters.

        The arguments are what C takes in beside this descriptor, in the order of C or by name; enumerators may be
        given by their short names ("float32") and come back as enumerators. An array is returned as a tuple, as long
        as the integer argument before it says. Raises TypeError and ValueError naming the parameter, and StatusError.
        """
        inputs, outputs = self._arguments(function, arguments, named, reads=True)
        raw.call(function, *inputs)
        return {name: _from_c(kind, target) for name, (kind, target) in outputs.items()}

    def _set(self, function: str, *arguments: Any, **named: Any) -> None:
        inputs, _ = self._arguments(function, arguments, named, reads=False)
        raw.call(function, *inputs)
        # C may keep the address of a descriptor that it was given
        self._kept += tuple(value for value in inputs if isinstance(value, Owned) and value is not self)

    def _arguments(
        self, function: str, given: tuple[Any, ...], named: dict[str, Any], reads: bool
    ) -> tuple[list[Any], dict[str, tuple[str, Any]]]:
        """The arguments for C, and those of them that C fills in: name -> (C type, ctypes object)."""
        parameters = raw.parameters(function)
        own = next((at for at, (_name, kind, _) in enumerate(parameters) if _is_handle(kind, self._create)), None)
        if own is None:
            raise TypeError(f"{function} takes no {type(self).__name__}: {raw.prototype(function)}")
        fills = [reads and _is_output(kind, direction) for _name, kind, direction in parameters]
        names = [name for at, (name, _, _) in enumerate(parameters) if at != own and not fills[at]]
        values = dict(zip(names, given, strict=False))
        if len(given) > len(names) or set(named) != set(names[len(given) :]):
            raise TypeError(f"{function} takes ({', '.join(names)}), not {len(given)} values and {sorted(named)}")
        values |= named
        inputs: list[Any] = []
        outputs: dict[str, tuple[str, Any]] = {}
        length = 0
        for at, (name, kind, _direction) in enumerate(parameters):
            if at == own:
                inputs.append(self)
            elif fills[at]:
                element = raw.ctype(kind)._type_
                target = (element * length)() if kind.endswith("[]") else element()
                outputs[name] = kind, target
                inputs.append(target)
            else:
                inputs.append(to_c(kind, values[name], name))
                if isinstance(values[name], int):
                    length = values[name]
        return inputs, outputs


class GeneralDescriptor(Descriptor):
    """A descriptor that is set and read by the names of C's functions and parameters:

    descriptor.set("cudnnSetCTCLossDescriptor_v9", compType="float32", normMode="softmax", ...)
    descriptor.get("cudnnGetCTCLossDescriptor_v9")["normMode"]
    """

    def __init__(self) -> None:
        with self._created():
            pass

    def set(self, function: str, *arguments: Any, **named: Any) -> None:
        """Calls a C function that sets this descriptor.

        The arguments are those that C takes beside this descriptor, in the order of C or by name: enumerators or their
        short names, numbers, sequences for arrays, descriptors, addresses; None is NULL. Descriptors are kept alive.
        C reads as many elements of an array as its count argument says, whatever the sequence's length.
        Raises TypeError and ValueError naming the parameter, and StatusError.
        """
        self._set(function, *arguments, **named)


def integer(value: Any, argument: str, kind: Any = c_int) -> int:
    """A Python integer that a C integer type can hold. ctypes itself would cut off what does not fit."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{argument}: expected an integer, not {value!r} ({type(value).__name__})")
    number = index(value)
    if kind(number).value != number:
        raise ValueError(f"{argument}: {number} does not fit the {kind.__name__} that C takes")
    return number


def integers(values: Any, argument: str, length: int | None = None) -> tuple[int, ...]:
    """A tuple of C ints. With `length`, that many of them: a single integer stands for each."""
    if length is not None and hasattr(values, "__index__"):
        values = (values,) * length
    result = tuple(integer(value, f"{argument}[{at}]") for at, value in enumerate(_sequence(values, argument)))
    if length is not None and len(result) != length:
        raise ValueError(f"{argument}: expected {length} integers, not {result}")
    return result


def shape_of(values: Any) -> tuple[int, ...]:
    """A tensor's or filter's shape. Many dimensions more than it has room for crash cuDNN, so they are refused here."""
    shape = integers(values, "shape")
    if len(shape) > raw.CUDNN_DIM_MAX:
        raise ValueError(f"shape: {len(shape)} dimensions, {shape}, are more than cuDNN's {raw.CUDNN_DIM_MAX}")
    return shape


def to_c(kind: str, value: Any, argument: str) -> Any:
    """A Python value as an argument of a C type. Raises TypeError or ValueError naming the argument."""
    wanted = raw.ctype(kind)
    if value is None and (kind.endswith(("*", "[]")) or wanted is c_void_p):
        return None
    if kind.endswith("[]"):
        base = kind.removesuffix("[]")
        values = [to_c(base, one, f"{argument}[{at}]") for at, one in enumerate(_sequence(value, argument))]
        return (wanted._type_ * len(values))(*values)
    if kind.endswith("*"):
        return value
    enum = _enum(kind)
    if enum is not None:
        return data_type(value, argument) if enum is raw.cudnnDataType_t else enumerator(enum, value, argument)
    if wanted in (c_float, c_double):
        if isinstance(value, bool) or not hasattr(value, "__float__"):
            raise TypeError(f"{argument}: expected a number, not {value!r} ({type(value).__name__})")
        return float(value)
    return integer(value, argument, wanted) if wanted in _INTEGERS else value


def _sequence(values: Any, argument: str) -> Iterable[Any]:
    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        raise TypeError(f"{argument}: expected a sequence, not {values!r} ({type(values).__name__})")
    return tuple(values)


@cache
def _is_handle(kind: str, create: str) -> bool:
    return not kind.endswith(("*", "[]")) and raw.ctype(kind) is created_type(create)[1]


def _is_output(kind: str, direction: str) -> bool:
    """Whether C writes there. The headers do not tell every direction; what is not const is written."""
    return kind.endswith(("*", "[]")) and not kind.startswith("const ") and kind != "void *" and direction != "in"


@cache
def _enum(kind: str) -> type[IntEnum] | None:
    found = getattr(raw, kind.removeprefix("const ").rstrip("*[] "), None)
    return found if isinstance(found, type) and issubclass(found, IntEnum) else None


def _from_c(kind: str, target: Any) -> Any:
    enum = _enum(kind)
    if isinstance(target, Array):
        return tuple(target) if enum is None else tuple(enum(number) for number in target)
    value = getattr(target, "value", target)  # a handle has no value but itself
    return value if enum is None else enum(value)
