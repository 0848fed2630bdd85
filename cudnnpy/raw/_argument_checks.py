"""Reject NULL where C follows the pointer, a wrong number of arguments, and an enumerator of another enum."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from cudnnpy.raw import _api
from cudnnpy.raw._types import Enumeration, EnumerationType

_Pointer: Any = ctypes._Pointer
# The positions of convolution descriptors by whose first two strides a function divides: they are 0 until they are set.
_DIVIDES = {"cudnnGetFoldedConvBackwardDataDescriptors": 3}


def refusing(name: str, function: Callable[..., Any], bound: Callable[[str], Callable[..., int]]) -> Callable[..., Any]:
    """Return a C function that first checks the number of its arguments, and rejects NULL and unset descriptors.

    It raises TypeError for a wrong number of arguments (ctypes would pass additional ones on), for None, and for an enumerator
    of another enum, whose number has another meaning there. It raises ValueError for a NULL pointer or an unset descriptor.
    The messages name the parameter. The message of ctypes.ArgumentError has the C prototype.
    """
    parameters = _api.FUNCTIONS[name][1]
    places, count = _api.NOT_NULL.get(name, ()), len(parameters)
    kinds = ((at, getattr(_api, kind, None)) for at, (_name, kind, _direction) in enumerate(parameters))
    enums = [(at, kind) for at, kind in kinds if isinstance(kind, EnumerationType)]
    divides = _DIVIDES.get(name)

    def checked(*arguments: Any) -> Any:
        if len(arguments) != count:
            raise TypeError(
                f"{name}: the number of arguments must be {count}; got {len(arguments)}. "
                f"The function is {function.__doc__}"
            )
        for at in places:
            if not arguments[at]:  # also false: an empty array
                refuse_null(name, at, arguments[at])
        for at, enum in enums:
            value = arguments[at]
            if value.__class__ is not enum and isinstance(value, Enumeration):
                raise TypeError(
                    f"{name}: {parameters[at][0]} must be a {enum.__name__}; got {value!s}, a {type(value).__name__}. "
                    f"The function is {function.__doc__}"
                )
        if divides is not None:
            _refuse_unset(name, divides, arguments[divides], bound("cudnnGetConvolutionNdDescriptor"))
        try:
            return function(*arguments)
        except ctypes.ArgumentError as error:
            advice = _advice_on_numbers(name, arguments)
            raise ctypes.ArgumentError(f"{name}: {error}. The function is {function.__doc__}{advice}") from None

    return checked


def _advice_on_numbers(name: str, arguments: tuple[Any, ...]) -> str:
    """Return the end of the error for a number where C takes the address of one, such as alpha; "" without one."""
    parameters = _api.FUNCTIONS[name][1]
    for value, (parameter, kind, _direction) in zip(arguments, parameters, strict=True):
        if isinstance(value, float) and kind == "const void *":
            return f". {parameter} is the address of a number: byref(c_float({value})), or byref(c_double({value})) for float64"
    return ""


def refuse_null(name: str, at: int, value: Any) -> None:
    """Raise TypeError or ValueError if the argument is NULL."""
    if value is not None and not isinstance(value, _Pointer | ctypes.c_void_p | ctypes.c_char_p):
        return
    parameter, kind, direction = _api.FUNCTIONS[name][1][at]
    base = kind.replace("const ", "").replace("[]", "").rstrip(" *")
    if not kind.endswith(("*", "[]")):
        expected = f"a {base} that its create function has made"
    elif direction == "out":
        expected = f"the address of a {base}{' array' if kind.endswith('[]') else ''} that {name} fills in"
    else:
        expected = f"the address of a {base} array"
    kind_of_error = TypeError if value is None else ValueError
    raise kind_of_error(f"{name}: {parameter} must be {expected}; got {'None' if value is None else 'NULL'}")


def _refuse_unset(name: str, at: int, convolution: Any, get: Callable[..., int]) -> None:
    """Raise ValueError for a convolution descriptor with fewer than 2 axes, such as one that was not set."""
    axes, mode, dtype, none = ctypes.c_int(2), ctypes.c_int(), ctypes.c_int(), (ctypes.c_int * 1)()
    with suppress(ctypes.ArgumentError):  # of another type, which the function itself rejects
        get(convolution, 0, axes, none, none, none, mode, dtype)
    if axes.value < 2:
        parameter, kind, _ = _api.FUNCTIONS[name][1][at]
        expected = f"a {kind.removeprefix('const ')} that is set for 2 axes or more"
        raise ValueError(f"{name}: {parameter} must be {expected}; got one for {axes.value}")
