"""Base class of the operations on arrays: every layer of cudnnpy, and of cudnnpy.reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from cudnnpy._checks.options import Options
from cudnnpy._checks.public_dir import no_attribute
from cudnnpy._checks.suggestions import refuse_call, suggest_argument
from cudnnpy._core.cache_token import CacheToken, cache_token
from cudnnpy._launch import dispatch


class ArrayOperation(Options):
    """An operation with options, whose public methods compute on arrays.

    A subclass has the options, the public methods with their signatures and docstrings, and the implementations: `_forward`,
    `_backward` and others. A method passes its arrays to `_run` with an implementation. An implementation plans a call: it
    takes a dispatch.Call and the arguments of the method, and returns a Program or Plan and the specs of the results. The
    classes of cudnnpy.reference are subclasses, which replace `_run` and the implementations.

    Objects of one class with equal options share a cache token, and so they share plans.
    """

    _suggest = staticmethod(suggest_argument)
    _token: CacheToken
    # _run(name, operation, implementation, names, inputs, outs, stream, *arguments) returns the result, or a tuple of the
    # results. `names` are the names of the inputs and of the results. A result that is None in `outs` becomes a new array.
    _run: ClassVar[Callable[..., Any]] = staticmethod(dispatch.run)

    def _derived(self) -> dict[str, Any]:
        return {"_token": cache_token(type(self), *self._fields().values())}

    if not TYPE_CHECKING:  # type checkers report the call and the attribute
        __call__ = refuse_call

        def __getattr__(self, name):
            is_size = "workspace" in name and hasattr(type(self), "plan")
            text = (
                f"{type(self).__name__!r} object has no attribute {name!r}: type plan('forward', x, w).workspace_size"
            )
            raise AttributeError(text if is_size else no_attribute(self, name), name=name, obj=self)
