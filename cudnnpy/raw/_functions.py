"""The functions of `cudnnpy.raw`: each is bound at its first call, has C's parameters, and returns a status with its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cudnnpy.raw import _api
from cudnnpy.raw._library import checked, ctype, function_info, prototype, refuse_keywords

_Text = type("_Text", (str,), {"__repr__": str.__str__})  # an annotation, which is printed without quotes


class Status(int):
    """A status other than CUDNN_STATUS_SUCCESS, with the function that returned it. It prints as its name."""

    function: str  #: the C function that returned it

    def __str__(self) -> str:
        known = _api.cudnnStatus_t._value2member_map_.get(int(self))
        return known.name if known else f"unknown_{int(self)}"

    def __repr__(self) -> str:
        return f"<cudnnStatus_t.{self}: {int(self)}>"

    name = property(__str__)  # as enumerators have it


def function(name: str) -> Callable[..., Any]:
    """Return the function of a C name. It loads no library before it is called."""
    from inspect import Parameter, Signature  # importing cudnnpy.raw would take a tenth longer

    returns, parameters, _header, since, replacements = function_info(name)
    is_status, success = returns == "cudnnStatus_t", _api.cudnnStatus_t(0)
    bound: Callable[..., Any] | None = None

    def called(*arguments: Any, **named: Any) -> Any:
        nonlocal bound
        if named:
            refuse_keywords(name, named)
        if bound is None:
            bound = checked(name)
        result = bound(*arguments)
        if not is_status:
            return result
        if not result:
            return success
        status = Status(result)
        status.function = name
        return status

    made: Any = called
    made.__name__ = made.__qualname__ = name
    made.__module__ = "cudnnpy.raw"  # where help and pickle find it
    notes = [f"Since cuDNN {since}."] * bool(since)
    if replacements is not None:
        notes.append(f"Deprecated{': use ' if replacements else ''}{' or '.join(replacements)}.")
    made.__doc__ = f"{prototype(name)}\n\n{' '.join(notes)}".strip()
    made.argtypes, made.restype = [ctype(kind) for _name, kind, _direction in parameters], ctype(returns)
    made.__signature__ = Signature(
        [Parameter(n, Parameter.POSITIONAL_ONLY, annotation=_Text(f"{d} {t}".lstrip())) for n, t, d in parameters],
        return_annotation=_Text(returns),
    )
    return called
