"""Rejection of arguments that C would take unchecked: their number, and NULL for parameters that the generated table names."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from cudnnpy.raw import _api

_Pointer: Any = ctypes._Pointer


def refusing(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a C function that first checks the number of arguments, and for NULL where it is harmful.

    It raises TypeError for another number of arguments, which ctypes would pass on if there are more, TypeError for None and
    ValueError for a NULL pointer, naming the parameter. ctypes.ArgumentError has the C prototype.
    """
    places, count = _api.NOT_NULL.get(name, ()), len(_api.FUNCTIONS[name][1])

    def checked(*arguments: Any) -> Any:
        if len(arguments) != count:
            raise TypeError(
                f"{name}: the number of arguments must be {count}; got {len(arguments)}. "
                f"The function is {function.__doc__}"
            )
        for at in places:
            if not arguments[at]:  # also false: an array without elements
                refuse_null(name, at, arguments[at])
        try:
            return function(*arguments)
        except ctypes.ArgumentError as error:
            raise ctypes.ArgumentError(f"{name}: {error}. The function is {function.__doc__}") from None

    return checked


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
