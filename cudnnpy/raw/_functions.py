"""The functions of `cudnnpy.raw`: each is bound at its first call, has C's parameters, and returns a status with its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cudnnpy.raw._argument_checks import refusing
from cudnnpy.raw._library import bound, ctype, function_info, prototype

_Text = type("_Text", (str,), {"__repr__": str.__str__})  # an annotation, which is printed without quotes


def function(name: str) -> Callable[..., Any]:
    """Return the function of a C name. It loads no library before it is called."""
    from inspect import Parameter, Signature  # importing cudnnpy.raw would take a tenth longer

    returns, parameters, _header, since, replacements = function_info(name)
    made: Any = refusing(name, bound)
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
    return made  # type: ignore[no-any-return]
