"""Reject arguments of another type or number, NULL where C follows the pointer, a second destruction, and other enums."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from cudnnpy._checks.suggestions import shown
from cudnnpy.raw import _api
from cudnnpy.raw._types import Enumeration, EnumerationType

_Pointer: Any = ctypes._Pointer
# The positions of convolution descriptors by whose first two strides a function divides: they are 0 until they are set.
_DIVIDES = {"cudnnGetFoldedConvBackwardDataDescriptors": 3}
# How the names of parameters begin that are addresses of numbers in host memory; other `void *` are in device memory.
_IN_HOST_MEMORY = ("alpha", "beta", "valuePtr", "arrayOfElements")


class Status(int):
    """A status other than CUDNN_STATUS_SUCCESS, with the function that returned it. It prints as its name."""

    function: str  #: the C function that returned it

    def __str__(self) -> str:
        known = _api.cudnnStatus_t._value2member_map_.get(int(self))
        return known.name if known else f"unknown_{int(self)}"

    def __repr__(self) -> str:
        return f"<cudnnStatus_t.{self}: {int(self)}>"

    name = property(__str__)  # as enumerators have it


def refusing(name: str, bind: Callable[[str], Callable[..., Any]]) -> Callable[..., Any]:
    """Return a C function that first checks the number of its arguments, and rejects NULL and unset descriptors.

    The first call binds it by `bind`, which loads the library. It raises TypeError for a wrong number of arguments (ctypes
    would pass additional ones on), for keywords, for None, and for an enumerator of another enum, whose number has another
    meaning there. It raises ValueError for a NULL pointer or an unset descriptor. The messages name the parameter. The message
    of ctypes.ArgumentError has the C prototype. A status is CUDNN_STATUS_SUCCESS or a Status.
    """
    returns, parameters, *_ = _api.FUNCTIONS[name]
    places, count = _api.NOT_NULL.get(name, ()), len(parameters)
    kinds = ((at, getattr(_api, kind, None)) for at, (_name, kind, _direction) in enumerate(parameters))
    enums = [(at, kind) for at, kind in kinds if isinstance(kind, EnumerationType)]
    divides, is_status, success = _DIVIDES.get(name), returns == "cudnnStatus_t", _api.cudnnStatus_t(0)
    function: Any = None

    def refuse(text: str) -> NoReturn:
        raise TypeError(f"{name}: {text}. The function is {function.__doc__}")

    # One function with all checks, since each call of another would take a tenth of the time of a short C function.
    def checked(*arguments: Any, **named: Any) -> Any:
        nonlocal function
        if function is None:
            function = bind(name)
        if named:
            refuse(f"arguments must be positional, as in C; got {next(iter(named))}=")
        if len(arguments) != count:
            refuse(f"the number of arguments must be {count}; got {len(arguments)}")
        for at in places:
            try:
                is_null = not arguments[at]  # also true: an empty array
            except (ValueError, RuntimeError):  # an array of several elements, which the function rejects
                continue
            if is_null:
                refuse_null(name, at, arguments[at])
        for at, enum in enums:
            value = arguments[at]
            if value.__class__ is not enum and isinstance(value, Enumeration):
                refuse(f"{parameters[at][0]} must be a {enum.__name__}; got {value!s}, a {type(value).__name__}")
        if divides is not None:
            _refuse_unset(name, divides, arguments[divides], bind("cudnnGetConvolutionNdDescriptor"))
        try:
            result = function(*arguments)
        except ctypes.ArgumentError as error:
            advice = _advice_on_pointers(name, function, arguments)
            at = int(str(error).split()[1].rstrip(":")) - 1  # "argument 2: TypeError: wrong type"
            given = f"{parameters[at][0]} got {shown(arguments[at]):.80}"
            raise ctypes.ArgumentError(
                f"{name}: {error}; {given}. The function is {function.__doc__}{advice}"
            ) from None
        if not is_status:
            return result
        if not result:
            return success
        status = Status(result)
        status.function = name
        return status

    return _destroying(name, checked) if "Destroy" in name else checked


def _destroying(name: str, destroy: Callable[..., Any]) -> Callable[..., Any]:
    """Return a destroy function that sets the caller's variable to NULL, and rejects it with ValueError the second time.

    cuDNN would free the memory twice, which ends the process.
    """

    def destroying(*arguments: Any, **named: Any) -> Any:
        given = arguments[0] if arguments else None
        if isinstance(given, _Pointer) and not given and getattr(given, "_is_destroyed", False):
            raise ValueError(
                f"{name}: {type(given).__name__} must be destroyed once; got one that is destroyed already"
            )
        status = destroy(*arguments, **named)
        if isinstance(given, _Pointer) and given and not status:
            ctypes.c_void_p.from_buffer(given).value = None
            given._is_destroyed = True
        return status

    return destroying


def _advice_on_pointers(name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    """Return the end of the error for a number, an array or a list where C takes an address; "" without one."""
    kinds: Any = getattr(function, "argtypes", ())
    for value, (parameter, kind, _direction), pointer in zip(arguments, _api.FUNCTIONS[name][1], kinds, strict=True):
        if isinstance(value, int) or not kind.endswith(("*", "[]")):
            continue
        if pointer is not ctypes.c_void_p:
            if hasattr(value, "__len__") and not isinstance(value, ctypes.Array | bytes):
                return f". {parameter} is a C array: ({pointer._type_.__name__} * {len(value)})(*values)"
        elif isinstance(value, ctypes.c_float | ctypes.c_double) or _is_number(value):
            number = float(getattr(value, "value", value))
            ways = f"byref(c_float({number})), or byref(c_double({number})) for float64"
            return f". {parameter} is the address of a number: {ways}"
        elif hasattr(value, "shape"):
            return f". {parameter} is {_address_of(value, parameter.startswith(_IN_HOST_MEMORY))}"
    return ""


def _is_number(value: Any) -> bool:
    """Return whether a value is a number of Python or NumPy, or an array without axes."""
    return hasattr(value, "__float__") and getattr(value, "shape", ()) == ()


def _address_of(array: Any, in_host_memory: bool) -> str:
    """Return which address is expected where an array was passed, and how to pass it."""
    place = "an address in host memory" if in_host_memory else "a device address"
    given = f"{type(array).__module__.partition('.')[0]}.{type(array).__qualname__}"
    if hasattr(array, "__array_interface__"):
        remedy = "array.ctypes.data" if in_host_memory else "copy.pointer, of copy = cudnnpy.to_device(array)"
        return f"{place}; got a host array ({given}): pass {remedy}"
    ways = [way for way in ("data_ptr()", "pointer") if hasattr(array, way.removesuffix("()"))]
    return f"{place}; got a {given}: pass {f'array.{ways[0]}' if ways else 'its address as an int'}"


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
